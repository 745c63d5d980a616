"""WebSocket frames: strict reading into whole messages, and writing them from the model. Sans-I/O.

Called by `seamgate.websocket_exchange`, once for each side. A message is given out when it is whole, without mask,
fragmentation and compression, and is written anew for the other side: what was judged is what goes on, byte for byte.
It never repairs. The handshake is in `protocol.websocket_handshake`.

    feed(data) ... next_event() -> Message | Ping | Pong | Close | None

Why a parser of our own: `wsproto` gives out frames rather than messages, bounds neither their size nor what they
inflate to, and keeps a compressor per connection. It and `websockets` are the oracles of the property tests.

Stricter than RFC 6455 (where it says "may"): lengths in their shortest form only, nothing after a Close is read.
Source: RFC 6455 5 and 7.4, RFC 7692 7.2.
"""

from __future__ import annotations

import os
import zlib
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from seamgate.protocol.coding import GRACE_BYTES, MAX_RATIO, MAX_REQUEST_RATIO
from seamgate.protocol.work import MESSAGE, MESSAGE_SHIFT, SHIFT, UNBOUNDED

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_OPCODES: Final = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))
_FIN, _RSV1, _RSV23, _MASKED = 0x80, 0x40, 0x30, 0x80
_MOST_CONTROL_BYTES: Final = 125
_DEFLATE_TAIL: Final = b"\x00\x00\xff\xff"
_BY_TABLE_BYTES: Final = 512
_XOR: Final = tuple(bytes(left ^ right for left in range(256)) for right in range(256))
_DEFLATE_LEAST_BYTES: Final = 128
"""Shorter messages are not worth compressing."""


