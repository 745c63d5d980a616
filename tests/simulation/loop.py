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


_LATE_S = 1e-6
"""A system wakes nobody early; a sum of floating-point numbers would."""
MOST_TURNS = 100_000
"""Of the loop at one time: far more than any schedule needs."""


class _NoSelector:
    """Stands where asyncio waits for sockets: lets virtual time pass instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        """Jump to the next timer."""
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        if timeout > 0:
            CLOCK.advance(timeout + _LATE_S)
            self._turns = 0
        self._turns += 1
        if self._turns > MOST_TURNS:
            self._turns = 0
            raise Stuck(f"the loop turns and turns without time: {self._loop.next_up()}")
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
        self._selector = _NoSelector(self)
        self.network: Network
        self.problems: list[str] = []
        self.set_exception_handler(self._on_problem)

    def time(self) -> float:
        """Virtual seconds."""
        return CLOCK.now_s

    def next_up(self) -> str:
        """Return what runs next, for whoever looks for what does not end."""
        return repr([*self._ready, *self._scheduled][:5])  # type: ignore[attr-defined]

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
