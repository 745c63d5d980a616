"""WebSockets for tests: a raw client and a scripted upstream over `Line`, both with the frames of `wsproto`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.extensions import Extension, PerMessageDeflate

from seamgate.audit.record import AuditBytes, AuditWebSocket
from seamgate.protocol.websocket_handshake import accept_of
from support.client import Client
from support.lab import ALLOW_ALL, WITH_KEY
from support.line import Line
from support.upstream import RawUpstream, Script

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
OPENING = (
    b"connection: Upgrade",
    b"upgrade: websocket",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: " + KEY,
)
DEFLATE = b"sec-websocket-extensions: permessage-deflate; client_max_window_bits"
ALLOW_SOCKETS: dict[str, Any] = {**ALLOW_ALL, "upgrade": "websocket"}
SOCKETS_WITH_KEY: dict[str, Any] = {**WITH_KEY, "upgrade": "websocket"}


def open_frames(kind: ConnectionType, head: bytes) -> Connection:
    """Return what reads and writes frames after a 101 with this head."""
    extensions: list[Extension] = []
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"sec-websocket-extensions":
            deflate = PerMessageDeflate(
                client_no_context_takeover=b"client_no_context" in value,
                server_no_context_takeover=b"server_no_context" in value,
            )
            deflate._enabled = True
            extensions.append(deflate)
    return Connection(kind, extensions)


def _joined(first: TextMessage | BytesMessage, then: TextMessage | BytesMessage) -> TextMessage | BytesMessage:
    """Return two parts of a message as one."""
    if isinstance(first, TextMessage) and isinstance(then, TextMessage):
        return TextMessage(data=first.data + then.data, message_finished=then.message_finished)
    assert isinstance(first, BytesMessage) and isinstance(then, BytesMessage)
    return BytesMessage(data=bytes(first.data) + bytes(then.data), message_finished=then.message_finished)


class Peer:
    """One end of a WebSocket over a line: events as wsproto has them, messages joined."""

    def __init__(self, line: Line, frames: Connection) -> None:
        self.line = line
        self.frames = frames
        self._events: list[Event] = []

    async def send(self, *events: Event) -> None:
        """Send events."""
        await self.line.send(b"".join(self.frames.send(event) for event in events))

    async def say(self, text: str) -> None:
        """Send a text message."""
        await self.send(TextMessage(data=text))

    async def event(self) -> Event:
        """Return the next event; parts of a message are joined."""
        whole: TextMessage | BytesMessage | None = None
        while True:
            while self._events:
                event = self._events.pop(0)
                if not isinstance(event, TextMessage | BytesMessage):
                    return event
                if whole is not None:
                    event = _joined(whole, event)
                if event.message_finished:
                    return event
                whole = event
            self.frames.receive_data(await self.line.some() or None)
            self._events += self.frames.events()

    async def hear(self) -> str | bytes:
        """Return the next message."""
        event = await self.event()
        assert isinstance(event, TextMessage | BytesMessage), event
        return event.data if isinstance(event, TextMessage) else bytes(event.data)

    async def closed(self) -> tuple[int, str]:
        """Return code and reason of the Close that comes next, and answer it."""
        event = await self.event()
        assert isinstance(event, CloseConnection), event
        if self.frames.state.name == "REMOTE_CLOSING":
            await self.send(event.response())
        return event.code, event.reason or ""

    async def close(self, code: int = 1000, reason: str = "") -> tuple[int, str]:
        """Send a Close; return the answer to it."""
        await self.send(CloseConnection(code=code, reason=reason))
        return await self.closed()


async def open_socket(client: Client, path: str = "/ws", *headers: bytes) -> Peer:
    """Ask for a WebSocket and return it open."""
    await client.send(client.request("GET", path, *OPENING, *headers))
    head = await client.line.head()
    assert head.startswith(b"HTTP/1.1 101 "), head
    assert b"sec-websocket-accept: " + accept_of(KEY) in head
    return Peer(client.line, open_frames(ConnectionType.CLIENT, head))


async def accept(line: Line, *headers: bytes, early: bytes = b"") -> tuple[bytes, Peer]:
    """Answer an opening handshake in one piece with what is said early; return the request's head and the peer."""
    head = await line.head()
    key = next(part[19:] for part in head.split(b"\r\n") if part.startswith(b"sec-websocket-key: "))
    answer = (
        b"HTTP/1.1 101 Switching Protocols",
        b"connection: Upgrade",
        b"upgrade: websocket",
        b"sec-websocket-accept: " + accept_of(key),
        *headers,
    )
    sent = b"\r\n".join(answer) + b"\r\n\r\n"
    await line.send(sent + early)
    return head, Peer(line, open_frames(ConnectionType.SERVER, sent))


Talk = Callable[[Peer], Awaitable[None]]


def serves(talk: Talk, *headers: bytes) -> Script:
    """Return a script that accepts and then talks."""

    async def script(line: Line) -> None:
        _, peer = await accept(line, *headers)
        await talk(peer)

    return script


async def echo(peer: Peer) -> None:
    """Say back what is said, until the Close."""
    while True:
        event = await peer.event()
        if isinstance(event, CloseConnection):
            await peer.send(event.response())
            peer.line.close()
            return
        if isinstance(event, Ping):
            await peer.send(event.response())
        elif not isinstance(event, Pong):
            await peer.send(event)


def echoing(*headers: bytes, **options: Any) -> RawUpstream:
    """Return an upstream that says everything back."""
    return RawUpstream(serves(echo, *headers), **options)


TALKED = (AuditWebSocket(4, 4, 3000), AuditBytes(5 + 10_000 + 76_800, 5 + 10_000 + 76_800))


async def talk_both_ways(peer: Peer) -> None:
    """Have an echo send back text, bytes and a ping, and close: a record has it as `TALKED`."""
    for text in ("hello", "\u00e9" * 5000, ""):
        await peer.say(text)
        assert await peer.hear() == text
    await peer.send(BytesMessage(data=bytes(range(256)) * 300))
    assert await peer.hear() == bytes(range(256)) * 300
    await peer.send(Ping(payload=b"are you there"))
    assert await peer.event() == Pong(payload=b"are you there")
    assert await peer.close(3000, "bye") == (3000, "bye")
    assert await peer.line.end() == b""
