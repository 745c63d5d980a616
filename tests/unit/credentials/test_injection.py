"""`seamgate.credentials.injection`: what is set at the last hop."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from seamgate.address import parse_authority
from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.injection import Injector
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.secret import Secret
from seamgate.flow import Guest, Headers, Request, Supply
from seamgate.protocol.whole import RANGE_HEADERS

SECRET = Secret(b"real/value+0123", name="key")


def supply(headers: Headers = (), query: str | None = None, **change: Any) -> Supply:
    raw = {"source": {"env": "KEY"}, "hosts": ["h.example"], **change}
    configs = {"key": msgspec.convert(raw, CredentialConfig)}
    request = Request("1", Guest("g"), parse_authority("h.example", "https"), "GET", "/", query, headers)
    return Injector("key", configs["key"], PlaceholderIndex(configs)).supply(request, SECRET)


@pytest.mark.parametrize(
    ("inject", "expected"),
    [
        ({"header": "X-Api-Key"}, (b"x-api-key", b"real/value+0123")),
        ({"header": "authorization", "prefix": "token "}, (b"authorization", b"token real/value+0123")),
        ({"bearer": True}, (b"authorization", b"Bearer real/value+0123")),
        ({"basic": {"username": "me"}}, (b"authorization", b"Basic " + base64.b64encode(b"me:real/value+0123"))),
        ({"basic": {"password": ""}}, (b"authorization", b"Basic " + base64.b64encode(b"real/value+0123:"))),
    ],
)
def test_pure_injection(inject: dict[str, Any], expected: tuple[bytes, bytes]) -> None:
    """Whatever the guest sent in that header, the value is set."""
    for sent in ((), ((expected[0], b"guest's own"),)):
        made = supply(sent, inject=inject)
        assert made.set_headers == (expected,)
        assert made.secrets == (b"real/value+0123",)
        assert made.query is None


def test_a_placeholder_is_swapped_where_it_stands_and_nothing_is_injected() -> None:
    """All headers of a name that holds one are given, in order, so that replacing by name loses none."""
    sent = ((b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"k=sgph-key; z"), (b"authorization", b"Bearer own"))
    made = supply(sent, inject={"bearer": True}, swap_headers=["Cookie"])
    assert made.set_headers == ((b"cookie", b"a=1"), (b"cookie", b"k=real/value+0123; z"))


@pytest.mark.parametrize(
    ("change", "swapped"),
    [
        ({}, {b"authorization"}),
        ({"inject": {"header": "X-Api-Key"}}, {b"authorization", b"x-api-key"}),
        ({"inject": {"bearer": True}}, {b"authorization"}),
        ({"inject": {"bearer": True}, "swap_headers": ["X-Token"]}, {b"x-token"}),
        ({"swap_headers": []}, set()),
    ],
)
def test_a_placeholder_is_swapped_in_the_headers_of_its_credential_only(
    change: dict[str, Any], swapped: set[bytes]
) -> None:
    """Authorization and the header that `inject` names, or those that `swap_headers` does; elsewhere it stays."""
    names = (b"authorization", b"x-api-key", b"x-token", b"cookie", b"user-agent", b"referer")
    made = supply(tuple((name, b"sgph-key") for name in names), **change)
    set_names = {name for name, value in made.set_headers if value == b"real/value+0123"}
    assert set_names == swapped


def test_a_placeholder_inside_basic() -> None:
    """Decoded, swapped, encoded anew."""
    sent = ((b"authorization", b"Basic " + base64.b64encode(b"x-token:sgph-key")),)
    assert supply(sent).set_headers == ((b"authorization", b"Basic " + base64.b64encode(b"x-token:real/value+0123")),)


def test_the_query_is_swapped_only_where_configured_and_then_percent_encoded() -> None:
    """A value in a query ends up in logs, so it takes a decision."""
    assert supply(query="key=sgph-key&b").query is None
    assert supply(query="key=sgph-key&b", swap_query=True).query == "key=real%2Fvalue%2B0123&b"


def test_without_placeholder_and_inject_nothing_is_set() -> None:
    """But the value is still told to the redactor."""
    assert supply(((b"a", b"b"),)).set_headers == ()
    assert supply(((b"a", b"b"),)).secrets == (b"real/value+0123",)


RANGES = RANGE_HEADERS


def test_ranges_are_dropped_unless_allowed() -> None:
    """A value that comes back in two halves could not be redacted."""
    assert {b"range", b"if-range", b"request-range", b"x-ms-range"} <= set(RANGES)
    for headers in ((), ((b"x", b"sgph-key"), (b"range", b"bytes=0-9"))):
        assert supply(headers, inject={"bearer": True}).remove_headers == RANGES
        assert supply(headers, inject={"bearer": True}, allow_ranges=True).remove_headers == ()


def test_headers_to_remove() -> None:
    """They go, unless they are the ones that are set."""
    made = supply(inject={"header": "x-api-key"}, remove_headers=["Authorization", "x-api-key"])
    assert made.remove_headers == (b"authorization", *RANGES)
    swapped = supply(((b"authorization", b"Bearer sgph-key"),), remove_headers=["authorization", "cookie"])
    assert swapped.remove_headers == (b"cookie", *RANGES)


def test_the_supply_of_a_plain_request_is_made_once_per_value() -> None:
    """The hot path builds nothing."""
    raw = {"source": {"env": "KEY"}, "hosts": ["h.example"], "inject": {"bearer": True}}
    configs = {"key": msgspec.convert(raw, CredentialConfig)}
    injector = Injector("key", configs["key"], PlaceholderIndex(configs))
    request = Request("1", Guest("g"), parse_authority("h.example", "https"), "GET", "/")
    assert injector.supply(request, SECRET) is injector.supply(request, SECRET)
    rotated = Secret(b"rotated-value", name="key")
    assert injector.supply(request, rotated).set_headers == ((b"authorization", b"Bearer rotated-value"),)


def test_a_remembered_swap_follows_a_rotation() -> None:
    """The former value is never sent again."""
    raw = {"source": {"env": "KEY"}, "hosts": ["h.example"], "swap_headers": ["x-api-key"]}
    configs = {"key": msgspec.convert(raw, CredentialConfig)}
    injector = Injector("key", configs["key"], PlaceholderIndex(configs))
    sent = ((b"x-api-key", b"sgph-key"),)
    request = Request("1", Guest("g"), parse_authority("h.example", "https"), "GET", "/", None, sent)
    assert injector.supply(request, SECRET).set_headers == ((b"x-api-key", b"real/value+0123"),)
    assert injector.supply(request, Secret(b"rotated-value", name="key")).set_headers == (
        (b"x-api-key", b"rotated-value"),
    )


def test_no_repr_shows_the_value() -> None:
    """Neither the supply's nor the injector's."""
    assert "real" not in repr(supply(inject={"bearer": True}))
