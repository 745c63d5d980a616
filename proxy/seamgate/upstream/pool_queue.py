"""Who waits for a session of one bucket, and whose turn it is: guests one after the other, each guest's own in order.

Called by the session pool. So a guest that asks a thousand times at once waits behind itself, not before the others.
Rearranges lists, and nothing else; no clock, no I/O.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from seamgate.errors import Reason, UpstreamError


class Waiter:
    """One request that waits.

    Attributes:
        guest: id of whoever asked.
        addresses: those that were validated for the request.
        future: gets the session, or the error.
    """

    __slots__ = ("addresses", "future", "guest")

    def __init__(self, guest: str, addresses: tuple[str, ...], future: asyncio.Future[Any]) -> None:
        self.guest = guest
        self.addresses = addresses
        self.future = future


class FairQueue:
    """The waiters of one bucket. State: guests in the order of their turns, none without waiters."""

    __slots__ = ("_by_guest", "_count")

    def __init__(self) -> None:
        self._by_guest: dict[str, deque[Waiter]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiter]:
        """Yield all, guest by guest in the order of their turns."""
        for waiters in list(self._by_guest.values()):
            yield from list(waiters)

    def add(self, waiter: Waiter) -> None:
        """Queue a waiter behind those of its guest; a guest without any gets the last turn."""
        self._by_guest.setdefault(waiter.guest, deque()).append(waiter)
        self._count += 1

    def remove(self, waiter: Waiter) -> None:
        """Take out a waiter that gave up; nothing if it is not there any more."""
        waiters = self._by_guest.get(waiter.guest)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            self._count -= 1
            if not waiters:
                del self._by_guest[waiter.guest]

    def first(self, address: str = "") -> Waiter | None:
        """Return the waiter whose turn it is, among those that still wait and may use this address ("": any)."""
        for waiters in self._by_guest.values():
            for waiter in waiters:
                if not waiter.future.done() and (not address or address in waiter.addresses):
                    return waiter
        return None

    def take(self, waiter: Waiter) -> None:
        """Take out a waiter that is served: its guest's next turn comes after all the others'."""
        self.remove(waiter)
        rest = self._by_guest.pop(waiter.guest, None)
        if rest is not None:
            self._by_guest[waiter.guest] = rest


class Shares:
    """How many requests of each guest have, or wait for, a session of one bucket; and who waits to be one of them.

    A guest's share is what it may have at once, so that there is always something left for the others.
    """

    __slots__ = ("_gates", "_held")

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._gates: dict[str, deque[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def waiting(self) -> int:
        """How many wait for their guest's share."""
        return sum([len(gate) for gate in self._gates.values()])

    def enter(self, guest: str, share: int) -> bool:
        """Count one of a guest's, unless that would be more than its share."""
        held = self._held.get(guest, 0)
        if held >= share:
            return False
        self._held[guest] = held + 1
        return True

    def wait(self, guest: str) -> asyncio.Future[None]:
        """Return what is done once one more of this guest's may go on; it is counted then."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gates.setdefault(guest, deque()).append(future)
        return future

    def give_up(self, guest: str, future: asyncio.Future[None]) -> None:
        """Stop waiting. If it was let through at that very moment, the next one is."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self.leave(guest)
            return
        gate = self._gates.get(guest)
        if gate is not None and future in gate:
            gate.remove(future)
            if not gate:
                del self._gates[guest]

    def refuse(self, guest: str, future: asyncio.Future[None], message: str) -> None:
        """End a wait that was too long. Called by a plain timer, which costs less than `asyncio.timeout`."""
        if not future.done():
            self.give_up(guest, future)
            future.set_exception(UpstreamError(message, reason=Reason.UPSTREAM_BUSY))

    def leave(self, guest: str) -> None:
        """One of a guest's is done: the next that waits takes its place."""
        future = self._next(guest)
        if future is not None:
            future.set_result(None)
            return
        held = self._held[guest] - 1
        if held:
            self._held[guest] = held
        else:
            del self._held[guest]

    def widen(self, share: int) -> None:
        """The share has grown: let in those that now fit."""
        for guest in list(self._gates):
            while self._held.get(guest, 0) < share:
                future = self._next(guest)
                if future is None:
                    break
                self._held[guest] = self._held.get(guest, 0) + 1
                future.set_result(None)

    def _next(self, guest: str) -> asyncio.Future[None] | None:
        gate = self._gates.get(guest)
        while gate:
            future = gate.popleft()
            if not gate:
                del self._gates[guest]
            if not future.done():
                return future
        return None


class Claim:
    """One of a guest's share, as the session that it was lent holds it: to be ended once, when that comes back."""

    __slots__ = ("_guest", "_shares")

    def __init__(self, shares: Shares, guest: str) -> None:
        self._shares = shares
        self._guest = guest

    def end(self) -> None:
        """It is the next one's."""
        self._shares.leave(self._guest)
