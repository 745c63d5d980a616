"""The listening entries of one gateway: opened at its start, handed to a successor, closed when it stops.

Called by `Gateway`. What each entry makes of a connection is `seamgate.entry.factories`'s; a worker, which inherits its
sockets from the supervisor, opens them otherwise (`seamgate.workers.worker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvloop

from seamgate.config import Config, DnsEntry, split_listen
from seamgate.descriptors import listener_at
from seamgate.entry.connections import Connections
from seamgate.entry.dns_entry import RESULTS, NameService
from seamgate.entry.dns_listener import DnsListener
from seamgate.entry.dns_service import DENIED_CODES
from seamgate.entry.factories import accepting, base_url_factory, proxy_factory, socks_entry
from seamgate.entry.http1_guest import Http1Guest
from seamgate.entry.roster import Roster
from seamgate.entry.socks5 import SocksEntry
from seamgate.errors import PrerequisiteMissing
from seamgate.flow import Isolation
from seamgate.seam import Seam
from seamgate.signing import Authorities
from seamgate.upstream.destination import OwnAddresses
from seamgate.upstream.forwarder import Forwarder

BACKLOG: Final = 1024
ACCEPTED: Final = 8
"""Connections that a listener takes in one turn at most. A newcomer waits behind those that came before it: with one a
turn, and each turn full of another guest's handshakes, it waited 64 turns behind 64 of them. Eight cost some 0.3 ms."""


class Listeners:
    """All of them.

    Attributes:
        addresses: entry -> address and port as bound.
        inherited: listeners that are open already, by entry: of the process that this one succeeds.
        servers: what takes connections, those inside of guests' network namespaces too.
        dns: the entry `dns`, where there is one.
    """

    def __init__(self, connections: Connections, roster: Roster, own: OwnAddresses) -> None:
        """Open nothing yet; `own` learns where we listen."""
        self.addresses: dict[str, tuple[str, int]] = {}
        self.inherited: dict[str, socket.socket] = {}
        self.servers: list[asyncio.Server] = []
        self.dns: DnsListener | None = None
        self._connections = connections
        self._roster = roster
        self._own = own
        self._of_entries: dict[str, asyncio.Server] = {}
        self._socks: SocksEntry | None = None

    async def open(self, config: Config, seam: Seam, authorities: Authorities | None) -> None:
        """Listen for each entry that is configured; without `authorities` none of them terminates TLS.

        Raises:
            PrerequisiteMissing: a port can't be bound.
        """
        entries, connections, roster = config.entries, self._connections, self._roster
        if entries.proxy is not None:
            assert authorities is not None
            factory = proxy_factory(entries.proxy, seam, authorities, connections, roster)
            await self._listen("proxy", entries.proxy.listen, accepting(connections, factory))
        if entries.base_url is not None:
            factory = base_url_factory(entries.base_url, seam, connections, roster)
            await self._listen("base_url", entries.base_url.listen, accepting(connections, factory))
        if entries.socks5 is not None:
            assert authorities is not None
            self._socks = socks_entry(entries.socks5, seam, authorities, connections, roster)
            await self._listen("socks5", entries.socks5.listen, self._socks.accept)
        if entries.dns is not None:
            await self._listen_dns(entries.dns, seam, Forwarder(config.dns))

    def bound(self, entry: str, name: tuple[Any, ...]) -> None:
        """An entry listens here: no guest may be carried to it."""
        self.addresses[entry] = (name[0], name[1])
        self._own.add(name[0], name[1])

    async def _listen(self, entry: str, listen: str, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        with explained(entry, listen):
            server = await self._open_server(entry, listen, accept)
        self.servers.append(server)
        self.bound(entry, server.sockets[0].getsockname())

    async def _open_server(self, entry: str, listen: str, accept: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
        host, port = split_listen(listen)
        there = listener_at(self.inherited.pop(entry, None), host, port)
        place: dict[str, Any] = {"host": host, "port": port} if there is None else {"sock": there}
        server = await asyncio.get_running_loop().create_server(accept, **place, backlog=BACKLOG)
        self._of_entries[entry] = server
        await self._accept_more(server.sockets[0], accept)
        return server

    async def _accept_more(self, listener: socket.socket, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        """Take connections from further descriptors of an open listener, so that one turn takes several.

        libuv takes one a turn from each descriptor; asyncio's own loop takes as many as wait. Not where workers share a
        listener, or the first one that wakes would have eight; nor within a guest's namespace, where nobody else waits,
        and there may be 1,500 of these.
        """
        if not isinstance(asyncio.get_running_loop(), uvloop.Loop):
            return
        for _ in range(ACCEPTED - 1):
            again = socket.socket(fileno=os.dup(listener.fileno()))
            self.servers.append(await asyncio.get_running_loop().create_server(accept, sock=again, backlog=BACKLOG))

    def _make_dns(self, entry: DnsEntry, seam: Seam, forwarder: Forwarder) -> DnsListener:
        guest = self._roster.guest(entry.guest, Isolation.PROXY)
        assert guest is not None
        denied = DENIED_CODES[entry.denied_names]
        service = NameService(seam, guest, forwarder, denied=denied, queries_per_s=entry.queries_per_s)
        self._roster.follow(service, "dns")
        return DnsListener(service)

    async def _listen_dns(self, entry: DnsEntry, seam: Seam, forwarder: Forwarder) -> None:
        self.dns = self._make_dns(entry, seam, forwarder)
        with explained("dns", entry.listen):
            await self.dns.open(*split_listen(entry.listen))
        self.bound("dns", self.dns.address)

    async def serve(self, listener: socket.socket, factory: Callable[[], Http1Guest]) -> None:
        """Take connections from a listener that is open already: one inside of a guest's network namespace."""
        accept = accepting(self._connections, factory)
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(accept, sock=listener, backlog=BACKLOG))

    def descriptors(self) -> dict[str, int]:
        """Return the descriptor of each entry's listening socket, for a successor."""
        return {entry: server.sockets[0].fileno() for entry, server in self._of_entries.items()}

    @property
    def dns_counts(self) -> dict[str, int]:
        """What became of the questions to the entry `dns`."""
        return {result: 0 if self.dns is None else self.dns.service.counts[result] for result in RESULTS}

    def follow(self, forwarder: Forwarder) -> None:
        """Forward names' other questions as a new configuration says."""
        if self.dns is not None:
            self.dns.service.forwarder = forwarder

    def stop_listening(self) -> None:
        """Take no new connection; the entry `dns` goes on answering."""
        for server in self.servers:
            server.close()

    def close(self) -> None:
        """End what no connection of a guest's is: streams that have not said what they carry, and names."""
        self.stop_listening()
        if self._socks is not None:
            self._socks.close()
        if self.dns is not None:
            self.dns.close()


@contextlib.contextmanager
def explained(entry: str, listen: str) -> Iterator[None]:
    """Say of what can't be bound which entry it is, and what to do.

    Raises:
        PrerequisiteMissing: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise PrerequisiteMissing(
            f"the entry {entry} can't listen on {listen}: {error.strerror or error}; choose another port"
        ) from error
