"""All guests' connections of a gateway: counted, held to the limit, swept, closed together.

One per gateway (in each worker, where there are several: then the limit is that of all of them together). Entries ask
`admit` before they take a connection; each connection adds and forgets itself. Opens and reads nothing.
"""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from seamgate.sides import GuestConnection
from seamgate.streams import TlsStream


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

    State: `strangers` are those, the oldest first, on which nobody has shown yet who it is.

    Attributes:
        most: the limit of connections; those of other workers count as well.
        share: of what each worker is held to by itself, since it is not worth counting together.
        all_open, all_strangers: the counts of all workers; None where there is one process.
    """

    def __init__(self, most: int) -> None:
        self.most = self.share = most
        self.all: set[GuestConnection] = set()
        self.strangers: dict[GuestConnection, None] = {}
        self.handshakes: dict[TlsStream, float] = {}
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

    def sweep(self) -> None:
        """Close what is silent for too long. Called every second."""
        now = monotonic()
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
    def flushing(self) -> bool:
        """Whether one is closing that has not sent all that it has to."""
        return any(each.transport is not None and each.transport.is_closing() for each in self.all)
