"""WebSockets over HTTP/2 (RFC 8441) for tests: streams of `h2` in the shape of a `Line`, frames by `wsproto`.

So `support.websocket.Peer` and what talks through it are the same over either version of HTTP.
"""

from __future__ import annotations

from typing import Any

import h2.exceptions
from wsproto import ConnectionType

from support.http2 import Fields, H2Client, get, tunnel
from support.http2_upstream import App2, H2Upstream, Talk2
from support.lab import Lab
from support.line import Cut, Line
from support.upstream import RawUpstream
from support.websocket import Peer, Talk, open_frames, open_socket, serves

CONNECTS = {8: 1}
"""SETTINGS_ENABLE_CONNECT_PROTOCOL."""


class GuestStream:
    """A guest's stream as a line."""

    def __init__(self, client: H2Client, stream: int) -> None:
        self.client = client
        self.stream = stream
        self.received_bytes = 0

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, as windows permit."""
        for piece in pieces:
            await self.client.data(self.stream, piece)

    async def some(self) -> bytes:
        """Return the next bytes; b"" at the end of the stream. Raises Cut if it was reset."""
        reply = self.client.replies[self.stream]
        while not reply.body:
            if reply.reset >= 0:
                raise Cut(f"reset with {reply.reset}")
            if reply.whole:
                return b""
            await self.client.read()
        data, reply.body = reply.body, b""
        self.received_bytes += len(data)
        return data

    async def end(self) -> bytes:
        """Read to the end of the stream."""
        pieces = []
        while piece := await self.some():
            pieces.append(piece)
        return b"".join(pieces)

    async def finish(self) -> None:
        """End our side."""
        await self.client.end(self.stream)

    async def reset(self, code: int = 8) -> None:
        """Give the stream up."""
        self.client.h.reset_stream(self.stream, code)
        await self.client.flush()

    def close(self) -> None:
        """Close the connection that it is on."""
        self.client.close()


class UpstreamStream:
    """An upstream's stream as a line."""

    def __init__(self, talk: Talk2) -> None:
        self.talk = talk

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, as windows permit."""
        for piece in pieces:
            await self.talk.data(piece)

    async def some(self) -> bytes:
        """Return the next bytes; b"" at the end of the stream. Raises Cut if it was reset."""
        return await self.talk.piece() or b""

    async def end(self) -> bytes:
        """Read to the end of the stream."""
        return await self.talk.body()

    def close(self) -> None:
        """End our side."""
        try:
            self.talk.link.h.end_stream(self.talk.stream)
        except h2.exceptions.ProtocolError:
            return  # it is over on both sides
        self._out()

    def cut(self) -> None:
        """Give the stream up."""
        self.talk.link.h.reset_stream(self.talk.stream, 8)
        self._out()

    def reset(self) -> None:
        """Lose the whole connection."""
        self.talk.link.line.reset()

    def _out(self) -> None:
        assert self.talk.link.line.transport is not None
        self.talk.link.line.transport.write(self.talk.link.h.data_to_send())


def opening(authority: str, path: str = "/ws", *more: tuple[bytes, bytes]) -> Fields:
    """Return the fields of an extended CONNECT."""
    fields = [(b":method", b"CONNECT"), (b":protocol", b"websocket"), *get(path, authority)[1:]]
    return [*fields, (b"sec-websocket-version", b"13"), *more]


def head_of(fields: Fields) -> bytes:
    """Return fields as the head of HTTP/1.1 that `open_frames` reads."""
    return b"\r\n".join(name + b": " + value for name, value in fields)


async def open_stream(client: H2Client, path: str = "/ws", *more: tuple[bytes, bytes]) -> Peer:
    """Ask for a WebSocket on a stream and return it open."""
    stream = await client.send(opening(client.authority, path, *more), ended=False)
    reply = client.replies[stream]
    await client.until(lambda: bool(reply.status))
    assert reply.status == 200, reply
    assert not [name for name, _ in reply.headers if name in (b"sec-websocket-accept", b"upgrade", b"connection")]
    return Peer(GuestStream(client, stream), open_frames(ConnectionType.CLIENT, head_of(reply.headers)))  # type: ignore[arg-type]


def serves2(talk: Talk, *headers: tuple[bytes, bytes]) -> App2:
    """Return an app that accepts WebSockets and then talks; anything else it answers at once."""

    async def app(request: Talk2) -> None:
        if request.method != "CONNECT":
            await request.respond(200, b"plain")
            return
        assert request.header(":protocol") == b"websocket"
        assert request.header("sec-websocket-version") == b"13"
        assert not [name for name, _ in request.headers if name in (b"sec-websocket-key", b"upgrade", b"connection")]
        await request.begin(200, list(headers))
        stream: Any = UpstreamStream(request)
        await talk(Peer(stream, open_frames(ConnectionType.SERVER, head_of(list(headers)))))

    return app


def upstream_of(version: int, talk: Talk, *headers: tuple[bytes, bytes]) -> RawUpstream:
    """Return an upstream of WebSockets: HTTP/1.1 alone, or HTTP/2 alone."""
    if version == 1:
        return RawUpstream(serves(talk, *[name + b": " + value for name, value in headers]))
    return H2Upstream(serves2(talk, *headers), settings=CONNECTS)


async def socket_of(version: int, lab: Lab, path: str = "/ws", *headers: tuple[bytes, bytes]) -> Peer:
    """Open a WebSocket through a tunnel, as a guest of HTTP/1.1 or of HTTP/2."""
    if version == 1:
        return await open_socket(await lab.tunnel(), path, *[name + b": " + value for name, value in headers])
    return await open_stream(await tunnel(lab), path, *headers)


class BothUpstream(H2Upstream):
    """A server of WebSockets over either version, as ALPN agrees; `connects`: whether also over HTTP/2.

    Attributes:
        versions: of its connections, in order.
    """

    def __init__(self, talk: Talk, *, connects: bool) -> None:
        super().__init__(serves2(talk), settings=CONNECTS if connects else None)
        self.versions: list[str] = []
        self._over_http1 = serves(talk)

    async def _serve(self, line: Line) -> None:
        assert line.transport is not None
        version = line.transport.get_extra_info("ssl_object").selected_alpn_protocol()
        self.versions.append(version)
        if version == "h2":
            await super()._serve(line)
        else:
            await self._over_http1(line)
