"""Ways in which gateways of this kind were got around or failed their users, as far as no other file tries them.

SECURITY.md has the whole table. Each ends denied (or right) and audited.
"""

from __future__ import annotations

import base64
import ipaddress
from typing import Any

import pytest

from seamgate.audit.record import Outcome
from support.certificates import careless_context
from support.client import Client, start_tls
from support.http2 import H2Client, get
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.line import Cut, Line
from support.upstream import HttpUpstream, RawUpstream, Talk, echo

SOCKS: dict[str, Any] = {"entries": {"socks5": {"listen": "127.0.0.1:0", "guest": "g"}}}
ALLOWED = "allow allowed 200 complete"


async def socks(lab: Lab, host: bytes, port: int, kind: int = 3) -> tuple[Line, int]:
    """Ask the SOCKS entry for a place; return the connection and the reply's code."""
    line = await lab.line("socks5")
    length = bytes((len(host),)) if kind == 3 else b""
    await line.send(b"\5\1\0\5\1\0" + bytes((kind,)) + length + host + port.to_bytes(2))
    code = (await line.exactly(4))[3]
    if not code:
        await line.exactly(8)
    return line, code


# -- names -------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "evil.test\0.api.test", "api.test\0", "\0api.test", "api.test\n", "api.test\r\n", "api.test ", " api.test",
    "api.test\t", "api.test..", ".api.test", "api..test", "[api.test]", "[[api.test]]", "api.test/", "api.test?",
    "api.test#", "api.test:443", "x@api.test", "api.test@evil.test", "evil.test\\api.test", "%61pi.test",
    "api%2etest", "api\u00adtest", "api\u200b.test", "api.test%00", "*.test", "-api.test", "a" * 64 + ".test",
    "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1.", "[127.0.0.1]", "fe80::1%lo",
    "::ffff:127.0.0.1%1", "\u2460.test", "api.test,evil.test", "api.test;evil.test",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_name_that_two_parsers_read_differently_is_no_target_for_socks(name: str) -> None:
    """Characters are checked before anything is compared: no suffix of a bad name makes it a good one."""
    async with Lab(HttpUpstream(echo), settings=SOCKS) as lab:
        line, code = await socks(lab, name.encode(), lab.upstream.port)
        assert code
        await line.end()
        await lab.until(lambda: len(lab.records) == 1)
        (record,) = lab.records
        assert record.reason is not None and record.reason.value in ("bad_target", "no_rule_matched")
        place = f"{record.request.host}:{record.request.port}" if record.request and record.request.host else "-"
        await lab.refused(f"CONNECT {place} deny {record.reason.value} 0 denied")


@pytest.mark.parametrize(
    "host",
    [
        "test",
        "xapi.test",
        "api.test.evil.example",
        "api-test",
        "a.api.test",
        "apitest",
        "api.tes",
        "api.testt",
        "api.test.test",
        "test.api",
        "ap\u0131.test",
    ],
)
async def test_a_name_is_compared_by_its_labels(host: str) -> None:
    """Neither a suffix, nor a prefix, nor the apex, nor a label more or less is the name that a rule has."""
    rule = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "hosts": ["api.test", "*.sub.api.test"]}}
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        line = await lab.line()
        await line.send(f"CONNECT {host}:{lab.upstream.port} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        head = await line.head()
        assert head.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
        line.close()
        await lab.until(lambda: len(lab.records) == 1)
        (record,) = lab.records
        assert record.outcome is Outcome.DENIED and lab.upstream.received == b""
        lab._claimed = 1


@pytest.mark.parametrize("entry", ["connect", "socks"])
@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "[2606:4700::1111]", "169.254.169.254", "[fd00:ec2::254]"]
)
async def test_an_address_is_not_let_in_by_rules_for_names(address: str, entry: str) -> None:
    """Neither as a CONNECT nor by SOCKS: `**` covers names, and whoever dials an address has not shown one."""
    rules = [{**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "hosts": ["**"]}}]
    async with Lab(HttpUpstream(echo), rules=rules, settings=SOCKS, credential=False) as lab:
        if entry == "connect":
            line, head = await lab.connect(f"{address}:443")
            assert head.startswith(b"HTTP/1.1 403 ")
            line.close()
            await lab.refused(f"CONNECT {address.strip('[]')}:443 deny no_rule_matched 403 denied")
            return
        packed = ipaddress.ip_address(address.strip("[]")).packed
        line, code = await socks(lab, packed, 443, 1 if len(packed) == 4 else 4)
        assert code == 2
        line.close()
        await lab.refused(f"CONNECT {address.strip('[]')}:443 deny no_rule_matched 0 denied")


# -- what is inside of a SOCKS stream ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["other.test", "evil.test", "api.test.evil.test", "127.0.0.1"])
async def test_the_server_name_in_a_socks_stream_is_its_target(name: str) -> None:
    """Fronting by SNI: refused in the handshake, whether or not the other name is allowed."""
    async with Lab(HttpUpstream(echo, "api.test", "other.test"), settings=SOCKS) as lab:
        line, code = await socks(lab, b"api.test", lab.upstream.port)
        assert not code
        context = careless_context()
        if name[0].isdigit():  # Python's own check forbids it, a hostile client's does not
            await line.send(_hello(name.encode()))
            await line.end()
        else:
            with pytest.raises((OSError, Cut)):
                await start_tls(line, context, name)
        await lab.refused(f"CONNECT {lab.authority()} deny target_mismatch 0 denied")


def _hello(name: bytes) -> bytes:
    """Return a ClientHello for a server name that no library would send."""
    server_name = b"\0" + len(name).to_bytes(2) + name
    extension = b"\0\0" + (len(server_name) + 2).to_bytes(2) + len(server_name).to_bytes(2) + server_name
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(extension).to_bytes(2) + extension
    message = b"\1" + len(body).to_bytes(3) + body
    return b"\x16\3\1" + len(message).to_bytes(2) + message


