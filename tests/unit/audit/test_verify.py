"""The judge: what it says about beginnings, ends, gaps and forged lines. Edits of all kinds: tests/property."""

from __future__ import annotations

import pytest

from seamgate.audit.head import HeadState, Mark
from seamgate.audit.line import GENESIS, LineEncoder, hash_line
from seamgate.audit.record import AuditGap, AuditKind, AuditRecord, GapCause
from seamgate.audit.verify import Checker, Placed, Problem, Report, judge_anchor, judge_end

ENCODER = LineEncoder()


def _chain(count: int, *, seq: int = 0, prev: str = GENESIS) -> list[bytes]:
    lines = []
    for number in range(1, count + 1):
        line = ENCODER.encode(AuditRecord(1.0 + number, AuditKind.REQUEST), seq + number, prev)
        lines.append(line)
        prev = hash_line(line)
    return lines


def _mark(lines: list[bytes], seq: int) -> Mark:
    return Mark(seq, 0, hash_line(lines[seq - 1]))


def _judge(
    lines: list[bytes], before: HeadState | None, after: HeadState | None = None, *, live: bool = False
) -> Report:
    checker = Checker(head=before.written if before else None)
    checker.run(Placed("a", number, 0, line) for number, line in enumerate(lines, 1))
    judge_end(checker, before, after or before, live=live)
    return checker.judge_beginning()


def _problem(report: Report) -> Problem | None:
    return report.fault.problem if report.fault else None


def test_a_whole_chain_is_fine_and_tells_its_head() -> None:
    """No fault, and the hash to note down is that of the last line."""
    lines = _chain(3)
    mark = _mark(lines, 3)
    report = _judge(lines, HeadState(mark, mark))
    assert (report.fault, report.lines, report.last_seq, report.head_hash) == (None, 3, 3, mark.hash)


def test_an_empty_journal_is_whole() -> None:
    """A gateway that wrote nothing has nothing to hide."""
    assert _judge([], HeadState()).fault is None


@pytest.mark.parametrize("end", [1, 2, 3])
def test_a_crash_may_end_anywhere_in_the_write_that_was_under_way(end: int) -> None:
    """From what is confirmed to what was intended every whole end is fine."""
    lines = _chain(3)
    assert _judge(lines[:end], HeadState(_mark(lines, 1), _mark(lines, 3))).fault is None


def test_nothing_may_stand_after_what_was_intended() -> None:
    """A line that fits the chain but that the gateway never wrote is foreign."""
    lines = _chain(3)
    mark = _mark(lines, 2)
    report = _judge(lines, HeadState(mark, mark))
    assert report.fault is not None
    assert (report.fault.problem, report.fault.line) == (Problem.INSERTED, 3)


def test_the_last_line_of_a_write_under_way_is_known_too() -> None:
    """Whole, in range, but another: the head's intended hash tells."""
    lines = _chain(3)
    forged = ENCODER.encode(AuditRecord(9.0, AuditKind.REQUEST), 3, hash_line(lines[1]))
    assert _problem(_judge([*lines[:2], forged], HeadState(_mark(lines, 2), _mark(lines, 3)))) is Problem.EDITED


def test_a_torn_end_is_a_crash_beyond_what_is_confirmed_and_a_cut_before() -> None:
    """The same bytes mean different things, and the head knows which; a running gateway may be in the middle of it."""
    lines = _chain(3)
    torn = [*lines[:2], lines[2][:20]]
    crashed = HeadState(_mark(lines, 2), _mark(lines, 3))
    assert _problem(_judge(torn, crashed)) is Problem.TORN
    assert _problem(_judge(torn, crashed, live=True)) is None
    cut = HeadState(_mark(lines, 3), _mark(lines, 3))
    report = _judge(torn, cut)
    assert report.fault is not None
    assert (report.fault.problem, report.fault.line, report.fault.seq) == (Problem.TRUNCATED, 3, 3)


def test_a_running_gateway_may_go_on_meanwhile() -> None:
    """Lines beyond the head that was read first are fine if the head that was read last knows them."""
    lines = _chain(4)
    before = HeadState(_mark(lines, 2), _mark(lines, 2))
    after = HeadState(_mark(lines, 4), _mark(lines, 4))
    assert _judge(lines[:3], before, after, live=True).fault is None
    assert _judge(lines, before, after, live=True).fault is None
    assert _problem(_judge(lines[:1], before, after, live=True)) is Problem.TRUNCATED


