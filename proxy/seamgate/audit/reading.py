"""Reads journals, also while a gateway writes them: all lines in order, the last few, and those to come.

Used by `seamgate audit` and by whoever wants to replay what was recorded. Never writes, never locks out a gateway.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO

import msgspec

from seamgate.audit.head import is_locked, read_head
from seamgate.audit.line import read_link
from seamgate.audit.segments import all_files, finished_segments, first_seq_of
from seamgate.audit.verify import Checker, Placed, Report, judge_anchor, judge_end
from seamgate.errors import AuditError

_TAIL_BYTES = 256 * 1024
"""Among the records in it, one was judged by a policy, or tells a start or a stop."""
_SEGMENT_NAME = re.compile(r".+\.[0-9]{16}\Z")

# A rotation takes well under a millisecond; the files change under us at most once or twice.
_OPEN_TRIES = 20


class _Generation(msgspec.Struct):
    """What of a line is read here."""

    generation: int = 0


def is_segment(path: Path) -> bool:
    """Return whether the name is that of a finished segment, not of a journal."""
    return _SEGMENT_NAME.match(path.name) is not None


def open_files(journal: Path, stack: ExitStack) -> list[IO[bytes]]:
    """Open every file of the journal at once, so that a rotation meanwhile hides none. The stack closes them.

    Raises:
        AuditError: there is no such journal, or a file can't be read.
    """
    for _ in range(_OPEN_TRIES):
        paths = [journal] if is_segment(journal) else all_files(journal)
        if not paths:
            raise AuditError(f"there is no journal at {journal}; give its path, or set SEAMGATE_AUDIT")
        try:
            with ExitStack() as attempt:
                files: list[IO[bytes]] = [attempt.enter_context(path.open("rb")) for path in paths]
                if is_segment(journal) or (all_files(journal) == paths and not _rotated(journal, files)):
                    stack.push(attempt.pop_all())
                    return files
        except FileNotFoundError:
            if is_segment(journal):
                raise AuditError(f"there is no segment {journal}") from None
        except OSError as error:
            raise AuditError(f"the journal can't be read: {error.strerror} ({error.filename})") from None
    raise AuditError(f"the files of {journal} change faster than they can be opened; try again")


def _rotated(journal: Path, files: list[IO[bytes]]) -> bool:
    """Whether the active file that was opened is not the one that stands there now."""
    if Path(files[-1].name) != journal:
        return False
    return os.fstat(files[-1].fileno()).st_ino != journal.stat().st_ino


def placed_lines(files: list[IO[bytes]]) -> Iterator[Placed]:
    """Return all lines with their places, oldest first."""
    for file in files:
        path = Path(file.name)
        promised = first_seq_of(path) if is_segment(path) else 0
        for number, line in enumerate(file, 1):
            yield Placed(path.name, number, promised, line)


def read_lines(journal: Path) -> Iterator[bytes]:
    """Return all whole lines of the journal, oldest first.

    Raises:
        AuditError: there is no such journal, or a file can't be read.
    """
    with ExitStack() as stack:
        for placed in placed_lines(open_files(journal, stack)):
            if placed.line.endswith(b"\n"):
                yield placed.line


def read_lines_after(journal: Path, seq: int) -> Generator[bytes, None, None]:
    """Return all whole lines behind the one with this number, oldest first; segments before it are not read.

    Raises:
        AuditError: there is no such journal, or a file can't be read.
    """
    with ExitStack() as stack:
        files = open_files(journal, stack)
        following = [Path(file.name) for file in files[1:]]
        done = sum(is_segment(path) and first_seq_of(path) <= seq + 1 for path in following)
        for placed in placed_lines(files[done:]):
            link = read_link(placed.line)
            if link is not None and link.seq > seq:
                yield placed.line


def last_generation(journal: Path) -> int:
    """Return the generation that the journal's last records were made under, 0 where none of them tells it.

    Looked for at the end of each file, the newest first. Raises nothing: whether the journal can be used is found out,
    and said, by who opens it.
    """
    try:
        for path in reversed(all_files(journal)):
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                lines = file.read(_TAIL_BYTES).splitlines()
            found = next((number for line in reversed(lines) if (number := _generation_of(line))), 0)
            if found:
                return found
    except OSError:
        pass
    return 0


def _generation_of(line: bytes) -> int:
    try:
        return max(0, msgspec.json.decode(line, type=_Generation).generation)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0  # cut, or not ours


def size_bytes(journal: Path) -> int:
    """Return the size of all files of the journal."""
    paths = [journal] if is_segment(journal) else all_files(journal)
    return sum(path.stat().st_size for path in paths if path.exists())


def verify_journal(
    journal: Path,
    *,
    expect_hash: str = "",
    partial: bool = False,
    use_head: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Return whether this journal is whole, and if not, the first wrong line.

    Args:
        journal: the active file, or one finished segment, which is then judged by itself.
        expect_hash: a hash that some line must have: an anchor kept elsewhere. "" for none.
        partial: the chain may begin at any line: older segments are kept elsewhere.
        use_head: hold the end against the head file.
        on_progress: called now and then with the bytes that were read since the last call.

    Raises:
        AuditError: there is no such journal, or a file can't be read.
    """
    alone = is_segment(journal)
    use_head = use_head and not alone
    try:
        live = use_head and is_locked(journal)
        before = read_head(journal) if use_head else None
        checker = Checker(
            head=before.written if before else None, expect_hash=expect_hash, partial=partial or alone
        )  # fmt: skip
        with ExitStack() as stack:
            report = checker.run(placed_lines(open_files(journal, stack)), on_progress)
        if use_head:
            judge_end(checker, before, read_head(journal), live=live)
        checker.judge_beginning()
    except OSError as error:
        raise AuditError(f"the journal can't be read: {error.strerror} ({error.filename})") from None
    if live:
        report.notes.append("a gateway is writing this journal; what it wrote meanwhile is not judged")
    if not use_head:
        report.notes.append("the end was not held against a head file: lines may have been cut off there")
    return judge_anchor(report, expect_hash)


