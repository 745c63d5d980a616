"""Counts requests against rate limits: per guest and rule, over a sliding window, by the caller's clock.

Never more than the limit in any window. Up to `EXACT` requests are remembered one by one; beyond that, neighbours are
counted together under the time of the latest, which can only delay the next request, by at most a hundredth of the
window. So a counter's memory does not grow with its limit.

Called by the policy plugin. No I/O, no clock. Where a gateway has several workers, `seamgate.workers.rates` counts by
the same rule for all of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Protocol

from seamgate.policy.selection import Rate

EXACT = 128
RECENT_REQUESTS = 65536
"""Requests that may be under way at once: one that is judged again (with its body, after an amendment) counts once."""
SWEEP_AT = 8192
"""Windows after which those that are empty are dropped: guests come and go."""


class Rates(Protocol):
    """What counts requests: `RateCounter`, or what counts those of several processes."""

    def admit(self, guest: str, request: str, rates: Iterable[Rate], now: float) -> tuple[Rate, float] | None:
        """See `RateCounter.admit`."""
        ...


class Counted:
    """Which requests were counted for which rules: one that is judged again counts once."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, Rate], None] = OrderedDict()

    def __contains__(self, key: tuple[str, Rate]) -> bool:
        """Whether (request, rate) was counted. A request without an id never was."""
        return key in self._known

    def add(self, request: str, rate: Rate) -> None:
        """It is counted now; the oldest is forgotten beyond `RECENT_REQUESTS`."""
        if request:
            self._known[request, rate] = None
            if len(self._known) > RECENT_REQUESTS:
                self._known.popitem(last=False)


class _Window:
    """[time, count] pairs, oldest first, and their sum."""

    __slots__ = ("entries", "total", "window_s")

    def __init__(self, window_s: float) -> None:
        self.entries: deque[list[float]] = deque()
        self.total = 0.0
        self.window_s = window_s

    def expire(self, now: float) -> None:
        entries = self.entries
        while entries and entries[0][0] <= now - self.window_s:
            self.total -= entries.popleft()[1]

    def add(self, now: float) -> None:
        self.total += 1
        if len(self.entries) >= EXACT and now - self.entries[-1][0] < self.window_s / EXACT:
            self.entries[-1][0] = max(now, self.entries[-1][0])
            self.entries[-1][1] += 1
        else:
            self.entries.append([now, 1])


class RateCounter:
    """All windows of a gateway, each of a guest and a rate: it outlives a reload that leaves rule and limit alone."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, Rate], _Window] = {}
        self._counted = Counted()
        self._sweep_at = SWEEP_AT

    def admit(self, guest: str, request: str, rates: Iterable[Rate], now: float) -> tuple[Rate, float] | None:
        """Count a request against all the rates, or against none if one is used up.

        Args:
            guest: its id.
            request: its id; counted once however often it is judged. "" is never the same.
            rates: of the rules that allow it.
            now: Unix seconds.

        Returns:
            None if it was counted, else the rate that is used up and the seconds until it has room.
        """
        fresh = []
        for rate in rates:
            if (request, rate) in self._counted:
                continue
            window = self._window(guest, rate, now)
            if window.total >= rate.count:
                return rate, max(0.0, window.entries[0][0] + window.window_s - now)
            fresh.append((rate, window))
        for rate, window in fresh:
            window.add(now)
            self._counted.add(request, rate)
        return None

    def _window(self, guest: str, rate: Rate, now: float) -> _Window:
        key = (guest, rate)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= self._sweep_at:
                self._sweep(now)
            window = self._windows[key] = _Window(rate.window_s)
        window.expire(now)
        return window

    def _sweep(self, now: float) -> None:
        """Drop windows without entries. Doubling the mark keeps the cost per request constant."""
        for window in self._windows.values():
            window.expire(now)
        self._windows = {key: window for key, window in self._windows.items() if window.entries}
        self._sweep_at = max(SWEEP_AT, 2 * len(self._windows))


def wait_text(seconds: float) -> str:
    """Return a wait for people, rounded up."""
    whole = max(1, math.ceil(seconds))
    return f"{whole} s" if whole < 120 else f"{math.ceil(whole / 60)} min"
