"""The processes that run guests: a nursery that has loaded a template, and workers forked from it.

    pool ──channel──> nursery: opens KVM, verifies and loads the template, forks a worker for each `spawn`
    pool ──channel──> worker: up to some 16 guests on one thread; started, stopped and reported by messages

A worker gives up everything that it does not need before its first guest: new privileges, every path but the view's and
the scratch folder, every system call but some ninety (no socket, no process, no program). It has no secret and no
network: a guest's bytes go through shared memory that the gateway reads.

Runs on: its own process, one thread. `pool.py` is the other end.
"""

import heapq
import itertools
import os
import select
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seamgate_vmm import _kvm
from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.errors import VmmError
from seamgate_vmm.guest import UNNATURAL, Guest, Limits, State
from seamgate_vmm.hibernation import capture, resume
from seamgate_vmm.host import Host
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.image import OwnFile, View
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.spares import Scratch, Spares
from seamgate_vmm.standard_input import PipeInput
from seamgate_vmm.template import Job, restore, terminal_flags

_SLICE_US = 5_000
_ALONE_SLICE_US = 50_000
_CHECK_S = 0.5
_PARKED = 2  # what IdlePolicy.due() says of a guest that is to be parked
_MESSAGES_PER_TURN = 64
_BREATH_S = 0.02  # so long nothing happens before machines are tidied: a start must not wait for that
_REST_S = 10.0  # how long a guest has to stand still when asked to
_CONSOLE_FDS = 3  # of those of a start, from here on
_START_FDS = 5  # ring memory, doorbell, wake, stdout, stderr; and stdin, if it has one, and a file of its own


@dataclass(slots=True)
class _Slot:
    """A guest and what belongs to it here."""

    number: int
    guest: Guest
    wake: int
    console: tuple[int, int]
    scratch: Scratch
    reported: bool = False
    blocked_fd: int = -1
    input: PipeInput | None = None
    question: int = 0  # of the pool: its number goes with the answer
    rest: str = ""  # "park" or "hibernate": what it was asked for, until that is answered
    rest_by: float = 0.0
    rest_fd: int = -1  # where its pages go
    is_parked: bool = False
    is_trimmed: bool = False  # and the pool knows it
    was_warm: bool = False  # its machine waited for it
    queued: bool = False
    waits_since: float = 0.0
    trimmed: int = 0  # how much was given back since: 1 pages, 2 what KVM holds
    fds: list[int] = field(default_factory=list)
    own_file: int = -1  # the last of them


