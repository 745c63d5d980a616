"""HTTP/2 frames (RFC 9113 section 4 and 6): bytes in, (type, flags, stream, payload) out, and writing them. Sans-I/O.

Called by `protocol.http2` only. Knows lengths and layouts, nothing of streams or windows.
"""

from __future__ import annotations

import struct
from typing import Final

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
MOST_STREAM: Final = (1 << 31) - 1
"""The highest number of a stream: in a GOAWAY it says that none is refused yet. Source: RFC 9113 6.8"""
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
ENABLE_CONNECT_PROTOCOL: Final = 8
"""RFC 8441 3."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES: Final = 16384
"""The longest payload that we take and send: the least that everybody has to take, and short enough to be fair."""
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65535
_HEAD_BYTES: Final = 9
_head = struct.Struct(">BHBBL")
_setting = struct.Struct(">HL")
_word = struct.Struct(">L")

Frame = tuple[int, int, int, bytes]
"""(type, flags, stream, payload)"""


class ConnectionFault(Exception):
    """The peer broke the protocol so that nothing that follows can be trusted (RFC 9113 5.4.1)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class FrameReader:
    """Cuts a byte stream into frames. State: `_buffer` from `_position` on is unread; `_preface` is yet to come."""

    def __init__(self, preface: bytes = b"") -> None:
        self._preface = preface
        self._buffer = b""
        self._position = 0

    @property
    def unread_bytes(self) -> int:
        """How much was fed and not given out."""
        return len(self._buffer) - self._position

    @property
    def half_kind(self) -> int:
        """The type of the frame that is half here; -1 where that has not come yet."""
        return self._buffer[self._position + 3] if self.unread_bytes > 3 else -1

    @property
    def started(self) -> bool:
        """Whether the preface, if one is due, has come."""
        return not self._preface

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection."""
        self._buffer = data if self._position == len(self._buffer) else self._buffer[self._position :] + data
        self._position = 0

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None.

        Raises:
            ConnectionFault: the preface is wrong, or a frame is longer than we said that we take.
        """
        if self._preface and not self._take_preface():
            return None
        buffer, start = self._buffer, self._position
        if len(buffer) - start < _HEAD_BYTES:
            return None
        high, low, kind, flags, stream = _head.unpack_from(buffer, start)
        length = high << 16 | low
        if length > FRAME_BYTES:
            raise ConnectionFault(FRAME_SIZE_ERROR, f"a frame is longer than {FRAME_BYTES} bytes")
        end = start + _HEAD_BYTES + length
        if len(buffer) < end:
            return None
        self._position = end
        return kind, flags, stream & MAX_WINDOW, buffer[start + _HEAD_BYTES : end]

    def _take_preface(self) -> bool:
        preface = self._preface
        found = self._buffer[self._position : self._position + len(preface)]
        if not preface.startswith(found):
            raise ConnectionFault(PROTOCOL_ERROR, "this is no HTTP/2 connection preface")
        if len(found) < len(preface):
            return False
        self._position += len(preface)
        self._preface = b""
        return True


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload of a DATA or HEADERS frame without its padding.

    Raises:
        ConnectionFault: the padding is longer than the frame.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def header_fragment(flags: int, payload: bytes, stream: int) -> bytes:
    """Return the field block fragment of a HEADERS frame; its priority is read over (RFC 9113 5.3.2).

    Raises:
        ConnectionFault: the frame is too short, or depends on itself.
    """
    payload = unpadded(flags, payload)
    if not flags & WITH_PRIORITY:
        return payload
    if len(payload) < 5:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a HEADERS frame is too short")
    if word(payload) & MAX_WINDOW == stream:
        raise ConnectionFault(PROTOCOL_ERROR, "a stream depends on itself")
    return payload[5:]


def word(payload: bytes) -> int:
    """Return the first 32 bits as a number."""
    return int(_word.unpack_from(payload)[0])


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return (identifier, value) in order.

    Raises:
        ConnectionFault: the length is wrong, or a value is not permitted.
    """
    if len(payload) % 6:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a SETTINGS frame has a wrong length")
    settings = [(int(key), int(value)) for key, value in _setting.iter_unpack(payload)]
    for key, value in settings:
        if key == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "the initial window is too large")
        switch = key in (ENABLE_PUSH, ENABLE_CONNECT_PROTOCOL)
        if (switch and value > 1) or (key == MAX_FRAME_SIZE and not FRAME_BYTES <= value < 2**24):
            raise ConnectionFault(PROTOCOL_ERROR, "a setting has a value that is not permitted")
    return settings


def write_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Write one frame."""
    length = len(payload)
    return _head.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def write_settings(settings: list[tuple[int, int]]) -> bytes:
    """Write a SETTINGS frame."""
    return write_frame(SETTINGS, 0, 0, b"".join([_setting.pack(key, value) for key, value in settings]))


def write_headers(stream: int, block: bytes, *, ended: bool) -> bytes:
    """Write a field block as HEADERS and, where it is long, CONTINUATION."""
    flags = END_STREAM if ended else 0
    if len(block) <= FRAME_BYTES:
        return write_frame(HEADERS, flags | END_HEADERS, stream, block)
    pieces = [block[place : place + FRAME_BYTES] for place in range(0, len(block), FRAME_BYTES)]
    frames = [write_frame(HEADERS, flags, stream, pieces[0])]
    frames += [write_frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
    frames.append(write_frame(CONTINUATION, END_HEADERS, stream, pieces[-1]))
    return b"".join(frames)


def write_word(kind: int, stream: int, value: int) -> bytes:
    """Write a frame of one 32-bit number: WINDOW_UPDATE, RST_STREAM."""
    return write_frame(kind, 0, stream, _word.pack(value))


def write_goaway(last_stream: int, code: int) -> bytes:
    """Write a GOAWAY frame. Never with debug data: it would be free text towards a stranger."""
    return write_frame(GOAWAY, 0, 0, _word.pack(last_stream) + _word.pack(code))
