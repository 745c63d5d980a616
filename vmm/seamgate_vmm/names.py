"""Answers a guest's name queries at the seam, without looking anything up.

Each name that a guest asks for gets an address of its own, from a range that is never routed; when the guest connects
to that address, the ring knows the name. So a name that is denied is never looked up, and what the gateway judges is
what the guest asked for, not an address. One table a guest; `ring.py` asks it.
"""

import ipaddress
from collections.abc import Callable

from dnslib import QTYPE, RCODE, RR, A, DNSError, DNSRecord

# Source: RFC 2544: reserved for benchmarks, and routed nowhere. 131,070 names a guest.
_RANGE = ipaddress.IPv4Network("198.18.0.0/15")
_TTL_S = 60
MAX_NAMES = 4096

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

    def answer(self, message: bytes) -> bytes | None:
        """Return the answer to a DNS message, or None if it is not even one (a resolver then times out)."""
        self.queries += 1
        try:
            query = DNSRecord.parse(message)
        except (DNSError, IndexError, ValueError, UnicodeError):
            return None
        if query.header.qr or len(query.questions) != 1:
            return None
        reply = query.reply()
        reply.header.ra = 1
        question = query.questions[0]
        name = str(question.qname).rstrip(".").lower()
        reply.header.rcode = self._fill(reply, question, name)
        return bytes(reply.pack())

    def _fill(self, reply: DNSRecord, question: object, name: str) -> int:
        qtype = getattr(question, "qtype", 0)
        if not name:
            return REFUSED
        verdict = self._judge(name)
        if verdict != NOERROR or qtype != QTYPE.A:
            return verdict  # every other type exists and is empty: guests connect by address only
        address = self.address_of(name)
        if address is None:
            return SERVFAIL
        reply.add_answer(RR(getattr(question, "qname", name), QTYPE.A, rdata=A(address), ttl=_TTL_S))
        return RCODE.NOERROR if isinstance(RCODE.NOERROR, int) else NOERROR
