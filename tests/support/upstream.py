"""Fake upstreams that are real servers: `RawUpstream` says exactly the bytes of a script, `HttpUpstream` speaks h11.

Each keeps what it received, so that a test can tell that nothing came, or that what came is what policy saw.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import h11

from seamgate.tasks import spawn
from support.certificates import server_context
from support.line import Cut, Line

Script = Callable[[Line], Awaitable[None]]
Fields = Sequence[tuple[str, str]]


class RawUpstream:
    """A server on loopback that runs a script for each connection.

    Attributes:
        lines: the connections, in order.
        failures: what scripts raised, except that the gateway closed.
    """

    def __init__(
        self,
        script: Script,
        *names: str,
        tls: bool = True,
        address: str = "127.0.0.1",
        port: int = 0,
        keeps: bool = True,
    ) -> None:
        self.names = names or ("api.test",)
        self.tls = tls
        self.address = address
        self.port = port
        self.lines: list[Line] = []
        self.failures: list[BaseException] = []
        self._script = script
        self._keeps = keeps
        self._server: asyncio.Server | None = None
        self._connected = asyncio.Event()

    @property
    def received(self) -> bytes:
        """What came over all connections."""
        return b"".join(bytes(line.received) for line in self.lines)

    async def start(self) -> None:
        """Listen."""
        context = server_context(*self.names) if self.tls else None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self.address, self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self) -> Line:
        line = _Served(self, keeps=self._keeps)
        return line

    def begin(self, line: Line) -> None:
        """A connection is there: run the script over it."""
        self.lines.append(line)
        self._connected.set()
        spawn(self._run(line), name="fake upstream", on_error=self.failures.append)

    async def _run(self, line: Line) -> None:
        try:
            await self._script(line)
        except Cut:
            line.close()

    async def connection(self, number: int = 0) -> Line:
        """Return the connection of this number once it is there."""
        while len(self.lines) <= number:
            self._connected.clear()
            await self._connected.wait()
        return self.lines[number]

    def refuse_more(self) -> None:
        """Take no further connection; those that are there stay."""
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for line in self.lines:
            line.close()
            if line.transport is not None:
                line.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()


class _Served(Line):
    def __init__(self, upstream: RawUpstream, *, keeps: bool) -> None:
        super().__init__(keeps=keeps)
        self._upstream = upstream

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.begin(self)


async def silent(line: Line) -> None:
    """A script that never answers."""
    await line.end()


def says(*pieces: bytes, then: str = "stay") -> Script:
    """Return a script that reads one request with Content-Length after another and answers each with these pieces.

    Args:
        pieces: of one answer.
        then: after the first answer "stay", "close" (clean), "cut" (no close_notify) or "reset".
    """

    async def script(line: Line) -> None:
        while True:
            await line.request()
            await line.send(*pieces)
            if then == "close":
                line.close()
            elif then == "cut":
                line.cut()
            elif then == "reset":
                line.reset()
            if then != "stay":
                return

    return script


def ok(body: bytes = b"fine", *headers: bytes) -> bytes:
    """Return a whole 200 response."""
    fields = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), fields, body)


class Talk:
    """One request at an `HttpUpstream`, read by h11, and the answer to it.

    Attributes:
        method, target: str.
        headers: as h11 gives them, names lower-case.
        trailers: once the body was read.
        connection: number of the connection that it came over.
    """

    def __init__(self, line: Line, h: h11.Connection, request: h11.Request, connection: int) -> None:
        self.method = request.method.decode()
        self.target = request.target.decode()
        self.headers = [(name, value) for name, value in request.headers]
        self.trailers: list[tuple[bytes, bytes]] = []
        self.connection = connection
        self.line = line
        self.answered = False
        self._h = h
        self._body: bytes | None = None

    def __repr__(self) -> str:
        return f"<Talk {self.method} {self.target}>"

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name.encode()), None)

    async def piece(self) -> bytes | None:
        """Return the next piece of the body, None at its end. Sends 100 Continue if the client waits for it."""
        if self._h.they_are_waiting_for_100_continue:
            await self.inform(100)
        event = await next_event(self.line, self._h)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        assert isinstance(event, h11.EndOfMessage), event
        self.trailers = [(name, value) for name, value in event.headers]
        return None

    async def body(self) -> bytes:
        """Return the whole body."""
        if self._body is None:
            pieces = []
            while (piece := await self.piece()) is not None:
                pieces.append(piece)
            self._body = b"".join(pieces)
        return self._body

    async def inform(self, status: int, headers: Fields = ()) -> None:
        """Send a 1xx response."""
        await self._send(h11.InformationalResponse(status_code=status, headers=list(headers)))

    async def begin(self, status: int = 200, headers: Fields = ()) -> None:
        """Begin the response; without Content-Length it is chunked."""
        self.answered = True
        await self._send(h11.Response(status_code=status, headers=list(headers)))

    async def data(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._send(h11.Data(data=data))

    async def finish(self, trailers: Fields = ()) -> None:
        """End the response."""
        await self._send(h11.EndOfMessage(headers=list(trailers)))

    async def respond(self, status: int = 200, body: bytes = b"", headers: Fields = ()) -> None:
        """Answer at once, with a Content-Length."""
        length = [] if status in (204, 304) else [("content-length", str(len(body)))]
        await self.begin(status, [*length, *headers])
        if body and self.method != "HEAD":
            await self.data(body)
        await self.finish()

    async def _send(self, event: h11.Event) -> None:
        data = self._h.send(event)
        if data:
            await self.line.send(data)


App = Callable[[Talk], Awaitable[None]]


async def next_event(line: Line, h: h11.Connection) -> Any:
    """Return the next event of an h11 connection over a line."""
    while True:
        event = h.next_event()
        if event is not h11.NEED_DATA:
            return event
        h.receive_data(await line.some())


async def echo(talk: Talk) -> None:
    """Answer with JSON that says what came."""
    body = await talk.body()
    said = {
        "method": talk.method,
        "target": talk.target,
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in talk.headers],
        "trailers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in talk.trailers],
        "body": body.decode("latin-1"),
    }
    await talk.respond(200, json.dumps(said).encode(), [("content-type", "application/json")])


class HttpUpstream(RawUpstream):
    """A server that speaks HTTP/1.1 through h11, with keep-alive.

    Attributes:
        talks: the requests, in order.
    """

    def __init__(self, app: App = echo, *names: str, tls: bool = True, address: str = "127.0.0.1", **more: Any) -> None:
        super().__init__(self._serve, *names, tls=tls, address=address, **more)
        self.talks: list[Talk] = []
        self._app = app

    async def _serve(self, line: Line) -> None:
        number = self.lines.index(line)
        h = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        while True:
            request = await next_event(line, h)
            if not isinstance(request, h11.Request):
                line.close()
                return
            talk = Talk(line, h, request, number)
            self.talks.append(talk)
            await self._app(talk)
            if h.our_state is not h11.DONE:
                return
            if h.their_state is not h11.DONE:
                await talk.body()
            h.start_next_cycle()
