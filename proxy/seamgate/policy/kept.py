"""What was worked out for a guest, kept for its next request: bounded, and each guest's part of it bounded, too.

Called by the evaluator for each request. A guest chooses what it asks, so it can ask for as many things as it likes:
what it has too much of drives out its own, the oldest first, never what is another's.

There are two generations. What is worked out goes into the young one; once that is full, it becomes the old one, and
what was old is forgotten. A hit in the old one puts the entry into the young one again, so what is asked for is kept,
and what is not goes, also that of guests that are gone. A guest has a quarter of a generation at most, and where that
is used up it makes none end: so one flood never ends another guest's entry, and guests that flood together have to fill
a generation between two of its hits. No I/O.

Cost of a hit: two look-ups in dictionaries.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from seamgate.flow import Guest

_Generation = dict[Guest, dict[Hashable, Any]]


class Kept:
    """See the module. State: `_count` entries are in `_young`."""

    __slots__ = ("_count", "_most", "_old", "_share", "_young")

    def __init__(self, most: int) -> None:
        """Keep so many entries in both generations together; eight at least."""
        self._most = most // 2
        self._share = most // 8
        self._young: _Generation = {}
        self._old: _Generation = {}
        self._count = 0

    def __len__(self) -> int:
        """How many there are; what is in both generations counts twice."""
        return self._count + sum(map(len, self._old.values()))

    def get(self, guest: Guest, key: Hashable) -> Any:
        """Return what is kept for this guest, None if there is nothing."""
        mine = self._young.get(guest)
        found = None if mine is None else mine.get(key)
        if found is None:
            mine = self._old.get(guest)
            found = None if mine is None else mine.get(key)
            if found is not None:
                self.put(guest, key, found)
        return found

    def put(self, guest: Guest, key: Hashable, entry: Any) -> None:
        """Keep what is not in the young generation."""
        mine = self._young.get(guest)
        if mine is not None and len(mine) >= self._share:
            del mine[next(iter(mine))]
        else:
            if self._count >= self._most:
                self._old, self._young, self._count, mine = self._young, {}, 0, None
            if mine is None:
                mine = self._young[guest] = {}
            self._count += 1
        mine[key] = entry

    def clear(self) -> None:
        """Forget all."""
        self._young, self._old, self._count = {}, {}, 0
