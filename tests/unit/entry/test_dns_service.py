"""The name service without sockets: what is asked, what is answered, and what is never looked up."""

from __future__ import annotations

import asyncio
import itertools
import struct
from typing import Any, cast

import pytest
from dnslib import DNSRecord
from hypothesis import given
from hypothesis import strategies as st

from seamgate.entry.dns_entry import Bucket
from seamgate.entry.dns_query import BADVERS, Query, build_answer, fit_datagram, forwarded_query, read_query
from seamgate.entry.dns_service import MOST_WAITING, Datagrams, DnsService, Stream
from seamgate.entry.netns.names import NameTable
from seamgate.errors import Reason, ResolveFailed
from seamgate.flow import Guest, Isolation, Resolution, Target
from seamgate.protocol.work import NAME
from seamgate.turns import BUDGET, Share
from seamgate.upstream.dns_message import FORMERR, NOERROR, NOTIMP, NXDOMAIN, REFUSED, SERVFAIL, build_query
from seamgate.verdict import Effect, Verdict, deny

A, AAAA, HTTPS = 1, 28, 65


class _Pipeline:
    """Allows a.test at 443 and odd.test at another port; knows the address of a.test, waits for odd.test."""

    generation = 1

    def __init__(self) -> None:
        self.resolved: list[str] = []

    def judge_connect(self, _: Guest, target: Target) -> Verdict:
        allowed = target.host in ("a.test", "gone.test") or (target.host == "odd.test" and not target.port)
        return Verdict(Effect.DEFER) if allowed else deny(f"No rule allows {target.origin}.")

    def resolve_name(self, name: str, _: list[Any]) -> Any:
        self.resolved.append(name)
        if name == "gone.test":
            raise ResolveFailed("gone.test does not exist")
        found = Resolution(name, ("192.0.2.1",), 0.0)
        return found if name == "a.test" else _later(found)


async def _later(found: Resolution) -> Resolution:
    return found


class _Journal:
    def __init__(self) -> None:
        self.healthy = True


class _Limits:
    resolve_timeout_s = 5.0


class _Seam:
    def __init__(self) -> None:
        self.pipeline = _Pipeline()
        self.journal = _Journal()
        self.limits = _Limits()
        self.draining = False
        self.proxied = False

    def by_proxy(self, _: Target) -> bool:
        return self.proxied


