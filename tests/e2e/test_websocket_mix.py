"""Any mix of messages, in any fragments, segments and coding, both ways at once: what arrives is what was sent."""

from __future__ import annotations

import asyncio
import random

import pytest
from wsproto import ConnectionType
from wsproto.events import BytesMessage, TextMessage

from seamgate.audit.record import AuditWebSocket
from seamgate.protocol.websocket import CONTINUATION, PING
from seamgate.protocol.websocket_handshake import accept_of
from support.lab import Lab
from support.line import Line
from support.upstream import RawUpstream
from support.websocket import ALLOW_SOCKETS, DEFLATE, OPENING, Peer, accept, open_frames, open_socket
from unit.protocol.test_websocket import deflated, frame

COUNT = 60


def messages(chance: random.Random) -> list[str | bytes]:
    """Return some texts and some bytes, short and long."""
    made: list[str | bytes] = []
    for _ in range(COUNT):
        size = chance.choice([0, 1, 5, 125, 126, 1000, 65535, 65536, 70000])
        made.append(chance.randbytes(size) if chance.random() < 0.5 else chance.choice("a\u00e9\u20ac") * size)
    return made


def written(said: list[str | bytes], chance: random.Random, *, masked: bool, compressed: bool) -> bytes:
    """Write messages as frames: some compressed, some in fragments, with pings between these."""
    out = b""
    for each in said:
        data, opcode = (each.encode(), 1) if isinstance(each, str) else (each, 2)
        rsv = 0x40 if compressed and chance.random() < 0.5 else 0
        data = deflated(data) if rsv else data
        while chance.random() < 0.4:
            cut = chance.randint(0, len(data))
            out += frame(opcode, data[:cut], fin=False, rsv=rsv, masked=masked)
            data, opcode, rsv = data[cut:], CONTINUATION, 0
            if chance.random() < 0.3:
                out += frame(PING, chance.randbytes(9), masked=masked)
        out += frame(opcode, data, rsv=rsv, masked=masked)
    return out


async def send(line: Line, data: bytes, chance: random.Random) -> None:
    """Send in segments of any size."""
    while data:
        size = chance.choice([1, 2, 7, 100, 5000, 200_000])
        await line.send(data[:size])
        data = data[size:]


async def hear(peer: Peer, count: int) -> list[str | bytes]:
    """Return so many messages."""
    heard: list[str | bytes] = []
    while len(heard) < count:
        event = await peer.event()
        if isinstance(event, TextMessage | BytesMessage):
            heard.append(event.data if isinstance(event, TextMessage) else bytes(event.data))
    return heard


@pytest.mark.parametrize("seed", range(6))
async def test_any_mix_arrives_as_it_was_sent(seed: int) -> None:
    """In order, whole, of the same kind, whichever way; and both sides may say it all at once."""
    chance = random.Random(seed)
    compressed = bool(seed % 2)
    up, down = messages(chance), messages(chance)
    to_upstream = written(up, chance, masked=True, compressed=compressed)
    to_guest = written(down, chance, masked=False, compressed=compressed)
    heard: list[str | bytes] = []

    async def script(line: Line) -> None:
        extension = [b"sec-websocket-extensions: permessage-deflate"] if compressed else []
        early = chance.randint(0, len(to_guest))
        _, peer = await accept(line, *extension, early=to_guest[:early])
        sending = asyncio.ensure_future(send(line, to_guest[early:], random.Random(seed)))
        heard.extend(await hear(peer, COUNT))
        await sending
        await peer.closed()

    async with Lab(RawUpstream(script), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel(), "/ws", *([DEFLATE] if compressed else []))
        sending = asyncio.ensure_future(send(peer.line, to_upstream, random.Random(seed)))
        assert await hear(peer, COUNT) == down
        await sending
        await lab.until(lambda: len(heard) == COUNT)
        assert await peer.close() == (1000, "")
        (record,) = await lab.audited("GET /ws allow allowed 101 complete")
        assert record.websocket == AuditWebSocket(COUNT, COUNT, 1000)
    assert heard == up


async def test_many_at_once() -> None:
    """Two hundred open at a time, each with its own messages; nothing is left behind."""

    async def script(line: Line) -> None:
        head, peer = await accept(line)
        for _ in range(3):
            await peer.say(f"{head.split()[1].decode()} {await peer.hear()!r}")
        await peer.closed()

    async def one(lab: Lab, number: int) -> None:
        client = await lab.proxy()
        await client.send(client.request("GET", f"/{number}", *OPENING))
        assert accept_of(b"dGhlIHNhbXBsZSBub25jZQ==") in await client.line.head()
        peer = Peer(client.line, open_frames(ConnectionType.CLIENT, b""))
        for turn in range(3):
            await peer.say(f"turn {turn}")
            assert await peer.hear() == f"/{number} 'turn {turn}'"
        await peer.close()

    async with Lab(RawUpstream(script, tls=False), rules=[ALLOW_SOCKETS], credential=False, checks=False) as lab:
        await asyncio.gather(*(one(lab, number) for number in range(200)))
        await lab.until(lambda: len(lab.records) == 200)
        assert {record.outcome for record in lab.records} == {"complete"}
        await lab.until(lambda: not lab.gateway.seam.active and not lab.gateway.connections.all)
        assert lab.gateway.seam.pool.counts == (0, 0, 0)
