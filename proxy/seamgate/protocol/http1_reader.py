"""The reading side of one HTTP/1.1 connection: bytes in, events out. Sans-I/O.

Used twice per exchange: by the guest's connection for requests, by the upstream's session for responses.

    feed(data) ... next_event() -> head | bytes | Trailers | NEED_DATA

Events of one message: one head, any number of non-empty `bytes`, one `Trailers` (its end). Any split of the input
gives the same heads, the same joined body and the same verdict (a property test says so). Nothing is parsed beyond
the end of a message until `start_next` is called, so that a pipelined request is judged by itself.
"""

from __future__ import annotations

import re
from typing import Final

from seamgate.errors import GuestProtocolError, ProtocolError, Reason, UpstreamProtocolError
from seamgate.headers import any_named
from seamgate.protocol.coding import CODED_PIECE_BYTES
from seamgate.protocol.heads import CHUNKED, UNTIL_CLOSE, RequestHead, ResponseHead, Trailers
from seamgate.protocol.http1 import parse_request_head, parse_response_head, parse_trailers
from seamgate.protocol.whole import BODY_CODINGS
from seamgate.protocol.work import CHUNK, HEAD, HEAD_SHIFT, SHIFT, UNBOUNDED, long_head_units

MAX_HEAD_BYTES: Final = 65536
"""A whole head. nginx allows 4 x 8 KiB, Apache 8 KiB a line, Node 16 KiB; agents with long cookies need more."""
MAX_TRAILER_BYTES: Final = 16384
_MAX_CHUNK_LINE: Final = 300
_CODINGS: Final = frozenset(BODY_CODINGS)
# At most 15 hex digits, so that a size always fits; extensions (RFC 9112 7.1.1) are read over, never passed on.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\Z")

# What is read next: plain numbers, because each piece of a body asks for them.
_HEAD: Final = 0
_LENGTH: Final = 1
_CHUNK_LINE: Final = 2
_CHUNK_DATA: Final = 3
_CHUNK_END: Final = 4
_TRAILERS: Final = 5
_UNTIL_CLOSE: Final = 6
_DONE: Final = 7
_NAMES: Final = ("HEAD", "LENGTH", "CHUNK_LINE", "CHUNK_DATA", "CHUNK_END", "TRAILERS", "UNTIL_CLOSE", "DONE")


class _NeedData:
    """There is no whole event in what was fed so far."""

    def __repr__(self) -> str:
        return "NEED_DATA"


NEED_DATA: Final = _NeedData()


_NO_TRAILERS: Final = Trailers()

_OTHER_PROTOCOLS: Final = {
    b"\x16": "this is TLS, and the entry takes plain HTTP: the URL of the proxy begins with http://, not https://",
    b"\x04": "this is SOCKS4, and the entry takes HTTP: the URL of the proxy begins with http://",
    b"\x05": "this is SOCKS5, which has an entry of its own: the URL of this proxy begins with http://",
}
"""By the first byte, which is none of a method's. Source: RFC 8446 5.1 (handshake), SOCKS4 CONNECT, RFC 1928 3."""
Event = RequestHead | ResponseHead | bytes | Trailers | _NeedData