@pytest.mark.parametrize(
    "head",
    [
        b"GET /x HTTP/1.1\r\nhost: evil.test\r\n\r\n",
        b"GET https://evil.test/x HTTP/1.1\r\nhost: api.test\r\n\r\n",
        b"GET http://api.test/x HTTP/1.1\r\nhost: api.test\r\n\r\n",
        b"CONNECT evil.test:443 HTTP/1.1\r\nhost: evil.test\r\n\r\n",
    ],
)
@pytest.mark.parametrize("tls", [True, False])
async def test_the_host_in_a_socks_stream_is_its_target(head: bytes, tls: bool) -> None:
    """Host and absolute URI inside name what was asked for, or nothing goes up; a tunnel in a tunnel neither."""
    async with Lab(HttpUpstream(echo, tls=tls), settings=SOCKS, credential=False) as lab:
        line, _ = await socks(lab, b"api.test", lab.upstream.port)
        if tls:
            line = await start_tls(line, careless_context(), "api.test")
        client = Client(line, lab.authority())
        await client.send(head)
        answer = await client.answer()
        assert answer.status in (400, 421, 501) and answer.reason
        client.close()
        await lab.until(lambda: len(lab.records) == 1)
        assert lab.records[0].outcome is Outcome.DENIED and lab.upstream.received == b""
        lab._claimed = 1


async def test_the_authority_of_a_stream_in_socks_is_its_target() -> None:
    """As Host, for HTTP/2."""
    async with Lab(HttpUpstream(echo), settings=SOCKS) as lab:
        line, _ = await socks(lab, b"api.test", lab.upstream.port)
        context = careless_context()
        context.set_alpn_protocols(["h2"])
        client = H2Client(await start_tls(line, context, "api.test"), "evil.test")
        await client.flush()
        reply = await client.answer(await client.send(get("/x", "evil.test")))
        assert reply.reason == "target_mismatch"
        client.close()
        await lab.until(lambda: len(lab.records) == 1)
        assert lab.records[0].outcome is Outcome.DENIED and lab.upstream.received == b""
        lab._claimed = 1


# -- redirects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "location", ["http://169.254.169.254/latest/meta-data/", "http://evil.example/", "https://api.test/"]
)
async def test_a_redirect_is_a_new_request(location: str) -> None:
    """It is passed on as it is, followed by the guest, and judged then: no credential goes along to another place."""

    async def app(talk: Talk) -> None:
        await talk.respond(307, b"", [("location", location)])

    settings = {"credentials": {"key": {"allow_http": True}}}
    rules = [{**WITH_KEY, "allow": {**WITH_KEY["allow"], "hosts": ["api.test"], "schemes": ["http"]}}]
    async with Lab(HttpUpstream(app, tls=False), rules=rules, settings=settings) as lab:
        client = await lab.proxy()
        answer = await client.ask("GET", "/x")
        assert answer.status == 307 and answer.header(b"location") == location.encode()
        host = location.split("/")[2]
        await client.send(f"GET {location} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        followed = await client.answer()
        assert followed.status in (400, 403) and SECRET not in str(followed.headers)
        client.close()
        await lab.until(lambda: len(lab.records) == 2)
        assert lab.records[1].outcome is Outcome.DENIED and lab.records[1].credentials == ()
        lab._claimed = 2
        assert len(lab.upstream.lines) == 1


# -- credentials as tools write them -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "userinfo", ["x-access-token:sgph-key", "sgph-key:", "sgph-key:x-oauth-basic", "__token__:sgph-key"]
)
async def test_a_placeholder_in_basic_is_swapped(userinfo: str) -> None:
    """As git, pip, npm and container engines write a token: inside base64, on either side of the colon."""
    upstream = HttpUpstream(echo)
    async with Lab(upstream, rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        sent = base64.b64encode(userinfo.encode())
        answer = await client.ask("GET", "/x", b"authorization: Basic " + sent)
        expected = base64.b64encode(userinfo.replace("sgph-key", SECRET).encode()).decode()
        assert upstream.talks[0].header("authorization") == f"Basic {expected}"
        assert expected not in answer.body.decode() and SECRET not in answer.body.decode()
        client.close()
        await lab.audited(f"GET /x {ALLOWED}")


@pytest.mark.parametrize("userinfo", ["x-access-token:sgph-key", "sgph-nobody:", f"me:{SECRET}"])
async def test_a_placeholder_in_basic_goes_nowhere_else(userinfo: str) -> None:
    """A host that no credential is for gets neither a placeholder nor a value, however they are wrapped."""
    async with Lab(HttpUpstream(echo, "other.test"), rules=[ALLOW_ALL]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x", b"authorization: Basic " + base64.b64encode(userinfo.encode()))
        leaking = SECRET in userinfo
        assert answer.reason == ("secret_leaving" if leaking else "placeholder_misplaced")
        client.close()
        await lab.refused(f"GET {'[withheld]' if leaking else '/x'} deny {answer.reason} 403 denied")


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [b"transfer-encoding: chunked\r\n\r\n6\r\nevent\n\r\n", b"content-length: 99\r\n\r\nevent\n", b"\r\nevent\n"],
)
async def test_a_stream_that_falls_silent_never_ends_cleanly(head: bytes) -> None:
    """Cut after the time that is configured, visibly, and the record says truncated: half a thought is no thought."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + head)
        await line.end()

    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await client.line.seen(b"event\n")
        lab.age_upstreams(901)
        answer = await client.answer()
        assert answer.body == b"event\n" and not answer.whole
        client.close()
        await lab.audited("GET /x allow upstream_timeout 200 truncated")
