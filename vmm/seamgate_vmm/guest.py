"""One guest's life: cold start from a program or restore from a template, step by step, until it ends.

Runs on: one thread, the one that made it. `worker.py` steps many of these in turn; template building and tests step
one. A step ends when the guest's slice is over, when it waits, or when it is over. The guest is hostile: whatever it
asks is checked here or in the machine, and an impossible request ends it.
"""

import enum
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from seamgate_vmm import _kvm
from seamgate_vmm.elf import Layout, load_program, read_elf
from seamgate_vmm.errors import VmmError
from seamgate_vmm.files import FileService, Scratch
from seamgate_vmm.host import Host, shim_file
from seamgate_vmm.image import View
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.syscalls import syscall_name

MIB = 1 << 20
UNNATURAL = 70  # EX_SOFTWARE: the exit status of a guest that did not end by itself
_CONSOLE_CHUNK = 1 << 16
_MIN_RUN_US = 200  # entering a machine costs 30 us; less than this is not worth it
_MAX_UNSUPPORTED = 256
_MAX_NOTES = 64
# What a restored guest may ask before it has confirmed that its randomness is its own: nothing that can be seen.
_BEFORE_RESEED = frozenset({_kvm.HOST_RANDOM, _kvm.HOST_GROW, _kvm.HOST_RELEASE, _kvm.HOST_CONTROL_WRITE})
_FIRST_NS = 1_000_000_000  # a new guest's monotonic clock: not zero, which some programs take for unset
_VECTORS = {
    0: "division error",
    1: "single step",
    3: "breakpoint",
    6: "invalid instruction",
    7: "no FPU",
    8: "double fault",
    12: "stack fault",
    13: "protection fault",
    14: "bad address",
    16: "floating-point error",
    17: "misaligned access",
    19: "SIMD floating-point error",
}

Console = Callable[[int, bytes], int]
"""(descriptor 1 or 2, bytes) -> how many were taken; 0: none now, ask again later."""


class Input(Protocol):
    """Where a guest's standard input comes from. Neither call waits."""

    def read(self, size: int) -> bytes | None:
        """Return at most so many bytes, b"" at the end, None if there are none now: `Guest.announce_input` follows."""
        ...

    def ready(self) -> bool:
        """Return whether a read would give something or the end. If not, `Guest.announce_input` follows."""
        ...


class State(enum.Enum):
    """What a guest is doing between two steps."""

    READY = "ready"  # step it
    WAITING = "waiting"  # until `deadline_ns` (guest clock), or until its ring rings
    CONSOLE = "console"  # until the console takes bytes
    RENDEZVOUS = "rendezvous"  # it reads its job: answer with `give_job`
    RESTING = "resting"  # it stands still, as its owner asked for (`ask_rest`): `go_on`
    OVER = "over"  # see `outcome`


@dataclass(frozen=True, slots=True)
class Limits:
    """What a guest may use. Sizes in bytes; a time of 0 means no limit."""

    memory_bytes: int = 256 * MIB
    first_memory_bytes: int = 64 * MIB  # 2.5 KiB of kernel memory a MiB on shadow paging: not more than it needs
    scratch_bytes: int = 64 * MIB
    scratch_files: int = 4096
    cpu_s: float = 0.0
    wall_s: float = 0.0
    output_bytes: int = 0  # 0: no limit


@dataclass(slots=True)
class Usage:
    """What a guest has used. Time in which it stood still does not count."""

    output_bytes: int = 0
    cpu_ns: int = 0  # of the guest, and of answering it: who asks without end pays for the answers
    ran_s: float = 0.0  # before `since`
    since: float = field(default_factory=time.monotonic)

    def wall_s(self) -> float:
        """Return for how long it has run."""
        return self.ran_s + time.monotonic() - self.since


