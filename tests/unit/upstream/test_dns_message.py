"""The reader of DNS answers: only answers to the query count, and no bytes make it crash, loop or believe."""

from __future__ import annotations

import struct

import pytest
from dnslib import EDNS0, QTYPE, RCODE, RR, DNSHeader, DNSQuestion, DNSRecord
from hypothesis import example, given
from hypothesis import strategies as st

from seamgate.upstream.dns_message import (
    MAX_RECORDS,
    TYPE_A,
    TYPE_AAAA,
    UDP_SIZE_BYTES,
    FamilyAnswer,
    MalformedAnswer,
    Outcome,
    answers_query,
    build_query,
    is_truncated,
    read_answer,
)

QUERY = build_query("a.example", TYPE_A, 0x1234)


def reply(*zone_lines: str, code: int = 0, query: bytes = QUERY) -> bytes:
    """Make the answer to the query with these records."""
    message = DNSRecord.parse(query).reply()
    message.header.rcode = code
    for line in zone_lines:
        message.add_answer(*RR.fromZone(line))
    return bytes(message.pack())


def read(message: bytes, record_type: int = TYPE_A, max_addresses: int = 32) -> FamilyAnswer:
    """Read an answer with the usual limit."""
    return read_answer(message, record_type, max_addresses=max_addresses)


def test_query_is_recursive_and_absolute() -> None:
    """A query has the id, asks for recursion, offers EDNS only if told, and names exactly what was asked."""
    parsed = DNSRecord.parse(QUERY)
    assert (parsed.header.id, parsed.header.rd, str(parsed.q.qname)) == (0x1234, 1, "a.example.")
    assert [record.rtype for record in parsed.ar] == [QTYPE.OPT]
    assert DNSRecord.parse(build_query("a.example", TYPE_AAAA, 1, edns=False)).ar == []


@pytest.mark.parametrize(
    "name", ["a", "a.example", "xn--bcher-kva.example", f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 61}"]
)
@pytest.mark.parametrize("kind", [TYPE_A, TYPE_AAAA])
@pytest.mark.parametrize("edns", [True, False])
def test_query_is_what_dnslib_writes(name: str, kind: int, edns: bool) -> None:
    """Byte by byte what another implementation makes of it, for names of one letter and of 253."""
    other = DNSRecord(DNSHeader(id=0xFFFF, rd=1), q=DNSQuestion(name, kind))
    if edns:
        other.add_ar(EDNS0(udp_len=UDP_SIZE_BYTES))
    assert build_query(name, kind, 0xFFFF, edns=edns) == other.pack()


def test_only_the_answer_to_the_query_counts() -> None:
    """Another id, no response bit, another opcode or another question is not an answer; case does not matter."""
    good = reply("a.example. 60 IN A 192.0.2.1")
    assert answers_query(good, QUERY)
    assert answers_query(good.replace(b"\x01a\x07example", b"\x01A\x07ExAmPlE", 1), QUERY)
    for bad in (
        b"",
        good[:11],
        b"\x00\x00" + good[2:],
        good[:2] + bytes([good[2] & 0x7F]) + good[3:],
        good[:2] + bytes([good[2] | 0x10]) + good[3:],
        good.replace(b"\x01a\x07example", b"\x01b\x07example"),
        good[:4] + b"\x00\x02" + good[6:],
        good[:4] + b"\x00\x00" + good[6:],
    ):
        assert not answers_query(bad, QUERY)


def test_failure_without_question_counts() -> None:
    """A server that could not read the question may leave it out; it can only say that it failed."""
    bare = QUERY[:2] + b"\x81\x81" + b"\x00" * 8
    assert answers_query(bare, QUERY)
    assert read(bare) == FamilyAnswer(Outcome.FAILED, detail="FORMERR", edns_refused=True)


def test_truncation_is_seen() -> None:
    """The TC bit is the third one of the flags."""
    good = reply()
    assert not is_truncated(good)
    assert is_truncated(good[:2] + bytes([good[2] | 0x02]) + good[3:])


def test_addresses_are_canonical_and_single() -> None:
    """Addresses come in order, once each, in their one text; records of other types and owners don't count."""
    query = build_query("a.example", TYPE_AAAA, 1)
    message = reply(
        "a.example. 60 IN AAAA 2001:DB8::00a1",
        "a.example. 50 IN AAAA 2001:db8::a1",
        "a.example. 60 IN AAAA ::ffff:a00:1",
        "a.example. 60 IN A 192.0.2.1",
        "b.example. 60 IN AAAA 2001:db8::b",
        query=query,
    )
    answer = read(message, TYPE_AAAA)
    assert answer.addresses == ("2001:db8::a1", "::ffff:10.0.0.1")
    assert answer.ttl_s == 50


def test_other_classes_are_ignored() -> None:
    """Only class IN counts."""
    assert read(reply("a.example. 60 CH A 192.0.2.1")).outcome is Outcome.NO_ADDRESS


def test_nxdomain_outweighs_addresses() -> None:
    """A message that says both "no such name" and an address gives no address."""
    answer = read(reply("a.example. 60 IN A 192.0.2.1", code=RCODE.NXDOMAIN))
    assert (answer.outcome, answer.addresses) == (Outcome.NO_SUCH_NAME, ())


def test_ttl_with_the_top_bit_is_zero() -> None:
    """A TTL beyond 2**31 means 0 (RFC 2181 8)."""
    message = reply("a.example. 60 IN A 192.0.2.1")
    assert read(message.replace(struct.pack("!I", 60), b"\x80\x00\x00\x01")).ttl_s == 0


