"""What guests do over HTTP/2 and in WebSockets: many streams at once, resets, closed windows, messages cut short."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any

import h2.exceptions
from wsproto import ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from simulation.chance import some_bytes
from simulation.servers import SECRET
from support.http2 import H2Client
from support.line import Cut, Line
from support.websocket import Peer, open_frames

HELD_S = (1.0, 30.0, 100.0)


async def ask_streams(line: Line, host: str, asked: list[Any], rng: random.Random) -> None:
    """Ask all of them at once over one connection; raises Cut."""
    client = H2Client(line, f"{host}:443" if rng.random() < 0.2 else host, settings=_settings(rng))
    client.opens_windows = rng.random() < 0.9
    streams: dict[int, Any] = {}
    try:
        await client.flush()
        for each in asked:
            streams[await _begin(client, each, rng)] = each
        mood = rng.choice(("polite", "polite", "polite", "gone", "hasty", "deaf", "goaway"))
        if mood == "deaf":
            line.hold()
            await asyncio.sleep(rng.choice(HELD_S))
            line.go_on()
        elif mood == "hasty":
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.5)))
        elif mood == "goaway":
            client.h.close_connection()
            await client.flush()
        if mood in ("polite", "deaf", "goaway"):
            async with asyncio.timeout(rng.choice((5.0, 200.0))):
                await client.until(lambda: all(_is_over(client.replies[stream]) for stream in streams))
    except (h2.exceptions.ProtocolError, TimeoutError):
        pass  # after a GOAWAY or a reset nothing more can be said; or we lost patience
    finally:
        for stream, each in streams.items():
            reply = client.replies[stream]
            each.status, each.reason, each.whole, each.answer = reply.status, reply.reason, reply.whole, reply.body


def _settings(rng: random.Random) -> dict[int, int]:
    return {4: rng.choice((0, 3000, 65535, 1 << 20)), 3: 100}  # INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS


def _is_over(reply: Any) -> bool:
    return bool(reply.whole or reply.reset >= 0)


async def _begin(client: H2Client, asked: Any, rng: random.Random) -> int:
    """Send a request, or part of it; by the dice it is given up at once or behind some of its body."""
    more = []
    if rng.random() < 0.1:
        more.append((b"x-api-key", rng.choice((b"sgph-key", SECRET.encode(), b"sgph-nobody"))))
    path = asked.path + asked.name
    has_body = asked.method in ("POST", "PUT")
    if has_body:
        more.append((b"content-type", b"application/json"))
    stream = await client.begin(path, *more, method=asked.method, ended=not has_body)
    resets = rng.random() < 0.1
    if has_body:
        body = asked.body[: rng.randint(0, len(asked.body))] if resets else asked.body
        async with asyncio.timeout(100.0):  # the gateway may open no window
            await client.data(stream, body)
        asked.sent = not resets
        if not resets:
            await client.end(stream)
    if resets:
        client.h.reset_stream(stream, 8)
        client.replies[stream].reset = 8
        await client.flush()
    return stream


async def talk_in_socket(line: Line, how: str, asked: Any, rng: random.Random) -> None:
    """Ask for a WebSocket, and talk in it if it opens; raises Cut."""
    key = base64.b64encode(rng.randbytes(16))
    target = (asked.path + asked.name).encode()
    if how == "proxy":
        target = b"http://" + asked.host.encode() + target
    await line.send(
        b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: %b\r\n\r\n" % (target, asked.host.encode(), key)
    )
    head = await line.head()
    asked.status = int(head.split()[1])
    asked.reason = next(
        (part[19:].strip().decode() for part in head.split(b"\r\n") if part.lower().startswith(b"x-seamgate-reason:")),
        "",
    )
    if asked.status != 101:
        return
    peer = Peer(line, open_frames(ConnectionType.CLIENT, head))
    reader = asyncio.get_running_loop().create_task(_hear(peer, asked), name=f"reader of {asked.name}")
    try:
        await _say(peer, asked, rng)
        await asyncio.sleep(rng.choice((0.0, 0.1, 30.0)))
    except (LocalProtocolError, RemoteProtocolError):
        pass  # the other end has closed
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _say(peer: Peer, asked: Any, rng: random.Random) -> None:
    for number in range(rng.randint(0, 5)):
        message: str | bytes = rng.choice(
            (f"text {number}", "\u00e9" * 3000, rng.randbytes(10), some_bytes(rng, 20_000))
        )
        event = TextMessage(data=message) if isinstance(message, str) else BytesMessage(data=message)
        data = peer.frames.send(event)
        asked.said.append(message)
        if rng.random() < 0.05:
            await peer.line.send(data[: rng.randint(1, len(data))])
            raise Cut("left in the middle of a message")
        await peer.line.send(data)
        if rng.random() < 0.3:
            await peer.send(Ping(payload=b"x"))
            await asyncio.sleep(rng.choice((0.0, 0.01, 10.0)))
    ending = rng.choice(("close", "close", "leave", "garbage"))
    if ending == "close":
        await peer.send(CloseConnection(code=1000))
    elif ending == "garbage":
        await peer.line.send(rng.choice((b"\xff\xff\xff\xff", b"\x81\x02hi", rng.randbytes(30))))


async def _hear(peer: Peer, asked: Any) -> None:
    while True:
        event = await peer.event()
        if isinstance(event, TextMessage | BytesMessage):
            asked.heard.append(event.data if isinstance(event, TextMessage) else bytes(event.data))
        elif isinstance(event, CloseConnection):
            return
