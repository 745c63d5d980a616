"""Who listens where several processes take connections: the supervisor binds, the workers accept."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

from seamgate.config import Config, DnsEntry, split_listen
from seamgate.descriptors import listener_at
from seamgate.entry.connections import Connections
from seamgate.entry.dns_listener import bind_both
from seamgate.entry.listeners import BACKLOG, Listeners, explained
from seamgate.entry.roster import Roster
from seamgate.seam import Seam
from seamgate.signing import Authorities
from seamgate.upstream.destination import OwnAddresses
from seamgate.upstream.forwarder import Forwarder
from seamgate.workers.messages import DNS, DNS_UDP


class BoundListeners(Listeners):
    """The supervisor's: it binds them for the workers to inherit, and accepts nothing.

    Attributes:
        sockets: of each entry, in the order in which workers get them.
    """

    def __init__(self, connections: Connections, roster: Roster, own: OwnAddresses) -> None:
        super().__init__(connections, roster, own)
        self.sockets: dict[str, socket.socket] = {}

    async def open(self, config: Config, seam: Seam, authorities: Authorities | None) -> None:
        """Bind what is configured.

        Raises:
            PrerequisiteMissing: a port can't be bound.
        """
        entries = config.entries
        for name in ("proxy", "base_url", "socks5"):
            entry = getattr(entries, name)
            if entry is not None:
                self._bind(name, entry.listen)
        if entries.dns is not None:
            with explained("dns", entries.dns.listen):
                self.sockets[DNS], self.sockets[DNS_UDP] = bind_both(*split_listen(entries.dns.listen))
            self.bound(DNS, self.sockets[DNS].getsockname())

    def _bind(self, entry: str, listen: str) -> None:
        """Open one listener for all: whoever has time takes the next connection.

        Not one for each by SO_REUSEPORT: every program of the same user could add its own to those, a guest too.
        """
        host, port = split_listen(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with explained(entry, listen):
            there = listener_at(self.inherited.pop(entry, None), host, port)
            self.sockets[entry] = there or socket.create_server((host, port), family=family, backlog=BACKLOG)
        self.bound(entry, self.sockets[entry].getsockname())

    def all_descriptors(self) -> list[int]:
        """Return the sockets' descriptors, in their order."""
        return [each.fileno() for each in self.sockets.values()]

    def descriptors(self) -> dict[str, int]:
        """As `Listeners.descriptors`."""
        return {entry: each.fileno() for entry, each in self.sockets.items() if entry not in (DNS, DNS_UDP)}

    def stop_listening(self) -> None:
        """Close them here; the workers close theirs."""
        for each in self.sockets.values():
            each.close()


class InheritedListeners(Listeners):
    """Sockets that the supervisor has bound: taken at the start, and listened to once all workers are ready."""

    def __init__(
        self, connections: Connections, roster: Roster, own: OwnAddresses, descriptors: Mapping[str, int]
    ) -> None:
        """Take the descriptor of each entry's socket; those of names' are at one worker only."""
        super().__init__(connections, roster, own)
        self._descriptors = descriptors

    async def take_connections(self) -> None:
        """Begin."""
        for server in self.servers:
            await server.start_serving()
        if self.dns is not None:
            await self.dns.attach(self._socket(DNS), self._socket(DNS_UDP))

    def _socket(self, entry: str) -> socket.socket:
        return socket.socket(fileno=self._descriptors[entry])

    async def _open_server(self, entry: str, listen: str, accept: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            accept, sock=self._socket(entry), backlog=BACKLOG, start_serving=False
        )

    async def _listen_dns(self, entry: DnsEntry, seam: Seam, forwarder: Forwarder) -> None:
        if DNS in self._descriptors:
            self.dns = self._make_dns(entry, seam, forwarder)
