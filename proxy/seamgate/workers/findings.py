"""What guests found out about secrets, counted by all workers together: `Findings` of `seamgate.credentials.probing`.

Each guest and each credential has a place in the shared memory, those that a reload added from when a worker first asks
for it: how many holds told
something new, whether it is spent, and of each text that was held a keyed hash, so that what one worker has held tells
nothing new in another one. Read and written under one lock, which is seldom taken: only where something is held.
`spent` is one number, read without it. Where a place is full, a text counts as new: then the count is too high, not too
low. A worker that dies between two stores leaves a text without its count, or the other way round.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from seamgate.workers.memory import FINDINGS_CELLS, Lock, SharedMemory

_HOLDS, _SPENT, _SIZE, _TEXTS = 0, 1, 2, 3
MOST_TEXTS: Final = FINDINGS_CELLS - _TEXTS
_HASH_BYTES: Final = 8


class SharedFindings:
    """See the module."""

    __slots__ = ("_at", "_cells", "_key", "_lock")

    def __init__(self, cells: memoryview, at: int, key: bytes, lock: Lock) -> None:
        self._cells = cells
        self._at = at
        self._key = key
        self._lock = lock

    @property
    def holds(self) -> int:
        """How many holds told something new, in all workers."""
        return int(self._cells[self._at + _HOLDS])

    @property
    def spent(self) -> bool:
        """Whether whose it is, is ended in all workers."""
        return bool(self._cells[self._at + _SPENT])

    def end(self) -> None:
        """Let it be spent, in all workers."""
        self._cells[self._at + _SPENT] = 1

    def add(self, text: bytes, *, counts: bool) -> bool:
        """Take note of a text; return whether it was new to all workers. `counts`: a new one is one hold more."""
        cells, at, wanted = self._cells, self._at, self._hash(text)
        with self._lock:
            size = cells[at + _SIZE]
            if wanted in cells[at + _TEXTS : at + _TEXTS + size].tolist():
                return False
            if size < MOST_TEXTS:
                cells[at + _TEXTS + size] = wanted
                cells[at + _SIZE] = size + 1
            cells[at + _HOLDS] += counts
        return True

    def take_back(self, texts: list[bytes]) -> None:
        """These, all of one hold that counted, were a whole secret."""
        cells, at, gone = self._cells, self._at, {self._hash(text) for text in texts}
        with self._lock:
            kept = [each for each in cells[at + _TEXTS : at + _TEXTS + cells[at + _SIZE]].tolist() if each not in gone]
            for place, each in enumerate(kept):
                cells[at + _TEXTS + place] = each
            cells[at + _SIZE] = len(kept)
            cells[at + _HOLDS] = max(0, cells[at + _HOLDS] - 1)

    def _hash(self, text: bytes) -> int:
        return int.from_bytes(blake2b(text, key=self._key, digest_size=_HASH_BYTES).digest(), "little")


class FindingsTable:
    """The places of all guests and credentials: of those that the gateway started with, and spare ones.

    A spare place is taken once and for good, by the name of who has it: one that goes and comes back with another
    reload goes on where it was.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        keys = [*(("guest", guest) for guest in memory.guests), *(("secret", name) for name in memory.credentials)]
        self._places = {key: number for number, key in enumerate(keys)}

    def get(self, kind: str, key: str) -> SharedFindings | None:
        """Return the place of a guest ("guest", id) or a credential ("secret", name); None: no spare one is left."""
        place = self._places.get((kind, key))
        if place is None:
            spare = self._spare(kind, key)
            if spare is None:
                return None
            place = len(self._places) + spare
        memory = self._memory
        return SharedFindings(memory.findings, place * FINDINGS_CELLS, memory.findings_key, memory.findings_lock)

    def _spare(self, kind: str, key: str) -> int | None:
        """Return the number of the spare place that this name has, or gets now; None: there is none left.

        Asked once for each name in each worker, which keeps what it gets.
        """
        memory = self._memory
        name = f"{kind}\0{key}".encode("utf-8", "surrogatepass")
        tag = int.from_bytes(blake2b(name, key=memory.findings_key, digest_size=_HASH_BYTES).digest(), "little") or 1
        with memory.findings_lock:
            tags = memory.spare_tags.tolist()
            if tag in tags:
                return tags.index(tag)
            if 0 not in tags:
                return None
            place = tags.index(0)
            memory.spare_tags[place] = tag
        return place
