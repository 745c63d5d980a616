"""Placeholders in messages: found in every spelling, swapped as the text around them needs it."""

from __future__ import annotations

import json

import pytest

from seamgate.credentials.config import CredentialConfig, SourceConfig
from seamgate.credentials.messages import placeholder_in, swap_in_text
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import CredentialError

SOURCE = SourceConfig(env="X")
INDEX = PlaceholderIndex(
    {
        "key": CredentialConfig(source=SOURCE, hosts=("a.test",), placeholder="sk-own-placeholder"),
        "key2": CredentialConfig(source=SOURCE, hosts=("a.test",)),
    }
)
VALUE = b'va"lue\\},{"x'


def swap(text: str, value: bytes = VALUE) -> str:
    return swap_in_text(INDEX, text.encode(), "key", value).decode()


@pytest.mark.parametrize("placeholder", ["sgph-key", "sk-own-placeholder", "sgph-ke\u0079"])
def test_a_value_can_not_break_out_of_its_json_string(placeholder: str) -> None:
    """It is escaped as JSON wants it, wherever the placeholder stands and however it was written."""
    text = '{"a": ["x \\" HERE y", {"HERE": 1}], "b": "\\ud83d\\ude00 \u00e9"}'.replace("HERE", placeholder)
    swapped = json.loads(swap(text))
    assert swapped == {"a": [f'x " {VALUE.decode()} y', {VALUE.decode(): 1}], "b": "\U0001f600 \u00e9"}


def test_text_that_is_no_json_gets_the_value_as_it_is() -> None:
    """Nothing is escaped where nothing would take it off."""
    assert swap("IDENTIFY sgph-key\r\n") == f"IDENTIFY {VALUE.decode()}\r\n"
    assert swap('{"broken": "sgph-key"') == f'{{"broken": "{VALUE.decode()}"'


@pytest.mark.parametrize("text", ["", "nothing", '{"a": "b\\n"}', "sgph-key2", '{"a": "sgph-key2"}', '["\\ud800"]'])
def test_what_holds_no_placeholder_of_it_stays_the_same_object(text: str) -> None:
    """Also where another credential's placeholder begins with it, and where JSON is odd."""
    data = text.encode()
    assert swap_in_text(INDEX, data, "key", VALUE) is data


def test_a_value_that_is_no_text_can_not_go_into_text() -> None:
    """A message that would not be UTF-8 is never sent."""
    with pytest.raises(CredentialError):
        swap("sgph-key", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe")


@pytest.mark.parametrize(
    "text",
    ["sgph-key", "sk-own-placeholder", "x\\u0073gph-key", "sgph%2Dkey", "c2dwaC1rZXk", '{"a": "sgph\\u002dkey"}'],
)
def test_a_placeholder_is_found_in_every_spelling(text: str) -> None:
    """Plain, escaped as in JSON or a URL, in base64."""
    assert placeholder_in(INDEX, text.encode()) == "key"


@pytest.mark.parametrize("text", ["", "hello", "sgph-", "sgph-unknown", "\\u00e9 100%"])
def test_other_text_is_left_alone(text: str) -> None:
    """Text about placeholders in general is no placeholder."""
    assert placeholder_in(INDEX, text.encode()) is None


def test_large_hostile_json_takes_linear_time() -> None:
    """A megabyte of quotes and escapes is a matter of a moment; in quadratic time the suite's limit would end them."""
    for text in (json.dumps(["\\\\\\"] * 100_000), '["' + "\\\\" * 200_000 + '"]'):
        assert swap(text) == text