class MessageReader:
    """Common part of both directions. State: `_buffer` from `_position` on is unread; `_left` counts body bytes.

    Attributes:
        left: units of work (`protocol.work`) until nothing more should be asked for. Counted down by each event, to
            below 0 by a large one; the chunks of one event end with it.
        piece_bytes: the largest piece of a body that is given out, by a chunk.
    """

    def __init__(self, error: type[ProtocolError]) -> None:
        self.error = error
        self._buffer = b""
        self._position = 0
        self._scanned = 0
        self._left = 0
        self.left = UNBOUNDED
        self.piece_bytes = UNBOUNDED
        self._state: int = _HEAD

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {_NAMES[self._state]} unread={self.unread_bytes}>"

    @property
    def unread_bytes(self) -> int:
        """How much was fed and not given out."""
        return len(self._buffer) - self._position

    @property
    def between_messages(self) -> bool:
        """Whether no message is under way and nothing is buffered."""
        return (self._state == _HEAD or self._state == _DONE) and not self.unread_bytes

    @property
    def in_head(self) -> bool:
        """Whether a head is under way, or the next one's first byte is awaited."""
        return self._state == _HEAD

    @property
    def message_done(self) -> bool:
        """Whether the message's end was given out."""
        return self._state == _DONE

    @property
    def ends_here(self) -> bool:
        """Whether the next event is the end of a body that was given out whole: it needs no further bytes, or work."""
        return self._state == _LENGTH and self._left == 0

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection."""
        if self._position == len(self._buffer):
            self._buffer = data
        else:
            self._buffer = self._buffer[self._position :] + data
        self._scanned = max(0, self._scanned - self._position)
        self._position = 0

    def take_rest(self) -> bytes:
        """Return and forget what is unread."""
        rest = self._buffer[self._position :]
        self._buffer, self._position, self._scanned = b"", 0, 0
        return rest

    def start_next(self) -> None:
        """Begin the next message; only after the end of the present one."""
        if self._state != _DONE:
            raise RuntimeError("start_next within a message")
        self._state = _HEAD
        self._scanned = self._position

    def next_event(self) -> Event:
        """Return the next event, or NEED_DATA.

        Raises:
            ProtocolError: of this side; the connection can't be used any more.
        """
        state = self._state
        if state == _HEAD:
            return self._read_head()
        if state == _DONE:
            return NEED_DATA
        if state == _LENGTH:
            return self._read_length()
        if state == _UNTIL_CLOSE:
            return self._read_until_close()
        return self._read_chunked()

    def eof(self) -> Trailers | None:
        """The peer closed: return the end of a close-delimited message, None between messages.

        Raises:
            ProtocolError: the message was cut.
        """
        if self._state == _UNTIL_CLOSE:
            self._state = _DONE
            return _NO_TRAILERS
        if self.between_messages:
            return None
        raise self.error("the connection closed within a message", reason=self._cut_reason())

    def _cut_reason(self) -> Reason:
        raise NotImplementedError

    def _parse(self, head: bytes) -> RequestHead | ResponseHead:
        raise NotImplementedError

    def _begin_body(self, framing: int) -> None:
        if framing == CHUNKED:
            self._state = _CHUNK_LINE
        elif framing == UNTIL_CLOSE:
            self._state = _UNTIL_CLOSE
        else:
            self._left = framing
            self._state = _LENGTH

    def _too_large(self, what: str, limit_bytes: int) -> ProtocolError:
        reason = Reason.HEADERS_TOO_LARGE if self.error is GuestProtocolError else Reason.UPSTREAM_PROTOCOL
        return self.error(f"the {what} is longer than {limit_bytes} bytes", reason=reason)

    def _read_head(self) -> Event:
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", max(self._position, self._scanned - 3))
        if end < 0:
            self._scanned = len(buffer)
            self._refuse_early()
            return NEED_DATA
        end += 4
        if end - self._position > MAX_HEAD_BYTES:
            raise self._too_large("head", MAX_HEAD_BYTES)
        head = buffer[self._position : end]
        self._position = end
        self.left -= HEAD + (long_head_units(head) if len(head) >> HEAD_SHIFT else 0)
        return self._parse(head)

    def _refuse_early(self) -> None:
        """Don't wait for the rest of something that can't become a head: too long, or a bare LF anywhere."""
        if self.unread_bytes > MAX_HEAD_BYTES:
            raise self._too_large("head", MAX_HEAD_BYTES)
        line_end = self._buffer.find(b"\n", self._position)
        if line_end == self._position or (line_end > 0 and self._buffer[line_end - 1] != 0x0D):
            raise self.error("a line ends with a bare LF")

    def _read_length(self) -> Event:
        if self._left == 0:
            self._state = _DONE
            return _NO_TRAILERS
        available = len(self._buffer) - self._position
        if available == 0:
            return NEED_DATA
        size = min(self._left, self.piece_bytes)
        self.left -= CHUNK + (min(available, size) >> SHIFT)
        if available <= size:
            self._left -= available
            return self.take_rest() if self._position else self._take_all()
        data = self._buffer[self._position : self._position + size]
        self._position += size
        self._left -= size
        return data

    def _read_until_close(self) -> Event:
        available = len(self._buffer) - self._position
        if not available:
            return NEED_DATA  # which costs nothing: a turn for it would never end
        self.left -= CHUNK + (min(available, self.piece_bytes) >> SHIFT)
        if available <= self.piece_bytes:
            return self.take_rest()
        data = self._buffer[self._position : self._position + self.piece_bytes]
        self._position += self.piece_bytes
        return data

    def _take_all(self) -> bytes:
        data = self._buffer
        self._buffer, self._scanned = b"", 0
        return data

    def _read_chunked(self) -> Event:
        """Give out the chunk data that is here as one piece; the loop is bounded by the buffer, and by `left`."""
        pieces: list[bytes] = []
        given = 0
        while True:
            state = self._state
            if state == _CHUNK_DATA:
                if not self._chunk_data(pieces):
                    break
                given += len(pieces[-1])
                if given >= self.piece_bytes:
                    break
            elif state == _CHUNK_LINE:
                if not self._chunk_line():
                    break
            elif state == _CHUNK_END:
                if not self._chunk_end():
                    break
            else:
                break
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return self._read_trailers() if self._state == _TRAILERS else NEED_DATA

    def _chunk_line(self) -> bool:
        end = self._buffer.find(b"\r\n", self._position, self._position + _MAX_CHUNK_LINE)
        if end < 0:
            if self.unread_bytes >= _MAX_CHUNK_LINE:
                raise self.error("a chunk's size line is too long")
            line = self._buffer[self._position :]
            if b"\n" in line:
                raise self.error("a chunk's size line ends with a bare LF")
            return False
        match = _SIZE_LINE.match(self._buffer[self._position : end])
        if match is None:
            raise self.error("a chunk's size line is malformed")
        self._left = int(match.group(1), 16)
        self._position = end + 2
        self._state = _CHUNK_DATA if self._left else _TRAILERS
        return self._left > 0

    def _chunk_data(self, pieces: list[bytes]) -> bool:
        data = self._buffer[self._position : self._position + min(self._left, self.piece_bytes)]
        if not data:
            return False
        pieces.append(data)
        self._position += len(data)
        self._left -= len(data)
        self.left -= CHUNK + (len(data) >> SHIFT)
        if self._left:
            return False
        self._state = _CHUNK_END
        return self.left > 0

    def _chunk_end(self) -> bool:
        end = self._buffer[self._position : self._position + 2]
        if end != b"\r\n":
            if b"\r\n".startswith(end):
                return False
            raise self.error("a chunk is longer than its size")
        self._position += 2
        self._state = _CHUNK_LINE
        return True

    def _read_trailers(self) -> Event:
        buffer, start = self._buffer, self._position
        if buffer[start : start + 2] == b"\r\n":
            self._position += 2
            self._state = _DONE
            return _NO_TRAILERS
        end = buffer.find(b"\r\n\r\n", start)
        if end < 0:
            if self.unread_bytes > MAX_TRAILER_BYTES:
                raise self._too_large("trailer section", MAX_TRAILER_BYTES)
            return NEED_DATA
        end += 4
        if end - start > MAX_TRAILER_BYTES:
            raise self._too_large("trailer section", MAX_TRAILER_BYTES)
        trailers = parse_trailers(buffer[start:end], self.error)
        self._position = end
        self._state = _DONE
        return Trailers(trailers)


class RequestReader(MessageReader):
    """Reads requests."""

    def __init__(self) -> None:
        super().__init__(GuestProtocolError)

    def _cut_reason(self) -> Reason:
        return Reason.GUEST_GONE

    def _refuse_early(self) -> None:
        """Say at once what is spoken here instead of HTTP: asked only where a head is not whole yet."""
        other = _OTHER_PROTOCOLS.get(self._buffer[self._position : self._position + 1])
        if other is not None:
            raise self.error(other)
        super()._refuse_early()

    def _parse(self, head: bytes) -> RequestHead:
        parsed = parse_request_head(head)
        coded = parsed.body != 0 and any_named(parsed.headers, _CODINGS)
        self.piece_bytes = CODED_PIECE_BYTES if coded else UNBOUNDED
        self._begin_body(parsed.body)
        return parsed


class ResponseReader(MessageReader):
    """Reads responses. `expect(method)` says which request the next response answers."""

    def __init__(self) -> None:
        super().__init__(UpstreamProtocolError)
        self._method = ""

    def expect(self, method: str) -> None:
        """The next response answers a request with this method."""
        self._method = method
        if self._state == _DONE:
            self.start_next()

    def _cut_reason(self) -> Reason:
        return Reason.UPSTREAM_CLOSED

    def _parse(self, head: bytes) -> ResponseHead:
        self.piece_bytes = UNBOUNDED  # whoever decodes it says so when there is a head
        parsed = parse_response_head(head, self._method)
        if parsed.status >= 200:
            self._begin_body(parsed.body)
        else:
            self._scanned = self._position
        return parsed
