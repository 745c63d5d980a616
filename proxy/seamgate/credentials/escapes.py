"""A text with its escapes taken off, and where each character of it stood: to search where spellings are mixed.

Writers escape all of a value or what they must (`seamgate.credentials.encodings`); "sk-\\u006cive" is as good to who
reads JSON, and no list has it. Called by redaction for each piece of a body: in C where that is built, else the same in
Python. Pure; nothing is kept between pieces.

What is taken off, where it stands for one of the characters that are asked for:
- `\\u00XX` and `\\xXX`, `\\/` and `\\"` (RFC 8259 7), behind up to eight backslashes: JSON may stand in JSON;
- `%XX` (RFC 3986 2.1), `&#DDD;` and `&#xXX;` (HTML);
- `\\n` and `\\r` within base64, which stands in lines;
- the break between two `data:` lines of one event (the HTML standard, 9.2.6).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

View: TypeAlias = tuple[bytes, Sequence[int], Sequence[int], int]
"""(the text; where each byte of it begins in what was given, and where it ends; where an open escape begins)."""

LITERAL: Final = 0
ESCAPE: Final = 1
JOIN: Final = 2
OPEN: Final = 3
OPEN_JOIN: Final = 4
_MOST_BACKSLASHES: Final = 8
_MOST_DIGITS: Final = 7
_LINE_BYTES: Final = 16
"""So many characters of base64 before a line break within it, at least."""
_BASE64: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
_HEX: Final = {digit: int(chr(digit), 16) for digit in b"0123456789abcdefABCDEF"}
_DATA: Final = b"data:"
_Step: TypeAlias = tuple[int, int, int]
"""(LITERAL, ESCAPE ..., the character that it stands for, bytes)."""


def letters_of(characters: bytes) -> bytes:
    """Return these characters as `plain_view` takes them: a byte for each of 256, 1 if it is one of them."""
    return bytes([character in characters for character in range(256)])


ALL_LETTERS: Final = letters_of(bytes(range(128)))


def plain_view_in_python(data: bytes, letters: bytes, within: bool) -> View | None:
    """Return the data without its escapes; None if there are none.

    Args:
        data: a piece of a text.
        letters: which characters to take escapes of (`letters_of`); the others stay as they are.
        within: whether the piece may begin in the middle of a line, the beginning of which is not known.
    """
    out = bytearray()
    starts, ends = array("I"), array("I")
    place, size, open_at = 0, len(data), len(data)
    changed = False
    line = [0, 0]
    while place < size:
        kind, character, length = _step(data, place, letters, within, line)
        if kind == OPEN or kind == OPEN_JOIN:
            open_at = place if kind == OPEN else size
            changed = True
            break
        if kind == ESCAPE:
            out.append(character)
            starts.append(place)
            ends.append(place + length)
            changed = True
        elif kind == LITERAL:
            out += data[place : place + length]
            starts.extend(range(place, place + length))
            ends.extend(range(place + 1, place + length + 1))
        else:
            changed = True
        place += length
    return (bytes(out), starts, ends, open_at) if changed else None


def _step(data: bytes, place: int, letters: bytes, within: bool, line: list[int]) -> _Step:
    first = data[place]
    if first == 0x5C:
        return _backslash(data, place, letters)
    if first == 0x25:
        return _hex(data, place, place + 1, 2, letters, 1)
    if first == 0x26:
        return _reference(data, place, letters)
    if first == 0x0A or first == 0x0D:
        return _line_break(data, place, within, line)
    return LITERAL, 0, 1


def _hex(data: bytes, place: int, at: int, digits: int, letters: bytes, else_bytes: int) -> _Step:
    """Two hex digits, or "00" and two, from `at` on."""
    value = 0
    for number in range(digits):
        if at + number == len(data):
            return OPEN, 0, 0
        digit = _HEX.get(data[at + number])
        if digit is None or (digits == 4 and number < 2 and digit):
            return LITERAL, 0, else_bytes
        value = value * 16 + digit
    if not letters[value]:
        return LITERAL, 0, else_bytes
    return ESCAPE, value, at + digits - place


def _backslash(data: bytes, place: int, letters: bytes) -> _Step:
    at = place
    while at < len(data) and data[at] == 0x5C:
        at += 1
    run = at - place
    if run > _MOST_BACKSLASHES:
        return LITERAL, 0, run
    if at == len(data):
        return OPEN, 0, 0
    letter = data[at]
    if letter == 0x75:  # u
        return _hex(data, place, at + 1, 4, letters, run)
    if letter == 0x78:  # x
        return _hex(data, place, at + 1, 2, letters, run)
    if letter == 0x2F or letter == 0x22:
        return (ESCAPE, letter, run + 1) if letters[letter] else (LITERAL, 0, run)
    if (letter == 0x6E or letter == 0x72) and letters[0x0A] and _in_base64(data, place):
        return ESCAPE, 0x0A if letter == 0x6E else 0x0D, run + 1
    return LITERAL, 0, run


def _in_base64(data: bytes, place: int) -> bool:
    """Whether base64 stands before a line break, of which `\\r` may have come already."""
    if place > 1 and data[place - 1] == 0x72 and data[place - 2] == 0x5C:
        place -= 2
        while place > 0 and data[place - 1] == 0x5C:
            place -= 1
    return place > 0 and _BASE64.issuperset(data[max(0, place - _LINE_BYTES) : place])


def _reference(data: bytes, place: int, letters: bytes) -> _Step:
    at, size = place + 1, len(data)
    if at == size:
        return OPEN, 0, 0
    if data[at] != 0x23:
        return LITERAL, 0, 1
    at += 1
    base = 10
    if at < size and data[at] | 0x20 == 0x78:
        base, at = 16, at + 1
    value = digits = 0
    while at < size and digits <= _MOST_DIGITS and _HEX.get(data[at], 16) < base:
        value, digits, at = value * base + _HEX[data[at]], digits + 1, at + 1
    if digits > _MOST_DIGITS:
        return LITERAL, 0, 1
    if at == size:
        return OPEN, 0, 0
    if not digits or data[at] != 0x3B or value > 127 or not letters[value]:
        return LITERAL, 0, 1
    return ESCAPE, value, at + 1 - place


def _line_break(data: bytes, place: int, within: bool, line: list[int]) -> _Step:
    if place == 0 or data[place - 1] in b"\r\n":
        return LITERAL, 0, 1
    length = 2 if data[place : place + 2] == b"\r\n" else 1
    rest = data[place + length : place + length + len(_DATA)]
    if not _DATA.startswith(rest) or not _in_data_line(data, place, within, line):
        return LITERAL, 0, length
    length += len(rest)
    if place + length == len(data):
        return OPEN_JOIN, 0, 0
    return JOIN, 0, length + (data[place + length] == 0x20)


def _in_data_line(data: bytes, place: int, within: bool, line: list[int]) -> bool:
    """Whether the line that ends here begins with `data:`.

    Args:
        line: up to where breaks were looked for, and where the last line before that begins: none is read twice.
    """
    seen, start = line
    last = max(data.rfind(b"\n", seen, place), data.rfind(b"\r", seen, place))
    line[:] = place, (start := last + 1 if last >= 0 else start)
    return (start == 0 and within) or data.startswith(_DATA, start)


def plain_text_in_python(data: bytes, letters: bytes, within: bool) -> bytes | None:
    """Return the text of `plain_view` alone: to see whether something stands in it, of all of a body."""
    view = plain_view_in_python(data, letters, within)
    return None if view is None else view[0]


_View: TypeAlias = Callable[[bytes, bytes, bool], View | None]
_Text: TypeAlias = Callable[[bytes, bytes, bool], bytes | None]


def _fastest() -> tuple[_View, _Text]:
    try:
        from seamgate._native import plain_text, plain_view
    except ImportError:  # the sources, where nobody ran `make build`
        return plain_view_in_python, plain_text_in_python
    return plain_view, plain_text


_both: Final = _fastest()
plain_view: Final = _both[0]
plain_text: Final = _both[1]
