"""DNS messages of a stub resolver: build a query, check that an answer is its answer, read it. No I/O, no clock.

Called by `seamgate.upstream.resolver`. Not done with dnslib, which is right for tests: it takes 60 us for a query, and
of answers, which hold what strangers wrote, it follows compression pointers recursively, without a bound on depth or
on the length of a name. The reader here takes only what a stub resolver needs, touches each byte a bounded number of
times, and stops after `MAX_RECORDS` records.

    header 12: id 2, flags 2, counts of questions, answers, authority, additional 2 each     Source: RFC 1035 4.1.1
    record: name, type 2, class 2, ttl 4, length 2, data                                     Source: RFC 1035 4.1.3
"""

from __future__ import annotations

import ipaddress
import struct
from enum import StrEnum

import msgspec
from dnslib import RCODE

from seamgate.address import address_text
from seamgate.errors import SeamgateError

TYPE_A, TYPE_CNAME, TYPE_SOA, TYPE_AAAA, TYPE_OPT = 1, 5, 6, 28, 41
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = 0, 1, 2, 3, 4, 5
# What passes any path without fragments. Source: DNS flag day 2020
UDP_SIZE_BYTES = 1232
# More than any honest answer has; what comes after is not read.
MAX_RECORDS = 256
# bind and unbound give up after 11 to 16.
MAX_ALIASES = 16
# A name has at most 127 labels; compressors use one or two pointers a name.
_MAX_JUMPS = 32
_MAX_TTL_S = 0x7FFFFFFF  # RFC 2181 8: a TTL with the top bit set is zero
_OPT_EDE = 15  # RFC 8914

_POINTER_TO_QUESTION = b"\xc0\x0c"
_HEADER = struct.Struct("!HHHHHH")
_FIXED = struct.Struct("!HHIH")
_TYPE_AND_CLASS = struct.Struct("!HH")
_CLASS_IN = 1
_RECURSION_DESIRED = 0x0100
_EDNS = b"\0" + _FIXED.pack(TYPE_OPT, UDP_SIZE_BYTES, 0, 0)  # RFC 6891 6.1.2


class MalformedAnswer(SeamgateError):
    """The bytes are not a DNS message that can be read."""


class Outcome(StrEnum):
    """What a server said to one question."""

    ADDRESSES = "addresses"
    NO_ADDRESS = "no_address"
    """The name exists, but not with this type (NODATA)."""
    NO_SUCH_NAME = "no_such_name"
    FAILED = "failed"
    """The server could not or would not answer: ask another one."""


class FamilyAnswer(msgspec.Struct, frozen=True):
    """The answer to one question (name, A or AAAA).

    Attributes:
        outcome: what the server said.
        addresses: canonical texts, in the server's order, without duplicates; only of the end of the alias chain.
        ttl_s: the smallest TTL on the way there; of a negative answer that of its SOA (RFC 2308 5), None without one.
        aliases: names that the chain leads through, lower case, without trailing dot.
        detail: what the server said of a failure, for people: the code, and its extended error (RFC 8914).
        edns_refused: the failure may come from the EDNS option; ask again without it (RFC 6891 7).
    """

    outcome: Outcome
    addresses: tuple[str, ...] = ()
    ttl_s: int | None = None
    aliases: tuple[str, ...] = ()
    detail: str = ""
    edns_refused: bool = False


def build_query(name: str, record_type: int, message_id: int, *, edns: bool = True) -> bytes:
    """Return the wire form of a recursive query for a canonical name. No search domains: the name is absolute."""
    labels = b"".join([b"%c%b" % (len(label), label) for label in name.encode("ascii").split(b".")])
    header = _HEADER.pack(message_id, _RECURSION_DESIRED, 1, 0, 0, int(edns))
    return b"%b%b\0%b%b" % (header, labels, _TYPE_AND_CLASS.pack(record_type, _CLASS_IN), _EDNS if edns else b"")


def answers_query(message: bytes, query: bytes) -> bool:
    """Return whether the message is a response to exactly this query: id, opcode and question.

    What fails here may be forged, so it is ignored, and the wait goes on (RFC 5452 9.1). The question is compared
    without case. A response without the question counts only if it reports a failure to read it.
    """
    if len(message) < 12 or message[:2] != query[:2] or not message[2] & 0x80 or message[2] & 0x78:
        return False
    if message[4:6] == b"\x00\x00":
        return message[3] & 0x0F in (FORMERR, NOTIMP, REFUSED, SERVFAIL)
    end = _question_end(query)
    return message[4:6] == query[4:6] and message[12:end].lower() == query[12:end].lower()


