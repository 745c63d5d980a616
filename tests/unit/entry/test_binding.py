"""From a head to its one target, for each kind of entry: what agrees, what does not, who asks."""

from __future__ import annotations

import pytest

from seamgate.entry.binding import ProxyBinding, RouteBinding, TunnelBinding, split_absolute, split_target
from seamgate.entry.identity import GuestConfig, Identities, TokenSource
from seamgate.entry.tunnel import connect_target
from seamgate.errors import GuestProtocolError, Reason, TargetError
from seamgate.flow import Guest, Isolation, Target
from seamgate.protocol.heads import RequestHead
from seamgate.protocol.http1 import parse_request_head

GUEST = Guest("g")
TARGET = Target("https", "a.test", 443)
TOKEN = "0123456789abcdef"
NOBODY = Identities({}, Isolation.PROXY)


def head(target: str, host: str = "a.test", method: str = "GET", *fields: str) -> RequestHead:
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", *fields]
    return parse_request_head("\r\n".join([*lines, "", ""]).encode())


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://a.test", (Target("http", "a.test", 80), "/", None)),
        ("HTTP://A.test:80/x?y#", None),
        ("http://A.TEST:8080/x?y", (Target("http", "a.test", 8080), "/x", "y")),
        ("https://a.test?y", (Target("https", "a.test", 443), "/", "y")),
        ("http://[::1]:81/", (Target("http", "::1", 81, is_address=True), "/", None)),
        ("http://a.test/x??y", (Target("http", "a.test", 80), "/x", "?y")),
    ],
)
def test_absolute_uris(uri: str, expected: tuple[Target, str, str | None] | None) -> None:
    """Scheme and host without case, path and query as canonical as they have to be, no fragment."""
    if expected is None:
        with pytest.raises(TargetError):
            split_absolute(uri, "GET")
    else:
        assert split_absolute(uri, "GET") == expected


def test_the_target_star_is_for_options() -> None:
    """And for nothing else; an absolute URI without path means the same."""
    assert split_target("*", "OPTIONS") == ("*", None)
    assert split_absolute("http://a.test", "OPTIONS")[1] == "*"
    with pytest.raises(TargetError):
        split_target("*", "GET")


@pytest.mark.parametrize("host", ["a.test", "A.Test", "a.test.", "a.test:443"])
def test_a_tunnels_request_names_the_tunnel(host: str) -> None:
    """Whatever the spelling of Host, the target is the tunnel's own object."""
    bound = TunnelBinding("proxy", GUEST, TARGET).bind(head("/x?y", host))
    assert (bound.target, bound.path, bound.query, bound.guest) == (TARGET, "/x", "y", GUEST)
    assert TunnelBinding("proxy", GUEST, TARGET).bind(head("https://a.test/x", host)).path == "/x"


@pytest.mark.parametrize(
    ("target", "host"),
    [("/x", "b.test"), ("/x", "a.test:444"), ("https://b.test/x", "a.test"), ("http://a.test/x", "a.test")],
)
def test_a_tunnels_request_names_nothing_else(target: str, host: str) -> None:
    """Refused as a mismatch."""
    with pytest.raises(GuestProtocolError) as caught:
        TunnelBinding("proxy", GUEST, TARGET).bind(head(target, host))
    assert caught.value.reason is Reason.TARGET_MISMATCH


def test_a_proxys_request_is_absolute() -> None:
    """Origin-form is for servers."""
    binding = ProxyBinding("proxy", NOBODY, GUEST)
    assert binding.bind(head("http://a.test/x")).target == Target("http", "a.test", 80)
    with pytest.raises(GuestProtocolError, match="this is a proxy"):
        binding.bind(head("/x"))
    with pytest.raises(GuestProtocolError):
        binding.bind(head("http://b.test/x"))


@pytest.mark.parametrize(
    ("target", "host", "reason"),
    [
        ("a.test:443", "a.test:443", None),
        ("a.test:443", "a.test", None),
        ("A.test.:443", "a.test:443", None),
        ("[::1]:443", "[::1]:443", None),
        ("[::1]:443", "[::1]", None),
        ("a.test:443", "b.test:443", Reason.TARGET_MISMATCH),
        ("a.test:443", "a.test:444", Reason.TARGET_MISMATCH),
        ("[::1]:443", "[::1]:444", Reason.TARGET_MISMATCH),
        ("[::1]:443", "[::2]", Reason.TARGET_MISMATCH),
        ("a.test", "a.test", Reason.BAD_TARGET),
        ("a.test:", "a.test", Reason.BAD_TARGET),
    ],
)
def test_connect(target: str, host: str, reason: Reason | None) -> None:
    """CONNECT names host:port; a Host without port names the host."""
    if reason is None:
        assert connect_target(head(target, host, "CONNECT")).scheme == "https"
    else:
        with pytest.raises(GuestProtocolError) as caught:
            connect_target(head(target, host, "CONNECT"))
        assert caught.value.reason is reason


