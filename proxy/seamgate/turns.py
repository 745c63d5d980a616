"""Whose turn it is: how much one guest may have done in one turn of the loop before everybody else gets theirs.

One process serves all guests in one thread, and one turn of its loop brings whatever all sockets hold. A connection
whose bytes are tiny pieces (chunks, frames, messages of one byte, pipelined requests that are refused) would be worked
on for seconds while nobody else is asked; so would a thousand connections with one request each, or a hundred
handshakes. So all that is done is counted, in the units of `protocol.work`, and belongs to the share of the guest whose
connection or exchange it is: all its connections together, and those that have not said whose they are together, by
where they come from. What a share has no room for stays unread, in the connection, whose transport is told to stop at
once: at most one read (256 KiB). It goes on in a later turn, the share's connections one after the other, in the order
in which they came.

    may = reader.left = share.allowance                 # 0: nothing is left in this turn
    ... take events while reader.left > 0 ...
    behind = share.settle(may, reader.left, go_on)      # True: stop reading; go_on is called in its turn

Called by the guests' connections, the upstreams' sessions and WebSockets, TLS, the name services; what has no reader of
its own keeps what it read in a `Turnstile`. Reads no clock: a share is of turns, so a guest that is alone has as many
as it likes. Cost: a subtraction for each read; a call in the next turn once half of a share is used, every eighth
request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final


class Budget:
    """How much a share has each turn. Tests make it tiny, so that a turn ends anywhere.

    Attributes:
        units: of one share in one turn: some 1.3 ms. 256 chunks, 128 frames, 64 messages, 16 requests, 2 handshakes, or
            1 MiB.
        least: what a connection may do once it is its turn: an ordinary request with its body, and an answer. The last
            one overdraws the share by that much at most, and later turns pay.
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
        """How many units may be read now. 0: it is others' turn."""
        left = self.left
        if left <= 0:
            return 0
        least = BUDGET.least
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
        behind = left <= 0 or self.left <= 0  # by what was read, or by what that became: decoded bodies
        self.spend(may - left)
        if not behind:
            return False
        self.wait(go_on)
        return True

    def spend(self, units: int) -> None:
        """Take from this turn's part, and from later ones' where that is not enough.

        While half of it is left nobody has to give it back: so a guest that asks little costs the loop nothing.
        """
        self.left -= units
        if self.left << 1 <= BUDGET.units:
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


class Turnstile:
    """Keeps what a connection has read that has no reader of its own to keep it, until it is its share's turn.

    State: `_take` while it is others' turn, then the transport is not read; `_ended` if an end came meanwhile. It
    refers to the connection only as long as something is kept, or both would be a cycle.
    """

    __slots__ = ("_data", "_ended", "_take", "_transport")

    def __init__(self) -> None:
        self._take: Callable[[bytes], object] | None = None
        self._transport: Any = None
        self._data = b""
        self._ended = False

    def keeps(self, share: Share, transport: Any, data: bytes, take: Callable[[bytes], object]) -> bool:
        """Return whether it is others' turn: then these bytes are kept, and `take` is called in the share's turn.

        Args:
            take: of the connection, `data_received` in most.
        """
        if self._take is not None:
            self._data += data
            return True
        if share.left > 0:
            return False
        self._transport, self._data, self._take = transport, data, take
        transport.pause_reading()
        share.wait(self._go_on)
        return True

    def keeps_end(self) -> bool:
        """Return whether something is kept: then an end comes after it, for whoever reads the connection then."""
        self._ended = self._take is not None
        return self._ended

    def _go_on(self) -> None:
        transport, data, take, ended = self._transport, self._data, self._take, self._ended
        self._transport, self._data, self._take, self._ended = None, b"", None, False
        if take is None or transport.is_closing():
            return
        transport.resume_reading()  # before: whoever takes it may stop it again
        take(data)
        if ended and not (self.keeps_end() or transport.is_closing() or transport.get_protocol().eof_received()):
            transport.close()


class Shares:
    """The shares of all guests, by their ids, and of those who have not said who they are, by where they come from."""

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

    def of_stranger(self, transport: Any) -> Share:
        """Return the share of all those at the same address who have not said who they are."""
        peer = transport.get_extra_info("peername")
        return self.of(f"@{peer[0]}" if isinstance(peer, tuple) else "@")  # no guest's id has one in it