def is_truncated(message: bytes) -> bool:
    """Return whether the server says that there is more than fits: ask again over TCP."""
    return bool(message[2] & 0x02)


def read_answer(message: bytes, record_type: int, *, max_addresses: int) -> FamilyAnswer:
    """Read a message for which `answers_query` holds.

    Args:
        message: as it came.
        record_type: TYPE_A or TYPE_AAAA.
        max_addresses: further addresses are dropped.

    Raises:
        MalformedAnswer: it can't be read.
    """
    try:
        return _read(message, record_type, max_addresses)
    except (struct.error, IndexError, UnicodeDecodeError) as exc:
        raise MalformedAnswer(f"the DNS server's answer is cut or malformed: {exc}") from None


def _read(message: bytes, record_type: int, max_addresses: int) -> FamilyAnswer:
    _, flags, questions, answers, authorities, _ = _HEADER.unpack_from(message)
    code = flags & 0x0F
    if code not in (NOERROR, NXDOMAIN):
        detail = RCODE.forward.get(code, f"code {code}") + _extended_error(message, answers + authorities)
        return FamilyAnswer(Outcome.FAILED, detail=detail, edns_refused=code in (FORMERR, NOTIMP))
    if questions != 1:
        raise MalformedAnswer("the DNS server's answer does not repeat the question")
    owner, _ = _read_name(message, 12)
    offset = _question_end(message)
    chain = _Chain(owner, record_type)
    for _ in range(min(answers, MAX_RECORDS)):
        offset = chain.take(message, offset)
    aliases, addresses, ttl_s = chain.follow(max_addresses)
    if addresses and code == NOERROR:
        return FamilyAnswer(Outcome.ADDRESSES, addresses, ttl_s, aliases)
    outcome = Outcome.NO_SUCH_NAME if code == NXDOMAIN else Outcome.NO_ADDRESS
    negative_ttl_s = _negative_ttl(message, offset, authorities) if answers <= MAX_RECORDS else None
    if negative_ttl_s is not None and ttl_s is not None:
        negative_ttl_s = min(negative_ttl_s, ttl_s)
    return FamilyAnswer(outcome, (), negative_ttl_s, aliases)


class _Chain:
    """The aliases and addresses of one answer section, by owner."""

    def __init__(self, owner: str, record_type: int) -> None:
        self._owner = owner
        self._record_type = record_type
        self._aliases: dict[str, tuple[str, int]] = {}
        self._addresses: dict[str, list[tuple[str, int]]] = {}

    def take(self, message: bytes, offset: int) -> int:
        """Read the record at the offset, return the offset after it."""
        if message[offset : offset + 2] == _POINTER_TO_QUESTION:
            owner, offset = self._owner, offset + 2  # what nearly every record begins with
        else:
            owner, offset = _read_name(message, offset)
        kind, record_class, ttl_s, length = _FIXED.unpack_from(message, offset)
        start = offset + 10
        end: int = start + length
        if end > len(message):
            raise MalformedAnswer("the DNS server's answer is cut inside a record")
        if record_class == 1 and kind == self._record_type:
            if length != (4 if kind == TYPE_A else 16):
                raise MalformedAnswer("the DNS server's answer has an address of a wrong length")
            data = message[start:end]
            text = ".".join(map(str, data)) if length == 4 else address_text(ipaddress.IPv6Address(data))
            self._addresses.setdefault(owner, []).append((text, ttl_s))
        elif record_class == 1 and kind == TYPE_CNAME:
            self._aliases.setdefault(owner, (_read_name(message, start)[0], ttl_s))
        return end

    def follow(self, max_addresses: int) -> tuple[tuple[str, ...], tuple[str, ...], int | None]:
        """Return (aliases, addresses at the end of the chain, smallest TTL). A loop or a long chain has none."""
        owner = self._owner
        aliases: list[str] = []
        ttls: list[int] = []
        while owner in self._aliases:
            owner, ttl_s = self._aliases[owner]
            if owner == self._owner or owner in aliases or len(aliases) >= MAX_ALIASES:
                raise MalformedAnswer(f"{self._owner} is an alias that leads in a circle, or through too many names")
            aliases.append(owner)
            ttls.append(_sane_ttl(ttl_s))
        found = self._addresses.get(owner, [])[:max_addresses]
        ttls += (_sane_ttl(ttl_s) for _, ttl_s in found)
        return tuple(aliases), tuple(dict.fromkeys(text for text, _ in found)), min(ttls, default=None)