class Worker:
    """Runs guests of one template until its channel closes."""

    def __init__(
        self,
        host: Host,
        loaded: Loaded,
        channel: Channel,
        view: View,
        scratch_root: Path,
        idle: IdlePolicy = IdlePolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._host = host
        self._idle = idle
        self._loaded = loaded
        self._channel = channel
        self._spares = Spares(host, loaded, view, scratch_root)
        self._slots: dict[int, _Slot] = {}
        self._by_fd: dict[int, _Slot] = {}
        self._ready: deque[_Slot] = deque()
        self._timers: list[tuple[float, int, _Slot]] = []
        self._order = itertools.count()
        self._to_warm = 0
        self._to_trim: deque[_Slot] = deque()
        self._poll = select.epoll()
        self._poll.register(channel.fileno(), select.EPOLLIN)
        self._next_check = 0.0
        self._limits = Limits()

    def run(self) -> None:
        """Serve until the pool is gone."""
        try:
            while True:
                self._turn()
        except Closed:
            for slot in list(self._slots.values()):
                self._remove(slot)

    def _turn(self) -> None:
        happened = self._poll.poll(self._timeout())
        for fd, _ in happened:
            if fd == self._channel.fileno():
                self._messages()
            else:
                self._woken(fd)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._enqueue(heapq.heappop(self._timers)[2])
        if now >= self._next_check:
            self._next_check = now + _CHECK_S
            self._check_all()
        if self._ready:
            self._step(self._ready.popleft())
        elif self._to_trim and not happened:
            self._trim(self._to_trim.popleft())
        elif self._spares.untidy and not happened:
            self._spares.tidy()
        elif self._to_warm:
            self._warm_one()

    def _warm_one(self) -> None:
        """Make one machine warm; the guests that run come first."""
        self._to_warm -= 1
        try:
            self._spares.warm(self._limits)
        except (OSError, VmmError) as error:
            self._to_warm = 0
            self._channel.send({"op": "warm", "guest": 0, "count": self._spares.count, "error": str(error)})
            return
        if not self._to_warm:
            self._channel.send({"op": "warm", "guest": 0, "count": self._spares.count})

    def _timeout(self) -> float:
        if self._ready or self._to_warm:
            return 0.0
        if self._spares.untidy or self._to_trim:
            return _BREATH_S
        if not self._slots:
            return -1.0
        until = self._next_check
        if self._timers:
            until = min(until, self._timers[0][0])
        return max(0.0, until - time.monotonic())

    # ---- guests

    def _step(self, slot: _Slot) -> None:
        slot.queued = False
        if not self._is_here(slot):
            return
        if slot.is_parked and slot.guest.state is not State.RESTING and not self._awake(slot):
            return
        if slot.is_trimmed:
            slot.is_trimmed = False
            self._channel.send({"op": "busy", "guest": slot.number})
        short = self._ready or not slot.reported
        state = slot.guest.step(_SLICE_US if short else _ALONE_SLICE_US)
        if not slot.reported and slot.guest.confirmed:
            slot.reported = True
            message = {"op": "started", "guest": slot.number, "warm": slot.was_warm, "spares": self._spares.count}
            self._channel.send(message)
        if state is State.READY:
            self._enqueue(slot)
        elif state is State.WAITING:
            self._sleep(slot)
        elif state is State.CONSOLE:
            self._wait_for_console(slot)
        elif state is State.RESTING:
            if slot.rest:  # else a timer of before: it stands still already
                self._rested(slot)
        elif state is State.RENDEZVOUS:
            slot.guest.stop(Reason.BAD_REQUEST, "it went to the rendezvous again")
            self._finish(slot)
        else:
            self._finish(slot)

    def _is_here(self, slot: _Slot) -> bool:
        """Return whether a slot is in use: a guest that was hibernated may be back with its number, in another one."""
        return self._slots.get(slot.number) is slot

    def _enqueue(self, slot: _Slot) -> None:
        if not slot.queued and self._is_here(slot):
            slot.queued = True
            if slot.reported:
                self._ready.append(slot)
            else:
                self._ready.appendleft(slot)  # a guest that is to start goes before those that run

    def _trim(self, slot: _Slot) -> None:
        """Give back what a waiting guest has not changed after all, and when it waits on, what KVM holds for it."""
        if not self._is_here(slot) or slot.guest.state is not State.WAITING or slot.is_parked:
            return
        try:
            slot.guest.machine.trim()
            waited_s = time.monotonic() - slot.waits_since
            if self._idle.due(waited_s) < _PARKED:
                slot.is_trimmed = True
                self._channel.send({"op": "trimmed", "guest": slot.number})
                return
            slot.guest.machine.park()
        except OSError:
            return  # it keeps what it has
        slot.is_parked, slot.is_trimmed = True, False
        reads = slot.input is not None and slot.input.waiting
        message = {"op": "idle", "guest": slot.number, "waited_s": waited_s, "wait_s": slot.guest.wait_s()}
        self._channel.send({**message, "reads": reads})

    def _awake(self, slot: _Slot) -> bool:
        """Make a waiting guest's machine anew; False if KVM refuses, which ends the guest."""
        try:
            slot.guest.machine.unpark()
        except OSError as error:
            slot.guest.stop(Reason.MACHINE_FAILED, str(error))
            self._finish(slot)
            return False
        slot.is_parked = False
        self._channel.send({"op": "busy", "guest": slot.number})
        return True

    def _sleep(self, slot: _Slot) -> None:
        slot.waits_since, slot.trimmed = time.monotonic(), 0
        wait = slot.guest.wait_s()
        if wait is not None:
            heapq.heappush(self._timers, (time.monotonic() + wait, next(self._order), slot))

    def _woken(self, fd: int) -> None:
        slot = self._by_fd.get(fd)
        if slot is None:
            return
        if fd == slot.blocked_fd:
            self._ignore(fd)
            slot.blocked_fd = -1
        elif slot.input is not None and fd == slot.input.fd:
            self._ignore(fd)
            slot.input.waiting = False
            slot.guest.announce_input()
        else:
            try:
                os.eventfd_read(fd)
            except BlockingIOError:
                return
        if slot.guest.state in (State.WAITING, State.CONSOLE):
            self._enqueue(slot)

    def _ignore(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _wait_for_console(self, slot: _Slot) -> None:
        fd = slot.blocked_fd
        self._poll.register(fd, select.EPOLLOUT)
        self._by_fd[fd] = slot

    def _check_all(self) -> None:
        for slot in list(self._slots.values()):
            if slot.guest.state in (State.WAITING, State.CONSOLE):
                if slot.guest.check_limits():
                    self._finish(slot)
                else:
                    self._consider(slot, time.monotonic() - slot.waits_since)
            if slot.rest and time.monotonic() > slot.rest_by:
                slot.guest.ask_rest(_kvm.REST_NONE)
                self._answer_rest(slot, f"it did not stand still within {_REST_S:g} s")

    def _consider(self, slot: _Slot, waited_s: float) -> None:
        """Have what a guest that waits for long does not need given back, when there is nothing else to do."""
        due = self._idle.due(waited_s)
        if due > slot.trimmed:
            slot.trimmed = due
            self._to_trim.append(slot)

    def _finish(self, slot: _Slot) -> None:
        outcome = slot.guest.outcome or Outcome(Reason.STOPPED, UNNATURAL)
        spare = self._remove(slot)
        if spare is not None:
            self._spares.keep(spare)
        message = {"op": "ended", "guest": slot.number, "outcome": outcome_to_json(outcome)}
        self._channel.send({**message, "spares": self._spares.count})

    def _remove(self, slot: _Slot, *, keep_scratch: bool = False) -> Guest | None:
        """Forget a guest; return it if its machine can serve another."""
        self._slots.pop(slot.number, None)
        for fd in (slot.wake, slot.blocked_fd, -1 if slot.input is None else slot.input.fd):
            self._ignore(fd)
        for fd in slot.fds:
            os.close(fd)
        if slot.rest_fd >= 0:
            os.close(slot.rest_fd)
        if not keep_scratch:
            slot.scratch.remove()
        guest = slot.guest
        guest.files.close()
        outcome = guest.outcome
        if not slot.is_parked and outcome is not None and outcome.reason in (Reason.EXITED, Reason.STOPPED):
            return guest
        guest.close()
        return None

    def _want_input(self, slot: _Slot, size: int) -> None:
        assert slot.input is not None
        self._poll.register(slot.input.fd, select.EPOLLIN)
        self._by_fd[slot.input.fd] = slot
        self._channel.send({"op": "input", "guest": slot.number, "size": size})

    # ---- messages

    def _messages(self) -> None:
        """Take what has come, so that no start waits behind another guest's slice."""
        for _ in range(_MESSAGES_PER_TURN):
            try:
                self._message()
            except BlockingIOError:
                return

    def _message(self) -> None:
        message, fds = self._channel.receive(wait=False)
        op = message.get("op")
        if op == "start":
            self._start(message, fds)
            return
        if op == "warm":
            self._limits = Limits(**message["limits"])
            self._to_warm = max(0, int(message["count"]) - self._spares.count)
            if not self._to_warm:
                self._channel.send({"op": "warm", "guest": 0, "count": self._spares.count})
            return
        if op == "wake":
            self._wake_up(message, fds)
            return
        slot = self._slots.get(int(message.get("guest", -1)))
        if slot is not None and op in ("rest", "go", "drop"):
            slot.question = int(message["question"]) or slot.question
        if slot is not None and op == "rest":
            self._ask_rest(slot, str(message["kind"]), fds)
            return
        for fd in fds:
            os.close(fd)
        if slot is None:
            return
        if op == "stop":
            slot.guest.stop(Reason[message["reason"]], str(message["detail"]))
            self._finish(slot)
        elif op == "signal":
            slot.guest.signal(int(message["number"]))
            if slot.guest.state is State.WAITING:
                self._enqueue(slot)
        elif op == "go":
            self._go_on(slot)
        elif op == "drop":
            self._drop(slot)

    # ---- standing still

    def _ask_rest(self, slot: _Slot, kind: str, fds: list[int]) -> None:
        for fd in (*fds[1:], *([slot.rest_fd] if slot.rest_fd >= 0 else [])):
            os.close(fd)
        slot.rest, slot.rest_by, slot.rest_fd = kind, time.monotonic() + _REST_S, fds[0] if fds else -1
        try:
            if slot.guest.state is State.RESTING:  # parked, and now to be hibernated: its streams have to end
                self._unpark(slot)
            slot.guest.ask_rest(_kvm.REST_HIBERNATE if kind == "hibernate" else _kvm.REST_PARK)
        except (OSError, VmmError) as error:
            self._answer_rest(slot, str(error))
            return
        if slot.guest.state is State.WAITING:
            self._enqueue(slot)

    def _unpark(self, slot: _Slot) -> None:
        if slot.is_parked:
            slot.guest.machine.unpark()
            slot.is_parked = False
        slot.guest.go_on()
        self._enqueue(slot)

    def _rested(self, slot: _Slot) -> None:
        try:
            if slot.rest == "park":
                slot.guest.machine.trim()
                slot.guest.machine.park()
                slot.is_parked = True
            else:
                data = memoryview(capture(slot.guest, self._loaded, self._host))
                while data:
                    data = data[os.write(slot.rest_fd, data) :]
        except (OSError, VmmError) as error:
            slot.guest.go_on()
            self._enqueue(slot)
            self._answer_rest(slot, str(error))
            return
        self._answer_rest(slot, "")

    def _answer_rest(self, slot: _Slot, error: str) -> None:
        self._end_rest(slot)
        self._channel.send({"op": "rested", "guest": slot.number, "question": slot.question, "error": error})

    @staticmethod
    def _end_rest(slot: _Slot) -> None:
        slot.rest = ""
        if slot.rest_fd >= 0:
            os.close(slot.rest_fd)
            slot.rest_fd = -1

    def _go_on(self, slot: _Slot) -> None:
        if slot.guest.state is not State.RESTING:
            if slot.rest:  # whoever asked for it has given up
                slot.guest.ask_rest(_kvm.REST_NONE)
                self._end_rest(slot)
            return
        try:
            self._unpark(slot)
        except OSError as error:
            slot.guest.stop(Reason.MACHINE_FAILED, str(error))
            self._finish(slot)
            return
        self._channel.send({"op": "going", "guest": slot.number, "question": slot.question, "error": ""})

    def _drop(self, slot: _Slot) -> None:
        """Forget a guest that is kept elsewhere now; its machine can serve another."""
        if slot.guest.state is not State.RESTING:
            return
        slot.guest.stop()
        message = {"op": "dropped", "guest": slot.number, "question": slot.question, "scratch": slot.scratch.path.name}
        spares = self._spares.count + (not slot.is_parked)  # its own machine is one of them in a moment
        console = [fd for fd in slot.fds[_CONSOLE_FDS:] if fd != slot.own_file]
        self._channel.send({**message, "spares": spares}, console)
        spare = self._remove(slot, keep_scratch=True)
        if spare is not None:
            self._spares.keep(spare)

    def _wake_up(self, message: dict[str, Any], fds: list[int]) -> None:
        number = int(message["guest"])
        data, *rest = fds
        try:
            self._check_count(message, rest)
            with os.fdopen(data, "rb") as file:
                file.seek(0)
                self._add(number, message, rest, self._spares.folder_of(message["scratch"]), file.read())
        except (OSError, VmmError) as error:
            for fd in rest:
                os.close(fd)
            self._channel.send({"op": "going", "guest": number, "question": message["question"], "error": str(error)})
            return
        slot = self._slots[number]
        slot.reported = True
        slot.guest.go_on()
        self._enqueue(slot)
        self._channel.send({"op": "going", "guest": number, "question": message["question"], "error": ""})

    # ---- starting

    @staticmethod
    def _check_count(message: dict[str, Any], fds: list[int]) -> None:
        expected = _START_FDS + bool(message["stdin"]) + (message["own_file"] is not None)
        if len(fds) != expected:
            raise VmmError(f"{len(fds)} descriptors instead of {expected}")

    def _start(self, message: dict[str, Any], fds: list[int]) -> None:
        number = int(message["guest"])
        scratch: Scratch | None = None
        try:
            self._check_count(message, fds)
            scratch = self._spares.folder()
            self._add(number, message, fds, scratch)
            self._enqueue(self._slots[number])
        except (OSError, ValueError, VmmError) as error:  # ValueError: a text that no guest can be given
            for fd in fds:
                os.close(fd)
            if scratch is not None:
                scratch.remove()
            outcome = Outcome(Reason.MACHINE_FAILED, UNNATURAL, str(error))
            self._channel.send({"op": "ended", "guest": number, "outcome": outcome_to_json(outcome)})

    def _add(
        self, number: int, message: dict[str, Any], fds: list[int], scratch: Scratch, hibernated: bytes | None = None
    ) -> None:
        """Make a machine for a guest that is new, or was hibernated."""
        memory, doorbell, wake, stdout, stderr, *more = fds
        own = message["own_file"]
        for fd in (stdout, stderr):
            os.set_blocking(fd, False)
        slot: _Slot

        def console(fd: int, data: bytes) -> int:
            target = slot.console[fd - 1]
            try:
                return os.write(target, data)
            except BlockingIOError:
                slot.blocked_fd = target
                return 0
            except BrokenPipeError:
                return len(data)  # nobody reads it any more: the guest is not held up

        view, limits, spare = scratch.view, Limits(**message["limits"]), self._spares.take()
        if own is not None:
            view = view.with_own(OwnFile(tuple(own["places"]), more[-1], int(own["size"])))
        host, loaded, ring = self._host, self._loaded, (memory, doorbell)
        if hibernated is None:
            job = Job(message["argv"], message["env"], message["cwd"], message["terminals"])
            guest = restore(host, loaded, job, view, console, limits, ring=ring, reuse=spare, pid=message["pid"])
        else:
            flags = terminal_flags(message["terminals"])
            since = message["clock_since_s"]
            slept_ns = 0 if since is None else max(0, int((time.monotonic() - float(since)) * 1e9))
            guest = resume(
                host, loaded, hibernated, view, console, limits,
                ring=ring, reuse=spare, flags=flags, slept_ns=slept_ns,
            )  # fmt: skip
        slot = _Slot(number, guest, wake, (stdout, stderr), scratch, fds=fds, was_warm=spare is not None)
        if own is not None:
            slot.own_file = more[-1]
        if message["stdin"]:
            slot.input = guest.input = PipeInput(more[0], lambda size: self._want_input(slot, size))
        self._slots[number] = slot
        self._by_fd[wake] = slot
        self._poll.register(wake, select.EPOLLIN)


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as it travels to the pool."""
    return {
        "reason": outcome.reason.value,
        "code": outcome.code,
        "detail": outcome.detail,
        "unsupported": outcome.unsupported,
        "cpu_s": outcome.cpu_s,
    }


def outcome_from_json(raw: dict[str, Any]) -> Outcome:
    """Return an outcome from a worker's message. Raises: KeyError, ValueError, TypeError."""
    unsupported = {str(k): int(v) for k, v in raw["unsupported"].items()}
    return Outcome(Reason(raw["reason"]), int(raw["code"]), str(raw["detail"])[:1000], unsupported, float(raw["cpu_s"]))
