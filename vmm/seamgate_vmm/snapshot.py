"""A template on disk: memory and registers of a guest at its rendezvous, in a file that proves itself.

    4 KiB header | metadata (JSON) | pages, those that a restored guest writes first at the front

The header holds magic, version, places and digests; the metadata says for which shim, wire contract and processor the
template is, and lists extents, each with its own digest. Pages that are zero are not stored. What only the host may
write (page tables, descriptors, trap stubs, the landing of `syscall`, the parameter page) is not stored either: it is
written from code on every load, so that a file from a host of the other kind of KVM works and a forged one gains
nothing. Registers other than the general ones are rebuilt from code too.

`load` copies the pages into a memfd, after checking every digest, and seals it: nobody can change it afterwards.
"""

import fcntl
import hashlib
import itertools
import json
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from seamgate_vmm import _kvm
from seamgate_vmm.elf import Layout
from seamgate_vmm.errors import TemplateError
from seamgate_vmm.host import Host, shim_file, vdso_file

MAGIC = b"SGTMPL\x1a\0"
FORMAT = (1, 0)  # major: other majors are refused; minor: additions that older code may ignore
_PAGE = 4096
_HEADER = struct.Struct("<8sHHIQQ32sQQQ")  # magic, version, header bytes, meta place and digest, data place, file bytes
_HEADER_DIGEST = 32
_MAX_META = 16 << 20
_ZERO = bytes(_PAGE)
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MERGE_GAP = 0  # extents are runs of non-zero pages; gaps stay holes
# What a portable template may have come to rely on: glibc, OpenSSL and CPython are told to use no more (template.py).
PORTABLE_FLAGS = frozenset(
    {"sse", "sse2", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "movbe", "pclmulqdq", "aes", "fsgsbase", "xsave"}
)


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of pages: guest address, bytes, place in the file, sha256."""

    address: int
    length: int
    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class Meta:
    """What a template's file says about itself. Everything is checked before it is used."""

    name: str
    created: str  # ISO 8601, UTC
    program: str
    python: str
    imports: tuple[str, ...]
    wire_abi: int
    shim_sha256: str
    vdso_sha256: str
    cpu_model: str  # for people
    cpu_required: tuple[str, ...]
    memory_bytes: int  # [0, memory_bytes) comes from the template
    first_bytes: int  # a restored guest has at least this much memory
    layout: Layout
    mono_ns: int
    rendezvous: tuple[int, int]  # address and room of the job
    state: str  # registers, hexadecimal
    roots: tuple[tuple[str, str], ...]  # (guest, host) folders that the template's Python reads
    extents: tuple[Extent, ...]
    hot: tuple[tuple[int, int], ...] = ()  # (address, length) that every restored guest writes


