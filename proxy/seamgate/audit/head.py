"""The head: a small file beside the journal that knows where the journal ends, so that a cut tail is seen.

Layout: 4096 bytes, two slots of 256 bytes, the rest zero. A slot (little-endian) is

    magic 8s  version u32  flags u32  counter u64
    written:  seq u64  size u64  hash 32s        the last line that is known to be in the file, and the file's size
    intended: seq u64  size u64  hash 32s        the last line of the write that is under way; equal at rest
    crc u32                                      CRC-32 of all before

A reader takes the valid slot with the higher counter; the writer always writes the other one, so a kill in the middle
of an update costs nothing. The journal may end anywhere from `written` to `intended`, and nowhere else. The file is
memory-mapped: an update is a copy, not a system call. The lock of the journal is the flock on this file, since it
alone keeps its name. Used by the journal, and read-only by `verify`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
import zlib
from pathlib import Path

import msgspec

from seamgate.audit.line import GENESIS
from seamgate.errors import AuditError

_MAGIC = b"SEAMHEAD"
_VERSION = 1
_CLEAN = 1
_SLOT = struct.Struct("<8sIIQ QQ32s QQ32s")
_CRC = struct.Struct("<I")
_STRIDE = 256
SIZE_BYTES = 4096

# `is_locked` holds the lock for some microseconds: a gateway that starts just then must not be turned away.
_LOCK_TRIES = 4
_LOCK_PAUSE_S = 0.01


class Mark(msgspec.Struct, frozen=True):
    """One line's end: its number, the size of the file up to it, its hash (hex)."""

    seq: int = 0
    size_bytes: int = 0
    hash: str = GENESIS


class HeadState(msgspec.Struct, frozen=True):
    """What a head says.

    Attributes:
        written: the journal goes at least to here.
        intended: the journal goes at most to here.
        clean: the gateway that wrote it closed the journal.
        counter: updates so far.
    """

    written: Mark = Mark()
    intended: Mark = Mark()
    clean: bool = False
    counter: int = 0


def head_path(journal: Path) -> Path:
    """Return the head's path for this journal."""
    return journal.with_name(journal.name + ".head")


def read_head(journal: Path) -> HeadState | None:
    """Return what the journal's head says, None if there is none or it is damaged.

    Raises:
        OSError: it is there and can't be read.
    """
    try:
        return parse_head(head_path(journal).read_bytes())
    except FileNotFoundError:
        return None


def parse_head(block: bytes) -> HeadState | None:
    """Return the newest valid slot of a head's bytes, None if no slot is valid."""
    slots = [state for state in (_parse_slot(block, 0), _parse_slot(block, _STRIDE)) if state is not None]
    return max(slots, key=lambda state: state.counter, default=None)


def _parse_slot(block: bytes, offset: int) -> HeadState | None:
    if len(block) < offset + _SLOT.size + _CRC.size:
        return None
    raw = block[offset : offset + _SLOT.size]
    magic, version, flags, counter, *marks = _SLOT.unpack(raw)
    if magic != _MAGIC or version != _VERSION or _CRC.unpack_from(block, offset + _SLOT.size)[0] != zlib.crc32(raw):
        return None
    written = Mark(marks[0], marks[1], marks[2].hex())
    intended = Mark(marks[3], marks[4], marks[5].hex())
    return HeadState(written, intended, bool(flags & _CLEAN), counter)


def is_locked(journal: Path) -> bool:
    """Return whether a gateway is writing this journal now.

    Raises:
        OSError: the head is there and can't be opened.
    """
    try:
        fd = os.open(head_path(journal), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class Head:
    """The writer's side: holds the lock as long as it is open.

    Attributes:
        found: what the file said when it was opened, None if it was new or damaged.
        existed: whether there was a file.
    """

    def __init__(self, journal: Path) -> None:
        """Open or make the head of this journal, and lock it.

        Raises:
            AuditError: another gateway holds the lock.
            OSError: the file can't be made, opened or given its size.
        """
        self._path = head_path(journal)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(journal)
            block = os.pread(self._fd, SIZE_BYTES, 0)
            self.existed = len(block) > 0
            self.found = parse_head(block)
            # Blocks are taken now: a write through the map into a full disk would be a SIGBUS, not an error.
            os.posix_fallocate(self._fd, 0, SIZE_BYTES)
            self._map = mmap.mmap(self._fd, SIZE_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._counter = self.found.counter if self.found else 0

    def _lock(self, journal: Path) -> None:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_S)
            else:
                return
        raise AuditError(
            f"another gateway writes the journal {journal}; stop it, or give this one its own `audit: path:`"
        )

    def update(self, written: Mark, intended: Mark, *, clean: bool = False) -> None:
        """Say where the journal ends."""
        self._counter = counter = self._counter + 1
        raw = _SLOT.pack(
            _MAGIC, _VERSION, _CLEAN if clean else 0, counter,
            written.seq, written.size_bytes, bytes.fromhex(written.hash),
            intended.seq, intended.size_bytes, bytes.fromhex(intended.hash),
        )  # fmt: skip
        start = (counter & 1) * _STRIDE
        self._map[start : start + _SLOT.size + _CRC.size] = raw + _CRC.pack(zlib.crc32(raw))

    def intact(self) -> bool:
        """Return whether the file still has its name and size, so that an update can't fault and will be found."""
        there = os.fstat(self._fd)
        return there.st_nlink > 0 and there.st_size >= SIZE_BYTES

    def fileno(self) -> int:
        """Return the descriptor, for fdatasync."""
        return self._fd

    def close(self) -> None:
        """Unmap, close, and so unlock."""
        self._map.close()
        os.close(self._fd)
