"""Puts a program and its loader into a new guest's memory, and lays out the first stack.

Called by `guest.py` at a cold start only. Reads files of the image, which are not the guest's to choose at that time,
but checks every number in them all the same.

Source: System V ABI, AMD64 supplement, 3.4 and 5.1.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seamgate_vmm import _kvm
from seamgate_vmm.errors import ProgramError
from seamgate_vmm.host import vdso_file

_PAGE = 4096
_PT_LOAD, _PT_INTERP, _PT_PHDR = 1, 3, 6
_ET_EXEC, _ET_DYN = 2, 3
_MAX_HEADERS = 64
# AT_HWCAP: what every x86-64-v2 processor has (fpu .. sse2); the dynamic loader only prints it.
_HWCAP = 0x178BFBFF


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    file_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ElfFile:
    """The headers of an ELF file, checked."""

    path: Path
    data: bytes
    position_independent: bool
    entry: int
    header_offset: int
    header_count: int
    segments: tuple[_Segment, ...]

    @property
    def interpreter(self) -> str | None:
        """The loader that it names, or None for a static program."""
        for s in self.segments:
            if s.kind == _PT_INTERP:
                return self.data[s.offset : s.offset + s.file_bytes].rstrip(b"\0").decode("utf-8")
        return None

    @property
    def loads(self) -> tuple[_Segment, ...]:
        """The segments that go into memory."""
        return tuple(s for s in self.segments if s.kind == _PT_LOAD)

    @property
    def end(self) -> int:
        """The first address, relative to the base, that it does not use; whole pages."""
        return -(-max(s.address + s.memory_bytes for s in self.loads) // _PAGE) * _PAGE

    @property
    def headers_address(self) -> int:
        """Where its program headers are in memory, relative to the base."""
        for s in self.segments:
            if s.kind == _PT_PHDR:
                return s.address
        for s in self.loads:
            if s.offset <= self.header_offset < s.offset + s.file_bytes:
                return s.address + self.header_offset - s.offset
        return 0


def read_elf(path: Path) -> ElfFile:
    """Read and check a program.

    Raises: ProgramError if it is missing, unreadable or not for x86-64.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProgramError(f"{path}: {error.strerror}") from error
    return parse_elf(path, data)


def parse_elf(path: Path, data: bytes) -> ElfFile:
    """Check the bytes of a program. Raises: ProgramError."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ProgramError(
            f"{path} is not a 64-bit ELF program; guests run programs, not scripts: name the interpreter"
        )
    try:
        kind, machine, _, entry, phoff, _, _, _, phentsize, phnum = struct.unpack_from("<HHIQQQIHHH", data, 16)
        if machine != 62 or kind not in (_ET_EXEC, _ET_DYN) or phentsize != 56 or not 0 < phnum <= _MAX_HEADERS:
            raise ProgramError(f"{path} is not an x86-64 program")
        segments = tuple(_segment(data, phoff + i * 56) for i in range(phnum))
    except (struct.error, OverflowError) as error:  # headers beyond the end, or beyond every end
        raise ProgramError(f"{path} is cut short") from error
    elf = ElfFile(path, data, kind == _ET_DYN, entry, phoff, phnum, segments)
    for s in segments:
        if s.kind in (_PT_LOAD, _PT_INTERP) and s.offset + s.file_bytes > len(data):
            raise ProgramError(f"{path} is cut short")
        if s.kind == _PT_LOAD and (s.file_bytes > s.memory_bytes or s.address + s.memory_bytes > _kvm.GA_END):
            raise ProgramError(f"{path} has a segment at an impossible address")
    if not elf.loads:
        raise ProgramError(f"{path} has nothing to load")
    return elf


def _segment(data: bytes, at: int) -> _Segment:
    kind, _, offset, address, _, file_bytes, memory_bytes, _ = struct.unpack_from("<IIQQQQQQ", data, at)
    return _Segment(kind, offset, address, file_bytes, memory_bytes)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in a new guest; goes into its parameter page."""

    brk_start: int
    brk_limit: int
    mmap_low: int
    start_rip: int
    start_rsp: int


def _put(machine: _kvm.Machine, elf: ElfFile, base: int) -> int:
    """Copy a program to `base`; return how far it was moved from the addresses in its file."""
    shift = base if elf.position_independent else 0
    for s in elf.loads:
        low, high = shift + s.address, shift + s.address + s.memory_bytes
        if low < _kvm.GA_PROGRAM or high > machine.end:
            raise ProgramError(f"{elf.path} does not fit into guest memory of {machine.end >> 20} MiB; raise the limit")
        machine.write(low, elf.data[s.offset : s.offset + s.file_bytes])
    return shift


def load_program(
    machine: _kvm.Machine,
    program: ElfFile,
    loader: ElfFile | None,
    arguments: Sequence[bytes],
    environment: Sequence[bytes],
    brk_bytes: int,
) -> Layout:
    """Put a program, its loader and the vDSO into memory and write the first stack.

    arguments and environment: as in execve, without the terminating zeros.
    Raises: ProgramError if they do not fit.
    """
    shift = _put(machine, program, _kvm.GA_PROGRAM)
    program_end = shift + program.end
    brk_limit = program_end + brk_bytes
    mmap_low, loader_base, start = brk_limit, 0, shift + program.entry
    if loader is not None:
        loader_base = brk_limit
        _put(machine, loader, loader_base)
        mmap_low = loader_base + loader.end
        start = loader_base + loader.entry
    machine.write(_kvm.GA_VDSO, vdso_file(), True)
    auxiliary = {
        3: shift + program.headers_address,
        4: 56,
        5: program.header_count,
        6: _PAGE,
        7: loader_base,
        8: 0,
        9: shift + program.entry,
        11: 1000,
        12: 1000,
        13: 1000,
        14: 1000,
        16: _HWCAP,
        17: 100,
        23: 0,
        33: _kvm.GA_VDSO,
    }
    rsp = _first_stack(machine, arguments, environment, auxiliary)
    return Layout(program_end, brk_limit, mmap_low, start, rsp)


def _first_stack(
    machine: _kvm.Machine, arguments: Sequence[bytes], environment: Sequence[bytes], auxiliary: dict[int, int]
) -> int:
    strings = (
        b"".join(s + b"\0" for s in (*arguments, *environment)) + b"x86_64\0" + (arguments[0] if arguments else b"")
    )
    strings += b"\0"
    words_count = 3 + len(arguments) + len(environment) + 2 * (len(auxiliary) + 4)
    top = _kvm.GA_STACK_END - 64
    strings_at = (top - len(strings)) & ~15
    random_at = strings_at - 16
    rsp = (random_at - 8 * words_count) & ~15
    if len(strings) > 0x100000 or rsp < _kvm.GA_STACK + 0x80000:
        raise ProgramError("arguments and environment exceed 1 MiB")
    cursor, pointers = strings_at, []
    for s in (*arguments, *environment, b"x86_64", arguments[0] if arguments else b""):
        pointers.append(cursor)
        cursor += len(s) + 1
    n = len(arguments)
    auxiliary = {**auxiliary, 25: random_at, 15: pointers[-2], 31: pointers[-1]}
    words = [n, *pointers[:n], 0, *pointers[n:-2], 0]
    for key, value in auxiliary.items():
        words += [key, value]
    words += [0, 0]
    machine.write(strings_at, strings)
    machine.write(random_at, os.urandom(16))
    machine.write(rsp, struct.pack(f"<{len(words)}Q", *words))
    return rsp
