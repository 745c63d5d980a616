"""Takes exact secret values out of a stream of bytes, over any split, with a bounded delay.

The credentials plugin opens a `Redactor` for each response of a host that a credential is bound to. It finds each
value in every spelling of `seamgate.credentials.encodings` and puts `[redacted:<name>]` in its place. It never parses
and never buffers a body: it holds back at most the longest spelling minus one byte, and only while the end of what
came so far is a true beginning of a spelling.

What a pause does (`flush`). Holding on for ever could stall a peer that waits for these bytes; letting a beginning
go tells part of the secret. So `flush` gives out at most `FLUSH_LIMIT_BYTES` held bytes, which tells no more than
that many first characters, and the redactor remembers that it gave them: if the rest of the secret follows, it is
still replaced. More than that stays held until the next byte decides, or the end does: a tail that equals four or
more characters of a secret by chance is rare, and one that ends an event or a line can't, since no secret holds a
line break. So an event stream is never delayed.

Speed: one `bytes.find` for each spelling (10 GB/s for long ones, measured), no regular expression; a piece without
a hit is passed on as the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seamgate.credentials.encodings import all_forms
from seamgate.flow import Headers

FLUSH_LIMIT_BYTES = 3
"""The most characters of a secret that a pause can let out: "sk-" and "ghp" are public anyway."""


class RedactionSet:
    """The spellings to look for, prepared once for many redactors. Shows none of them in its repr."""

    __slots__ = ("_ends", "_names", "_needles", "_starts", "longest")

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        """Prepare.

        Args:
            values: (name of the credential, exact value); a name may come more than once.
        """
        found: dict[bytes, str] = {}
        for name, value in values:
            for form in all_forms(value):
                found.setdefault(form, name)
        # Longest first: where one spelling begins with another, the longer one is replaced.
        self._needles = tuple(sorted(found, key=lambda form: (-len(form), form)))
        self._names = tuple(b"[redacted:%s]" % found[form].encode() for form in self._needles)
        self._starts = tuple(form[:1] for form in self._needles)
        # All bytes that can stand at the end of a true beginning of a spelling.
        self._ends = frozenset(byte for form in self._needles for byte in form[:-1])
        self.longest = max(map(len, self._needles), default=0)

    def __repr__(self) -> str:
        return f"<RedactionSet of {len(self._needles)} spellings>"

    def __bool__(self) -> bool:
        return bool(self._needles)

    def hit(self, data: bytes) -> bool:
        """Return whether any spelling stands in the data."""
        for form in self._needles:  # a loop: any() with a generator costs twice as much
            if form in data:
                return True
        return False

    def hits(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (begin, end, replacement) of each spelling: leftmost, then longest, without overlaps.

        Linear in the data: the next place of each spelling is kept, not searched again for each hit.
        """
        nexts = {index: place for index, form in enumerate(self._needles) if (place := data.find(form)) >= 0}
        while nexts:
            which = min(nexts, key=lambda index: (nexts[index], index))  # the longest has the lowest index
            begin = nexts[which]
            end = begin + len(self._needles[which])
            yield begin, end, self._names[which]
            for index in [index for index, place in nexts.items() if place < end]:
                nexts[index] = data.find(self._needles[index], end)
                if nexts[index] < 0:
                    del nexts[index]

    def open_end(self, data: bytes, start: int) -> int:
        """Return where the earliest true beginning of a spelling starts that lasts to the end; else len(data)."""
        size = len(data)
        if start >= size or data[-1] not in self._ends:
            return size
        best = size
        for form, first in zip(self._needles, self._starts, strict=True):
            place = data.find(first, max(start, size - len(form) + 1), best)
            while place >= 0:
                if form.startswith(data[place:]):
                    best = place
                    break
                place = data.find(first, place + 1, best)
        return best

    def replace(self, data: bytes) -> bytes:
        """Return the whole text with every spelling replaced; the same object if there is none."""
        out: list[bytes] = []
        place = 0
        for begin, end, replacement in self.hits(data):
            out += (data[place:begin], replacement)
            place = end
        return b"".join((*out, data[place:])) if out else data

    def replace_headers(self, headers: Headers) -> Headers:
        """Return the headers with each value redacted; a header whose very name holds a secret is dropped."""
        if not self.hit(b"\n".join([b"\n".join(pair) for pair in headers])):
            return headers
        return tuple((name, self.replace(value)) for name, value in headers if not self.hit(name))


class Redactor:
    """An inspector that lets everything pass but the values of one `RedactionSet`. For one body."""

    __slots__ = ("_given", "_set", "_tail")

    def __init__(self, patterns: RedactionSet) -> None:
        self._set = patterns
        self._tail = b""
        self._given = 0  # so many bytes at the beginning of the tail have been given out by flush

    def head(self, headers: Headers) -> Headers:
        """Return the headers without secrets."""
        return self._set.replace_headers(headers)

    def feed(self, data: bytes) -> bytes:
        """Return what can be decided by now: for a piece without any hit or open end, that same piece."""
        if self._tail:
            return self._run(self._tail + data, last=False)
        # The usual case in one test each: nothing found, nothing open.
        if not self._set.hit(data) and self._set.open_end(data, 0) == len(data):
            return data
        return self._run(data, last=False)

    def flush(self) -> bytes:
        """Return held bytes if they are few enough to tell nothing; they are remembered (see above)."""
        if self._given >= len(self._tail) or len(self._tail) > FLUSH_LIMIT_BYTES:
            return b""
        out = self._tail[self._given :]
        self._given = len(self._tail)
        return out

    def finish(self) -> bytes:
        """Return the rest: a beginning that stayed a beginning is no secret."""
        return self._run(self._tail, last=True) if self._tail else b""

    def _run(self, data: bytes, *, last: bool) -> bytes:
        """Replace what is decided; keep the open end as the tail.

        A hit is decided once no spelling that begins earlier, or at the same place and is longer, can still come.
        """
        out: list[bytes] = []
        place = 0
        given = self._given
        open_at = len(data) if last else self._set.open_end(data, 0)
        for begin, end, replacement in self._set.hits(data):
            if begin >= open_at:
                break
            out += (data[max(place, given) : begin], replacement)
            place = end
            if open_at < place:
                open_at = self._set.open_end(data, place)
        out.append(data[max(place, given) : open_at])
        self._tail = data[open_at:]
        self._given = max(0, given - open_at)
        return b"".join(out)
