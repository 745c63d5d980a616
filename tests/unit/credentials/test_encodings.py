"""`seamgate.credentials.encodings`: every spelling of a value."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.credentials.encodings import all_forms, base64_forms, json_forms, mime_forms, url_forms

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


SPECIAL = "sk+Ab'9!x(q)/R&z<7~`\"*=="


@pytest.mark.parametrize(
    ("writer", "written"),
    [
        (".NET", "sk\\u002BAb\\u00279!x(q)/R\\u0026z\\u003C7~\\u0060\\u0022*=="),
        ("PHP, JSON_HEX_*", "sk+Ab\\u00279!x(q)\\/R\\u0026z\\u003C7~`\\u0022*=="),
        ("PHP, JSON_HEX_TAG", "sk+Ab'9!x(q)\\/R&z\\u003C7~`\\\"*=="),
        ("Go", "sk+Ab'9!x(q)/R\\u0026z\\u003c7~`\\\"*=="),
        ("Gson", 'sk+Ab\\u00279!x(q)/R\\u0026z\\u003c7~`\\"*\\u003d\\u003d'),
        ("encodeURIComponent", "sk%2BAb'9!x(q)%2FR%26z%3C7~%60%22*%3D%3D"),
        ("encodeURI", "sk+Ab'9!x(q)/R&z%3C7~%60%22*=="),
        ("Java's URLEncoder", "sk%2BAb%279%21x%28q%29%2FR%26z%3C7%7E%60%22*%3D%3D"),
        ("PHP's urlencode", "sk%2BAb%279%21x%28q%29%2FR%26z%3C7%7E%60%22%2A%3D%3D"),
        ("Python's html", "sk+Ab&#x27;9!x(q)/R&amp;z&lt;7~`&quot;*=="),
        ("PHP's htmlspecialchars", "sk+Ab&#039;9!x(q)/R&amp;z&lt;7~`&quot;*=="),
        ("XML", "sk+Ab&apos;9!x(q)/R&amp;z&lt;7~`&quot;*=="),
        ("Go's html/template", "sk&#43;Ab&#39;9!x(q)/R&amp;z&lt;7~`&#34;*=="),
        ("Mustache", "sk+Ab&#39;9!x(q)&#x2F;R&amp;z&lt;7~&#x60;&quot;*&#x3D;&#x3D;"),
    ],
)
def test_what_writers_of_other_languages_produce_is_a_form(writer: str, written: str) -> None:
    """Escapes with upper-case hex, HTML references and the sets of characters that each of them leaves as they are."""
    assert written.encode() in all_forms(SPECIAL.encode())


def test_a_value_without_special_characters_has_few_forms() -> None:
    """Only those that differ are there: plain, six of base64, eleven of numbers."""
    assert len(all_forms(b"sk-live_4f9a7c1be23d58a60e917b3d")) <= 1 + 6 + 11


@pytest.mark.parametrize(
    ("plus", "slash"),
    [
        ("+", "\\/"), ("\\u002B", "/"), ("\\u002b", "\\u002f"), ("\\u002B", "\\u002F"), ("%2B", "%2F"), ("%2b", "%2f"),
        ("%2B", "/"), ("&#43;", "/"), ("&#x2B;", "/"), ("+", "&#x2F;"), ("+", "&#47;"), ("&#43;", "&#47;"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "u", "us"])
def test_base64_inside_of_json_urls_and_html_holds_a_form(before: str, plus: str, slash: str) -> None:
    """A Basic header that an origin reflects, at each alignment, as PHP, .NET, Go and others escape it."""
    value = b"sk?~~>x?>>?~~?k>~?~4f9a7c1be23d~>~>??>>~~?"
    written = base64.b64encode(before.encode() + value).decode()
    assert "+" in written and "/" in written
    written = written.replace("+", plus).replace("/", slash).replace("=", "%3D")
    assert any(form in written.encode() for form in all_forms(value))


@given(value=VALUES)
def test_every_byte_in_hex_is_a_form(value: bytes) -> None:
    """As dumps and digests show it, and with every character of a URL escaped; digits of either case."""
    forms = all_forms(value)
    for written in (value.hex(), "".join(f"%{byte:02x}" for byte in value)):
        assert written.encode() in forms and written.upper().encode() in forms


def test_mime_forms_are_of_the_standard_alphabet() -> None:
    """Base64 in lines is MIME or PEM, which have no other."""
    assert all(b"-" not in form and b"_" not in form for form in mime_forms(b"\xfb\xff\xfe" * 4))
    assert len(mime_forms(b"\xfb\xff\xfe" * 4)) >= 1
