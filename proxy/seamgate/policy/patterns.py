"""Patterns of hosts, paths and values: parsed once, canonical, matched per label or segment, never by regex.

`*` is exactly one label or segment, `**` one or more; within a path segment, a query, header or JSON value `*` is any
run of characters. The apex is never implied: `*.example.com` and `**.example.com` do not cover `example.com`.

Deny rules see paths *folded* (`fold_segment`): percent-decoded, without case and without a trailing slash, and as they
are once an origin has made sense of what decoding brought to light (`other_readings`), because an origin may read them
so; allow rules see the canonical path byte for byte, and must cover such readings too (`covers_as_allow`). `index`
finds patterns by the thousand; `matches` here answers for one, and is what the index is tested against.

Called by the loader, the index and explain. No I/O.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeAlias

import msgspec

from seamgate.address import canonical_host, canonical_name
from seamgate.errors import TargetError
from seamgate.paths import canonical_path
from seamgate.policy.folding import fold_text
from seamgate.unquoting import unquote_text

Rank: TypeAlias = tuple[int, ...]
"""How specific a pattern is: greater is more specific. Comparable only between patterns of one kind."""


class HostPattern(msgspec.Struct, frozen=True, gc=False):
    """A pattern of host names, or one address.

    Attributes:
        text: canonical.
        labels: from the top-level label down, "*" for any one label; () for an address.
        deep: whether one or more further labels come before `labels` (a leading `**`).
        is_address: whether it is an address literal.
        wild: whether it covers more than one name.
    """

    text: str
    labels: tuple[str, ...]
    deep: bool = False
    is_address: bool = False
    wild: bool = False

    def matches(self, host: str, is_address: bool) -> bool:
        """Whether it covers this canonical host. Names never cover addresses, nor the other way round."""
        if not self.wild or is_address:
            return host == self.text and is_address == self.is_address
        labels = host.split(".")
        labels.reverse()
        size = len(self.labels)
        if len(labels) <= size if self.deep else len(labels) != size:
            return False
        return all(mine in ("*", theirs) for mine, theirs in zip(self.labels, labels, strict=False))

    @property
    def rank(self) -> Rank:
        """Exact before wild, then more literal labels below the top before fewer, then `*` before `**`."""
        literal = 0
        for label in self.labels:
            if label == "*":
                break
            literal += 1
        return (not self.wild, literal, sum(label != "*" for label in self.labels), not self.deep)


@lru_cache(maxsize=4096)
def parse_host(text: str) -> HostPattern:
    """Parse a host pattern such as `api.example.com`, `*.example.com`, `**.example.com`, `**`, `10.0.0.1`, `[::1]`.

    Raises:
        TargetError: it is none of them; the message says what is wrong.
    """
    if "/" in text or "://" in text:
        raise TargetError(
            f"{text!r} is not a host: write the name alone; schemes, ports and paths have keys of their own"
        )
    if "*" not in text:
        host, is_address = canonical_host(text)
        return HostPattern(host, () if is_address else tuple(reversed(host.split("."))), is_address=is_address)
    labels = (text[:-1] if text.endswith(".") else text).split(".")
    deep = labels[0] == "**"
    if deep:
        labels = labels[1:]
    for label in labels:
        if "*" in label and label != "*":
            raise TargetError(f"{text!r}: in a host * stands for a whole label, and ** only at the front")
    if labels:
        # A stand-in of one letter keeps lengths honest while the literal labels are made canonical.
        plain = canonical_name(".".join("w" if label == "*" else label for label in labels)).split(".")
        labels = ["*" if old == "*" else new for old, new in zip(labels, plain, strict=True)]
    canonical = ".".join((["**"] if deep else []) + labels)
    return HostPattern(canonical, tuple(reversed(labels)), deep=deep, wild=True)


def literal_tail(host: HostPattern) -> str:
    """Return the end of a host pattern that has no wildcard: "example.com" of "*.example.com", "" of "**"."""
    labels: list[str] = []
    for label in host.labels:
        if label == "*":
            break
        labels.append(label)
    return ".".join(reversed(labels))


class Glob(msgspec.Struct, frozen=True, gc=False):
    """Text with `*` for any run of characters, kept as the literal pieces between the stars.

    Attributes:
        pieces: at least one; one piece means there is no star.
    """

    pieces: tuple[str, ...]

    def matches(self, text: str) -> bool:
        """Whether it covers the whole text. Linear: leftmost matches suffice where the only wildcard is `*`."""
        pieces = self.pieces
        if len(pieces) == 1:
            return text == pieces[0]
        first, last = pieces[0], pieces[-1]
        if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
            return False
        start, end = len(first), len(text) - len(last)
        for piece in pieces[1:-1]:
            found = text.find(piece, start, end)
            if found < 0:
                return False
            start = found + len(piece)
        return True

    @property
    def text(self) -> str:
        """As written."""
        return "*".join(self.pieces)

    def folded(self) -> Glob:
        """The same without case, as deny rules compare."""
        return Glob(tuple(fold_text(piece) for piece in self.pieces))


def parse_glob(text: str) -> Glob:
    """Parse a value pattern: every `*` is any run of characters."""
    return Glob(tuple(text.split("*")))


ANY = Glob(("", ""))
"""A whole segment `*`: any one segment but the empty one after a trailing slash."""
DEEP = Glob(("", "", ""))
"""A whole segment `**`: one or more segments, of which the last may be empty."""


class PathPattern(msgspec.Struct, frozen=True, gc=False):
    """A pattern of canonical paths.

    Attributes:
        text: canonical.
        segments: one for each segment: a literal, a glob, ANY or DEEP.
        wild: whether it covers more than one path.
    """

    text: str
    segments: tuple[Glob, ...]
    wild: bool = False

    def matches(self, path: str) -> bool:
        """Whether it covers this canonical path, byte for byte."""
        return path.startswith("/") and _match_segments(self.segments, path[1:].split("/"))

    def folded(self) -> tuple[PathPattern, ...]:
        """What a deny rule looks for: one pattern, or two where %2F in it may also be a separator."""
        texts = [self.text] if "%2F" not in self.text else [self.text, self.text.replace("%2F", "/")]
        return tuple(_fold_pattern(text) for text in texts)

    @property
    def everything(self) -> bool:
        """Whether it is `/**`."""
        return self.segments == (DEEP,)

    @property
    def rank(self) -> Rank:
        """Exact before wild, then more literal segments at the front, then in all, then globs, then `*` before `**`."""
        literal = [len(segment.pieces) == 1 for segment in self.segments]
        front = literal.index(False) if False in literal else len(literal)
        globs = sum(len(segment.pieces) > 1 and segment not in (ANY, DEEP) for segment in self.segments)
        return (not self.wild, front, sum(literal), globs, len(self.segments), -self.segments.count(DEEP))


@lru_cache(maxsize=4096)
def parse_path(text: str) -> PathPattern:
    """Parse a path pattern such as `/v1/messages`, `/repos/*/*/pulls`, `/simple/**`, `/v*/models.json`.

    Raises:
        TargetError: it is not a canonical path, or `**` is not a whole segment.
    """
    if not text.startswith("/"):
        raise TargetError(f"{text!r} must begin with /")
    if "?" in text or "#" in text:
        raise TargetError(f"{text!r} is more than a path: match the query with the key query")
    path = canonical_path(text)
    return PathPattern(path, tuple(_parse_segment(segment, text) for segment in path[1:].split("/")), "*" in path)


def _parse_segment(segment: str, text: str) -> Glob:
    if segment == "*":
        return ANY
    if segment == "**":
        return DEEP
    if "**" in segment:
        raise TargetError(f"{text!r}: ** must be a whole segment, as in /a/**")
    return Glob(tuple(segment.split("*")))


def _fold_pattern(text: str) -> PathPattern:
    parsed = [_parse_segment(segment, text) for segment in text[1:].split("/")]
    if len(parsed) > 1 and parsed[-1].pieces == ("",):
        parsed.pop()
    folded = (each if each in (ANY, DEEP) else Glob(tuple(map(fold_segment, each.pieces))) for each in parsed)
    return PathPattern(text, tuple(folded), "*" in text)


def fold_segment(segment: str) -> str:
    """Return a path segment as the most lenient origin would read it: percent-decoded, without case."""
    return fold_text(unquote_text(segment))


def _folded_segments(path: str) -> list[str]:
    """Return each segment of a path as `fold_segment` does: all at once, since a guest chooses how many there are."""
    if "%" not in path:
        return fold_text(path).split("/")
    # No canonical path holds a control character in any spelling, and none folds into one or combines with one: these
    # stand for the slashes while what looks like one is folded.
    folded = fold_text(unquote_text(path.replace("/", "\x01").replace("%2F", "\x02")))
    return [each.replace("\x02", "/") for each in folded.split("\x01")] if "\x02" in folded else folded.split("\x01")


def folded_views(path: str) -> list[list[str]]:
    """Return the ways in which a lenient origin may read a canonical path: lists of folded segments.

    With and without a trailing slash, with %2F as it is and as a separator, and `other_readings`. "*" (of OPTIONS *) is
    one segment.
    """
    texts = [path] if "%2F" not in path else [path, path.replace("%2F", "/")]
    views = []
    for text in texts:
        segments = _folded_segments(text.removeprefix("/"))
        views.append(segments)
        if len(segments) > 1 and segments[-1] == "":
            views.append(segments[:-1])
    if _ODD.search(path):
        for segments in other_readings(path):
            bare = segments[:-1] if len(segments) > 1 and segments[-1] == "" else segments
            views.extend(view for view in (segments, bare) if view not in views)
    return views


# What may hold something that `other_readings` looks for: an escape, a dot at the end of a segment, a stream of NTFS.
_ODD = re.compile(r"%|\.(?:/|\Z)|:\$")
# NTFS: `name::$DATA` is the file `name`, `name:$I30:$INDEX_ALLOCATION` and `name::$INDEX_ALLOCATION` the folder.
_STREAM = re.compile(r":(?:\$i30)?:\$[a-z_]*\Z")
_CUT = re.compile(r"[?#]")
# A backslash, and what text that is fitted to a code page has a slash for: fraction, division, big, set minus.
_SLASHES = str.maketrans(dict.fromkeys("\\\u2044\u2215\u29f8\u29f5\u2216", "/"))


@lru_cache(maxsize=8)
def other_readings(path: str) -> list[list[str]]:
    """Return the further ways in which an origin may read what escapes, normalization or a file system bring to light.

    A backslash, a full-width slash and what looks like one are separators, two dots in one character are a dot
    segment, "?" and "#" end the path, ";" begins parameters, spaces and dots at the end of a segment (and spaces before
    it) are nothing, and the type of a stream (`::$DATA`) is what a file has anyway. Each reading is there before all
    that is resolved, too, and with and without the cut at "?". Remembered for the last few paths, since denies, allows,
    exemptions and credentials each ask for those of the same request: the lists must not be changed.

    Args:
        path: canonical.
    """
    whole = fold_segment(path).translate(_SLASHES)
    readings = []
    for text in dict.fromkeys((whole, _CUT.split(whole, maxsplit=1)[0])):
        segments = text.removeprefix("/").split("/")
        clean: list[str] = []
        for segment in segments:
            plain = segment.partition(";")[0].strip(" \t")
            if plain == "..":
                del clean[-1:]
            elif plain := _STREAM.sub("", plain.rstrip(" \t.")).rstrip(" \t."):
                clean.append(plain)
        ends_open = segments[-1].partition(";")[0].strip(" \t.") == ""
        readings += [segments, [*clean, ""] if ends_open else clean]
    return readings


def denies_path(pattern: PathPattern, path: str) -> bool:
    """Whether a deny rule's pattern covers this canonical path in any reading."""
    return any(_match_segments(each.segments, view) for each in pattern.folded() for view in folded_views(path))


