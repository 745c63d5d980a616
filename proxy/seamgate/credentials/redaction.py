"""Takes exact secret values out of a stream of bytes, over any split, with a bounded delay.

The credentials plugin opens a `Redactor` for each response of a host that a credential is bound to. It finds each
value in every spelling of `seamgate.credentials.encodings`, also where some of its characters are escaped and others
not (`seamgate.credentials.escapes`), and puts `[redacted:<name>]` in its place. It never parses and never buffers a
body: it holds back at most the longest spelling minus one byte (with escapes, as many characters of it), and only while
the end of what came so far is a true beginning of a spelling, or an escape that is not whole.

What a pause does (`flush`). Holding on for ever could stall a peer that waits for these bytes; letting a beginning
go tells part of the secret. So `flush` gives out at most `FLUSH_LIMIT_BYTES` held bytes, which tells no more than
that many first characters, and the redactor remembers that it gave them: if the rest of the secret follows, it is
still replaced. More than that stays held until the next byte decides, or the end does: a tail that equals four or
more characters of a secret by chance is rare, and one that ends an event can't, since no spelling holds an empty line.
So an event stream is never delayed. That something is held tells whoever sent it that it is a beginning: how often a
guest may learn that is counted by `seamgate.credentials.probing`.

Base64 may stand in lines (MIME: 76 characters, PEM: 64), broken at any place of the value. Two probes, the first and
second part of a spelling, find it: lines are so long that one of the two is whole. Looked for only where there is a
line break; then the rest is compared around the break.

Speed: one pass over a piece for all spellings together (`seamgate.credentials.needles`); a piece without a hit is
passed on as the same object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from seamgate.credentials.encodings import all_forms, base64_forms, mime_forms
from seamgate.credentials.escapes import View, letters_of, plain_view
from seamgate.credentials.needles import Needles
from seamgate.credentials.probing import FLUSH_LIMIT_BYTES, Hold, Probe
from seamgate.credentials.shapes import public_beginnings
from seamgate.flow import Headers
from seamgate.unquoting import unquote

_SHORTEST_LINE = 64
_FLUSH_LIMIT: Final = FLUSH_LIMIT_BYTES  # an imported name is looked up each time
_PROBE_BYTES = _SHORTEST_LINE // 2
"""Two probes side by side are no longer than a line, so that at most one of them is broken."""


class _Wrapped:
    """One spelling in base64 that may stand in lines, and its probes."""

    __slots__ = ("first", "form", "mark", "second")

    def __init__(self, form: bytes, mark: bytes) -> None:
        size = min(_PROBE_BYTES, len(form) // 2)
        self.form = form
        self.mark = mark
        self.first = form[:size]
        self.second = form[size : 2 * size]

    def find(self, data: bytes, start: int) -> tuple[int, int]:
        """Return (begin, end) of its leftmost place from start on, (-1, -1) if there is none."""
        begin, end = -1, -1
        place = data.find(self.first, start)
        while place >= 0 and end < 0:
            end = self._end(data, place)
            begin = place if end >= 0 else -1
            place = data.find(self.first, place + 1)
        # The first probe is broken by one line break, and the second is whole.
        place = data.find(self.second, start, len(data) if begin < 0 else begin)
        while place >= 0:
            for size in (1, 2):
                early = place - len(self.first) - size
                if early >= start and (stop := self._end(data, early)) >= 0:
                    return early, stop
            place = data.find(self.second, place + 1, len(data) if begin < 0 else begin)
        return begin, end

    def _end(self, data: bytes, begin: int) -> int:
        """Return where it ends if it begins there, whatever line breaks are in it; else -1."""
        place, done, size = begin, 0, len(self.form)
        while True:
            line_end = data.find(b"\n", place, place + size - done + 2)
            stop = len(data) if line_end < 0 else line_end
            if line_end > place and data[line_end - 1] == 0x0D:
                stop -= 1
            piece = data[place : min(stop, place + size - done)]
            if not piece or not self.form.startswith(piece, done):
                return -1
            done += len(piece)
            place += len(piece)
            if done == size:
                return place
            if line_end < 0 or place != stop:
                return -1
            place = line_end + 1


class RedactionSet:
    """The spellings to look for, prepared once for many redactors. Shows none of them in its repr."""

    __slots__ = (
        "_any", "_any_in_head", "_any_in_lines", "_any_in_names", "_any_wrapped", "_ends", "_ends_wrapped", "_escaped",
        "_in_names", "_mark_names", "_marks", "_names", "_needles", "_wrapped", "letters", "longest", "mark_bytes",
        "public",
    )  # fmt: skip

    def __init__(self, values: Iterable[tuple[str, bytes]], placeholders: Iterable[tuple[str, bytes]] = ()) -> None:
        """Prepare.

        Args:
            values: (name of the credential, exact value); a name may come more than once.
            placeholders: (name of the credential, text); only `placeholders_in` looks for them.
        """
        found: dict[bytes, str] = {}
        in_lines: dict[bytes, str] = {}
        public: set[bytes] = set()
        letters: set[int] = set()
        for name, value in values:
            letters.update(value, *base64_forms(value), b"\r\n" if mime_forms(value) else b"")
            public.update(public_beginnings(value))
            for form in all_forms(value):
                found.setdefault(form, name)
            for form in mime_forms(value):
                in_lines.setdefault(form, name)
        self._mark_names = {form: name for name, text in placeholders for form in (text, *base64_forms(text))}
        self._marks = Needles(tuple(self._mark_names))
        letters.update(*self._mark_names)
        self.mark_bytes = max(map(len, self._mark_names), default=0)
        """The longest of them; 0 where none are looked for."""
        self.public = frozenset(public)
        """Beginnings that everybody knows."""
        self.letters = letters_of(bytes(letters))
        """Of which characters escapes are taken off (`plain_view`)."""
        # Longest first: where one spelling begins with another, the longer one is replaced.
        self._needles = tuple(sorted(found, key=lambda form: (-len(form), form)))
        self._names = tuple(b"[redacted:%s]" % found[form].encode() for form in self._needles)
        # All bytes that can stand at the end of a true beginning of a spelling.
        self._ends = frozenset(byte for form in self._needles for byte in form[:-1])
        self._ends_wrapped = frozenset(byte for form in in_lines for byte in form[:-1])
        self._wrapped = tuple([_Wrapped(form, b"[redacted:%s]" % name.encode()) for form, name in in_lines.items()])
        # What to look for where there are lines: whoever is there as a whole has both probes.
        probes = [probe for wrapped in self._wrapped for probe in (wrapped.first, wrapped.second)]
        # Names come in lower case; those that are a needle as they are need no second search.
        self._in_names = tuple({form.lower() for form in self._needles} - set(self._needles))
        self._any = Needles(self._needles)
        self._any_in_lines = Needles((*[form for form in self._needles if form not in in_lines], *probes))
        self._any_in_names = Needles(self._in_names)
        self._any_in_head = Needles((*self._needles, *self._in_names))
        self._escaped = Needles((), single=b"%\\&")
        self._any_wrapped = Needles(tuple(in_lines))
        longest_in_lines = max(map(len, in_lines), default=-3)
        self.longest = max(
            max(map(len, self._needles), default=0), longest_in_lines + 2 * (longest_in_lines // _SHORTEST_LINE + 1) + 1
        )

    def __repr__(self) -> str:
        return f"<RedactionSet of {len(self._needles)} spellings>"

    def __bool__(self) -> bool:
        return bool(self._needles)

    def hit(self, data: bytes) -> bool:
        """Return whether any spelling stands in the data, or may stand in lines of it."""
        # A line break at the very end, as JSON often has it, or an empty line, as events do, breaks no spelling.
        end = len(data) - (2 if data.endswith(b"\n\n") else 1)
        return (self._any if data.find(b"\n", 0, end) < 0 else self._any_in_lines).found(data)

    def placeholders_in(self, data: bytes, view: View | None) -> list[str]:
        """Return the credentials of which a placeholder stands in the data or its view, as it is or in base64."""
        names: list[str] = []
        for text in (data,) if view is None else (data, view[0]):
            if self._marks.found(text):
                names += [name for form, name in self._mark_names.items() if form in text]
        return names

    def hit_in_lines(self, data: bytes) -> bool:
        """Return whether any spelling in base64 stands in the data, broken by lines or not."""
        return self._in_lines(data, 0) is not None

    def shows(self, text: bytes) -> bool:
        """Return whether any spelling stands in a name, a path or a sentence: in any case, also behind `%` twice."""
        for _ in range(3):
            if self._any_in_head.found(text) or self._any_in_head.found(text.lower()) or self.hit(text):
                return True
            plain = unquote(text)
            if plain == text:
                return False
            text = plain
        return False

    def view(self, data: bytes, *, within: bool = False) -> View | None:
        """Return the data without the escapes that may stand in a spelling; None if there are none."""
        return plain_view(data, self.letters, within)

    def hits(self, data: bytes, view: View | None = None) -> Iterator[tuple[int, int, bytes]]:
        """Yield (begin, end, replacement) of each spelling: leftmost, then longest, without overlaps.

        Args:
            data: the text.
            view: of it, if it has one: what stands there is found too.
        """
        if view is None:
            yield from self._hits(data)
            return
        text, starts, ends, _ = view
        found = [*self._hits(data), *[(starts[begin], ends[end - 1], mark) for begin, end, mark in self._hits(text)]]
        found.sort(key=_leftmost_then_longest)
        place = 0
        for each in found:
            if each[0] >= place:
                place = each[1]
                yield each

    def _hits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """As `hits`, of the text as it stands.

        Linear in the data: the next place of each spelling is kept, not searched again for each hit.
        """
        nexts = {index: place for index, form in enumerate(self._needles) if (place := data.find(form)) >= 0}
        in_lines = self._in_lines(data, 0)
        while nexts or in_lines is not None:
            if nexts:
                which = min(nexts, key=lambda index: (nexts[index], index))  # the longest has the lowest index
                found = (nexts[which], nexts[which] + len(self._needles[which]), self._names[which])
                if in_lines is not None and (in_lines[0], -in_lines[1]) < (found[0], -found[1]):
                    found = in_lines
            else:
                assert in_lines is not None
                found = in_lines
            yield found
            end = found[1]
            for index in [index for index, place in nexts.items() if place < end]:
                nexts[index] = data.find(self._needles[index], end)
                if nexts[index] < 0:
                    del nexts[index]
            if in_lines is not None and in_lines[0] < end:
                in_lines = self._in_lines(data, end)

    def begun_by(self, text: bytes) -> frozenset[str]:
        """Return the names of credentials of which a spelling begins so, in lines or not."""
        marks = [mark for form, mark in zip(self._needles, self._names, strict=True) if form.startswith(text)]
        joined = text.replace(b"\r", b"").replace(b"\n", b"")
        marks += [wrapped.mark for wrapped in self._wrapped if wrapped.form.startswith(joined)]
        return frozenset([name_in(mark) for mark in marks])

    def _in_lines(self, data: bytes, start: int) -> tuple[int, int, bytes] | None:
        """Return the leftmost spelling that stands in lines, as `hits` does."""
        best: tuple[int, int, bytes] | None = None
        if data.find(b"\n", start) >= 0:
            for wrapped in self._wrapped:
                begin, end = wrapped.find(data, start)
                if begin >= 0 and (best is None or (begin, -end) < (best[0], -best[1])):
                    best = (begin, end, wrapped.mark)
        return best

    def open_from(self, data: bytes, start: int, view: View | None) -> int:
        """As `open_end`, of the text and its view: also where an escape begins that is not whole."""
        best = self.open_end(data, start)
        if view is not None:
            text, starts, _, open_at = view
            place = self.open_end(text, bisect_left(starts, start))
            best = min(best, starts[place] if place < len(text) else len(data), max(open_at, start))
        return best

    def open_end(self, data: bytes, start: int) -> int:
        """Return where the earliest true beginning of a spelling starts that lasts to the end; else len(data)."""
        size = len(data)
        if start >= size:
            return size
        if data[-1] in self._ends:
            best = self._any.open_end(data, start)
        elif data[-1] in b"\r\n":
            best = size
        else:
            return size
        if data.endswith((b"\n\n", b"\n\r\n")):
            return best
        recent = max(start, size - self.longest + 1)
        if data[-1] == 0x0D or data.find(b"\n", recent) >= 0:
            best = min(best, self._open_in_lines(data, recent))
        return best

    def _open_in_lines(self, data: bytes, start: int) -> int:
        """As `open_end`, of spellings that stand in lines."""
        last = len(data) - 1
        while last >= start and (data[last] == 0x0A or data[last] == 0x0D):
            last -= 1
        if last < start or data[last] not in self._ends_wrapped:
            return len(data)  # the last character before the line break is none that a beginning could end with
        pieces: list[bytes] = []
        places: list[int] = []
        for line in data[start:].splitlines(keepends=True):
            text = line.rstrip(b"\r\n")
            if not text:  # an empty line ends every spelling
                pieces, places = [], []
            else:
                pieces.append(text)
                places.append(start)
            start += len(line)
        joined = b"".join(pieces)
        best = self._any_wrapped.open_end(joined, 0)
        if best == len(joined):
            return len(data)
        for piece, place in zip(pieces, places, strict=True):
            if best < len(piece):
                return place + best
            best -= len(piece)
        return len(data)

    def replace(self, data: bytes) -> bytes:
        """Return the whole text with every spelling replaced; the same object if there is none."""
        view = self.view(data)
        if not self.hit(data) and (view is None or not self.hit(view[0])):
            return data
        out: list[bytes] = []
        place = 0
        for begin, end, replacement in self.hits(data, view):
            out += (data[place:begin], replacement)
            place = end
        return b"".join((*out, data[place:])) if out else data

    def replace_headers(self, headers: Headers) -> Headers:
        """Return the headers with each value redacted; a header whose very name holds a secret is dropped."""
        if not self._any_in_head.found_in(headers, True) and not self._escaped.found_in(headers, False):
            return headers
        return tuple(
            [(name, self._cleaned(value)) for name, value in headers if not self.hit(name) and not self._named(name)]
        )

    def _cleaned(self, value: bytes) -> bytes:
        """Return a header's value redacted, also where it repeats names, as Access-Control-Allow-Headers does."""
        value = self.replace(value)
        for form in self._in_names:
            value = value.replace(form, b"[redacted]")
        return value

    def _named(self, text: bytes) -> bool:
        """Return whether a spelling stands in the text in lower case, as it would in a header's name."""
        return self._any_in_names.found(text)


