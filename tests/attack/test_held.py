"""What streams make the gateway hold is counted in `limits.held_bytes`: beyond it they end, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import h2.exceptions
import pytest
from wsproto.events import TextMessage

from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, Lab
from support.upstream import HttpUpstream, Talk
from support.websocket import ALLOW_SOCKETS, Peer, echo
from support.websocket2 import socket_of, upstream_of

BUDGET_BYTES = 2_000_000
LIMITS: dict[str, Any] = {"limits": {"held_bytes": BUDGET_BYTES, "streams": 128}, "pool": {"preconnect": True}}
LARGE = bytes(1_000_000)


async def large1(talk: Talk) -> None:
    await talk.respond(200, LARGE)


async def large2(talk: Talk2) -> None:
    with contextlib.suppress(h2.exceptions.ProtocolError):  # given up meanwhile
        await talk.respond(200, LARGE)


@pytest.mark.parametrize("upstream", [1, 2])
async def test_answers_that_nobody_reads_are_held_within_the_budget(upstream: int) -> None:
    """A guest that opens many streams and no window holds half of the budget; what is beyond ends visibly."""
    server = HttpUpstream(large1) if upstream == 1 else H2Upstream(large2)
    async with Lab(server, rules=[ALLOW_ALL], credential=False, settings=LIMITS) as lab:
        held = lab.gateway.seam.held
        guest = await tunnel(lab)
        guest.opens_windows = False
        streams = [await guest.begin("/", ended=True) for _ in range(40)]
        await guest.until(lambda: any(guest.replies[stream].reset >= 0 for stream in streams))
        most = 0
        for _ in range(200):
            await asyncio.sleep(0.001)
            most = max(most, held.used_bytes)
        assert BUDGET_BYTES // 4 < most <= BUDGET_BYTES // 2
        overloaded = [record for record in lab.records if record.reason == "overloaded"]
        assert overloaded and {record.outcome for record in overloaded} == {"truncated"}
        other = await lab.tunnel(lab.authority())
        assert (await other.ask("GET", "/")).body[:1] == b"\0"
        guest.close()
        other.close()
        await lab.until(lambda: len(lab.records) == 41 and not held.used_bytes)
        assert not held._by_guest
        await claimed(lab, 41)


async def test_bodies_that_an_upstream_does_not_read_are_counted() -> None:
    """A stream's window is what a guest can make us hold; it is given back when the stream ends."""
    go = asyncio.Event()

    async def app(talk: Talk2) -> None:
        await go.wait()
        await talk.respond(200, str(len(await talk.body())).encode())

    async with Lab(H2Upstream(app), rules=[ALLOW_ALL], credential=False, settings=LIMITS) as lab:
        held = lab.gateway.seam.held
        guest = await tunnel(lab)
        stream = await guest.begin("/", method="POST")
        sending = asyncio.ensure_future(guest.data(stream, bytes(400_000)))
        await lab.until(lambda: held.used_bytes > 0)
        assert held.used_bytes <= 65535
        go.set()
        await sending
        await guest.end(stream)
        assert (await guest.answer(stream)).body == b"400000"
        assert held.used_bytes == 0
        await lab.audited("POST / allow allowed 200 complete")


@pytest.mark.parametrize("guest", [1, 2])
async def test_messages_that_do_not_become_whole_are_held_within_the_budget(guest: int) -> None:
    """Parts of a message are counted; beyond the budget the WebSocket is closed with its reason."""
    async with Lab(upstream_of(1, echo), rules=[ALLOW_SOCKETS], credential=False, settings=LIMITS) as lab:
        held = lab.gateway.seam.held
        one, other = await socket_of(guest, lab), await socket_of(guest, lab)
        await one.send(TextMessage(data="x" * 700_000, message_finished=False))
        await lab.until(lambda: held.used_bytes >= 700_000)
        await other.send(TextMessage(data="x" * 500_000, message_finished=False))
        code, reason = await other.closed()
        assert code == 1008 and reason.startswith("overloaded; rule=all; id=")
        await one.send(TextMessage(data="end", message_finished=True))
        assert len(await one.hear()) == 700_003
        await one.close()
        await lab.until(lambda: held.used_bytes == 0)
        await claimed(lab, 2)


@pytest.mark.parametrize("guest", [1, 2])
async def test_messages_that_nobody_takes_are_held_within_the_budget(guest: int) -> None:
    """What is queued for a guest that does not read counts as well, and is given back when it has gone."""

    async def talk(peer: Peer) -> None:
        for _ in range(40):
            await peer.send(TextMessage(data="x" * 500_000))
        await peer.line.end()

    async with Lab(upstream_of(1, talk), rules=[ALLOW_SOCKETS], credential=False, settings=LIMITS) as lab:
        held = lab.gateway.seam.held
        peer = await socket_of(guest, lab)
        line: Any = peer.line
        if guest == 1:
            line.hold()
        else:
            line.client.opens_windows = False
        await lab.until(lambda: held.used_bytes > 100_000)
        assert held.used_bytes <= BUDGET_BYTES // 2
        line.close()
        if guest == 1:
            line.transport.abort()
        await lab.until(lambda: held.used_bytes == 0 and bool(lab.records))
        await claimed(lab, 1)
