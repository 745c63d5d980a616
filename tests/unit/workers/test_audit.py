"""Records on their way from a worker to the one journal: begun before anything leaves, ended exactly once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from seamgate.audit.line import LineEncoder, opened
from seamgate.audit.record import AuditKind, AuditRecord, Decision, Outcome
from seamgate.audit.sealed import Sealed
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import AuditError, Reason, SeamgateError
from seamgate.limits import LimitsConfig
from seamgate.pipeline import Pipeline
from seamgate.seam import Seam
from seamgate.upstream.addresses import PUBLIC_ONLY
from seamgate.upstream.destination import OwnAddresses
from seamgate.upstream.pool import SessionPool
from seamgate.upstream.pool_key import PoolConfig
from seamgate.workers.ledger import Account, Ledger
from seamgate.workers.messages import Acknowledge, Records
from seamgate.workers.recorder import MOST_TOGETHER, MOST_WAITING_BYTES, PATIENCE_S, Recorder
from seamgate.workers.sealing import Sealer


class Wire:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.closed = self.clogged = False
        self.waiting_bytes = 0
        self.sent: list[Records] = []
        self.more = asyncio.Event()

    def send(self, message: Records) -> None:
        self.sent.append(message)
        self.more.set()


class Book:
    """A journal that keeps what is written, unless it is full."""

    def __init__(self) -> None:
        self.written: list[AuditRecord] = []
        self.full = False
        self.healthy = True

    def append(self, record: AuditRecord) -> None:
        self.written.append(record)

    def append_all(self, records: list[Sealed]) -> None:
        self.written += map(opened, records)

    def begin_all(self, records: list[Sealed]) -> None:
        if self.full:
            raise AuditError("no space")
        self.written += map(opened, records)


def record(name: str, kind: AuditKind = AuditKind.REQUEST, verdict: Decision = Decision.ALLOW) -> AuditRecord:
    """Return a record of a request."""
    return AuditRecord(1.0, kind, id=name, verdict=verdict)


def begin(name: str) -> AuditRecord:
    """Return a record that is written ahead."""
    return record(name, AuditKind.BEGIN)


def denied(name: str) -> AuditRecord:
    """Return a record of a request that was denied."""
    return record(name, verdict=Decision.DENY)


def sealed(*records: AuditRecord) -> list[Sealed]:
    """Return records as a worker sends them."""
    return [Sealer().seal(each) for each in records]


def worker(problem: str = "") -> tuple[Recorder, Any]:
    """Return a worker's side and its wire."""
    wire: Any = Wire()
    return Recorder(wire, Path("audit.jsonl"), problem), wire


async def sent(wire: Wire, messages: int = 1) -> None:
    """Return once so many were sent."""
    async with asyncio.timeout(10):
        while len(wire.sent) < messages:
            wire.more.clear()
            await wire.more.wait()


class Waits:
    """What waits for a record that is written ahead."""

    def __init__(self) -> None:
        self.heard: list[SeamgateError | None] = []

    def __call__(self, error: SeamgateError | None) -> None:
        self.heard.append(error)

    def judge_again(self, _: Any) -> bool:
        return False


# -- the worker's side -------------------------------------------------------------------------------------------------


async def test_what_has_ended_waits_for_company() -> None:
    """Where nothing begins it leaves by itself, in order, `COMPANY_S` after the first of them."""
    recorder, wire = worker()
    recorder.append(record("1"))
    await asyncio.sleep(0)
    recorder.append(record("2"))
    assert wire.sent == []
    await sent(wire)
    assert wire.sent == [Records(0, [], sealed(record("1"), record("2")), [])]
    recorder.append(record("3"))
    await sent(wire, 2)
    assert wire.sent[1] == Records(0, [], sealed(record("3")), [])


async def test_so_many_leave_at_once() -> None:
    """What ended in a flood does not wait: it would only become a larger message."""
    recorder, wire = worker()
    for number in range(MOST_TOGETHER + 1):
        recorder.append(record(str(number)))
    assert [len(message.ended) for message in wire.sent] == [MOST_TOGETHER]
    recorder.close()
    assert [len(message.ended) for message in wire.sent] == [MOST_TOGETHER, 1]


async def test_denials_are_sent_as_they_are() -> None:
    """The journal has to see them, to shorten those that are too many; so has it what is no request."""
    recorder, wire = worker()
    other = record("2", AuditKind.CONNECT)
    for each in (denied("1"), other, record("3")):
        recorder.append(each)
    await sent(wire)
    assert wire.sent == [Records(0, [denied("1"), other], sealed(record("3")), [])]


