"""Runs one program as a guest: what `seamgate run --isolation kvm` calls, from the gateway's event loop.

The program's folder is visible read-only at its own path, /tmp is a private scratch folder, output comes back on the
caller's stdout and stderr, its input comes from the caller's when it reads, and the exit status is the program's.
SIGINT, SIGTERM and SIGHUP go to the program; one that does not end is ended.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from seamgate_vmm.errors import KvmUnusable, ProgramError, TemplateError
from seamgate_vmm.guest import Limits
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.image import Mount
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import OnChange, PooledGuest
from seamgate_vmm.ring import Accept
from seamgate_vmm.standard_input import Feed
from seamgate_vmm.template import Job, names, path_of

DEFAULT_TEMPLATE = "python"
_RELAY_BYTES = 1 << 16
GRACE_S = 10.0
_MISSING = 3  # exit status of the command line where a prerequisite is missing


def python_arguments(command: Sequence[str]) -> list[str]:
    """Return what follows the interpreter in a command.

    Raises: ProgramError if the command is not a Python program.
    """
    if command:
        name = os.path.basename(command[0])
        if name.startswith("python") and name[6:].replace(".", "").isdigit() | (name == "python"):
            return list(command[1:])
        if command[0].endswith(".py"):
            return list(command)
    shown = command[0] if command else "(nothing)"
    raise ProgramError(
        f"a kvm guest runs Python programs; {shown!r} is none: begin with `python`, or use --isolation netns"
    )


def ensure_template(name: str, venv: Path | None = None) -> Path:
    """Return a template's file, building it if it is missing and is the default one or that of a virtual environment:
    in a process of its own, for KVM is not for the gateway's.

    Raises: TemplateError, with what the build said; KvmUnusable.
    """
    path = path_of(name)
    if path.exists():
        return path
    if name != DEFAULT_TEMPLATE and venv is None:
        known = ", ".join(names()) or "none yet"
        raise TemplateError(
            f"no template {name!r} (there are: {known}); build it with `seamgate vm template build {name}`"
        )
    package = str(Path(__file__).resolve().parent.parent)
    code = f"import sys; sys.path.insert(0, {package!r}); from seamgate_vmm.cli import vm; vm()"
    command = [sys.executable, "-c", code, "template", "build", name, "--quiet"]
    if venv is not None:
        command += ["--venv", str(venv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).removeprefix("seamgate: ")
        kind = KvmUnusable if done.returncode == _MISSING else TemplateError
        raise kind(said or "the template could not be built")
    return path


class _Relay:
    """Carries what a guest writes to a descriptor of the caller, without making that one non-blocking."""

    def __init__(self, target: int) -> None:
        self._read, self.write = os.pipe()
        self._target = target
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._move)

    def _move(self) -> bool:
        try:
            data = os.read(self._read, _RELAY_BYTES)
        except BlockingIOError:
            return False
        while data:
            try:
                data = data[os.write(self._target, data) :]
            except BrokenPipeError:
                return True  # the reader is gone; the program is not held up
            except BlockingIOError:
                os.set_blocking(self._target, True)
        return True

    def finish(self) -> None:
        """Carry what is left and close."""
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self.write)
        while True:
            try:
                data = os.read(self._read, _RELAY_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            os.write(self._target, data)
        os.close(self._read)


async def run_program(
    command: Sequence[str],
    *,
    accept: Accept,
    names_table: NameTable | None = None,
    template: str = DEFAULT_TEMPLATE,
    folder: Path | None = None,
    mounts: Sequence[Mount] = (),
    hide: Sequence[Path] = (),
    on_ready: Callable[[str], None] | None = None,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    idle: IdlePolicy | None = None,
    on_change: OnChange | None = None,
    grace_s: float = GRACE_S,
    stdin: int | None = None,
    stdout: int = 1,
    stderr: int = 2,
) -> Outcome:
    """Run a Python program in a guest of its own and return how it ended.

    command: as typed, beginning with `python`. accept: decides about each stream (ring.py). folder: visible read-only
    at its own path, and the working directory; the current one by default. mounts: what is visible beside it. hide:
    files of the host that the guest must not read, wherever they are. on_ready: called with the tier, "hardware" or
    "nested", when the template is loaded and the program is about to start. env: what the guest gets beside the base
    environment; nothing is inherited. idle: what it gives back while it waits. on_change: told when it is hibernated
    and resumed. grace_s: how long it has to end after a SIGTERM or SIGHUP to this process.
    stdin: a descriptor that is read when and as far as the program reads; None: its stdin is at its end.
    Raises: ProgramError (exit status 2), TemplateError, KvmUnusable (3), VmmError.
    """
    argv = python_arguments(command)
    with _Signals(grace_s) as signals:
        try:
            path = await asyncio.to_thread(ensure_template, template)
            place = str((folder or Path.cwd()).resolve())
            folders = [Mount(place, place)] if place != "/" else []
            async with Pool(path, mounts=[*folders, *mounts], hide=hide, limits=limits, idle=idle) as pool:
                if on_ready is not None:
                    on_ready(pool.tier)
                with _Streams(stdin, stdout, stderr) as streams:
                    signals.guest = await pool.start(
                        Job(argv, dict(env or {}), place, streams.terminals),
                        accept=accept,
                        names=names_table,
                        stdout=streams.out.write,
                        stderr=streams.err.write,
                        stdin=None if streams.feed is None else streams.feed.read_end,
                        want_input=None if streams.feed is None else streams.feed.want,
                        on_change=on_change,
                    )
                    return signals.judge(await signals.guest.ended())
        except asyncio.CancelledError:
            never = signals.before_it_began()
            if never is None:
                raise
            return never


class _Streams:
    """The standard descriptors of a guest, as long as it runs."""

    def __init__(self, stdin: int | None, stdout: int, stderr: int) -> None:
        self.terminals = [fd for fd, target in enumerate((stdin, stdout, stderr)) if _is_terminal(target)]
        self.out, self.err = _Relay(stdout), _Relay(stderr)
        self.feed = None if stdin is None or not _is_open(stdin) else Feed(stdin)

    def __enter__(self) -> "_Streams":
        return self

    def __exit__(self, *_: object) -> None:
        if self.feed is not None:
            self.feed.close()
        self.out.finish()
        self.err.finish()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _is_terminal(fd: int | None) -> bool:
    return fd is not None and os.isatty(fd)


class _Signals:
    """While inside, signals that ask this process to end ask the guest, which may end in its own way.

    A second SIGINT, or no end within the grace after a SIGTERM or SIGHUP, ends it. Before there is a guest they cancel
    the present task.
    """

    def __init__(self, grace_s: float) -> None:
        self.number: signal.Signals | None = None
        self.guest: PooledGuest | None = None
        self._grace_s = grace_s
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            try:
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            except (ValueError, RuntimeError):
                break  # not the main thread: the caller handles signals
            self._handled.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        again, self.number = self.number is signal.SIGINT is number, number
        if self.guest is None:
            if self._task is not None:
                self._task.cancel()
        elif again:
            self._stop("interrupted twice")
        else:
            self.guest.signal(number)
            if number is not signal.SIGINT and self._timer is None:
                detail = f"{self._grace_s:g} s after {number.name}"
                self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._stop, detail)

    def _stop(self, detail: str) -> None:
        if self.guest is not None:
            self.guest.stop(Reason.IGNORED_STOP, detail)

    def before_it_began(self) -> Outcome | None:
        """Return the outcome of a guest that never began, if that is why the task was cancelled."""
        if self.number is None or self.guest is not None or self._task is None:
            return None
        self._task.uncancel()
        return Outcome(Reason.STOPPED, 128 + self.number, f"by {self.number.name}")

    def judge(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the exit status that a shell gives to what it had to kill."""
        if outcome.reason is Reason.IGNORED_STOP and self.number is not None:
            return replace(outcome, code=128 + self.number)
        return outcome


def explain(outcome: Outcome) -> list[str]:
    """Return what a person should read on stderr after a guest: refused calls and an unnatural end."""
    lines = [
        f"seamgate: the guest asked for `{name}`, which microVMs do not have: use --isolation netns where it matters"
        for name in outcome.unsupported
    ]
    if not outcome.natural:
        lines.append(f"seamgate: the guest ended: {outcome}")
    return lines
