"""An asyncio event loop without a selector: virtual time, and connections that exist in memory only.

Timers are the only events. When nothing is ready the clock jumps to the next timer; when there is none left either,
whoever still waits would wait for ever, and that is an error. The network is asked for every connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulation.clock import CLOCK

if TYPE_CHECKING:
    from simulation.network import Network


class Stuck(Exception):
    """Something waits for what can't come any more."""


class _NoSelector:
    """Stands where asyncio waits for sockets: lets virtual time pass instead."""

    def select(self, timeout: float | None) -> list[Any]:
        """Jump to the next timer."""
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        if timeout > 0:
            CLOCK.advance(timeout)
        return []

    def close(self) -> None:
        """Nothing to close."""


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one simulation.

    Attributes:
        network: what makes connections; set before the first one.
        problems: what the exception handler was told.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = 1e-9
        self._selector = _NoSelector()
        self.network: Network
        self.problems: list[str] = []
        self.set_exception_handler(self._on_problem)

    def time(self) -> float:
        """Virtual seconds."""
        return CLOCK.now_s

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing sleeps, so nothing has to be woken."""

    def _on_problem(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        """Connect to whoever listens there, as the network has it."""
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> Any:
        """Listen."""
        return self.network.listen(protocol_factory, host, port)

    async def create_datagram_endpoint(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], remote_addr: tuple[str, int], **_: Any
    ) -> tuple[Any, Any]:
        """Open a connected UDP socket."""
        return self.network.datagrams(protocol_factory, remote_addr)
