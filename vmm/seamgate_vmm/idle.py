"""After how long a waiting guest gives back what, without anybody's asking. Kept by `worker.py` and `sleepers.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """After how many seconds of waiting a guest gives back what; 0: never.

    trim_s: pages that are what its template has, 5 ms of CPU to take again. park_s: what KVM holds for it, 6 ms.
    hibernate_s: all of its memory, onto disk, some 0.1 s; only a guest that has no stream and does not read its
    standard input, and only if it waits at least as long again. Off: it is for guests that wait for hours.
    Raises: ValueError if a number is negative, or a later step is due before an earlier one.
    """

    trim_s: float = 15.0  # taking copies again costs 5 ms of CPU: not for every answer waited for
    park_s: float = 30.0
    hibernate_s: float = 0.0

    def __post_init__(self) -> None:
        steps = (self.trim_s, self.park_s, self.hibernate_s)
        if not all(0 <= step < float("inf") for step in steps):
            raise ValueError("idle times are seconds, 0 or more")
        if self.hibernate_s and not 0 < self.park_s <= self.hibernate_s:
            raise ValueError("hibernate_s needs a park_s that is not 0 and not longer: guests are parked first")

    def due(self, waited_s: float) -> int:
        """Return how much a guest that waited so long gives back: 0 nothing, 1 pages, 2 what KVM holds too."""
        if self.park_s and waited_s > self.park_s:
            return 2
        return 1 if self.trim_s and waited_s > self.trim_s else 0