def test_extended_error_is_quoted_safely() -> None:
    """The text of an extended error (RFC 8914) is passed on, without control characters."""
    text = b"blocked\x1b[31m\nby filter"
    option = struct.pack("!HHH", 15, len(text) + 2, 17) + text
    opt = b"\x00" + struct.pack("!HHIH", QTYPE.OPT, 1232, 0, len(option)) + option
    message = bytearray(reply(code=RCODE.REFUSED)) + opt
    message[10:12] = b"\x00\x01"
    assert read(bytes(message)).detail == "REFUSED (extended error 17: blocked[31mby filter)"


def test_more_records_than_any_answer_has_are_not_read() -> None:
    """Records beyond the limit are not looked at, however many there are: not even nonsense there is noticed."""
    record = b"\xc0\x0c" + struct.pack("!HHIH", TYPE_A, 1, 60, 4)
    message = bytearray(reply(query=build_query("a.example", TYPE_A, 0x1234, edns=False)))
    message[6:8] = struct.pack("!H", 4000)
    for number in range(MAX_RECORDS):
        message += record + struct.pack("!I", 0x08000000 + number)
    answer = read(bytes(message + b"\xff" * 40_000), max_addresses=10_000)
    assert len(answer.addresses) == MAX_RECORDS


@pytest.mark.parametrize(
    "name",
    [
        b"\xc0\x1d",  # points to itself
        b"\xc0\xff",  # points forward
        b"\xc0\x00",  # points into the header
        b"\x80",  # a label of an unknown kind
        b"\x3fshort",  # a label that is longer than the message
        b"\x01a\xc0\x1d",  # points back into its own beginning
    ],
)
def test_odd_names_are_malformed(name: bytes) -> None:
    """Pointers lead strictly backwards, labels have at most 63 bytes and end within the message."""
    message = bytearray(QUERY[: 12 + 11 + 4])
    message[2] |= 0x80
    message[6:8], message[10:12] = b"\x00\x01", b"\x00\x00"
    with pytest.raises(MalformedAnswer):
        read(bytes(message) + name + struct.pack("!HHIH", TYPE_A, 1, 60, 4) + b"\x08\x08\x08\x08")


def test_long_pointer_chains_end() -> None:
    """Thousands of pointers, each to the one before, neither recurse nor cost much: they are refused."""
    message = bytearray(QUERY[: 12 + 11 + 4])
    message[2] |= 0x80
    message[6:8], message[10:12] = b"\x00\x02", b"\x00\x00"
    blob = b"".join(struct.pack("!H", 0xC000 | (39 + 2 * index - 2 if index else 12)) for index in range(4000))
    message += b"\xc0\x0c" + struct.pack("!HHIH", 16, 1, 60, len(blob)) + blob
    message += (
        struct.pack("!H", 0xC000 | (39 + 2 * 3999)) + struct.pack("!HHIH", TYPE_A, 1, 60, 4) + b"\x08\x08\x08\x08"
    )
    with pytest.raises(MalformedAnswer, match="pointer"):
        read(bytes(message))


@pytest.mark.parametrize("length", [0, 3, 5, 16])
def test_addresses_of_a_wrong_length_are_malformed(length: int) -> None:
    """An A record has four bytes; nothing is guessed from others."""
    message = bytearray(reply("a.example. 60 IN A 192.0.2.1"))
    with pytest.raises(MalformedAnswer):
        read(bytes(message[:-6]) + struct.pack("!H", length) + b"\x08" * length)


def test_dots_inside_labels_are_no_dots() -> None:
    """A label that holds a dot or other bytes matches no name: "a.example" is two labels, never one."""
    message = bytearray(QUERY[: 12 + 11 + 4])
    message[2] |= 0x80
    message[6:8], message[10:12] = b"\x00\x01", b"\x00\x00"
    message += b"\x09a.example\x00" + struct.pack("!HHIH", TYPE_A, 1, 60, 4) + b"\x08\x08\x08\x08"
    assert read(bytes(message)).outcome is Outcome.NO_ADDRESS


@given(st.binary(max_size=120), st.integers(0, 3), st.integers(0, 3))
@example(b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x01\x00\x02\xc0\x0c", 1, 0)
def test_garbage_is_malformed_or_harmless(tail: bytes, answers: int, authorities: int) -> None:
    """Any bytes after the question are read, or refused with our own error; addresses come only from real records."""
    head = bytearray(QUERY[: 12 + 11 + 4])
    head[2] |= 0x80
    head[6:12] = struct.pack("!HHH", answers, authorities, 0)
    try:
        answer = read(bytes(head) + tail)
    except MalformedAnswer:
        return
    assert (answer.outcome is Outcome.ADDRESSES) == bool(answer.addresses)
    assert len(answer.addresses) <= answers


@given(st.data())
def test_damaged_answers_are_malformed_or_harmless(data: st.DataObject) -> None:
    """A real answer with any byte changed or cut anywhere never raises anything but our own error."""
    message = bytearray(
        reply("a.example. 60 IN CNAME b.example.", "b.example. 60 IN A 192.0.2.1", "b.example. 60 IN A 192.0.2.2")
    )
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    damaged = bytes(message[: data.draw(st.integers(12, len(message)))])
    if answers_query(damaged, QUERY):
        try:
            assert len(read(damaged).addresses) <= 2
        except MalformedAnswer:
            return
