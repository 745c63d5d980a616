"""Runs one program as a guest: what `seamgate run --isolation kvm` calls, from the gateway's event loop.

The program's folder is visible read-only at its own path, /tmp is a private scratch folder, output comes back on the
caller's stdout and stderr, its input comes from the caller's when it reads, and the exit status is the program's.
SIGINT, SIGTERM and SIGHUP go to the program; one that does not end is ended.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from seamgate_vmm.caller import Signals, Streams
from seamgate_vmm.errors import KvmUnusable, ProgramError, TemplateError
from seamgate_vmm.guest import Limits
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.image import Mount
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Outcome
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import OnChange
from seamgate_vmm.ring import Accept, Turn
from seamgate_vmm.template import Job, names, path_of

DEFAULT_TEMPLATE = "python"
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
        said = (done.stderr.strip() or done.stdout.strip()).removeprefix("error: ")
        kind = KvmUnusable if done.returncode == _MISSING else TemplateError
        raise kind(said or "the template could not be built")
    return path


async def run_program(
    command: Sequence[str],
    *,
    accept: Accept,
    names_table: NameTable | None = None,
    turn: Turn | None = None,
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

    command: as typed, beginning with `python`. accept, turn: decide about each stream, and when (ring.py). folder:
    visible read-only at its own path, and the working directory; the current one by default. mounts: what is visible
    beside it. hide: files of the host that the guest must not read, wherever they are. on_ready: called with the tier,
    "hardware" or "nested", when the template is loaded and the program is about to start. env: what the guest gets
    beside the base environment; nothing is inherited. idle: what it gives back while it waits. on_change: told when it
    is hibernated and resumed. grace_s: how long it has to end after a SIGTERM or SIGHUP to this process. stdin: a
    descriptor that is read when and as far as the program reads; None: its stdin is at its end. Raises: ProgramError
    (exit status 2), TemplateError, KvmUnusable (3), VmmError.
    """
    argv = python_arguments(command)
    with Signals(grace_s) as signals:
        try:
            path = await asyncio.to_thread(ensure_template, template)
            place = str((folder or Path.cwd()).resolve())
            folders = [Mount(place, place)] if place != "/" else []
            async with Pool(path, mounts=[*folders, *mounts], hide=hide, limits=limits, idle=idle) as pool:
                if on_ready is not None:
                    on_ready(pool.tier)
                with Streams(stdin, stdout, stderr) as streams:
                    signals.guest = await pool.start(
                        Job(argv, dict(env or {}), place, streams.terminals),
                        accept=accept,
                        names=names_table,
                        turn=turn,
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


def explain(outcome: Outcome) -> list[str]:
    """Return what a person should read on stderr after a guest: refused calls and an unnatural end."""
    lines = [
        f"seamgate: the guest asked for `{name}`, which microVMs do not have: use --isolation netns where it matters"
        for name in outcome.unsupported
    ]
    if not outcome.natural:
        lines.append(f"seamgate: the guest ended: {outcome}")
    return lines
