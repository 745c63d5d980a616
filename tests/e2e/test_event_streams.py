"""Streams of events between either version of HTTP: passed on as they come, open in silence, and never ended cleanly.

Silence is made by having the gateway look as if it were later. It is longer than every limit but `response_timeout_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import pytest

from support.client import Client
from support.http2 import H2Client, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.line import Cut
from support.upstream import HttpUpstream, RawUpstream, Talk

QUIET_S, SILENT_S = 400.0, 1000.0
"""Longer than a connection may idle and a body or a head may take, and longer than an upstream may be silent too."""
WAYS = [(1, 1), (1, 2), (2, 1), (2, 2)]
EVENT_STREAM = "text/event-stream"

Say = Callable[[bytes], Awaitable[None]]
Events = Callable[[Say, Any], Awaitable[None]]


class Cutter:
    """The ways in which an upstream's stream may end."""

    def __init__(self, talk: Talk | Talk2) -> None:
        self.talk = talk

    async def finish(self) -> None:
        await self.talk.finish()

    async def cut(self) -> None:
        """End the connection, or reset the stream, in the middle."""
        if isinstance(self.talk, Talk2):
            await self.talk.give_up(2)
        else:
            self.talk.line.close()

    async def reset(self) -> None:
        """Lose the connection."""
        line = self.talk.link.line if isinstance(self.talk, Talk2) else self.talk.line
        line.reset()

    async def gone(self) -> None:
        """Wait until the gateway has given the stream up."""
        if isinstance(self.talk, Talk2):
            await self.talk.given_up()
        else:
            await self.talk.line.end()


def streaming(version: int, events: Events) -> RawUpstream:
    """Return an upstream of this version that answers with a stream of events."""
    if version == 1:

        async def app1(talk: Talk) -> None:
            await talk.begin(200, [("content-type", EVENT_STREAM)])
            await events(talk.data, Cutter(talk))

        return HttpUpstream(app1)

    async def app2(talk: Talk2) -> None:
        await talk.begin(200, [(b"content-type", EVENT_STREAM.encode())])
        await events(talk.data, Cutter(talk))

    return H2Upstream(app2)


class Reader:
    """A guest that reads one stream of events."""

    def __init__(self, client: Client | H2Client) -> None:
        self.client = client
        self.body = b""
        self._stream = 0
        self._h: Any = None

    async def begin(self) -> None:
        """Ask for it."""
        if isinstance(self.client, H2Client):
            self._stream = await self.client.begin("/", ended=True)
        else:
            await self.client.send(self.client.request("GET", "/"))
            _, self._h = await self.client.begin()

    async def until(self, text: bytes) -> None:
        """Read until this has come."""
        while text not in self.body:
            assert await self._more(), self.body

    async def ended_cleanly(self) -> bool:
        """Read to the end; say whether that is what the protocol has for a whole answer."""
        try:
            while await self._more():
                continue
        except Cut:
            return False
        reply = self.client.replies[self._stream] if isinstance(self.client, H2Client) else None
        return reply is None or reply.whole

    async def _more(self) -> bool:
        if isinstance(self.client, H2Client):
            reply = self.client.replies[self._stream]
            if reply.whole or reply.reset >= 0:
                return False
            await self.client.read()
            self.body = reply.body
            return True
        event = await self.client.event(self._h)
        if isinstance(event, h11.ConnectionClosed):
            raise Cut("cut")
        self.body += bytes(getattr(event, "data", b""))
        return isinstance(event, h11.Data)

    def close(self) -> None:
        """Leave."""
        (self.client if isinstance(self.client, H2Client) else self.client.line).close()


async def reader(lab: Lab, version: int) -> Reader:
    """Return a guest of this version, its request on its way."""
    found = Reader(await (lab.tunnel() if version == 1 else tunnel(lab)))
    await found.begin()
    return found


