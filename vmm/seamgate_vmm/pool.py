"""Guests by the hundred, for a gateway: starts them in workers, gives each a ring, and reports how each ends.

    async with Pool(template, mounts=[...]) as pool:
        guest = await pool.start(Job(...), accept=on_stream, stdout=1, stderr=2)
        outcome = await guest.ended()

The pool's process has no KVM: the nursery and the workers have (`worker.py`). What a worker says is checked; one that
dies takes its own guests with it and no others.
Runs on: the event loop.
"""

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.errors import KvmUnusable, TemplateError, VmmError, WorkerDied
from seamgate_vmm.guest import UNNATURAL, Limits
from seamgate_vmm.image import Mount
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.ring import Accept, GuestRing, RingServer
from seamgate_vmm.template import Job
from seamgate_vmm.worker import outcome_from_json

# Measured: memory per guest is within 2 % of the best from 8 on, and every guest in a process makes the page faults of
# all others dearer (each fault tells every machine of the process); beyond 32 that shows.
GUESTS_PER_WORKER = 16
_START_DEADLINE_S = 60.0


class PooledGuest:
    """One running guest, as the gateway sees it."""

    def __init__(
        self,
        number: int,
        worker: "_WorkerLink",
        ring: GuestRing,
        server: RingServer,
        want_input: Callable[[int], None] | None = None,
    ) -> None:
        self.number = number
        self.server = server
        self.want_input = want_input
        self._worker = worker
        self._ring = ring
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._outcome: asyncio.Future[Outcome] = loop.create_future()

    def __repr__(self) -> str:
        return f"<PooledGuest {self.number} {'over' if self._outcome.done() else 'running'}>"

    async def started(self) -> None:
        """Wait until the guest has confirmed its randomness and runs its program, or is over."""
        await asyncio.shield(self._started)

    async def ended(self) -> Outcome:
        """Wait for the end."""
        return await asyncio.shield(self._outcome)

    def stop(self, reason: Reason = Reason.STOPPED, detail: str = "") -> None:
        """End the guest, whatever it does."""
        self._worker.tell({"op": "stop", "guest": self.number, "reason": reason.name, "detail": detail})

    def signal(self, number: signal.Signals) -> None:
        """Send it SIGINT (as Ctrl-C does), SIGTERM or SIGHUP: it takes it as any program does, or ignores it."""
        self._worker.tell({"op": "signal", "guest": self.number, "number": int(number)})

    def violated(self, what: str) -> None:
        """The ring saw a broken rule: the guest is ended."""
        self.stop(Reason.RING_VIOLATION, what)

    def confirm_started(self) -> None:
        """Called by the pool."""
        if not self._started.done():
            self._started.set_result(None)

    def finish(self, outcome: Outcome) -> None:
        """Called by the pool, once."""
        self.server.close()
        self._ring.close()
        self.confirm_started()
        if not self._outcome.done():
            self._outcome.set_result(outcome)


class _WorkerLink:
    """The pool's end of one worker."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.guests: dict[int, PooledGuest] = {}
        self.alive = True
        self.warm: asyncio.Future[int] | None = None

    def tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send, if it is still there."""
        if not self.alive:
            return
        try:
            self.channel.send(message, fds)
        except Closed:
            pass  # the reader will see the end


