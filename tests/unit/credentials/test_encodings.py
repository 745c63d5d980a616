"""`seamgate.credentials.encodings`: every spelling of a value."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.credentials.encodings import all_forms, base64_forms, json_forms, url_forms

VALUES = st.binary(min_size=8, max_size=40).filter(lambda value: min(value) >= 0x20)


@given(value=VALUES, before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_base64_of_any_text_around_the_value_holds_a_form(value: bytes, before: bytes, after: bytes) -> None:
    """Whatever stands before and after, both alphabets."""
    forms = base64_forms(value)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(before + value + after)
        assert any(form in encoded for form in forms)


@given(text=st.text(alphabet=st.characters(min_codepoint=0x20, exclude_categories=["Cs"]), min_size=8, max_size=20))
def test_json_writers_produce_a_form(text: str) -> None:
    """ASCII-only or not, with or without an escaped slash."""
    forms = json_forms(text.encode())
    assert json.dumps(text)[1:-1].encode() in forms
    assert json.dumps(text, ensure_ascii=False)[1:-1].encode() in forms
    assert json.dumps(text)[1:-1].replace("/", "\\/").encode() in forms


@given(value=VALUES)
def test_url_writers_produce_a_form(value: bytes) -> None:
    """quote, quote_plus, urlencode, and each in lower-case hex."""
    forms = url_forms(value)
    for written in (quote(value), quote(value, safe=""), quote_plus(value), urlencode({"k": value})[2:]):
        assert written.encode() in forms


def test_hex_digits_in_lower_case_are_covered() -> None:
    """%2F and %2f are the same to an origin."""
    assert {b"a%2Fb%2Bcdef", b"a%2fb%2bcdef"} <= set(url_forms(b"a/b+cdef"))


@pytest.mark.parametrize("value", [b"plainvalue", b"with/slash+plus="])
def test_the_plain_value_comes_first_and_nothing_twice(value: bytes) -> None:
    """Order and uniqueness of `all_forms`."""
    forms = all_forms(value)
    assert forms[0] == value
    assert len(set(forms)) == len(forms)
