"""A guest on disk: what it has changed of its template's memory, and what else it takes to go on, in bytes that prove
themselves.

    header | metadata (JSON) | pages as differences from the template's, compressed, each run with its digest

Made by a worker of a guest that stands still (`Guest.ask_rest`), read by the worker in which it goes on; in between the
pool seals it (`seal.py`). As in a template, what only the host may write is not in it, and registers other than the
general ones are rebuilt from code. There is no stream in it (the shim has ended them), no ring, and no secret, for a
guest has none. What is read here was written by a process that runs hostile guests: all of it is checked before use.
"""

import functools
import hashlib
import itertools
import json
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from seamgate_vmm import _kvm
from seamgate_vmm.errors import HibernationError
from seamgate_vmm.files import FileService, FileState, OpenFile, Scratch
from seamgate_vmm.guest import Console, Guest, Limits, Usage, set_params
from seamgate_vmm.host import Host
from seamgate_vmm.image import View
from seamgate_vmm.snapshot import Loaded, Meta, sha256, shim_digests, typed_values
from seamgate_vmm.template import new_machine, recycle

MAGIC = b"SGHIBR\x1a\0"
FORMAT = (1, 0)
_HEADER = struct.Struct("<8sHHQQ32s")  # magic, version, bytes of metadata, bytes of pages, digest of the metadata
_HEAD_BYTES = _HEADER.size + 32  # and the digest of all that
_MAX_META = 16 << 20
_RUN_BYTES = 1 << 20
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Run:
    """A run of changed pages: address, bytes, place and bytes of the compressed difference, sha256 of the pages."""

    address: int
    length: int
    offset: int
    stored: int
    digest: str


@dataclass(frozen=True, slots=True)
class Hibernated:
    """What a hibernated guest says about itself."""

    template: str  # identity() of the template that its pages differ from
    wire_abi: int
    shim_sha256: str
    vdso_sha256: str
    cpu_model: str
    cpu_flags: tuple[str, ...]  # its program may have found out about any of them
    end: int  # bytes of memory
    state: str  # general registers, hexadecimal
    pid: int
    mono_ns: int  # its monotonic clock stands still meanwhile
    cpu_ns: int
    output_bytes: int
    ran_s: float
    unsupported: dict[str, int]
    files: FileState
    pages_sha256: str  # of all that is stored of its pages
    runs: tuple[Run, ...]


@functools.lru_cache(maxsize=4)
def identity(meta: Meta) -> str:
    """Return what tells a template from every other: the digest of all that it says of itself, its pages included."""
    return sha256(json.dumps(asdict(meta), sort_keys=True).encode())


# ---- writing


def _is_kept(address: int) -> bool:
    """Return whether a page is the guest's to change: not what the host writes from code."""
    params = _kvm.GA_PARAMS <= address < _kvm.GA_PARAMS + _PAGE
    return address >= _kvm.GA_SHIM_DATA and not params and not _kvm.GA_VDSO <= address < _kvm.GA_VDSO_END


def _template_bytes(loaded: Loaded, address: int, length: int) -> bytes:
    return os.pread(loaded.fd, max(0, min(length, loaded.meta.memory_bytes - address)), address).ljust(length, b"\0")


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")