def sha256(data: bytes | bytearray | memoryview) -> str:
    """Return the digest, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def shim_digests() -> tuple[str, str]:
    """Return the digests of the shim and the vDSO that this installation has."""
    return sha256(shim_file()), sha256(vdso_file())


def _stored(address: int) -> bool:
    return address >= _kvm.GA_SHIM and not _kvm.GA_PARAMS <= address < _kvm.GA_PARAMS + _PAGE


def used_pages(memory: memoryview) -> list[int]:
    """Return the addresses of the pages worth storing, in order."""
    return [at for at in range(0, len(memory), _PAGE) if _stored(at) and memory[at : at + _PAGE] != _ZERO]


def runs(addresses: Sequence[int]) -> list[tuple[int, int]]:
    """Return (address, length) of the runs in a sorted list of page addresses."""
    out: list[tuple[int, int]] = []
    for at in addresses:
        if out and out[-1][0] + out[-1][1] == at:
            out[-1] = (out[-1][0], out[-1][1] + _PAGE)
        else:
            out.append((at, _PAGE))
    return out


def save(path: Path, memory: memoryview, meta: Meta, hot_pages: Sequence[int]) -> Meta:
    """Write a template; return its metadata with extents. The file appears whole or not at all.

    memory: the guest's memory from address 0. hot_pages: addresses; stored first and prefaulted at every restore.
    """
    pages = used_pages(memory)
    hot = sorted(set(hot_pages) & set(pages))
    cold = sorted(set(pages) - set(hot))
    extents: list[Extent] = []
    offset = 0
    for address, length in (*runs(hot), *runs(cold)):
        extents.append(Extent(address, length, offset, sha256(memory[address : address + length])))
        offset += length
    meta = _replace(meta, extents=tuple(extents), hot=tuple(runs(sorted(hot_pages))))
    text = json.dumps(asdict(meta), sort_keys=True).encode()
    data_at = -(-(_PAGE + len(text)) // _PAGE) * _PAGE
    digest = hashlib.sha256(text).digest()
    head = _HEADER.pack(MAGIC, *FORMAT, _PAGE, _PAGE, len(text), digest, data_at, offset, data_at + offset)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as f:
        f.write((head + hashlib.sha256(head).digest()).ljust(_PAGE, b"\0"))
        f.write(text.ljust(data_at - _PAGE, b"\0"))
        for e in extents:
            f.write(memory[e.address : e.address + e.length])
        f.flush()
        os.fsync(f.fileno())
    temporary.rename(path)
    return meta


def _replace(meta: Meta, **changes: Any) -> Meta:
    values = {name: getattr(meta, name) for name in Meta.__dataclass_fields__}
    return Meta(**{**values, **changes})


# ---- loading


def _refuse(path: Path, why: str) -> TemplateError:
    return TemplateError(f"{path}: {why}; build it again with `seamgate vm template build`")


def read_meta(path: Path) -> tuple[Meta, int]:
    """Read and check the head of a template's file; return its metadata and where its pages begin.

    Raises: TemplateError, with what is wrong.
    """
    try:
        with path.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            head = f.read(_PAGE)
            version, meta_at, meta_bytes, digest, data_at = _read_header(path, head, size)
            f.seek(meta_at)
            text = f.read(meta_bytes)
    except OSError as error:
        raise TemplateError(f"{path}: {error.strerror}") from error
    if hashlib.sha256(text).digest() != digest:
        raise _refuse(path, "the metadata are damaged")
    try:
        meta = parse_meta(json.loads(text))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _refuse(path, f"the metadata of version {version[0]}.{version[1]} make no sense ({error})") from error
    _check_extents(path, meta, size - data_at)
    return meta, data_at


def _read_header(path: Path, head: bytes, size: int) -> tuple[tuple[int, int], int, int, bytes, int]:
    if len(head) < _PAGE or head[: len(MAGIC)] != MAGIC:
        raise _refuse(path, "not a template" if len(head) >= _PAGE else "too short for a template")
    magic_to_end = head[: _HEADER.size]
    _, major, minor, header, meta_at, meta_bytes, digest, data_at, data_bytes, file_bytes = _HEADER.unpack(magic_to_end)
    if major != FORMAT[0]:
        raise _refuse(path, f"format {major}.{minor}; this version reads {FORMAT[0]}.x")
    if hashlib.sha256(magic_to_end).digest() != head[_HEADER.size : _HEADER.size + _HEADER_DIGEST]:
        raise _refuse(path, "the header is damaged")
    if size != file_bytes:
        raise _refuse(path, f"{size} bytes long instead of {file_bytes}: cut short, or something was added")
    if (
        header != _PAGE
        or meta_at != _PAGE
        or meta_bytes > _MAX_META
        or data_at % _PAGE
        or data_at < meta_at + meta_bytes
    ):
        raise _refuse(path, "the header makes no sense")
    if data_at + data_bytes != file_bytes:
        raise _refuse(path, "the header makes no sense")
    return (major, minor), meta_at, meta_bytes, digest, data_at


def typed_values(cls: type, raw: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass, its plain numbers and texts checked. Raises: KeyError, TypeError."""
    values = {}
    for each in fields(cls):
        value = raw[each.name]
        wrong = (
            (each.type is int and (not isinstance(value, int) or isinstance(value, bool)))
            or (each.type is float and not isinstance(value, int | float))
            or (each.type is str and not isinstance(value, str))
        )
        if wrong:
            raise TypeError(f"{each.name} is {type(value).__name__}")
        values[each.name] = value
    return values


