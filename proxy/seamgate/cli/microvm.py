"""`seamgate run --isolation kvm`: a Python program as a guest without a kernel, under a gateway in this process.

Called by `seamgate.cli.isolation`. The machine belongs to worker processes of `seamgate_vmm`; here are the program's
Python and its template, what it may see of the files, its environment, and how its end is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seamgate import launch
from seamgate.entry.identity import make_guest
from seamgate.errors import ConfigError, PrerequisiteMissing
from seamgate.flow import Isolation
from seamgate.gateway import Gateway

if TYPE_CHECKING:
    from seamgate.cli.isolation import Run

_ASK_S = 10.0
_NOT_BUILT = "its C parts are not built for this machine (Linux on x86-64): run `make build`"


class NotPython(Exception):
    """The command is no Python program that a guest can run; the message says why."""


class PythonProgram(NamedTuple):
    """A command as a guest runs it.

    Attributes:
        command: beginning with `python`.
        template: name of the template.
        venv: the virtual environment that the template is made of, if it is not there yet.
        folder: of a script outside of the current folder, which has to be visible too.
        is_ours: whether the template was chosen, and so is made, by us.
    """

    command: Sequence[str]
    template: str
    venv: Path | None
    folder: Path | None
    is_ours: bool = True


def path_of_template(name: str) -> Path:
    """Return the file of a template."""
    from seamgate_vmm.template import path_of

    return path_of(name)


def template_files() -> list[Path]:
    """Return what no guest of another isolation may write: what microVMs are restored from. Makes its folder."""
    try:
        from seamgate_vmm.template import directory, names, path_of
    except ImportError:  # where no microVM can be run, no template is read
        return []
    folder = directory()
    with contextlib.suppress(OSError):  # where this user can't make it, a guest can't put anything there either
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The first stands for the folder; the others are held by themselves where the program's command names one.
    return [folder / "any", *[path_of(name) for name in names()]]


def find_python(command: Sequence[str], template: str = "") -> PythonProgram:
    """Find out which Python a command runs, and so which template.

    Raises:
        NotPython: it is no Python program, or one that a template can't be made of.
        FileNotFoundError: there is no such program.
        PrerequisiteMissing: the C parts are not built.
    """
    try:
        from seamgate_vmm.errors import ProgramError
        from seamgate_vmm.runner import DEFAULT_TEMPLATE, python_arguments
    except ImportError as error:
        raise PrerequisiteMissing(_NOT_BUILT) from error
    try:
        arguments = python_arguments(command)
    except ProgramError as error:
        raise NotPython(str(error)) from error
    script = command[0].endswith(".py")
    interpreter = Path(launch.find_program([sys.executable if script else command[0]], os.environ)[0])
    folder = _script_folder(arguments)
    found = ["python", *arguments]
    if template:
        return PythonProgram(found, template, None, folder, is_ours=False)
    for candidate in _interpreters(interpreter):
        venv = candidate.absolute().parent.parent
        if (venv / "pyvenv.cfg").exists():
            return PythonProgram(found, f"venv-{hashlib.sha256(os.fsencode(venv)).hexdigest()[:12]}", venv, folder)
        if candidate.resolve() == Path(getattr(sys, "_base_executable", sys.executable)).resolve():
            return PythonProgram(found, DEFAULT_TEMPLATE, None, folder)
    raise NotPython(
        f"{interpreter} is not the Python that Seamgate runs on; make a virtual environment of it, or use "
        "--isolation netns"
    )


def _interpreters(program: Path) -> Iterator[Path]:
    """Return a program, and what it says that it is: version managers put scripts in place of interpreters."""
    yield program
    command = [str(program), "-I", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)  # noqa: S603 - theirs
    except (OSError, subprocess.SubprocessError):
        return
    yield Path(done.stdout.strip())


def _script_folder(arguments: Sequence[str]) -> Path | None:
    """Return the folder of the script, if it is not within the current one."""
    for argument in arguments:
        if argument in ("-c", "-m"):
            return None
        if not argument.startswith("-"):
            folder = Path(argument).resolve().parent
            return None if folder.is_relative_to(Path.cwd().resolve()) else folder
    return None


async def run_in_microvm(
    run: Run, program: PythonProgram, say: Callable[[str], None], explain: Callable[[str], None]
) -> int:
    """Run the program as a guest and return its exit code.

    Args:
        say: told which isolation it is, once that is certain.
        explain: told at the end what a person should know.

    Raises:
        PrerequisiteMissing: this machine can't; the program has not begun.
        ConfigError: the template can't be used or made.
    """
    from seamgate_vmm.errors import KvmUnusable, TemplateError, VmmError

    try:
        await _ensure(program, say)
        try:
            return await _run(run, program, say, explain)
        except TemplateError:
            if not program.is_ours:
                raise
        # Made by another version, or for another Python than is there now: nothing has begun, so make it anew.
        path_of_template(program.template).unlink(missing_ok=True)
        await _ensure(program, say)
        return await _run(run, program, say, explain)
    except KvmUnusable as error:
        raise PrerequisiteMissing(str(error)) from error
    except TemplateError as error:
        raise ConfigError(str(error)) from error
    except VmmError as error:
        raise PrerequisiteMissing(f"the microVM did not start: {error}") from error


async def _ensure(program: PythonProgram, say: Callable[[str], None]) -> None:
    """Have the template made, if it is not there or no longer fits."""
    from seamgate_vmm.runner import ensure_template

    if program.is_ours and not path_of_template(program.template).exists():
        say(f"making the template {program.template!r} of this Python; the next run finds it")
    await asyncio.to_thread(ensure_template, program.template, program.venv)


async def _run(run: Run, program: PythonProgram, say: Callable[[str], None], explain: Callable[[str], None]) -> int:
    from seamgate.entry.ring import RingGuest
    from seamgate_vmm.idle import IdlePolicy
    from seamgate_vmm.image import Mount
    from seamgate_vmm.names import NameTable
    from seamgate_vmm.outcome import Outcome, Reason
    from seamgate_vmm.runner import explain as explained
    from seamgate_vmm.runner import run_program

    config = run.config
    private = launch.private_config(
        config, token="", labels=run.labels, audit_path=run.journal, isolation=Isolation.KVM
    )
    assert private.entries.kvm is not None
    idle = private.entries.kvm.idle
    async with Gateway(private, facts=run.facts(Isolation.KVM)) as gateway:
        guest = make_guest(launch.GUEST, private.guests[launch.GUEST], Isolation.KVM)
        ring = RingGuest(gateway, guest, private.entries.kvm)
        mounts = [Mount(place, str(gateway.ca_path)) for place in launch.TRUSTED_IN_MICROVM]
        if program.folder is not None:
            mounts.append(Mount(str(program.folder), str(program.folder)))
        begun: list[str] = []  # how it is isolated, once it begins

        def on_ready(tier: str) -> None:
            begun.append(tier)
            say(f"isolation kvm ({tier}): a microVM without a kernel, whose only way out is here")

        program_run = run_program(
            program.command,
            accept=ring.accept,
            names_table=NameTable(ring.judge_name),
            turn=ring.turn,
            template=program.template,
            mounts=mounts,
            hide=launch.secret_files(config, run.journal),
            stdin=0,
            idle=IdlePolicy(idle.trim_s, idle.park_s, idle.hibernate_s),
            on_change=ring.changed,
            env=launch.microvm_environment(config, run.environ),
            on_ready=on_ready,
        )
        try:
            outcome = await program_run
        except BaseException as error:
            if begun:  # each guest has its end on record, also one that nobody can tell about any more
                ring.ended(Outcome(Reason.MACHINE_FAILED, 70, f"its end was not told: {type(error).__name__}"))
            raise
        ring.ended(outcome)
        for line in explained(outcome):
            explain(line)
        return outcome.code
