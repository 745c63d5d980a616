"""Reading journals that are being written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.line import decode_line
from seamgate.audit.reading import Follower, last_generation, last_lines, read_lines, size_bytes, verify_journal
from seamgate.audit.record import AuditGateway, AuditKind, AuditRecord
from seamgate.audit.segments import finished_segments
from seamgate.errors import AuditError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = Journal(AuditConfig(path=str(path), fsync="never", max_size_bytes=4096, keep=100))
    yield opened
    opened.close()


def _write(journal: Journal, count: int) -> None:
    for _ in range(count):
        journal.begin(AuditRecord(1.0, AuditKind.BEGIN, id="r", message="x" * 200))


def _numbers(lines: list[bytes]) -> list[int]:
    return [decode_line(line).seq for line in lines]


def test_a_live_journal_verifies(journal: Journal, path: Path) -> None:
    """Verifying needs no lock, and says that a gateway is writing."""
    _write(journal, 30)
    report = verify_journal(path)
    assert (report.fault, report.last_seq) == (None, 30)
    assert "a gateway is writing" in report.notes[0]


def test_a_finished_segment_can_be_verified_alone(journal: Journal, path: Path) -> None:
    """An archived segment has no head and no predecessor; its inside is still judged."""
    _write(journal, 30)
    segment = finished_segments(path)[1]
    report = verify_journal(segment)
    assert report.fault is None
    assert report.first_seq == int(segment.name[-16:])
    segment.write_bytes(segment.read_bytes().replace(b'"id":"r"', b'"id":"s"', 1))
    fault = verify_journal(segment).fault
    assert fault is not None
    assert fault.line == 1


@pytest.mark.parametrize("count", [0, 1, 5, 29, 30, 99])
def test_the_last_lines_reach_over_segments(journal: Journal, path: Path, count: int) -> None:
    """As many as asked for, oldest first, from as many files as it takes."""
    _write(journal, 30)
    assert _numbers(last_lines(path, count)) == list(range(1, 31))[max(0, 30 - count) :]


def test_a_follower_sees_each_line_once_over_rotations(journal: Journal, path: Path) -> None:
    """However many segments were finished between two polls."""
    _write(journal, 3)
    follower = Follower(path, 3)
    assert follower.poll() == []
    seen: list[int] = []
    for count in (1, 0, 40, 2, 15):
        _write(journal, count)
        seen += _numbers(follower.poll())
    assert seen == list(range(4, 62))
    follower.close()


def test_the_last_generation_is_found(journal: Journal, path: Path, tmp_path: Path) -> None:
    """Behind records that no policy judged, cut lines and what is no record; 0 where there is no journal."""
    assert last_generation(tmp_path / "none.jsonl") == 0
    journal.append(AuditRecord(1.0, AuditKind.GATEWAY, gateway=AuditGateway("stop"), generation=7))
    journal.flush()
    _write(journal, 3)
    with path.open("ab") as file:
        file.write(b'garbage\n{"generation":9')
    assert last_generation(path) == 7


def test_following_goes_on_for_ever(journal: Journal, path: Path) -> None:
    """It pauses between polls and gives what came meanwhile."""
    follower = Follower(path, 0)
    lines = follower.follow(pause=lambda _pause_s: _write(journal, 2))
    assert _numbers(list(islice(lines, 5))) == [1, 2, 3, 4, 5]


def test_a_half_line_is_not_shown_until_it_is_whole(journal: Journal, path: Path) -> None:
    """A reader that is faster than the writer waits."""
    _write(journal, 2)
    content = path.read_bytes()
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(content[:-10])
    follower = Follower(copy, 0)
    assert _numbers(follower.poll()) == [1]
    assert _numbers(list(read_lines(copy))) == [1]
    with copy.open("ab") as file:
        file.write(content[-10:])
    assert _numbers(follower.poll()) == [2]
    follower.close()


def test_a_journal_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The message says what to do."""
    with pytest.raises(AuditError, match=r"there is no journal at .*SEAMGATE_AUDIT"):
        list(read_lines(tmp_path / "none.jsonl"))
    with pytest.raises(AuditError, match="there is no segment"):
        verify_journal(tmp_path / f"none.jsonl.{1:016d}")


def test_size_counts_all_files(journal: Journal, path: Path) -> None:
    """What a progress bar measures against."""
    _write(journal, 30)
    assert size_bytes(path) == sum(map(len, read_lines(path)))
