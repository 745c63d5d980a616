"""Tells the audit log of what was refused outside of any request: packets, sockets, names. One teller a guest.

The first of a kind is told at once; those that follow within `WINDOW_S` are counted and told together, and only so many
kinds are told apart, so that a guest that scans or floods leaves a trace without filling the disk. A record that stands
for more than one says for how many. Also reads where the first two come from: the packets that the namespace's rules
log, and what the supervisor of its seccomp filter tells.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from seamgate.address import address_text
from seamgate.audit.record import AuditRequest
from seamgate.entry.netns.confine import AF_INET, AF_INET6
from seamgate.entry.netns.netlink import attributes, messages, pack
from seamgate.entry.netns.ruleset import ask_refused, read_refused
from seamgate.entry.refused import record_refusal
from seamgate.errors import Reason
from seamgate.flow import Guest
from seamgate.seam import Seam
from seamgate.verdict import Verdict, deny

WINDOW_S: Final = 10.0
MOST_KINDS: Final = 256
"""How many different things are told apart within one window."""

_PROTOCOLS: Final = {1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 58: "icmp", 132: "sctp", 136: "udplite"}
_WITH_PORTS: Final = frozenset({6, 17, 33, 132, 136})
# Source: linux/netfilter/nfnetlink_log.h
_LOGGED_PACKET = 4 << 8
_PAYLOAD = 9
_DONE = 3
_LOG_BYTES = 1 << 18
_READS_AT_ONCE = 64
_FAMILIES: Final = {17: "packet", 31: "bluetooth", 38: "alg", 40: "vsock", 44: "xdp"}


class _Count:
    """How often something happened since it was told, and the last verdict on it."""

    __slots__ = ("times", "verdict")

    def __init__(self, verdict: Verdict) -> None:
        self.times = 0
        self.verdict = verdict


class Refusals:
    """See the module."""

    def __init__(self, seam: Seam, guest: Guest, entry: str) -> None:
        self._seam = seam
        self.guest = guest
        self._entry = entry
        self._counts: dict[tuple[AuditRequest, Reason], _Count] = {}
        self._timer: asyncio.TimerHandle | None = None

    def refuse(self, what: AuditRequest, verdict: Verdict, times: int = 1) -> None:
        """Tell that something was refused, now or with others of its kind."""
        key = (what, verdict.reason)
        if key not in self._counts and len(self._counts) >= MOST_KINDS:
            key = (AuditRequest(method=what.method, scheme=what.scheme), verdict.reason)
        count = self._counts.get(key)
        if count is not None:
            count.times += times
            count.verdict = verdict
            return
        self._counts[key] = _Count(verdict)
        self._tell(key[0], verdict, times)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self.flush)

    def flush(self) -> None:
        """Tell what was only counted so far, and begin anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for (what, _), count in counts.items():
            if count.times:
                self._tell(what, count.verdict, count.times)

    def _tell(self, what: AuditRequest, verdict: Verdict, times: int) -> None:
        record_refusal(self._seam, self.guest, self._entry, what, verdict, times)


# -- packets -----------------------------------------------------------------------------------------------------------


class Packet(msgspec.Struct, frozen=True):
    """Where a packet was to go: protocol in lower case, canonical address, port or 0."""

    protocol: str
    address: str
    port: int = 0


def read_packet(data: bytes) -> Packet | None:
    """Read the headers of an IP packet; None if it is none, or cut. Source: RFC 791 3.1, RFC 8200 3."""
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 20:
        number, start = data[9], (data[0] & 0xF) * 4
        address = str(ipaddress.IPv4Address(data[16:20]))
    elif version == 6 and len(data) >= 40:
        number, start = data[6], 40
        address = address_text(ipaddress.IPv6Address(data[24:40]))
    else:
        return None
    protocol = _PROTOCOLS.get(number, f"ip-{number}")
    if number in _WITH_PORTS and len(data) >= start + 4:
        return Packet(protocol, address, int.from_bytes(data[start + 2 : start + 4]))
    return Packet(protocol, address)


