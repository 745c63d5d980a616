"""The SOCKS 5 entry: real clients and raw bytes, judged, refused and audited as a CONNECT is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.lab import OTHER_TOKEN, SECRET, TOKEN, WITH_KEY, Lab
from support.programs import run
from support.upstream import HttpUpstream, echo

OPEN: dict[str, Any] = {"entries": {"socks5": {"listen": "127.0.0.1:0", "guest": "g"}}}
LOGIN: dict[str, Any] = {"entries": {"socks5": {"listen": "127.0.0.1:0"}}}
HELLO = b"\5\1\0"
RED = {**WITH_KEY, "guests": {"team": "research"}}


async def curl(lab: Lab, url: str, user: str = "", scheme: str = "socks5h") -> tuple[int, str]:
    """Run curl through the entry; return (exit code, stdout)."""
    host, port = lab.gateway.addresses["socks5"]
    proxy = f"{scheme}://{user}{host}:{port}"
    ca = str(lab.gateway.ca_path)
    code, out, _ = await run("curl", "-sS", "--max-time", "60", "--cacert", ca, "-x", proxy, url, env={})
    return code, out.decode()


def _request(lab: Lab, host: str, port: int) -> bytes:
    return HELLO + b"\5\1\0\3" + bytes((len(host),)) + host.encode() + port.to_bytes(2)


@pytest.mark.clients
@pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])
async def test_curl_connects_by_name(tls: bool) -> None:
    """The name is the target, TLS is terminated, the credential put in where it may be."""
    rule = WITH_KEY if tls else {**WITH_KEY, "credential": None}
    rules = [{key: value for key, value in rule.items() if value is not None}]
    async with Lab(HttpUpstream(echo, tls=tls), rules=rules, settings=OPEN) as lab:
        code, out = await curl(lab, lab.url("/one"))
        assert (code, json.loads(out)["target"]) == (0, "/one")
        keys = [talk.header("x-api-key") for talk in lab.upstream.talks]  # type: ignore[attr-defined]
        assert keys == [SECRET if tls else None]
        (record,) = await lab.audited("GET /one allow allowed 200 complete")
        assert record.entry == "socks5"


@pytest.mark.clients
async def test_a_login_says_who_asks() -> None:
    """The token is the password; without one, or with another guest's, it is another answer."""
    async with Lab(HttpUpstream(echo), rules=[RED], settings=LOGIN) as lab:
        assert (await curl(lab, lab.url("/x"), f"g:{TOKEN}@"))[0] == 0
        assert (await curl(lab, lab.url("/x"), "g:not-a-token-of-anybody@"))[0] == 97
        assert (await curl(lab, lab.url("/x"), f"h:{OTHER_TOKEN}@"))[0] == 97
        assert (await curl(lab, lab.url("/x")))[0] == 97
        records = await lab.audited(
            "GET /x allow allowed 200 complete",
            "CONNECT - deny unauthenticated 0 denied",
            f"CONNECT {lab.authority()} deny no_rule_matched 0 denied",
            "CONNECT - deny unauthenticated 0 denied",
        )
        assert [record.guest and record.guest.id for record in records] == ["g", None, "h", None]


@pytest.mark.parametrize(
    ("sent", "answer", "record"),
    [
        (HELLO + b"\5\1\0\3\x0cdenied.local\1\xbb", b"\5\0\5\2", "CONNECT denied.local:443 deny no_rule_matched"),
        (HELLO + b"\5\1\0\1\x0a\0\0\1\1\xbb", b"\5\0\5\2", "CONNECT 10.0.0.1:443 deny no_rule_matched"),
        (HELLO + b"\5\2\0\1\x0a\0\0\1\1\xbb", b"\5\0\5\7", "CONNECT - deny method_refused"),
        (HELLO + b"\5\3\0\1\x0a\0\0\1\1\xbb", b"\5\0\5\7", "CONNECT - deny method_refused"),
        (HELLO + b"\5\1\0\3\x060x7f.1\1\xbb", b"\5\0\5\1", "CONNECT - deny bad_target"),
        (HELLO + b"\5\1\0\3\x08api.test\1\xbb\x16\x03\1", b"\5\0\5\1", "CONNECT api.test:443 deny bad_request"),
        (b"\5\1\1", b"\5\xff", "CONNECT - deny unauthenticated"),
        (b"GET / HTTP/1.1\r\n\r\n", b"", "CONNECT - deny bad_request"),
        (b"\4\1\1\xbb\1\2\3\4\0", b"", "CONNECT - deny bad_request"),
    ],
    ids=["name", "address", "bind", "udp", "spelling", "early bytes", "method", "http", "socks4"],
)
async def test_what_is_refused_is_told_and_audited(sent: bytes, answer: bytes, record: str) -> None:
    """In the protocol's own code, with one record, and nothing goes upstream."""
    async with Lab(HttpUpstream(echo), settings=OPEN) as lab:
        line = await lab.line("socks5")
        await line.send(sent)
        said = await line.end()
        assert said.startswith(answer)
        assert len(said) in (len(answer), len(answer) + 8)
        await lab.refused(f"{record} 0 denied")


@pytest.mark.parametrize(
    ("first", "reason"), [(b"\0ssh", "bad_request"), (b"SSH-2.0-x\r\n\r\n", "-"), (b"", "guest_gone")]
)
async def test_what_is_neither_tls_nor_http_gets_nowhere(first: bytes, reason: str) -> None:
    """A tunnel is opened by what a rule may allow; what it then carries has to be a request."""
    async with Lab(HttpUpstream(echo), settings=OPEN) as lab:
        line = await lab.line("socks5")
        await line.send(_request(lab, "api.test", 443))
        assert await line.exactly(12) == b"\5\0\5\0\0\1" + bytes(6)
        if first:
            await line.send(first)
        line.close()
        what = (
            "- api.test:443 deny bad_request 400 denied"
            if reason == "-"
            else f"CONNECT api.test:443 deny {reason} 0 denied"
        )
        await lab.refused(what)


async def test_a_client_that_says_nothing_is_closed() -> None:
    """After the time for a head, with a record."""
    settings = {**OPEN, "limits": {"head_timeout_s": 0.1}}
    async with Lab(HttpUpstream(echo), settings=settings) as lab:
        line = await lab.line("socks5")
        assert await line.end() == b""
        await lab.refused("CONNECT - deny guest_timeout 0 denied")
