"""Whether a journal could be written is told without writing one, and what is in the way by name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.writable import check_writable
from seamgate.errors import AuditError


def test_what_a_start_would_make_is_not_made(tmp_path: Path) -> None:
    """Folders that are not there are no problem, and are not there afterwards."""
    check_writable(tmp_path / "a" / "b" / "audit.jsonl")
    check_writable(tmp_path / "audit.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """A check beside a running gateway finds no fault and changes no byte and no lock."""
    journal = Journal(AuditConfig(path=str(tmp_path / "audit.jsonl")))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    check_writable(journal.path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert journal.healthy
    journal.close()
    check_writable(journal.path)


FAULTS: dict[str, Callable[[Path], object]] = {
    "a file is in the way": lambda folder: (folder / "audit").write_text("x"),
    "the journal is a folder": lambda folder: (folder / "audit" / "audit.jsonl").mkdir(parents=True),
    "the journal is a link": lambda folder: _linked(folder / "audit" / "audit.jsonl"),
    "the journal is a pipe": lambda folder: _piped(folder / "audit" / "audit.jsonl"),
    "the head is a folder": lambda folder: (folder / "audit" / "audit.jsonl.head").mkdir(parents=True),
    "a link that leads nowhere": lambda folder: (folder / "audit").symlink_to("elsewhere"),
    "a loop of links": lambda folder: (folder / "audit").symlink_to("audit"),
}


def _linked(path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to("elsewhere")


def _piped(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_in_the_way_is_told(what: str, tmp_path: Path) -> None:
    """Where, why, and what to do."""
    FAULTS[what](tmp_path)
    with pytest.raises(AuditError, match=r"the audit log \S+ can't be written: .*; .* or name another `audit: path:`"):
        check_writable(tmp_path / "audit" / "audit.jsonl")


def test_a_folder_that_takes_no_file_is_told() -> None:
    """Whoever asks, root too: nobody makes a file in /proc."""
    with pytest.raises(AuditError, match="nothing can be written to /proc"):
        check_writable(Path("/proc/none/audit.jsonl"))


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for a record is asked for, not only a name."""

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("seamgate.audit.writable.os.write", full)
    with pytest.raises(AuditError, match="No space left on device; make room"):
        check_writable(tmp_path / "audit.jsonl")
    assert list(tmp_path.iterdir()) == []
