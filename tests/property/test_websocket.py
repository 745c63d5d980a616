"""WebSocket frames against two other implementations: `wsproto` and `websockets` are the oracles."""

from __future__ import annotations

from collections.abc import Sequence

import wsproto.connection
import wsproto.events
import wsproto.extensions
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets import frames as their
from websockets.extensions.permessage_deflate import PerMessageDeflate

from seamgate.protocol.websocket import (
    Close,
    Deflate,
    Event,
    FrameError,
    FrameReader,
    FrameWriter,
    Message,
    Ping,
    Pong,
)

LIMIT = 4000
MESSAGES = st.one_of(
    st.text(max_size=300).map(lambda text: Message(text.encode(), True)),
    st.binary(max_size=300).map(lambda data: Message(data, False)),
    st.builds(lambda data, count: Message(data * count, False), st.binary(min_size=1, max_size=4), st.integers(1, 900)),
)
CONTROLS = st.one_of(st.binary(max_size=125).map(Ping), st.binary(max_size=125).map(Pong))
CLOSES = st.builds(Close, st.sampled_from([1000, 1001, 1008, 1011, 3000, 4999]), st.text(max_size=30))
SPLITS = st.lists(st.integers(1, 40), max_size=40)


def pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut the data into pieces of these sizes, then the rest."""
    cut = []
    for size in sizes:
        cut.append(data[:size])
        data = data[size:]
    return [piece for piece in (*cut, data) if piece]


def read(chunks: Sequence[bytes], *, masked: bool, deflate: Deflate | None = None) -> list[Event | str]:
    """Return all events, and the code of the refusal if there is one."""
    side = FrameReader(masked=masked, deflate=deflate, limit_bytes=LIMIT)
    found: list[Event | str] = []
    try:
        for chunk in chunks:
            side.feed(chunk)
            while (event := side.next_event()) is not None:
                found.append(event)
    except FrameError as error:
        found.append(f"refused {error.code}")
    return found


def read_in_turns(data: bytes, turn: int, *, masked: bool, deflate: Deflate | None) -> list[Event | str]:
    """As `read`, with so little in each turn."""
    side = FrameReader(masked=masked, deflate=deflate, limit_bytes=LIMIT)
    found: list[Event | str] = []
    side.feed(data)
    behind = True
    try:
        while behind:
            side.left = turn
            while (event := side.next_event()) is not None:
                found.append(event)
            behind = side.left <= 0
    except FrameError as error:
        found.append(f"refused {error.code}")
    return found


@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(MESSAGES, max_size=5).map(
            lambda events: b"".join(map(FrameWriter(masked=True, deflate=None).message, events))
        ),
    ),
    st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_a_turn_that_ends_anywhere_changes_nothing(data: bytes, turn: int, compressed: bool) -> None:
    """However little is read in a turn: the same events, and the same refusal."""
    deflate = Deflate(takeover=True) if compressed else None
    assert read_in_turns(data, turn, masked=True, deflate=deflate) == read([data], masked=True, deflate=deflate)


@given(st.binary(max_size=200), SPLITS, st.booleans(), st.booleans())
def test_any_split_of_any_bytes_gives_the_same(data: bytes, sizes: list[int], masked: bool, compressed: bool) -> None:
    """Events and refusals do not depend on how the bytes come."""
    deflate = Deflate(takeover=True) if compressed else None
    assert read([data], masked=masked, deflate=deflate) == read(pieces(data, sizes), masked=masked, deflate=deflate)


@given(st.lists(st.one_of(MESSAGES, CONTROLS), max_size=5), CLOSES, st.booleans(), st.booleans(), SPLITS)
def test_what_is_written_is_what_wsproto_reads(
    events: list[Message | Ping | Pong], close: Close, masked: bool, compressed: bool, sizes: list[int]
) -> None:
    """An endpoint that is not ours gets the same messages, compressed or not."""
    extensions: list[wsproto.extensions.Extension] = []
    if compressed:
        deflate = wsproto.extensions.PerMessageDeflate(client_no_context_takeover=True, server_no_context_takeover=True)
        deflate._enabled = True
        extensions.append(deflate)
    kind = wsproto.connection.ConnectionType.SERVER if masked else wsproto.connection.ConnectionType.CLIENT
    peer = wsproto.connection.Connection(kind, extensions)
    writer = FrameWriter(masked=masked, deflate=Deflate() if compressed else None)
    written = b"".join([_write(writer, event) for event in events]) + writer.close(close)
    found: list[Event] = []
    message = b""
    for chunk in pieces(written, sizes):
        peer.receive_data(chunk)
        for event in peer.events():
            if isinstance(event, wsproto.events.TextMessage | wsproto.events.BytesMessage):
                text = isinstance(event, wsproto.events.TextMessage)
                message += event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                if event.message_finished:
                    found.append(Message(message, text))
                    message = b""
            elif isinstance(event, wsproto.events.Ping):
                found.append(Ping(bytes(event.payload)))
            elif isinstance(event, wsproto.events.Pong):
                found.append(Pong(bytes(event.payload)))
            elif isinstance(event, wsproto.events.CloseConnection):
                found.append(Close(event.code, event.reason or ""))
    assert found == [*events, close]


def _write(writer: FrameWriter, event: Message | Ping | Pong) -> bytes:
    if isinstance(event, Message):
        return writer.message(event)
    return writer.ping(event.data) if isinstance(event, Ping) else writer.pong(event.data)


@settings(max_examples=60)
@given(st.lists(MESSAGES, max_size=5), st.booleans(), st.booleans(), st.integers(20, 200), SPLITS)
def test_what_websockets_writes_is_what_is_read(
    messages: list[Message], masked: bool, takeover: bool, size: int, sizes: list[int]
) -> None:
    """Fragmented at any place and compressed by another implementation, with and without context takeover."""
    deflate = PerMessageDeflate(not takeover, not takeover, 15, 15)
    written = b""
    for message in messages:
        parts = [message.data[place : place + size] for place in range(0, len(message.data), size)] or [b""]
        for place, part in enumerate(parts):
            first = their.Opcode.TEXT if message.text else their.Opcode.BINARY
            opcode = their.Opcode.CONT if place else first
            frame = their.Frame(opcode, part, fin=place == len(parts) - 1)
            written += frame.serialize(mask=masked, extensions=[deflate])
    agreed = Deflate(takeover=takeover)
    assert read(pieces(written, sizes), masked=masked, deflate=agreed) == messages
