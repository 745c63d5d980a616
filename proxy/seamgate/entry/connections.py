"""All guests' connections of a gateway: counted, held to the limit, swept, closed together.

One per gateway (in each worker, where there are several: then the limit is that of all of them together). Entries ask
`admit` before they take a connection; each connection adds and forgets itself. Opens and reads nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from seamgate.errors import Reason
from seamgate.sides import GuestConnection
from seamgate.streams import TlsStream
from seamgate.verdict import Verdict, deny


class SharedCount(Protocol):
    """What several processes count together (`seamgate.workers.memory`): each its own part, all held to one limit."""

    @property
    def elsewhere(self) -> int:
        """How many the other processes have."""
        ...

    def admit(self, here: int, most: int) -> bool:
        """Add one to the `here` that this process has, if all of them have less than `most`."""
        ...

    def tell(self, here: int) -> None:
        """This process has so many now."""


class Connections:
    """See the module.

    State: `strangers` are those, the oldest first, on which nobody has shown yet who it is; `handshakes` and `opening`
    (SOCKS, or a first byte that is awaited) are in no other table.

    Attributes:
        most: the limit of connections; those of other workers count as well.
        share: of what each worker is held to by itself, since it is not worth counting together.
        all_open, all_strangers: the counts of all workers; None where there is one process.
        guests: how many each known guest has in this process.
    """

    def __init__(self, most: int, most_of_guest: int | None = None) -> None:
        self.most = self.share = most
        self.guests: dict[str, int] = {}
        self._most_of_guest = most_of_guest
        self.all: set[GuestConnection] = set()
        self.strangers: dict[GuestConnection, None] = {}
        self.handshakes: dict[TlsStream, float] = {}
        self.opening: set[object] = set()
        self.refused_total = 0
        self.all_open: SharedCount | None = None
        self.all_strangers: SharedCount | None = None

    @property
    def open(self) -> int:
        """How many there are in this process."""
        return len(self.all) + len(self.handshakes)

    @property
    def full(self) -> bool:
        """Whether no further connection is taken."""
        elsewhere = 0 if self.all_open is None else self.all_open.elsewhere
        return self.open + elsewhere >= self.most

    def admit(self) -> bool:
        """Return whether a further connection may be taken; one that may not is counted as refused."""
        shared = self.all_open
        admitted = self.open < self.most if shared is None else shared.admit(self.open, self.most)
        self.refused_total += not admitted
        return admitted

    @property
    def guest_share(self) -> int:
        """How many one guest may have in this process."""
        most = self.most * 3 // 4 if self._most_of_guest is None else self._most_of_guest
        return max(1, most if self.share >= self.most else most * self.share // self.most)

    def enter(self, guest: str) -> None:
        """Count a connection as this guest's."""
        self.guests[guest] = self.guests.get(guest, 0) + 1

    def leave(self, guest: str) -> None:
        """A connection that was counted as this guest's is gone."""
        left = self.guests[guest] - 1
        if left:
            self.guests[guest] = left
        else:
            del self.guests[guest]

    def too_many(self, guest: str) -> Verdict | None:
        """Return why a guest gets no further connection, or None."""
        if self.guests.get(guest, 0) < self.guest_share:
            return None
        self.refused_total += 1
        return deny(
            f"this guest has {self.guest_share} connections open, which is its share: close some, or wait",
            reason=Reason.OVERLOADED,
        )

    def add(self, connection: GuestConnection) -> None:
        """Take a connection in."""
        self.all.add(connection)
        if self.all_open is not None:
            self.all_open.tell(self.open)

    def add_stranger(self, connection: GuestConnection) -> None:
        """Take a connection whose guest is not known: at most half may be so, and the oldest of them has to go."""
        self.strangers[connection] = None
        shared, elsewhere = self.all_strangers, 0
        if shared is not None:
            shared.tell(len(self.strangers))
            elsewhere = shared.elsewhere
        if len(self.strangers) + elsewhere > max(1, self.most // 2):
            self.refused_total += 1
            next(iter(self.strangers)).close()

    def forget(self, connection: GuestConnection) -> None:
        """It is gone, or somebody else's now."""
        self.all.discard(connection)
        self.strangers.pop(connection, None)
        self.tell()

    def tell(self) -> None:
        """Let the other workers know how many there are here."""
        if self.all_open is not None:
            self.all_open.tell(self.open)
        if self.all_strangers is not None:
            self.all_strangers.tell(len(self.strangers))

    def see_off(self, guests: Collection[str]) -> None:
        """Close what is idle of the connections of these guests, and the others after what is under way."""
        for connection in [each for each in self.all if each.whose in guests]:
            connection.drain()

    def sweep(self, now: float) -> None:
        """Close what is silent for too long. Called every second, with `monotonic()`."""
        for connection in list(self.all):
            connection.check_deadline(now)
        for stream in [stream for stream, deadline in self.handshakes.items() if now > deadline]:
            stream.abort()
        self.tell()

    def close(self) -> None:
        """Close all at once."""
        for connection in list(self.all):
            connection.close()
        for stream in list(self.handshakes):
            stream.abort()

    def abort(self) -> None:
        """End those that are still there, whatever their guests have not read."""
        for connection in list(self.all):
            if connection.transport is not None:
                connection.transport.abort()

    @property
    def awaited(self) -> bool:
        """Whether one was taken of which the first request is still to come, or one that came is to be begun."""
        return bool(self.handshakes or self.opening) or self.asked

    @property
    def asked(self) -> bool:
        """The same, of those alone that carry requests."""
        return any(each.awaited for each in self.all)

    @property
    def flushing(self) -> bool:
        """Whether one is closing that has not sent all that it has to."""
        return any(each.transport is not None and each.transport.is_closing() for each in self.all)