@pytest.mark.parametrize(("guest", "upstream"), WAYS)
@pytest.mark.parametrize("redacts", [True, False])
async def test_each_event_arrives_before_the_next_is_sent(guest: int, upstream: int, redacts: bool) -> None:
    """Whatever is inspected, nothing is held back for company."""
    arrived = asyncio.Semaphore(0)

    async def events(say: Say, end: Cutter) -> None:
        for number in range(5):
            await say(b"data: {%d, %b}\n\n" % (number, SECRET.encode() if redacts else b""))
            await arrived.acquire()
        await end.finish()

    rule = WITH_KEY if redacts else ALLOW_ALL
    async with Lab(streaming(upstream, events), rules=[rule]) as lab:
        got = await reader(lab, guest)
        for number in range(5):
            await got.until(b"data: {%d" % number)
            await got.until(b"}\n\n")
            arrived.release()
        assert await got.ended_cleanly()
        assert SECRET.encode() not in got.body
        await lab.audited("GET / allow allowed 200 complete")


@pytest.mark.parametrize(("guest", "upstream"), WAYS)
async def test_a_silent_stream_stays_open(guest: int, upstream: int) -> None:
    """Longer than a connection may idle and a body may be silent, again and again: the next event still arrives."""
    quiet = asyncio.Semaphore(0)

    async def events(say: Say, end: Cutter) -> None:
        for number in range(3):
            await say(b"data: %d\n\n" % number)
            await quiet.acquire()
        await say(b"data: done\n\n")
        await end.finish()

    async with Lab(streaming(upstream, events), credential=False) as lab:
        got = await reader(lab, guest)
        for number in range(3):
            await got.until(b"data: %d\n\n" % number)
            lab.age_guests(QUIET_S)
            lab.age_upstreams(QUIET_S)
            quiet.release()
        await got.until(b"done\n\n")
        assert await got.ended_cleanly()
        await lab.audited("GET / allow allowed 200 complete")


@pytest.mark.parametrize(("guest", "upstream"), WAYS)
async def test_a_stream_that_is_silent_for_too_long_is_cut(guest: int, upstream: int) -> None:
    """After `response_timeout_s`: the guest sees a break, never an end, and the record says so."""

    async def events(say: Say, end: Cutter) -> None:
        await say(b"data: 1\n\n")
        await end.gone()

    async with Lab(streaming(upstream, events), credential=False) as lab:
        got = await reader(lab, guest)
        await got.until(b"data: 1\n\n")
        lab.age_guests(SILENT_S)
        lab.age_upstreams(SILENT_S)
        assert not await got.ended_cleanly()
        await lab.audited("GET / allow upstream_timeout 200 truncated")


@pytest.mark.parametrize(("guest", "upstream"), WAYS)
@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_a_stream_that_breaks_off_is_a_break(guest: int, upstream: int, how: str) -> None:
    """The upstream's end in the middle is passed on as one: what came before is there, no clean end is."""
    arrived = asyncio.Event()

    async def events(say: Say, end: Cutter) -> None:
        await say(b"data: 1\n\n")
        await arrived.wait()
        await getattr(end, how)()

    async with Lab(streaming(upstream, events), credential=False) as lab:
        got = await reader(lab, guest)
        await got.until(b"data: 1\n\n")
        arrived.set()
        assert not await got.ended_cleanly()
        assert got.body == b"data: 1\n\n"
        await lab.audited("GET / allow upstream_closed 200 truncated")


@pytest.mark.parametrize(("guest", "upstream"), WAYS)
async def test_a_guest_that_leaves_ends_the_stream_upstream(guest: int, upstream: int) -> None:
    """Nobody pays for events that nobody reads: the upstream is told at once."""
    told = asyncio.Event()

    async def events(say: Say, end: Cutter) -> None:
        await say(b"data: 1\n\n")
        await end.gone()
        told.set()

    async with Lab(streaming(upstream, events), credential=False) as lab:
        got = await reader(lab, guest)
        await got.until(b"data: 1\n\n")
        got.close()
        await told.wait()
        await lab.audited("GET / allow guest_gone 200 aborted")
        assert lab.gateway.seam.pool.counts[0] == 0
