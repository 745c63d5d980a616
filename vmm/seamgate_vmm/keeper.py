"""Keeps so many machines warm in a pool, whatever is started and ends: makes new ones, and gives back what is too much.

Looks once a second, so that a burst of starts has the processors for itself. Workers without a guest are ended once
their machines have been too many for a minute. Made by `pool.py`.
Runs on: the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from seamgate_vmm.errors import VmmError
from seamgate_vmm.pooled import WorkerLink

TEND_S = 1.0
SURPLUS_LOOKS = 60
"""After so many looks in a row that found too many machines, some are given back."""


class KeptPool(Protocol):
    """What a keeper does with its pool."""

    @property
    def workers(self) -> Sequence[WorkerLink]:
        """Return its workers."""
        ...

    def warm_more(self, count: int) -> list[asyncio.Future[int]]:
        """Have `count` more machines made. Raises: VmmError."""
        ...

    def dismiss(self, worker: WorkerLink) -> None:
        """End a worker that has no guest."""
        ...


class Keeper:
    """See the module. on_problem: told why machines can't be made, each time that is another reason."""

    def __init__(self, pool: KeptPool, count: int, on_problem: Callable[[str], None] | None) -> None:
        self._pool, self._count, self._on_problem = pool, count, on_problem
        self._timer: asyncio.TimerHandle | None = None
        self._making: set[asyncio.Future[int]] = set()
        self._surplus_looks = 0
        self._problem = ""

    def start(self) -> None:
        """Look now, and from now on."""
        self._tend()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tend(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TEND_S, self._tend)
        if self._making:
            return
        missing = self._count - sum(worker.spares for worker in self._pool.workers)
        if missing > 0:
            self._surplus_looks = 0
            self._make(missing)
        else:
            self._give_back(-missing)

    def _make(self, count: int) -> None:
        try:
            made = self._pool.warm_more(count)
        except VmmError as error:
            self._tell(str(error))
            return
        for each in made:
            self._making.add(each)
            each.add_done_callback(self._made)

    def _made(self, made: "asyncio.Future[int]") -> None:
        self._making.discard(made)
        if made.cancelled():
            return
        error = made.exception()
        self._tell("" if error is None else str(error))

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem and self._on_problem is not None:
            self._on_problem(problem)
        self._problem = problem

    def _give_back(self, surplus: int) -> None:
        """End one worker without a guest, if all it has has been too much for long."""
        spare = [w for w in self._pool.workers if not w.guests and 0 < w.spares <= surplus]
        self._surplus_looks = self._surplus_looks + 1 if spare else 0
        if self._surplus_looks >= SURPLUS_LOOKS:
            self._surplus_looks = SURPLUS_LOOKS - 1  # the next one soon
            self._pool.dismiss(spare[0])
