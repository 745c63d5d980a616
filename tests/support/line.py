"""A connection as a test holds it: everything that came is kept, everything waits for an event, any kind of end.

Used for both ends: by fake upstreams for what the gateway sends them, by raw clients for what it answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Any


class Cut(Exception):
    """The peer ended, or was gone, before what was waited for had come."""


class Line(asyncio.Protocol):
    """One connection.

    Attributes:
        received: all that came, unless `keeps` is False.
        received_bytes: how much came.
        ended: whether the peer sent its end (FIN; for TLS close_notify as far as asyncio tells).
        lost: whether the connection is over, and `error` why.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self.keeps = keeps
        self.received = bytearray()
        self.received_bytes = 0
        self.ended = False
        self.lost = False
        self.error: Exception | None = None
        self.transport: asyncio.Transport | None = None
        self._read = 0
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def __repr__(self) -> str:
        return f"<Line got={bytes(self.received[-200:])!r} ended={self.ended} lost={self.lost}>"

    # -- as a protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self.keeps:
            self.received += data
        self._changed.set()

    def eof_received(self) -> bool:
        self.ended = True
        self._changed.set()
        return self.transport is not None and self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.error = True, exc
        self._changed.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def changed(self) -> None:
        """Return when something came, or the end."""
        self._changed.clear()
        await self._changed.wait()

    @property
    def unread(self) -> bytes:
        """What came and was not taken."""
        return bytes(self.received[self._read :])

    def take(self, size: int) -> bytes:
        """Take what is there, up to this size."""
        data = bytes(self.received[self._read : self._read + size])
        self._read += len(data)
        return data

    async def some(self) -> bytes:
        """Return the next bytes; b"" at the peer's end. Raises Cut if the connection broke."""
        while not self.unread:
            if self.ended:
                return b""
            if self.lost:
                raise Cut(f"lost: {self.error!r}")
            await self.changed()
        return self.take(len(self.received))

    async def exactly(self, size: int) -> bytes:
        """Return so many bytes."""
        while len(self.unread) < size:
            self._still_open()
            await self.changed()
        return self.take(size)

    async def until(self, mark: bytes) -> bytes:
        """Return everything up to and including the mark."""
        while (place := self.received.find(mark, self._read)) < 0:
            self._still_open()
            await self.changed()
        return self.take(place + len(mark) - self._read)

    async def head(self) -> bytes:
        """Return a message's head."""
        return await self.until(b"\r\n\r\n")

    async def request(self) -> tuple[bytes, bytes]:
        """Return head and body of a request with a Content-Length, or none."""
        head = await self.head()
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                return head, await self.exactly(int(value))
        return head, b""

    async def seen(self, mark: bytes) -> None:
        """Return once this came; takes nothing from whoever reads."""
        while mark not in self.received:
            self._still_open()
            await self.changed()

    async def end(self) -> bytes:
        """Wait until the peer ended; return what was not taken. Raises nothing: see `error` for how it ended."""
        while not (self.ended or self.lost):
            await self.changed()
        return self.take(len(self.received))

    def _still_open(self) -> None:
        if self.ended or self.lost:
            raise Cut(f"ended after {self.unread[-300:]!r} ({self.error!r})")

    # -- writing -----------------------------------------------------------------------------------------------------

    async def send(self, *pieces: bytes) -> None:
        """Write the pieces one by one, each given to the socket before the next."""
        for piece in pieces:
            assert self.transport is not None
            self.transport.write(piece)
            await self._writable.wait()
            await asyncio.sleep(0)

    def hold(self) -> None:
        """Stop reading: the peer's window fills."""
        assert self.transport is not None
        self.transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        assert self.transport is not None
        self.transport.resume_reading()

    # -- ends --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End cleanly: close_notify if it is TLS, FIN."""
        if self.transport is not None:
            self.transport.close()

    def cut(self) -> None:
        """FIN without close_notify: for TLS a cut, for plain TCP an end."""
        with self._socket() as raw:
            raw.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """RST."""
        with self._socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert self.transport is not None
        self.transport.abort()

    def _socket(self) -> socket.socket:
        assert self.transport is not None
        return socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
