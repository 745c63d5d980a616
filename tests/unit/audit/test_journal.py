"""The journal's promises: whole lines, one chain, write-ahead, nothing lost unseen."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.line import GENESIS, decode_line
from seamgate.audit.reading import read_lines, verify_journal
from seamgate.audit.record import AuditGap, AuditKind, AuditLine, AuditRecord, AuditRequest, Decision, GapCause, Outcome
from seamgate.audit.segments import all_files, finished_segments
from seamgate.audit.verify import Problem
from seamgate.errors import AuditError, Reason


def _record(number: int, kind: AuditKind = AuditKind.REQUEST) -> AuditRecord:
    return AuditRecord(
        1_800_000_000.0 + number,
        kind,
        id=f"r-{number}",
        request=AuditRequest("GET", "https", "api.example.com", 443, f"/{number}"),
        verdict=Decision.ALLOW,
        reason=Reason.ALLOWED,
        outcome=None if kind is AuditKind.BEGIN else Outcome.COMPLETE,
    )


class Disk:
    """A disk that can be told to be full: replaces os.write for the journal's module."""

    def __init__(self, write: Callable[[int, bytes], int]) -> None:
        self.write_really = write
        self.room: int | None = None

    def write(self, fd: int, data: bytes) -> int:
        if self.room is None:
            return self.write_really(fd, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.write_really(fd, bytes(data)[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(os.write)
    monkeypatch.setattr(os, "write", made.write)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log" / "audit.jsonl"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with_never = Journal(AuditConfig(path=str(path), fsync="never"))
    yield with_never
    with_never.close()


def _lines(path: Path) -> list[AuditLine]:
    return [decode_line(line) for line in read_lines(path)]


def _gaps(path: Path) -> list[AuditGap]:
    return [line.gap for line in _lines(path) if line.gap is not None]


def test_a_chain_can_be_checked_with_sha256sum(journal: Journal, path: Path) -> None:
    """`prev` is the SHA-256 of the line before, line feed included; the first names zeros."""
    for number in range(3):
        journal.append(_record(number))
    journal.flush()
    raw = path.read_bytes().splitlines(keepends=True)
    assert [decode_line(line).prev for line in raw] == [
        GENESIS,
        sha256(raw[0]).hexdigest(),
        sha256(raw[1]).hexdigest(),
    ]
    assert journal.stats.hash == sha256(raw[2]).hexdigest()


def test_begin_is_in_the_file_when_it_returns(journal: Journal, path: Path) -> None:
    """A write-ahead record, and all that waited before it, is written at once, in order."""
    journal.append(_record(1))
    assert path.read_bytes() == b""
    journal.begin(_record(2, AuditKind.BEGIN))
    assert [(line.id, line.kind) for line in _lines(path)] == [("r-1", "request"), ("r-2", "begin")]


def test_append_asks_once_to_be_flushed(path: Path) -> None:
    """`on_pending` is called when records begin to wait, not for each; `on_written` once a batch is written."""
    asked: list[int] = []
    written: list[list[str]] = []
    journal = Journal(
        AuditConfig(path=str(path), fsync="never"),
        on_pending=lambda: asked.append(1),
        on_written=lambda batch: written.append([record.id for record in batch]),
    )
    journal.append(_record(1))
    journal.append(_record(2))
    assert (asked, written) == ([1], [])
    assert journal.flush()
    assert written == [["r-1", "r-2"]]
    journal.close()


def test_many_waiting_records_are_written_without_being_asked(journal: Journal, path: Path) -> None:
    """Memory and delay stay bounded when nobody flushes."""
    for number in range(600):
        journal.append(_record(number))
    assert journal.stats.pending < 256
    assert len(_lines(path)) > 500


def test_files_are_for_their_owner_only(journal: Journal, path: Path) -> None:
    """The journal and its head have mode 0600, and the folder made for them 0700."""
    assert [stat.S_IMODE(file.stat().st_mode) for file in sorted(path.parent.iterdir())] == [0o600, 0o600]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """A journal that is a link is refused: rotation would leave it, and it may lead anywhere."""
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditError, match="can't be opened"):
        Journal(AuditConfig(path=str(tmp_path / "audit.jsonl")))


def test_a_second_gateway_is_refused(journal: Journal, path: Path) -> None:
    """One writer at a time; the second is told what to do."""
    with pytest.raises(AuditError, match=r"another gateway writes the journal.*`audit: path:`"):
        Journal(AuditConfig(path=str(path)))
    journal.append(_record(1))
    assert journal.flush()


def test_the_lock_goes_with_the_writer(path: Path) -> None:
    """After `close` another may write, and the chain goes on without a gap."""
    config = AuditConfig(path=str(path), fsync="never")
    for number in (1, 2):
        journal = Journal(config)
        journal.append(_record(number))
        journal.close()
    assert [line.seq for line in _lines(path)] == [1, 2]
    assert verify_journal(path).fault is None
    assert _gaps(path) == []


def test_a_full_disk_leaves_no_torn_line(journal: Journal, path: Path, disk: Disk) -> None:
    """A write cut short is taken back to the last whole line, and the request may not begin."""
    journal.append(_record(1))
    journal.flush()
    disk.room = 700
    journal.append(_record(2))
    journal.append(_record(3))
    with pytest.raises(AuditError, match="No space left"):
        journal.begin(_record(4, AuditKind.BEGIN))
    assert not journal.healthy
    content = path.read_bytes()
    assert content.endswith(b"}\n")
    assert [line.id for line in _lines(path)] == ["r-1", "r-2", "r-3"]
    assert "failing: No space left" in repr(journal)
    disk.room = None


def test_a_full_disk_loses_nothing_that_fits_into_memory(journal: Journal, path: Path, disk: Disk) -> None:
    """What waited is written as soon as writing works, then a record of the outage; only then is it healthy."""
    disk.room = 100
    journal.append(_record(1))
    assert not journal.flush()
    journal.append(_record(2))
    assert path.read_bytes() == b""
    disk.room = None
    assert journal.flush()
    assert journal.healthy
    lines = _lines(path)
    assert [line.id for line in lines] == ["r-1", "r-2", ""]
    assert lines[2].gap is not None
    assert (lines[2].gap.cause, lines[2].gap.lost) == (GapCause.WRITE_FAILED, 0)
    report = verify_journal(path)
    assert (report.fault, report.losses) == (None, [])


def test_a_refused_begin_is_not_written_later(journal: Journal, path: Path, disk: Disk) -> None:
    """A request that was told "no" must not show up as one that left."""
    disk.room = 0
    with pytest.raises(AuditError):
        journal.begin(_record(1, AuditKind.BEGIN))
    disk.room = None
    journal.flush()
    assert [line.kind for line in _lines(path)] == ["gap"]


def test_begin_itself_ends_an_outage(journal: Journal, path: Path, disk: Disk) -> None:
    """Recovery needs nobody to ask for it."""
    disk.room = 0
    journal.append(_record(1))
    journal.flush()
    disk.room = None
    journal.begin(_record(2, AuditKind.BEGIN))
    assert journal.healthy
    assert [line.kind for line in _lines(path)] == ["request", "begin", "gap"]


def test_what_does_not_fit_into_memory_is_counted(path: Path, disk: Disk) -> None:
    """Beyond the bound records are lost, and the journal says how many; verify does not call that complete."""
    journal = Journal(AuditConfig(path=str(path), fsync="never", max_pending=3))
    disk.room = 0
    for number in range(10):
        journal.append(_record(number))
    assert (journal.stats.pending, journal.stats.lost) == (3, 7)
    disk.room = None
    assert journal.flush()
    assert [gap.lost for gap in _gaps(path)] == [7]
    report = verify_journal(path)
    assert report.fault is None
    assert report.lost == 7
    assert len(report.losses) == 1
    journal.close()


def test_losing_more_after_the_gap_waits_is_counted_in_another(path: Path, disk: Disk) -> None:
    """A gap record that is itself stuck does not hide what is lost behind it."""
    journal = Journal(AuditConfig(path=str(path), fsync="never", max_pending=1))
    disk.room = 0
    journal.append(_record(1))
    journal.append(_record(2))
    disk.room = 600  # enough for the first record, not for the gap
    journal.flush()
    journal.append(_record(3))
    journal.append(_record(4))
    disk.room = None
    assert journal.flush()
    assert sum(gap.lost for gap in _gaps(path)) == journal.stats.lost > 0
    assert verify_journal(path).fault is None
    journal.close()


def test_a_failed_flush_asks_to_be_tried_again(path: Path, disk: Disk) -> None:
    """`on_pending` is called after a failure, so that recovery needs no new request."""
    asked: list[int] = []
    journal = Journal(AuditConfig(path=str(path), fsync="never"), on_pending=lambda: asked.append(1))
    disk.room = 0
    journal.append(_record(1))
    before = len(asked)
    journal.flush()
    assert len(asked) == before + 1
    disk.room = None
    journal.close()


def test_closing_with_records_that_can_not_be_written_says_so(path: Path, disk: Disk) -> None:
    """Nothing is dropped silently at the end either; the lock is let go all the same."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    disk.room = 0
    journal.append(_record(1))
    with pytest.raises(AuditError, match="1 audit records could not be written and are lost"):
        journal.close()
    disk.room = None
    Journal(AuditConfig(path=str(path), fsync="never")).close()


def test_a_closed_journal_takes_nothing(path: Path) -> None:
    """Using it after `close` is an error, closing it twice is not."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    journal.close()
    journal.close()
    assert not journal.healthy
    with pytest.raises(AuditError, match="closed"):
        journal.append(_record(1))
    with pytest.raises(AuditError, match="closed"):
        journal.begin(_record(1))


def test_rotation_goes_on_with_the_chain(path: Path) -> None:
    """Segments are named by their first record, sort as they follow, and link to each other."""
    journal = Journal(AuditConfig(path=str(path), fsync="never", max_size_bytes=4096))
    for number in range(40):
        journal.begin(_record(number))
    assert journal.stats.rotations == len(finished_segments(path)) > 2
    for file in finished_segments(path):
        first = decode_line(file.read_bytes().splitlines(keepends=True)[0])
        assert file.name == f"audit.jsonl.{first.seq:016d}"
    assert [line.seq for line in _lines(path)] == list(range(1, 41))
    journal.close()
    assert verify_journal(path).fault is None


def test_rotation_by_age(path: Path) -> None:
    """A segment ends when its time is over, by the journal's clock; an empty one never does."""
    now = [1_800_000_000.0]
    journal = Journal(AuditConfig(path=str(path), fsync="never", rotate_after_s=60), clock=lambda: now[0])
    now[0] += 100
    journal.begin(_record(1))
    assert journal.stats.rotations == 0
    now[0] += 61
    journal.begin(_record(2))
    assert journal.stats.rotations == 1
    journal.close()


def test_retention_deletes_and_says_so(path: Path) -> None:
    """Only `keep` segments stay; a record names the last one that went, and verify accepts the chain from there."""
    journal = Journal(AuditConfig(path=str(path), fsync="never", max_size_bytes=4096, keep=2, keep_min_age_s=0))
    for number in range(60):
        journal.begin(_record(number))
    journal.close()
    assert len(finished_segments(path)) == 2
    report = verify_journal(path)
    assert (report.fault, report.losses) == (None, [])
    assert report.first_seq > 1
    assert report.gaps[-1].gap.cause is GapCause.PRUNED
    assert report.gaps[-1].gap.to_seq == report.first_seq - 1


def test_a_deleted_segment_is_no_retention(path: Path) -> None:
    """Deleting a segment by hand is found: no record covers it."""
    journal = Journal(AuditConfig(path=str(path), fsync="never", max_size_bytes=4096, keep=3, keep_min_age_s=0))
    for number in range(60):
        journal.begin(_record(number))
    journal.close()
    finished_segments(path)[0].unlink()
    fault = verify_journal(path).fault
    assert fault is not None
    assert fault.problem is Problem.DROPPED


def test_a_segment_name_that_is_taken_is_never_overwritten(path: Path) -> None:
    """Rotation refuses to replace a file; the journal is not healthy until it is moved away, then goes on."""
    journal = Journal(AuditConfig(path=str(path), fsync="never", max_size_bytes=4096))
    squatter = path.with_name(f"audit.jsonl.{1:016d}")
    squatter.write_text("mine")
    with pytest.raises(AuditError, match="exists already"):
        for number in range(30):
            journal.begin(_record(number))
    assert squatter.read_text() == "mine"
    squatter.unlink()
    assert journal.flush()
    journal.close()
    assert verify_journal(path).fault is None


def test_a_file_moved_away_is_noticed_before_the_next_write(journal: Journal, path: Path) -> None:
    """Writing goes on in a new file at the path, which says what is missing there."""
    journal.begin(_record(1))
    path.rename(path.with_name("stolen"))
    journal.begin(_record(2))
    gap = _gaps(path)[0]
    assert (gap.cause, gap.from_seq, gap.to_seq, gap.lost) == (GapCause.PATH_REPLACED, 1, 1, 1)
    assert [line.seq for line in _lines(path)] == [2, 3]
    report = verify_journal(path)
    assert report.fault is None
    assert len(report.losses) == 1


def test_a_file_cut_while_open_is_noticed(journal: Journal, path: Path) -> None:
    """`: > audit.jsonl` on a live journal leaves a record of what is gone."""
    for number in range(3):
        journal.begin(_record(number))
    os.truncate(path, 0)
    journal.begin(_record(9))
    assert [(gap.cause, gap.lost) for gap in _gaps(path)] == [(GapCause.PATH_REPLACED, 3)]
    assert verify_journal(path).fault is None


def test_a_line_from_someone_else_is_noticed(journal: Journal, path: Path) -> None:
    """A file that another program wrote to is closed as it is; verify names the foreign line."""
    journal.begin(_record(1))
    with path.open("ab") as file:
        file.write(b'{"seq":2}\n')
    journal.begin(_record(2))
    first = decode_line(path.read_bytes().splitlines(keepends=True)[0])
    assert first.gap is not None
    assert first.gap.cause is GapCause.CHAIN_BROKEN
    fault = verify_journal(path).fault
    assert fault is not None
    assert (fault.line, fault.problem) == (2, Problem.EDITED)
    # The broken segment aside, the rest is a chain of its own.
    assert verify_journal(path, partial=True).fault == fault
    finished_segments(path)[0].rename(path.with_name("evidence"))
    assert verify_journal(path, partial=True).fault is None


def test_a_folder_that_is_gone_fails_closed_and_comes_back(journal: Journal, path: Path) -> None:
    """Without its folder nothing begins; when it is back, the journal goes on and says what is missing."""
    journal.begin(_record(1))
    path.parent.rename(path.parent.with_name("away"))
    with pytest.raises(AuditError):
        journal.begin(_record(2))
    journal.append(_record(3))
    assert not journal.healthy
    path.parent.mkdir()
    assert journal.flush()
    assert repr(journal).endswith("healthy>")
    assert [line.gap.cause if line.gap else line.id for line in _lines(path)] == [
        GapCause.PATH_REPLACED,
        "r-3",
        GapCause.WRITE_FAILED,
    ]
    assert verify_journal(path).fault is None


def test_a_head_that_is_deleted_is_made_again(journal: Journal, path: Path) -> None:
    """Deleting the head of a live journal does not blind it."""
    journal.begin(_record(1))
    path.with_name("audit.jsonl.head").unlink()
    journal.begin(_record(2))
    report = verify_journal(path)
    assert (report.fault, report.last_seq) == (None, 2)


def test_a_head_that_is_cut_does_not_kill_the_gateway(journal: Journal, path: Path) -> None:
    """A mapped file that shrank would fault on the next update; it is seen before."""
    journal.begin(_record(1))
    os.truncate(path.with_name("audit.jsonl.head"), 0)
    journal.begin(_record(2))
    assert verify_journal(path).fault is None


def test_start_records_a_torn_line(path: Path) -> None:
    """What a crash left half-written is set aside as it was, with its hash in the journal, and the chain goes on."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    journal.begin(_record(1))
    journal.close()
    torn = b'{"seq":2,"prev":"half'
    with path.open("ab") as file:
        file.write(torn)
    Journal(AuditConfig(path=str(path), fsync="never")).close()
    gap = _gaps(path)[0]
    assert (gap.cause, gap.aside_bytes, gap.aside_hash) == (
        GapCause.TORN_LINE, len(torn), sha256(torn).hexdigest(),
    )  # fmt: skip
    assert path.with_name(gap.aside).read_bytes() == torn
    assert verify_journal(path).fault is None


def test_start_records_a_missing_tail(path: Path) -> None:
    """A tail cut off while nobody wrote is on record from the next start on; verify calls it a loss."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    for number in range(4):
        journal.begin(_record(number))
    journal.close()
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:2])
    path.write_bytes(kept)
    Journal(AuditConfig(path=str(path), fsync="never")).close()
    gap = _gaps(path)[0]
    assert (gap.cause, gap.from_seq, gap.to_seq, gap.lost) == (GapCause.TAIL_MISSING, 3, 4, 2)
    report = verify_journal(path)
    assert report.fault is None
    assert len(report.losses) == 1


