"""An asyncio event loop without a selector: virtual time, and connections that exist in memory only.

Timers are the only events. When nothing is ready the clock jumps to the next timer; when there is none left either,
whoever still waits would wait for ever, and that is an error. The network is asked for every connection. Callbacks run
in the order that asyncio promises; what its own loop does besides (a system call each turn, threads, debugging) is not
done here, because a simulation runs some hundred callbacks for each request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from simulation.clock import CLOCK

if TYPE_CHECKING:
    from simulation.network import Network


class Stuck(Exception):
    """Something waits for what can't come any more."""


_LATE_S = 1e-6
"""A system wakes nobody early; a sum of floating-point numbers would."""
_RESOLUTION_S = 1e-9
MOST_TURNS = 100_000
"""Of the loop at one time: far more than any schedule needs."""


class Call:
    """What `call_soon` and `call_at` return: as far as anybody uses it, asyncio's handle."""

    __slots__ = ("args", "callback", "context", "when_s")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, when_s: float) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.when_s = when_s

    def __repr__(self) -> str:
        return f"<Call of {self.callback} at {self.when_s}>"

    def cancel(self) -> None:
        """It will not run."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """Whether it will not."""
        return self.callback is None

    def when(self) -> float:
        """Virtual seconds."""
        return self.when_s


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one simulation.

    Attributes:
        network: what makes connections; set before the first one.
        problems: what the exception handler was told.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._count = 0
        self._turns = 0
        self._readers: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.network: Network
        self.problems: list[str] = []
        self.set_exception_handler(self._on_problem)

    # -- time --------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return CLOCK.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """As asyncio: behind all that is to run already."""
        call = Call(callback, args, context if context is not None else copy_context(), 0.0)
        self._queue.append(call)
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """As asyncio."""
        return self.call_at(CLOCK.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        """As asyncio; of timers for the same time, the one that was set first comes first."""
        call = Call(callback, args, context if context is not None else copy_context(), when)
        self._count += 1
        heappush(self._timers, (when, self._count, call))
        return call

    def _run_once(self) -> None:
        """Run until somebody says `stop`."""
        queue = self._queue
        while not self._stopping:  # type: ignore[attr-defined]
            if not queue:
                self._jump()
            self._turns += 1
            if self._turns > MOST_TURNS:
                self._turns = 0
                raise Stuck(f"the loop turns and turns without time: {self.next_up()}")
            self._take_due()
            for _ in range(len(queue)):
                call = queue.popleft()
                if call.callback is not None:
                    self._run(call)

    def _run(self, call: Call) -> None:
        try:
            call.context.run(call.callback, *call.args)  # type: ignore[arg-type]
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio: whoever failed, the others go on
            self.call_exception_handler({"message": f"exception in {call}", "exception": error})

    def _jump(self) -> None:
        """Let time pass until the next timer."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heappop(timers)
        if not timers:
            raise Stuck("nothing is ready and no timer is set")
        if timers[0][0] > CLOCK.now_s:
            CLOCK.now_s = timers[0][0] + _LATE_S
            self._turns = 0

    def _take_due(self) -> None:
        timers, until_s = self._timers, CLOCK.now_s + _RESOLUTION_S
        while timers and timers[0][0] < until_s:
            self._queue.append(heappop(timers)[2])

    def next_up(self) -> str:
        """Return what runs next, for whoever looks for what does not end."""
        return repr([*self._queue, *(call for _, _, call in self._timers)][:5])

    def close(self) -> None:
        """Forget what was to run."""
        self._queue.clear()
        self._timers.clear()
        super().close()

    def _on_problem(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")

    # -- connections -------------------------------------------------------------------------------------------------

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

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Say whom to call when a datagram has come."""
        self._readers[fd] = (callback, args)

    def remove_reader(self, fd: Any) -> bool:
        """Call nobody any more."""
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """A datagram has come."""
        if fd in self._readers:
            callback, args = self._readers[fd]
            self.call_soon(callback, *args)
