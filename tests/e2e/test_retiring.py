"""A gateway that has a successor drops nothing of what it took: it answers, says "come again", and closes.

Each connection here is taken before the gateway retires and has not asked yet. The listeners would be the successor's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from seamgate import stopping
from seamgate.protocol import http2_frames as wire
from seamgate.turns import BUDGET
from support.certificates import guest_context
from support.client import Client, start_tls
from support.http2 import tunnel
from support.lab import ALLOW_ALL, Lab
from support.upstream import HttpUpstream, echo

ANSWERED = "GET /late allow allowed 200 complete"
SOCKS: dict[str, Any] = {"entries": {"socks5": {"listen": "127.0.0.1:0", "guest": "g"}}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has asked before is not waited for, and the first request of the others for as long as a test may take."""
    monkeypatch.setattr(stopping, "PATIENCE_S", 0.0)
    monkeypatch.setattr(stopping, "FIRST_REQUEST_S", 60.0)


@contextlib.asynccontextmanager
async def retiring(lab: Lab) -> AsyncIterator[None]:
    """Have the gateway retire while the block runs, and be through in the end."""
    task = asyncio.ensure_future(lab.gateway.retire(grace_s=30.0))
    await asyncio.sleep(stopping._LOOK_EVERY_S * 2)
    assert not task.done()
    try:
        yield
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("entry", ["proxy", "base_url"])
async def test_a_first_request_is_answered(entry: str) -> None:
    """And told that the connection closes; nobody hears that the gateway is stopping, for there is one that goes on."""
    async with Lab(HttpUpstream(echo, tls=False), rules=[ALLOW_ALL], credential=False) as lab:
        client = await (lab.proxy() if entry == "proxy" else lab.base())
        await lab.until(lambda: lab.gateway.connections.open == 1)
        async with retiring(lab):
            answer = await client.ask("GET", "/late" if entry == "proxy" else "/api/late")
        assert (answer.status, answer.header(b"connection")) == (200, b"close")
        await lab.audited(ANSWERED)


async def test_a_handshake_is_finished_and_its_request_answered() -> None:
    """A tunnel that was opened is there to be asked in."""
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL], credential=False) as lab:
        line, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 200 ")
        async with retiring(lab):
            inner = await start_tls(line, guest_context(lab.gateway.ca_path), "api.test")
            answer = await Client(inner, lab.authority()).ask("GET", "/late")
        assert (answer.status, answer.header(b"connection")) == (200, b"close")
        await lab.audited(ANSWERED)


@pytest.mark.parametrize("said", [b"", b"\5\1\0"], ids=["nothing", "greeted"])
async def test_a_stream_in_socks_is_opened_and_its_request_answered(said: bytes) -> None:
    """Also one that has not said yet where it goes, or what it carries."""
    async with Lab(HttpUpstream(echo, tls=False), rules=[ALLOW_ALL], credential=False, settings=SOCKS) as lab:
        line = await lab.line("socks5")
        if said:
            await line.send(said)
            await line.exactly(2)
        await lab.until(lambda: lab.gateway.connections.awaited)
        async with retiring(lab):
            if not said:
                await line.send(b"\5\1\0")
                await line.exactly(2)
            host, port = lab.upstream.names[0].encode(), lab.upstream.port
            await line.send(b"\5\1\0\3" + bytes((len(host),)) + host + port.to_bytes(2))
            assert (await line.exactly(10))[:2] == b"\5\0"
            answer = await Client(line, lab.authority()).ask("GET", "/late")
        assert answer.status == 200
        await lab.audited(ANSWERED)


async def test_streams_that_are_opened_before_goaway_arrives_are_answered() -> None:
    """The first GOAWAY refuses none, so that one that crosses it is taken; the second says which was the last."""
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL], credential=False) as lab:
        guest = await tunnel(lab)
        async with retiring(lab):
            stream = await guest.begin("/late", ended=True)
            got = await guest.line.end()
        said = list(_frames(got))  # the answer may come before the second GOAWAY or after it
        assert [number for kind, number in said if kind == wire.GOAWAY] == [wire.MOST_STREAM, stream]
        assert [number for kind, number in said if kind == wire.HEADERS] == [stream]
        await lab.audited(ANSWERED)


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the kind of each frame and its stream; of a GOAWAY the last stream that it names."""
    while data:
        end = 9 + int.from_bytes(data[:3])
        kind = data[3]
        yield kind, int.from_bytes(data[9:13] if kind == wire.GOAWAY else data[5:9])
        data = data[end:]


async def test_a_request_that_waits_for_its_guests_turn_is_answered() -> None:
    """It was read, and its connection is as if nothing had come: but it is no idle one."""
    async with Lab(HttpUpstream(echo, tls=False), rules=[ALLOW_ALL], credential=False) as lab:
        client = await lab.proxy()
        assert (await client.ask("GET", "/first")).status == 200
        share = lab.gateway.seam.shares.of("g")
        share.spend(BUDGET.units * 3)
        waits = asyncio.Event()
        share.wait(waits.set)
        await client.send(client.request("GET", "/late"))
        await asyncio.gather(lab.gateway.retire(grace_s=30.0), client.answer())
        assert waits.is_set()
        await lab.audited("GET /first allow allowed 200 complete", ANSWERED)


async def test_who_never_asks_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was opened and says nothing keeps no successor from its turn."""
    monkeypatch.setattr(stopping, "FIRST_REQUEST_S", 0.05)
    async with Lab(HttpUpstream(echo, tls=False), rules=[ALLOW_ALL], credential=False) as lab:
        line = await lab.line()
        await lab.until(lambda: lab.gateway.connections.open == 1)
        async with asyncio.timeout(20):
            await lab.gateway.retire(grace_s=60.0)
        assert await line.end() == b""