@pytest.mark.parametrize("spoil", [Path.unlink, lambda head: head.write_bytes(b"x" * 4096)])
def test_start_records_a_head_that_is_gone(path: Path, spoil: Callable[[Path], object]) -> None:
    """Without a head a cut tail could not be seen, and the journal says so."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    journal.begin(_record(1))
    journal.close()
    spoil(path.with_name("audit.jsonl.head"))
    report = verify_journal(path)
    assert report.fault is not None
    assert report.fault.problem is Problem.HEAD_MISSING
    Journal(AuditConfig(path=str(path), fsync="never")).close()
    assert [gap.cause for gap in _gaps(path)] == [GapCause.HEAD_MISSING]


def test_start_keeps_an_edited_file_as_it_is(path: Path) -> None:
    """A chain that does not verify is evidence: closed, never repaired, and the new file says why."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    for number in range(4):
        journal.begin(_record(number))
    journal.close()
    edited = path.read_bytes().replace(b'"/1"', b'"/x"')
    path.write_bytes(edited)
    Journal(AuditConfig(path=str(path), fsync="never")).close()
    assert finished_segments(path)[0].read_bytes() == edited
    assert _gaps(path)[0].cause is GapCause.CHAIN_BROKEN
    fault = verify_journal(path).fault
    assert fault is not None
    assert (fault.file, fault.line) == (finished_segments(path)[0].name, 2)


