"""Answers a guest's name queries at the seam, without looking anything up.

Each name that a guest asks for gets an address of its own, from a range that is never routed; when the guest connects
to that address, the ring knows the name. So a name that is denied is never looked up, and what the gateway judges is
what the guest asked for, not an address. One table a guest; `ring.py` asks it.
"""

import ipaddress
import struct
from collections.abc import Callable

# Source: RFC 2544: reserved for benchmarks, and routed nowhere. 131,070 names a guest.
_RANGE = ipaddress.IPv4Network("198.18.0.0/15")
_TTL_S = 60
MAX_NAMES = 4096

_LOOPBACK = "127.0.0.1"
_HEADER = struct.Struct("!6H")  # number, flags, and how many questions, answers, authorities, additions
_QUESTION = struct.Struct("!2H")  # type, class
_RECORD = struct.Struct("!3HIH")  # name, type, class, TTL, length
_QR, _OPCODE, _RD, _RA = 0x8000, 0x7800, 0x0100, 0x0080
_A, _IN = 1, 1
_POINTER = 0xC000 | _HEADER.size  # to the name of the question
_LONGEST_NAME, _LONGEST_LABEL = 253, 63

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = 0, 1, 2, 3, 4, 5

Judge = Callable[[str], int]
"""Name in lower case, no trailing dot -> NOERROR, NXDOMAIN or REFUSED."""


def allow_all(_: str) -> int:
    """Give every name an address; the gateway judges the request that follows."""
    return NOERROR


class NameTable:
    """The names that one guest has asked for."""

    def __init__(self, judge: Judge = allow_all) -> None:
        self._judge = judge
        self._by_name: dict[str, str] = {}
        self._by_address: dict[str, str] = {}
        self.queries = 0
        self.hits = 0

    def name_of(self, address: str) -> str | None:
        """Return the name that an address was given for, or None if it is none of ours."""
        return self._by_address.get(address)

    def address_of(self, name: str) -> str | None:
        """Return the address of a name, giving it one if it is new; None if this guest has too many names."""
        known = self._by_name.get(name)
        if known is not None:
            self.hits += 1
            return known
        if len(self._by_name) >= MAX_NAMES:
            return None
        address = str(_RANGE[len(self._by_name) + 1])
        self._by_name[name], self._by_address[address] = address, name
        return address

    def answer(self, message: bytes | bytearray) -> bytes | None:
        """Return the answer to a DNS message, or None if it is not even one (a resolver then times out).

        Source: RFC 1035 4.1. One question, without compression, is what resolvers send; what follows it (EDNS) is not
        needed for an address and is ignored.
        """
        self.queries += 1
        if len(message) < _HEADER.size:
            return None
        number, flags, questions, *_ = _HEADER.unpack_from(message)
        if flags & (_QR | _OPCODE) or questions != 1:
            return None
        found = _read_name(message, _HEADER.size)
        if found is None or found[1] + _QUESTION.size > len(message):
            return None
        name, end = found
        qtype, qclass = _QUESTION.unpack_from(message, end)
        code, address = self._find(name, qtype) if qclass == _IN else (REFUSED, None)
        question = message[_HEADER.size : end + _QUESTION.size]
        head = _HEADER.pack(number, _QR | _RA | flags & _RD | code, 1, int(address is not None), 0, 0)
        if address is None:
            return head + question
        packed = ipaddress.IPv4Address(address).packed
        return head + question + _RECORD.pack(_POINTER, _A, _IN, _TTL_S, len(packed)) + packed

    def _find(self, name: str, qtype: int) -> tuple[int, str | None]:
        """Return the code, and the address if there is one. Guests connect by IPv4 only: other types are empty."""
        if not name:
            return REFUSED, None
        if name == "localhost":  # RFC 6761 6.3: answered where it is asked
            return NOERROR, _LOOPBACK if qtype == _A else None
        verdict = self._judge(name)
        if verdict != NOERROR or qtype != _A:
            return verdict, None
        address = self.address_of(name)
        return (SERVFAIL, None) if address is None else (NOERROR, address)


def _read_name(message: bytes | bytearray, at: int) -> tuple[str, int] | None:
    """Return a name in lower case without trailing dot, and where it ends; None if it is none, or compressed."""
    labels: list[str] = []
    while at < len(message):
        length = message[at]
        at += 1
        if length == 0:
            name = ".".join(labels)
            return (name, at) if len(name) <= _LONGEST_NAME else None
        label = message[at : at + length]
        if length > _LONGEST_LABEL or len(label) < length or b"." in label:
            return None
        try:
            labels.append(label.decode("ascii").lower())
        except UnicodeDecodeError:
            return None
        at += length
    return None
