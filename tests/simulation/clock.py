"""Virtual time: the one clock of a simulation, put in the place of the system's before anything else is imported.

Time stands still while code runs and jumps to the next timer when nothing is left to run, so that an hour of silence
costs nothing and every schedule is the same on every machine. Whoever stands for something slow (a disk, a plugin)
moves the clock by hand, which is what blocking the loop means here.
"""

from __future__ import annotations

import time


class Clock:
    """Seconds since the simulation began; never goes back within one."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Another simulation begins, at the same time as each."""
        self.now_s = 1000.0

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return self.now_s

    def perf_counter_ns(self) -> int:
        """As `time.perf_counter_ns`."""
        return int(self.now_s * 1e9)

    def unix(self) -> float:
        """As `time.time`: always the same day."""
        return 1_780_000_000.0 + self.now_s

    def advance(self, seconds: float) -> None:
        """Let time go by while code runs."""
        self.now_s += seconds


CLOCK = Clock()


def install() -> None:
    """Replace the system's clocks. Only before modules of the gateway are imported, which take them by name."""
    time.monotonic = CLOCK.monotonic
    time.perf_counter_ns = CLOCK.perf_counter_ns
    time.thread_time = CLOCK.monotonic  # whoever stands for something slow counts as busy
