"""Tunnels: CONNECT, the server name of its TLS, the requests inside and their Host must all name one target.

Each is mutated alone. What disagrees is denied, audited, and nothing of it is upstream.
"""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from support.certificates import careless_context
from support.client import Client, start_tls
from support.lab import ALLOW_ALL, OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.line import Cut
from support.upstream import HttpUpstream, echo

OK_ONLY: dict[str, Any] = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "hosts": ["api.test", "other.test"]}}


def a_lab(**more: Any) -> Lab:
    return Lab(HttpUpstream(echo, "api.test"), HttpUpstream(echo, "other.test"), rules=[OK_ONLY], **more)


# -- the server name ---------------------------------------------------------------------------------------------------

NAMES = {
    "other.test": "another allowed host",
    "denied.test": "a denied host",
    "api.test.other.test": "the host as a label of another",
    "xapi.test": "a host that ends alike",
    "api-test": "no dot",
    "a" * 63 + ".test": "a long one",
    "api_test": "an underscore",
    "xn--api-.test": "an A-label that is none",
}


@pytest.mark.parametrize("name", NAMES)
async def test_another_server_name_is_refused(name: str) -> None:
    """Domain fronting: the TLS inside may name the tunnel's target only."""
    async with a_lab() as lab:
        line, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 200")
        with pytest.raises((ssl.SSLError, Cut, ConnectionError)):
            await start_tls(line, careless_context(), name)
        await lab.refused(f"CONNECT {lab.authority()} deny target_mismatch 200 denied")


@pytest.mark.parametrize("alpn", [["h2"], ["h2", "http/1.1"], ["http/1.1"], []])
async def test_a_refused_server_name_is_on_record_as_the_guest_saw_it(alpn: list[str]) -> None:
    """Whatever is to be spoken inside: the CONNECT had its 200, then came an alert; the record has both, and why."""
    async with a_lab() as lab:
        line, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 200")
        context = careless_context()
        context.set_alpn_protocols(alpn)
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await start_tls(line, context, "other.test")
        (record,) = await lab.refused(f"CONNECT {lab.authority()} deny target_mismatch 200 denied")
        assert record.message == (
            "the TLS server name is 'other.test', the tunnel goes to api.test: the guest got the alert"
            " unrecognized_name"
        )


@pytest.mark.parametrize("name", ["api.test", "API.Test", "api.test."])
async def test_the_same_name_in_another_spelling_is_the_same(name: str) -> None:
    """Case and one trailing dot are no difference; the leaf names the target."""
    async with a_lab() as lab:
        line, _ = await lab.connect()
        inner = await start_tls(line, careless_context(), name)
        answer = await Client(inner, lab.authority()).ask("GET", "/x")
        assert answer.status == 200
        inner.close()
        await lab.audited("GET /x allow allowed 200 complete")


async def test_no_server_name_is_no_other_name() -> None:
    """A client that sends none gets the tunnel's leaf: there is nothing that disagrees."""
    async with a_lab() as lab:
        line, _ = await lab.connect()
        inner = await start_tls(line, careless_context(), None)
        assert (await Client(inner, lab.authority()).ask("GET", "/x")).status == 200
        inner.close()
        await lab.audited("GET /x allow allowed 200 complete")


# -- requests inside ---------------------------------------------------------------------------------------------------

INSIDE = {
    "Host of another allowed one": ("/x", "other.test:PORT2"),
    "Host of a denied one": ("/x", "denied.test"),
    "Host without the port": ("/x", "api.test"),
    "Host with another port": ("/x", "api.test:PORT2"),
    "Host with a label more": ("/x", "api.test.other.test:PORT"),
    "URI of another one, Host right": ("https://other.test:PORT2/x", "api.test:PORT"),
    "URI right, Host of another one": ("https://api.test:PORT/x", "other.test:PORT2"),
    "URI and Host of another one": ("https://other.test:PORT2/x", "other.test:PORT2"),
    "URI with http": ("http://api.test:PORT/x", "api.test:PORT"),
    "URI without port": ("https://api.test/x", "api.test:PORT"),
    "CONNECT inside": ("other.test:443", "other.test:443"),
}


