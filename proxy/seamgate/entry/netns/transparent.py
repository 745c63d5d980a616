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
import struct
from typing import Any

from seamgate.address import address_text
from seamgate.audit.record import AuditRequest
from seamgate.ca.leaf import CertificateAuthority
from seamgate.entry.binding import TunnelBinding
from seamgate.entry.http1_guest import Connections, Http1Guest
from seamgate.entry.netns.layout import BASE_URL_PORT, DNS_PORT, PROXY_PORT, TRANSPARENT_PORT
from seamgate.entry.netns.names import NameTable, is_stand_in
from seamgate.entry.netns.refusals import Refusals
from seamgate.entry.tunnel import Tunnel
from seamgate.errors import Reason
from seamgate.flow import Guest, Target
from seamgate.seam import Seam
from seamgate.streams import Transport, as_protocol
from seamgate.verdict import Effect, Verdict, deny

_ORIGINAL_DESTINATION = 80  # Source: linux/netfilter_ipv4.h, netfilter_ipv6/ip6_tables.h
_TLS_HANDSHAKE = 0x16  # RFC 8446 5.1
_SCHEMES = {443: ("https",), 80: ("http",)}
_OWN_PORTS = frozenset({PROXY_PORT, BASE_URL_PORT, TRANSPARENT_PORT, DNS_PORT})
_RESET = struct.pack("ii", 1, 0)


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


class Redirected:
    """What the redirected connections of one guest have in common."""

    def __init__(
        self,
        seam: Seam,
        authority: CertificateAuthority,
        connections: Connections,
        guest: Guest,
        entry: str,
        names: NameTable,
        refusals: Refusals,
    ) -> None:
        self.seam = seam
        self.authority = authority
        self.connections = connections
        self.guest = guest
        self.entry = entry
        self.names = names
        self.refusals = refusals
        self.undecided: set[RedirectedStream] = set()

    @property
    def full(self) -> bool:
        """Whether no further connection is taken."""
        return self.connections.full or len(self.undecided) >= self.connections.most

    def close(self) -> None:
        """End the connections that have not said yet what they are."""
        for stream in list(self.undecided):
            stream.end(deny("the gateway is stopping", reason=Reason.SHUTTING_DOWN))


class RedirectedStream(asyncio.Protocol):
    """One connection, until it has said which protocol it speaks."""

    def __init__(self, common: Redirected) -> None:
        self._common = common
        self._transport: Any = None
        self._host = ""
        self._port = 0
        self._is_address = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Find out where it was to go; reset it if nothing there may be allowed."""
        self._transport = transport
        common = self._common
        common.undecided.add(self)
        found = original_destination(transport.get_extra_info("socket"))
        if common.full:
            self.end(deny("too many connections", reason=Reason.OVERLOADED))
        elif found is None or (found[0].startswith("127.") and found[1] in _OWN_PORTS) or found[0] == "::1":
            self.end(deny("the port of redirected connections is not for direct use", reason=Reason.OWN_ADDRESS))
        else:
            self._to(*found)

    def _to(self, address: str, port: int) -> None:
        common = self._common
        name = common.names.name_of(address)
        self._host, self._port, self._is_address = name or address, port, name is None
        if name is None and is_stand_in(address):
            self.end(
                deny(f"No name was given the address {address}; resolve the name again.", reason=Reason.BAD_TARGET)
            )
            return
        if port not in _SCHEMES:
            verdicts = [
                common.seam.pipeline.judge_connect(common.guest, self._target(scheme)) for scheme in ("https", "http")
            ]
            if all(verdict.effect is Effect.DENY for verdict in verdicts):
                self.end(verdicts[0])
                return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(common.seam.limits.head_timeout_s, self._silent)

    def _target(self, scheme: str) -> Target:
        return Target(scheme, self._host, self._port, self._is_address)

    def data_received(self, data: bytes) -> None:
        """The first bytes: TLS or HTTP."""
        if self not in self._common.undecided:
            return
        tls = data[0] == _TLS_HANDSHAKE
        if not tls and not 0x41 <= data[0] <= 0x5A:
            self.end(deny("What came is neither TLS nor HTTP.", reason=Reason.BAD_REQUEST))
            return
        self._decided()
        if tls:
            self._speak_tls(data)
        else:
            self._speak_http(data)

    def _speak_tls(self, data: bytes) -> None:
        common = self._common
        tunnel = Tunnel(
            common.seam, common.authority, common.connections, common.entry, common.guest, self._target("https")
        )
        tunnel.adopt(self._transport, data, telling=self._port in _SCHEMES)

    def _speak_http(self, data: bytes) -> None:
        common = self._common
        binding = TunnelBinding(common.entry, common.guest, self._target("http"))
        guest = Http1Guest(common.seam, binding, common.connections)
        self._transport.set_protocol(as_protocol(guest))
        guest.connection_made(self._transport)
        guest.data_received(data)

    def eof_received(self) -> bool:
        """The guest says nothing."""
        self._silent()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The guest is gone."""
        self._silent()

    def _silent(self) -> None:
        self.end(deny("The connection was opened, and nothing was asked.", reason=Reason.GUEST_TIMEOUT))

    def _decided(self) -> None:
        self._common.undecided.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self, verdict: Verdict) -> None:
        """Reset the connection and tell why. Once only."""
        if self not in self._common.undecided:
            return
        self._decided()
        reset(self._transport)
        what = AuditRequest(method="CONNECT", scheme="tcp", host=self._host, port=self._port)
        self._common.refusals.refuse(what, verdict)


def reset(transport: Transport) -> None:
    """Close a connection so that its client gets a reset, not an end."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
