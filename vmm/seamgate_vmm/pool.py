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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from seamgate_vmm.census import Census, states
from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.confinement import NoGroups, WorkerGroups, worker_memory_bytes, worker_uid
from seamgate_vmm.dormant import Dormitory
from seamgate_vmm.errors import HibernationError, KvmUnusable, TemplateError, VmmError, WorkerDied
from seamgate_vmm.guest import UNNATURAL, Limits
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.image import Mount, OwnFile, memory_file
from seamgate_vmm.keeper import Keeper
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import GuestEvent, Outcome, Reason
from seamgate_vmm.pooled import OnChange, PooledGuest, Rest, WorkerLink
from seamgate_vmm.removal import remove_tree
from seamgate_vmm.ring import Accept, GuestRing, RingServer, Turn
from seamgate_vmm.sleepers import Sleepers
from seamgate_vmm.template import Job
from seamgate_vmm.worker import outcome_from_json

# Measured: memory per guest is within 2 % of the best from 8 on, and every guest in a process makes the page faults of
# all others dearer (each fault tells every machine of the process); beyond 32 that shows.
GUESTS_PER_WORKER = 16
_START_DEADLINE_S = 60.0
_FIRST_PID = 2000  # of guests: each of a pool has another, as processes of a machine do


class Pool:
    """Guests of one template.

    keep_warm: so many machines wait for guests to come; 0: those that `warm` makes, and that guests leave behind.
    on_problem: told why machines can't be kept warm.
    """

    def __init__(
        self,
        template: Path,
        *,
        mounts: Sequence[Mount] = (),
        hide: Sequence[Path] = (),
        limits: Limits | None = None,
        idle: IdlePolicy | None = None,
        guests_per_worker: int = GUESTS_PER_WORKER,
        scratch_parent: Path | None = None,
        keep_warm: int = 0,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self.census = Census()
        self._keeper = Keeper(self, keep_warm, on_problem) if keep_warm else None
        self._template = template
        self._mounts = mounts
        self._hide = hide
        self._limits = limits or Limits()
        self._idle = idle or IdlePolicy()
        self._sleepers = Sleepers(self, self._idle)
        self._per_worker = guests_per_worker
        self._scratch_parent = scratch_parent
        self._scratch_root: Path | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._workers: list[WorkerLink] = []
        self._groups: WorkerGroups | None = None
        self._hibernated: dict[int, PooledGuest] = {}
        self._dormitory: Dormitory | None = None
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
        uid = worker_uid()
        if uid is not None:
            os.chown(self._scratch_root, uid, uid)
        with suppress(NoGroups):  # `seamgate doctor` names it
            self._groups = WorkerGroups()
        ours, theirs = Channel.pair()
        self._nursery = await asyncio.to_thread(_start_nursery, theirs.fileno())
        theirs.close()
        self._control = ours
        mounts = [(m.guest, m.host) for m in self._mounts]
        order = {"template": str(self._template), "mounts": mounts, "hidden": [str(p) for p in self._hide]}
        ours.send({**order, "scratch_root": str(self._scratch_root), "uid": uid, "idle": asdict(self._idle)})
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
        if self._keeper is not None:
            self._keeper.start()

    async def close(self) -> None:
        """End every guest and process; wait for them."""
        if self._keeper is not None:
            self._keeper.close()
        await self._sleepers.close()
        for worker in list(self._workers):
            self._lost(worker, Reason.STOPPED, "the pool was closed")
        for guest in list(self._hibernated.values()):
            guest.stop(detail="the pool was closed")
        if self._dormitory is not None:
            await asyncio.to_thread(self._dormitory.close)
            self._dormitory = None
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._nursery is not None:
            await asyncio.to_thread(self._nursery.wait)
            self._nursery = None
        if self._groups is not None:
            self._groups.close()
            self._groups = None
        if self._scratch_root is not None:
            await asyncio.to_thread(remove_tree, self._scratch_root)
            self._scratch_root = None

    # ---- guests

    @property
    def guest_count(self) -> int:
        """How many guests run."""
        return sum(len(w.guests) for w in self._workers)

    @property
    def hibernated_count(self) -> int:
        """How many guests are on disk."""
        return len(self._hibernated)

    @property
    def idle_count(self) -> int:
        """How many guests are parked or hibernated because they have waited for long."""
        return len(self._sleepers)

    def states(self) -> dict[str, int]:
        """How many guests there are, and machines for those to come, by `census.STATES`."""
        return states(self._workers, len(self._hibernated))

    @property
    def workers(self) -> Sequence[WorkerLink]:
        """Its workers."""
        return self._workers

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
        on_change: OnChange | None = None,
        names: NameTable | None = None,
        turn: Turn | None = None,
        limits: Limits | None = None,
    ) -> PooledGuest:
        """Start a guest; return at once, see PooledGuest.started.

        stdout, stderr: descriptors that its output goes to, without blocking the guest for ever if nobody reads; the
        worker gets duplicates and sets them non-blocking. stdin: a pipe, likewise; None: at its end from the start.
        want_input: told when the guest reads from an empty stdin, and how many bytes at most (Feed.want). accept:
        decides about each stream (see ring.py). turn: whether more of its ring may be taken now. on_change: told when
        it is parked, hibernated or resumed. Raises: VmmError if the pool is not open.
        """
        worker = self._worker_with_room()
        number = next(self._numbers)
        ring = GuestRing.create()
        guest: PooledGuest

        def violated(what: str) -> None:
            guest.violated(what)

        server = RingServer(ring, accept, names=names, on_violation=violated, turn=turn)
        guest = PooledGuest(number, worker, ring, server, limits or self._limits, job.terminals, want_input, on_change)
        if job.own_file is not None:
            places, data = job.own_file
            guest.own_file = OwnFile(tuple(places), memory_file("own", data), len(data))
        guest.on_signal, guest.on_end = self._sleepers.take_signal, self.census.ended
        worker.guests[number] = guest
        server.start()
        message = {
            "op": "start",
            "guest": number,
            "pid": _FIRST_PID + number,
            "argv": list(job.argv),
            "env": dict(job.env),
            "cwd": job.cwd,
            "terminals": list(job.terminals),
            "stdin": stdin is not None,
            "limits": asdict(guest.limits),
            "own_file": guest.own_file_facts,
        }
        console = (stdout, stderr, *(() if stdin is None else (stdin,)))
        worker.tell(message, (*ring.handles(), *console, *guest.own_file_handles))
        worker.spares = max(0, worker.spares - 1)
        return guest

    # ---- standing still

    async def park(self, guest: PooledGuest) -> None:
        """Let a running guest stand still, with its memory, files and streams as they are, and no processor.

        Time goes on for it, as for a process that is stopped. What KVM held for it is given back.
        Raises: HibernationError if it is not running, or does not stand still in time; it goes on then.
        """
        self._expect(guest, Rest.RUNNING)
        await guest.started()
        try:
            await guest.ask({"op": "rest", "kind": "park"})
        except BaseException:  # a caller that gave up leaves no guest standing still that nobody knows of
            guest.keep_going()
            raise
        guest.rest = Rest.PARKED
        self._changed(guest, "guest_park", {})

    async def hibernate(self, guest: PooledGuest, *, cause: str = "") -> int:
        """Move a running or parked guest to disk, sealed; return the bytes there. Its machine serves others.

        Its streams are ended first, on both sides, as by a network that goes away. cause: why, for the audit log, if
        nobody asked: then its monotonic clock and its time limits go on; else they stand still.
        Raises: HibernationError, with the reason; it goes on then, but for its streams.
        """
        self._expect(guest, Rest.RUNNING, Rest.PARKED)
        await guest.started()
        begun = time.monotonic()
        guest.server.end_streams()
        fd = os.memfd_create("seamgate-hibernating", os.MFD_CLOEXEC)
        try:
            await guest.ask({"op": "rest", "kind": "hibernate"}, [fd])
            guest.clock_since_s = time.monotonic() if cause else None
            size = await self._store(guest, fd)
        except BaseException:
            guest.keep_going()
            raise
        finally:
            os.close(fd)
        await asyncio.shield(self._leave(guest))  # from here on it is hibernated, whoever waits for that
        facts = {"kept_bytes": str(size), "took_ms": f"{(time.monotonic() - begun) * 1e3:.0f}"}
        self._changed(guest, "guest_hibernate", facts | ({"cause": cause} if cause else {}))
        return size

    async def _leave(self, guest: PooledGuest) -> None:
        """Have a guest's worker forget it: its file is written."""
        guest.console = await guest.ask({"op": "drop"})
        guest.leave_ring()
        guest.leave_worker()
        guest.rest = Rest.HIBERNATED
        guest.on_gone = self._forget
        self._hibernated[guest.number] = guest

    async def _store(self, guest: PooledGuest, fd: int) -> int:
        try:
            if self._dormitory is None:
                self._dormitory = Dormitory(self._scratch_parent)
            guest.times_hibernated += 1
            return await asyncio.to_thread(self._dormitory.store, guest.number, guest.times_hibernated, fd)
        except OSError as error:
            raise HibernationError(f"guest {guest.number}: its file can't be written: {error.strerror}") from error

    async def resume(self, guest: PooledGuest, *, cause: str = "") -> None:
        """Let a parked or hibernated guest go on. cause: as for `hibernate`.

        Raises: HibernationError, with the reason. If its file was refused it is hibernated still; if its worker refused
        it, it is over (`not_resumed`).
        """
        self._expect(guest, Rest.PARKED, Rest.HIBERNATED)
        begun, before = time.monotonic(), guest.rest
        if before is Rest.PARKED:
            await guest.ask({"op": "go"})
        else:
            await asyncio.shield(self._wake(guest))
        guest.rest = Rest.RUNNING
        if before is Rest.HIBERNATED:
            self.census.restored("hibernated")
        self._sleepers.awake(guest)
        facts = {"from": before.value, "took_ms": f"{(time.monotonic() - begun) * 1e3:.0f}"}
        self._changed(guest, "guest_resume", facts | ({"cause": cause} if cause else {}))

    async def _wake(self, guest: PooledGuest) -> None:
        assert self._dormitory is not None
        fd = await asyncio.to_thread(self._dormitory.load, guest.number, guest.times_hibernated)
        try:
            worker = self._worker_with_room()
            ring = GuestRing.create()
            server = guest.server.on_another(ring)
            guest.move_to(worker, ring, server)
            guest.gave_back = ""
            worker.guests[guest.number] = guest
            del self._hibernated[guest.number]
            server.start()
            self._dormitory.forget(guest.number)
            limits, stdin = asdict(guest.limits), len(guest.console) > 2
            message = {
                "op": "wake",
                "limits": limits,
                "terminals": list(guest.terminals),
                "stdin": stdin,
                "scratch": guest.scratch,
                "clock_since_s": guest.clock_since_s,
                "own_file": guest.own_file_facts,
            }
            try:
                await guest.ask(message, (fd, *ring.handles(), *guest.console, *guest.own_file_handles))
            except HibernationError as error:
                worker.guests.pop(guest.number, None)
                self._forget(guest)
                guest.finish(Outcome(Reason.NOT_RESUMED, UNNATURAL, str(error)))
                raise
        finally:
            os.close(fd)
        for each in guest.console:
            os.close(each)
        guest.console = []
        guest.rest = Rest.RUNNING

    def _forget(self, guest: PooledGuest) -> None:
        """A guest is over that no worker cleans up behind."""
        self._hibernated.pop(guest.number, None)
        self._sleepers.awake(guest)
        if self._dormitory is not None:
            self._dormitory.forget(guest.number)
        if self._scratch_root is not None and guest.scratch:
            remove_tree(self._scratch_root / guest.scratch)

    async def trim(self) -> None:
        """Give back the machines that are warm for guests to come, and end workers that have no guest.

        For a pool of which most is hibernated; what comes next starts new ones.
        """
        for worker in [w for w in self._workers if not w.guests]:
            self.dismiss(worker)

    def dismiss(self, worker: WorkerLink) -> None:
        """End a worker that has no guest."""
        self._lost(worker, Reason.STOPPED, "it was idle")

    @staticmethod
    def _expect(guest: PooledGuest, *states: Rest) -> None:
        if guest.is_over:
            raise HibernationError(f"guest {guest.number} is over")
        if guest.rest not in states or guest.is_asked:
            raise HibernationError(f"guest {guest.number} is {guest.rest.value}")

    @staticmethod
    def _changed(guest: PooledGuest, event: GuestEvent, facts: Mapping[str, str]) -> None:
        if guest.on_change is not None:
            guest.on_change(event, facts)

    async def warm(self, count: int) -> int:
        """Make machines for `count` guests warm, spread over workers; return how many are.

        Raises: VmmError, with the reason, if a worker could not.
        """
        for worker in [w for w in self._workers if w.is_warming]:
            assert worker.warm is not None
            await asyncio.wait([worker.warm])
        there = sum(w.spares for w in self._workers)
        made = await asyncio.gather(*self.warm_more(count - there))
        return there + sum(made)

    def warm_more(self, count: int) -> list["asyncio.Future[int]"]:
        """Have `count` more machines made, by workers that have room; return what says how many each one made.

        Raises: VmmError if a worker can't be started.
        """
        asked = []
        while count > 0:
            worker = next((w for w in self._workers if self._room(w) > 0 and not w.is_warming), None) or self._spawn()
            share = min(count, self._room(worker))
            count -= share
            asked.append(self._ask_for_warm(worker, share))
        return asked

    def _room(self, worker: WorkerLink) -> int:
        return self._per_worker - len(worker.guests) - worker.spares

    def _ask_for_warm(self, worker: WorkerLink, share: int) -> "asyncio.Future[int]":
        worker.warm, before = asyncio.get_running_loop().create_future(), worker.spares
        worker.tell({"op": "warm", "count": before + share, "limits": asdict(self._limits)})
        return asyncio.ensure_future(_increase(worker.warm, before))

    def _worker_with_room(self) -> WorkerLink:
        """Return the next worker in turn that has a machine waiting, or else room: guests that start together start
        side by side."""
        found: WorkerLink | None = None
        for step in range(1, len(self._workers) + 1):
            index = (self._turn + step) % len(self._workers)
            worker = self._workers[index]
            if len(worker.guests) >= self._per_worker:
                continue
            if worker.spares:
                self._turn = index
                return worker
            found = found or worker
        if found is None:
            return self._spawn()
        self._turn = self._workers.index(found)
        return found

    def _spawn(self) -> WorkerLink:
        if self._control is None:
            raise VmmError("the pool is not open")
        ours, theirs = Channel.pair()
        try:
            group = self._make_group()
            self._control.send({"op": "spawn", "group": "" if group is None else str(group)}, [theirs.fileno()])
        except (Closed, VmmError) as error:
            ours.close()
            raise VmmError(str(error) or "the process that makes workers is gone: start the pool anew") from error
        finally:
            theirs.close()
        worker = WorkerLink(ours, group)
        self._workers.append(worker)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._heard, worker)
        return worker

    def _make_group(self) -> Path | None:
        if self._groups is None:
            return None
        try:
            return self._groups.make(worker_memory_bytes(self._per_worker, self._limits))
        except OSError as error:
            raise VmmError(f"a worker's control group can't be made: {error}") from error

    def _heard(self, worker: WorkerLink) -> None:
        try:
            message, fds = worker.channel.receive()
        except Closed:
            self._lost(worker, Reason.WORKER_DIED, self._why_it_died(worker))
            return
        try:
            kept = self._event(worker, message, fds)
        except (KeyError, ValueError, TypeError):
            kept = False
            self._lost(worker, Reason.WORKER_DIED, "its worker sent nonsense")
        if not kept:
            for fd in fds:
                os.close(fd)

    def _event(self, worker: WorkerLink, message: dict[str, Any], fds: list[int]) -> bool:
        """Handle a message; return whether its descriptors were taken."""
        if "spares" in message:
            worker.spares = min(max(0, int(message["spares"])), self._per_worker)
        if message["op"] == "warm":
            worker.spares = min(max(0, int(message["count"])), self._per_worker)
            if worker.warm is not None and not worker.warm.done():
                if message.get("error"):
                    worker.warm.set_exception(VmmError(f"a machine could not be made: {message['error']}"))
                else:
                    worker.warm.set_result(int(message["count"]))
            return False
        guest = worker.guests.get(int(message["guest"]))
        if guest is None:
            return False
        if message["op"] == "started":
            self.census.restored("warm" if message["warm"] else "new")
            guest.confirm_started()
        elif message["op"] == "input":
            if guest.want_input is not None:
                guest.want_input(int(message["size"]))
        elif message["op"] == "ended":
            outcome = outcome_from_json(message["outcome"])
            del worker.guests[guest.number]
            guest.finish(outcome)
            self._sleepers.awake(guest)
        elif message["op"] == "idle":
            guest.times_parked += 1
            guest.gave_back = "parked"
            wait_s = None if message["wait_s"] is None else float(message["wait_s"])
            self._sleepers.parked(guest, float(message["waited_s"]), wait_s, reads=bool(message["reads"]))
        elif message["op"] == "trimmed":
            guest.gave_back = "idle"
        elif message["op"] == "busy":
            guest.gave_back = ""
            self._sleepers.awake(guest)
        elif message["op"] in ("rested", "going", "dropped") and int(message["question"]) == guest.question:
            if message["op"] == "dropped":
                guest.scratch = _plain_name(str(message["scratch"]))
            guest.answer(str(message.get("error", ""))[:1000], fds)
            return bool(message["op"] == "dropped")
        return False

    def _why_it_died(self, worker: WorkerLink) -> str:
        out = self._groups is not None and worker.group is not None and self._groups.was_out_of_memory(worker.group)
        return "its worker process was out of the memory that it may use" if out else "its worker process ended"

    def _lost(self, worker: WorkerLink, reason: Reason, detail: str) -> None:
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
            self._sleepers.awake(guest)
        worker.guests.clear()


async def _increase(count: "asyncio.Future[int]", before: int) -> int:
    return max(0, await count - before)


def _plain_name(name: str) -> str:
    """Return a file's name that a worker said. Raises: ValueError if it leads out of its folder."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no plain name")
    return name


def _start_nursery(fd: int) -> "subprocess.Popen[bytes]":
    package = str(Path(__file__).resolve().parent.parent)
    run = f"from seamgate_vmm.nursery import nursery; sys.exit(nursery({fd}))"
    code = f"import sys; sys.path.insert(0, {package!r}); {run}"
    return subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], pass_fds=[fd], stdin=subprocess.DEVNULL, env=_worker_environment()
    )


def _worker_environment() -> dict[str, str]:
    """What the nursery inherits: nothing that could be a secret."""
    kept = ("PATH", "LANG", "LC_ALL", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
    return {k: os.environ[k] for k in kept if k in os.environ}
