"""The journal: the one writer of the audit log, a hash-chained file of JSON lines.

The gateway calls `begin` before a request with a credential leaves (on disk when it returns, or `AuditError`) and
`append` when an exchange ended (in memory until the next `begin` or `flush`). What it promises:

- A line is whole or not there. A write that was cut short is taken back to the last whole line.
- Nothing appended is lost while there is memory for it; what is lost is counted, and a `gap` record says so.
- `healthy` is False from a failed write until one succeeds; the gateway then refuses requests with
  `audit_unavailable`.
- Whatever happens to the file from outside (moved, cut, appended to, its folder gone) is seen before the next write,
  and recorded as soon as writing works again.

How it is safe: the head (`seamgate.audit.head`) is told before a write how far it will go, and after it how far it
came. Not thread-safe: everything runs on the gateway's loop. Blocks only for a write to the page cache, except with
`fsync: always`. Never touches a socket.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from seamgate.audit.config import AuditConfig
from seamgate.audit.head import Head, HeadState, Mark
from seamgate.audit.journal_state import Counters, JournalStats, Outage
from seamgate.audit.line import LineEncoder, chain, hash_line, read_link
from seamgate.audit.record import AuditGap, AuditKind, AuditRecord, Decision, GapCause, Outcome
from seamgate.audit.recovery import Findings, began_at, examine, unfinished_requests
from seamgate.audit.sealed import Entry, Sealed
from seamgate.audit.segments import finished_segments, segment_path
from seamgate.audit.syncer import Syncer
from seamgate.audit.thrift import Thrift
from seamgate.errors import AuditError, Reason

log = structlog.get_logger("seamgate.audit")

# One write call: large enough to cost nothing per line, small enough to be tried again often while the disk is full.
_BATCH_RECORDS: Final = 256
_DENIED: Final = Decision.DENY
_Mark: Final = Mark
_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Journal:
    """Writes the audit log of one gateway. See the module's text for what it promises."""

    def __init__(
        self,
        config: AuditConfig,
        *,
        clock: Callable[[], float] = time.time,
        on_pending: Callable[[], None] | None = None,
        on_written: Callable[[list[Entry]], None] | None = None,
    ) -> None:
        """Open the journal, and record whatever is odd about it.

        Args:
            config: where and how.
            clock: Unix time in seconds.
            on_pending: called when records begin to wait, and after a failed write: have `flush` called soon.
            on_written: called with each batch after it is in the file. Must not raise.

        Raises:
            AuditError: it can't be opened or written, or another gateway writes it.
        """
        self._config = config
        self._path: Path = config.file
        self._path_text = os.fspath(self._path)
        self._clock = clock
        self._on_pending = on_pending or _ignore
        self._on_written = on_written
        self._encoder = LineEncoder()
        self._thrift = Thrift(config.denials_per_minute)
        self._syncer = Syncer(config.fsync_interval_s) if config.fsync == "interval" else None
        self._counters = Counters()
        self._closed = False
        # The mutable state. `_mark` is the end of what is surely written; records move from `_pending` to the file
        # to `_fresh` (written, not yet announced). `_fd` is -1 and `_head` None while the file is not open.
        self._mark = Mark()
        self._pending: list[Entry] = []
        self._fresh: list[Entry] = []
        self._doomed: list[Path] = []
        self._outage: Outage | None = None
        self._fd = -1
        self._inode = (0, 0)
        self._head: Head | None = None
        self._first_seq = 0
        self._started_at = 0.0
        self._error = ""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._open(running=False)
            while self._pending:
                self._write_batch()
        except OSError as error:
            self._release()
            raise AuditError(f"the journal {self._path} can't be opened: {_why(error)}") from error
        except AuditError:
            self._release()
            raise

    def __repr__(self) -> str:
        state = "healthy" if self.healthy else f"failing: {self._error}"
        return f"<Journal {self._path.name} at {self._mark.seq}, {len(self._pending)} pending, {state}>"

    @property
    def path(self) -> Path:
        """The active file."""
        return self._path

    @property
    def healthy(self) -> bool:
        """Whether the last write succeeded. While not, no request may begin."""
        return self._outage is None and not self._closed

    @property
    def stats(self) -> JournalStats:
        """What happened so far."""
        count = self._counters
        return JournalStats(
            self._mark.seq, self._mark.hash, count.records, count.bytes, count.batches, len(self._pending), count.lost,
            count.failures, count.rotations, self._error,
        )  # fmt: skip

    def begin(self, record: AuditRecord) -> None:
        """Write the record ahead of what it is about, with all that waits before it.

        Raises:
            AuditError: it is not in the file. The request must not leave.
        """
        self.begin_all([record])

    def begin_all(self, records: Sequence[Entry]) -> None:
        """Like `begin`, for several at once: all of them are in the file, or none of their requests may leave.

        Raises:
            AuditError: one is not in the file.
        """
        self._check_open()
        self._pending += records
        if self.flush():
            return
        unwritten = {id(record) for record in records}
        self._pending = [record for record in self._pending if id(record) not in unwritten]
        raise AuditError(f"the audit log can't be written: {self._error}")

    def append(self, record: AuditRecord) -> None:
        """Take a terminal record; it is written with the next `begin` or `flush`.

        Raises:
            AuditError: the journal is closed.
        """
        self._check_open()
        if record.verdict is _DENIED:
            record = self._thrift.shorten(record)
        self._keep(record)

    def append_all(self, records: list[Sealed]) -> None:
        """Like `append`, for several that workers have written up to their place in the chain.

        Raises:
            AuditError: the journal is closed.
        """
        self._check_open()
        for record in records:
            self._keep(record)

    def _keep(self, record: Entry) -> None:
        pending = self._pending
        if len(pending) >= self._config.max_pending and not (self.healthy and self.flush()):
            self._lose()
            return
        pending.append(record)
        if len(pending) == 1:
            self._on_pending()
        elif len(pending) == _BATCH_RECORDS and self._outage is None:
            self.flush()

    def flush(self) -> bool:
        """Write all that waits. Return whether it is in the file; if not, `on_pending` was called to try again."""
        try:
            self._drain()
        except (OSError, AuditError) as error:
            self._fail(error)
        fresh, self._fresh = self._fresh, []
        if fresh and self._on_written is not None:
            self._on_written(fresh)
        if self._outage is None:
            return True
        self._on_pending()
        return False

    def close(self) -> None:
        """Write what waits, and let go of the file. Closing twice is fine.

        Raises:
            AuditError: records that waited could not be written and are lost.
        """
        if self._closed:
            return
        written = self.flush()
        lost = len(self._pending) + (self._outage.lost if self._outage else 0)
        self._closed = True
        if self._head is not None:
            self._head.update(self._mark, self._mark, clean=written)
        self._release()
        if not written:
            raise AuditError(f"{lost} audit records could not be written and are lost: {self._error}")

    def _check_open(self) -> None:
        if self._closed:
            raise AuditError("the audit log is closed")

    # Writing.

    def _drain(self) -> None:
        """Write until nothing waits; at last the record of an outage that is over."""
        while True:
            while self._pending:
                self._write_batch()
            if self._outage is None:
                return
            if self._outage.reported:
                self._outage = None
                self._error = ""
                return
            self._pending.append(self._report(self._outage))

    def _write_batch(self) -> None:
        """Write as many waiting records as one call and one segment take.

        Raises:
            OSError, AuditError: not all of them are in the file; those that are no longer wait.
        """
        head = self._ready()
        data, ends, mark = self._build()
        written = len(ends)
        head.update(self._mark, mark)
        done, error = _write_all(self._fd, data)
        if error is not None:
            written, mark = self._whole(data, ends, done)
        self._commit(written, mark)
        if error is not None:
            # If this fails too, the next write finds the file too long and sets the rest aside.
            os.ftruncate(self._fd, mark.size_bytes)
            head.update(mark, mark)
            raise error
        head.update(mark, mark)
        self._sync()
        self._delete_doomed()

    def _build(self) -> tuple[bytes, list[int], Mark]:
        """Return lines of waiting records, at least one, and not more than the segment should take.

        Returns:
            The lines, where in them each ends, and the mark after them.
        """
        before, encode = self._mark, self._encoder.tail
        tails = [encode(record) for record in self._pending[:_BATCH_RECORDS]]
        data, ends, digest = chain(before.seq + 1, before.hash, tails, self._config.max_size_bytes - before.size_bytes)
        return data, ends, _Mark(before.seq + len(ends), before.size_bytes + len(data), digest)

    def _whole(self, data: bytes, ends: list[int], done: int) -> tuple[int, Mark]:
        """Return how many lines are whole in the first `done` bytes that were written, and the mark after them."""
        before = self._mark
        written = sum(1 for end in ends if end <= done)
        if not written:
            return 0, before
        end = ends[written - 1]
        start = ends[written - 2] if written > 1 else 0
        return written, _Mark(before.seq + written, before.size_bytes + end, hash_line(data[start:end]))

    def _commit(self, written: int, mark: Mark) -> None:
        if not written:
            return
        self._fresh += self._pending[:written]
        del self._pending[:written]
        self._counters.records += written
        self._counters.bytes += mark.size_bytes - self._mark.size_bytes
        self._counters.batches += 1
        self._mark = mark

    def _sync(self) -> None:
        if self._syncer is not None:
            self._syncer.touch(self._fd)
        elif self._config.fsync == "always":
            os.fdatasync(self._fd)

    # Failing.

    def _fail(self, error: OSError | AuditError) -> None:
        self._counters.failures += 1
        self._error = _why(error)
        if self._outage is None:
            self._outage = Outage(self._clock(), self._error)

    def _lose(self) -> None:
        self._counters.lost += 1
        outage = self._outage
        if outage is None or outage.reported:
            outage = self._outage = Outage(outage.since if outage else self._clock(), self._error)
        outage.lost += 1

    def _report(self, outage: Outage) -> AuditRecord:
        outage.reported = True
        now = self._clock()
        lost = f"{outage.lost} records did not fit into memory" if outage.lost else "no record is lost"
        detail = f"writing failed for {max(0.0, now - outage.since):.3f} s: {outage.error}; {lost}"
        gap = AuditGap(GapCause.WRITE_FAILED, detail=detail, lost=outage.lost)
        return AuditRecord(now, AuditKind.GAP, gap=gap)

    # The files.

    def _ready(self) -> Head:
        """Make sure that the file is open, still ours, and not full."""
        if self._syncer is not None and (error := self._syncer.take_error()) is not None:
            raise error
        if self._head is None or not self._in_place(self._head):
            self._reopen()
        if self._rotation_due():
            self._rotate()
        if self._head is None:
            raise AuditError(f"the journal {self._path} is not open")
        return self._head

    def _in_place(self, head: Head) -> bool:
        """Return whether the path still leads to our file, with the size that we gave it, and the head to ours."""
        try:
            there = os.stat(self._path_text, follow_symlinks=False)
        except OSError:
            return False
        return (
            (there.st_dev, there.st_ino) == self._inode
            and there.st_size == self._mark.size_bytes
            and head.intact()
        )  # fmt: skip

    def _reopen(self) -> None:
        self._let_go()
        self._open(running=True)

    def _open(self, *, running: bool) -> None:
        """Lock, look, record what is odd, and be ready to append.

        Precondition: nothing is open.
        """
        head = Head(self._path)
        try:
            known = self._known_end(head.found, running=running)
            findings = examine(self._path, known, head_existed=head.existed, running=running)
            clean = running or (known is not None and known.clean)
            unfinished = [] if clean else unfinished_requests(self._path)
            self._adopt(head, findings)
        except BaseException:
            head.close()
            raise
        self._head = head
        now = self._clock()
        odd = [AuditRecord(now, AuditKind.GAP, gap=gap) for gap in findings.gaps]
        # Before all that waits: a gap that explains a break must be the line right after it.
        waiting = [record for record in self._pending if not _is_break(record)]
        self._pending[:] = odd + [_ended(record, now) for record in unfinished] + waiting

    def _known_end(self, found: HeadState | None, *, running: bool) -> HeadState | None:
        """Return the farthest end that is known: a running journal remembers its own."""
        if not running or (found is not None and found.written.seq > self._mark.seq):
            return found
        return HeadState(self._mark, self._mark)

    def _adopt(self, head: Head, findings: Findings) -> None:
        """Bring the active file to where a line can be appended."""
        if findings.torn and not findings.broken:
            self._set_aside(findings)
        if findings.broken:
            first_seq = next(gap.from_seq for gap in findings.gaps if gap.cause is GapCause.CHAIN_BROKEN)
            _rename_new(self._path, segment_path(self._path, first_seq))
            findings = Findings(end=Mark(findings.end.seq, 0, findings.end.hash), gaps=findings.gaps)
        self._fd = os.open(self._path, _OPEN_FLAGS, 0o600)
        self._sync_folder()
        if findings.torn:
            os.ftruncate(self._fd, findings.end.size_bytes)
        there = os.fstat(self._fd)
        self._inode = (there.st_dev, there.st_ino)
        self._mark = findings.end
        self._first_seq = findings.first_seq or self._mark.seq + 1
        self._started_at = findings.started_at or self._clock()
        if not findings.gaps:
            # Otherwise the head keeps what it knows until the gaps are written with it.
            head.update(self._mark, self._mark)

    def _set_aside(self, findings: Findings) -> None:
        name = next(gap.aside for gap in findings.gaps if gap.cause is GapCause.TORN_LINE)
        fd = os.open(self._path.with_name(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            _, error = _write_all(fd, findings.torn)
            if error is not None:
                raise error
            os.fsync(fd)
        finally:
            os.close(fd)

    def _rotation_due(self) -> bool:
        size = self._mark.size_bytes
        if not size:
            return False
        after_s = self._config.rotate_after_s
        return size >= self._config.max_size_bytes or (
            after_s is not None and self._clock() - self._started_at >= after_s
        )

    def _rotate(self) -> None:
        """Finish the active file as a segment and begin the next; the chain goes on."""
        _rename_new(self._path, segment_path(self._path, self._first_seq))
        self._retire_fd()
        self._mark = Mark(self._mark.seq, 0, self._mark.hash)
        self._fd = os.open(self._path, _OPEN_FLAGS | os.O_EXCL, 0o600)
        there = os.fstat(self._fd)
        self._inode = (there.st_dev, there.st_ino)
        self._first_seq = self._mark.seq + 1
        self._started_at = self._clock()
        self._counters.rotations += 1
        self._sync_folder()
        self._plan_pruning()

    def _plan_pruning(self) -> None:
        """Choose the old segments beyond `keep`, and record that they go; they go once that is written."""
        segments = finished_segments(self._path)
        beyond = max(0, len(segments) - self._config.keep)
        old = self._old_enough(segments, beyond)
        if old < beyond:
            log.warning(
                "the journal grows: segments beyond keep stay until keep_min_age_s; see who asks so often",
                beyond_keep=beyond - old,
                keep=self._config.keep,
                keep_min_age_s=self._config.keep_min_age_s,
            )
        self._doomed, kept = segments[:old], segments[old:]
        if not self._doomed:
            return
        with kept[0].open("rb") as file:
            link = read_link(file.readline())
        if link is None:
            self._doomed = []
            raise AuditError(f"{kept[0].name} does not begin with a record, so nothing is deleted: run audit verify")
        names = f"{self._doomed[0].name} to {self._doomed[-1].name}" if len(self._doomed) > 1 else self._doomed[0].name
        gap = AuditGap(
            GapCause.PRUNED,
            detail=f"deleted {names}: keep is {self._config.keep}",
            to_seq=link.seq - 1,
            to_hash=link.prev,
        )
        # Behind gaps that wait: one that explains a break must be the line right after it.
        place = next((i for i, record in enumerate(self._pending) if record.gap is None), len(self._pending))
        self._pending.insert(place, AuditRecord(self._clock(), AuditKind.GAP, gap=gap))

    def _old_enough(self, segments: list[Path], beyond: int) -> int:
        """Return how many of the first so many segments, oldest first, ended long enough ago to go."""
        youngest = self._clock() - self._config.keep_min_age_s
        if not self._config.keep_min_age_s:
            return beyond
        for index in range(beyond):
            # It ended when the one after it began.
            if began_at(segments[index + 1]) > youngest:
                return index
        return beyond

    def _delete_doomed(self) -> None:
        for path in self._doomed:
            path.unlink(missing_ok=True)
        self._doomed = []

    def _sync_folder(self) -> None:
        if self._config.fsync == "never":
            return
        fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _retire_fd(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._syncer is not None:
            self._syncer.retire(fd)
        else:
            os.close(fd)

    def _let_go(self) -> None:
        self._retire_fd()
        if self._head is not None:
            self._head.close()
            self._head = None

    def _release(self) -> None:
        self._let_go()
        if self._syncer is not None:
            self._syncer.close()


def _write_all(fd: int, data: bytes) -> tuple[int, OSError | None]:
    """Write until all is written or it fails; return how much is, and the error. A short write is tried again."""
    done = 0
    rest = memoryview(data)
    while done < len(data):
        try:
            done += os.write(fd, rest[done:])
        except OSError as error:
            return done, error
    return done, None


def _rename_new(source: Path, target: Path) -> None:
    """Rename, but never over another file.

    Raises:
        AuditError: there is one of that name.
    """
    if os.path.lexists(target):
        raise AuditError(f"{target} exists already; it does not belong to this journal: move it away")
    source.rename(target)


def _is_break(record: Entry) -> bool:
    """Whether the record explains a break that was found, and is found anew each time the file is opened."""
    return record.gap is not None and record.gap.cause in (GapCause.PATH_REPLACED, GapCause.TAIL_MISSING)


def _ended(begun: AuditRecord, now: float) -> AuditRecord:
    """Return the terminal record of a request that the gateway's own end cut off."""
    return msgspec.structs.replace(
        begun,
        time=now,
        kind=AuditKind.REQUEST,
        reason=Reason.INTERNAL_ERROR,
        outcome=Outcome.ABORTED,
        message="The gateway ended before the request did; whether it reached the upstream is not known.",
    )


def _why(error: OSError | AuditError) -> str:
    if isinstance(error, AuditError):
        return error.message
    return f"{error.strerror or error} ({error.filename})" if error.filename else error.strerror or str(error)


def _ignore() -> None:
    return None
