"""How many guests and machines a pool has, in which state, and what has become of those before. Kept by `pool.py`.

Read by whoever tells of it (the gateway's metrics). A worker's numbers are what a worker says: for show, and for how
many machines are kept warm, never for what a guest may do.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from seamgate_vmm.outcome import Outcome
from seamgate_vmm.pooled import PooledGuest, Rest, WorkerLink

STATES: tuple[str, ...] = ("warm", "assigned", "idle", "parked", "hibernated")
"""`warm`: machines that wait for a guest. Of guests: `hibernated` are on disk, of `parked` ones KVM holds nothing,
`idle` ones have given back pages, and all others are `assigned`."""
SOURCES: tuple[str, ...] = ("warm", "new", "hibernated")
"""What a guest was restored on: a machine that waited for it, one that had to be made, or its own file on disk."""


@dataclass(slots=True)
class Census:
    """What a pool has counted since it was opened."""

    restores: Counter[str] = field(default_factory=Counter)  # by source
    ends: Counter[str] = field(default_factory=Counter)  # by `Reason`, its value

    def ended(self, outcome: Outcome) -> None:
        """Count the end of a guest."""
        self.ends[outcome.reason.value] += 1

    def restored(self, source: str) -> None:
        """Count a guest that has begun, or is back."""
        self.restores[source] += 1


def states(workers: Iterable[WorkerLink], hibernated: int) -> dict[str, int]:
    """Return how many there are in each of STATES."""
    found: dict[str, int] = dict.fromkeys(STATES, 0)
    found["hibernated"] = hibernated
    for worker in workers:
        found["warm"] += worker.spares
        for guest in worker.guests.values():
            found[_state_of(guest)] += 1
    return found


def _state_of(guest: PooledGuest) -> str:
    return "parked" if guest.rest is Rest.PARKED else guest.gave_back or "assigned"