def test_a_sealed_record_is_the_same_line() -> None:
    """What a worker writes and the supervisor chains is, to the byte, what one process would have written."""
    encoder, whole = LineEncoder(), record("1")
    (one,) = sealed(whole)
    assert encoder.encode(one, 41, "ab" * 32) == encoder.encode(whole, 41, "ab" * 32)
    assert opened(one) == whole
    assert opened(whole) is whole


async def test_a_request_leaves_once_it_is_acknowledged() -> None:
    """Nothing goes on before the answer; what has ended before goes ahead of what begins."""
    recorder, wire = worker()
    waits = Waits()
    recorder.append(record("0"))
    recorder.begin_later([(begin("1"), waits, waits)])
    assert wire.sent == [Records(1, [], sealed(record("0")), sealed(begin("1")))]
    assert waits.heard == []
    recorder.acknowledged(1, "")
    recorder.acknowledged(1, "")
    assert waits.heard == [None]


async def test_a_refusal_denies() -> None:
    """If it can't be written, who waits hears why."""
    recorder, _ = worker()
    waits = Waits()
    recorder.begin_later([(begin("1"), waits, waits)])
    recorder.acknowledged(1, "no space")
    (error,) = waits.heard
    assert error is not None
    assert (error.reason, error.message) == (Reason.AUDIT_UNAVAILABLE, "the audit log can't be written: no space")


async def test_what_begins_again_waits_for_the_later_record() -> None:
    """A request that a reload judged anew does not leave on the word for what it was before."""
    recorder, _ = worker()
    before, after = Waits(), Waits()
    recorder.begin_later([(begin("1"), before, before)])
    recorder.begin_later([(begin("1"), after, after)])
    recorder.acknowledged(1, "")
    assert before.heard == after.heard == []
    recorder.acknowledged(2, "")
    assert (before.heard, after.heard) == ([], [None])


async def test_without_an_answer_it_is_refused_in_the_end() -> None:
    """A supervisor that hangs denies; a late answer lets nothing out any more."""
    recorder, _ = worker()
    waits = Waits()
    recorder.begin_later([(begin("1"), waits, waits)])
    now = asyncio.get_running_loop().time()
    recorder.check(now + PATIENCE_S - 1)
    assert waits.heard == []
    recorder.check(now + PATIENCE_S + 1)
    recorder.acknowledged(1, "")
    assert [error is not None for error in waits.heard] == [True]


@pytest.mark.parametrize("trouble", ["closed", "clogged", "told"])
async def test_nothing_begins_while_nothing_can_be_written(trouble: str) -> None:
    """A supervisor that is gone, does not follow or can't write: unhealthy, and what would begin is refused at once."""
    assert worker()[0].healthy
    recorder, wire = worker()
    if trouble == "told":
        recorder.told("no space")
    else:
        setattr(wire, trouble, True)
    assert not recorder.healthy
    waits = Waits()
    recorder.begin_later([(begin("1"), waits, waits)])
    assert [error is not None for error in waits.heard] == [True]
    assert wire.sent == []


async def test_a_supervisor_that_is_gone_refuses_what_waits() -> None:
    """Whoever waits for it hears so."""
    recorder, _ = worker()
    waits = Waits()
    recorder.begin_later([(begin("1"), waits, waits)])
    recorder.supervisor_gone()
    assert [error is not None for error in waits.heard] == [True]


async def test_what_has_no_room_is_counted() -> None:
    """A flood that the supervisor can't follow costs no memory without end, and is told once there is room."""
    recorder, wire = worker()
    wire.waiting_bytes = MOST_WAITING_BYTES + 1
    recorder.append(record("1"))
    recorder.append(record("2"))
    wire.waiting_bytes = 0
    recorder.append(record("3"))
    recorder.flush()
    assert wire.sent == [Records(0, [], sealed(record("3")), [], 2)]
    assert recorder.stats.lost == 2


class Underway(Waits):
    """An exchange."""

    def refuse(self, _: Any) -> None: ...

    def look_anew(self) -> bool:
        return False


def gathering() -> tuple[Seam, list[list[str]]]:
    """Return the seam of a worker, and what it asked for: the ids of each time."""
    asked: list[list[str]] = []
    opener: Any = object()
    journal: Any = Book()
    seam = Seam(
        pipeline=Pipeline([]), pool=SessionPool(opener, PoolConfig(), response_timeout_s=1.0), journal=journal,
        limits=LimitsConfig(), permit=PUBLIC_ONLY, own=OwnAddresses(()),
        placeholders=PlaceholderIndex({}),
    )  # fmt: skip
    seam.begin_later = lambda ahead: asked.append([record.id for record, _, _ in ahead])
    return seam, asked