class _Told:
    """What `Refusals` would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Reason]] = []

    def refuse(self, what: Any, verdict: Verdict, times: int = 1) -> None:
        assert (what.method, what.scheme, times) == ("RESOLVE", "dns", 1)
        self.told.append((what.host, verdict.reason))


class Service:
    """A service and what it said."""

    def __init__(self, denied: int = NXDOMAIN) -> None:
        self.seam, self.told, self.names, self.said = _Seam(), _Told(), NameTable(), list[bytes]()
        guest = Guest("g", {}, Isolation.NETNS)
        self.service = DnsService(cast("Any", self.seam), guest, self.names, cast("Any", self.told), denied)

    def ask(self, name: str, kind: int = A, *, edns: bool = True) -> DNSRecord:
        """Ask and return the answer, which must be there at once."""
        self.service.answer(build_query(name, kind, 7, edns=edns), self.said.append)
        return DNSRecord.parse(self.said[-1])


def test_an_allowed_name_gets_its_stand_in() -> None:
    """Never the real address, however it resolves."""
    service = Service()
    answer = service.ask("a.test")
    assert [str(record.rdata) for record in answer.rr] == ["198.18.1.0"]
    assert (answer.header.rcode, answer.header.ra, answer.header.id) == (NOERROR, 1, 7)
    assert service.names.name_of("198.18.1.0") == "a.test"
    assert service.told.told == []


@pytest.mark.parametrize("code", [NXDOMAIN, REFUSED])
@pytest.mark.parametrize("kind", [A, AAAA, HTTPS])
def test_a_denied_name_is_answered_as_configured_and_not_looked_up(code: int, kind: int) -> None:
    """Whatever is asked about it; the sentence of the policy comes along."""
    service = Service(code)
    answer = service.ask("secret.example", kind)
    assert answer.header.rcode == code
    assert b"No rule allows https://secret.example." in service.said[-1]
    assert service.told.told == [("secret.example", Reason.RULE_DENIED)]
    assert service.seam.pipeline.resolved == []
    assert len(service.names) == 0


def test_a_denied_name_may_get_an_address_where_it_is_explained() -> None:
    """A stand-in, so that what is asked there is denied by name; not looked up, and told all the same."""
    service = Service(NOERROR)
    answer = service.ask("secret.example")
    assert [str(record.rdata) for record in answer.rr] == ["198.18.1.0"]
    assert service.ask("secret.example", AAAA).rr == []
    assert service.names.name_of("198.18.1.0") == "secret.example"
    assert service.told.told == [("secret.example", Reason.RULE_DENIED)] * 2
    assert service.seam.pipeline.resolved == []


def test_without_edns_there_is_no_extended_error() -> None:
    """RFC 6891 7: an OPT record is for clients that sent one."""
    service = Service()
    assert service.ask("secret.example", edns=False).ar == []
    assert len(service.ask("secret.example").ar) == 1


def test_other_types_of_an_allowed_name_are_empty() -> None:
    """The name is there, so the client goes on with IPv4; nothing is resolved for it."""
    service = Service()
    for kind in (AAAA, HTTPS, 16):
        answer = service.ask("a.test", kind)
        assert (answer.header.rcode, answer.rr) == (NOERROR, [])
    assert service.seam.pipeline.resolved == []


async def test_a_name_allowed_at_another_port_is_resolved_in_time() -> None:
    """The first answer of the policy was about 443; the resolver takes a moment."""
    service = Service()
    reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    service.service.answer(build_query("odd.test", A, 9), reply.set_result)
    assert not reply.done()
    assert [str(record.rdata) for record in DNSRecord.parse(await reply).rr] == ["198.18.1.0"]


def test_a_name_that_fails_is_a_server_failure() -> None:
    """With what the resolver said, and told."""
    service = Service()
    assert service.ask("gone.test").header.rcode == SERVFAIL
    assert service.told.told == [("gone.test", Reason.RESOLVE_FAILED)]


def test_a_name_that_the_upstream_proxy_resolves_gets_its_stand_in() -> None:
    """Nobody here could resolve it; policy was asked all the same."""
    service = Service()
    service.seam.proxied = True
    assert [str(record.rdata) for record in service.ask("gone.test").rr] == ["198.18.1.0"]
    assert service.ask("secret.example").header.rcode == NXDOMAIN
    assert service.seam.pipeline.resolved == []


def test_a_full_table_gives_no_address() -> None:
    """Fail closed: no address of another name, none at all."""
    service = Service()
    service.service._names = NameTable(0)
    assert service.ask("a.test").header.rcode == SERVFAIL
    assert service.told.told == [("a.test", Reason.OVERLOADED)]


def test_a_journal_that_fails_denies_names() -> None:
    """What can't be recorded is not done."""
    service = Service()
    service.seam.journal.healthy = False
    assert service.ask("a.test").header.rcode == NXDOMAIN
    assert service.told.told == [("a.test", Reason.AUDIT_UNAVAILABLE)]


def test_localhost_is_the_guests_own() -> None:
    """RFC 6761 6.3: answered here, nobody is asked."""
    service = Service()
    assert [str(record.rdata) for record in service.ask("localhost").rr] == ["127.0.0.1"]
    assert [str(record.rdata) for record in service.ask("x.localhost", AAAA).rr] == ["::1"]
    assert service.told.told == []


