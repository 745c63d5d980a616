"""Connections of programs that ignore the proxy variables: whatever they connect to, they end up here.

Where a connection was to go is told by the kernel (SO_ORIGINAL_DST). An address that the name service gave out stands
for a name, and the server name or Host header inside has to agree with it; any other address is a target of its own,
judged as such. TLS and HTTP go on as in a CONNECT tunnel. On the ports of https and http a denial is told in the
protocol, on any other it is a reset.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any, cast

from seamgate.address import address_text
from seamgate.audit.record import AuditRequest
from seamgate.entry.netns.layout import BASE_URL_PORT, DNS_PORT, LOOPBACK_6, PROXY_PORT, TRANSPARENT_PORT
from seamgate.entry.netns.names import NameTable, is_stand_in
from seamgate.entry.netns.refusals import Refusals
from seamgate.entry.opaque import SCHEMES, OpaqueStream, OpaqueStreams, Place, reset
from seamgate.errors import Reason
from seamgate.flow import Guest
from seamgate.protocol.work import ACCEPT
from seamgate.verdict import Effect, Verdict, deny

_ORIGINAL_DESTINATION = 80  # Source: linux/netfilter_ipv4.h, netfilter_ipv6/ip6_tables.h
_OWN_PORTS = frozenset({PROXY_PORT, BASE_URL_PORT, TRANSPARENT_PORT, DNS_PORT})
_NOWHERE = Place("", 0, True)


def original_destination(connection: Any) -> tuple[str, int] | None:
    """Return the canonical address and the port that a redirected connection was to go to; None if it was not."""
    six = connection.family == socket.AF_INET6
    try:
        raw = connection.getsockopt(
            socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP, _ORIGINAL_DESTINATION, 28 if six else 16
        )
    except OSError:
        return None
    port = int.from_bytes(raw[2:4])
    packed = raw[8:24] if six else raw[4:8]
    return address_text(ipaddress.ip_address(packed)), port


class RedirectedStream(asyncio.Protocol):
    """One redirected connection, until it is known where it was to go."""

    def __init__(self, common: OpaqueStreams, guest: Guest, names: NameTable, refusals: Refusals) -> None:
        self._common = common
        self._guest = guest
        self._names = names
        self._refusals = refusals
        self._place = _NOWHERE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Find out where it was to go; reset it if nothing there may be allowed, else find out what it says."""
        self._common.seam.shares.of(self._guest.id).spend(ACCEPT)
        found = original_destination(transport.get_extra_info("socket"))
        verdict = self._judge(found)
        if verdict is not None:
            reset(cast("asyncio.Transport", transport))
            self._refuse(verdict)
            return
        telling = self._place.port in SCHEMES
        OpaqueStream(self._common, self._guest, self._place, telling=telling, on_refused=self._refuse).take(transport)

    def _judge(self, found: tuple[str, int] | None) -> Verdict | None:
        """Note the place, and return why it is refused here and now, if it is."""
        if found is None or (found[0].startswith("127.") and found[1] in _OWN_PORTS) or found[0] == LOOPBACK_6:
            return deny("the port of redirected connections is not for direct use", reason=Reason.OWN_ADDRESS)
        address, port = found
        name = self._names.name_of(address)
        self._place = Place(name or address, port, name is None)
        if self._common.full:
            return deny("too many connections", reason=Reason.OVERLOADED)
        if name is None and is_stand_in(address):
            return deny(f"No name was given the address {address}; resolve the name again.", reason=Reason.BAD_TARGET)
        if port in SCHEMES:
            return None  # judged with the request, so that a denial can be told
        verdict = self._common.judge(self._guest, self._place)
        return verdict if verdict.effect is Effect.DENY else None

    def _refuse(self, verdict: Verdict) -> None:
        what = AuditRequest(method="CONNECT", scheme="tcp", host=self._place.host, port=self._place.port)
        self._refusals.refuse(what, verdict)