class CloseCode(IntEnum):
    """Codes that are used here (RFC 6455 7.4.1); not those that came later, which some clients refuse."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NO_CODE = 1005
    """Never sent: the Close had none."""
    NOT_UTF8 = 1007
    POLICY = 1008
    TOO_LARGE = 1009
    INTERNAL = 1011


class FrameError(Exception):
    """What came breaks the protocol or a limit; nothing that follows is to be read.

    Attributes:
        code: to close with.
        message: a sentence for people.
    """

    def __init__(self, message: str, code: CloseCode = CloseCode.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Message(msgspec.Struct, frozen=True):
    """A whole message: without mask, fragments and compression. Text is valid UTF-8."""

    data: bytes
    text: bool


class Ping(msgspec.Struct, frozen=True):
    """A ping with its payload."""

    data: bytes


class Pong(msgspec.Struct, frozen=True):
    """A pong with its payload."""

    data: bytes


class Close(msgspec.Struct, frozen=True):
    """The end of what this side sends. `code` is NO_CODE if it had none."""

    code: int = CloseCode.NO_CODE
    reason: str = ""


Event: TypeAlias = Message | Ping | Pong | Close


class Deflate(msgspec.Struct, frozen=True):
    """What was agreed to of permessage-deflate, for one side (RFC 7692).

    Attributes:
        takeover: whether the peer's messages may refer to those before.
        window_bits: 9 to 15: the window that the peer has for what we send. We never refer to messages before.
    """

    takeover: bool = False
    window_bits: int = 15


class FrameReader:
    """Reads one side's frames. State: `_kind` and `_pieces` are the message under way, 0 between messages.

    Args:
        masked: whether the frames have to be masked (a client's) or must not be (a server's).
        deflate: what was agreed to, None for no compression.
        limit_bytes: longest message, as sent and inflated; inflated, it is at most as many times longer as a body may
            be (`protocol.coding`).

    Attributes:
        left: units of work (`protocol.work`) until nothing more is given out; counted down by each frame.
    """

    def __init__(self, *, masked: bool, deflate: Deflate | None, limit_bytes: int) -> None:
        self._masked = masked
        self._deflate = deflate
        self._limit_bytes = limit_bytes
        self._max_ratio = MAX_REQUEST_RATIO if masked else MAX_RATIO
        self._buffer = bytearray()
        self._need_bytes = 2
        self.left = UNBOUNDED
        self._kind = 0
        self._compressed = False
        self._message = bytearray()
        self._closed = False
        self._inflater = zlib.decompressobj(-15) if deflate is not None and deflate.takeover else None

    def __repr__(self) -> str:
        return f"<FrameReader unread={len(self._buffer)} message={len(self._message)}>"

    @property
    def held_bytes(self) -> int:
        """How much of a message that is not whole is here."""
        return len(self._buffer) + len(self._message)

    def feed(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data

    def next_event(self) -> Event | None:
        """Return what came next, or None while it is not whole, after a Close, and once nothing is `left`.

        Raises:
            FrameError: what came can't be read; call neither method again.
        """
        while self.left > 0 and not self._closed and len(self._buffer) >= self._need_bytes:
            event = self._read_frame()
            if event is not None:
                return event
        return None

    def _read_frame(self) -> Event | None:
        """Read one frame if it is whole; say how much is needed if not."""
        buffer = self._buffer
        first, second = buffer[0], buffer[1]
        opcode = first & 0x0F
        self._check_first(first, opcode)
        if bool(second & _MASKED) != self._masked:
            raise FrameError("a frame is not masked" if self._masked else "a frame is masked")
        start = 2 + (4 if self._masked else 0)
        size = second & 0x7F
        if opcode & 0x8 and (size > _MOST_CONTROL_BYTES or not first & _FIN):
            raise FrameError("a control frame is too long or in fragments")
        if size > _MOST_CONTROL_BYTES:
            width = 2 if size == 126 else 8
            start += width
            if len(buffer) < start:
                self._need_bytes = start
                return None
            size = int.from_bytes(buffer[2 : 2 + width], "big")
            if size < (126 if width == 2 else 65536):
                raise FrameError("a frame's length is not in its shortest form")
        if not opcode & 0x8 and size + len(self._message) > self._limit_bytes:
            raise FrameError(f"a message is longer than {self._limit_bytes} bytes", CloseCode.TOO_LARGE)
        if len(buffer) < start + size:
            self._need_bytes = start + size
            return None
        payload = bytes(buffer[start : start + size])
        if self._masked:
            payload = apply_mask(payload, bytes(buffer[start - 4 : start]))
        del buffer[: start + size]
        self.left -= MESSAGE + (size >> SHIFT)
        self._need_bytes = 2
        return self._control(opcode, payload) if opcode & 0x8 else self._data(first, opcode, payload)

    def _check_first(self, first: int, opcode: int) -> None:
        if opcode not in _OPCODES:
            raise FrameError(f"the opcode {opcode:#x} is reserved")
        if first & _RSV23:
            raise FrameError("a reserved bit is set")
        if first & _RSV1 and (self._deflate is None or opcode not in (TEXT, BINARY)):
            raise FrameError("a frame is marked as compressed where none may be")
        if opcode in (TEXT, BINARY) and self._kind:
            raise FrameError("a message begins within another")
        if opcode == CONTINUATION and not self._kind:
            raise FrameError("there is no message to continue")

    def _data(self, first: int, opcode: int, payload: bytes) -> Message | None:
        if opcode != CONTINUATION:
            self._kind = opcode
            self._compressed = bool(first & _RSV1)
        if first & _FIN and not self._message:
            data = payload
        else:
            self._message += payload
            if not first & _FIN:
                return None
            data = bytes(self._message)
            self._message = bytearray()
        text = self._kind == TEXT
        self._kind = 0
        if self._compressed:
            data = self._inflate(data)
        self.left -= len(data) >> MESSAGE_SHIFT
        if text and not is_utf8(data):
            raise FrameError("a text message is not UTF-8", CloseCode.NOT_UTF8)
        return Message(data, text)

    def _inflate(self, data: bytes) -> bytes:
        """Decompress a whole message, never further than one byte beyond what it may hold."""
        inflater = self._inflater if self._inflater is not None else zlib.decompressobj(-15)
        most = min(self._limit_bytes, GRACE_BYTES + self._max_ratio * len(data)) + 1
        try:
            plain = inflater.decompress(data + _DEFLATE_TAIL, most)
        except zlib.error:
            raise FrameError("a compressed message is broken", CloseCode.NOT_UTF8) from None
        if len(plain) >= most or inflater.unconsumed_tail:
            if most > self._limit_bytes:
                raise FrameError(f"a message is longer than {self._limit_bytes} bytes", CloseCode.TOO_LARGE)
            raise FrameError(f"a message unpacks to more than {self._max_ratio} times its size", CloseCode.TOO_LARGE)
        if inflater.eof:
            # A block with BFINAL ends the stream (RFC 7692 7.2.3.4): what follows begins anew.
            if inflater.unused_data not in (_DEFLATE_TAIL, b"\0" + _DEFLATE_TAIL):
                raise FrameError("there is something after a compressed message's end", CloseCode.NOT_UTF8)
            if self._inflater is not None:
                self._inflater = zlib.decompressobj(-15)
        return plain

    def _control(self, opcode: int, payload: bytes) -> Event:
        if opcode == PING:
            return Ping(payload)
        if opcode == PONG:
            return Pong(payload)
        self._closed = True
        return parse_close(payload)


def parse_close(payload: bytes) -> Close:
    """Read the payload of a Close frame.

    Raises:
        FrameError: the code may not be sent, or the reason is not UTF-8.
    """
    if not payload:
        return Close()
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not is_close_code(code):
        raise FrameError("the code of a Close is not one that may be sent")
    try:
        return Close(code, payload[2:].decode("utf-8"))
    except UnicodeDecodeError:
        raise FrameError("the reason of a Close is not UTF-8", CloseCode.NOT_UTF8) from None


def is_close_code(code: int) -> bool:
    """Whether an endpoint may send this code (RFC 6455 7.4, IANA registry)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def is_utf8(data: bytes) -> bool:
    """Whether the data is valid UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def apply_mask(data: bytes, key: bytes) -> bytes:
    """Mask or unmask: little as one number, much by a table for each byte of the key (each is faster there)."""
    size = len(data)
    if size >= _BY_TABLE_BYTES:
        masked = bytearray(data)
        for place in range(4):
            masked[place::4] = masked[place::4].translate(_XOR[key[place]])
        return bytes(masked)
    keys = key * (size // 4) + key[: size % 4]
    return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(size, "little")


class FrameWriter:
    """Writes whole messages as one frame each.

    Args:
        masked: whether to mask, each frame with a key of its own (to servers).
        deflate: what was agreed to, None for no compression.
    """

    def __init__(self, *, masked: bool, deflate: Deflate | None) -> None:
        self._masked = masked
        self._deflate = deflate

    def message(self, message: Message) -> bytes:
        """Write a message."""
        data, first = message.data, TEXT if message.text else BINARY
        if self._deflate is not None and len(data) >= _DEFLATE_LEAST_BYTES:
            compressor = zlib.compressobj(1, zlib.DEFLATED, -self._deflate.window_bits, 8)
            data = compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)
            data = data.removesuffix(_DEFLATE_TAIL)
            first |= _RSV1
        return self._frame(first, data)

    def ping(self, data: bytes) -> bytes:
        """Write a ping; at most 125 bytes."""
        return self._frame(PING, data)

    def pong(self, data: bytes) -> bytes:
        """Write a pong; at most 125 bytes."""
        return self._frame(PONG, data)

    def close(self, close: Close) -> bytes:
        """Write a Close; a reason that is too long is cut."""
        if close.code == CloseCode.NO_CODE:
            return self._frame(CLOSE, b"")
        reason = close.reason.encode("utf-8")[: _MOST_CONTROL_BYTES - 2].decode("utf-8", "ignore")
        return self._frame(CLOSE, close.code.to_bytes(2, "big") + reason.encode("utf-8"))

    def _frame(self, first: int, payload: bytes) -> bytes:
        size = len(payload)
        mark = _MASKED if self._masked else 0
        if size <= _MOST_CONTROL_BYTES:
            head = bytes((first | _FIN, mark | size))
        elif size < 65536:
            head = bytes((first | _FIN, mark | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((first | _FIN, mark | 127)) + size.to_bytes(8, "big")
        if not self._masked:
            return head + payload
        key = os.urandom(4)
        return head + key + apply_mask(payload, key)
