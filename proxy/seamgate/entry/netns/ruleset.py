"""The nftables rules of a guest's network namespace, as the netlink messages that set them up. No I/O.

    table inet seamgate {
      chain redirect { type nat hook output priority dstnat;
        meta nfproto ipv4 udp dport 53 redirect to :53
        meta nfproto ipv4 tcp dport 53 redirect to :53
        ip daddr 127.0.0.0/8 accept          # a program may talk with its own servers
        ip6 daddr ::1 accept
        meta l4proto tcp redirect to :TRANSPARENT
      }
      chain refuse { type filter hook output priority filter;
        ip daddr 127.0.0.0/8 accept          # what was redirected has such an address by now
        ip6 daddr ::1 accept
        ip daddr GUEST_ADDRESS accept        # answers to what came from here
        counter log group 7 snaplen 128
        reject with icmpx admin-prohibited
      }
    }

Nothing leaves the namespace without them either: it has no link but `lo`. They exist so that clients that ignore the
proxy variables are served, and so that everything else is refused at once and told to the audit log.

Source: linux/netfilter/nf_tables.h. Netfilter attributes are big-endian.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from seamgate.entry.netns.layout import (
    DNS_PORT,
    GUEST_ADDRESS,
    LOG_GROUP,
    LOGGED_BYTES,
    LOOPBACK_6,
    TRANSPARENT_PORT,
)
from seamgate.entry.netns.netlink import APPEND, CREATE, Message, attribute, attributes, nested, netfilter_header

_SUBSYSTEM = 10
BATCH_BEGIN: Final = (0x10, 0, netfilter_header(socket.AF_UNSPEC, _SUBSYSTEM))
BATCH_END: Final = (0x11, 0, netfilter_header(socket.AF_UNSPEC, _SUBSYSTEM))
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = (_SUBSYSTEM << 8 | number for number in (0, 3, 6))
_GET_RULES = _SUBSYSTEM << 8 | 7
_DUMP = 0x300
_INET = 1
_OUTPUT_HOOK = 3
_PRIORITY_DSTNAT, _PRIORITY_FILTER = -100, 0
_TABLE = b"seamgate\0"
_ACCEPT = 1
_VERDICT_REGISTER, _REGISTER = 0, 1
_META_FAMILY, _META_PROTOCOL = 15, 16
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_ICMPX_UNREACHABLE, _ICMPX_ADMIN_PROHIBITED = 2, 3
# meta nfproto has the numbers of NFPROTO_*, which are those of AF_*
_IPV4, _IPV6 = 2, 10


def _u32(value: int) -> bytes:
    return struct.pack("!I", value)


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, attribute(1, name.encode() + b"\0"), nested(2, *attributes))


def _meta(key: int) -> bytes:
    return _expression("meta", attribute(2, _u32(key)), attribute(1, _u32(_REGISTER)))


def _payload(base: int, offset: int, length: int) -> bytes:
    facts = (_REGISTER, base, offset, length)
    return _expression("payload", *(attribute(kind, _u32(fact)) for kind, fact in enumerate(facts, 1)))


def _equals(value: bytes) -> bytes:
    return _expression("cmp", attribute(1, _u32(_REGISTER)), attribute(2, _u32(0)), nested(3, attribute(1, value)))


def _accept() -> bytes:
    verdict = nested(2, nested(2, attribute(1, _u32(_ACCEPT))))
    return _expression("immediate", attribute(1, _u32(_VERDICT_REGISTER)), verdict)


def _redirect(port: int) -> bytes:
    value = nested(2, attribute(1, struct.pack("!H", port)))
    load = _expression("immediate", attribute(1, _u32(_REGISTER)), value)
    return load + _expression("redir", attribute(1, _u32(_REGISTER)), attribute(3, _u32(_RANGE_SPECIFIED)))


_RANGE_SPECIFIED = 2  # NF_NAT_RANGE_PROTO_SPECIFIED


def _family(number: int) -> bytes:
    return _meta(_META_FAMILY) + _equals(bytes([number]))


def _protocol(number: int) -> bytes:
    return _meta(_META_PROTOCOL) + _equals(bytes([number]))


def _destination_port(port: int) -> bytes:
    return _payload(_TRANSPORT_HEADER, 2, 2) + _equals(struct.pack("!H", port))


def _loopback_4() -> bytes:
    return _family(_IPV4) + _payload(_NETWORK_HEADER, 16, 1) + _equals(b"\x7f")


def _destination(address: str) -> bytes:
    family, number = (socket.AF_INET6, _IPV6) if ":" in address else (socket.AF_INET, _IPV4)
    offset, packed = (24 if number == _IPV6 else 16), socket.inet_pton(family, address)
    return _family(number) + _payload(_NETWORK_HEADER, offset, len(packed)) + _equals(packed)


def _log() -> bytes:
    return _expression("log", attribute(1, struct.pack("!H", LOG_GROUP)), attribute(3, _u32(LOGGED_BYTES)))


def _reject() -> bytes:
    return _expression("reject", attribute(1, _u32(_ICMPX_UNREACHABLE)), attribute(2, bytes([_ICMPX_ADMIN_PROHIBITED])))


def _table() -> Message:
    return _NEW_TABLE, CREATE, netfilter_header(_INET) + attribute(1, _TABLE)


def _chain(name: bytes, kind: bytes, priority: int) -> Message:
    hook = nested(4, attribute(1, _u32(_OUTPUT_HOOK)), attribute(2, struct.pack("!i", priority)))
    chain = attribute(1, _TABLE) + attribute(3, name) + hook + attribute(5, _u32(_ACCEPT)) + attribute(7, kind)
    return _NEW_CHAIN, CREATE, netfilter_header(_INET) + chain


def _rule(chain: bytes, *expressions: bytes) -> Message:
    rule = attribute(1, _TABLE) + attribute(2, chain) + nested(4, *expressions)
    return _NEW_RULE, CREATE | APPEND, netfilter_header(_INET) + rule


def ruleset() -> list[Message]:
    """Return the messages between BATCH_BEGIN and BATCH_END."""
    redirect, refuse = b"redirect\0", b"refuse\0"
    return [
        _table(),
        _chain(redirect, b"nat\0", _PRIORITY_DSTNAT),
        _rule(
            redirect, _family(_IPV4), _protocol(socket.IPPROTO_UDP), _destination_port(DNS_PORT), _redirect(DNS_PORT)
        ),
        _rule(
            redirect, _family(_IPV4), _protocol(socket.IPPROTO_TCP), _destination_port(DNS_PORT), _redirect(DNS_PORT)
        ),
        _rule(redirect, _loopback_4(), _accept()),
        _rule(redirect, _destination(LOOPBACK_6), _accept()),
        _rule(redirect, _protocol(socket.IPPROTO_TCP), _redirect(TRANSPARENT_PORT)),
        _chain(refuse, b"filter\0", _PRIORITY_FILTER),
        _rule(refuse, _loopback_4(), _accept()),
        _rule(refuse, _destination(LOOPBACK_6), _accept()),
        _rule(refuse, _destination(GUEST_ADDRESS), _accept()),
        _rule(refuse, _expression("counter"), _log(), _reject()),
    ]


def ask_refused() -> Message:
    """Return: list the rules that refuse, with the number of packets that they refused so far."""
    return _GET_RULES, _DUMP, netfilter_header(_INET) + attribute(1, _TABLE) + attribute(2, b"refuse\0")


def read_refused(rule: bytes) -> int:
    """Return how many packets a rule, as the kernel lists it, has counted; 0 if it does not count."""
    for kind, expressions in attributes(rule[4:]):
        if kind == 4:
            for _, expression in attributes(expressions):
                facts = dict(attributes(expression))
                if facts.get(1) == b"counter\0":
                    return int.from_bytes(dict(attributes(facts.get(2, b""))).get(2, b""))
    return 0
