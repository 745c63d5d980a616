"""What each listening entry makes of a new connection. Called by the gateway, which opens the listeners.

The explicit proxy and base URLs are `Http1Guest`s with a binding of their own; SOCKS5 streams find out what they carry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from seamgate.config import BaseUrlEntry, ProxyEntry, Socks5Entry, parse_route
from seamgate.entry.beyond_limit import BeyondLimit
from seamgate.entry.binding import ProxyBinding, RouteBinding
from seamgate.entry.connections import Connections
from seamgate.entry.http1_guest import Http1Guest
from seamgate.entry.opaque import OpaqueStreams
from seamgate.entry.roster import Roster
from seamgate.entry.socks5 import SocksEntry
from seamgate.entry.tunnel import ConnectHandler
from seamgate.flow import Isolation
from seamgate.seam import Seam
from seamgate.signing import Authorities
from seamgate.streams import as_protocol


def accepting(connections: Connections, factory: Callable[[], Http1Guest]) -> Callable[[], asyncio.BaseProtocol]:
    """Return what a listener calls for each connection: the factory, unless there are too many."""

    def accept() -> asyncio.BaseProtocol:
        return as_protocol(factory()) if connections.admit() else BeyondLimit()

    return accept


def proxy_factory(
    entry: ProxyEntry, seam: Seam, authorities: Authorities, connections: Connections, roster: Roster
) -> Callable[[], Http1Guest]:
    """Return what makes a connection of the explicit proxy."""
    guest = roster.guest(entry.guest, Isolation.PROXY)
    binding = ProxyBinding("proxy", roster.identities(Isolation.PROXY), guest)
    roster.follow(binding, "proxy")
    on_connect = ConnectHandler(seam, authorities, connections, binding)
    return lambda: Http1Guest(seam, binding, connections, on_connect)


def base_url_factory(
    entry: BaseUrlEntry, seam: Seam, connections: Connections, roster: Roster
) -> Callable[[], Http1Guest]:
    """Return what makes a connection to a base URL."""
    guest = roster.guest(entry.guest, Isolation.BASE_URL)
    routes = {name: parse_route(origin) for name, origin in entry.routes.items()}
    binding = RouteBinding("base_url", routes, roster.identities(Isolation.BASE_URL), guest, entry.hosts)
    roster.follow(binding, "base_url")
    return lambda: Http1Guest(seam, binding, connections, None)


def socks_entry(
    entry: Socks5Entry, seam: Seam, authorities: Authorities, connections: Connections, roster: Roster
) -> SocksEntry:
    """Return the SOCKS5 entry, whose `accept` makes its connections."""
    streams = OpaqueStreams(seam, authorities, connections, "socks5")
    guest = roster.guest(entry.guest, Isolation.PROXY)
    socks = SocksEntry(streams, roster.identities(Isolation.PROXY), guest)
    roster.follow(socks, "socks5")
    return socks
