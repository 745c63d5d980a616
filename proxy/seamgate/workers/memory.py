"""Memory that the processes of one gateway share: what each of them counts, held to limits that are of all together.

Made by the supervisor, mapped by each worker from the descriptor that it inherits (a memfd: it has no name, and is gone
with the last process). Three parts:

- a row of numbers for each worker, which only that worker writes (and the supervisor, once it is dead). What decides by
  the sum of a column does so under the lock of that column;
- windows of requests for rate limits (`seamgate.workers.rates`), grouped; a group has a lock;
- what guests found out about secrets (`seamgate.workers.findings`), under one lock, and a key for the hashes in it.

A lock is a byte range of the descriptor (fcntl(2), F_SETLKW): the kernel gives it back when its process dies, whatever
it was doing, and it costs two system calls. Who needs several takes them in ascending order, and waits for nothing else
under them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from types import TracebackType

OPEN, STRANGERS, HELD, HELD_BY_GUEST = range(4)
"""Columns: open connections, those of strangers, held bytes, and from `HELD_BY_GUEST` on those of each guest."""
_CELL_BYTES = 8

# Of 64 windows each, so that a look-up reads one kilobyte and a lock is seldom waited for.
GROUPS, GROUP_SLOTS = 1024, 64
SLOTS = GROUPS * GROUP_SLOTS
KEY_BYTES = 16
SLOT_DOUBLES = 544
"""First, length and total, one to spare, then (time, count) pairs: `SLOT_PAIRS` of them."""
SLOT_PAIRS = (SLOT_DOUBLES - 4) // 2
_TABLE_BYTES = SLOTS * (KEY_BYTES + 8 + SLOT_DOUBLES * 8)
_PAGE_BYTES = 4096
_COLUMN_LOCK, _FINDINGS_LOCK, _GROUP_LOCK = 0, 512, 1024
FINDINGS_CELLS = 128
"""Numbers of eight bytes for each guest and each credential: three, and hashes of what was held."""
SPARE_PLACES = 1024
"""For guests and credentials that reloads add; over more of them each worker counts for itself."""
_FINDINGS_KEY_BYTES = 16


class Lock:
    """One lock of all processes. `with lock: ...`; not to be taken twice."""

    __slots__ = ("_byte", "_fd")

    def __init__(self, fd: int, byte: int) -> None:
        self._fd = fd
        self._byte = byte

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._byte)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._byte)


class WindowTable:
    """The windows. Read and written under the lock of the group.

    Attributes:
        keys: the mapped memory; the key of slot n is at `key_offset(n)`.
        ends: of each slot, the Unix time after which nothing in it counts any more; 0: it was never used.
        cells: of each slot, `SLOT_DOUBLES` numbers.
    """

    def __init__(self, memory: mmap.mmap, fd: int, offset: int) -> None:
        self.keys = memory
        self._offset = offset
        ends_at = offset + SLOTS * KEY_BYTES
        cells_at = ends_at + SLOTS * 8
        view = memoryview(memory)
        self.ends = view[ends_at:cells_at].cast("d")
        self.cells = view[cells_at : cells_at + SLOTS * SLOT_DOUBLES * 8].cast("d")
        self._locks = [Lock(fd, _GROUP_LOCK + group) for group in range(GROUPS)]

    def lock(self, group: int) -> Lock:
        """Return the lock of a group."""
        return self._locks[group]

    def key_offset(self, slot: int) -> int:
        """Return where the key of a slot is."""
        return self._offset + slot * KEY_BYTES


class SharedMemory:
    """See the module.

    Attributes:
        fd: its descriptor, for workers to inherit.
        windows: of requests that are counted against rate limits.
        findings, findings_key, findings_lock: of what guests found out; by guests first, then by credentials, then
            of those that came later.
        spare_tags: of each place of those that came later, whose it is (`seamgate.workers.findings`); 0: nobody's.
    """

    def __init__(self, fd: int, workers: int, guests: Sequence[str], credentials: Sequence[str] = ()) -> None:
        """Map the memory behind a descriptor; all processes name the same workers, guests and credentials."""
        self.fd = fd
        self.guests, self.credentials = tuple(guests), tuple(credentials)
        self._workers = workers
        self._columns = HELD_BY_GUEST + len(guests)
        self.guest_column = {guest: HELD_BY_GUEST + place for place, guest in enumerate(guests)}
        places = len(self.guests) + len(self.credentials)
        self._memory = mmap.mmap(fd, _size_bytes(workers, self._columns, places))
        rows_bytes = workers * self._columns * _CELL_BYTES
        self._cells = memoryview(self._memory)[:rows_bytes].cast("Q")
        start = _pages(rows_bytes)
        self.windows = WindowTable(self._memory, fd, start)
        start += _TABLE_BYTES
        self.findings_key = self._memory[start : start + _FINDINGS_KEY_BYTES]
        start += _FINDINGS_KEY_BYTES
        self.spare_tags = memoryview(self._memory)[start : start + SPARE_PLACES * _CELL_BYTES].cast("Q")
        start += SPARE_PLACES * _CELL_BYTES
        size = (places + SPARE_PLACES) * FINDINGS_CELLS * _CELL_BYTES
        self.findings = memoryview(self._memory)[start : start + size].cast("Q")
        self.findings_lock = Lock(fd, _FINDINGS_LOCK)

    @classmethod
    def make(cls, workers: int, guests: Sequence[str], credentials: Sequence[str] = ()) -> SharedMemory:
        """Make fresh memory. Only what is used takes room: a page or two for each window, one for four findings."""
        fd = os.memfd_create("seamgate-shared", os.MFD_CLOEXEC)
        columns = HELD_BY_GUEST + len(guests)
        os.ftruncate(fd, _size_bytes(workers, columns, len(guests) + len(credentials)))
        os.pwrite(fd, os.urandom(_FINDINGS_KEY_BYTES), _pages(workers * columns * _CELL_BYTES) + _TABLE_BYTES)
        return cls(fd, workers, guests, credentials)

    def column_lock(self, column: int) -> Lock:
        """Return the lock of a column; those of guests go with HELD."""
        return Lock(self.fd, _COLUMN_LOCK + min(column, HELD))

    def own(self, worker: int, column: int) -> int:
        """Return what this worker has."""
        return self._cells[worker * self._columns + column]

    def set_own(self, worker: int, column: int, value: int) -> None:
        """Say what this worker has. One store of eight bytes: nobody ever reads half of it."""
        self._cells[worker * self._columns + column] = value

    def total(self, column: int) -> int:
        """Return what all workers have together."""
        return sum(self._cells[column :: self._columns])

    def clear_worker(self, worker: int) -> None:
        """A worker is dead: it has nothing any more."""
        for column in range(self._columns):
            self.set_own(worker, column, 0)

    def close(self) -> None:
        """Let go of the descriptor; the memory stays as long as somebody maps it. Closing twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SharedCount:
    """One column as `entry.connections` uses it. `worker` is None in the supervisor, which counts nothing itself."""

    def __init__(self, memory: SharedMemory, worker: int | None, column: int) -> None:
        self._memory = memory
        self._worker = worker
        self._column = column
        self._lock = memory.column_lock(column)

    @property
    def elsewhere(self) -> int:
        """How many the other workers have."""
        total = self._memory.total(self._column)
        return total if self._worker is None else total - self._memory.own(self._worker, self._column)

    def admit(self, here: int, most: int) -> bool:
        """Add one to the `here` that this worker has, if all of them have less than `most`."""
        with self._lock:
            admitted = here + self.elsewhere < most
            self.tell(here + admitted)
        return admitted

    def tell(self, here: int) -> None:
        """This worker has so many now."""
        if self._worker is not None:
            self._memory.set_own(self._worker, self._column, here)


