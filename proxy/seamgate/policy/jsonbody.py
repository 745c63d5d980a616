"""Strict JSON: a body that two parsers could read differently is not a body that policy has read.

Refused: duplicate keys (first or last wins, depending on the origin), NaN and Infinity, anything but UTF-8, a byte
order mark, lone surrogates, more values or deeper nesting than a limit, a body that is not declared as JSON
(`check_declared`): an origin that goes by the Content-Type reads another body, or the same in another charset. Called
by `conditions`. No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 64
"""Levels of nesting that are judged. The conversion to CEL recurses; real requests nest below 20."""
MAX_VALUES = 100_000
"""Values and keys of a body that is read, for 50 ms of work: nobody else is served meanwhile. A request to a language
model has some thousand; what is inside of a text does not count."""
# A text of JSON, or one that is never closed. Possessive, so that no text is read twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_MARKS = (b'"', b"{", b"[", b",")

_JSON_TYPE = re.compile(r"application/(?:json|[a-z0-9!#$&^_.-]+\+json)\Z")  # RFC 8259 11, RFC 6839 3.1
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+/[a-z0-9!#$%&'*+.^_`|~-]+\Z")
# One parameter of a media type (RFC 9110 5.6.6), without the escapes of quoted text, which nobody needs here.
_PARAMETER = re.compile(r"[ \t]*;[ \t]*(?:([a-z0-9!#$%&'*+.^_`|~-]+)=(?:([a-z0-9!#$%&'*+.^_`|~-]+)|\"([^\"\\]*)\"))?")


class JsonRefused(ValueError):
    """The body is not JSON, or not JSON that everybody reads alike. The message says why."""


def media_type(content_types: Iterable[str]) -> tuple[str, list[str]]:
    """Return the media type that a body is declared as, and its charsets, in lower case.

    Servers differ in what they make of two types, of a list of them, and of what is none.

    Args:
        content_types: the values of all Content-Type headers.

    Raises:
        JsonRefused: there is not exactly one, or it is no media type (RFC 9110 8.3.1).
    """
    declared = [each.lower() for each in content_types]
    if len(declared) != 1:
        raise JsonRefused("the request has more than one content-type" if declared else "it has no content-type")
    kind = declared[0].partition(";")[0].rstrip(" \t")
    at, charsets = len(kind), list[str]()
    if not _MEDIA_TYPE.match(kind):
        raise JsonRefused("its content-type can't be read")
    while at < len(declared[0]):
        found = _PARAMETER.match(declared[0], at)
        if found is None:
            raise JsonRefused("its content-type can't be read")
        at = found.end()
        if "*" in (found.group(1) or ""):
            # RFC 2231: some take `charset*=` or `charset*0=` for the charset. No client of JSON sends any.
            raise JsonRefused("its content-type has a parameter with an asterisk")
        if found.group(1) == "charset":
            charsets.append(found.group(2) or found.group(3))
    return kind, charsets


def check_declared(content_types: Iterable[str]) -> None:
    """Check that a body is declared as JSON in UTF-8, once.

    Args:
        content_types: the values of all Content-Type headers.

    Raises:
        JsonRefused: as `media_type`; or it is not application/json or another +json; its charset is another.
    """
    kind, charsets = media_type(content_types)
    if not _JSON_TYPE.match(kind):
        raise JsonRefused("its content-type is not application/json")
    if charsets not in ([], ["utf-8"], ["utf8"]):
        raise JsonRefused("its content-type declares another charset than utf-8")


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises:
        JsonRefused: see above.
    """
    _check_values(body)
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except UnicodeDecodeError:
        raise JsonRefused("the body is not UTF-8") from None
    except JsonRefused:
        raise
    except (ValueError, RecursionError):
        raise JsonRefused("the body is not JSON") from None
    _check_depth(value)
    if "\\u" in text:
        _check_unicode(value)
    return value


def _check_values(body: bytes) -> None:
    """Refuse what has too many values, before any of them is made: each begins with a mark, or comes after one."""
    if sum(map(body.count, _MARKS)) <= MAX_VALUES:
        return
    bare, texts = _TEXT.subn(b"", body, MAX_VALUES + 1)
    if texts + sum(map(bare.count, _MARKS)) > MAX_VALUES:
        raise JsonRefused(f"the body's JSON has more than {MAX_VALUES} values and keys")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise JsonRefused("the body's JSON has a key twice")
    return mapping


def _constant(text: str) -> Any:
    raise JsonRefused(f"the body's JSON holds {text}")


def _check_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise JsonRefused("the body's JSON holds half of a surrogate pair") from None


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise JsonRefused(f"the body's JSON nests deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for each in level:
            if type(each) is dict:
                below.extend(each.values())
            elif type(each) is list:
                below.extend(each)
        level = below