def covers_readings(patterns: tuple[PathPattern, ...], path: str) -> bool:
    """Whether the patterns cover a canonical path in each of its `other_readings`, folded: for exceptions."""
    if not _ODD.search(path):
        return True
    wanted = [each.segments for pattern in patterns for each in pattern.folded()]
    return all(any(_match_segments(each, view) for each in wanted) for view in other_readings(path))


def strict_readings(path: str) -> list[list[str]] | None:
    """Return the other readings of a canonical path that an allow must cover, too; None: there is none.

    An allow with `encoded_slash` takes %2F for a character of a segment, so here it is one, unless what stands between
    two of them is read as a dot segment: then one of the readings is [], which nothing covers.
    """
    if not _ODD.search(path):
        return None
    if "%2F" not in path:
        return other_readings(path)
    # No path holds NUL, so that it can stand for the encoded slash while the readings are made.
    readings = [[each.replace("\0", "/") for each in view] for view in other_readings(path.replace("%2F", "\0"))]
    parts = fold_segment(path).translate(_SLASHES).split("/")
    if any(part.partition(";")[0].strip(" \t") == ".." for part in parts):
        readings.append([])
    return readings


@lru_cache(maxsize=8)
def reads_alike(path: str) -> bool:
    """Whether each of a canonical path's `strict_readings` is the path itself, folded."""
    readings = strict_readings(path)
    own = None if readings is None else _folded_segments(path.removeprefix("/"))
    return readings is None or all(view == own for view in readings)