@pytest.mark.parametrize("line", [0, 2, 3])
def test_an_edit_stays_named_after_the_gateway_went_on(path: Path, line: int) -> None:
    """A restart does not bless what was done to the file: the first, a middle and the last line."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    for number in range(4):
        journal.begin(_record(number))
    journal.close()
    path.write_bytes(path.read_bytes().replace(b'"/%d"' % line, b'"/x"'))
    for _ in range(2):
        journal = Journal(AuditConfig(path=str(path), fsync="never"))
        journal.begin(_record(9))
        journal.close()
    fault = verify_journal(path).fault
    assert fault is not None
    assert (fault.file, fault.line, fault.problem) == (
        finished_segments(path)[0].name, line + 1, Problem.EDITED,
    )  # fmt: skip


def test_requests_that_a_crash_cut_off_get_their_terminal_record(path: Path) -> None:
    """Begun, and no end on record: the next start ends them, once."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    journal.begin(_record(1, AuditKind.BEGIN))
    journal.begin(_record(2, AuditKind.BEGIN))
    journal.append(_record(1))
    journal.flush()
    # A crash: the files stay as they are, the lock goes.
    journal._release()
    for _ in range(2):
        Journal(AuditConfig(path=str(path), fsync="never")).close()
    ended = [line for line in _lines(path) if line.outcome is Outcome.ABORTED]
    assert [(line.id, line.kind, line.reason) for line in ended] == [("r-2", "request", Reason.INTERNAL_ERROR)]
    assert verify_journal(path).fault is None


