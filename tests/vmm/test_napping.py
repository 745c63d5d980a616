"""Guests that wait for long give back what KVM holds for them, and go on as if nothing had been."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from seamgate_vmm import worker as workers
from seamgate_vmm.channel import Channel
from seamgate_vmm.guest import Limits, State
from seamgate_vmm.host import Host
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.ring import GuestRing
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job, restore, view_of
from seamgate_vmm.worker import Worker
from vmm.conftest import ROOMY, Collect, drive

pytestmark = [pytest.mark.kvm, pytest.mark.timeout(120)]

_ROUNDING = """
import ctypes, threading, time
libm = ctypes.CDLL("libm.so.6")
libm.fesetround(0x800)  # upwards: a flag of the processor, not of memory
local = threading.local()
local.value = 1 / 3
time.sleep(0.3)
print(libm.fegetround(), local.value == 1 / 3, 0.1 + 0.2 > 0.3)
"""


def test_a_waiting_guest_is_parked_and_goes_on(host: Host, template: Loaded) -> None:
    """What only the processor knows (rounding, the thread's base) is kept; KVM's part is made anew."""
    console = Collect()
    guest = restore(host, template, Job(["-c", _ROUNDING], {}), view_of(template.meta.roots), console, ROOMY)
    try:
        while guest.step() is not State.WAITING:
            assert guest.state is State.READY
        guest.machine.park()
        with pytest.raises(ValueError, match="parked"):
            guest.machine.run(1000)
        guest.machine.unpark()
        assert drive(guest).code == 0, console.streams[2]
        assert bytes(console.streams[1]) == b"2048 True True\n"
    finally:
        guest.close()


def test_a_parked_guest_keeps_little_and_every_byte(host: Host, template: Loaded) -> None:
    """What differs little from the template is noted and dropped; it is all there again when the machine is."""
    code = "import json, time\nkept = [list(range(n)) for n in range(300)]\ntime.sleep(0.2)\nprint(sum(map(sum, kept)))"
    console = Collect()
    guest = restore(host, template, Job(["-c", code], {}), view_of(template.meta.roots), console, ROOMY)
    try:
        while guest.step() is not State.WAITING:
            assert guest.state is State.READY
        guest.machine.trim()
        size = template.meta.memory_bytes
        before, own = guest.machine.read(0, size, True), sum(n for _, n in guest.machine.private_pages())
        held = _private_kb()
        guest.machine.park()
        assert held - _private_kb() > own // 1024 // 3  # and what KVM held is not even among these
        with pytest.raises(ValueError, match="parked"):
            guest.machine.read(0, size, True)
        guest.machine.unpark()
        assert guest.machine.read(0, size, True) == before
        assert drive(guest).code == 0
        assert bytes(console.streams[1]) == b"4455100\n"
    finally:
        guest.close()


def _private_kb() -> int:
    """Return what this process alone has written to, in KiB."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


def test_a_parked_guest_can_be_closed(host: Host, template: Loaded) -> None:
    """One that is ended in its sleep leaves nothing open."""
    job, view = Job(["-c", "import time; time.sleep(60)"], {}), view_of(template.meta.roots)
    restore(host, template, job, view, Collect(), ROOMY).close()  # opens what a process opens once
    before = len(os.listdir("/proc/self/fd"))
    guest = restore(host, template, job, view, Collect(), ROOMY)
    while guest.step() is not State.WAITING:
        assert guest.state is State.READY
    guest.machine.park()
    guest.close()
    assert len(os.listdir("/proc/self/fd")) == before


@contextmanager
def _worker(host: Host, template: Loaded, scratch: Path) -> Iterator[tuple[Worker, Channel]]:
    """A worker in a thread of this process, without a jail, and the pool's end of its channel."""
    ours, theirs = Channel.pair()
    policy = IdlePolicy(trim_s=0.05, park_s=0.1)
    worker = Worker(host, template, theirs, view_of(template.meta.roots), scratch, policy)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker, ours
    finally:
        ours.close()
        thread.join(20)
        theirs.close()
    assert not thread.is_alive()


def test_a_worker_lets_guests_nap(
    host: Host, template: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that sleeps is parked after a while, wakes at its time, and what it computes and writes is right."""
    monkeypatch.setattr(workers, "_CHECK_S", 0.05)
    parked = threading.Event()
    awake = Worker._awake

    def noticed(worker: Worker, slot: Any) -> bool:
        parked.set()
        return awake(worker, slot)

    monkeypatch.setattr(Worker, "_awake", noticed)
    read, write = os.pipe()
    ring = GuestRing.create()
    code = "import time\nfor n in range(2):\n    time.sleep(1)\n    print(n, flush=True)"
    with _worker(host, template, tmp_path) as (_, channel), closing(ring):
        message: dict[str, Any] = {"op": "start", "guest": 1, "pid": 2001, "argv": ["-c", code], "env": {}, "cwd": "/"}
        message |= {"terminals": [], "stdin": False, "own_file": None, "limits": asdict(Limits())}
        channel.send(message, (*ring.handles(), write, write))
        told: list[dict[str, Any]] = []
        while not told or told[-1]["op"] != "ended":
            message, _ = channel.receive()
            if message["op"] != "trimmed":  # before it is parked, if there was a look in between
                told.append(message)
        assert [each["op"] for each in told] == ["started", "idle", "busy", "idle", "busy", "ended"]
        assert 0 < told[1]["wait_s"] < 1 and told[1]["waited_s"] > 0.1 and not told[1]["reads"]
        assert (told[-1]["outcome"]["reason"], told[-1]["outcome"]["code"]) == ("exited", 0)
    assert parked.is_set()
    assert os.read(read, 100) == b"0\n1\n"
    os.close(read)
    os.close(write)
