"""An opener for the session pool that a test holds in its hand: real `Session`s over transports that only remember."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from seamgate.flow import Target
from seamgate.upstream.session import Session


class MemoryTransport:
    """A transport that keeps what was written, and tells its protocol when it is closed, one turn later."""

    def __init__(self, protocol: Session) -> None:
        self.protocol = protocol
        self.written = b""
        self.buffered = 0
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Opening:
    """A connection that is under way: `finish` or `fail` it."""

    def __init__(self, target: Target, addresses: tuple[str, ...]) -> None:
        self.target = target
        self.addresses = addresses
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def finish(self, address: str = "") -> None:
        """The connection is there, to this address."""
        if not self.done.done():
            self.done.set_result(address or self.addresses[0])

    def fail(self, error: Exception) -> None:
        """The connection could not be made."""
        if not self.done.done():
            self.done.set_exception(error)


class HeldOpener:
    """See the module.

    Attributes:
        under_way: connections that wait for the test.
        open: sessions that were made and are not closed, with their target.
        dies_at_once: whether the upstream closes each connection before the pool hears of it.
    """

    def __init__(self) -> None:
        self.under_way: list[Opening] = []
        self.made: list[tuple[Target, Session]] = []
        self.dies_at_once = False

    @property
    def open(self) -> list[Session]:
        """Sessions whose transport is not closed."""
        return [session for _, session in self.made if not _transport(session).closing]

    def profile_for(self, target: Target) -> None:
        return None

    async def connect(
        self,
        target: Target,
        addresses: tuple[str, ...],
        on_idle: Callable[[Session], None],
        on_gone: Callable[[Session], None],
    ) -> Session:
        opening = Opening(target, addresses)
        self.under_way.append(opening)
        try:
            address = await opening.done
        finally:
            self.under_way.remove(opening)
        session = Session(address, on_idle, on_gone)
        session.connection_made(MemoryTransport(session))
        self.made.append((target, session))
        if self.dies_at_once:
            lose(session)
        return session


def _transport(session: Session) -> MemoryTransport:
    transport: Any = session.transport
    assert isinstance(transport, MemoryTransport)
    return transport


def lose(session: Session) -> None:
    """The upstream closes this session's connection."""
    _transport(session).closing = True
    session.connection_lost(None)
