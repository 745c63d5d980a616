"""Strict JSON: one reading or none."""

from __future__ import annotations

import pytest

from seamgate.policy.jsonbody import MAX_DEPTH, JsonRefused, parse_json


@pytest.mark.parametrize(
    "body", [b'{"a": [1, 2.5, null, true, "x"]}', b"[]", b'"\\ud83d\\ude00"', b"5", b' {"a":1} \n']
)
def test_json_is_read(body: bytes) -> None:
    """Whatever all parsers read alike is a value."""
    parse_json(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"a":1,"a":2}', "a key twice"),
        (b'{"x":[{"a":1,"a":2}]}', "a key twice"),
        (b'{"a":1,"\\u0061":2}', "a key twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1', "not JSON"),
        (b"", "not JSON"),
        (b'{"a":1}x', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nests deeper"),
        (b"[" * 200_000 + b"]" * 200_000, "not JSON"),
        (b'{"a":' * 200_000, "not JSON"),
    ],
)
def test_json_that_could_be_read_twice_is_refused(body: bytes, why: str) -> None:
    """Duplicate keys, other encodings, numbers that are none and towers are refused with the reason."""
    with pytest.raises(JsonRefused, match=why):
        parse_json(body)