class Pool:
    """Guests of one template."""

    def __init__(
        self,
        template: Path,
        *,
        mounts: Sequence[Mount] = (),
        hide: Sequence[Path] = (),
        limits: Limits | None = None,
        guests_per_worker: int = GUESTS_PER_WORKER,
        scratch_parent: Path | None = None,
    ) -> None:
        self._template = template
        self._mounts = mounts
        self._hide = hide
        self._limits = limits or Limits()
        self._per_worker = guests_per_worker
        self._scratch_parent = scratch_parent
        self._scratch_root: Path | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._workers: list[_WorkerLink] = []
        self._numbers = itertools.count(1)
        self._turn = 0  # which worker got the last guest
        self.python = ""
        self.tier = ""

    async def __aenter__(self) -> "Pool":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the nursery, which checks the template.

        Raises: KvmUnusable, TemplateError, with the reason; WorkerDied.
        """
        self._scratch_root = Path(tempfile.mkdtemp(prefix="seamgate-scratch-", dir=self._scratch_parent))
        ours, theirs = Channel.pair()
        self._nursery = await asyncio.to_thread(_start_nursery, theirs.fileno())
        theirs.close()
        self._control = ours
        mounts = [(m.guest, m.host) for m in self._mounts]
        order = {"template": str(self._template), "mounts": mounts, "hidden": [str(p) for p in self._hide]}
        ours.send({**order, "scratch_root": str(self._scratch_root)})
        try:
            async with asyncio.timeout(_START_DEADLINE_S):
                message, _ = await asyncio.to_thread(ours.receive)
        except Closed:
            await self.close()
            raise WorkerDied("the nursery ended before it had loaded the template") from None
        if message.get("op") != "loaded":
            await self.close()
            kind: type[VmmError] = {"TemplateError": TemplateError, "KvmUnusable": KvmUnusable}.get(
                str(message.get("kind")), VmmError
            )
            raise kind(str(message.get("error", "the nursery failed")))
        self.python, self.tier = str(message["python"]), str(message["tier"])

    async def close(self) -> None:
        """End every guest and process; wait for them."""
        for worker in list(self._workers):
            self._lost(worker, Reason.STOPPED, "the pool was closed")
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._nursery is not None:
            await asyncio.to_thread(self._nursery.wait)
            self._nursery = None
        if self._scratch_root is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch_root, True)
            self._scratch_root = None

    # ---- guests

    @property
    def guest_count(self) -> int:
        """How many guests run."""
        return sum(len(w.guests) for w in self._workers)

    @property
    def nursery_pid(self) -> int:
        """The process that loaded the template; workers are its children. 0 if the pool is not open."""
        return self._nursery.pid if self._nursery is not None else 0

    @property
    def worker_count(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    async def start(
        self,
        job: Job,
        *,
        accept: Accept,
        stdout: int,
        stderr: int,
        stdin: int | None = None,
        want_input: Callable[[int], None] | None = None,
        names: NameTable | None = None,
        limits: Limits | None = None,
    ) -> PooledGuest:
        """Start a guest; return at once, see PooledGuest.started.

        stdout, stderr: descriptors that its output goes to, without blocking the guest for ever if nobody reads; the
        worker gets duplicates and sets them non-blocking. stdin: a pipe, likewise; None: at its end from the start.
        want_input: told when the guest reads from an empty stdin, and how many bytes at most (Feed.want). accept:
        decides about each stream (see ring.py).
        Raises: VmmError if the pool is not open.
        """
        worker = self._worker_with_room()
        number = next(self._numbers)
        ring = GuestRing.create()
        guest: PooledGuest

        def violated(what: str) -> None:
            guest.violated(what)

        server = RingServer(ring, accept, names=names, on_violation=violated)
        guest = PooledGuest(number, worker, ring, server, want_input)
        worker.guests[number] = guest
        server.start()
        message = {
            "op": "start",
            "guest": number,
            "argv": list(job.argv),
            "env": dict(job.env),
            "cwd": job.cwd,
            "terminals": list(job.terminals),
            "stdin": stdin is not None,
            "limits": asdict(limits or self._limits),
        }
        worker.tell(message, (*ring.handles(), stdout, stderr, *(() if stdin is None else (stdin,))))
        return guest

    async def warm(self, count: int) -> int:
        """Make machines for `count` guests warm, spread over workers; return how many are.

        Raises: VmmError, with the reason, if a worker could not.
        """
        loop = asyncio.get_running_loop()
        left, asked = count, []
        for index in range(-(-count // self._per_worker)):
            worker = self._workers[index] if index < len(self._workers) else self._spawn()
            share = min(left, self._per_worker)
            left -= share
            worker.warm = loop.create_future()
            asked.append(worker.warm)
            worker.tell({"op": "warm", "count": share, "limits": asdict(self._limits)})
        return sum(await asyncio.gather(*asked))

    def _worker_with_room(self) -> _WorkerLink:
        """Return the next worker in turn that has room: guests that start together start side by side."""
        for _ in range(len(self._workers)):
            self._turn = (self._turn + 1) % len(self._workers)
            worker = self._workers[self._turn]
            if len(worker.guests) < self._per_worker:
                return worker
        return self._spawn()

    def _spawn(self) -> _WorkerLink:
        if self._control is None:
            raise VmmError("the pool is not open")
        ours, theirs = Channel.pair()
        self._control.send({"op": "spawn"}, [theirs.fileno()])
        theirs.close()
        worker = _WorkerLink(ours)
        self._workers.append(worker)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._heard, worker)
        return worker

    def _heard(self, worker: _WorkerLink) -> None:
        try:
            message, fds = worker.channel.receive()
        except Closed:
            self._lost(worker, Reason.WORKER_DIED, "its worker process ended")
            return
        for fd in fds:
            os.close(fd)
        try:
            self._event(worker, message)
        except (KeyError, ValueError, TypeError):
            self._lost(worker, Reason.WORKER_DIED, "its worker sent nonsense")

    def _event(self, worker: _WorkerLink, message: dict[str, Any]) -> None:
        if message["op"] == "warm":
            if worker.warm is not None and not worker.warm.done():
                if message.get("error"):
                    worker.warm.set_exception(VmmError(f"a machine could not be made: {message['error']}"))
                else:
                    worker.warm.set_result(int(message["count"]))
            return
        guest = worker.guests.get(int(message["guest"]))
        if guest is None:
            return
        if message["op"] == "started":
            guest.confirm_started()
        elif message["op"] == "input":
            if guest.want_input is not None:
                guest.want_input(int(message["size"]))
        elif message["op"] == "ended":
            outcome = outcome_from_json(message["outcome"])
            del worker.guests[guest.number]
            guest.finish(outcome)

    def _lost(self, worker: _WorkerLink, reason: Reason, detail: str) -> None:
        if not worker.alive:
            return
        worker.alive = False
        asyncio.get_running_loop().remove_reader(worker.channel.fileno())
        worker.channel.close()
        self._workers.remove(worker)
        if worker.warm is not None and not worker.warm.done():
            worker.warm.set_exception(WorkerDied(detail))
        for guest in worker.guests.values():
            guest.finish(Outcome(reason, UNNATURAL, detail))
        worker.guests.clear()


def _start_nursery(fd: int) -> "subprocess.Popen[bytes]":
    package = str(Path(__file__).resolve().parent.parent)
    code = (
        f"import sys; sys.path.insert(0, {package!r}); from seamgate_vmm.worker import nursery; sys.exit(nursery({fd}))"
    )
    return subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], pass_fds=[fd], stdin=subprocess.DEVNULL, env=_worker_environment()
    )


def _worker_environment() -> dict[str, str]:
    """What the nursery inherits: nothing that could be a secret."""
    kept = ("PATH", "LANG", "LC_ALL", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
    return {k: os.environ[k] for k in kept if k in os.environ}