class SharedHeldBytes:
    """The budget of held bytes as `upload.HeldBytes` uses it: of all guests, and of each in all workers."""

    def __init__(self, memory: SharedMemory, worker: int, most_bytes: int) -> None:
        self._memory = memory
        self._worker = worker
        self._most_bytes = most_bytes
        self._lock = memory.column_lock(HELD)

    def take(self, guest: str, size_bytes: int) -> bool:
        """Take so much of the budget; False, and nothing is taken, where all guests or this one have enough."""
        memory = self._memory
        column = memory.guest_column.get(guest)
        with self._lock:
            if memory.total(HELD) + size_bytes > self._most_bytes:
                return False
            if column is not None and memory.total(column) + size_bytes > self._most_bytes // 2:
                return False
            self._add(HELD, size_bytes)
            if column is not None:
                self._add(column, size_bytes)
        return True

    def give_back(self, guest: str, size_bytes: int) -> None:
        """It is not in memory any more."""
        self._add(HELD, -size_bytes)
        column = self._memory.guest_column.get(guest)
        if column is not None:
            self._add(column, -size_bytes)

    def _add(self, column: int, size_bytes: int) -> None:
        mine = self._memory.own(self._worker, column) + size_bytes
        self._memory.set_own(self._worker, column, max(0, mine))


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _size_bytes(workers: int, columns: int, places: int) -> int:
    places_bytes = (places + SPARE_PLACES) * FINDINGS_CELLS * _CELL_BYTES
    findings_bytes = _FINDINGS_KEY_BYTES + SPARE_PLACES * _CELL_BYTES + places_bytes
    return _pages(workers * columns * _CELL_BYTES) + _TABLE_BYTES + findings_bytes
