"""Judges a journal: is it, to the byte, all that the gateway wrote? If not, which line is the first wrong one?

Pure: works over placed lines and head states that `seamgate.audit.reading` brings; used by `seamgate audit verify` and
by tests. Never trusts a line, never changes a file.

How the first wrong line is told. Going down the lines, each must carry the next number and the hash of the line
before. Where one does not, one of these holds, and they are tried in this order:

    the line before is no JSON object             it was edited (or its line feed was)
    this line does not begin like a record        it was edited
    `prev` fits, the number does not              its number was edited
    it is the same, byte for byte                 it was duplicated
    it follows the line before the last           the line before was inserted
    the number is higher than the next            the next is further down: reordered; it is nowhere: dropped
    the number was there already                  it was inserted
    the number is the next                        put the right `prev` in: if that gives what the following line (or the
                                                  head) says, this line's `prev` was edited; else the line before was

The last line has no follower; the head speaks for it. What a hash chain can't show is a journal rewritten as a whole,
head included: that takes an anchor kept elsewhere (`expect_hash`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from seamgate.audit.head import HeadState, Mark
from seamgate.audit.line import GENESIS, declared_gap, gap_of, hash_line, read_link, relink
from seamgate.audit.link import Link
from seamgate.audit.record import LOSSES, AuditGap, GapCause

_PROGRESS_LINES = 4096


class Problem(StrEnum):
    """What is wrong with the first wrong line."""

    EDITED = "edited"
    DROPPED = "dropped"
    REORDERED = "reordered"
    INSERTED = "inserted"
    DUPLICATED = "duplicated"
    TRUNCATED = "truncated"
    TORN = "torn"
    HEAD_MISSING = "head_missing"
    ANCHOR_MISSING = "anchor_missing"


class Placed(NamedTuple):
    """A line and where it stands.

    Attributes:
        file: name of its file.
        number: its line number in that file, from 1.
        first_seq: the number that the file's name promises for its first line, 0 if it promises none.
        line: its bytes, line feed included if it has one.
    """

    file: str
    number: int
    first_seq: int
    line: bytes


class Fault(msgspec.Struct, frozen=True):
    """The first wrong line.

    Attributes:
        file: its file, "" where it is about no line.
        line: its line number in the file, 0 where it is about no line.
        seq: the sequence number that belongs there.
        problem: what was done to it.
        message: a sentence for people.
        whole: how many lines before it are as they were written, as far as the chain shows.
    """

    file: str
    line: int
    seq: int
    problem: Problem
    message: str
    whole: int


class DeclaredGap(msgspec.Struct, frozen=True):
    """A gap that the journal itself records, and where."""

    file: str
    line: int
    seq: int
    gap: AuditGap


class Report(msgspec.Struct):
    """What `verify` found.

    Attributes:
        lines: lines that were read.
        first_seq: number of the first line, 0 if there is none.
        last_seq: number of the last good line.
        head_hash: its hash: what to note down elsewhere.
        fault: the first wrong line, None if the chain is whole.
        gaps: what the journal says about itself.
        lost: records that are lost by its own account.
        anchor_seq: the line that `expect_hash` named, 0 if none was asked for or found.
        notes: what is no fault but worth knowing.
    """

    lines: int = 0
    first_seq: int = 0
    last_seq: int = 0
    head_hash: str = GENESIS
    fault: Fault | None = None
    gaps: list[DeclaredGap] = []
    lost: int = 0
    anchor_seq: int = 0
    notes: list[str] = []

    @property
    def losses(self) -> list[DeclaredGap]:
        """The gaps that mean that records are, or may be, gone."""
        return [entry for entry in self.gaps if entry.gap.cause in LOSSES and (entry.gap.lost or _always_loss(entry))]


def _always_loss(entry: DeclaredGap) -> bool:
    # A write that failed and was made good later lost nothing; the other causes can't promise that.
    return entry.gap.cause is not GapCause.WRITE_FAILED


class Checker:
    """One pass over a journal's lines.

    Attributes:
        report: what was found so far.
        last_placed: the last good line.
        torn: what follows the last line feed, None if nothing does.
    """

    def __init__(self, *, head: Mark | None = None, expect_hash: str = "", partial: bool = False) -> None:
        """Prepare.

        Args:
            head: the line up to which the journal goes at least, None if that is not known.
            expect_hash: a hash that some line must have, "" for none.
            partial: the first line may be any: older segments are kept elsewhere.
        """
        self._head = head
        self._expect = expect_hash
        self._partial = partial
        self._pruned: dict[int, str] = {}
        self._before_last: Link | None = None
        self._last: Link | None = None
        self.last_placed: Placed | None = None
        self._first: tuple[Placed, Link] | None = None
        self.report = Report(gaps=[], notes=[])
        self.torn: Placed | None = None

    def run(self, lines: Iterable[Placed], on_progress: Callable[[int], None] | None = None) -> Report:
        """Check all lines up to the first wrong one.

        Args:
            lines: in the order of the chain.
            on_progress: called now and then with the bytes that were read since the last call.
        """
        stream = iter(lines)
        read_bytes = 0
        for placed in stream:
            read_bytes += len(placed.line)
            if on_progress is not None and not self.report.lines % _PROGRESS_LINES:
                on_progress(read_bytes)
                read_bytes = 0
            if not placed.line.endswith(b"\n") and self._is_last(placed, stream):
                break
            self.report.fault = self._check(placed, stream)
            if self.report.fault is not None:
                return self.report
        if on_progress is not None:
            on_progress(read_bytes)
        self.report.fault = self._check_last()
        return self.report

    def _is_last(self, placed: Placed, stream: Iterator[Placed]) -> bool:
        """A line without line feed: the end of the journal is `judge_end`'s; anywhere else it was edited."""
        following = next(stream, None)
        if following is None:
            self.torn = placed
            return True
        return False

    def _check(self, placed: Placed, stream: Iterator[Placed]) -> Fault | None:
        link = read_link(placed.line)
        fault = self._check_place(placed, link, stream)
        if fault is not None or link is None:
            return fault
        if self._head is not None and link.seq == self._head.seq and link.hash != self._head.hash:
            return self._fault(placed, link.seq, Problem.EDITED, "its hash is not the one that the head has for it")
        self._note_gap(placed, link)
        self._accept(placed, link)
        return None

    def _accept(self, placed: Placed, link: Link) -> None:
        report = self.report
        if self._first is None:
            self._first = placed, link
            report.first_seq = link.seq
        report.lines += 1
        report.last_seq, report.head_hash = link.seq, link.hash
        if self._expect and self._expect in (link.hash, link.prev):
            report.anchor_seq = link.seq if self._expect == link.hash else link.seq - 1
        self._before_last, self._last, self.last_placed = self._last, link, placed

    def _note_gap(self, placed: Placed, link: Link) -> None:
        gap = gap_of(placed.line)
        if gap is None:
            return
        self.report.gaps.append(DeclaredGap(placed.file, placed.number, link.seq, gap))
        self.report.lost += gap.lost
        if gap.cause is GapCause.PRUNED:
            self._pruned[gap.to_seq] = gap.to_hash

    def _check_place(self, placed: Placed, link: Link | None, stream: Iterator[Placed]) -> Fault | None:
        last = self._last
        if last is None:
            return self._check_first(placed, link)
        expected = last.seq + 1
        if link is not None and link.seq == expected and link.prev == last.hash:
            return None
        if link is not None:
            gap = declared_gap(placed.line, link)
            # A gap excuses lines that are not there, never a last line whose hash does not fit.
            if gap is not None and gap.from_seq <= expected < link.seq:
                return None
        if not self._is_json(self.last_placed):
            return self.blame_last("it is no whole record")
        if link is None:
            return self._fault(placed, expected, Problem.EDITED, "it is no record of a journal")
        return self._explain(placed, link, last, stream)

    def _check_first(self, placed: Placed, link: Link | None) -> Fault | None:
        if link is None:
            return self._fault(placed, placed.first_seq or 1, Problem.EDITED, "it is no record of a journal")
        if placed.first_seq and placed.first_seq != link.seq:
            why = f"its file begins with record {placed.first_seq} by its name, with {link.seq} by its text"
            return self._fault(placed, placed.first_seq, Problem.EDITED, why)
        genesis = link.prev == GENESIS
        if genesis != (link.seq == 1):
            return self._fault(
                placed, 1 if genesis else link.seq, Problem.EDITED, "a first record has number 1 and no `prev`"
            )
        return None

    def _explain(self, placed: Placed, link: Link, last: Link, stream: Iterator[Placed]) -> Fault:
        """Say which line is wrong, where `link` does not follow `last`."""
        expected = last.seq + 1
        if link.prev == last.hash:
            return self._fault(
                placed, expected, Problem.EDITED, f"it carries number {link.seq} in the place of {expected}"
            )
        if link.hash == last.hash:
            return self._fault(placed, expected, Problem.DUPLICATED, f"it repeats record {last.seq}")
        if self._before_last is not None and link.prev == self._before_last.hash and link.seq == last.seq:
            return self.blame_last(
                f"record {link.seq}, which comes after it, was written in its place", Problem.INSERTED
            )
        if link.seq > expected:
            return self._explain_jump(placed, link, expected, stream)
        if self._first is not None and not self._first[0].first_seq and link.seq < self._first[1].seq:
            start, begun = self._first
            why = f"it is record {begun.seq}; record {link.seq} stands at {placed.file} line {placed.number}"
            return self._fault(start, link.seq, Problem.REORDERED, why)
        if link.seq < expected:
            return self._fault(placed, expected, Problem.INSERTED, f"record {link.seq} stood further up already")
        following = next(stream, None)
        true_hash = self._hash_after(following, link)
        if true_hash and hash_line(relink(placed.line, last.hash)) == true_hash:
            return self._fault(placed, expected, Problem.EDITED, "its `prev` is not the hash of the line before")
        return self.blame_last("its hash is not the one that the next line has for it")

    def _hash_after(self, following: Placed | None, link: Link) -> str:
        """Return the hash that what comes after says a line has, "" if nothing does."""
        if following is not None:
            after = read_link(following.line)
            return after.prev if after is not None else ""
        return self._head.hash if self._head is not None and self._head.seq == link.seq else ""

    def _explain_jump(self, placed: Placed, link: Link, expected: int, stream: Iterator[Placed]) -> Fault:
        for other in stream:
            found = read_link(other.line)
            if found is not None and found.seq == expected:
                why = f"it is record {link.seq}; record {expected} stands at {other.file} line {other.number}"
                return self._fault(placed, expected, Problem.REORDERED, why)
        missing = f"records {expected} to {link.seq - 1} are" if link.seq - 1 > expected else f"record {expected} is"
        return self._fault(placed, expected, Problem.DROPPED, f"{missing} missing before it")

    def _check_last(self) -> Fault | None:
        """The last line has nobody who speaks for its inside but itself (and the head, if it knows it)."""
        if self._last is not None and not self._is_json(self.last_placed):
            return self.blame_last("it is no whole record")
        return None

    def judge_beginning(self) -> Report:
        """Ask, after the end is judged, for the record that deleted what came before the first line.

        A cut tail may have taken that record away, so that is the fault to report then.
        """
        if self.report.fault is None:
            self.report.fault = self._beginning_fault()
        return self.report

    def _beginning_fault(self) -> Fault | None:
        if self._first is None or self._partial:
            return None
        placed, link = self._first
        if link.seq == 1:
            return None
        pruned_hash = self._pruned.get(link.seq - 1)
        if pruned_hash == link.prev:
            return None
        if pruned_hash is not None:
            return self._fault(
                placed, link.seq, Problem.EDITED, "its `prev` is not the hash of the last record that was deleted"
            )
        gap = declared_gap(placed.line, link)
        if gap is not None and gap.from_seq == 1:
            return None
        if gap is None and (stated := gap_of(placed.line)) is not None and stated.to_seq and stated.from_seq:
            return self._fault(
                placed, stated.to_seq + 1, Problem.EDITED, "it does not continue from the line that it names"
            )
        last = (gap.from_seq if gap is not None else link.seq) - 1
        why = f"records 1 to {last} are missing before it, and no record says that they were deleted"
        return self._fault(placed, 1, Problem.DROPPED, why)

    def blame_last(self, why: str, problem: Problem = Problem.EDITED) -> Fault:
        """Return the fault of the line that was taken for good last."""
        assert self._last is not None
        assert self.last_placed is not None
        return self._fault(self.last_placed, self._last.seq, problem, why)

    def _fault(self, placed: Placed, seq: int, problem: Problem, message: str) -> Fault:
        """Blame a line. One that passed until what follows it spoke against it does not count among the good ones."""
        report, whole = self.report, self.report.lines
        if placed is self.last_placed:
            whole -= 1
            before = self._before_last
            report.last_seq, report.head_hash = (before.seq, before.hash) if before is not None else (0, GENESIS)
        elif self._first is not None and placed is self._first[0]:
            whole = 0
        return Fault(placed.file, placed.number, seq, problem, message, whole)

    @staticmethod
    def _is_json(placed: Placed | None) -> bool:
        if placed is None:
            return False
        try:
            return isinstance(msgspec.json.decode(placed.line), dict)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False