def read_log(data: bytes) -> Iterator[bytes]:
    """Yield the packets that one netlink datagram of the log holds."""
    for kind, payload in messages(data):
        if kind == _LOGGED_PACKET:
            yield dict(attributes(payload[4:])).get(_PAYLOAD, b"")


class PacketLog:
    """Reads the packets that a namespace's rules refused. Those that came too fast for it are counted by the rules."""

    def __init__(self, log: socket.socket, refusals: Refusals, name_of: Callable[[str], str | None]) -> None:
        self._socket = log
        self._refusals = refusals
        self._name_of = name_of
        self._told = 0
        log.setblocking(False)
        log.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOG_BYTES)
        asyncio.get_running_loop().add_reader(log.fileno(), self.read)

    def close(self) -> None:
        """Read what is there and tell of the rest. The guest has ended: nothing is added to it any more."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        while self.read():
            pass
        missing = self._counted() - self._told
        if missing > 0:
            verdict = deny("Packets came too fast to be told one by one.", reason=Reason.NO_RULE_MATCHED)
            self._refusals.refuse(AuditRequest(method="SEND"), verdict, missing)
        self._socket.close()

    def _counted(self) -> int:
        """Return how many packets the rules refused. They are ours: the kernel lets whoever made a namespace ask."""
        self._socket.send(pack(ask_refused(), 1, ack=False))
        return sum(read_refused(rule) for data in self._received() for kind, rule in messages(data) if kind != _DONE)

    def read(self) -> bool:
        """Tell of packets that are there; return whether there may be more, when it is others' turn."""
        datagrams = list(islice(self._received(), _READS_AT_ONCE))
        for datagram in datagrams:
            for packet in read_log(datagram):
                self._take(packet)
        return len(datagrams) == _READS_AT_ONCE

    def _received(self) -> Iterator[bytes]:
        while True:
            try:
                yield self._socket.recv(_LOG_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # there were more than it could hold
                    raise

    def _take(self, data: bytes) -> None:
        self._told += 1
        packet = read_packet(data)
        if packet is None:
            what, name = AuditRequest(method="SEND"), "something that is no IP packet"
        else:
            host = self._name_of(packet.address) or packet.address
            what = AuditRequest(method="SEND", scheme=packet.protocol, host=host, port=packet.port)
            name = f"{packet.protocol} to {host}" + (f" port {packet.port}" if packet.port else "")
        message = f"Only TCP and DNS lead out of here, through the gateway; {name} does not."
        self._refusals.refuse(what, deny(message, reason=Reason.NO_RULE_MATCHED))


# -- sockets -----------------------------------------------------------------------------------------------------------


def judge_report(refused: Mapping[str, Any]) -> tuple[AuditRequest, Verdict]:
    """Return what was asked, and why it was refused, of what the supervisor of a guest's filter tells."""
    if "path" in refused:
        path: str = refused["path"]
        message = f"The unix socket {path} is of a service outside; guests reach their own only."
        what = AuditRequest(method="CONNECT", scheme="unix", path=path)
    elif "unseen" in refused:
        what = AuditRequest(method="CONNECT", scheme="unseen")
        message = (
            f"Connections of the program {refused['unseen']} can't be looked at, so there are none: its file can be "
            "run and not read (chmod u+r), or a thread of it has descriptors of its own, before Linux 6.9."
        )
    else:
        what, message = _judge_socket(*refused["socket"])
    return what, deny(message, reason=Reason.NO_RULE_MATCHED)


def _judge_socket(family: int, kind: int) -> tuple[AuditRequest, str]:
    if family in (AF_INET, AF_INET6):
        what = AuditRequest(method="SOCKET", scheme="raw")
        return what, f"A socket of type {kind} makes packets by itself; guests have none."
    name = _FAMILIES.get(family, f"family-{family}")
    what = AuditRequest(method="SOCKET", scheme=name)
    return what, f"A socket of the family {name} leads around the gateway; guests have none."
