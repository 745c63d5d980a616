"""Guests for tests: small C programs built on the spot, and Python in a template that is built once a run.

Where /dev/kvm is missing these tests are skipped, and say so; where it should be, or does not work, they fail: see
`support.kvm`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seamgate_vmm import ring
from seamgate_vmm import template as templates
from seamgate_vmm.guest import Guest, Limits, State, boot
from seamgate_vmm.host import Host
from seamgate_vmm.image import Mount, View
from seamgate_vmm.outcome import Outcome
from seamgate_vmm.ring import Accept, GuestRing, RingServer
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job, made_up_files, restore, view_of
from support.kvm import need_kvm

SMALL = Limits(memory_bytes=64 << 20, first_memory_bytes=16 << 20, wall_s=20, scratch_bytes=1 << 20, scratch_files=16)
ROOMY = Limits(wall_s=20)


@dataclass
class Result:
    """What a guest said and how it ended."""

    outcome: Outcome
    out: bytes
    err: bytes
    notes: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its stdout as text."""
        return self.out.decode()


class Collect:
    """A console that keeps everything."""

    def __init__(self) -> None:
        self.streams = {1: bytearray(), 2: bytearray()}

    def __call__(self, fd: int, data: bytes) -> int:
        self.streams[fd] += data
        return len(data)


def drive(guest: Guest, wake: int = -1) -> Outcome:
    """Step a guest until it is over."""
    fds = [wake] if wake >= 0 else []
    while guest.step() is not State.OVER:
        if guest.state is State.WAITING:
            wait = guest.wait_s()
            select.select(fds, [], [], 1.0 if wait is None else min(wait, 1.0))
            guest.check_limits()
            if fds:
                try:
                    os.eventfd_read(wake)
                except BlockingIOError:
                    pass
    assert guest.outcome is not None
    return guest.outcome


@pytest.fixture(scope="session")
def host() -> Host:
    """This host; the tests that need it are skipped only if there is no KVM at all."""
    return need_kvm()


@pytest.fixture(scope="session")
def build_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile C into a static program; the same source is compiled once, also where a machine has no compiler."""
    kept = os.environ.get("SEAMGATE_TEST_PROGRAMS")  # filled on one machine and used on another (qemu/)
    folder = Path(kept) if kept else tmp_path_factory.mktemp("c")

    def build(code: str) -> Path:
        target = folder / hashlib.sha256(code.encode()).hexdigest()[:24]
        if not target.exists():
            source = target.with_suffix(".c")
            source.write_text(code)
            subprocess.run(["gcc", "-O1", "-static", "-w", "-o", str(target), str(source)], check=True, timeout=100)
        return target

    return build


RunC = Callable[..., Result]


@pytest.fixture
def run_c(host: Host, build_c: Callable[[str], Path], tmp_path: Path) -> RunC:
    """Run C as a guest: run_c(code, *arguments, limits=..., mounts=...)."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(code: str, *arguments: str, limits: Limits = SMALL, mounts: Sequence[Mount] = ()) -> Result:
        console = Collect()
        view = View([Mount("/tmp", str(scratch), writable=True), *mounts], made_up_files())
        guest = boot(host, view, build_c(code), ["guest", *arguments], {"KEY": "value"}, console, limits)
        try:
            outcome = drive(guest)
            return Result(outcome, bytes(console.streams[1]), bytes(console.streams[2]), guest.notes)
        finally:
            guest.close()

    return run


@pytest.fixture(scope="session")
def template(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """The standard template, built for this run."""
    before = os.environ.get("SEAMGATE_TEMPLATES")
    os.environ["SEAMGATE_TEMPLATES"] = str(tmp_path_factory.mktemp("templates"))
    try:
        templates.build(host, "test")
        loaded = templates.open_template("test", host)
        yield loaded
        loaded.close()
    finally:
        if before is None:
            del os.environ["SEAMGATE_TEMPLATES"]
        else:
            os.environ["SEAMGATE_TEMPLATES"] = before


RunPython = Callable[..., Result]


@pytest.fixture
def run_python(host: Host, template: Loaded, tmp_path: Path) -> RunPython:
    """Run Python in a restored guest: run_python(code, limits=..., argv=..., env=..., mounts=...)."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def run(
        code: str,
        *,
        argv: Sequence[str] | None = None,
        env: dict[str, str] | None = None,
        limits: Limits = ROOMY,
        mounts: Sequence[Mount] = (),
        cwd: str = "/",
    ) -> Result:
        console = Collect()
        view = view_of(template.meta.roots, [Mount("/tmp", str(scratch), writable=True), *mounts])
        job = Job(list(argv) if argv is not None else ["-c", code], env or {}, cwd)
        guest = restore(host, template, job, view, console, limits)
        try:
            outcome = drive(guest)
            return Result(outcome, bytes(console.streams[1]), bytes(console.streams[2]), guest.notes)
        finally:
            guest.close()

    return run


@pytest.fixture
def run_with_ring(host: Host, template: Loaded) -> Callable[[str, Accept], Result]:
    """Run Python in a guest whose streams `accept` decides about, on an event loop of this process."""

    def run(code: str, accept: Accept) -> Result:
        async def both() -> Result:
            console, ring = Collect(), GuestRing.create()
            violations: list[str] = []
            server = RingServer(ring, accept, on_violation=violations.append)
            server.start()
            view = view_of(template.meta.roots)
            guest = restore(
                host, template, Job(["-c", code], {}), view, console, ROOMY, ring=(ring.memory, ring.doorbell)
            )
            try:
                outcome = await asyncio.to_thread(drive, guest, ring.wake)
            finally:
                guest.close()
                server.close()
                ring.close()
            assert not violations
            return Result(outcome, bytes(console.streams[1]), bytes(console.streams[2]))

        return asyncio.run(both())

    return run


@pytest.fixture
def patient_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no guest's slowness for silence: the gateway reads a greeting that comes late, these upstreams do not."""
    monkeypatch.setattr(ring, "_GREETING_WAIT_S", 30.0)
