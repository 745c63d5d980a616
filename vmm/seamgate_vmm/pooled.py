"""A guest as its pool sees it: where it runs, and whether it stands still; and the pool's end of a worker.

Made by `pool.py` only, which also answers for the methods that are marked so.
Runs on: the event loop.
"""

import asyncio
import enum
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.errors import HibernationError
from seamgate_vmm.guest import UNNATURAL, Limits
from seamgate_vmm.image import OwnFile
from seamgate_vmm.outcome import GuestEvent, Outcome, Reason
from seamgate_vmm.ring import GuestRing, RingServer

_ANSWER_S = 30.0  # a worker gives a guest less to stand still


class Rest(enum.Enum):
    """Whether a guest runs, or stands still, and where it is kept then."""

    RUNNING = "running"
    PARKED = "parked"  # in memory; its streams stay open
    HIBERNATED = "hibernated"  # on disk, sealed; its streams were ended


OnChange = Callable[[GuestEvent, Mapping[str, str]], None]
"""Told when a guest stands still or goes on, with facts for the audit log."""


class PooledGuest:
    """One running guest, as the gateway sees it."""

    def __init__(
        self,
        number: int,
        worker: "WorkerLink",
        ring: GuestRing,
        server: RingServer,
        limits: Limits,
        terminals: Sequence[int] = (),
        want_input: Callable[[int], None] | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        self.number = number
        self.server = server
        self.limits = limits
        self.terminals = terminals
        self.want_input = want_input
        self.on_change = on_change
        self.on_gone: Callable[[PooledGuest], None] | None = None  # called when it ends while it is hibernated
        self.on_signal: Callable[[PooledGuest, signal.Signals], bool] | None = None  # True: it was taken care of
        self.on_end: Callable[[Outcome], None] | None = None
        self.rest = Rest.RUNNING
        self.times_hibernated = 0
        self.times_parked = 0  # by its worker, because it waited
        self.gave_back = ""  # "idle": pages, "parked": what KVM held; because it waits, and until it goes on
        self.clock_since_s: float | None = None  # when it was hibernated, if its clocks are to go on meanwhile
        self.reply: asyncio.Future[tuple[str, list[int]]] | None = None  # of the worker, to what the pool asked last
        self.question = 0  # its number: an answer to an earlier one is none
        self.scratch = ""  # the name of its folder, while it is hibernated
        self.console: list[int] = []  # stdout, stderr, stdin, while it is hibernated
        self.own_file: OwnFile | None = None  # the descriptor is ours until it is over
        self._worker = worker
        self._ring: GuestRing | None = ring
        self._begun = time.monotonic()
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._outcome: asyncio.Future[Outcome] = loop.create_future()

    def __repr__(self) -> str:
        return f"<PooledGuest {self.number} {'over' if self.is_over else self.rest.value}>"

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._outcome.done()

    @property
    def own_file_facts(self) -> dict[str, Any] | None:
        """What a worker is told of its own file."""
        return None if self.own_file is None else {"places": self.own_file.places, "size": self.own_file.size}

    @property
    def own_file_handles(self) -> tuple[int, ...]:
        """The descriptor that goes along with that, last of all."""
        return () if self.own_file is None else (self.own_file.fd,)

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._begun

    async def started(self) -> None:
        """Wait until the guest has confirmed its randomness and runs its program, or is over."""
        await asyncio.shield(self._started)

    async def ended(self) -> Outcome:
        """Wait for the end."""
        return await asyncio.shield(self._outcome)

    def stop(self, reason: Reason = Reason.STOPPED, detail: str = "") -> None:
        """End the guest, whatever it does."""
        if self.rest is Rest.HIBERNATED:
            self.finish(Outcome(reason, UNNATURAL, detail))
            if self.on_gone is not None:
                self.on_gone(self)
            return
        self._worker.tell({"op": "stop", "guest": self.number, "reason": reason.name, "detail": detail})

    def signal(self, number: signal.Signals) -> None:
        """Send it SIGINT (as Ctrl-C does), SIGTERM or SIGHUP: it takes it as any program does, or ignores it.

        One that is parked takes it when it goes on; one that is hibernated by policy is woken.
        Raises: HibernationError if it is hibernated because its owner wanted so.
        """
        if self.on_signal is not None and self.on_signal(self, number):
            return
        if self.rest is Rest.HIBERNATED:
            raise HibernationError(f"guest {self.number} is hibernated: resume it first, or stop it")
        self._worker.tell({"op": "signal", "guest": self.number, "number": int(number)})

    def violated(self, what: str) -> None:
        """The ring saw a broken rule: the guest is ended."""
        self.stop(Reason.RING_VIOLATION, what)

    def leave_ring(self) -> None:
        """Called by the pool: its streams are lost, and its ring is gone."""
        if self._ring is not None:
            self.server.close()
            self._ring.close()
            self._ring = None

    def move_to(self, worker: "WorkerLink", ring: GuestRing, server: RingServer) -> None:
        """Called by the pool: it goes on in another worker, on another ring."""
        self._worker, self._ring, self.server = worker, ring, server

    async def ask(self, message: dict[str, Any], fds: Sequence[int] = ()) -> list[int]:
        """Called by the pool: tell the worker something and wait for its answer; return the descriptors in it.

        Raises: HibernationError, with the reason, if the answer is no.
        """
        self.reply = asyncio.get_running_loop().create_future()
        self.question += 1
        self._worker.tell({**message, "guest": self.number, "question": self.question}, fds)
        try:
            async with asyncio.timeout(_ANSWER_S):
                error, received = await self.reply
        except TimeoutError:
            raise HibernationError(f"guest {self.number}: its worker did not answer within {_ANSWER_S:g} s") from None
        if error:
            raise HibernationError(f"guest {self.number}: {error}")
        return received

    def keep_going(self) -> None:
        """Called by the pool: whatever it was to do, it is to go on now."""
        self.rest = Rest.RUNNING
        self.server.accept_streams()
        self._worker.tell({"op": "go", "guest": self.number, "question": 0})

    @property
    def is_asked(self) -> bool:
        """Whether its worker owes an answer."""
        return self.reply is not None and not self.reply.done()

    def answer(self, error: str, fds: list[int]) -> None:
        """Called by the pool: what the worker said to what was asked."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_result((error, fds))

    def leave_worker(self) -> None:
        """Called by the pool: it is in no worker any more."""
        self._worker.guests.pop(self.number, None)

    def confirm_started(self) -> None:
        """Called by the pool."""
        if not self._started.done():
            self._started.set_result(None)

    def finish(self, outcome: Outcome) -> None:
        """Called by the pool, once."""
        self.leave_ring()
        for fd in self.console:
            os.close(fd)
        self.console = []
        if self.own_file is not None:
            os.close(self.own_file.fd)
            self.own_file = None
        self.answer(f"it ended meanwhile: {outcome}", [])
        self.confirm_started()
        if not self._outcome.done():
            self._outcome.set_result(replace(outcome, parked_times=self.times_parked))
            if self.on_end is not None:
                self.on_end(outcome)


class WorkerLink:
    """The pool's end of one worker."""

    def __init__(self, channel: Channel, group: Path | None) -> None:
        self.channel = channel
        self.group = group  # its control group, if there are any here
        self.guests: dict[int, PooledGuest] = {}
        self.alive = True
        self.warm: asyncio.Future[int] | None = None
        self.spares = 0  # machines that wait for a guest, by what the worker said last

    @property
    def is_warming(self) -> bool:
        """Whether it makes machines."""
        return self.warm is not None and not self.warm.done()

    def tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send, if it is still there."""
        if not self.alive:
            return
        try:
            self.channel.send(message, fds)
        except Closed:
            pass  # the reader will see the end
