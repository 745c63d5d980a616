"""Counts requests against rate limits over all workers, by the rule of `seamgate.policy.rates`: N a minute is N in all.

Used by the policy plugin of each worker in place of its own counter. The windows lie in memory that all workers map
(`seamgate.workers.memory`). Each belongs to a group by its key, which is hashed of guest, rule and limit; a group is
read and written under its lock only. A window in which nothing counts any more is as good as an empty one, so its slot
is used again. Where a group has no slot left, nothing more is admitted: the limit holds.

A worker that is killed here leaves at worst a request counted that was never sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from hashlib import blake2b

from seamgate.policy.rates import EXACT, Counted
from seamgate.policy.selection import Rate
from seamgate.workers.memory import (
    GROUP_SLOTS,
    GROUPS,
    KEY_BYTES,
    SLOT_DOUBLES,
    SLOT_PAIRS,
    WindowTable,
)

_FIRST, _LENGTH, _TOTAL, _PAIRS = 0, 1, 2, 4
_RETRY_FULL_S = 60.0
"""When to try again where too many guests and rules are counted at once."""


class SharedRates:
    """All windows of all workers. What a rule counted goes on over a reload that leaves it and its limit alone."""

    def __init__(self, table: WindowTable) -> None:
        self._table = table
        self._counted = Counted()

    def admit(self, guest: str, request: str, rates: Iterable[Rate], now: float) -> tuple[Rate, float] | None:
        """Count a request against all the rates, or against none; see `RateCounter.admit`."""
        wanted = [(rate, *_place(guest, rate)) for rate in rates if (request, rate) not in self._counted]
        with ExitStack() as locks:
            # In one order for all processes, or two of them could wait for each other.
            for group in sorted({group for _, group, _ in wanted}):
                locks.enter_context(self._table.lock(group))
            windows: list[tuple[Rate, int]] = []
            for rate, group, key in wanted:
                slot = self._slot(group, key, now, taken=[slot for _, slot in windows])
                if slot < 0:
                    return rate, _RETRY_FULL_S
                wait_s = self._wait_s(slot, rate, now)
                if wait_s is not None:
                    return rate, wait_s
                windows.append((rate, slot))
            for rate, slot in windows:
                self._add(slot, rate, now)
                self._counted.add(request, rate)
        return None

    def _slot(self, group: int, key: bytes, now: float, taken: list[int]) -> int:
        """Return the slot with this key, else one of the group that is free and now has it, else -1."""
        table, start = self._table, group * GROUP_SLOTS
        first, end = table.key_offset(start), table.key_offset(start + GROUP_SLOTS)
        found = table.keys.find(key, first, end)
        while found >= 0:
            place, rest = divmod(found - first, KEY_BYTES)
            if not rest:
                if table.ends[start + place] <= now:
                    self._empty(start + place)
                return start + place
            found = table.keys.find(key, found + 1, end)  # it stood across two keys
        for slot in range(start, start + GROUP_SLOTS):
            if table.ends[slot] <= now and slot not in taken:
                self._empty(slot)
                offset = table.key_offset(slot)
                table.keys[offset : offset + KEY_BYTES] = key
                return slot
        return -1

    def _empty(self, slot: int) -> None:
        cells, at = self._table.cells, slot * SLOT_DOUBLES
        cells[at + _FIRST] = cells[at + _LENGTH] = cells[at + _TOTAL] = 0.0

    def _wait_s(self, slot: int, rate: Rate, now: float) -> float | None:
        """Drop what counts no more; return how long it takes until there is room, None if there is."""
        cells, at = self._table.cells, slot * SLOT_DOUBLES
        first, length = int(cells[at + _FIRST]), int(cells[at + _LENGTH])
        total = cells[at + _TOTAL] if length else 0.0
        oldest = at + _PAIRS + 2 * first
        while length and cells[oldest] <= now - rate.window_s:
            total -= cells[oldest + 1]
            first, length = (first + 1) % SLOT_PAIRS, length - 1
            oldest = at + _PAIRS + 2 * first
        cells[at + _FIRST], cells[at + _LENGTH], cells[at + _TOTAL] = first, length, total
        if total < rate.count:
            return None
        return max(0.0, cells[oldest] + rate.window_s - now) if length else 0.0

    def _add(self, slot: int, rate: Rate, now: float) -> None:
        """Count one. In an order in which a death in between leaves at most one too many."""
        cells, at = self._table.cells, slot * SLOT_DOUBLES
        first, length = int(cells[at + _FIRST]), int(cells[at + _LENGTH])
        cells[at + _TOTAL] += 1
        last = at + _PAIRS + 2 * ((first + length - 1) % SLOT_PAIRS)
        near = length >= EXACT and now - cells[last] < rate.window_s / EXACT
        if near or length == SLOT_PAIRS:
            now = cells[last] = max(now, cells[last])
            cells[last + 1] += 1
        else:
            place = at + _PAIRS + 2 * ((first + length) % SLOT_PAIRS)
            cells[place], cells[place + 1] = now, 1.0
            cells[at + _LENGTH] = length + 1
        self._table.ends[slot] = max(self._table.ends[slot], now + rate.window_s)


def _place(guest: str, rate: Rate) -> tuple[int, bytes]:
    """Return (group, key) of a window."""
    text = f"{guest}\0{rate.rule}\0{rate.count}\0{rate.window_s}"
    key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
    return int.from_bytes(key[:4], "little") % GROUPS, key