HEAD = struct.Struct("!HHHHHH")
QUESTION = b"\1a\4test\0\0\1\0\1"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (HEAD.pack(1, 0x0100, 1, 0, 0, 0) + QUESTION, NOERROR),
        (HEAD.pack(1, 0x2800, 1, 0, 0, 0) + QUESTION, NOTIMP),
        (HEAD.pack(1, 0x0100, 2, 0, 0, 0) + QUESTION * 2, FORMERR),
        (HEAD.pack(1, 0x0100, 0, 0, 0, 0), FORMERR),
        (HEAD.pack(1, 0x0100, 1, 1, 0, 0) + QUESTION, FORMERR),
        (HEAD.pack(1, 0x0100, 1, 0, 0, 0) + QUESTION[:-1], FORMERR),
        (HEAD.pack(1, 0x0100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1", FORMERR),
        (HEAD.pack(1, 0x0100, 1, 0, 0, 0) + b"\x3f" * 400, FORMERR),
        (HEAD.pack(1, 0x0100, 1, 0, 0, 0) + QUESTION[:-1] + b"\3", REFUSED),
    ],
    ids=["fine", "opcode", "two", "none", "answer", "cut", "pointer", "long", "class"],
)
def test_a_query_is_read_strictly(message: bytes, code: int) -> None:
    """Exactly one question, not compressed, whole, of the Internet; else the code that says so."""
    query = read_query(message)
    assert query is not None
    assert query.code == code
    answer = DNSRecord.parse(build_answer(query, code))
    assert (answer.header.rcode, answer.header.qr, answer.header.id) == (code, 1, 1)


@pytest.mark.parametrize("message", [b"", b"\0" * 11, HEAD.pack(1, 0x8180, 1, 0, 0, 0) + QUESTION])
def test_what_is_no_query_gets_no_answer(message: bytes) -> None:
    """Answers to answers would go on forever."""
    assert read_query(message) is None


def test_a_dot_within_a_label_is_not_a_separator() -> None:
    """a.test as one label is another name than a.test, and no canonical one."""
    service = Service()
    service.service.answer(HEAD.pack(1, 0x0100, 1, 0, 0, 0) + b"\6a.test\0\0\1\0\1", service.said.append)
    assert DNSRecord.parse(service.said[0]).header.rcode == NXDOMAIN
    assert service.told.told == [("", Reason.BAD_TARGET)]


@given(st.binary(max_size=300), st.sampled_from([0, 1]))
def test_any_bytes_are_answered_or_not(data: bytes, questions: int) -> None:
    """Reading and answering raise nothing, and an answer is a whole message with the query's id."""
    said: list[bytes] = []
    service = Service()
    for message in (data, HEAD.pack(5, 0, questions, 0, 0, questions) + data):
        service.service.answer(message, said.append)
    for answer in said:
        assert len(answer) >= 12
        assert answer[2] & 0x80


def _asked(size_bytes: int, *, version: int = 0, dnssec: bool = False, flags: int = 0x0100) -> Query:
    option = b"\0" + struct.pack("!HHBBHH", 41, size_bytes, 0, version, 0x8000 if dnssec else 0, 0)
    query = read_query(HEAD.pack(1, flags, 1, 0, 0, 1) + QUESTION + option)
    assert query is not None
    return query


@pytest.mark.parametrize(
    ("told", "taken"), [(0, 512), (100, 512), (512, 512), (1000, 1000), (1232, 1232), (65535, 1232)]
)
def test_the_size_that_a_client_takes(told: int, taken: int) -> None:
    """Below 512 is 512 (RFC 6891 6.2.3), above what passes any path is that; without EDNS 512."""
    assert _asked(told).size_bytes == taken
    plain = read_query(HEAD.pack(1, 0x0100, 1, 0, 0, 0) + QUESTION)
    assert plain is not None
    assert (plain.size_bytes, plain.extended) == (512, False)


def test_another_version_of_edns_is_refused_with_ours() -> None:
    """RFC 6891 6.1.3: BADVERS, in the part of the code that the OPT record holds."""
    query = _asked(1232, version=1)
    assert query.code == BADVERS
    answer = DNSRecord.parse(build_answer(query, query.code))
    assert (answer.header.rcode, answer.ar[0].ttl >> 24) == (0, 1)


@given(st.integers(0, 80), st.integers(0, 65535))
def test_what_is_too_large_for_a_datagram_says_so(count: int, size_bytes: int) -> None:
    """Either all addresses, or none and the bit that sends the client to TCP; never more bytes than it takes."""
    query = _asked(size_bytes)
    whole = build_answer(query, NOERROR, [bytes((192, 0, 2, number)) for number in range(count)])
    sent = fit_datagram(query, whole)
    assert len(sent) <= query.size_bytes
    answer = DNSRecord.parse(sent)
    assert len(answer.rr) == (0 if answer.header.tc else count)
    assert bool(answer.header.tc) == (len(whole) > query.size_bytes)


