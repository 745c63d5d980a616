"""The bytes of a hibernated guest: damaged, forged or of another template, version or processor, they are refused."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from seamgate_vmm import _kvm, hibernation
from seamgate_vmm.dormant import Seal
from seamgate_vmm.errors import HibernationError
from seamgate_vmm.guest import Guest, State
from seamgate_vmm.host import Host
from seamgate_vmm.outcome import Reason
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job, restore, view_of

from .conftest import ROOMY, Collect, drive


@pytest.fixture(scope="module")
def captured(host: Host, template: Loaded) -> bytes:
    """What a worker makes of a guest that stands still."""
    console = Collect()
    code = "keep = bytearray(b'x' * 3_000_000)\nprint('began', flush=True)\nwhile True: pass"
    guest = restore(host, template, Job(["-c", code], {}), view_of(template.meta.roots), console, ROOMY)
    try:
        while b"began" not in console.streams[1]:
            guest.step()
        guest.ask_rest(_kvm.REST_HIBERNATE)
        while guest.step() is not State.RESTING:
            assert guest.state is not State.OVER, guest.outcome
        return hibernation.capture(guest, template, host)
    finally:
        guest.close()


def _resume(host: Host, loaded: Loaded, data: bytes) -> Guest:
    return hibernation.resume(host, loaded, data, view_of(loaded.meta.roots), Collect(), ROOMY)


def _refused(host: Host, loaded: Loaded, data: bytes, why: str) -> None:
    with pytest.raises(HibernationError, match=why):
        _resume(host, loaded, data).close()


Forge = Callable[[dict[str, Any]], None]


def _forged(data: bytes, change: Forge, pages: bytes | None = None) -> bytes:
    """What a hostile worker could make: anything, with digests that are right."""
    head, text, old_pages = _parts(data)
    raw = json.loads(text)
    change(raw)
    pages = old_pages if pages is None else pages
    raw.setdefault("pages_sha256", hashlib.sha256(pages).hexdigest())
    text = json.dumps(raw).encode()
    head = struct.pack("<8sHHQQ32s", hibernation.MAGIC, 1, 0, len(text), len(pages), _digest(text))
    return head + _digest(head) + text + pages


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    size = struct.calcsize("<8sHHQQ32s")
    meta_bytes = struct.unpack("<8sHHQQ32s", data[:size])[3]
    return data[:size], data[size + 32 : size + 32 + meta_bytes], data[size + 32 + meta_bytes :]


@pytest.mark.kvm
def test_a_capture_is_small_and_goes_on(host: Host, template: Loaded, captured: bytes) -> None:
    """Only what differs from the template is kept, compressed; it runs on from it."""
    assert len(captured) < 1 << 20
    guest = _resume(host, template, captured)
    guest.go_on()
    assert guest.step(20_000) is State.READY
    guest.machine.signal(signal.SIGTERM)
    assert (drive(guest).reason, guest.pid) == (Reason.SIGNALLED, guest.pid)
    guest.close()


@pytest.mark.kvm
def test_damage_is_found(host: Host, template: Loaded, captured: bytes) -> None:
    """Cut anywhere, extended, or any bit changed: refused."""
    for cut in (0, 7, 8, 60, 92, 93, len(captured) // 2, len(captured) - 1):
        _refused(host, template, captured[:cut], "cut short|damaged|are not what")
    _refused(host, template, captured + b"\0", "something was added")
    places = [*range(0, 92), *random.sample(range(92, len(captured)), 150)]
    for at in places:
        bad = bytearray(captured)
        bad[at] ^= 1 << random.randrange(8)
        _refused(host, template, bytes(bad), "damaged|format|no hibernated guest|are not what")


@pytest.mark.kvm
def test_of_another_template_version_or_processor(host: Host, template: Loaded, captured: bytes) -> None:
    """Each is refused with its reason."""
    other = replace(template, meta=replace(template.meta, created="2026-01-01T00:00:00+00:00"))
    _refused(host, other, captured, "of another template")
    _refused(replace(host, cpu_model="Other"), template, captured, "on another processor")
    _refused(replace(host, cpu_flags=host.cpu_flags | {"new"}), template, captured, "on another processor")
    _refused(host, template, _forged(captured, lambda raw: raw.update(wire_abi=1)), "another version of Seamgate")
    _refused(host, template, _forged(captured, lambda raw: raw.update(shim_sha256="0" * 64)), "another version")
    newer = captured[:8] + struct.pack("<H", 2) + captured[10:]
    _refused(host, template, newer, "format 2.0; this version reads 1.x")


def _run(**values: Any) -> Forge:
    return lambda raw: raw["runs"][0].update(values)


_FORGERIES: dict[str, tuple[Forge, str]] = {
    "page tables": (_run(address=_kvm.GA_SHIM - 4096 * 8), "not a guest's to write"),
    "the shim": (_run(address=_kvm.GA_SHIM, length=4096), "not a guest's to write"),
    "parameters": (_run(address=_kvm.GA_PARAMS, length=4096), "not a guest's to write"),
    "the vDSO": (_run(address=_kvm.GA_VDSO, length=4096), "not a guest's to write"),
    "beyond the end": (_run(address=_kvm.GA_END - 4096), "out of range"),
    "before the start": (_run(address=-4096), "make no sense"),
    "not a page": (_run(address=_kvm.GA_STACK + 1), "make no sense"),
    "half a page": (_run(length=2048), "make no sense"),
    "nothing": (_run(length=0), "make no sense"),
    "a bomb": (_run(length=1 << 30), "make no sense"),
    "too long by a page": (lambda raw: raw["runs"][-1].update(length=raw["runs"][-1]["length"] + 4096), "damaged"),
    "outside of the file": (_run(offset=1 << 40), "out of range"),
    "twice": (lambda raw: raw["runs"].append(raw["runs"][0]), "overlap"),
    "no memory": (lambda raw: raw.update(end=0), "size of memory"),
    "too much memory": (lambda raw: raw.update(end=_kvm.GA_END * 2), "size of memory"),
    "more memory than its limit": (lambda raw: raw.update(end=_kvm.GA_END), "more than it may have"),
    "registers": (lambda raw: raw.update(state="00"), "registers of another size"),
    "no hexadecimal": (lambda raw: raw.update(state="zz"), "make no sense"),
    "no number": (lambda raw: raw.update(pid="1"), "make no sense"),
    "a truth": (lambda raw: raw.update(mono_ns=True), "make no sense"),
    "clock": (lambda raw: raw.update(mono_ns=1 << 62), "out of range"),
    "no runs": (lambda raw: raw.update(runs=7), "make no sense"),
    "missing": (lambda raw: raw.pop("files"), "make no sense"),
    "handle": (
        lambda raw: raw["files"].update(open=[{"handle": 0, "path": "/", "flags": 0, "device": 0, "inode": 0}]),
        "open files make no sense",
    ),
}


@pytest.mark.kvm
@pytest.mark.parametrize("name", _FORGERIES)
def test_forgeries(host: Host, template: Loaded, captured: bytes, name: str) -> None:
    """A worker that is in its guest's hands may write anything: what only the host may set is never taken from it."""
    change, why = _FORGERIES[name]
    _refused(host, template, _forged(captured, change), why)


