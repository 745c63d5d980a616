"""Names answered at the seam: what is no plain question gets no address, whatever bytes it is made of."""

from __future__ import annotations

import pytest
from dnslib import EDNS0, DNSQuestion, DNSRecord
from hypothesis import given
from hypothesis import strategies as st

from seamgate_vmm.names import NXDOMAIN, REFUSED, NameTable


def _ask(table: NameTable, message: bytes) -> DNSRecord:
    answer = table.answer(message)
    assert answer is not None
    return DNSRecord.parse(answer)


def test_localhost_is_known_and_nobody_is_asked() -> None:
    """localhost is the loopback address (RFC 6761 6.3), whoever would be denied."""
    table = NameTable(lambda name: NXDOMAIN)
    assert str(_ask(table, DNSRecord.question("LOCALHOST").pack()).rr[0].rdata) == "127.0.0.1"
    assert _ask(table, DNSRecord.question("localhost", "AAAA").pack()).rr == []


def test_an_answer_belongs_to_its_question() -> None:
    """Number, question as it was written, and the wish for recursion come back; EDNS is ignored."""
    query = DNSRecord.question("Api.LLM.test")
    query.add_ar(EDNS0(udp_len=1232))
    reply = _ask(NameTable(), query.pack())
    assert (reply.header.id, reply.header.rd, reply.header.qr) == (query.header.id, 1, 1)
    assert (str(reply.q.qname), len(reply.rr), reply.ar) == ("Api.LLM.test.", 1, [])


@pytest.mark.parametrize(
    "message",
    [
        DNSRecord.question("a.test").pack()[:-1],
        DNSRecord.question("a.test").reply().pack(),
        DNSRecord(questions=[DNSQuestion("a.test"), DNSQuestion("b.test")]).pack(),
        DNSRecord.question("a.test").pack()[:12] + b"\xc0\x0c\x00\x01\x00\x01",
        DNSRecord.question("a.test").pack()[:12] + b"\x03a.b\x00\x00\x01\x00\x01",
        DNSRecord.question("a.test").pack()[:12] + b"\x02\xff\xfe\x00\x00\x01\x00\x01",
    ],
    ids=["cut", "an answer", "two questions", "a pointer", "a dot in a label", "no ASCII"],
)
def test_what_is_no_question_is_not_answered(message: bytes) -> None:
    """A resolver then times out; nobody is asked about a name that could be read in two ways."""
    asked: list[str] = []
    assert NameTable(lambda name: asked.append(name) or 0).answer(message) is None  # type: ignore[func-returns-value]
    assert asked == []


def test_other_classes_are_refused() -> None:
    """Only the Internet has names here."""
    assert _ask(NameTable(), DNSRecord(q=DNSQuestion("a.test", qclass=3)).pack()).header.rcode == REFUSED


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(message: bytes) -> None:
    """Whatever a guest sends is answered by a DNS message or not at all."""
    answer = NameTable().answer(message)
    assert answer is None or DNSRecord.parse(answer).header.qr == 1
