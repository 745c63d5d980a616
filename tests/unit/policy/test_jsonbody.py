"""Strict JSON: one reading or none."""

from __future__ import annotations

import pytest

from seamgate.policy.jsonbody import MAX_DEPTH, MAX_VALUES, JsonRefused, check_declared, parse_json


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
        (b"[" * 90_000 + b"]" * 90_000, "not JSON"),
        (b'{"a":' * 40_000, "not JSON"),
    ],
)
def test_json_that_could_be_read_twice_is_refused(body: bytes, why: str) -> None:
    """Duplicate keys, other encodings, numbers that are none and towers are refused with the reason."""
    with pytest.raises(JsonRefused, match=why):
        parse_json(body)


TOO_MANY = MAX_VALUES + 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b"{}"] * TOO_MANY) + b"]",
        b"[" + b",".join([b"1"] * TOO_MANY) + b"]",
        b"[" + b",".join([b'""'] * TOO_MANY) + b"]",
        b'{"a":"' + b'\\",' * 10 + b'","b":[' + b",".join([b"[]"] * TOO_MANY) + b"]}",
        b'["\\\\",' + b",".join([b"0"] * TOO_MANY) + b"]",
    ],
)
def test_json_of_many_values_is_refused_before_it_is_made(body: bytes) -> None:
    """Objects, lists, texts, numbers: more of them than the limit are refused, whatever texts stand between them."""
    with pytest.raises(JsonRefused, match="more than 100000 values"):
        parse_json(body)


@pytest.mark.parametrize("text", [",[{" * TOO_MANY, '\\"' * TOO_MANY, "\\\\" * TOO_MANY, '\\",' * TOO_MANY])
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    """Commas, brackets and escaped quotes of a prompt do not count, however many."""
    assert len(parse_json(f'{{"prompt":"{text}"}}'.encode())["prompt"]) >= TOO_MANY


def test_a_text_without_end_is_looked_at_once() -> None:
    """Quotes of a text that is never closed are not tried one by one: in its square the suite's limit would end it."""
    with pytest.raises(JsonRefused, match="not JSON"):
        parse_json(b'["' + b'\\"' * 1_000_000)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json ; charset=utf8;",
        "application/vnd.api+json; ext=x; charset=utf-8",
        'application/ld+json; profile="https://a.test/;charset=x"',
    ],
)
def test_json_is_declared(content_type: str) -> None:
    """application/json and +json in UTF-8, in each spelling that clients use."""
    check_declared([content_type])


@pytest.mark.parametrize(
    ("content_types", "why"),
    [
        ([], "no content-type"),
        (["application/json", "application/json"], "more than one"),
        (["application/json", "application/x-www-form-urlencoded"], "more than one"),
        (["application/x-www-form-urlencoded"], "not application/json"),
        (["text/plain"], "not application/json"),
        (["text/json"], "not application/json"),
        (["multipart/form-data; boundary=x"], "not application/json"),
        (["application/json, text/plain"], "can't be read"),
        (["application/jsonx"], "not application/json"),
        (["application/+json"], "not application/json"),
        ([""], "can't be read"),
        (["application/json; charset=utf-7"], "another charset"),
        (["application/json; charset*=utf-8''utf-7"], "an asterisk"),
        (["application/json; charset*0=utf; charset*1=-7"], "an asterisk"),
        (["application/json; charset=utf-8; charset*0*=''utf-7"], "an asterisk"),
        (['application/json; Charset*="utf-7"'], "an asterisk"),
        (["application/json; charset=utf-16"], "another charset"),
        (["application/json; charset=utf-8; charset=utf-16"], "another charset"),
        (['application/json; charset=""'], "another charset"),
        (["application/json; charset"], "can't be read"),
        (["application/json; charset = utf-16"], "can't be read"),
        (["application/json; x=y, text/plain"], "can't be read"),
        (['application/json; x="\\"; charset=utf-16"'], "can't be read"),
    ],
)
def test_json_that_is_declared_as_something_else_is_refused(content_types: list[str], why: str) -> None:
    """An origin goes by the declaration: a form, a text or another charset is another body than the one judged."""
    with pytest.raises(JsonRefused, match=why):
        check_declared(content_types)
