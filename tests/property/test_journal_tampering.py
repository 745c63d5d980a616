"""Whatever one does to the lines of a journal is found, and the right line is named."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.reading import verify_journal
from seamgate.audit.record import AuditGuest, AuditKind, AuditRecord, AuditRequest, Decision, Outcome
from seamgate.audit.segments import all_files
from seamgate.audit.verify import Fault, Problem
from seamgate.errors import Reason


def _record(number: int) -> AuditRecord:
    return AuditRecord(
        1_800_000_000.0 + number,
        AuditKind.REQUEST,
        id=f"r-{number}",
        guest=AuditGuest("g-1", {"team": "a"}),
        request=AuditRequest("GET", "https", "api.example.com", 443, f"/{number}"),
        verdict=Decision.ALLOW,
        reason=Reason.ALLOWED,
        status=200,
        outcome=Outcome.COMPLETE,
    )


def _write(path: Path, records: int, **options: int) -> None:
    journal = Journal(AuditConfig(path=str(path), fsync="never", **options))  # type: ignore[arg-type]
    for number in range(records):
        journal.append(_record(number))
        if number % 3 == 0:
            journal.flush()
    journal.close()


class Original(NamedTuple):
    """A journal to spoil copies of: one file, several segments, or several with the oldest deleted."""

    folder: Path
    name: str


@pytest.fixture(scope="module", params=["single", "segments", "pruned"])
def original(request: pytest.FixtureRequest) -> Iterator[Original]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit.jsonl"
        if request.param == "single":
            _write(path, 9)
        elif request.param == "segments":
            _write(path, 40, max_size_bytes=4096)
        else:
            _write(path, 70, max_size_bytes=4096, keep=2, keep_min_age_s=0)
        assert verify_journal(path).fault is None
        yield Original(Path(folder), path.name)


class Copy:
    """A copy of the journal as one list of (file, line number, line)."""

    def __init__(self, original: Original, folder: str) -> None:
        self.path = Path(folder) / original.name
        shutil.copytree(original.folder, folder, dirs_exist_ok=True)
        self.files = all_files(self.path)
        self.lines = [
            (file, number, line)
            for file in self.files
            for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1)
        ]

    def store(self, lines: list[tuple[Path, int, bytes]]) -> None:
        for file in self.files:
            file.write_bytes(b"".join(line for where, _, line in lines if where == file))

    def fault(self) -> Fault:
        report = verify_journal(self.path)
        assert report.fault is not None, "nothing was found"
        return report.fault

    def place(self, index: int) -> tuple[str, int]:
        file, number, _ = self.lines[index]
        return file.name, number


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_single_byte_edit_is_found_and_its_line_is_named(original: Original, data: st.DataObject) -> None:
    """One changed byte anywhere: that line is the first wrong one."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(original, folder)
        index = data.draw(st.integers(0, len(copy.lines) - 1), label="line")
        file, number, line = copy.lines[index]
        offset = data.draw(st.integers(0, len(line) - 1), label="byte")
        other = data.draw(st.integers(0, 255).filter(lambda value: value != line[offset]), label="value")
        lines = list(copy.lines)
        lines[index] = (file, number, line[:offset] + bytes([other]) + line[offset + 1 :])
        copy.store(lines)
        fault = copy.fault()
        assert (fault.file, fault.line) == copy.place(index), fault
        assert fault.problem in (Problem.EDITED, Problem.TRUNCATED), fault


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_deletion_is_found_where_it_was(original: Original, data: st.DataObject) -> None:
    """Lines taken out: the line that now stands in their place is named, or the last one if they were the end."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(original, folder)
        start = data.draw(st.integers(0, len(copy.lines) - 1), label="start")
        count = data.draw(st.integers(1, min(5, len(copy.lines) - start)), label="count")
        copy.store(copy.lines[:start] + copy.lines[start + count :])
        fault = copy.fault()
        if start + count == len(copy.lines):
            assert fault.problem is Problem.TRUNCATED
            assert fault.line == (copy.place(start - 1)[1] if start else 0)
            return
        # Within its file the line moved up by what was taken out before it.
        file, number, _ = copy.lines[start + count]
        gone = sum(1 for where, _, _ in copy.lines[start : start + count] if where == file)
        assert (fault.file, fault.line) == (file.name, number - gone), fault
        # A segment whose name promises another first line was changed at its beginning.
        assert fault.problem in (Problem.DROPPED, Problem.EDITED), fault


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_swap_is_found_at_the_earlier_place(original: Original, data: st.DataObject) -> None:
    """Two lines exchanged: the earlier of the two places is named."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(original, folder)
        first = data.draw(st.integers(0, len(copy.lines) - 2), label="first")
        second = data.draw(st.integers(first + 1, len(copy.lines) - 1), label="second")
        lines = list(copy.lines)
        (file_a, number_a, line_a), (file_b, number_b, line_b) = lines[first], lines[second]
        lines[first], lines[second] = (file_a, number_a, line_b), (file_b, number_b, line_a)
        copy.store(lines)
        fault = copy.fault()
        assert (fault.file, fault.line) == copy.place(first), fault
        assert fault.problem in (Problem.REORDERED, Problem.EDITED), fault


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_truncation_is_found_at_the_end(original: Original, data: st.DataObject) -> None:
    """Bytes cut off the end: the last line that is left, whole or not, is named."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(original, folder)
        active = copy.files[-1]
        content = active.read_bytes()
        kept = data.draw(st.integers(0, len(content) - 1), label="bytes kept")
        active.write_bytes(content[:kept])
        fault = copy.fault()
        left = content[:kept].splitlines(keepends=True)
        assert fault.problem is Problem.TRUNCATED
        if left:
            assert (fault.file, fault.line) == (active.name, len(left)), fault


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_repetition_is_found_where_it_stands(original: Original, data: st.DataObject) -> None:
    """A line put in again after some line: the copy is named."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(original, folder)
        source = data.draw(st.integers(0, len(copy.lines) - 1), label="source")
        after = data.draw(st.integers(source, len(copy.lines) - 1), label="after")
        file, number, _ = copy.lines[after]
        lines = list(copy.lines)
        lines.insert(after + 1, (file, number, copy.lines[source][2]))
        copy.store(lines)
        fault = copy.fault()
        assert (fault.file, fault.line) == (file.name, number + 1), fault
        assert fault.problem in (Problem.DUPLICATED, Problem.INSERTED), fault