def test_a_record_that_is_not_utf8_is_written_all_the_same(journal: Journal, path: Path) -> None:
    """Odd text from a guest never costs a record, nor blocks those after it."""
    odd = AuditRecord(1.0, AuditKind.REQUEST, id="r-1", request=AuditRequest(method="G\udcffT"))
    journal.begin(odd)
    journal.begin(_record(2))
    assert [line.id for line in _lines(path)] == ["r-1", "r-2"]


@pytest.mark.parametrize("mode", ["never", "interval", "always"])
def test_every_fsync_mode_writes_the_same(path: Path, mode: str) -> None:
    """When data is forced to the disk changes nothing of what is written."""
    config = msgspec.convert({"path": str(path), "fsync": mode, "max_size_bytes": 4096}, AuditConfig)
    journal = Journal(config)
    for number in range(20):
        journal.begin(_record(number))
    journal.close()
    assert [line.seq for line in _lines(path)] == list(range(1, 21))


def test_a_failed_sync_is_an_outage(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `fsync: always` a record that can't be forced to the disk did not begin."""
    always = Journal(AuditConfig(path=str(path.with_name("b.jsonl")), fsync="always"))

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(AuditError, match="Input/output error"):
            always.begin(_record(1, AuditKind.BEGIN))
        assert not always.healthy
    assert always.flush()
    always.close()


def test_stats_and_repr_tell_where_it_is(journal: Journal, path: Path) -> None:
    """What a dashboard or a test wants to know is there without reading the file."""
    journal.begin(_record(1))
    journal.append(_record(2))
    stats = journal.stats
    assert (stats.seq, stats.records, stats.batches, stats.pending, stats.lost) == (1, 1, 1, 1, 0)
    assert stats.bytes == path.stat().st_size
    assert repr(journal) == "<Journal audit.jsonl at 1, 1 pending, healthy>"
    assert all_files(path) == [path]
