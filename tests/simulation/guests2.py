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
from support.websocket2 import head_of, opening

HELD_S = (1.0, 30.0, 100.0)
CALL = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]


async def ask_streams(line: Line, host: str, asked: list[Any], rng: random.Random) -> None:
    """Ask all of them at once over one connection; raises Cut."""
    client = H2Client(line, f"{host}:443" if rng.random() < 0.2 else host, settings=_settings(rng))
    client.opens_windows = rng.random() < 0.9
    streams: dict[int, Any] = {}
    try:
        await client.flush()
        for each in asked:
            if rng.random() < 0.3:
                each.is_call, each.method, each.path = True, "POST", rng.choice(("/ok/", "/ok/", each.path))
                each.body = b"\0\0\0\0\3abc"
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
            each.on_stream = True
            each.trailers = reply.trailers or [pair for pair in reply.headers if pair[0].startswith(b"grpc-")]


def _settings(rng: random.Random) -> dict[int, int]:
    return {
        4: rng.choice((0, 3000, 65535, 65535, 1 << 20, 1 << 20)),
        3: 100,
    }  # INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS


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
        more += CALL if asked.is_call else [(b"content-type", b"application/json")]
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
    await _talk(Peer(line, open_frames(ConnectionType.CLIENT, head)), asked, rng)


async def talk_in_stream(line: Line, host: str, asked: Any, rng: random.Random) -> None:
    """Ask for a WebSocket on a stream of HTTP/2 (RFC 8441), and talk in it if it opens; raises Cut."""
    client = H2Client(line, host, settings=_settings(rng))
    await client.flush()
    await client.until(lambda: bool(client.h.remote_settings.enable_connect_protocol))
    stream = await client.send(opening(host, asked.path + asked.name), ended=False)
    reply = client.replies[stream]
    await client.until(lambda: bool(reply.status) or reply.reset >= 0)
    asked.status, asked.reason = reply.status, reply.reason
    if asked.status != 200:
        return
    way: Any = _Way(client, stream)
    pump = asyncio.get_running_loop().create_task(way.pump(), name=f"way of {asked.name}")
    try:
        await _talk(Peer(way, open_frames(ConnectionType.CLIENT, head_of(reply.headers))), asked, rng)
        if rng.random() < 0.5:
            await way.finish()
    finally:
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)


class _Way:
    """A stream as the line of a WebSocket, in which one reads while another writes."""

    def __init__(self, client: H2Client, stream: int) -> None:
        self._client, self._stream = client, stream
        self._changed = asyncio.Event()
        self._over = False

    async def pump(self) -> None:
        """Read what comes over the connection, until it ends."""
        try:
            while True:
                await self._client.read()
                self._tell()
        except (Cut, h2.exceptions.ProtocolError):
            pass  # the network broke it, or h2 read what is no HTTP/2 where it was cut
        finally:
            self._over = True
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def some(self) -> bytes:
        """Return the next bytes; b"" at the end of the stream."""
        reply = self._client.replies[self._stream]
        while not reply.body:
            if reply.whole:
                return b""
            self._still_open()
            await self._changed.wait()
        data, reply.body = reply.body, b""
        return data

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, as windows permit."""
        h = self._client.h
        try:
            for data in pieces:
                while data:
                    self._still_open()
                    room = min(h.local_flow_control_window(self._stream), h.max_outbound_frame_size)
                    if room <= 0:
                        await self._changed.wait()
                        continue
                    h.send_data(self._stream, data[:room])
                    data = data[room:]
                    await self._client.flush()
        except h2.exceptions.ProtocolError as error:
            raise Cut("the stream is over") from error

    async def finish(self) -> None:
        """End our side."""
        try:
            self._still_open()
            await self._client.end(self._stream)
        except h2.exceptions.ProtocolError as error:
            raise Cut("the stream is over") from error

    def _still_open(self) -> None:
        if self._over or self._client.replies[self._stream].reset >= 0:
            raise Cut("the stream is over")


async def _talk(peer: Peer, asked: Any, rng: random.Random) -> None:
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
