"""One end of the socket between the supervisor and a worker, on an event loop: messages in, messages out.

A `socketpair` of stream sockets that the worker inherits: there is no name by which anybody else could connect. That an
end is closed is how each side learns that the other one is gone; a message that can't be read counts as that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from seamgate.workers.messages import Broken, FrameReader, FromSupervisor, FromWorker, encode

log = structlog.get_logger("seamgate.workers")

CLOGGED_BYTES: Final = 8 * 1024 * 1024
"""How much may wait for the other side before it counts as one that does not follow."""


class Channel(asyncio.Protocol):
    """See the module.

    Attributes:
        clogged: whether the other side reads too slowly.
        closed: whether it is gone.
    """

    def __init__(self, on_message: Callable[[Any], None], on_closed: Callable[[], None], *, from_worker: bool) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._reader = FrameReader(from_worker=from_worker)
        self._transport: asyncio.WriteTransport | None = None
        self.clogged = False
        self.closed = False

    @classmethod
    async def open(
        cls, end: socket.socket, on_message: Callable[[Any], None], on_closed: Callable[[], None], *, from_worker: bool
    ) -> Channel:
        """Attach to one end of the socket; both functions are called in the loop."""
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        _, channel = await loop.create_unix_connection(
            lambda: cls(on_message, on_closed, from_worker=from_worker), sock=end
        )
        return channel

    @property
    def waiting_bytes(self) -> int:
        """How much was not taken by the other side yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: FromSupervisor | FromWorker) -> None:
        """Send it, or drop it if the other side is gone: `on_closed` says so."""
        if self._transport is not None and not self.closed:
            self._transport.write(encode(message))

    def close(self) -> None:
        """Send what waits, then close."""
        if self._transport is not None:
            self._transport.close()

    # -- as a protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """The socket is on the loop."""
        self._transport = transport
        transport.set_write_buffer_limits(high=CLOGGED_BYTES)

    def data_received(self, data: bytes) -> None:
        """A piece of the stream."""
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except Broken as error:
            log.error("the other process can't be understood", problem=error.message)
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.abort()

    def pause_writing(self) -> None:
        """The other side does not follow."""
        self.clogged = True

    def resume_writing(self) -> None:
        """It does again."""
        self.clogged = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone, or we closed."""
        self.closed = True
        self._on_closed()
