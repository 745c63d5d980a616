"""Whose turn it is: how much one guest may have done in one turn of the loop before everybody else gets theirs.

One process serves all guests in one thread, and one read brings as much as a socket holds. A connection whose bytes are
tiny pieces (chunks, frames, messages of one byte, pipelined requests that are refused) would be worked on for seconds
while nobody else is asked. So what is read is counted, in the units of `protocol.work`, and belongs to the share of the
guest whose connection or exchange it is: all its connections together, and those without a guest together. What a share
has no room for stays unread, in the connection, whose transport is told to stop at once: at most one read (256 KiB). It
goes on in a later turn, the share's connections one after the other.

    may = reader.left = share.allowance
    ... take events while reader.left > 0 ...
    behind = share.settle(may, reader.left, go_on)      # True: stop reading; go_on is called in its turn

Called by the guests' connections, the upstreams' sessions and WebSockets. Reads no clock: a share is of turns, so a
guest that is alone has as many as it likes. What takes little (`LEAST`) is neither counted nor held up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final


class Budget:
    """How much a share has each turn. Tests make it tiny, so that a turn ends anywhere.

    Attributes:
        units: of one share in one turn: some 1.3 ms. 256 chunks, 128 frames, 64 messages, 16 requests, or 1 MiB.
        least: what a connection may do in any turn: an ordinary request with its body, and an answer.
        records: of TLS, that one stream decrypts in one turn; ordinary ones hold 16 KiB, so that is no limit for them.
    """

    __slots__ = ("least", "records", "units")

    def __init__(self) -> None:
        self.units = 256
        self.least = 32
        self.records = 128


BUDGET: Final = Budget()
MOST_SHARES: Final = 4096
"""Shares that are kept by name; beyond, those that nobody has a use for now are forgotten."""


class Share:
    """One guest's part of each turn. State: `left` in this one, below 0 what later ones pay; who waits for them."""

    __slots__ = ("_due", "_waiting", "left")

    def __init__(self) -> None:
        self.left = BUDGET.units
        self._waiting: deque[Callable[[], None]] = deque()
        self._due = False

    def __repr__(self) -> str:
        return f"<Share left={self.left} waiting={len(self._waiting)}>"

    @property
    def allowance(self) -> int:
        """How many units may be read now."""
        left, least = self.left, BUDGET.least
        return left if left > least else least

    @property
    def idle(self) -> bool:
        """Whether nothing of it is used, and nobody waits."""
        return not self._due

    def settle(self, may: int, left: int, go_on: Callable[[], None]) -> bool:
        """Account for what was read; return whether the reader is behind: then stop reading until `go_on` is called.

        Args:
            may: what `allowance` was.
            left: what of it is left.
            go_on: called in a later turn, if there was not enough.
        """
        if left > 0:
            self.account(may - left)
            return False
        self.spend(may - left)
        self._waiting.append(go_on)
        return True

    def account(self, units: int) -> None:
        """Account for what was read, unless it is little: that costs a comparison, and nobody a turn."""
        if units > BUDGET.least:
            self.spend(units)

    def spend(self, units: int) -> None:
        """Take from this turn's part, and from later ones' where that is not enough."""
        self.left -= units
        self._turn_soon()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn, behind those that wait already."""
        self._waiting.append(go_on)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """A turn is over: give those that wait what the next has, in their order, as far as that goes."""
        self._due = False
        self.left = min(BUDGET.units, self.left + BUDGET.units)
        waiting = self._waiting
        if waiting or self.left < BUDGET.units:
            self._turn_soon()
        for _ in range(len(waiting)):
            if self.left <= 0:
                break
            waiting.popleft()()


class Shares:
    """The shares of all guests, by their ids; "" is that of all who have not said who they are."""

    __slots__ = ("_shares",)

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}

    def of(self, guest: str) -> Share:
        """Return the share of a guest."""
        share = self._shares.get(guest)
        if share is None:
            if len(self._shares) >= MOST_SHARES:
                self._shares = {name: each for name, each in self._shares.items() if not each.idle}
            share = self._shares[guest] = Share()
        return share