def last_lines(journal: Path, count: int) -> list[bytes]:
    """Return the last whole lines, oldest first.

    Raises:
        AuditError: there is no such journal, or a file can't be read.
    """
    with ExitStack() as stack:
        files = open_files(journal, stack)
        found: deque[bytes] = deque()
        for file in reversed(files):
            newest = deque((line for line in file if line.endswith(b"\n")), maxlen=count - len(found))
            found.extendleft(reversed(newest))
            if len(found) >= count:
                break
        return list(found)


class Follower:
    """Gives the lines that are written after some line, over rotations."""

    def __init__(self, journal: Path, after_seq: int) -> None:
        """Begin behind the line with this number; 0 begins at the oldest line."""
        self._journal = journal
        self._seq = after_seq
        self._file: IO[bytes] | None = None
        self._rest = b""

    def poll(self) -> list[bytes]:
        """Return the whole lines that have come since the last call.

        Raises:
            OSError: a file can't be read.
        """
        lines: list[bytes] = []
        if self._file is not None:
            lines += self._read(self._file)
            if not self._moved(self._file):
                return self._unseen(lines)
            lines += self._read(self._file)
            self.close()
        # The active file first, then the segments: a rotation in between shows lines twice, and none never.
        try:
            self._file = self._journal.open("rb")
        except FileNotFoundError:
            self._file = None
        for segment in self._newer_segments():
            lines += _lines_of_segment(segment)
        if self._file is not None:
            lines += self._read(self._file)
        return self._unseen(lines)

    def _newer_segments(self) -> list[Path]:
        """The segments that may hold lines after ours: all from the last one that begins at or before it."""
        segments = finished_segments(self._journal)
        older = [path for path in segments if first_seq_of(path) <= self._seq + 1]
        return [*older[-1:], *segments[len(older) :]]

    def follow(self, *, pause_s: float = 0.25, pause: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
        """Return lines as they come, for ever."""
        with closing(self):
            while True:
                yield from self.poll()
                pause(pause_s)

    def close(self) -> None:
        """Let go of the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._rest = b""

    def _read(self, file: IO[bytes]) -> list[bytes]:
        data = self._rest + file.read()
        whole, feed, self._rest = data.rpartition(b"\n")
        return (whole + feed).splitlines(keepends=True) if feed else []

    def _moved(self, file: IO[bytes]) -> bool:
        try:
            return os.fstat(file.fileno()).st_ino != self._journal.stat().st_ino
        except FileNotFoundError:
            return True

    def _unseen(self, lines: list[bytes]) -> list[bytes]:
        fresh = []
        for line in lines:
            link = read_link(line)
            if link is not None and link.seq > self._seq:
                self._seq = link.seq
                fresh.append(line)
        return fresh


def _lines_of_segment(segment: Path) -> list[bytes]:
    try:
        content = segment.read_bytes()
    except FileNotFoundError:
        # Deleted by retention since it was listed: this reader is too slow for it.
        return []
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
