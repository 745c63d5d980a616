"""Programs are checked before they are loaded. Needs no KVM."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from seamgate_vmm.elf import parse_elf, read_elf
from seamgate_vmm.errors import ProgramError
from seamgate_vmm.host import vdso_file
from seamgate_vmm.syscalls import syscall_name


def _elf(**change: int) -> bytes:
    fields = {
        "machine": 62,
        "kind": 3,
        "phentsize": 56,
        "phnum": 1,
        "phoff": 64,
        "filesz": 16,
        "memsz": 4096,
        "vaddr": 0,
    }
    fields.update(change)
    head = b"\x7fELF\x02\x01" + bytes(10)
    head += struct.pack(
        "<HHIQQQIHHH", fields["kind"], fields["machine"], 1, 0, fields["phoff"], 0, 0, 64, fields["phentsize"],
        fields["phnum"],
    )  # fmt: skip
    head = head.ljust(64, b"\0")
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, fields["vaddr"], 0, fields["filesz"], fields["memsz"], 4096)
    return (head + load).ljust(256, b"\0")


def test_a_program_is_read() -> None:
    """A right file gives its segments, and the vDSO is one."""
    elf = parse_elf(Path("x"), _elf())
    assert elf.position_independent
    assert elf.interpreter is None
    assert elf.end == 4096
    assert parse_elf(Path("vdso"), vdso_file()).loads


@pytest.mark.parametrize(
    "change",
    [{"machine": 40}, {"kind": 1}, {"phentsize": 32}, {"phnum": 0}, {"phnum": 65}, {"phoff": 250}, {"phoff": 1 << 60},
     {"filesz": 1 << 40}, {"filesz": 200, "memsz": 100}, {"memsz": 1 << 40}, {"vaddr": 1 << 62}],
)  # fmt: skip
def test_impossible_numbers_are_refused(change: dict[str, int]) -> None:
    """Another machine, sizes that do not fit, and addresses beyond a guest's are refused with the file's name."""
    with pytest.raises(ProgramError, match=r"^x "):
        parse_elf(Path("x"), _elf(**change))


def test_scripts_and_missing_files_are_refused(tmp_path: Path) -> None:
    """A script says to name the interpreter; a missing file says so."""
    with pytest.raises(ProgramError, match="name the interpreter"):
        parse_elf(Path("x"), b"#!/bin/sh\n")
    with pytest.raises(ProgramError, match="No such file"):
        read_elf(tmp_path / "none")


def test_garbage_gives_our_error_only() -> None:
    """Whatever follows the magic, the answer is a program or a ProgramError."""
    dice = random.Random(5)
    for _ in range(500):
        raw = bytearray(_elf())
        for _ in range(dice.randint(1, 10)):
            raw[dice.randrange(16, len(raw))] = dice.randrange(256)
        try:
            parse_elf(Path("x"), bytes(raw[: dice.randint(0, len(raw))]))
        except ProgramError:
            pass


def test_names_of_calls() -> None:
    """A number has its Linux name, or says that it has none."""
    assert (syscall_name(58), syscall_name(0)) == ("vfork", "read")
    assert syscall_name(4711) == syscall_name(4711)
    assert "4711" in syscall_name(4711)
