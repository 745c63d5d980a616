"""WebSocket frames: what is read, what is refused with which code, and what is written."""

from __future__ import annotations

import zlib

import pytest

from seamgate.protocol.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Close,
    CloseCode,
    Deflate,
    Event,
    FrameError,
    FrameReader,
    FrameWriter,
    Message,
    Ping,
    Pong,
    apply_mask,
)

LIMIT = 1000
KEY = b"\x11\x22\x33\x44"


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = False) -> bytes:
    """Write a frame by hand."""
    first = (0x80 if fin else 0) | rsv | opcode
    size, mark = len(payload), 0x80 if masked else 0
    if size < 126:
        head = bytes((first, mark | size))
    elif size < 65536:
        head = bytes((first, mark | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, mark | 127)) + size.to_bytes(8, "big")
    return head + (KEY + apply_mask(payload, KEY) if masked else payload)


def reader(*, masked: bool = False, deflate: Deflate | None = None) -> FrameReader:
    return FrameReader(masked=masked, deflate=deflate, limit_bytes=LIMIT)


def read(data: bytes, *, masked: bool = False, deflate: Deflate | None = None) -> list[Event]:
    """Return all events of these bytes."""
    side = reader(masked=masked, deflate=deflate)
    side.feed(data)
    events = []
    while (event := side.next_event()) is not None:
        events.append(event)
    return events


def deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\0\0\xff\xff")


def test_messages_are_given_out_whole() -> None:
    """Fragments become one message; control frames between them are given out when they come."""
    data = (
        frame(TEXT, b"he", fin=False)
        + frame(PING, b"p")
        + frame(CONTINUATION, b"ll", fin=False)
        + frame(CONTINUATION, b"o")
        + frame(BINARY, b"\xff")
        + frame(PONG)
        + frame(TEXT)
    )
    assert read(data) == [
        Ping(b"p"),
        Message(b"hello", True),
        Message(b"\xff", False),
        Pong(b""),
        Message(b"", True),
    ]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, LIMIT])
@pytest.mark.parametrize("masked", [True, False])
def test_lengths_are_written_and_read_in_their_shortest_form(size: int, masked: bool) -> None:
    """What the writer writes the reader reads, at each border of the length field, masked or not."""
    message = Message(bytes(range(256)) * 4, False)
    message = Message(message.data[:size], False)
    written = FrameWriter(masked=masked, deflate=None).message(message)
    assert read(written, masked=masked) == [message]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 511, 512, 513, 514, 515, 5000])
def test_a_mask_is_taken_off_by_putting_it_on_again(size: int) -> None:
    """Byte by byte, with the four of the key in turn (RFC 6455 5.3), whichever way is taken."""
    data = bytes(place % 251 for place in range(size))
    masked = apply_mask(data, KEY)
    assert masked == bytes(each ^ KEY[place % 4] for place, each in enumerate(data))
    assert apply_mask(masked, KEY) == data


def test_masks_are_fresh() -> None:
    """Each frame towards a server has a key of its own (RFC 6455 5.3)."""
    writer = FrameWriter(masked=True, deflate=None)
    keys = {writer.message(Message(b"x", True))[2:6] for _ in range(20)}
    assert len(keys) == 20


def test_nothing_is_read_after_a_close() -> None:
    """A Close ends what a side sends: what follows is never looked at."""
    closing = frame(CLOSE, (1000).to_bytes(2, "big") + "bye \u00e9".encode())
    assert read(closing + frame(TEXT, b"more") + b"\xff\xff") == [Close(1000, "bye \u00e9")]
    assert read(frame(CLOSE)) == [Close(CloseCode.NO_CODE)]