def parse_meta(raw: dict[str, Any]) -> Meta:
    """Build metadata from parsed JSON. Raises: KeyError, TypeError, ValueError."""
    values = typed_values(Meta, raw)
    values["layout"] = Layout(**typed_values(Layout, raw["layout"]))
    values["extents"] = tuple(Extent(**typed_values(Extent, e)) for e in raw["extents"])
    values["hot"] = tuple((int(a), int(n)) for a, n in raw["hot"])
    values["roots"] = tuple((str(a), str(b)) for a, b in raw["roots"])
    address, room = raw["rendezvous"]
    values["rendezvous"] = (int(address), int(room))
    for key in ("imports", "cpu_required"):
        values[key] = tuple(str(x) for x in raw[key])
    meta = Meta(**values)
    if len(bytes.fromhex(meta.state)) != _kvm.STATE_BYTES:
        raise ValueError("registers of another size")
    return meta


def _check_extents(path: Path, meta: Meta, data_bytes: int) -> None:
    taken: list[tuple[int, int]] = []
    if not 0 < meta.memory_bytes <= meta.first_bytes <= _kvm.GA_END or meta.memory_bytes % _PAGE:
        raise _refuse(path, "the size of memory makes no sense")
    for e in meta.extents:
        if e.address % _PAGE or e.length % _PAGE or e.length <= 0 or e.offset % _PAGE or not _stored(e.address):
            raise _refuse(path, f"the extent at {e.address:#x} makes no sense")
        if e.address + e.length > meta.memory_bytes or e.offset < 0 or e.offset + e.length > data_bytes:
            raise _refuse(path, f"the extent at {e.address:#x} is out of range")
        taken.append((e.address, e.length))
    taken.sort()
    for (a, n), (b, _) in itertools.pairwise(taken):
        if a + n > b:
            raise _refuse(path, f"extents overlap at {b:#x}")
    for a, n in meta.hot:
        if a % _PAGE or n % _PAGE or n <= 0 or a < 0 or a + n > meta.memory_bytes:
            raise _refuse(path, "the list of hot pages makes no sense")


def check_fits(path: Path, meta: Meta, host: Host) -> None:
    """Refuse a template for another contract, shim or processor. Raises: TemplateError, with the reason."""
    if meta.wire_abi != _kvm.WIRE_ABI:
        raise _refuse(path, f"made for version {meta.wire_abi} of the guest's contract; this is {_kvm.WIRE_ABI}")
    if (meta.shim_sha256, meta.vdso_sha256) != shim_digests():
        raise _refuse(path, "made with another build of the shim")
    missing = sorted(set(meta.cpu_required) - host.cpu_flags)
    if missing:
        raise TemplateError(
            f"{path}: made on a processor ({meta.cpu_model}) with {', '.join(missing)}, which this one "
            f"({host.cpu_model}) lacks; build it on this machine, or with `--cpu portable`"
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A template in memory: a sealed memfd and what is known about it. `close` when no guest uses it any more."""

    fd: int
    meta: Meta

    def close(self) -> None:
        """Close the memfd; machines that map it keep their view."""
        os.close(self.fd)


def load(path: Path, host: Host) -> Loaded:
    """Check a template's file wholly and bring it into memory.

    Raises: TemplateError, with what is wrong; nothing stays open then.
    """
    if platform.machine() != "x86_64":
        raise TemplateError(f"{path}: templates are for x86-64")
    meta, data_at = read_meta(path)
    check_fits(path, meta, host)
    fd = os.memfd_create("seamgate-template", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, meta.memory_bytes)
        _copy_extents(path, meta, data_at, fd)
        os.pwrite(fd, _kvm.fixed_pages(shim_file(), host.landing), 0)
        os.pwrite(fd, shim_file()[: _kvm.GA_SHIM_TEXT_END - _kvm.GA_SHIM], _kvm.GA_SHIM)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return Loaded(fd, meta)


def _copy_extents(path: Path, meta: Meta, data_at: int, fd: int) -> None:
    with path.open("rb") as f:
        for e in meta.extents:
            data = os.pread(f.fileno(), e.length, data_at + e.offset)
            if sha256(data) != e.digest:
                raise _refuse(path, f"the pages at {e.address:#x} are damaged")
            os.pwrite(fd, data, e.address)
