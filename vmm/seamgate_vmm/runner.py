"""Runs one program as a guest: what `seamgate run --isolation kvm` calls, from the gateway's event loop.

The program's folder is visible read-only at its own path, /tmp is a private scratch folder, output comes back on the
caller's stdout and stderr, and the exit status is the program's. The first Ctrl-C goes to the program, the second ends
the guest.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from seamgate_vmm.errors import KvmUnusable, ProgramError, TemplateError
from seamgate_vmm.guest import Limits
from seamgate_vmm.image import Mount
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Outcome
from seamgate_vmm.pool import Pool, PooledGuest
from seamgate_vmm.ring import Accept
from seamgate_vmm.template import Job, names, path_of

DEFAULT_TEMPLATE = "python"
_RELAY_BYTES = 1 << 16
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
    stdout: int = 1,
    stderr: int = 2,
) -> Outcome:
    """Run a Python program in a guest of its own and return how it ended.

    command: as typed, beginning with `python`. accept: decides about each stream (ring.py). folder: visible read-only
    at its own path, and the working directory; the current one by default. mounts: what is visible beside it. hide:
    files of the host that the guest must not read, wherever they are. on_ready: called with the tier, "hardware" or
    "nested", when the template is loaded and the program is about to start. env: what the guest gets beside the base
    environment; nothing is inherited.
    Raises: ProgramError (exit status 2), TemplateError, KvmUnusable (3), VmmError.
    """
    argv = python_arguments(command)
    path = await asyncio.to_thread(ensure_template, template)
    place = str((folder or Path.cwd()).resolve())
    folders = [Mount(place, place)] if place != "/" else []
    async with Pool(path, mounts=[*folders, *mounts], hide=hide, limits=limits) as pool:
        if on_ready is not None:
            on_ready(pool.tier)
        relays = [_Relay(stdout), _Relay(stderr)]
        try:
            guest = await pool.start(
                Job(argv, dict(env or {}), place),
                accept=accept,
                names=names_table,
                stdout=relays[0].write,
                stderr=relays[1].write,
            )
            with _CtrlC(guest):
                outcome = await guest.ended()
        finally:
            for relay in relays:
                relay.finish()
    return outcome


class _CtrlC:
    """While inside, SIGINT goes to the guest; the second one ends it."""

    def __init__(self, guest: PooledGuest) -> None:
        self._guest = guest
        self._asked = False

    def __enter__(self) -> None:
        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_signal)
        except (ValueError, RuntimeError):
            pass  # not the main thread: the caller handles signals

    def __exit__(self, *_: object) -> None:
        try:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        except (ValueError, RuntimeError):
            pass

    def _on_signal(self) -> None:
        if self._asked:
            self._guest.stop(detail="interrupted twice")
        else:
            self._asked = True
            self._guest.interrupt()


def explain(outcome: Outcome) -> list[str]:
    """Return what a person should read on stderr after a guest: refused calls and an unnatural end."""
    lines = [f"seamgate: the guest asked for `{name}`, which guests do not have" for name in outcome.unsupported]
    if not outcome.natural:
        lines.append(f"seamgate: the guest ended: {outcome}")
    return lines