def test_without_a_head_the_end_is_unknown() -> None:
    """Deleting the head with the tail is no way around."""
    assert _problem(_judge(_chain(3), None)) is Problem.HEAD_MISSING


def test_a_gateway_that_just_starts_may_have_no_head_yet() -> None:
    """While it is running and wrote nothing, or its head came meanwhile; never when nobody is running."""
    lines = _chain(2)
    after = HeadState(_mark(lines, 2), _mark(lines, 2))
    assert _judge([], None, live=True).fault is None
    assert _judge(lines, None, after, live=True).fault is None
    assert _problem(_judge(lines, None, live=True)) is Problem.HEAD_MISSING
    assert _problem(_judge([], None)) is Problem.HEAD_MISSING


def test_a_line_that_was_slipped_in_is_named_not_the_one_after() -> None:
    """A forged line with a fitting `prev`: the true next line betrays it."""
    lines = _chain(3)
    forged = ENCODER.encode(AuditRecord(9.0, AuditKind.REQUEST), 2, hash_line(lines[0]))
    mark = _mark(lines, 3)
    report = _judge([lines[0], forged, *lines[1:]], HeadState(mark, mark))
    assert report.fault is not None
    assert (report.fault.problem, report.fault.line) == (Problem.INSERTED, 2)


@pytest.mark.parametrize(("from_seq", "problem"), [(3, None), (4, Problem.DROPPED)])
def test_a_gap_excuses_only_what_it_names(from_seq: int, problem: Problem | None) -> None:
    """Lines 3 and 4 are missing: a gap that names both is accepted, one that names only the second is not."""
    lines = _chain(4)
    lost = _mark(lines, 4)
    gap = AuditGap(GapCause.TAIL_MISSING, lost=2, from_seq=from_seq, to_seq=4, to_hash=lost.hash)
    line = ENCODER.encode(AuditRecord(9.0, AuditKind.GAP, gap=gap), 5, lost.hash)
    mark = Mark(5, 0, hash_line(line))
    report = _judge([*lines[:2], line], HeadState(mark, mark))
    assert _problem(report) is problem
    if problem is None:
        assert (report.lost, len(report.losses)) == (2, 1)


def test_a_gap_excuses_a_beginning_only_if_it_names_all_before_it() -> None:
    """After a whole folder was lost the chain may begin with a gap from 1; it is no excuse for deleting more."""
    for from_seq, problem in ((1, None), (3, Problem.DROPPED)):
        gap = AuditGap(GapCause.PATH_REPLACED, lost=4, from_seq=from_seq, to_seq=4, to_hash="ab" * 32)
        line = ENCODER.encode(AuditRecord(9.0, AuditKind.GAP, gap=gap), 5, "ab" * 32)
        mark = Mark(5, 0, hash_line(line))
        assert _problem(_judge([line], HeadState(mark, mark))) is problem


def test_a_write_failure_that_was_made_good_is_no_loss() -> None:
    """An outage in which memory sufficed is worth knowing, not an incomplete journal."""
    for lost, losses in ((0, 0), (3, 1)):
        gap = AuditGap(GapCause.WRITE_FAILED, lost=lost)
        line = ENCODER.encode(AuditRecord(9.0, AuditKind.GAP, gap=gap), 1, GENESIS)
        mark = Mark(1, 0, hash_line(line))
        assert len(_judge([line], HeadState(mark, mark)).losses) == losses


def test_an_anchor_is_found_anywhere_in_the_chain() -> None:
    """The journal has grown since the hash was noted down; a hash that is nowhere means another journal."""
    lines = _chain(3)
    for seq in (1, 2, 3):
        digest = hash_line(lines[seq - 1])
        checker = Checker(expect_hash=digest)
        checker.run(Placed("a", number, 0, line) for number, line in enumerate(lines, 1))
        assert judge_anchor(checker.report, digest).fault is None
        assert checker.report.anchor_seq == seq
    checker = Checker(expect_hash="ab" * 32)
    checker.run(Placed("a", number, 0, line) for number, line in enumerate(lines, 1))
    assert _problem(judge_anchor(checker.report, "ab" * 32)) is Problem.ANCHOR_MISSING


def test_progress_adds_up() -> None:
    """What `on_progress` is told sums up to what was read."""
    lines = _chain(5)
    told: list[int] = []
    Checker().run((Placed("a", number, 0, line) for number, line in enumerate(lines, 1)), told.append)
    assert sum(told) == sum(map(len, lines))