def _sane_ttl(ttl_s: int) -> int:
    return ttl_s if ttl_s <= _MAX_TTL_S else 0


def _negative_ttl(message: bytes, offset: int, authorities: int) -> int | None:
    """Return the smaller of the SOA record's TTL and its MINIMUM field (RFC 2308 5), or None without SOA."""
    for _ in range(min(authorities, MAX_RECORDS)):
        _, offset = _read_name(message, offset)
        kind, _, ttl_s, length = _FIXED.unpack_from(message, offset)
        end = offset + 10 + length
        if end > len(message):
            raise MalformedAnswer("the DNS server's answer is cut inside a record")
        if kind == TYPE_SOA and length >= 22:
            (minimum_s,) = struct.unpack_from("!I", message, end - 4)
            return min(_sane_ttl(ttl_s), _sane_ttl(minimum_s))
        offset = end
    return None


def _extended_error(message: bytes, records_before: int) -> str:
    """Return ": text" of the first extended error (RFC 8914), or "". Whatever is odd here is no error of ours."""
    additionals = _HEADER.unpack_from(message)[5]
    try:
        offset = _question_end(message) if message[4:6] != b"\x00\x00" else 12
        for _ in range(min(records_before + additionals, MAX_RECORDS)):
            _, offset = _read_name(message, offset)
            kind, _, _, length = _FIXED.unpack_from(message, offset)
            data = message[offset + 10 : offset + 10 + length]
            if kind == TYPE_OPT and len(data) >= 6 and data[:2] == _OPT_EDE.to_bytes(2):
                return _describe_extended(data)
            offset += 10 + length
    except (struct.error, IndexError, MalformedAnswer):
        return ""
    return ""


def _describe_extended(data: bytes) -> str:
    size = int.from_bytes(data[2:4])
    text = data[6 : 4 + size].decode("utf-8", "replace").strip("\x00")
    printable = "".join(char for char in text if char.isprintable())[:120]
    return f" (extended error {int.from_bytes(data[4:6])}{': ' if printable else ''}{printable})"


def _question_end(message: bytes) -> int:
    """Return the offset behind the one question of a message."""
    return _skip_name(message, 12) + 4


def _skip_name(message: bytes, offset: int) -> int:
    while True:
        size = message[offset]
        if size >= 0xC0:
            return offset + 2
        if size == 0:
            return offset + 1
        offset += size + 1


def _read_name(message: bytes, offset: int) -> tuple[str, int]:
    """Return (name in lower case without trailing dot, offset behind it).

    Each pointer must lead backwards (RFC 1035 4.1.4: to a prior occurrence), there are few of them, and the whole is
    at most 255 bytes, so that this ends soon. Bytes that a label may not hold in `seamgate.address` are escaped: such
    an owner matches nothing.
    """
    labels: list[str] = []
    behind = -1
    lowest = offset
    total = jumps = 0
    while True:
        size = message[offset]
        if size >= 0xC0:
            pointer = (size & 0x3F) << 8 | message[offset + 1]
            if behind < 0:
                behind = offset + 2
            jumps += 1
            if pointer >= lowest or pointer < 12 or jumps > _MAX_JUMPS:
                raise MalformedAnswer("the DNS server's answer has a compression pointer that does not lead back")
            offset = lowest = pointer
            continue
        if size > 63:
            raise MalformedAnswer("the DNS server's answer has a label of an unknown kind")
        if size == 0:
            return ".".join(labels), behind if behind >= 0 else offset + 1
        total += size + 1
        label = message[offset + 1 : offset + 1 + size]
        if total > 255 or len(label) < size:
            raise MalformedAnswer("the DNS server's answer has a name that is too long")
        labels.append(_label_text(label))
        offset += size + 1


def _label_text(label: bytes) -> str:
    text = label.decode("latin-1").lower()
    return text if b"." not in label and text.isascii() else label.hex().join(("\\", "\\"))