def judge_end(checker: Checker, before: HeadState | None, after: HeadState | None, *, live: bool) -> Report:
    """Hold the end of the lines against the head, after `Checker.run` found no fault.

    Args:
        checker: after its run.
        before: the head as it was before the lines were read, None if there is none.
        after: the head as it was after that.
        live: whether a gateway is writing the journal.
    """
    report = checker.report
    if report.fault is None:
        report.fault = _end_fault(checker, before, after, live=live)
    return report


def _end_fault(checker: Checker, before: HeadState | None, after: HeadState | None, *, live: bool) -> Fault | None:
    report, torn, place = checker.report, checker.torn, checker.last_placed
    file, line = (place.file, place.number) if place is not None else ("", 0)
    whole = report.lines
    if before is None and live and (after is not None or not report.lines):
        # The gateway is just starting: its head came after we looked, so it had confirmed nothing then.
        before, after = HeadState(), after or HeadState()
    if before is None or after is None:
        why = "the head file is missing or damaged, so nothing shows whether lines were cut off the end"
        return Fault("", 0, report.last_seq + 1, Problem.HEAD_MISSING, why, whole)
    if report.last_seq < before.written.seq:
        missing = f"{report.last_seq + 1} to {before.written.seq}"
        if torn is not None:
            why = f"it is cut off; records {missing} are not whole"
            return Fault(torn.file, torn.number, report.last_seq + 1, Problem.TRUNCATED, why, whole)
        return Fault(
            file, line, report.last_seq + 1, Problem.TRUNCATED, f"records {missing} are missing after it", whole
        )
    if report.last_seq > after.intended.seq:
        return checker.blame_last("the gateway never wrote it: the head ends before it", Problem.INSERTED)
    if report.last_seq == after.intended.seq and report.head_hash != after.intended.hash:
        return checker.blame_last("its hash is not the one that the head has for it")
    if torn is not None and not live:
        why = "a crash cut it off while it was written; the next start of the gateway sets it aside and records that"
        return Fault(torn.file, torn.number, report.last_seq + 1, Problem.TORN, why, whole)
    return None


def judge_anchor(report: Report, expect_hash: str) -> Report:
    """Hold the lines against a hash that was noted down elsewhere."""
    if report.fault is None and expect_hash and expect_hash != report.head_hash and not report.anchor_seq:
        why = f"no record has the hash {expect_hash[:16]}...: the journal was cut before it, or rewritten"
        report.fault = Fault("", 0, 0, Problem.ANCHOR_MISSING, why, report.lines)
    return report
