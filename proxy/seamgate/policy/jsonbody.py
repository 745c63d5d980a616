"""Strict JSON: a body that two parsers could read differently is not a body that policy has read.

Refused: duplicate keys (first or last wins, depending on the origin), NaN and Infinity, anything but UTF-8, a byte
order mark, lone surrogates, nesting beyond a limit. Called by `conditions`. No I/O.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64
"""Levels of nesting that are judged. The conversion to CEL recurses; real requests nest below 20."""


class JsonRefused(ValueError):
    """The body is not JSON, or not JSON that everybody reads alike. The message says why."""


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises:
        JsonRefused: see above.
    """
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