def routes(guest: Guest | None) -> RouteBinding:
    token = TokenSource(sha256="9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f")
    identities = Identities({"h": GuestConfig(token=token)}, Isolation.BASE_URL)
    return RouteBinding("base_url", {"api": TARGET}, identities, guest, ("a.test",))


def test_routes() -> None:
    """The first segment is the route; Host says only that the gateway is meant, the route's origin is the target."""
    bound = routes(GUEST).bind(head("/api/v1/x?y", "127.0.0.1:8081"))
    assert (bound.target, bound.path, bound.query) == (TARGET, "/v1/x", "y")
    assert routes(GUEST).bind(head("/api")).path == "/"
    for target in ("/", "/apis/x", "/API/x", "/other"):
        with pytest.raises(GuestProtocolError) as caught:
            routes(GUEST).bind(head(target))
        assert caught.value.reason is Reason.BAD_TARGET


def test_a_token_in_the_base_url() -> None:
    """Where the listener names nobody, the first segment is ~TOKEN; it is not part of the path that goes on."""
    bound = routes(None).bind(head(f"/~{TOKEN}/api/x"))
    assert (bound.guest.id, bound.path) == ("h", "/x")
    for target in ("/api/x", "/~/api/x", f"/~{TOKEN}x/api/x", f"/{TOKEN}/api/x"):
        with pytest.raises(GuestProtocolError) as caught:
            routes(None).bind(head(target))
        assert caught.value.reason is Reason.UNAUTHENTICATED
        assert TOKEN not in caught.value.message


def test_where_a_refused_request_was_going() -> None:
    """A tunnel goes to one place whatever is said in it; else what the target names, for a known guest."""
    tunnel = TunnelBinding("proxy", GUEST, TARGET)
    assert tunnel.place(None) == tunnel.place(head("https://evil.test/../x", "evil.test")) == TARGET
    proxy = ProxyBinding("proxy", NOBODY, GUEST)
    assert proxy.place(head("http://a.test:8080/../x", "a.test:8080")) == Target("http", "a.test", 8080)
    assert proxy.place(head("http://a.test/../x", "evil.test")) == Target("http", "a.test", 80)
    assert proxy.place(head("a.test:443", "evil.test", "CONNECT")) == Target("https", "a.test", 443)
    assert proxy.place(head("a.test", "a.test", "CONNECT")) is None
    assert proxy.place(head("/../x")) is proxy.place(None) is None
    assert ProxyBinding("proxy", NOBODY, None).place(head("http://a.test/../x")) is None
    route = RouteBinding("base_url", {"api": TARGET}, NOBODY, GUEST)
    assert route.place(head("/api/../x", "evil.test")) == route.place(head("/api?a/../x")) == TARGET
    assert route.place(head("http://a.test/api/x")) == Target("http", "a.test", 80)
    assert routes(None).place(head(f"/~{TOKEN}/api/../x")) == routes(None).bind(head(f"/~{TOKEN}/api/x")).target
    for nowhere in ("/API/x", "/%61pi/x", "/~api/x", "/", "*", f"/~{TOKEN}/api/x"):
        assert route.place(head(nowhere)) is None
    for unknown in ("/api/x", f"/~{TOKEN}x/api/x", "http://a.test/api/x"):
        assert routes(None).place(head(unknown)) is None


def test_who_sent_a_refused_request() -> None:
    """Whoever the channel or a good token says, whatever is wrong with the rest; nobody without one."""
    assert TunnelBinding("proxy", GUEST, TARGET).whose(None) is GUEST
    assert ProxyBinding("proxy", NOBODY, GUEST).whose(None) is GUEST
    token = TokenSource(sha256="9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f")
    proxy = ProxyBinding("proxy", Identities({"h": GuestConfig(token=token)}, Isolation.PROXY), None)
    known = "proxy-authorization: Bearer " + TOKEN
    for target, method, host in (("http://a.test/../x", "GET", "a.test"), ("a.test:443", "CONNECT", "evil.test")):
        guest = proxy.whose(head(target, host, method, known))
        assert guest is not None and guest.id == "h"
        assert proxy.whose(head(target, host, method)) is proxy.whose(head(target, host, method, known + "x")) is None
    assert proxy.whose(None) is routes(None).whose(None) is routes(None).whose(head("/api/../x")) is None
    guest = routes(None).whose(head(f"/~{TOKEN}/nope/../x"))
    assert guest is not None and guest.id == "h"
