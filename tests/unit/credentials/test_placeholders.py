"""`seamgate.credentials.placeholders`: finding and swapping."""

from __future__ import annotations

import base64

import msgspec
import pytest

from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.placeholders import UNKNOWN, PlaceholderIndex, decode_basic

VALUE = b"real-value-0123"


def index() -> PlaceholderIndex:
    raw = {"source": {"env": "KEY"}, "hosts": ["h.example"]}
    names = {"git": {}, "github": {}, "llm": {"placeholder": "sk-ant-api03-000"}}
    return PlaceholderIndex({name: msgspec.convert({**raw, **more}, CredentialConfig) for name, more in names.items()})


def basic(text: bytes) -> bytes:
    return b"Basic " + base64.b64encode(text)


def test_the_longest_placeholder_counts() -> None:
    """sgph-git does not stand in sgph-github."""
    assert index().names_in(b"a sgph-github b sgph-git c") == ["github", "git"]
    assert index().swap(b"sgph-github sgph-git", "git", VALUE) == b"sgph-github " + VALUE


def test_both_placeholders_of_a_credential_stand_for_it() -> None:
    """The custom one and `sgph-<name>`."""
    assert index().names_in(b"sgph-llm sk-ant-api03-000") == ["llm", "llm"]


def test_what_looks_like_a_placeholder_is_reported_as_unknown() -> None:
    """A misspelt or revoked one must not go out in silence."""
    assert index().names_in(b"Bearer sgph-nobody") == [UNKNOWN]


def test_basic_is_decoded_swapped_and_encoded_anew() -> None:
    """In the user name and in the password, whatever the case of the scheme and the padding."""
    for sent in (basic(b"me:sgph-git"), basic(b"me:sgph-git").replace(b"Basic", b"bAsIc"), basic(b"me:sgph-git")[:-1]):
        assert index().swap_value(sent, "git", VALUE) == basic(b"me:" + VALUE)
    assert index().swap_value(basic(b"sgph-git:"), "git", VALUE) == basic(VALUE + b":")


def test_basic_without_a_placeholder_stays_as_it_is() -> None:
    """Byte for byte, even where its base64 is sloppy."""
    assert index().swap_value(b"basic  bWU6cGFzcw", "git", VALUE) == b"basic  bWU6cGFzcw"


@pytest.mark.parametrize("value", [b"Bearer x", b"Basic", b"Basic ", b"Basic !!!", b"Basic a", b"Basicbm8=", b""])
def test_what_is_not_basic_is_not_decoded(value: bytes) -> None:
    """And nothing raises."""
    assert decode_basic(value) is None


@pytest.mark.parametrize(
    ("headers", "query", "name"),
    [
        (((b"x-api-key", b"sgph-llm"),), None, "llm"),
        (((b"cookie", b"a=1; k=sk-ant-api03-000; b=2"),), None, "llm"),
        (((b"authorization", basic(b"x:sgph-github")),), None, "github"),
        (
            ((b"authorization", basic(b"x:sgph-github").lower()[:5] + b" " + basic(b"x:sgph-github")[6:]),),
            None,
            "github",
        ),
        ((), "key=sgph-git&a=1", "git"),
        (((b"x", b"sgph-nobody"),), None, UNKNOWN),
        (((b"authorization", basic(b"me:password")),), "a=b", None),
        ((), None, None),
    ],
)
def test_left_over(headers: tuple[tuple[bytes, bytes], ...], query: str | None, name: str | None) -> None:
    """The last check names the credential whose placeholder is still there."""
    assert index().left_over(headers, query) == name
