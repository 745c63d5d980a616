"""HTTP/2 for tests: two ends of ours in memory, raw frames, and a client over a `Line` that speaks through `h2`.

`h2` is the oracle: another implementation, whose own checks of what it sends are turned off where a test is to send
what nobody should.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import msgspec
from hpack import Encoder

from seamgate.audit.record import AuditRecord
from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http2 import Http2Connection
from seamgate.protocol.http2_events import Event
from support.certificates import guest_context
from support.client import start_tls
from support.lab import Lab
from support.line import Cut, Line

Fields = list[tuple[bytes, bytes]]


def get(path: str = "/", authority: str = "api.test", method: str = "GET") -> Fields:
    """Return the fields of a request."""
    return [
        (b":method", method.encode()),
        (b":scheme", b"https"),
        (b":authority", authority.encode()),
        (b":path", path.encode()),
    ]


def still() -> float:
    """A clock that stands."""
    return 0.0


class Peer:
    """Raw frames for one end of ours: encodes field blocks, counts nothing, checks nothing."""

    def __init__(self) -> None:
        self.encoder = Encoder()

    def headers(self, stream: int, fields: Iterable[tuple[bytes, bytes]], *, ended: bool = True) -> bytes:
        """Return a HEADERS frame."""
        return wire.write_headers(stream, self.encoder.encode(list(fields)), ended=ended)

    @staticmethod
    def data(stream: int, data: bytes, *, ended: bool = False) -> bytes:
        """Return a DATA frame."""
        return wire.write_frame(wire.DATA, wire.END_STREAM if ended else 0, stream, data)


OPENING = wire.PREFACE + wire.write_settings([])


def server(**more: Any) -> Http2Connection:
    """Return our server's end, with the client's opening read."""
    end = Http2Connection(server=True, clock=still, **more)
    end.start()
    end.feed(OPENING)
    end.take_output()
    return end


def client(**more: Any) -> Http2Connection:
    """Return our client's end, with the server's SETTINGS read."""
    end = Http2Connection(server=False, clock=still, **more)
    end.start()
    end.feed(wire.write_settings([]))
    end.take_output()
    return end


def exchange_all(one: Http2Connection, other: Http2Connection) -> tuple[list[Event], list[Event]]:
    """Carry bytes between two ends until both are quiet; return what each got."""
    at_one: list[Event] = []
    at_other: list[Event] = []
    for _ in range(1000):
        from_one, from_other = one.take_output(), other.take_output()
        if not from_one and not from_other:
            return at_one, at_other
        at_other += other.feed(from_one)
        at_one += one.feed(from_other)
    raise AssertionError("they never fall silent")


def frames(data: bytes) -> list[wire.Frame]:
    """Cut output into frames."""
    reader = wire.FrameReader()
    reader.feed(data)
    found = []
    while (frame := reader.next_frame()) is not None:
        found.append(frame)
    return found


class Reply(msgspec.Struct):
    """What came on one stream.

    Attributes:
        reset: the code of a RST_STREAM, -1 for none.
        whole: whether its end came.
    """

    status: int = 0
    headers: Fields = []
    body: bytes = b""
    trailers: Fields = []
    informational: list[Fields] = []
    reset: int = -1
    whole: bool = False

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def reason(self) -> str:
        """The code of a denial, "" for other responses."""
        return (self.header(b"x-seamgate-reason") or b"").decode()


class H2Client:
    """One connection of a client over a line.

    Attributes:
        replies: by stream.
        goaway: the code of a GOAWAY, -1 for none.
        opens_windows: whether what was read is acknowledged.
    """

    def __init__(self, line: Line, authority: str, *, settings: dict[int, int] | None = None) -> None:
        self.line = line
        self.authority = authority
        self.replies: dict[int, Reply] = {}
        self.goaway = -1
        self.opens_windows = True
        self.h = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.h.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                **{h2.settings.SettingCodes(key): value for key, value in (settings or {}).items()},
            },
        )
        self.h.initiate_connection()

    async def flush(self) -> None:
        """Send what h2 has queued."""
        data = self.h.data_to_send()
        if data:
            await self.line.send(data)

    async def raw(self, *data: bytes) -> None:
        """Send bytes as they are, behind what is queued."""
        await self.flush()
        await self.line.send(*data)

    async def begin(self, path: str = "/", *more: tuple[bytes, bytes], method: str = "GET", ended: bool = False) -> int:
        """Send a request's head; return its stream."""
        return await self.send([*get(path, self.authority, method), *more], ended=ended)

    async def send(self, fields: Fields, *, ended: bool = True) -> int:
        """Send these fields on a new stream; return it."""
        stream = self.h.get_next_available_stream_id()
        self.replies[stream] = Reply(headers=[], trailers=[], informational=[])
        self.h.send_headers(stream, fields, end_stream=ended)
        await self.flush()
        return stream

    async def data(self, stream: int, data: bytes, *, ended: bool = False) -> None:
        """Send a piece of a body, as windows permit."""
        while data:
            room = min(self.h.local_flow_control_window(stream), self.h.max_outbound_frame_size)
            if room <= 0:
                await self.read()
                continue
            piece, data = data[:room], data[room:]
            self.h.send_data(stream, piece, end_stream=ended and not data)
            await self.flush()

    async def end(self, stream: int, trailers: Fields | None = None) -> None:
        """End a request."""
        if trailers:
            self.h.send_headers(stream, trailers, end_stream=True)
        else:
            self.h.end_stream(stream)
        await self.flush()

    async def ask(
        self, path: str = "/", *more: tuple[bytes, bytes], method: str = "GET", body: bytes | None = None
    ) -> Reply:
        """Send a whole request and return its answer."""
        stream = await self.begin(path, *more, method=method, ended=body is None)
        if body is not None:
            await self.data(stream, body)
            await self.end(stream)
        return await self.answer(stream)

    async def answer(self, stream: int) -> Reply:
        """Read until a stream's answer is whole, or was cut."""
        reply = self.replies[stream]
        await self.until(lambda: reply.whole or reply.reset >= 0)
        return reply

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until something is so. Raises Cut if the connection ends before."""
        while not condition():
            await self.read()

    async def read(self) -> None:
        """Read what comes next."""
        data = await self.line.some()
        if not data:
            raise Cut("closed")
        for event in self.h.receive_data(data):
            self._on_event(event)
        await self.flush()

    def _on_event(self, event: Any) -> None:
        reply = self.replies.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = int(event.error_code or 0)
        elif reply is None:
            return
        elif isinstance(event, h2.events.InformationalResponseReceived):
            reply.informational.append(_plain(event.headers))
        elif isinstance(event, h2.events.ResponseReceived):
            reply.headers = _plain(event.headers)
            reply.status = int(dict(reply.headers)[b":status"])
        elif isinstance(event, h2.events.DataReceived):
            reply.body += event.data or b""
            if self.opens_windows and event.flow_controlled_length:
                self.h.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            reply.trailers = _plain(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            reply.whole = True
        elif isinstance(event, h2.events.StreamReset):
            reply.reset = int(event.error_code or 0)

    async def gone(self) -> bytes:
        """Wait for the gateway to close; return the frames that came as bytes."""
        return await self.line.end()

    def close(self) -> None:
        """Close the connection."""
        self.line.close()


async def claimed(lab: Lab, count: int) -> list[AuditRecord]:
    """Wait for so many further records, whose order is not fixed, and return them as if `audited` had named them."""
    await lab.until(lambda: len(lab.records) >= lab._claimed + count)
    found = lab.records[lab._claimed : lab._claimed + count]
    lab._claimed += count
    return found


async def tunnel(lab: Lab, *headers: bytes, authority: str = "", settings: dict[int, int] | None = None) -> H2Client:
    """Open a tunnel, TLS and HTTP/2 in it."""
    client = H2Client(await tls_tunnel(lab, authority, *headers), authority or lab.authority(), settings=settings)
    await client.flush()
    return client


async def tls_tunnel(lab: Lab, authority: str = "", *headers: bytes) -> Line:
    """Open a tunnel and TLS in it that agrees to HTTP/2, of which nothing is said yet."""
    authority = authority or lab.authority()
    line, head = await lab.connect(authority, *headers)
    assert head.startswith(b"HTTP/1.1 200 "), head
    context = guest_context(lab.gateway.ca_path)
    context.set_alpn_protocols(["h2", "http/1.1"])
    inner = await start_tls(line, context, authority.rpartition(":")[0].strip("[]"))
    lab._lines.append(inner)
    lab._lines.remove(line)
    assert inner.transport is not None
    assert inner.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    return inner


def _plain(fields: Any) -> Fields:
    return [(bytes(name), bytes(value)) for name, value in fields]