@pytest.mark.kvm
def test_a_forged_instruction_pointer(host: Host, template: Loaded, captured: bytes) -> None:
    """Registers that would start elsewhere than in the shim are refused."""

    def change(raw: dict[str, Any]) -> None:
        state = bytearray.fromhex(raw["state"])
        state[16 * 8 : 17 * 8] = struct.pack("<Q", _kvm.GA_STACK)  # struct kvm_regs: rip is the 17th
        raw["state"] = state.hex()

    with pytest.raises(OSError, match="setting the registers"):
        _resume(host, template, _forged(captured, change))


@pytest.mark.kvm
def test_open_files_stay_in_the_view(host: Host, template: Loaded, captured: bytes) -> None:
    """A forged list of open files opens nothing that the guest could not open itself."""
    files = [
        {"handle": n + 1, "path": path, "flags": flags, "device": 0, "inode": 0}
        for n, (path, flags) in enumerate((("/etc/shadow", 0), ("/etc/hosts", os.O_RDWR), ("/../../etc/shadow", 0)))
    ]
    guest = _resume(host, template, _forged(captured, lambda raw: raw["files"].update(open=files)))
    assert {opened.fd for opened in guest.files._open.values()} == {-2}
    guest.close()


def test_a_seal_is_for_one_label_and_one_pool(tmp_path: Path) -> None:
    """What another pool sealed, or this one under another label, does not open; what is sealed can't be read."""
    seal, data = Seal(), b"what the guest held" * 100
    sealed = seal.close(data, "1.1")
    assert seal.open(sealed, "1.1") == data and b"guest" not in sealed
    for other, label in ((seal, "1.2"), (seal, "2.1"), (Seal(), "1.1")):
        with pytest.raises(HibernationError, match="of another guest or of another pool"):
            other.open(sealed, label)
    assert seal.close(data, "1.1") != sealed


def test_mutated_metadata_never_crash_the_reader() -> None:
    """Random changes of the metadata's JSON are taken or refused with a reason, whatever they are."""
    rng = random.Random(7)
    base = {
        **dict.fromkeys(("template", "shim_sha256", "vdso_sha256", "cpu_model"), "0"),
        "wire_abi": 1, "cpu_flags": ["a"], "end": 1 << 26, "state": "00" * _kvm.STATE_BYTES, "pid": 7, "mono_ns": 1,
        "cpu_ns": 1, "output_bytes": 0, "ran_s": 0.5, "unsupported": {"fork": 1},
        "pages_sha256": hashlib.sha256(zlib.compress(bytes(4096))).hexdigest(),
        "files": {"cwd": "/", "bytes_left": 1, "files_left": 1, "open": []},
        "runs": [asdict(hibernation.Run(_kvm.GA_STACK, 4096, 0, 10, "0" * 64))],
    }  # fmt: skip
    odd: list[Any] = [None, -1, 1 << 70, "", "x", [], {}, True, 0.5, [[]], {"a": None}, "\ud800"]
    taken = 0
    for _ in range(5000):
        raw = json.loads(json.dumps(base))
        place: Any = raw
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.6:
                place = place[key]
                continue
            place[key] = rng.choice(odd)
            break
        text = json.dumps(raw).encode()
        pages = zlib.compress(bytes(4096))
        head = struct.pack("<8sHHQQ32s", hibernation.MAGIC, 1, 0, len(text), len(pages), _digest(text))
        try:
            hibernation.read(head + _digest(head) + text + pages)
            taken += 1
        except HibernationError:
            pass
    assert 0 < taken < 2500
