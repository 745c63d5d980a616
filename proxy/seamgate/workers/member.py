"""One worker as the supervisor sees it: its process, its channel, what it has begun, what it last told.

Owned by `seamgate.workers.supervisor`. The process is a fresh interpreter, not a fork: the supervisor has threads and
an event loop, and a worker that is started again is then the same as the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from seamgate.errors import PrerequisiteMissing
from seamgate.observe.status import WorkerStatus
from seamgate.observe.work import Work
from seamgate.workers.channel import Channel
from seamgate.workers.ledger import Account
from seamgate.workers.messages import Committed, FromSupervisor, Prepared, Ready, Report

log = structlog.get_logger("seamgate.workers")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
LEAVE_S: Final = 2.0
"""How long a worker that has closed its channel may take to end."""
SETTLED_S: Final = 60.0
"""A worker that lived so long is started again at once; one that did not, later each time."""
_MODULE: Final = "seamgate.workers.worker"
"""Run with -P: the folder that the gateway happens to be started in holds nothing of ours."""


class Member:
    """See the module.

    State: `state` goes from "gone" to "starting", "serving", perhaps "stopping", and to "gone" again; `pause_s` is how
    long its next start waits.
    """

    def __init__(self, number: int, on_message: Callable[[Member, Any], None], on_gone: Callable[[Member], None]):
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
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._waiting: dict[type, list[asyncio.Future[Any]]] = {}
        self.gone = asyncio.Event()
        self.gone.set()

    def __repr__(self) -> str:
        return f"<Member {self.number} {self.state} pid {self.pid}>"

    @property
    def pid(self) -> int:
        """Its process, 0 if there is none."""
        return 0 if self._process is None or self.state == "gone" else self._process.pid

    def is_up(self) -> bool:
        """Whether it is set up and not gone."""
        return self.state in ("serving", "stopping")

    # -- life --------------------------------------------------------------------------------------------------------

    async def launch(self, descriptors: Sequence[int]) -> None:
        """Start its process, with these descriptors inherited.

        Raises:
            PrerequisiteMissing: there is no room for another process.
        """
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.state, self.work, self.asked_at = "starting", None, 0.0
        self.restarts += 1
        self.started_at = asyncio.get_running_loop().time()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", _MODULE, str(its.fileno()),
                stdin=subprocess.DEVNULL, pass_fds=(its.fileno(), *descriptors), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            mine.close()
            self.state = "gone"
            raise PrerequisiteMissing(f"a worker can't be started: {error.strerror}") from error
        finally:
            its.close()
        self.gone.clear()
        self._channel = await Channel.open(mine, self._take, self._closed, from_worker=True)

    def kill(self) -> None:
        """End it at once."""
        self._process_must_end(self._process)

    def _closed(self) -> None:
        """Its end of the channel is closed: it is gone, or is about to be."""
        asyncio.get_running_loop().call_later(LEAVE_S, self._process_must_end, self._process)
        for kind in list(self._waiting):
            self._answer(kind, None)
        alive_s = asyncio.get_running_loop().time() - self.started_at
        self.pause_s = 0.0 if alive_s > SETTLED_S else min(max(FIRST_PAUSE_S, 2 * self.pause_s), LONGEST_PAUSE_S)
        self._on_gone(self)
        self.state = "gone"
        self.gone.set()

    @staticmethod
    def _process_must_end(process: asyncio.subprocess.Process | None) -> None:
        """Without a channel it has nothing to do any more."""
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def exit_code(self) -> int | None:
        """Return how its process ended, once it has."""
        return None if self._process is None else await self._process.wait()

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
        if isinstance(message, Report):
            self.work, self.asked_at = message.work, 0.0
        if isinstance(message, Ready | Prepared | Committed | Report):
            self._answer(type(message), message)
        else:
            self._on_message(self, message)

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