class Redactor:
    """An inspector that lets everything pass but the values of one `RedactionSet`. For one body.

    It tells the guest's probe, if there is one, of what it holds, and lets nothing pass once that is spent.

    Attributes:
        needs_whole: whether parts of the body are refused: a value would be in two of them.
    """

    __slots__ = ("_fills", "_given", "_hold", "_probe", "_renew", "_set", "_tail", "_viewed", "_within", "needs_whole")

    def __init__(
        self,
        patterns: RedactionSet,
        probe: Probe | None = None,
        *,
        needs_whole: bool = True,
        renew: Callable[[], RedactionSet] | None = None,
    ) -> None:
        """Prepare.

        Args:
            patterns: what to look for.
            probe: the guest's.
            needs_whole: see the class.
            renew: returns what to look for by now, where a value may rotate while the body is under way.
        """
        self._set = patterns
        self._renew = renew
        self.needs_whole = needs_whole
        self._fills = False  # whether what comes in the place of a value has to be as long
        self._probe = probe
        self._hold: Hold | None = None  # what was new to the probe of the hold that lasts
        self._tail = b""
        self._viewed: View | None = None  # of the last piece, with what was held before it
        self._within = False  # whether what comes next is in the middle of a line
        self._given = 0  # so many bytes at the beginning of the tail have been given out by flush

    def head(self, headers: Headers) -> Headers:
        """Return the headers, or trailers, without secrets."""
        if self._renew is not None:
            self._set = self._renew()
        return self._set.replace_headers(headers)

    def join(self, *, keeps_length: bool) -> None:
        """Begin within a body: see `seamgate.hookspecs.Inspector`."""
        self._fills = keeps_length

    def feed(self, data: bytes) -> bytes:
        """Return what can be decided by now: for a piece without any hit or open end, that same piece.

        Raises:
            CredentialError: with SECRET_PROBED: the guest has found out as much as it may.
        """
        if self._renew is not None:
            self._set = self._renew()
        probe = self._probe
        if probe is None:
            return self._feed(data)
        probe.check()
        size = len(self._tail) + len(data)
        out = self._feed(data)
        if len(self._tail) != size:
            self._hold = None  # what was held is decided
        if len(self._tail) > _FLUSH_LIMIT:
            self._note(probe)
        return out

    def _note(self, probe: Probe) -> None:
        """Tell of what is held, as that what it stands for."""
        view = self._set.view(self._tail, within=True)
        told = self._tail if view is None else view[0]
        if len(told) > _FLUSH_LIMIT and told not in self._set.public:
            if self._hold is None:
                self._hold = Hold()
            probe.note(told, self._hold, self._set)

    def _feed(self, data: bytes) -> bytes:
        if not data:
            return b""
        given, patterns, within = self._given, self._set, self._within
        self._within = data[-1] != 0x0A and data[-1] != 0x0D
        if self._tail:
            data, within = self._tail + data, True
        view = self._viewed = plain_view(data, patterns.letters, within)
        if patterns.hit(data) or (view is not None and patterns.hit(view[0])):
            return self._run(data, view, last=False)
        # The usual case, in one pass and without a copy: nothing is found, and mostly nothing is open.
        open_at = patterns.open_end(data, 0) if view is None else patterns.open_from(data, 0, view)
        self._tail = data[open_at:]
        self._given = max(0, given - open_at)
        if given == 0 and open_at == len(data):
            return data
        return data[given:open_at] if given < open_at else b""

    def flush(self) -> bytes:
        """Return held bytes if they are few enough to tell nothing; they are remembered (see above).

        Raises:
            CredentialError: with SECRET_PROBED, as `feed`.
        """
        if self._probe is not None:
            self._probe.check()
        if self._given >= len(self._tail) or len(self._tail) > FLUSH_LIMIT_BYTES:
            return b""
        out = self._tail[self._given :]
        self._given = len(self._tail)
        return out

    def finish(self) -> bytes:
        """Return the rest: a beginning that stayed a beginning is no secret.

        Raises:
            CredentialError: with SECRET_PROBED, as `feed`.
        """
        if self._probe is not None:
            self._probe.check()
        tail = self._tail
        return self._run(tail, self._set.view(tail, within=True), last=True) if tail else b""

    def _run(self, data: bytes, view: View | None, *, last: bool) -> bytes:
        """Replace what is decided; keep the open end as the tail.

        A hit is decided once no spelling that begins earlier, or at the same place and is longer, can still come.
        """
        out: list[bytes] = []
        place = 0
        given = self._given
        open_at = len(data) if last else self._set.open_from(data, 0, view)
        for begin, end, replacement in self._set.hits(data, view):
            if begin >= open_at:
                break
            if begin == 0 and self._probe is not None and self._hold is not None:
                self._probe.take_back(self._hold)
                self._hold = None
            start = max(place, given)
            if self._fills:
                size = end - max(begin, given)
                replacement = replacement[:size].ljust(size, b"*")
            # Compiled, a slice that ends before it begins is an error, not empty.
            out += (data[start:begin] if start < begin else b"", replacement)
            place = end
            if open_at < place:
                open_at = self._set.open_from(data, place, view)
        start = max(place, given)
        if start < open_at:
            out.append(data[start:open_at])
        self._tail = data[open_at:]
        self._given = max(0, given - open_at)
        return b"".join(out)


def _leftmost_then_longest(hit: tuple[int, int, bytes]) -> tuple[int, int]:
    return hit[0], -hit[1]


def name_in(replacement: bytes) -> str:
    """Return the credential's name that stands in `[redacted:<name>]`."""
    return replacement[len(b"[redacted:") : -1].decode()
