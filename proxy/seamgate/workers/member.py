"""One worker as the supervisor sees it: its process, its channel, what it has begun, what it last told.

Owned by `seamgate.workers.supervisor`; its process is a child of the nursery (`seamgate.workers.nursery`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from seamgate.observe.status import WorkerStatus
from seamgate.observe.work import Work
from seamgate.workers.channel import Channel
from seamgate.workers.ledger import Account
from seamgate.workers.messages import Committed, FromSupervisor, Prepared, Ready, Report
from seamgate.workers.nursery import Nursery

log = structlog.get_logger("seamgate.workers")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
LEAVE_S: Final = 2.0
"""How long a worker that has closed its channel may take to end."""
SETTLED_S: Final = 60.0
"""A worker that lived so long is started again at once; one that did not, later each time."""
_ANSWERS: Final = (Ready, Prepared, Committed, Report)


class Member:
    """See the module.

    State: `state` goes from "gone" to "starting", "serving", perhaps "stopping", and to "gone" again; `pause_s` is how
    long its next start waits.
    """

    def __init__(
        self,
        number: int,
        nursery: Nursery,
        on_message: Callable[[Member, Any], None],
        on_gone: Callable[[Member], None],
    ) -> None:
        self._nursery = nursery
        self.number = number
        self.state = "gone"
        self.restarts = -1
        self.pause_s = 0.0
        self.work: Work | None = None
        self.asked_at = 0.0
        self.started_at = 0.0
        self.account = Account(self.send)
        self._on_message = on_message
        self._on_gone = on_gone
        self._pid = 0
        self._pidfd = -1
        self._channel: Channel | None = None
        self._waiting: dict[type, list[asyncio.Future[Any]]] = {}
        self.gone = asyncio.Event()
        self.gone.set()

    def __repr__(self) -> str:
        return f"<Member {self.number} {self.state} pid {self.pid}>"

    @property
    def pid(self) -> int:
        """Its process, 0 if there is none."""
        return 0 if self.state == "gone" else self._pid

    def is_up(self) -> bool:
        """Whether it is set up and not gone."""
        return self.state in ("serving", "stopping")

    # -- life --------------------------------------------------------------------------------------------------------

    async def launch(self, descriptors: Sequence[int]) -> None:
        """Start its process; it has its end of the channel, then these descriptors.

        Raises:
            PrerequisiteMissing: there is no room for another process.
        """
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.state, self.work, self.asked_at = "starting", None, 0.0
        self.restarts += 1
        self.started_at = asyncio.get_running_loop().time()
        try:
            self._pid = await self._nursery.bear([its.fileno(), *descriptors])
        except BaseException:
            mine.close()
            self.state = "gone"
            raise
        finally:
            its.close()
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(self._pid)
        self.gone.clear()
        self._channel = await Channel.open(mine, self._take, self._closed, from_worker=True)

    def kill(self) -> None:
        """End it at once."""
        self._must_end(self._pidfd)

    def _closed(self) -> None:
        """Its end of the channel is closed: it is gone, or is about to be."""
        asyncio.get_running_loop().call_later(LEAVE_S, self._must_end, self._pidfd, True)
        self._pidfd = -1
        for kind in list(self._waiting):
            self._answer(kind, None)
        alive_s = asyncio.get_running_loop().time() - self.started_at
        self.pause_s = 0.0 if alive_s > SETTLED_S else min(max(FIRST_PAUSE_S, 2 * self.pause_s), LONGEST_PAUSE_S)
        self._on_gone(self)
        self.state = "gone"
        self.gone.set()

    @staticmethod
    def _must_end(pidfd: int, close: bool = False) -> None:
        """Kill the process behind a descriptor, if it is still there; by its number it might be another one by now."""
        if pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if close:
                os.close(pidfd)

    async def exit_code(self) -> int | None:
        """Return how its process ended, once it has."""
        return await self._nursery.exit_code(self._pid)

    # -- talk --------------------------------------------------------------------------------------------------------

    def send(self, message: FromSupervisor) -> None:
        """Tell it something; one that is gone hears nothing."""
        if self._channel is not None:
            self._channel.send(message)

    async def ask(self, message: FromSupervisor, answer: type[Any], timeout_s: float) -> Any:
        """Send a message and return the answer of this type; None: it is gone, or did not answer in time."""
        if self.gone.is_set():
            return None
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(answer, []).append(waiting)
        self.send(message)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            return None

    def _answer(self, kind: type, message: Any) -> None:
        for waiting in self._waiting.pop(kind, []):
            if not waiting.done():
                waiting.set_result(message)

    def _take(self, message: Any) -> None:
        if not isinstance(message, _ANSWERS):
            self._on_message(self, message)
            return
        if isinstance(message, Report):
            self.work, self.asked_at = message.work, 0.0
        self._answer(type(message), message)

    def status(self) -> WorkerStatus:
        """Return what is known of it."""
        work = self.work
        counts = None if work is None or not self.is_up() else work.counts
        return WorkerStatus(
            self.number,
            self.state,
            self.pid,
            0 if work is None else work.generation,
            max(0, self.restarts),
            0 if counts is None else counts.requests_total,
            0 if counts is None else counts.requests_active,
            0 if counts is None else counts.connections,
        )
