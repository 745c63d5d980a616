"""What an HTTP/2 connection reports, as values. Sans-I/O.

Made by `protocol.http2`, read by the guest's connection and the upstream's session. A room of its own, because the
connection may be compiled and these structures are compiled already (msgspec).
"""

from __future__ import annotations

import msgspec

from seamgate.errors import ProtocolError
from seamgate.flow import Headers
from seamgate.protocol.heads import RequestHead, ResponseHead
from seamgate.protocol.pieces import SMALL_BYTES


class StreamHead(msgspec.Struct, frozen=True):
    """A request or a response begins; `ended`: and has no body. Also a 1xx response."""

    stream: int
    head: RequestHead | ResponseHead
    ended: bool


class StreamData(msgspec.Struct, frozen=True):
    """A piece of a body. Its window opens again once it is said to be consumed."""

    stream: int
    data: bytes


class StreamEnd(msgspec.Struct, frozen=True):
    """The peer's message is complete."""

    stream: int
    trailers: Headers


class StreamMalformed(msgspec.Struct, frozen=True):
    """The peer's message is not well-formed (RFC 9113 8.1.1): this stream is over, the connection goes on."""

    stream: int
    error: ProtocolError


class StreamReset(msgspec.Struct, frozen=True):
    """The peer gave the stream up."""

    stream: int
    code: int


class GoingAway(msgspec.Struct, frozen=True):
    """The peer takes no new stream; of ours, those above `last` were not looked at."""

    last: int
    code: int


class SettingsChanged(msgspec.Struct, frozen=True):
    """The peer's settings came, the first or others."""

    most_streams: int


class ConnectionBroken(msgspec.Struct, frozen=True):
    """The peer broke the protocol: GOAWAY is in the output, nothing more will be read. Always the last event."""

    error: ProtocolError
    code: int


Event = (
    StreamHead | StreamData | StreamEnd | StreamMalformed | StreamReset | GoingAway | SettingsChanged | ConnectionBroken
)
StreamEvent = StreamHead | StreamData | StreamEnd


def hold_event(events: list[StreamEvent], event: StreamEvent) -> None:
    """Append an event of a stream to those that wait; a small piece of its body to the last, where that is one too."""
    last = events[-1] if events else None
    if isinstance(event, StreamData) and isinstance(last, StreamData):
        if len(event.data) < SMALL_BYTES and len(last.data) < SMALL_BYTES:
            events[-1] = StreamData(event.stream, last.data + event.data)
            return
    events.append(event)


def join_data(events: list[StreamEvent]) -> list[StreamEvent]:
    """Return the events of one stream with pieces of its body that follow each other as one.

    A peer chooses how small its frames are; what waits behind each other here goes on together.
    """
    joined: list[StreamEvent] = []
    pieces: list[bytes] = []
    for event in events:
        if isinstance(event, StreamData):
            pieces.append(event.data)
            continue
        if pieces:
            joined.append(StreamData(event.stream, b"".join(pieces)))
            pieces = []
        joined.append(event)
    if pieces:
        joined.append(StreamData(events[-1].stream, pieces[0] if len(pieces) == 1 else b"".join(pieces)))
    return joined
