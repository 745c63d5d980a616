"""Guests of a pool that wait for long: what becomes of them without anybody's asking.

A worker gives pages back and parks by itself (`worker.py`, `idle.py`), which a guest does not notice and its streams
outlive. From there on it is the pool's: a guest that only a time or a signal can wake is moved to disk, and is back in
time. To the guest that is a long sleep and nothing else: its clocks and its time limits go on. `pool.py` makes one.
Runs on: the event loop.
"""

import asyncio
import signal
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from seamgate_vmm.errors import HibernationError
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.outcome import Reason
from seamgate_vmm.pooled import PooledGuest, Rest

CAUSE = "idle"


class _Pool(Protocol):
    async def hibernate(self, guest: PooledGuest, *, cause: str = "") -> int: ...

    async def resume(self, guest: PooledGuest, *, cause: str = "") -> None: ...


class _Sleep:
    """One guest that its worker has parked by itself."""

    def __init__(self, until: float | None) -> None:
        self.until = until  # when it goes on by itself, by time.monotonic()
        self.timer: asyncio.TimerHandle | None = None  # for the next step
        self.is_moving = False
        self.signals: list[signal.Signals] = []  # that came while it moved, or woke it


class Sleepers:
    """The guests of a pool that are parked or hibernated by policy."""

    def __init__(self, pool: _Pool, policy: IdlePolicy) -> None:
        self._pool, self._policy = pool, policy
        self._sleeps: dict[int, _Sleep] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sleeps)

    def parked(self, guest: PooledGuest, waited_s: float, wait_s: float | None, *, reads: bool = False) -> None:
        """A worker says that a guest is parked.

        waited_s: for how long it has waited. wait_s: when it goes on by itself; None: when woken. reads: standard input
        may wake it.
        """
        sleep = self._sleeps.setdefault(guest.number, _Sleep(None))
        sleep.until = None if wait_s is None else time.monotonic() + wait_s
        if self._policy.hibernate_s and not (reads or sleep.is_moving):
            self._later(sleep, max(0.0, self._policy.hibernate_s - waited_s), guest, self._consider)

    def awake(self, guest: PooledGuest) -> None:
        """A worker says that it goes on; or it is over."""
        sleep = self._sleeps.get(guest.number)
        if sleep is not None and not (sleep.is_moving and not guest.is_over):
            self._forget(guest.number)

    def take_signal(self, guest: PooledGuest, number: signal.Signals) -> bool:
        """Keep a signal for a guest that is on its way to disk or there, and wake it; False: it can take it itself."""
        sleep = self._sleeps.get(guest.number)
        if sleep is None or not (sleep.is_moving or guest.rest is Rest.HIBERNATED):
            return False
        sleep.signals.append(number)
        if not sleep.is_moving:
            self._start(self._wake(guest, sleep))
        return True

    async def close(self) -> None:
        """Do nothing any more."""
        for number in list(self._sleeps):
            self._forget(number)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, number: int) -> None:
        sleep = self._sleeps.pop(number, None)
        if sleep is not None and sleep.timer is not None:
            sleep.timer.cancel()

    def _later(self, sleep: _Sleep, after_s: float, guest: PooledGuest, what: Any) -> None:
        if sleep.timer is not None:
            sleep.timer.cancel()
        sleep.timer = asyncio.get_running_loop().call_later(after_s, what, guest, sleep)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _consider(self, guest: PooledGuest, sleep: _Sleep) -> None:
        """Hibernate it, if nobody but time or a signal can want it back, and not soon."""
        soon = sleep.until is not None and sleep.until - time.monotonic() < self._policy.hibernate_s
        is_free = guest.rest is Rest.RUNNING and not (guest.is_over or guest.is_asked)
        if is_free and not soon and not guest.server.stream_count:
            sleep.is_moving = True
            self._start(self._hibernate(guest, sleep))

    async def _hibernate(self, guest: PooledGuest, sleep: _Sleep) -> None:
        try:
            await self._pool.hibernate(guest, cause=CAUSE)
        except HibernationError:
            pass  # it goes on where it is, with the signals that came meanwhile
        sleep.is_moving = False
        if guest.is_over or guest.rest is not Rest.HIBERNATED:
            self._forget(guest.number)
            for number in sleep.signals:
                guest.signal(number)
            return
        due = [] if sleep.until is None else [sleep.until - time.monotonic()]
        if guest.limits.wall_s:
            due.append(guest.limits.wall_s - guest.age_s)
        if sleep.signals:
            await self._wake(guest, sleep)
        elif due:
            self._later(sleep, max(0.0, min(due)), guest, lambda g, s: self._start(self._wake(g, s)))

    async def _wake(self, guest: PooledGuest, sleep: _Sleep) -> None:
        sleep.is_moving = True
        try:
            if guest.rest is Rest.HIBERNATED and not guest.is_over:
                await self._pool.resume(guest, cause=CAUSE)
        except HibernationError as error:
            if not guest.is_over:  # nobody asked for its being there, so nobody would miss it
                guest.stop(Reason.NOT_RESUMED, str(error))
        self._forget(guest.number)
        for number in sleep.signals:
            guest.signal(number)