class Guest:
    """A machine with a program in it. Made by `boot` or by `Template.restore`."""

    def __init__(
        self,
        machine: _kvm.Machine,
        files: FileService,
        console: Console,
        limits: Limits,
        layout: Layout,
        pid: int,
    ) -> None:
        self.machine = machine
        self.files = files
        self.limits = limits
        self.layout = layout
        self.pid = pid
        self.state = State.READY
        self.deadline_ns: int | None = None
        self.can_wake = False
        self.outcome: Outcome | None = None
        self.unsupported: Counter[str] = Counter()
        self.notes: list[bytes] = []
        self.refused_memory = False  # it once asked for more than its limit
        self.input: Input | None = None  # None: at its end
        self._console = console
        self._early_signals: list[int] = []
        self._nudged = False  # something came that it has not looked at: it does not sleep before it has
        self._usage = Usage()
        self._rest = _kvm.REST_NONE  # what it was asked for
        self._was_asked = False
        self._pending: tuple[int, ...] | None = None
        self._expected: bytes | None = None
        self._expected_by = 0.0

    def __repr__(self) -> str:
        return f"<Guest pid {self.pid} {self.state.value}>"

    # ---- stepping

    def step(self, slice_us: int = 10_000) -> State:
        """Run the guest for a slice, or until it waits or is over; return its state."""
        before = time.thread_time_ns()
        try:
            return self._step(slice_us)
        finally:
            self._usage.cpu_ns += time.thread_time_ns() - before
            if self.outcome is not None:
                self.outcome = replace(self.outcome, cpu_s=self._usage.cpu_ns / 1e9)

    def _step(self, slice_us: int) -> State:
        if self.state in (State.OVER, State.RESTING):
            return self.state
        if self.state is State.WAITING:
            self.machine.reply(0)
        elif self._pending is not None and not self._answer(self._pending):
            return self.state
        self.state, self._pending = State.READY, None
        end = time.monotonic() + slice_us / 1e6
        waiting_for_note = self._expected is not None
        while self.state is State.READY:
            if waiting_for_note and self._expected is None:
                break  # it is its own now: say so before it goes on
            left = int((end - time.monotonic()) * 1e6)
            if left < _MIN_RUN_US:
                break
            self._one_exit(self.machine.run(left))
        if self.state is not State.OVER:
            self.check_limits()
        return self.state

    def _one_exit(self, why: int) -> None:
        if why == _kvm.RUN_REQUEST:
            request = self.machine.request()
            if not self._answer(request):
                self._pending = None if self.state is State.WAITING else request
        elif why == _kvm.RUN_TRAP:
            self._end(Reason.FAULT, UNNATURAL, self._trap_text())
        elif why == _kvm.RUN_MEMORY:
            self._end(
                Reason.OUT_OF_MEMORY_RANGE, UNNATURAL, f"touched address {self.machine.exit[1]:#x}, no memory there"
            )
        elif why != _kvm.RUN_SLICE:
            reason, detail = self.machine.exit
            text = os.strerror(detail) if why == _kvm.RUN_ERROR else f"KVM exit {reason}, detail {detail}"
            self._end(Reason.MACHINE_FAILED, UNNATURAL, text)

    def _trap_text(self) -> str:
        vector, error, rip, _, _, rsp, address = self.machine.trap()
        name = _VECTORS.get(vector, f"exception {vector}")
        where = f" {address:#x}" if vector == 14 else ""
        return f"{name}{where} at instruction {rip:#x}, stack {rsp:#x}, error {error:#x}"

    def check_limits(self) -> bool:
        """End the guest if it is over a limit, also one that only waits; return True if that ended it."""
        limits = self.limits
        if self._expected is not None and time.monotonic() > self._expected_by:
            self._end(Reason.NOT_RESEEDED, UNNATURAL, "it did not confirm its fresh randomness in time")
        elif limits.cpu_s and self._usage.cpu_ns > limits.cpu_s * 1e9:
            self._end(Reason.CPU_LIMIT, UNNATURAL, f"used more than {limits.cpu_s:g} s of CPU time")
        elif limits.wall_s and self._usage.wall_s() > limits.wall_s:
            self._end(Reason.WALL_LIMIT, UNNATURAL, f"ran longer than {limits.wall_s:g} s")
        return self.outcome is not None

    def _end(self, reason: Reason, code: int, detail: str = "") -> None:
        self.state = State.OVER
        self.outcome = Outcome(reason, code, detail, dict(self.unsupported), self._usage.cpu_ns / 1e9)

    def stop(self, reason: Reason = Reason.STOPPED, detail: str = "", code: int = UNNATURAL) -> None:
        """End the guest now, whatever it does."""
        if self.state is not State.OVER:
            self._end(reason, code, detail)

    def close(self) -> None:
        """Free the machine and the open files. The outcome stays."""
        self.stop()
        self.files.close()
        self.machine.close()

    def signal(self, number: int) -> None:
        """Send SIGINT, SIGTERM or SIGHUP; step a waiting guest afterwards. Raises: ValueError for another one.

        A guest that has not confirmed its randomness gets it when it does: before that it may not show anything.
        """
        if not self.confirmed:
            self._early_signals.append(number)
            return
        self.machine.signal(number)
        self._nudged = True

    def announce_input(self) -> None:
        """Say that standard input, which had nothing, has something now; step a waiting guest afterwards."""
        self.machine.announce_input()
        self._nudged = True

    # ---- standing still

    def ask_rest(self, kind: int) -> None:
        """Ask it to stand still, for REST_PARK or REST_HIBERNATE; step it until it is RESTING. REST_NONE takes it back.

        Raises: VmmError if it has not begun its program.
        """
        if not self.confirmed:
            raise VmmError(f"{self!r} has not begun yet")
        self.machine.ask_rest(kind)
        self._rest = kind
        self._nudged = kind != _kvm.REST_NONE
        self._was_asked = True

    def _stand_still(self) -> int | None:
        if self._rest == _kvm.REST_NONE:
            if self._was_asked:
                return 0  # it was taken back when the shim had read it already
            self._end(Reason.BAD_REQUEST, UNNATURAL, "it stands still, and nobody asked for it")
            return None
        self.machine.ask_rest(_kvm.REST_NONE)
        self._usage.ran_s = self._usage.wall_s()
        self.state = State.RESTING
        return None

    def go_on(self) -> None:
        """Let a resting guest go on with its next step."""
        self._rest = _kvm.REST_NONE
        self._pending = None
        self._usage.since = time.monotonic()
        self.machine.reply(0)
        self.state = State.READY

    def usage(self) -> Usage:
        """Return what it has used."""
        return self._usage

    def resumed(self, usage: Usage) -> None:
        """Say that this is a guest that stood still elsewhere, and had used that much."""
        self._usage = usage
        self.state = State.RESTING

    # ---- requests

    def _answer(self, request: tuple[int, ...]) -> bool:
        """Answer a request. Return False if it cannot be answered now; the state says what it waits for."""
        op, *arguments = request
        if self._expected is not None and op not in _BEFORE_RESEED:
            self._end(Reason.NOT_RESEEDED, UNNATURAL, f"request {op} came before the confirmation")
            return False
        result = self.files.handle(op, tuple(arguments))
        if result is None:
            result = self._other(op, arguments)
        if result is None:
            return False
        if isinstance(result, tuple):
            self.machine.reply(*result)
        else:
            self.machine.reply(result)
        return True

    def _other(self, op: int, a: list[int]) -> int | None:
        if op == _kvm.HOST_WRITE:
            return self._write_console(a[0], a[1], a[2])
        if op == _kvm.HOST_READ:
            return self._read_input(a[0], a[1])
        if op == _kvm.HOST_IDLE:
            return self._idle(a[0], bool(a[1]))
        if op == _kvm.HOST_RANDOM:
            length = min(a[1], 1 << 20)
            return self._to_guest(a[0], os.urandom(length))
        if op == _kvm.HOST_GROW:
            end = self.machine.grow(a[0])
            self.refused_memory |= end < 0
            return end
        if op == _kvm.HOST_RELEASE:
            return self.machine.release(a[0], a[1])
        if op == _kvm.HOST_UNSUPPORTED:
            if len(self.unsupported) < _MAX_UNSUPPORTED:
                self.unsupported[syscall_name(a[0])] += 1
            return 0
        if op == _kvm.HOST_CONTROL_WRITE:
            return self._take_note(a[0], a[1])
        if op == _kvm.HOST_REST:
            return self._stand_still()
        self._ending(op, a)
        return None

    def _ending(self, op: int, a: list[int]) -> None:
        if op == _kvm.HOST_EXIT:
            self._end(Reason.EXITED, a[0] & 0xFF)
        elif op == _kvm.HOST_ABORT:
            self._end(Reason.SIGNALLED, 128 + (a[0] & 0x7F), f"signal {a[0] & 0x7F}")
        elif op == _kvm.HOST_CONTROL_READ:
            self.state = State.RENDEZVOUS
        else:
            self._end(Reason.BAD_REQUEST, UNNATURAL, f"request {op}")

    def _to_guest(self, address: int, data: bytes) -> int:
        try:
            self.machine.write(address, data)
        except IndexError:
            return -14  # EFAULT
        return len(data)

    def _from_guest(self, address: int, length: int) -> bytes | None:
        try:
            return self.machine.read(address, length)
        except IndexError:
            return None

    def _write_console(self, fd: int, address: int, length: int) -> int | None:
        data = self._from_guest(address, min(length, _CONSOLE_CHUNK))
        if data is None or fd not in (1, 2):
            return -14 if data is None else -9
        taken = self._console(fd, data)
        if taken == 0:
            self.state = State.CONSOLE
            return None
        self._usage.output_bytes += taken
        if self.limits.output_bytes and self._usage.output_bytes > self.limits.output_bytes:
            self._end(Reason.OUTPUT_LIMIT, UNNATURAL, f"wrote more than {self.limits.output_bytes} bytes")
            return None
        return taken

    def _read_input(self, address: int, length: int) -> int:
        if self.input is None:
            return 1 if length == 0 else 0
        if length == 0:
            return 1 if self.input.ready() else -errno.EAGAIN
        data = self.input.read(min(length, _CONSOLE_CHUNK))
        return -errno.EAGAIN if data is None else self._to_guest(address, data)

    def _idle(self, deadline_ns: int, can_wake: bool) -> int | None:
        if self._nudged:
            self._nudged = False
            return 0
        if deadline_ns == 0 and not can_wake:
            self._end(Reason.DEADLOCK, UNNATURAL, "every thread waits, and nothing can wake one")
            return None
        if deadline_ns and self.machine.now_ns() >= deadline_ns:
            return 0
        self.state, self.deadline_ns, self.can_wake = State.WAITING, deadline_ns or None, can_wake
        return None

    def _take_note(self, address: int, length: int) -> int:
        data = self._from_guest(address, min(length, 4096))
        if data is None:
            return -14
        if data == self._expected:
            self._expected = None
            for number in self._early_signals:
                self.machine.signal(number)
        elif len(self.notes) < _MAX_NOTES:
            self.notes.append(data)
        return len(data)

    def expect_note(self, note: bytes, within_s: float) -> None:
        """Allow nothing visible until the guest has sent this note: it proves that it ran its reseeding."""
        self._expected, self._expected_by = note, time.monotonic() + within_s

    @property
    def confirmed(self) -> bool:
        """True once the guest has confirmed its fresh randomness, or if none was asked for."""
        return self._expected is None

    def wait_s(self) -> float | None:
        """Seconds until a waiting guest wants to go on; None if only its ring can wake it."""
        if self.deadline_ns is None:
            return None
        return max(0.0, (self.deadline_ns - self.machine.now_ns()) / 1e9)

    # ---- the rendezvous of a template

    def give_job(self, job: bytes) -> None:
        """Answer a guest at its rendezvous; it goes on with its next step. Raises: VmmError if it does not fit."""
        if self.state is not State.RENDEZVOUS:
            raise VmmError(f"{self!r} is not at its rendezvous")
        request = self._pending or self.machine.request()
        self.answer_rendezvous(request[1], request[2], job)

    def answer_rendezvous(self, address: int, room: int, job: bytes) -> None:
        """Write the job where the template asked for it."""
        if len(job) > room:
            raise VmmError(
                f"the job has {len(job)} bytes; this template takes {room}; shorten arguments and environment"
            )
        self.machine.write(address, job)
        self.machine.reply(len(job))
        self._pending = None
        self.state = State.READY

    # ---- reports

    def calls(self) -> dict[str, int]:
        """How often each system call was made, as the guest counts it: for reports, never for policy."""
        raw = memoryview(self.machine.control)[_kvm.CONTROL_CALLS_OFFSET :].cast("I")
        return {syscall_name(n): raw[n] for n in range(_kvm.SYSCALL_COUNTERS) if raw[n]}