BROKEN = {
    "a reserved opcode": (frame(3), 1002),
    "a reserved control opcode": (frame(0xB), 1002),
    "RSV2": (frame(TEXT, rsv=0x20), 1002),
    "RSV1 without compression": (frame(TEXT, rsv=0x40), 1002),
    "a mask of a server": (frame(TEXT, b"x", masked=True), 1002),
    "a long ping": (frame(PING, bytes(126)), 1002),
    "a ping in fragments": (frame(PING, fin=False), 1002),
    "a message in a message": (frame(TEXT, fin=False) + frame(TEXT), 1002),
    "nothing to continue": (frame(CONTINUATION, b"x"), 1002),
    "a length of two bytes below 126": (b"\x82\x7e\x00\x7d" + bytes(125), 1002),
    "a length of eight bytes below 65536": (b"\x82\x7f" + (126).to_bytes(8, "big") + bytes(126), 1002),
    "a length beyond all numbers": (b"\x82\x7f" + b"\xff" * 8, 1009),
    "a message beyond the limit": (frame(BINARY, bytes(LIMIT + 1))[:10], 1009),
    "fragments beyond the limit": (
        frame(BINARY, bytes(LIMIT), fin=False) + frame(CONTINUATION, b"x")[:2],
        1009,
    ),
    "text that is not UTF-8": (frame(TEXT, b"\xff"), 1007),
    "half a character": (frame(TEXT, "\u00e9".encode()[:1]), 1007),
    "a surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "half a code": (frame(CLOSE, b"\x03"), 1002),
    "a code that is never sent": (frame(CLOSE, (1005).to_bytes(2, "big")), 1002),
    "a code below all": (frame(CLOSE, (999).to_bytes(2, "big")), 1002),
    "a code beyond all": (frame(CLOSE, (5000).to_bytes(2, "big")), 1002),
    "a reason that is not UTF-8": (frame(CLOSE, (1000).to_bytes(2, "big") + b"\xff"), 1007),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_the_protocol_is_refused(case: str) -> None:
    """Each has the code that the RFC names, and is refused as early as that can be told."""
    data, code = BROKEN[case]
    with pytest.raises(FrameError) as refused:
        read(data)
    assert refused.value.code == code


def test_a_guest_has_to_mask() -> None:
    """A server refuses a frame without mask (RFC 6455 5.1)."""
    with pytest.raises(FrameError):
        read(frame(TEXT, b"x"), masked=True)


BROKEN_DEFLATE = {
    "garbage": (frame(BINARY, b"\xff\xff\xff", rsv=0x40), 1007),
    "a bomb": (frame(BINARY, deflated(bytes(LIMIT + 1)), rsv=0x40), 1009),
    "a big bomb": (frame(BINARY, deflated(bytes(900_000)), rsv=0x40), 1009),
    "RSV1 within a message": (frame(BINARY, fin=False) + frame(CONTINUATION, rsv=0x40), 1002),
    "RSV1 on a ping": (frame(PING, rsv=0x40), 1002),
    "text that inflates to no UTF-8": (frame(TEXT, deflated(b"\xff"), rsv=0x40), 1007),
}


@pytest.mark.parametrize("takeover", [True, False])
@pytest.mark.parametrize("case", BROKEN_DEFLATE)
def test_compression_is_held_to_the_limits(case: str, takeover: bool) -> None:
    """What a message inflates to counts, and is never made beyond the limit."""
    data, code = BROKEN_DEFLATE[case]
    with pytest.raises(FrameError) as refused:
        read(data, deflate=Deflate(takeover=takeover))
    assert refused.value.code == code


def test_compressed_messages_are_inflated() -> None:
    """Also in fragments, beside plain ones, and with the final block of RFC 7692 7.2.3.4."""
    whole = deflated(b"hello hello hello")
    final = bytes.fromhex("f348cdc9c9070000")
    data = (
        frame(TEXT, whole[:3], fin=False, rsv=0x40)
        + frame(CONTINUATION, whole[3:])
        + frame(TEXT, b"plain")
        + frame(TEXT, final, rsv=0x40)
        + frame(TEXT, bytes.fromhex("00"), rsv=0x40)
    )
    expected = [b"hello hello hello", b"plain", b"Hello", b""]
    for takeover in (True, False):
        assert read(data, deflate=Deflate(takeover=takeover)) == [Message(each, True) for each in expected]


def test_a_peer_may_refer_to_what_it_sent_before_where_that_was_agreed() -> None:
    """With context takeover a second message needs the first; without, it is broken."""
    compressor = zlib.compressobj(wbits=-15)
    messages = b""
    for _ in range(2):
        data = compressor.compress(b"the same words again") + compressor.flush(zlib.Z_SYNC_FLUSH)
        messages += frame(TEXT, data.removesuffix(b"\0\0\xff\xff"), rsv=0x40)
    assert len(read(messages, deflate=Deflate(takeover=True))) == 2
    with pytest.raises(FrameError):
        read(messages, deflate=Deflate())


def test_a_reason_that_is_too_long_is_cut_between_characters() -> None:
    """A Close has 125 bytes at most, and its reason stays UTF-8."""
    written = FrameWriter(masked=False, deflate=None).close(Close(1008, "\u00e9" * 100))
    assert read(written) == [Close(1008, "\u00e9" * 61)]
