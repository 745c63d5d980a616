"""A template's file proves itself: what is damaged, cut, foreign or forged is refused, and the reason is said."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seamgate_vmm import _kvm, snapshot
from seamgate_vmm.elf import Layout
from seamgate_vmm.errors import TemplateError
from seamgate_vmm.host import Host, shim_file

PAGE = 4096


@pytest.fixture(scope="module")
def fake_host() -> Host:
    """A host that needs no KVM: loading a template never opens it."""
    return Host(-1, _kvm.LANDING_USER, 1_000_000, 7, "nested", "test cpu", snapshot.PORTABLE_FLAGS)


def _meta() -> snapshot.Meta:
    shim, vdso = snapshot.shim_digests()
    return snapshot.Meta(
        "t", "2026-01-01T00:00:00+00:00", "/usr/bin/python3", "0" * 64, (), _kvm.WIRE_ABI, shim, vdso, "some cpu",
        ("sse2",), 16 << 20, 16 << 20, Layout(1, 2, 3, 4, 5), 10**9, (0x400000, 4096), "00" * _kvm.STATE_BYTES,
        (("/usr", "/usr"),), (),
    )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, bytearray]:
    """A small template of three runs of pages, and the memory that it was made of."""
    memory = bytearray(16 << 20)
    for at in (0x20000, 0x400000, 0x401000, 0x800000):
        memory[at : at + PAGE] = random.Random(at).randbytes(PAGE)
    path = tmp_path / "t.sgt"
    with memoryview(memory) as view:
        snapshot.save(path, view, _meta(), [0x401000])
    return path, memory


def test_what_was_saved_is_loaded(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """Pages come back as they were, zero pages as holes; what only the host writes is written from code."""
    import os

    path, memory = made
    loaded = snapshot.load(path, fake_host)
    got = os.pread(loaded.fd, 16 << 20, 0)
    assert got[0x20000:] == bytes(memory[0x20000:])
    assert got[: _kvm.GA_SHIM] == _kvm.fixed_pages(shim_file(), fake_host.landing)
    assert loaded.meta.hot == ((0x401000, PAGE),)
    loaded.close()


def test_hot_pages_come_first(made: tuple[Path, bytearray]) -> None:
    """The pages that every guest writes lie at the front of the file."""
    meta, data_at = snapshot.read_meta(made[0])
    assert meta.extents[0].address == 0x401000
    assert data_at % PAGE == 0


def test_loaded_memory_is_sealed(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """Nobody can change, shrink or grow a template once it is loaded."""
    import mmap
    import os

    loaded = snapshot.load(made[0], fake_host)
    with pytest.raises(PermissionError):
        os.pwrite(loaded.fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(loaded.fd, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(loaded.fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    loaded.close()


def test_every_flipped_bit_of_the_header_is_refused(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """Any change of the header and its digest is found."""
    path = made[0]
    good = path.read_bytes()
    for at in range(snapshot._HEADER.size + 32):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(TemplateError):
            snapshot.load(path, fake_host)


def test_damage_anywhere_is_refused(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """A changed byte in metadata or pages is found by its digest."""
    path = made[0]
    good = path.read_bytes()
    _, data_at = snapshot.read_meta(path)
    length = struct.unpack_from("<Q", good, 24)[0]
    for at in (PAGE, PAGE + length - 1, data_at, data_at + 5000, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        with pytest.raises(TemplateError, match="damaged"):
            snapshot.load(path, fake_host)


@pytest.mark.parametrize("size", [0, 10, PAGE - 1, PAGE, PAGE + 100, -1, -PAGE])
def test_a_cut_file_is_refused(made: tuple[Path, bytearray], fake_host: Host, size: int) -> None:
    """A file that lost its end, wherever, is refused and says so."""
    path = made[0]
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TemplateError, match=r"cut short|too short"):
        snapshot.load(path, fake_host)


def test_a_longer_file_is_refused(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """Bytes after the end are not ignored."""
    path = made[0]
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(TemplateError, match="added"):
        snapshot.load(path, fake_host)


def test_another_format_is_refused(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """A file of another major version is refused with both versions, before anything else of it is believed."""
    path = made[0]
    raw = bytearray(path.read_bytes())
    struct.pack_into("<H", raw, 8, 9)
    path.write_bytes(raw)
    with pytest.raises(TemplateError, match=r"format 9\.0; this version reads 1\.x"):
        snapshot.load(path, fake_host)


def _forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the metadata with right digests: what an attacker could do."""
    raw = path.read_bytes()
    fields = list(snapshot._HEADER.unpack_from(raw))
    text = raw[PAGE : PAGE + fields[5]]
    meta = json.loads(text)
    change(meta)
    text = json.dumps(meta, sort_keys=True).encode()
    old_data = raw[fields[7] :]
    data_at = -(-(PAGE + len(text)) // PAGE) * PAGE
    fields[5], fields[6], fields[7], fields[9] = (
        len(text),
        hashlib.sha256(text).digest(),
        data_at,
        data_at + len(old_data),
    )
    head = snapshot._HEADER.pack(*fields)
    head = (head + hashlib.sha256(head).digest()).ljust(PAGE, b"\0")
    path.write_bytes(head + text.ljust(data_at - PAGE, b"\0") + old_data)


_FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "other contract": (lambda m: m.update(wire_abi=99), "version 99"),
    "other shim": (lambda m: m.update(shim_sha256="0" * 64), "another build of the shim"),
    "other processor": (lambda m: m.update(cpu_required=["sse2", "avx9000"]), "avx9000"),
    "page tables": (lambda m: m["extents"][0].update(address=0x1000), "makes no sense"),
    "parameters": (lambda m: m["extents"][0].update(address=_kvm.GA_PARAMS), "makes no sense"),
    "odd address": (lambda m: m["extents"][0].update(address=0x400001), "makes no sense"),
    "negative length": (lambda m: m["extents"][0].update(length=-PAGE), "makes no sense"),
    "beyond memory": (lambda m: m["extents"][0].update(address=16 << 20), "out of range"),
    "beyond the file": (lambda m: m["extents"][-1].update(offset=1 << 40), "out of range"),
    "overlap": (lambda m: m["extents"][1].update(address=m["extents"][2]["address"]), "overlap"),
    "huge memory": (lambda m: m.update(memory_bytes=1 << 50, first_bytes=1 << 50), "size of memory"),
    "hot beyond memory": (lambda m: m.update(hot=[[0, 1 << 40]]), "hot pages"),
    "short registers": (lambda m: m.update(state="00"), "make no sense"),
    "registers of text": (lambda m: m.update(state="zz" * _kvm.STATE_BYTES), "make no sense"),
    "missing key": (lambda m: m.pop("layout"), "make no sense"),
    "wrong type": (lambda m: m.update(extents=7), "make no sense"),
}


