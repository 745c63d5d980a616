"""Crowds that misbehave: whatever they leave half done, nothing of it stays, and the next guest is served.

Each way to misbehave is done by many connections at once. Afterwards the counts are what they were: connections,
handshakes, exchanges, tunnels, lent sessions, waiters, held bytes, tasks, and open files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest

from seamgate.protocol import http2_frames as wire
from seamgate.protocol.websocket import TEXT
from support.http2 import get, tls_tunnel, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import Lab
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, Talk
from support.websocket import ALLOW_SOCKETS, OPENING
from unit.protocol.test_websocket import frame

CROWD = 8
LATER_S = 2000.0
"""Longer than every limit that guests' connections have."""
SETTINGS: dict[str, Any] = {
    "limits": {"response_timeout_s": 3.0},  # a WebSocket's timer takes it for real
    "pool": {"preconnect": True, "idle_timeout_s": 0.05},
}
Misbehave = Callable[[Lab], Awaitable[Line]]


async def half_a_connect(lab: Lab) -> Line:
    line = await lab.line()
    await line.send(b"CONNECT api.test:443 HTTP/1.1\r\nhost: ap")
    return line


async def half_a_hello(lab: Lab) -> Line:
    line, _ = await lab.connect()
    await line.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03half")
    return line


async def nothing_in_a_tunnel(lab: Lab) -> Line:
    line, _ = await lab.connect()
    return line


async def half_a_head(lab: Lab) -> Line:
    client = await lab.tunnel()
    await client.send(b"GET /x HTTP/1.1\r\nhost: ")
    return client.line


async def half_a_body(lab: Lab) -> Line:
    client = await lab.tunnel()
    await client.send(client.request("POST", "/x", b"content-length: 90000") + bytes(20_000))
    return client.line


async def half_a_chunk(lab: Lab) -> Line:
    client = await lab.tunnel()
    await client.send(client.request("POST", "/x", b"transfer-encoding: chunked") + b"ffff\r\nhalf")
    return client.line


async def an_answer_unread(lab: Lab) -> Line:
    client = await lab.tunnel()
    await client.send(client.request("GET", "/large"))
    await client.line.seen(b"\r\n\r\n")
    client.line.hold()
    return client.line


async def no_answer(lab: Lab) -> Line:
    client = await lab.tunnel()
    await client.send(client.request("GET", "/never"))
    return client.line


async def a_preface(lab: Lab) -> Line:
    line = await tls_tunnel(lab)
    await line.send(wire.PREFACE[:10])
    return line


async def half_a_block(lab: Lab) -> Line:
    line = await tls_tunnel(lab)
    await line.send(wire.PREFACE, wire.write_settings([]), wire.write_frame(wire.HEADERS, 0, 1, b"\x82"))
    return line


async def streams_half_done(lab: Lab) -> Line:
    client = await tunnel(lab)
    for path in ("/x", "/large", "/never"):
        stream = await client.send(get(path, client.authority, "POST"), ended=False)
        await client.data(stream, bytes(1000))
    return client.line


async def half_a_message(lab: Lab) -> Line:
    client = await lab.tunnel()
    await client.send(client.request("GET", "/socket", *OPENING))
    await client.line.seen(b"\r\n\r\n")
    await client.send(frame(TEXT, b"x" * 5000, masked=True)[:3000])
    return client.line


CROWDS: dict[str, Misbehave] = {
    each.__name__: each
    for each in (
        half_a_connect, half_a_hello, nothing_in_a_tunnel, half_a_head, half_a_body, half_a_chunk, an_answer_unread,
        no_answer, a_preface, half_a_block, streams_half_done, half_a_message,
    )
}  # fmt: skip


OVER_BOTH = ("half_a_body", "an_answer_unread", "no_answer", "streams_half_done")


async def app1(talk: Talk) -> None:
    if talk.target == "/never":
        await talk.line.end()
    elif talk.target == "/large":
        await talk.begin(200)
        for _ in range(2000):
            await talk.data(bytes(10_000))
        await talk.finish()
    else:
        await talk.body()
        await talk.respond(200, b"fine")


async def app2(talk: Talk2) -> None:
    if talk.target == "/never":
        await talk.given_up()
    elif talk.target == "/large":
        await talk.begin(200)
        await talk.data(bytes(250_000), ended=True)  # within the window of a session
    else:
        await talk.body()
        await talk.respond(200, b"fine")


def open_files() -> int:
    """How many descriptors this process has: the gateway, its guests and its upstreams are all in it."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("leave", ["reset", "stay"])
@pytest.mark.parametrize(("crowd", "upstream"), [*((each, 1) for each in CROWDS), *((each, 2) for each in OVER_BOTH)])
async def test_a_crowd_leaves_nothing_behind(upstream: int, crowd: str, leave: str) -> None:
    """Those that are gone are noticed, those that stay in silence are ended, and every count is back at what it was."""
    server = HttpUpstream(app1) if upstream == 1 else H2Upstream(app2)
    async with Lab(server, rules=[ALLOW_SOCKETS], settings=SETTINGS, credential=False, checks=False) as lab:
        seam, connections = lab.gateway.seam, lab.gateway.connections

        def at_rest(*, later: bool = False) -> bool:
            if later:
                for connection in list(connections.all):
                    connection.check_deadline(monotonic() + LATER_S)
                for stream in connections.handshakes:
                    connections.handshakes[stream] = 0.0
            lab.age_guests(0)
            lab.age_upstreams(LATER_S if later else 0)
            counts = (connections.all, connections.handshakes, connections.strangers, seam.under_way, seam.tunnels)
            return not any(counts) and seam.pool.counts == (0, 0, 0) and not seam.held.used_bytes

        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).body == b"fine"
        client.close()
        await client.line.end()
        await lab.until(at_rest)
        tasks, files = len(asyncio.all_tasks()), open_files()
        lines = [await CROWDS[crowd](lab) for _ in range(CROWD)]
        if leave == "reset":
            for line in lines:
                line.reset()
        await lab.until(lambda: at_rest(later=leave == "stay"))
        for line in lines:
            line.close()
            assert line.transport is not None
            line.transport.abort()
        await lab.until(lambda: len(asyncio.all_tasks()) <= tasks and open_files() <= files)
        assert not seam.held._by_guest
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).body == b"fine"
        client.close()
        await lab.until(at_rest)
        assert len(lab.observer.records) == seam.requests_total
        assert lab.failures == []


async def test_an_upstream_that_is_half_open_holds_nothing() -> None:
    """It took the request and is gone without a word: after its time the session is ended, and none is left."""

    async def script(line: Line) -> None:
        await line.head()
        line.hold()
        await line.end()

    async with Lab(RawUpstream(script), settings=SETTINGS, credential=False) as lab:
        clients = [await lab.tunnel() for _ in range(CROWD)]
        for client in clients:
            await client.send(client.request("GET", "/x"))

        def ended() -> bool:
            lab.age_upstreams(LATER_S)
            return len(lab.records) == CROWD

        await lab.until(ended)
        answers = [await client.answer() for client in clients]
        assert {(answer.status, answer.reason) for answer in answers} == {(504, "upstream_timeout")}
        assert lab.gateway.seam.pool.counts == (0, 0, 0)
        await lab.audited(*["GET /x allow upstream_timeout 504 failed"] * CROWD)