@pytest.mark.parametrize("what", INSIDE)
async def test_another_target_inside_is_refused(what: str) -> None:
    """Host and absolute URI inside a tunnel name the tunnel's target, or the request is refused."""
    target, host = INSIDE[what]
    async with a_lab() as lab:
        client = await lab.tunnel()
        ports = [str(upstream.port) for upstream in lab.upstreams]
        target, host = (each.replace("PORT2", ports[1]).replace("PORT", ports[0]) for each in (target, host))
        method = "CONNECT" if what == "CONNECT inside" else "GET"
        await client.send(f"{method} {target} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        answer = await client.answer()
        reason, status = ("method_refused", 501) if method == "CONNECT" else ("target_mismatch", 421)
        assert (answer.status, answer.reason) == (status, reason)
        client.close()
        await lab.refused(f"{method} {lab.authority()} deny {reason} {status} denied")


ODD_HOSTS = [
    "", "api.test:", "api.test:0", "api.test:99999", "api.test:+443", "api.test:443:443", "api.test/", "user@api.test",
    "api.test@other.test", "api.test#other.test", "api.test\\other.test", "api..test", ".api.test", "api.test..",
    "[api.test]", "[[::1]]", "[::1%25lo]", "127.1", "0x7f.0.0.1", "2130706433", "api.test,other.test", "*",
    "\u0430pi.test", "api%2etest", "-api.test", "api\u3002test",
]  # fmt: skip


@pytest.mark.parametrize("host", ODD_HOSTS)
async def test_an_odd_host_is_refused(host: str) -> None:
    """What is no canonical name, address or port is refused, never repaired."""
    async with a_lab() as lab:
        client = await lab.tunnel()
        await client.send(b"GET /x HTTP/1.1\r\nhost: " + host.encode() + b"\r\n\r\n")
        answer = await client.answer()
        assert answer.reason in ("bad_target", "target_mismatch")
        client.close()
        await lab.refused(f"GET {lab.authority()} deny {answer.reason} {answer.status} denied")


@pytest.mark.parametrize("host", ["API.test:PORT", "api.TEST.:PORT"])
async def test_host_in_another_spelling_is_the_same(host: str) -> None:
    """Case and one trailing dot are no difference; what is sent is the canonical name."""
    async with a_lab() as lab:
        client = await lab.tunnel()
        port = str(lab.upstream.port)
        await client.send(f"GET /x HTTP/1.1\r\nhost: {host.replace('PORT', port)}\r\n\r\n".encode())
        said = (await client.answer()).json
        assert ["host", lab.authority()] in said["headers"]
        await lab.audited("GET /x allow allowed 200 complete")


# -- CONNECT itself ----------------------------------------------------------------------------------------------------


async def refuse(lab: Lab, request: bytes, expected: str) -> None:
    """Send bytes to the proxy, expect one refusal of this form, with a body that says why."""
    line = await lab.line()
    client = Client(line, "x")
    await client.send(request)
    answer = await client.answer("GET")
    assert answer.whole and answer.json["error"]["code"] == answer.reason
    client.close()
    await lab.refused(expected)


CONNECTS = {
    "no port": (b"CONNECT api.test HTTP/1.1\r\nhost: api.test\r\n\r\n", "bad_target 400"),
    "port 0": (b"CONNECT api.test:0 HTTP/1.1\r\nhost: api.test\r\n\r\n", "bad_target 400"),
    "port beyond": (b"CONNECT api.test:65536 HTTP/1.1\r\nhost: api.test\r\n\r\n", "bad_target 400"),
    "a path": (b"CONNECT /x HTTP/1.1\r\nhost: api.test\r\n\r\n", "bad_target 400"),
    "a URI": (b"CONNECT https://api.test:443/ HTTP/1.1\r\nhost: api.test\r\n\r\n", "bad_target 400"),
    "userinfo": (b"CONNECT a@api.test:443 HTTP/1.1\r\nhost: api.test\r\n\r\n", "bad_target 400"),
    "an odd address": (b"CONNECT 0177.0.0.1:443 HTTP/1.1\r\nhost: x\r\n\r\n", "bad_target 400"),
    "a number": (b"CONNECT 2130706433:443 HTTP/1.1\r\nhost: x\r\n\r\n", "bad_target 400"),
    "a name in brackets": (b"CONNECT [api.test]:443 HTTP/1.1\r\nhost: x\r\n\r\n", "bad_target 400"),
    "a zone": (b"CONNECT [fe80::1%25eth0]:443 HTTP/1.1\r\nhost: x\r\n\r\n", "bad_target 400"),
    "another Host": (b"CONNECT api.test:443 HTTP/1.1\r\nhost: other.test:443\r\n\r\n", "target_mismatch 421"),
    "another Host's port": (b"CONNECT api.test:443 HTTP/1.1\r\nhost: api.test:444\r\n\r\n", "target_mismatch 421"),
    "a body": (
        b"CONNECT api.test:443 HTTP/1.1\r\nhost: api.test:443\r\ncontent-length: 3\r\n\r\nabc",
        "bad_request 400",
    ),
    "chunks": (
        b"CONNECT api.test:443 HTTP/1.1\r\nhost: api.test:443\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "bad_request 400",
    ),
}


@pytest.mark.parametrize("what", CONNECTS)
async def test_an_odd_connect_is_refused(what: str) -> None:
    """CONNECT names host:port, once, and nothing else; its Host may not disagree."""
    request, refusal = CONNECTS[what]
    async with a_lab() as lab:
        asked = "api.test:443" if request.startswith(b"CONNECT api.test:443 ") else "-"
        await refuse(lab, request, f"CONNECT {asked} deny {refusal} denied")


async def test_a_denied_tunnel_is_told_why() -> None:
    """403 with a body; nothing is looked up, nothing dialled; the connection may ask for another."""
    async with a_lab() as lab:
        line = await lab.line()
        client = Client(line, "x")
        for host in ("denied.test:443", "denied.test:22"):
            await client.send(f"CONNECT {host} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            answer = await client.answer("GET")
            assert (answer.status, answer.reason) == (403, "no_rule_matched")
            assert answer.json["error"]["message"]
        client.close()
        await lab.refused(
            *(f"CONNECT {host} deny no_rule_matched 403 denied" for host in ("denied.test:443", "denied.test:22"))
        )


@pytest.mark.parametrize("port", [22, 25, 8443, 3128])
async def test_other_ports_are_refused(port: int) -> None:
    """A rule that names no ports is for the scheme's default one."""
    rule: dict[str, Any] = {"id": "r", "allow": {"hosts": ["api.test"]}}
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        authority = f"api.test:{port}"
        request = f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode()
        await refuse(lab, request, f"CONNECT {authority} deny no_rule_matched 403 denied")


async def test_bytes_before_the_tunnel_is_open_are_refused() -> None:
    """A client that does not wait for the answer can't know what it talks to: refused, and told so."""
    async with a_lab() as lab:
        authority = lab.authority()
        request = f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode()
        await refuse(lab, request + b"\x16\x03\x01\x00\x05hello", f"CONNECT {authority} deny bad_request 400 denied")


@pytest.mark.parametrize(
    "speech", [b"GET / HTTP/1.1\r\nhost: api.test\r\n\r\n", b"SSH-2.0-x\r\n", bytes(40), b"\x80\x2e\x01"]
)
async def test_what_is_not_tls_is_refused(speech: bytes) -> None:
    """A tunnel carries TLS, which is terminated: nothing else passes, unseen or not."""
    async with a_lab() as lab:
        line, _ = await lab.connect()
        await line.send(speech)
        await line.end()
        await lab.refused(f"CONNECT {lab.authority()} deny guest_tls_failed 200 denied")


async def test_a_tunnel_that_is_never_used_is_audited_once() -> None:
    """Closed within the handshake, or before it: one record."""
    async with a_lab() as lab:
        line, _ = await lab.connect()
        line.close()
        await lab.refused(f"CONNECT {lab.authority()} deny guest_tls_failed 200 denied")


async def test_only_the_gateways_leaf_is_shown() -> None:
    """A guest that trusts only the public roots does not get through: interception is never hidden."""
    async with a_lab() as lab:
        line, _ = await lab.connect()
        with pytest.raises((ssl.SSLError, Cut, ConnectionError)):
            await start_tls(line, ssl.create_default_context(), "api.test")
        await lab.refused(f"CONNECT {lab.authority()} deny guest_tls_failed 200 denied")


# -- who asks ----------------------------------------------------------------------------------------------------------

LOGINS = {
    "none": b"",
    "unknown token": proxy_authorization("x" * 20),
    "a token cut short": proxy_authorization(TOKEN[:-1]),
    "no base64": b"proxy-authorization: Basic !!!",
    "another scheme": b"proxy-authorization: Digest " + TOKEN.encode(),
    "the token in another header": b"authorization: Bearer " + TOKEN.encode(),
    "a name alone": b"proxy-authorization: Basic Zzo=",
}


@pytest.mark.parametrize("what", LOGINS)
@pytest.mark.parametrize("form", ["connect", "absolute"])
async def test_nobody_is_nobody(what: str, form: str) -> None:
    """Without a known token there is no guest: 407, whatever else the request says."""
    async with a_lab(settings={"entries": {"proxy": {"guest": ""}}}) as lab:
        authority = lab.authority()
        line = f"CONNECT {authority}" if form == "connect" else f"GET http://{authority}/x"
        login = LOGINS[what] + b"\r\n" if LOGINS[what] else b""
        request = f"{line} HTTP/1.1\r\nhost: {authority}\r\n".encode() + login + b"\r\n"
        await refuse(lab, request, f"{line.partition(' ')[0]} - deny unauthenticated 407 denied")


async def test_the_token_is_the_guest_not_what_it_says() -> None:
    """The name before the token and any header of the guest's own mean nothing; each request shows who asks."""
    only_research = {**OK_ONLY, "guests": {"team": "research"}}
    upstream = HttpUpstream(echo, tls=False)
    async with Lab(upstream, rules=[only_research], settings={"entries": {"proxy": {"guest": ""}}}) as lab:
        client = await lab.proxy()
        for token, status in ((TOKEN, 200), (OTHER_TOKEN, 403), (TOKEN, 200)):
            forged = (b"x-guest: g", b"x-forwarded-for: 127.0.0.1", b"x-team: research")
            answer = await client.ask("GET", "/x", proxy_authorization(token, user="g"), *forged)
            assert answer.status == status
        assert b"proxy-authorization" not in upstream.received.lower()
        records = await lab.audited(
            "GET /x allow allowed 200 complete", "GET /x deny no_rule_matched 403 denied",
            "GET /x allow allowed 200 complete",
        )  # fmt: skip
        assert [record.guest and record.guest.id for record in records] == ["g", "h", "g"]


async def test_a_tunnel_keeps_its_guest() -> None:
    """Inside a tunnel nobody becomes somebody else."""
    no_sales = {"id": "no-sales", "deny": {"hosts": ["api.test"], "paths": ["/x"]}, "guests": {"team": "sales"}}
    settings = {"entries": {"proxy": {"guest": ""}}}
    async with Lab(HttpUpstream(echo), rules=[OK_ONLY, no_sales], settings=settings) as lab:
        client = await lab.tunnel("", proxy_authorization(OTHER_TOKEN, user="g"))
        answer = await client.ask("GET", "/x", proxy_authorization(TOKEN))
        assert answer.reason == "rule_denied"
        records = await lab.refused("GET /x deny rule_denied 403 denied")
        assert records[0].guest is not None and records[0].guest.id == "h"
