"""Placeholders in bodies that no rule reads: where their credential is not bound to the host, they do not leave."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import pytest

from support.http2 import tunnel
from support.http2_upstream import H2Upstream, echo2
from support.lab import Lab
from support.upstream import HttpUpstream, RawUpstream, echo, silent

MARK = b"sgph-key"
OWN = b"ghp_000000000000000000000000000000000000"
HOSTS: dict[str, Any] = {"credentials": {"key": {"placeholder": OWN.decode(), "hosts": ["other.test"]}}}
DENIED = "POST /x deny placeholder_misplaced 403 denied"
SPELLINGS: dict[str, tuple[bytes, bytes]] = {
    "as it is": (b'{"env": "KEY=' + MARK + b'"}', b""),
    "one of one's own": (b"KEY=" + OWN, b""),
    "base64": (base64.b64encode(b"user:" + OWN), b""),
    "JSON": (b'{"env": "sg\\u0070h-key"}', b""),
    "a URL": (b"a=1&key=%73%67ph-key", b""),
    "HTML": (b"sgph&#45;key", b""),
    "gzip": (gzip.compress(b"x" * 99 + MARK), b"gzip"),
    "a coding that nobody knows": (MARK, b"x-mine"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1])
async def test_it_does_not_leave(spelling: str, piece_bytes: int) -> None:
    """In any spelling; where the body is under way, the upstream gets no whole request."""
    body, coding = SPELLINGS[spelling]
    async with Lab(RawUpstream(silent), settings=HOSTS) as lab:
        client = await lab.tunnel()
        head = [b"POST /x HTTP/1.1", b"host: " + client.authority.encode(), b"content-length: %d" % len(body)]
        head += [b"content-encoding: " + coding] if coding else []
        await client.send(b"\r\n".join(head) + b"\r\n\r\n" + (body if piece_bytes > 1 else b""))
        for place in range(0, len(body) if piece_bytes == 1 else 0):
            await client.send(body[place : place + 1])
        answer = await client.answer("POST")
        assert (answer.status, answer.reason) == (403, "placeholder_misplaced")
        assert lab.upstream.received == b"" or not lab.upstream.received.endswith(body)
        client.close()
        await lab.audited(DENIED)


async def test_over_http2_and_to_any_host() -> None:
    """Where no credential is injected, or any bound, too."""
    async with Lab(H2Upstream(echo2, "free.test"), settings=HOSTS) as lab:
        guest = await tunnel(lab, authority=lab.authority())
        reply = await guest.ask("/x", method="POST", body=b"KEY=" + MARK)
        assert (reply.status, reply.reason) == (403, "placeholder_misplaced")
        assert MARK not in lab.upstream.received
        guest.close()
        await lab.audited(DENIED)


async def test_its_own_host_may_see_it() -> None:
    """As in a body that a rule reads: that it is told there tells nobody else."""
    settings = {"credentials": {"key": {"placeholder": OWN.decode()}}}
    async with Lab(HttpUpstream(echo), settings=settings) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", body=MARK + b" " + OWN)
        assert answer.json["body"].encode() == MARK + b" " + OWN
        client.close()
        await lab.audited("POST /x allow allowed 200 complete")


@pytest.mark.parametrize("body", [b"sgph- is how they begin, sgph-ke", b"ghp_00000000000000000000", b"sgph-other"])
async def test_what_is_none_passes(body: bytes) -> None:
    """Text about placeholders, and beginnings of one: at once, and no guess at anything."""
    async with Lab(HttpUpstream(echo), settings=HOSTS) as lab:
        client = await lab.tunnel()
        for _ in range(12):  # more often than guesses may be made
            for end in range(4, len(body)):
                if end % 7 == 0:
                    answer = await client.ask("POST", "/x", body=body[:end])
                    assert answer.json["body"].encode() == body[:end]
        client.close()
        assert set(await lab.told()) == {"POST /x allow allowed 200 complete"}


async def test_where_they_may_pass() -> None:
    """`placeholders_in_bodies: pass` is for streams as well."""
    option = {"name": "credentials", "capabilities": ["secrets"], "options": {"placeholders_in_bodies": "pass"}}
    async with Lab(HttpUpstream(echo), settings={**HOSTS, "plugins": ["policy", "dns", option]}) as lab:
        client = await lab.tunnel()
        assert (await client.ask("POST", "/x", body=MARK)).status == 200
        client.close()
        await lab.audited("POST /x allow allowed 200 complete")
