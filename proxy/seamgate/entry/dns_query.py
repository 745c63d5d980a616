"""Queries of guests as they are understood, and the answers to them on the wire. No I/O.

Called by the name services. The guest is hostile: queries are read with bounds, and answers are built from what was
understood.

    header 12: id 2, flags 2, counts 2 each                                                  Source: RFC 1035 4.1.1
    OPT: root 1, type 2, size of datagrams 2, code 1, version 1, flags 2, length 2           Source: RFC 6891 6.1.2
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from seamgate.upstream.dns_message import FORMERR, NOERROR, NOTIMP, REFUSED

TTL_S: Final = 60
"""An address stands for its name as long as the guest lives, so any would do; this one lets policy be asked again."""
BADVERS: Final = 16
"""Source: RFC 6891 6.1.3."""
SMALLEST_BYTES: Final = 512
"""What a client takes that says nothing else. Source: RFC 1035 4.2.1."""
LARGEST_BYTES: Final = 1232
"""What passes any path without fragments. Source: DNS flag day 2020."""

_TYPE_OPT, _CLASS_IN, _OPTION_EDE = 41, 1, 15
_LONGEST_EDE = 200
_HEADER = struct.Struct("!HHHHHH")
_RESPONSE, _RECURSION_AVAILABLE, _TRUNCATED = 0x8000, 0x0080, 0x0200
# Opcode, "recursion desired".
_KEPT_FLAGS = 0x7900
# "Authentic data", "checking disabled": both are DNSSEC's (RFC 4035 3.2), and go to a resolver that knows it.
_DNSSEC_FLAGS, _CHECKING_DISABLED = 0x0030, 0x0010
_DNSSEC_OK = 0x8000
_POINTER_TO_QUESTION = b"\xc0\x0c"


class Query(msgspec.Struct, frozen=True):
    """A question as it was understood.

    Attributes:
        id: of the message.
        flags: opcode and "recursion desired" as sent, the rest zero.
        code: NOERROR, or why it can't be answered.
        question: the question section as sent, b"" if it can't be read.
        name: as text, case as sent, without trailing dot; "" for the root.
        kind: the record type.
        extended: whether the client takes extended errors (EDNS).
        size_bytes: the largest datagram that the client takes, within what passes any path.
        asks_dnssec: whether signatures are wanted (DO), or validation is the client's own business (CD).
        bits: AD and CD as sent.
    """

    id: int
    flags: int
    code: int = NOERROR
    question: bytes = b""
    name: str = ""
    kind: int = 0
    extended: bool = False
    size_bytes: int = SMALLEST_BYTES
    asks_dnssec: bool = False
    bits: int = 0


def read_query(message: bytes) -> Query | None:
    """Read a message; None if it is no query at all, so that nothing is to be said."""
    if len(message) < 12:
        return None
    identity, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(message)
    if flags & _RESPONSE:
        return None
    kept = flags & _KEPT_FLAGS
    if flags & 0x7800:
        return Query(identity, kept, NOTIMP)
    read = _read_question(message) if questions == 1 and not answers and not authorities else None
    if read is None:
        return Query(identity, kept, FORMERR)
    name, end = read
    kind, record_class = struct.unpack_from("!HH", message, end - 4)
    code = NOERROR if record_class == _CLASS_IN else REFUSED
    extended, size_bytes, dnssec_ok = False, SMALLEST_BYTES, False
    # The first additional record, as every resolver sends it (RFC 6891 6.1.1).
    if additionals and len(message) >= end + 11 and message[end : end + 3] == b"\0\0\x29":
        size_bytes, _, version, bits = struct.unpack_from("!HBBH", message, end + 3)
        extended, dnssec_ok = True, bool(bits & _DNSSEC_OK)
        code = BADVERS if version else code
    return Query(
        identity,
        kept,
        code,
        message[12:end],
        name,
        kind,
        extended,
        min(max(size_bytes, SMALLEST_BYTES), LARGEST_BYTES),
        dnssec_ok or bool(flags & _CHECKING_DISABLED),
        flags & _DNSSEC_FLAGS,
    )


def _read_question(message: bytes) -> tuple[str, int] | None:
    """Return (name, offset behind the question); None if it is cut, compressed or too long."""
    labels: list[str] = []
    offset = 12
    while offset < len(message) and offset - 12 < 255:
        size = message[offset]
        if size == 0:
            end = offset + 5
            return (".".join(labels), end) if end <= len(message) else None
        label = message[offset + 1 : offset + 1 + size]
        if size > 63 or len(label) < size:
            return None
        # A dot in a label would make two of it; no name that is canonical has a backslash.
        labels.append(label.decode("latin-1").replace(".", "\\."))
        offset += size + 1
    return None


def build_answer(
    query: Query,
    code: int = NOERROR,
    addresses: Sequence[bytes] = (),
    *,
    ttl_s: int = TTL_S,
    ede: int = 0,
    text: str = "",
) -> bytes:
    """Return the answer to a query: a code, addresses of the type that was asked for, at most one extended error."""
    flags = _RESPONSE | _RECURSION_AVAILABLE | query.flags | code & 0xF
    counts = (1 if query.question else 0, len(addresses), 0, 1 if query.extended else 0)
    message = _HEADER.pack(query.id, flags, *counts) + query.question
    for data in addresses:
        message += _POINTER_TO_QUESTION + struct.pack("!HHIH", query.kind, _CLASS_IN, ttl_s, len(data)) + data
    if query.extended:
        option = b""
        if ede:
            said = text.encode()[:_LONGEST_EDE].decode(errors="ignore").encode()
            option = struct.pack("!HHH", _OPTION_EDE, len(said) + 2, ede) + said
        message += b"\0" + struct.pack("!HHBBHH", _TYPE_OPT, LARGEST_BYTES, code >> 4, 0, 0, len(option)) + option
    return message


def fit_datagram(query: Query, answer: bytes) -> bytes:
    """Return an answer that the client takes in a datagram: itself, or one that says "ask again over TCP"."""
    if len(answer) <= query.size_bytes:
        return answer
    short = bytearray(build_answer(query, answer[3] & 0xF))
    short[2] |= _TRUNCATED >> 8
    return bytes(short)


def forwarded_query(query: Query, identity: int, size_bytes: int) -> bytes:
    """Return a query anew for a resolver: what was understood of it, and nothing else that the guest wrote."""
    flags = query.flags | query.bits
    message = _HEADER.pack(identity, flags, 1, 0, 0, 1 if query.extended else 0) + query.question
    if query.extended:
        bits = _DNSSEC_OK if query.asks_dnssec else 0
        message += b"\0" + struct.pack("!HHBBHH", _TYPE_OPT, size_bytes, 0, 0, bits, 0)
    return message