def _changed(guest: Guest, loaded: Loaded) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (address, pages, what the template has there) of runs of pages that differ."""
    for start, length in guest.machine.own_pages():
        for at in range(start, start + length, _RUN_BYTES):
            size = min(_RUN_BYTES, start + length - at)
            now, before = guest.machine.read(at, size, True), _template_bytes(loaded, at, size)
            first = None
            for page in range(0, size + _PAGE, _PAGE):
                piece = slice(page, page + _PAGE)
                differs = page < size and _is_kept(at + page) and now[piece] != before[piece]
                if differs and first is None:
                    first = page
                if not differs and first is not None:
                    yield at + first, now[first:page], before[first:page]
                    first = None


def capture(guest: Guest, loaded: Loaded, host: Host) -> bytes:
    """Return a guest that stands still as bytes.

    Raises: HibernationError if it has what can't be kept; OSError if its registers can't be read.
    """
    runs: list[Run] = []
    pages = bytearray()
    for address, now, before in _changed(guest, loaded):
        stored = zlib.compress(_xor(now, before), 1)
        runs.append(Run(address, len(now), len(pages), len(stored), sha256(now)))
        pages += stored
    shim, vdso = shim_digests()
    usage = guest.usage()
    what = Hibernated(
        template=identity(loaded.meta),
        wire_abi=_kvm.WIRE_ABI,
        shim_sha256=shim,
        vdso_sha256=vdso,
        cpu_model=host.cpu_model,
        cpu_flags=tuple(sorted(host.cpu_flags)),
        end=guest.machine.end,
        state=guest.machine.save().hex(),
        pid=guest.pid,
        mono_ns=guest.machine.now_ns(),
        cpu_ns=usage.cpu_ns,
        output_bytes=usage.output_bytes,
        ran_s=usage.ran_s,
        unsupported=dict(guest.unsupported),
        files=guest.files.state(),
        pages_sha256=sha256(pages),
        runs=tuple(runs),
    )
    text = json.dumps(asdict(what), sort_keys=True).encode("utf-8", "surrogatepass")
    head = _HEADER.pack(MAGIC, *FORMAT, len(text), len(pages), hashlib.sha256(text).digest())
    return b"".join((head, hashlib.sha256(head).digest(), text, pages))


# ---- reading


def read(data: bytes) -> tuple[Hibernated, memoryview]:
    """Check all of a hibernated guest but its pages; return what it says and those.

    Raises: HibernationError, with what is wrong.
    """
    if len(data) < _HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise HibernationError("no hibernated guest, or one that is cut short")
    head = data[: _HEADER.size]
    _, major, minor, meta_bytes, page_bytes, digest = _HEADER.unpack(head)
    if major != FORMAT[0]:
        raise HibernationError(f"format {major}.{minor}; this version reads {FORMAT[0]}.x")
    if hashlib.sha256(head).digest() != data[_HEADER.size : _HEAD_BYTES]:
        raise HibernationError("its header is damaged")
    if meta_bytes > _MAX_META or len(data) != _HEAD_BYTES + meta_bytes + page_bytes:
        raise HibernationError(f"{len(data)} bytes are not what its header says: cut short, or something was added")
    text = data[_HEAD_BYTES : _HEAD_BYTES + meta_bytes]
    if hashlib.sha256(text).digest() != digest:
        raise HibernationError("its metadata are damaged")
    try:
        what = parse(json.loads(text.decode("utf-8", "surrogatepass")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise HibernationError(f"its metadata make no sense ({error})") from error
    _check_runs(what, page_bytes)
    pages = memoryview(data)[_HEAD_BYTES + meta_bytes :]
    if sha256(pages) != what.pages_sha256:
        raise HibernationError("its pages are damaged")
    return what, pages


def parse(raw: Any) -> Hibernated:
    """Build it from parsed JSON. Raises: KeyError, TypeError, ValueError, AttributeError."""
    if not isinstance(raw, dict):
        raise TypeError("not an object")
    values = typed_values(Hibernated, raw)
    values["cpu_flags"] = tuple(str(flag) for flag in raw["cpu_flags"])
    values["unsupported"] = {str(name): int(count) for name, count in raw["unsupported"].items()}
    files = typed_values(FileState, raw["files"])
    files["open"] = tuple(OpenFile(**typed_values(OpenFile, each)) for each in raw["files"]["open"])
    values["files"] = FileState(**files)
    values["runs"] = tuple(Run(**typed_values(Run, each)) for each in raw["runs"])
    what = Hibernated(**values)
    if len(bytes.fromhex(what.state)) != _kvm.STATE_BYTES:
        raise ValueError("registers of another size")
    if not 0 < what.pid < 1 << 31 or not 0 <= what.mono_ns < 1 << 62 or not 0 <= what.cpu_ns < 1 << 62:
        raise ValueError("a number out of range")
    return what


def _check_runs(what: Hibernated, page_bytes: int) -> None:
    if not 0 < what.end <= _kvm.GA_END or what.end % _PAGE:
        raise HibernationError("its size of memory makes no sense")
    for run in what.runs:
        if run.address % _PAGE or run.length % _PAGE or not 0 < run.length <= _RUN_BYTES or run.address < 0:
            raise HibernationError(f"its pages at {run.address:#x} make no sense")
        if run.address + run.length > what.end or run.offset < 0 or run.stored < 0:
            raise HibernationError(f"its pages at {run.address:#x} are out of range")
        if run.offset + run.stored > page_bytes:
            raise HibernationError(f"its pages at {run.address:#x} are out of range")
        if not all(_is_kept(at) for at in range(run.address, run.address + run.length, _PAGE)):
            raise HibernationError(f"its pages at {run.address:#x} are not a guest's to write")
    taken = sorted((run.address, run.length) for run in what.runs)
    for (a, n), (b, _) in itertools.pairwise(taken):
        if a + n > b:
            raise HibernationError(f"its pages overlap at {b:#x}")


def check_fits(what: Hibernated, loaded: Loaded, host: Host) -> None:
    """Refuse a guest of another template, version or processor. Raises: HibernationError, with the reason."""
    if what.wire_abi != _kvm.WIRE_ABI or (what.shim_sha256, what.vdso_sha256) != shim_digests():
        raise HibernationError("it was hibernated by another version of Seamgate")
    if what.template != identity(loaded.meta):
        raise HibernationError(f"it is of another template than {loaded.meta.name!r} as that is now")
    if what.cpu_model != host.cpu_model or set(what.cpu_flags) != host.cpu_flags:
        raise HibernationError(f"it was hibernated on another processor ({what.cpu_model})")


def pages_of(run: Run, stored: memoryview, loaded: Loaded) -> bytes:
    """Return the pages of a run as they were. Raises: HibernationError if they are damaged."""
    unpacker = zlib.decompressobj()
    try:
        difference = unpacker.decompress(stored[run.offset : run.offset + run.stored], run.length)
        difference += unpacker.decompress(unpacker.unconsumed_tail, 1)  # one more would be one too many
    except zlib.error as error:
        raise HibernationError(f"its pages at {run.address:#x} are damaged ({error})") from error
    if len(difference) != run.length or not unpacker.eof or unpacker.unused_data:
        raise HibernationError(f"its pages at {run.address:#x} are damaged")
    now = _xor(difference, _template_bytes(loaded, run.address, run.length))
    if sha256(now) != run.digest:
        raise HibernationError(f"its pages at {run.address:#x} are damaged")
    return now


def resume(
    host: Host,
    loaded: Loaded,
    data: bytes,
    view: View,
    console: Console,
    limits: Limits,
    *,
    ring: tuple[int, int] | None = None,
    reuse: Guest | None = None,
    flags: int = 0,
    slept_ns: int = 0,
) -> Guest:
    """Make a machine of what `capture` gave; the guest stands still until `go_on`.

    Its wall clock is right at once, its monotonic clock goes on `slept_ns` after where it stood. Its pseudo-random
    state goes on too, because it is the same guest: whoever calls this must not call it twice for one capture.

    limits, ring, reuse: as for `template.restore`. flags: PARAMS_TERMINAL bits.
    Raises: HibernationError, with the reason; OSError if KVM refuses.
    """
    what, stored = read(data)
    check_fits(what, loaded, host)
    machine = recycle(reuse) if reuse is not None else new_machine(host, loaded, limits)
    files = FileService(machine, view, Scratch(limits.scratch_bytes, limits.scratch_files))
    try:
        if ring is not None:
            machine.attach_ring(*ring)
        if machine.end < what.end and machine.grow(what.end - machine.end) < what.end:
            raise HibernationError(f"it has {what.end} bytes of memory, more than it may have now")
        for run in what.runs:
            machine.write(run.address, pages_of(run, stored, loaded), True)
        generation = secrets.randbits(63) | 1
        set_params(machine, host, loaded.meta.layout, what.mono_ns + slept_ns, generation, what.pid, flags)
        machine.load(bytes.fromhex(what.state))
        files.program = loaded.meta.program
        files.restore(what.files)
        guest = Guest(machine, files, console, limits, loaded.meta.layout, what.pid)
        guest.unsupported.update(what.unsupported)
        guest.resumed(Usage(what.output_bytes, what.cpu_ns, what.ran_s + slept_ns / 1e9))
    except BaseException:
        files.close()
        machine.close()
        raise
    return guest