def round_memory(size: int) -> int:
    """Round up to what a machine takes: whole 2 MiB."""
    return -(-size // (2 * MIB)) * 2 * MIB


def boot(
    host: Host,
    view: View,
    program: Path,
    arguments: Sequence[str],
    environment: dict[str, str],
    console: Console,
    limits: Limits | None = None,
    *,
    cwd: str = "/",
    pid: int = 1000,
    image: int = -1,
) -> Guest:
    """Start a program in a new machine, cold.

    program: an ELF program, by its path on the host, which is its path in the guest too.
    image: a writable memfd to keep the memory in, for building a template; -1: private memory.
    Raises: ProgramError, KvmUnusable.
    """
    limits = limits or Limits()
    first = round_memory(limits.first_memory_bytes)
    elf = read_elf(program.resolve())
    loader = read_elf(Path(elf.interpreter).resolve()) if elf.interpreter else None
    machine = _kvm.Machine(
        host.kvm,
        shim_file(),
        host.landing,
        first,
        max(first, round_memory(limits.memory_bytes)),
        image,
        first if image >= 0 else 0,
        image >= 0,
    )
    try:
        machine.write_fixed()
        machine.write(_kvm.GA_SHIM, shim_file(), True)
        layout = load_program(
            machine,
            elf,
            loader,
            [os.fsencode(a) for a in arguments],
            [os.fsencode(f"{k}={v}") for k, v in environment.items()],
            16 * MIB if first >= 64 * MIB else first // 4,
        )
        set_params(machine, host, layout, _FIRST_NS, 0, pid)
        machine.start()
    except BaseException:
        machine.close()
        raise
    files = FileService(machine, view, Scratch(limits.scratch_bytes, limits.scratch_files), cwd)
    files.program = str(program)
    return Guest(machine, files, console, limits, layout, pid)


def set_params(
    machine: _kvm.Machine, host: Host, layout: Layout, mono_ns: int, generation: int, pid: int, flags: int = 0
) -> None:
    """Write a guest's parameter page; its clocks start now. flags: PARAMS_TERMINAL bits."""
    machine.set_params(
        host.tsc_khz,
        mono_ns,
        generation,
        pid,
        layout.brk_start,
        layout.brk_limit,
        layout.mmap_low,
        layout.start_rip,
        layout.start_rsp,
        flags,
    )
