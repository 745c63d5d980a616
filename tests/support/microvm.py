"""Runs Python as a guest in a real microVM under a lab's gateway, within the test's own loop. Needs KVM."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from seamgate.config import KvmEntry
from seamgate.entry.ring import RingGuest
from seamgate_vmm.guest import Limits
from seamgate_vmm.image import Mount
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Outcome
from seamgate_vmm.runner import ensure_template, run_program
from support.kvm import need_kvm
from support.lab import Lab
from support.ring import GUEST

_LIMITS = Limits(wall_s=90, memory_bytes=512 << 20)


@contextmanager
def own_template(folder: Path) -> Iterator[str]:
    """The template of this virtual environment, as `seamgate run` makes it, in a folder of its own; its name."""
    need_kvm()
    before = os.environ.get("SEAMGATE_TEMPLATES")
    os.environ["SEAMGATE_TEMPLATES"] = str(folder)
    try:
        ensure_template("venv-test", Path(sys.prefix))
        yield "venv-test"
    finally:
        del os.environ["SEAMGATE_TEMPLATES"]
        if before is not None:
            os.environ["SEAMGATE_TEMPLATES"] = before


class Ended(msgspec.Struct):
    """How a guest ended, and what it said."""

    outcome: Outcome
    out: str
    err: str


async def run_guest(
    lab: Lab,
    template: str,
    code: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    entry: KvmEntry | None = None,
    mounts: Sequence[Mount] = (),
    hide: Sequence[Path] = (),
) -> Ended:
    """Run Python code in a guest to its end; its streams and names go to the lab's gateway."""
    ring = RingGuest(lab.gateway, GUEST, entry or KvmEntry())
    pipes = [os.pipe(), os.pipe()]
    said = [asyncio.to_thread(_read, read) for read, _ in pipes]
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(each) for each in said]
        try:
            outcome = await run_program(
                ["python", "-c", code, *arguments],
                accept=ring.accept,
                names_table=NameTable(ring.judge_name),
                template=template,
                folder=lab.folder,
                mounts=mounts,
                hide=hide,
                env=env,
                limits=_LIMITS,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
            )
        finally:
            for _, write in pipes:
                os.close(write)
    ring.ended(outcome)
    return Ended(outcome, *(each.result().decode() for each in reading))


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()
