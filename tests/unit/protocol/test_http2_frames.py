"""Frames: any split gives the same frames; what has a wrong length or layout is refused."""

from __future__ import annotations

import pytest

from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http2_frames import ConnectionFault, FrameReader

FRAMES = wire.write_settings([(3, 100)]) + wire.write_frame(wire.PING, 0, 0, b"12345678") + wire.write_goaway(7, 2)


def read(reader: FrameReader) -> list[wire.Frame]:
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(frame)
    return frames


@pytest.mark.parametrize("size", [1, 2, 9, 10, 1000])
def test_any_split_gives_the_same_frames(size: int) -> None:
    """Preface and frames come out the same, however they are cut."""
    reader = FrameReader(wire.PREFACE)
    data = wire.PREFACE + FRAMES
    found: list[wire.Frame] = []
    for place in range(0, len(data), size):
        reader.feed(data[place : place + size])
        found += read(reader)
    assert found == [
        (wire.SETTINGS, 0, 0, b"\x00\x03\x00\x00\x00d"),
        (wire.PING, 0, 0, b"12345678"),
        (wire.GOAWAY, 0, 0, b"\x00\x00\x00\x07\x00\x00\x00\x02"),
    ]
    assert not reader.unread_bytes


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/1.1", wire.PREFACE[:-1] + b"x"])
def test_another_preface_is_refused_at_its_first_wrong_byte(data: bytes) -> None:
    """What is no HTTP/2 preface is not waited for."""
    reader = FrameReader(wire.PREFACE)
    reader.feed(data)
    with pytest.raises(ConnectionFault):
        reader.next_frame()


def test_a_frame_that_is_too_long_is_refused_by_its_head() -> None:
    """Nobody waits for the rest of it."""
    reader = FrameReader()
    reader.feed(wire.write_frame(wire.DATA, 0, 1, bytes(wire.FRAME_BYTES + 1))[:9])
    with pytest.raises(ConnectionFault) as caught:
        reader.next_frame()
    assert caught.value.code == wire.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("payload", "rest"), [(b"\x00abc", b"abc"), (b"\x02abc\x00\x00", b"abc"), (b"\x03\x00\x00\x00", b"")]
)
def test_padding_is_taken_off(payload: bytes, rest: bytes) -> None:
    """A padded payload is what stands between its length and its padding."""
    assert wire.unpadded(wire.PADDED, payload) == rest
    assert wire.unpadded(0, payload) == payload


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abc"])
def test_padding_longer_than_its_frame_is_refused(payload: bytes) -> None:
    """RFC 9113 6.1."""
    with pytest.raises(ConnectionFault):
        wire.unpadded(wire.PADDED, payload)


def test_priority_is_read_over_and_never_of_a_stream_on_itself() -> None:
    """RFC 9113 5.3.2."""
    flags = wire.WITH_PRIORITY
    assert wire.header_fragment(flags, b"\x00\x00\x00\x05\x10block", 7) == b"block"
    for payload in (b"\x00\x00\x00\x07\x10block", b"\x00\x00"):
        with pytest.raises(ConnectionFault):
            wire.header_fragment(flags, payload, 7)


@pytest.mark.parametrize(
    "payload", [b"\x00\x04\xff\xff\xff\xff", b"\x00\x02\x00\x00\x00\x02", b"\x00\x05\x00\x00\x00\x01", b"\x00\x05"]
)
def test_settings_that_are_not_permitted_are_refused(payload: bytes) -> None:
    """RFC 9113 6.5.2."""
    with pytest.raises(ConnectionFault):
        wire.parse_settings(payload)


def test_a_long_field_block_becomes_continuation_frames() -> None:
    """Only the last has END_HEADERS, only the first END_STREAM."""
    reader = FrameReader()
    reader.feed(wire.write_headers(1, bytes(40000), ended=True))
    frames = read(reader)
    assert [(kind, flags, len(payload)) for kind, flags, _, payload in frames] == [
        (wire.HEADERS, wire.END_STREAM, 16384),
        (wire.CONTINUATION, 0, 16384),
        (wire.CONTINUATION, wire.END_HEADERS, 7232),
    ]
