"""Netlink messages for the little that a guest's network namespace needs: `lo`, its addresses and routes, NFLOG.

Used by the launcher only, inside the namespace. Talking netlink makes the programs `ip` and `nft` no prerequisites.
Messages are built by functions without I/O; `Netlink` sends them and reads the kernel's answer to each.

    message: length 4, type 2, flags 2, sequence 4, port 4, payload           Source: linux/netlink.h, struct nlmsghdr
    attribute: length 2, type 2, value, padding to 4; host byte order                               struct nlattr
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from seamgate.entry.netns.layout import LOG_GROUP, LOGGED_BYTES

NETLINK_ROUTE: Final = 0
NETLINK_NETFILTER: Final = 12
_REQUEST, _ACK = 0x1, 0x4
CREATE: Final = 0x400
APPEND: Final = 0x800
NESTED: Final = 0x8000
_ERROR = 2
_ANSWER_BYTES = 65536

_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 20, 24
_UP = 0x1
_SCOPE_UNIVERSE, _TABLE_MAIN, _PROTOCOL_STATIC, _UNICAST = 0, 254, 4, 1

# Source: linux/netfilter/nfnetlink_log.h
_LOG_SUBSYSTEM = 4
_LOG_CONFIG = _LOG_SUBSYSTEM << 8 | 1
_CFG_CMD, _CFG_MODE, _CFG_BUFFER, _CFG_THRESHOLD = 1, 2, 3, 5
_CMD_BIND = 1
_COPY_PACKET = 2
_AT_ONCE = 1
"""Packets that wait for company: none, so that one is told by the time its sender goes on, or ends."""

Message = tuple[int, int, bytes]
"""(type, flags beside REQUEST and ACK, payload)."""


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute, padded."""
    return struct.pack("=HH", len(value) + 4, kind) + value + b"\0" * (-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that holds others."""
    return attribute(kind | NESTED, b"".join(attributes))


def netfilter_header(family: int, resource: int = 0) -> bytes:
    """Return the header of every netfilter message. Source: linux/netfilter/nfnetlink.h, struct nfgenmsg."""
    return struct.pack("!BBH", family, 0, resource)


def pack(message: Message, sequence: int, *, ack: bool = True) -> bytes:
    """Return a message as it is sent."""
    kind, flags, payload = message
    flags |= _REQUEST | (_ACK if ack else 0)
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of attributes in a row; whatever is odd in them ends it."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3FFF, data[4:length]
        data = data[max((length + 3) & ~3, 4) :]


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, payload) of the messages in one datagram; whatever is odd in them ends it."""
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        if not 16 <= length <= len(data):
            return
        yield kind, data[16:length]
        data = data[(length + 3) & ~3 :]


def link_up(index: int) -> Message:
    """Return: set this link up."""
    return _NEW_LINK, 0, struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, _UP, _UP)


def add_address(index: int, address: str) -> Message:
    """Return: give this link one more address."""
    family, packed = _address(address)
    header = struct.pack("=BBBBI", family, len(packed) * 8, 0, _SCOPE_UNIVERSE, index)
    # IFA_LOCAL and IFA_ADDRESS
    return _NEW_ADDRESS, CREATE, header + attribute(2, packed) + attribute(1, packed)


def add_default_route(index: int, source: str) -> Message:
    """Return: send everything for elsewhere to this link, coming from this address."""
    family, packed = _address(source)
    header = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, _UNICAST, 0)
    # RTA_OIF and RTA_PREFSRC
    return _NEW_ROUTE, CREATE, header + attribute(4, struct.pack("=I", index)) + attribute(7, packed)


def _address(text: str) -> tuple[int, bytes]:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return family, socket.inet_pton(family, text)


def receive_log() -> list[Message]:
    """Return: send this socket the first bytes of each packet of the log group."""
    header = netfilter_header(socket.AF_UNSPEC, LOG_GROUP)
    return [
        (_LOG_CONFIG, 0, header + attribute(_CFG_CMD, bytes([_CMD_BIND]))),
        (_LOG_CONFIG, 0, header + attribute(_CFG_MODE, struct.pack("!IBx", LOGGED_BYTES, _COPY_PACKET))),
        (_LOG_CONFIG, 0, header + attribute(_CFG_BUFFER, struct.pack("!I", 4 * LOGGED_BYTES))),
        (_LOG_CONFIG, 0, header + attribute(_CFG_THRESHOLD, struct.pack("!I", _AT_ONCE))),
    ]


class Netlink:
    """A netlink socket that waits for the kernel's answers."""

    def __init__(self, protocol: int) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self.socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def ask(self, message: Message) -> None:
        """Send a message and wait until the kernel has done it.

        Raises:
            OSError: it refused.
        """
        self._sequence += 1
        self.socket.send(pack(message, self._sequence))
        self._answers({self._sequence})

    def transact(self, begin: Message, messages: Sequence[Message], end: Message) -> None:
        """Send a batch of which all or nothing is done (nf_tables).

        Raises:
            OSError: the kernel refused one of them.
        """
        first = self._sequence + 1
        self._sequence += len(messages) + 2
        numbered = [pack(message, first + 1 + place) for place, message in enumerate(messages)]
        batch = pack(begin, first, ack=False) + b"".join(numbered) + pack(end, self._sequence, ack=False)
        self.socket.send(batch)
        self._answers({first + 1 + place for place in range(len(messages))})

    def _answers(self, waiting: set[int]) -> None:
        while waiting:
            data = self.socket.recv(_ANSWER_BYTES)
            while len(data) >= 20:
                length, kind, _, sequence, _ = struct.unpack_from("=IHHII", data)
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", data, 16)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    waiting.discard(sequence)
                data = data[(length + 3) & ~3 :]
