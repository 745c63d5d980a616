"""What a journal that is about to be written again is found to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.audit.head import HeadState, Mark
from seamgate.audit.line import GENESIS, LineEncoder, hash_line
from seamgate.audit.record import AuditKind, AuditRecord, GapCause
from seamgate.audit.recovery import Findings, examine, unfinished_requests
from seamgate.audit.segments import segment_path

ENCODER = LineEncoder()


def _chain(count: int, kind: AuditKind = AuditKind.REQUEST) -> list[bytes]:
    lines, prev = [], GENESIS
    for number in range(1, count + 1):
        lines.append(ENCODER.encode(AuditRecord(float(number), kind, id=f"r-{number}"), number, prev))
        prev = hash_line(lines[-1])
    return lines


LINES = _chain(4)


def _state(written: int, intended: int | None = None) -> HeadState:
    return HeadState(
        Mark(written, 0, hash_line(LINES[written - 1])),
        Mark(intended or written, 0, hash_line(LINES[(intended or written) - 1])),
    )


def _examine(path: Path, known: HeadState | None, *, head_existed: bool = True, running: bool = False) -> Findings:
    return examine(path, known, head_existed=head_existed, running=running)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_a_new_journal_begins_at_nothing(path: Path) -> None:
    """No file and no head: nothing is odd."""
    assert _examine(path, None, head_existed=False) == Findings()


def test_a_whole_journal_goes_on_where_it_ends(path: Path) -> None:
    """Number, hash and size of the last line; first line and its time."""
    path.write_bytes(b"".join(LINES))
    found = _examine(path, _state(4))
    assert found.end == Mark(4, path.stat().st_size, hash_line(LINES[3]))
    assert (found.first_seq, found.started_at, found.gaps) == (1, 1.0, [])


def test_lines_of_a_write_under_way_are_kept(path: Path) -> None:
    """Whole lines between confirmed and intended are fine, and a torn one after them is set aside."""
    path.write_bytes(b"".join(LINES[:3]) + LINES[3][:9])
    found = _examine(path, _state(2, 4))
    assert (found.end.seq, found.torn) == (3, LINES[3][:9])
    assert [gap.cause for gap in found.gaps] == [GapCause.TORN_LINE]


@pytest.mark.parametrize(("running", "cause"), [(False, GapCause.TAIL_MISSING), (True, GapCause.PATH_REPLACED)])
def test_a_missing_tail_is_bridged(path: Path, running: bool, cause: GapCause) -> None:
    """The chain goes on from the last line that was confirmed, though it is gone."""
    path.write_bytes(LINES[0])
    found = _examine(path, _state(4), running=running)
    assert found.end == Mark(4, len(LINES[0]), hash_line(LINES[3]))
    gap = found.gaps[0]
    assert (gap.cause, gap.from_seq, gap.to_seq, gap.lost) == (cause, 2, 4, 3)


def test_lines_newer_than_the_head_are_kept_and_told(path: Path) -> None:
    """After a crash of the machine the head may be older than the file."""
    path.write_bytes(b"".join(LINES))
    found = _examine(path, _state(2))
    assert found.end.seq == 4
    assert [gap.cause for gap in found.gaps] == [GapCause.HEAD_STALE]


@pytest.mark.parametrize("head_existed", [True, False])
def test_lines_without_a_head_are_kept_and_told(path: Path, head_existed: bool) -> None:
    """Damaged or missing, the message says which."""
    path.write_bytes(b"".join(LINES))
    gap = _examine(path, None, head_existed=head_existed).gaps[0]
    assert gap.cause is GapCause.HEAD_MISSING
    assert ("damaged" in gap.detail) is head_existed


@pytest.mark.parametrize(
    "content",
    [
        b"".join([LINES[0], LINES[2], LINES[3]]),
        b"".join([*LINES[:3], b"junk\n"]),
        b"".join([*LINES[:3], ENCODER.encode(AuditRecord(9.0, AuditKind.REQUEST), 4, hash_line(LINES[2]))]),
        b"junk\n",
    ],
)
def test_a_broken_chain_is_closed_and_goes_on_from_the_head(path: Path, content: bytes) -> None:
    """A dropped line, junk, or another last line than the head knows: evidence, not to be written on."""
    path.write_bytes(content)
    found = _examine(path, _state(4))
    assert found.broken
    assert (found.end.seq, found.end.hash) == (4, hash_line(LINES[3]))
    assert found.gaps[0].cause is GapCause.CHAIN_BROKEN
    assert (found.gaps[0].from_seq, found.gaps[0].to_seq) == (1, 4)


def test_the_chain_goes_on_from_the_newest_segment(path: Path) -> None:
    """A crash between the two steps of a rotation leaves no active file; that is nothing odd."""
    segment_path(path, 1).write_bytes(b"".join(LINES[:2]))
    assert _examine(path, _state(2)).end == Mark(2, 0, hash_line(LINES[1]))
    path.write_bytes(b"".join(LINES[2:]))
    found = _examine(path, _state(4))
    assert (found.end.seq, found.first_seq, found.gaps) == (4, 3, [])


def test_requests_without_an_end_are_found(path: Path) -> None:
    """In the active file and the segment before it; those that have an end are not."""
    begun = _chain(3, AuditKind.BEGIN)
    segment_path(path, 1).write_bytes(b"".join(begun))
    path.write_bytes(ENCODER.encode(AuditRecord(9.0, AuditKind.REQUEST, id="r-2"), 4, hash_line(begun[2])) + b"junk\n")
    assert [record.id for record in unfinished_requests(path)] == ["r-1", "r-3"]