def covers_as_allow(patterns: tuple[PathPattern, ...], path: str, readings: list[list[str]]) -> bool:
    """Whether an allow's patterns, of which one covers the path, cover its `strict_readings`, too, folded.

    A pattern that is this very path does: who wrote it means it.
    """
    if any(not pattern.wild and pattern.text == path for pattern in patterns):
        return True
    wanted = [each.segments for pattern in patterns for each in pattern.folded()]
    return all(
        any(_match_segments(each, view) or (view[-1:] == [""] and _match_segments(each, view[:-1])) for each in wanted)
        for view in readings
    )


def _match_segments(pattern: tuple[Glob, ...], segments: list[str]) -> bool:
    """Match per segment, by the set of positions in the pattern: linear however many `**` there are."""
    states, size = {0}, len(pattern)
    ends_deep = size > 0 and pattern[-1] is DEEP
    for segment in segments:
        if not states:
            return False
        if ends_deep and size in states:
            return True
        following = set()
        for state in states:
            if state < size and _covers(pattern[state], segment):
                following.add(state + 1)
            if state > 0 and pattern[state - 1] is DEEP:
                following.add(state)
        states = following
    return size in states


def _covers(glob: Glob, segment: str) -> bool:
    return segment != "" if glob is ANY else glob is DEEP or glob.matches(segment)
