"""A fake upstream that speaks HTTP/2 through `h2`: one app call a stream, frames in the test's hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from seamgate.tasks import spawn
from support.certificates import server_context, upstream_ca
from support.line import Cut, Line
from support.upstream import RawUpstream

Fields = list[tuple[bytes, bytes]]


class Talk2:
    """One request, and the answer to it.

    Attributes:
        headers: as they came, pseudo fields first.
        connection: number of the connection that it came over.
        reset: the code with which the gateway gave it up, -1 if it did not.
    """

    def __init__(self, link: Link, stream: int, headers: Fields) -> None:
        self.link = link
        self.stream = stream
        self.headers = headers
        self.trailers: Fields = []
        self.reset = -1
        self.ended = False
        self.connection = link.number
        self._pieces: list[bytes] = []
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Talk2 {self.method} {self.target} {self.stream}>"

    @property
    def method(self) -> str:
        return (self.header(":method") or b"").decode()

    @property
    def target(self) -> str:
        return (self.header(":path") or b"").decode()

    def header(self, name: str) -> bytes | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name.encode()), None)

    def on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._pieces.append(bytes(event.data or b""))
        elif isinstance(event, h2.events.TrailersReceived):
            self.trailers = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        elif isinstance(event, h2.events.StreamEnded):
            self.ended = True
        elif isinstance(event, h2.events.StreamReset):
            self.reset = int(event.error_code or 0)
        self._changed.set()

    async def changed(self) -> None:
        """Return when something more of it came."""
        self._changed.clear()
        await self._changed.wait()

    async def piece(self) -> bytes | None:
        """Return the next piece of the body, None at its end."""
        while not self._pieces:
            if self.ended:
                return None
            if self.reset >= 0:
                raise Cut(f"reset with {self.reset}")
            await self.changed()
        piece = self._pieces.pop(0)
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.link.h.acknowledge_received_data(len(piece), self.stream)
            await self.link.flush()
        return piece

    async def body(self) -> bytes:
        """Return the whole body."""
        pieces = []
        while (piece := await self.piece()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    async def given_up(self) -> int:
        """Wait until the gateway resets it; return the code."""
        while self.reset < 0:
            await self.changed()
        return self.reset

    def _must_be_open(self) -> None:
        """A stream that the gateway gave up takes nothing more, whenever that comes to be known."""
        if self.reset >= 0:
            raise Cut(f"reset with {self.reset}")

    async def begin(self, status: int = 200, headers: Fields | None = None, *, ended: bool = False) -> None:
        """Send a head."""
        self._must_be_open()
        self.link.h.send_headers(self.stream, [(b":status", b"%d" % status), *(headers or [])], end_stream=ended)
        await self.link.flush()

    async def data(self, data: bytes, *, ended: bool = False) -> None:
        """Send a piece of the body, as windows permit."""
        while data:
            self._must_be_open()
            room = min(self.link.h.local_flow_control_window(self.stream), self.link.h.max_outbound_frame_size)
            if room <= 0:
                await self.link.changed()
                continue
            piece, data = data[:room], data[room:]
            self.link.h.send_data(self.stream, piece, end_stream=ended and not data)
            await self.link.flush()

    async def finish(self, trailers: Fields | None = None) -> None:
        """End the answer."""
        self._must_be_open()
        if trailers:
            self.link.h.send_headers(self.stream, trailers, end_stream=True)
        else:
            self.link.h.end_stream(self.stream)
        await self.link.flush()

    async def respond(self, status: int = 200, body: bytes = b"", headers: Fields | None = None) -> None:
        """Answer at once."""
        length = [] if status in (204, 304) else [(b"content-length", b"%d" % len(body))]
        has_body = bool(body) and self.method != "HEAD"
        await self.begin(status, [*length, *(headers or [])], ended=not has_body)
        if has_body:
            await self.data(body, ended=True)

    async def give_up(self, code: int) -> None:
        """Reset the stream."""
        self.link.h.reset_stream(self.stream, code)
        await self.link.flush()


App2 = Callable[[Talk2], Awaitable[None]]


class Link:
    """One connection."""

    def __init__(self, line: Line, number: int, settings: dict[int, int]) -> None:
        self.line = line
        self.number = number
        self.talks: dict[int, Talk2] = {}
        self.h = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                normalize_inbound_headers=False,
            )
        )
        self.h.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 100,
                **{h2.settings.SettingCodes(key): value for key, value in settings.items()},
            },
        )
        self._changed = asyncio.Event()

    async def flush(self) -> None:
        data = self.h.data_to_send()
        if data:
            await self.line.send(data)

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are, behind what is queued."""
        await self.flush()
        await self.line.send(data)

    async def changed(self) -> None:
        """Return when something more came over the connection."""
        self._changed.clear()
        await self._changed.wait()

    def on_data(self) -> None:
        self._changed.set()


class H2Upstream(RawUpstream):
    """A server that speaks HTTP/2, by ALPN.

    Attributes:
        talks: the requests, in order.
        links: the connections, in order.
    """

    def __init__(self, app: App2, *names: str, settings: dict[int, int] | None = None, **more: Any) -> None:
        super().__init__(self._serve, *names, **more)
        self.talks: list[Talk2] = []
        self.links: list[Link] = []
        self._app = app
        self._settings = settings or {}

    async def start(self) -> None:
        context = server_context.__wrapped__(*self.names)
        context.set_alpn_protocols(["h2", "http/1.1"])
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self.address, self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        assert upstream_ca() is not None

    async def _serve(self, line: Line) -> None:
        link = Link(line, len(self.links), self._settings)
        self.links.append(link)
        link.h.initiate_connection()
        await link.flush()
        while True:
            data = await line.some()
            if not data:
                line.close()
                break
            for event in link.h.receive_data(data):
                self._on_event(link, event)
            link.on_data()
            await link.flush()
        for talk in link.talks.values():
            if talk.reset < 0 and not talk.ended:
                talk.reset = 0
                talk.on_event(None)

    def _on_event(self, link: Link, event: Any) -> None:
        stream = getattr(event, "stream_id", None)
        if isinstance(event, h2.events.RequestReceived):
            assert stream is not None
            talk = Talk2(link, stream, [(bytes(name), bytes(value)) for name, value in event.headers or ()])
            link.talks[stream] = talk
            self.talks.append(talk)
            spawn(self._answer(talk), name="fake stream", on_error=self.failures.append)
        elif stream in link.talks:
            link.talks[stream].on_event(event)

    async def _answer(self, talk: Talk2) -> None:
        with contextlib.suppress(Cut):
            await self._app(talk)


async def echo2(talk: Talk2) -> None:
    """Answer with JSON that says what came."""
    body = await talk.body()
    said = {
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in talk.headers],
        "trailers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in talk.trailers],
        "body": body.decode("latin-1"),
        "connection": talk.connection,
    }
    await talk.respond(200, json.dumps(said).encode(), [(b"content-type", b"application/json")])