@pytest.mark.parametrize(("dnssec", "flags"), [(False, 0x0100), (True, 0x0100), (False, 0x0110), (True, 0x0130)])
def test_a_question_is_written_anew(dnssec: bool, flags: int) -> None:
    """With a new id; recursion, AD, CD and DO as asked, and no option of the guest's."""
    query = _asked(1232, dnssec=dnssec, flags=flags)
    assert query.asks_dnssec == (dnssec or bool(flags & 0x10))
    sent = forwarded_query(query, 4242, 1000)
    again = read_query(sent)
    assert again is not None
    assert (again.id, again.question, again.bits, again.size_bytes) == (4242, QUESTION, flags & 0x30, 1000)
    assert len(sent) == 12 + len(QUESTION) + 11
    assert DNSRecord.parse(sent).header.rd == 1


def test_a_bucket_lets_through_so_many() -> None:
    """So many at once, then as many a second; a pause fills it to the brim and no further."""
    now = [100.0]
    bucket = Bucket(10, lambda: now[0])
    assert [bucket.take() for _ in range(12)] == [True] * 10 + [False] * 2
    now[0] += 0.31
    assert [bucket.take() for _ in range(5)] == [True] * 3 + [False] * 2
    now[0] += 3600
    assert [bucket.take() for _ in range(12)] == [True] * 10 + [False] * 2


@given(st.text(max_size=400))
def test_an_answer_fits_a_datagram(text: str) -> None:
    """Whatever the message, an extended error is cut at a whole character and the answer stays below 1232 bytes."""
    query = Query(1, 0, NOERROR, QUESTION, "a.test", A, True)
    answer = build_answer(query, NXDOMAIN, ede=15, text=text)
    assert len(answer) <= 1232
    said = answer[len(build_answer(query, NXDOMAIN)) + 6 :].decode()
    assert text.startswith(said)
    assert said == text or len(said.encode()) > 196


class _Answers:
    """Notes which messages were to be answered, in order."""

    def __init__(self) -> None:
        self.streams: set[asyncio.Transport] = set()
        self.share = Share()
        self.asked: list[bytes] = []

    def answer(self, message: bytes, reply: Any, *, tcp: bool = False) -> None:
        self.asked.append(message)


class _Line:
    """A transport that notes whether it is read."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.protocol: Any = None

    def pause_reading(self) -> None:
        self.did.append("pause")

    def resume_reading(self) -> None:
        self.did.append("resume")

    def is_closing(self) -> bool:
        return False

    def get_protocol(self) -> Any:
        return self.protocol

    def abort(self) -> None:
        self.did.append("abort")

    def close(self) -> None:
        self.did.append("close")


async def test_questions_in_datagrams_wait_for_their_guests_turn() -> None:
    """In their order; of more than may wait, the oldest are forgotten, and clients ask again."""
    answers = _Answers()
    datagrams = Datagrams(answers)
    answers.share.spend(BUDGET.units)
    asked = [bytes((number >> 8, number & 0xFF)) for number in range(MOST_WAITING + 5)]
    for message in asked:
        datagrams.datagram_received(message, ("127.0.0.1", 1))
    assert answers.asked == []
    turns = [0]
    while len(answers.asked) < MOST_WAITING:
        await asyncio.sleep(0)
        turns.append(len(answers.asked))
    assert answers.asked == asked[5:]
    assert max(after - before for before, after in itertools.pairwise(turns)) <= BUDGET.units // NAME + 1


async def test_questions_in_a_stream_wait_for_their_guests_turn() -> None:
    """All that came in one piece is answered in its order, over several turns; then its end is told."""
    answers, line = _Answers(), _Line()
    stream = line.protocol = Stream(answers)
    stream.connection_made(cast("asyncio.Transport", line))
    asked = [bytes((number,)) for number in range(100)]
    stream.data_received(b"".join(b"\0\1" + message for message in asked))
    assert stream.eof_received()
    most = BUDGET.units // NAME + 1
    assert len(answers.asked) <= most and line.did == ["pause"]
    while len(answers.asked) < len(asked):
        before = len(answers.asked)
        await asyncio.sleep(0)
        assert len(answers.asked) - before <= most
    assert answers.asked == asked
    assert line.did[-2:] == ["resume", "close"] and line.did.count("close") == 1
    stream.connection_lost(None)