@pytest.mark.parametrize("name", _FORGERIES)
def test_forged_metadata_are_refused(made: tuple[Path, bytearray], fake_host: Host, name: str) -> None:
    """Metadata with right digests and impossible contents are refused with the reason."""
    change, text = _FORGERIES[name]
    _forge(made[0], change)
    with pytest.raises(TemplateError, match=text):
        snapshot.load(made[0], fake_host)


def test_unknown_keys_of_a_newer_minor_version_are_ignored(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """A newer minor version may add to the metadata."""
    _forge(made[0], lambda m: m.update(something_new=1))
    snapshot.load(made[0], fake_host).close()


def test_garbage_gives_our_error_only(made: tuple[Path, bytearray], fake_host: Host) -> None:
    """Whatever bytes a file has, loading gives a template or a TemplateError."""
    path, good, dice = made[0], made[0].read_bytes(), random.Random(7)
    for _ in range(150):
        raw = bytearray(good)
        for _ in range(dice.randint(1, 8)):
            at = dice.randrange(min(len(raw), 3 * PAGE))
            raw[at : at + dice.randint(0, 4)] = dice.randbytes(dice.randint(0, 4))
        path.write_bytes(raw)
        try:
            snapshot.load(path, fake_host).close()
        except TemplateError:
            pass


@pytest.mark.kvm
def test_registers_outside_the_shim_are_refused(host: Host) -> None:
    """A forged instruction pointer is refused: a template rests in the shim, nowhere else."""
    machine = _kvm.Machine(host.kvm, shim_file(), host.landing, 4 << 20, 4 << 20)
    for rip in (0, 0x9000, _kvm.GA_LANDING, 0x400000, 1 << 63):
        state = bytearray(_kvm.STATE_BYTES)
        struct.pack_into("<Q", state, 128, rip)
        with pytest.raises(OSError, match="registers"):
            machine.load(bytes(state))
    machine.close()


def test_portable_templates_need_little(fake_host: Host) -> None:
    """What a portable template requires is a subset of x86-64-v2 with FSGSBASE and AES."""
    assert not {f for f in snapshot.PORTABLE_FLAGS if f.startswith("avx")}
    assert replace(_meta(), cpu_required=tuple(snapshot.PORTABLE_FLAGS)).cpu_required
