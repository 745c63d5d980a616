"""Streams in memory: two protocols joined without a socket, in the test's own loop.

Each side gets a transport with the surface of `seamgate.streams.Transport`; what one writes, the other receives in the
next turn of the loop, in pieces of any size that a test asks for. Flow control is real: a side that pauses its reading
stops the other's writing. Used by `seamgate.testing.send`, and by tests that talk to an entry or a session directly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from seamgate.streams import Receiver

WRITE_HIGH_BYTES = 64 * 1024
"""How much waits for the other side before the writer is told to pause."""


class MemoryStream:
    """One end of a stream in memory. Made by `join`.

    Attributes:
        sent: everything that was written on this end.
    """

    def __init__(self, above: Receiver, piece_bytes: int) -> None:
        self.sent = bytearray()
        self._above = above
        self._piece_bytes = piece_bytes
        self._peer: MemoryStream
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._ended = False  # the peer sends no more
        self._closing = False
        self._lost = False
        self._reading = True
        self._scheduled = False
        self._told_to_pause = False

    def __repr__(self) -> str:
        return f"<MemoryStream of {self._above!r}{' closing' if self._closing else ''}>"

    def write(self, data: bytes) -> None:
        """Queue bytes for the other end."""
        if self._closing or not data:
            return
        self.sent += data
        self._peer._take(bytes(data))
        if self.get_write_buffer_size() > WRITE_HIGH_BYTES and not self._told_to_pause:
            self._told_to_pause = True
            self._above.pause_writing()

    def write_eof(self) -> None:
        """Send no more; still read."""
        self._peer._ended = True
        self._peer._wake()

    def pause_reading(self) -> None:
        """Stop calling `data_received`."""
        self._reading = False

    def resume_reading(self) -> None:
        """Call `data_received` again."""
        self._reading = True
        self._wake()

    def close(self) -> None:
        """Let the other end have what is queued, then close both."""
        if not self._closing:
            self._closing = True
            self._peer._ended = True
            self._peer._wake()
            asyncio.get_running_loop().call_soon(self._lose, None)

    def abort(self) -> None:
        """Close both ends at once."""
        self._closing = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._lose, None)
        loop.call_soon(self._peer._lose, ConnectionResetError("the other end aborted"))

    def is_closing(self) -> bool:
        """Whether this end is closed, or the other one is gone."""
        return self._closing or self._lost

    def get_write_buffer_size(self) -> int:
        """How many bytes the other end has not received."""
        return self._peer._inbox_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limit is `WRITE_HIGH_BYTES`."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `default`: there is no socket to ask."""
        return default

    def _take(self, data: bytes) -> None:
        size = self._piece_bytes or len(data)
        self._inbox.extend(data[start : start + size] for start in range(0, len(data), size))
        self._inbox_bytes += len(data)
        self._wake()

    def _wake(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        """Give one piece to the protocol above; the next one in the next turn of the loop."""
        self._scheduled = False
        if self._lost or not self._reading:
            return
        if self._inbox:
            piece = self._inbox.popleft()
            self._inbox_bytes -= len(piece)
            if not self._closing:
                self._above.data_received(piece)
            if self._peer._told_to_pause and self._inbox_bytes <= WRITE_HIGH_BYTES // 4:
                self._peer._told_to_pause = False
                self._peer._above.resume_writing()
        if self._inbox:
            self._wake()
        elif self._ended and not self._closing:
            self._ended = False
            if not self._above.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._above.connection_lost(error)


def join(one: Receiver, other: Receiver, *, piece_bytes: int = 0) -> tuple[MemoryStream, MemoryStream]:
    """Join two protocols; each gets `connection_made` with its end, the second one first. Needs a running loop.

    Args:
        one, other: `asyncio.Protocol`s by shape.
        piece_bytes: the most that either receives at once; 0: as it was written.

    Returns:
        The ends of `one` and of `other`.
    """
    first, second = MemoryStream(one, piece_bytes), MemoryStream(other, piece_bytes)
    first._peer, second._peer = second, first
    other.connection_made(second)
    one.connection_made(first)
    return first, second
