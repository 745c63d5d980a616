"""The base-URL entry against pages in a browser on the same machine (SECURITY.md: clients / PolicyBypass)."""

from __future__ import annotations

import pytest

from seamgate.entry.binding import RouteBinding
from seamgate.entry.identity import GuestConfig, Identities, TokenSource
from seamgate.errors import GuestProtocolError, Reason
from seamgate.flow import Guest, Isolation, Target
from seamgate.protocol.http1 import parse_request_head

TARGET = Target("https", "api.example.com", 443)
TOKEN_SHA256 = "8a5edab282632443219e051e4ade2d1d5bbc671c781051bf1437897cbdfea0f1"  # of "/"; any 64 digits do


def binding(guest: Guest | None, *hosts: str) -> RouteBinding:
    """The entry, for one guest or for those with a token."""
    guests = {"g": GuestConfig(token=TokenSource(sha256=TOKEN_SHA256))}
    return RouteBinding("base_url", {"api": TARGET}, Identities(guests, Isolation.BASE_URL), guest, hosts)


def ask(bound_by: RouteBinding, host: str, *headers: str) -> Target:
    """Bind a request to the route."""
    lines = [f"POST /api/v1 HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n", *(f"{each}\r\n" for each in headers)]
    return bound_by.bind(parse_request_head(("".join(lines) + "\r\n").encode())).target


@pytest.mark.parametrize("host", ["evil.example", "api.example.com", "localhost.evil.example", "evil.example:8081"])
def test_a_name_of_somebody_else_is_refused(host: str) -> None:
    """A page whose own name leads to this machine (DNS rebinding) gets a mismatch, whatever its port."""
    with pytest.raises(GuestProtocolError) as caught:
        ask(binding(Guest("g")), host)
    assert caught.value.reason is Reason.TARGET_MISMATCH


@pytest.mark.parametrize("header", ["Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"])
def test_a_page_is_refused_where_no_token_is_asked_for(header: str) -> None:
    """A form on any page can POST to loopback; a browser says so itself, and an entry without a token listens."""
    with pytest.raises(GuestProtocolError) as caught:
        ask(binding(Guest("g")), "127.0.0.1:8081", header)
    assert caught.value.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("host", ["127.0.0.1:8081", "[::1]:8081", "localhost:8081", "gateway.internal"])
def test_programs_pass(host: str) -> None:
    """Clients that know the gateway by address, as localhost, or by a configured name are served."""
    assert ask(binding(Guest("g"), "gateway.internal"), host) == TARGET
