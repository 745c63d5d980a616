"""A raw HTTP/1.1 client over a `Line`: sends exactly the given bytes, reads answers with h11."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import h11
import msgspec

from support.line import Cut, Line


class Answer(msgspec.Struct):
    """A response.

    Attributes:
        whole: whether its end came as the protocol has it. False: cut.
        informational: (status, headers) of the 1xx responses before it.
    """

    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""
    trailers: list[tuple[bytes, bytes]] = []
    informational: list[tuple[int, list[tuple[bytes, bytes]]]] = []
    whole: bool = False

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def reason(self) -> str:
        """The code of a denial, "" for other responses."""
        return (self.header(b"x-seamgate-reason") or b"").decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """One connection of a raw client.

    Args:
        authority: for Host; absolute-form requests go to `http://authority`.
        absolute: whether `ask` sends absolute-form (to a proxy), with `extra` headers.
    """

    def __init__(self, line: Line, authority: str, *, absolute: bool = False, extra: bytes = b"") -> None:
        self.line = line
        self.authority = authority
        self._absolute = absolute
        self._extra = extra
        self._rest = b""

    async def send(self, *pieces: bytes) -> None:
        """Send bytes as they are."""
        await self.line.send(*pieces)

    async def ask(self, method: str, path: str = "/", *headers: bytes, body: bytes | None = None) -> Answer:
        """Send a well-formed request and return its answer."""
        await self.send(self.request(method, path, *headers, body=body))
        return await self.answer(method)

    def request(self, method: str, path: str = "/", *headers: bytes, body: bytes | None = None) -> bytes:
        """Return the bytes of a well-formed request."""
        target = f"http://{self.authority}{path}" if self._absolute else path
        lines = [f"{method} {target} HTTP/1.1".encode(), b"host: " + self.authority.encode(), *headers]
        if body is not None:
            lines.append(b"content-length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n" + self._extra + b"\r\n" + (body or b"")

    async def begin(self, method: str = "GET") -> tuple[Answer, h11.Connection]:
        """Read the head of the next answer, with what stands before it."""
        h = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        h.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        h.send(h11.EndOfMessage())
        if self._rest:
            h.receive_data(self._rest)
            self._rest = b""
        answer = Answer(headers=[], trailers=[], informational=[])
        while True:
            event = await self.event(h)
            if isinstance(event, h11.InformationalResponse):
                answer.informational.append((event.status_code, [*event.headers]))
            elif isinstance(event, h11.Response):
                answer.status, answer.headers = event.status_code, [*event.headers]
                return answer, h
            else:
                return answer, h

    async def event(self, h: h11.Connection) -> Any:
        """Return the next event; ConnectionClosed also for a broken connection, or one that ends in a message."""
        while True:
            try:
                event = h.next_event()
                if event is not h11.NEED_DATA:
                    return event
                h.receive_data(await self.line.some())
            except (h11.RemoteProtocolError, Cut):
                return h11.ConnectionClosed()

    async def answer(self, method: str = "GET") -> Answer:
        """Read the next answer to its end, or to where it was cut."""
        answer, h = await self.begin(method)
        pieces: list[bytes] = []
        while answer.status:
            event = await self.event(h)
            if isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                continue
            if isinstance(event, h11.EndOfMessage):
                answer.whole = True
                answer.trailers = [*event.headers]
                self._rest = h.trailing_data[0]
            break
        answer.body = b"".join(pieces)
        return answer

    async def closed(self) -> bytes:
        """Wait for the gateway to close; return what else it said."""
        return self._rest + await self.line.end()

    def close(self) -> None:
        """Close the connection."""
        self.line.close()


async def connect(address: str, port: int, *, keeps: bool = True) -> Line:
    """Open a plain connection."""
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(lambda: Line(keeps=keeps), address, port)
    return line


async def start_tls(line: Line, context: ssl.SSLContext, server_hostname: str | None) -> Line:
    """Do TLS over an open connection: the line that remains carries its plaintext."""
    inner = Line(keeps=line.keeps)
    loop = asyncio.get_running_loop()
    assert line.transport is not None
    try:
        transport = await loop.start_tls(line.transport, inner, context, server_hostname=server_hostname)
    finally:
        line.connection_lost(None)  # from here on it hears nothing any more
    if transport is None:
        raise Cut("closed within the handshake")
    inner.connection_made(transport)
    return inner