def write(seam: Seam, name: str) -> Underway:
    """Have an exchange begin."""
    exchange = Underway()
    seam.under_way.add(exchange)
    seam.write_ahead(begin(name), exchange, exchange)
    return exchange


async def turns(count: int) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_begins_waits_while_each_turn_brings_more() -> None:
    """A busy worker asks once for all that it reads meanwhile; an idle one looks once more and asks."""
    seam, asked = gathering()
    write(seam, "1")
    await turns(1)
    assert asked == []
    write(seam, "2")
    await turns(1)
    assert asked == []
    await turns(1)
    assert asked == [["1", "2"]]
    write(seam, "3")
    await turns(2)
    assert asked == [["1", "2"], ["3"]]


async def test_what_begins_waits_for_few_turns() -> None:
    """A flood without end holds nobody up: the fourth turn asks, whatever comes."""
    seam, asked = gathering()
    for number in range(8):
        write(seam, str(number))
        await turns(1)
    assert asked == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]


async def test_what_ends_while_others_are_gathered_does_not_begin() -> None:
    """Its terminal record is on its way: a beginning behind that would look like another request."""
    seam, asked = gathering()
    left = write(seam, "1")
    await turns(1)
    write(seam, "2")
    seam.ended(left)
    await turns(2)
    assert asked == [["2"]]


# -- the supervisor's side ---------------------------------------------------------------------------------------------


def ledger() -> tuple[Ledger, Book]:
    """Return a ledger and its journal."""
    book = Book()
    return Ledger(book, lambda: 9.0), book


async def test_what_begins_in_one_turn_is_written_together() -> None:
    """Two workers' records are one write; each hears of its own."""
    accounts, book = ledger()
    heard: list[tuple[str, Acknowledge]] = []
    one, other = (Account(lambda answer, who=who: heard.append((who, answer))) for who in ("one", "other"))  # type: ignore[misc]
    accounts.take(one, Records(7, [], [], sealed(begin("1"))))
    accounts.take(other, Records(3, [denied("w")], sealed(record("x")), sealed(begin("2"))))
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [("one", Acknowledge(7)), ("other", Acknowledge(3))]
    assert [each.id for each in book.written] == ["w", "x", "1", "2"]


async def test_an_end_never_stands_before_its_beginning() -> None:
    """Also if both messages of a worker come in one turn."""
    accounts, book = ledger()
    account = Account(lambda _: None)
    accounts.take(account, Records(1, [], [], sealed(begin("1"))))
    accounts.take(account, Records(1, [], sealed(record("1")), []))
    assert [each.kind for each in book.written] == [AuditKind.BEGIN, AuditKind.REQUEST]


async def test_what_a_worker_had_begun_ends_with_it() -> None:
    """Each that was begun and has not ended gets its one terminal record; what has ended gets no second one."""
    accounts, book = ledger()
    account = Account(lambda _: None)
    accounts.take(account, Records(1, [], [], sealed(begin("0"), begin("1"), begin("2"))))
    accounts.take(account, Records(2, [denied("0")], sealed(record("1")), sealed(begin("3"))))
    assert accounts.lose(account) == 2
    ended = [each for each in book.written if each.kind is AuditKind.REQUEST]
    assert [(each.id, each.reason, each.outcome) for each in ended] == [
        ("0", None, None),
        ("1", None, None),
        ("2", Reason.WORKER_LOST, Outcome.ABORTED),
        ("3", Reason.WORKER_LOST, Outcome.ABORTED),
    ]
    assert accounts.lose(account) == 0


async def test_what_can_not_be_written_has_not_begun() -> None:
    """Its worker hears why, and if it dies there is nothing to end."""
    accounts, book = ledger()
    heard: list[Acknowledge] = []
    account = Account(heard.append)
    book.full = True
    accounts.take(account, Records(1, [], [], sealed(begin("1"))))
    await asyncio.sleep(0)
    assert heard == [Acknowledge(1, "no space")]
    assert accounts.lose(account) == 0


async def test_lost_records_are_a_gap() -> None:
    """The journal says how many are missing, before what came after them."""
    accounts, book = ledger()
    accounts.take(Account(lambda _: None), Records(0, [], sealed(record("1")), [], 5))
    gap = book.written[0].gap
    assert gap is not None
    assert gap.lost == 5
