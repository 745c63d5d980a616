"""Percent-decoding, and JSON's escapes of ASCII: of text that guests choose, in one pass over its bytes.

`urllib.parse.unquote` makes an object for each escape, and raises and catches an error for each "%" that begins none:
2.5 us and 180 bytes each, so that 16 MiB of "%" would take 20 s and 3 GB. In C where that is built, else the same with
regular expressions. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

_Take: TypeAlias = Callable[[bytes], bytes]
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_JSON_ESCAPE: Final = re.compile(rb"\\u00([0-7][0-9A-Fa-f])")


def _character(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[1], 16),))


def unquote_in_python(data: bytes) -> bytes:
    """Return the data with each `%XX` as the byte that it stands for (RFC 3986 2.1); any other "%" stays."""
    return _ESCAPE.sub(_character, data)


def unquote_json_in_python(data: bytes) -> bytes:
    r"""Return the data with each `\u00XX` of an ASCII character as that character (RFC 8259 7)."""
    return _JSON_ESCAPE.sub(_character, data)


def _fastest() -> tuple[_Take, _Take]:
    try:
        from seamgate._native import unquote, unquote_json
    except ImportError:  # the sources, where nobody ran `make build`
        return unquote_in_python, unquote_json_in_python
    return unquote, unquote_json


_both: Final = _fastest()
unquote: Final = _both[0]
unquote_json: Final = _both[1]


def unquote_text(text: str) -> str:
    """Return ASCII text with its escapes as the UTF-8 that they are; what is none becomes U+FFFD."""
    return unquote(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace") if "%" in text else text


def unquote_parameter(text: str) -> str:
    """Return a name or value of a query, "+" as the space that it is.

    Raises:
        UnicodeDecodeError: its escapes are not UTF-8.
    """
    if "+" in text:
        text = text.replace("+", " ")
    return unquote(text.encode("utf-8", "surrogatepass")).decode("utf-8") if "%" in text else text
