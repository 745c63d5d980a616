"""The syncer: data is forced out within the interval, and no descriptor is closed under it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from seamgate.audit.syncer import Syncer


def _open(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY)


def test_it_syncs_after_a_write_and_closes_what_is_retired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync for all that was written within the interval; a retired descriptor is synced, then closed."""
    synced: list[int] = []
    done = threading.Event()
    really = os.fdatasync

    def sync(fd: int) -> None:
        really(fd)
        synced.append(fd)
        done.set()

    monkeypatch.setattr(os, "fdatasync", sync)
    syncer = Syncer(0.001)
    fd = _open(tmp_path / "a")
    syncer.touch(fd)
    assert done.wait(40)
    done.clear()
    syncer.retire(fd)
    assert done.wait(40)
    syncer.close()
    assert synced == [fd, fd]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_closing_syncs_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end does not wait for the interval, nor forget what it owes."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    syncer = Syncer(3600)
    first, second = _open(tmp_path / "a"), _open(tmp_path / "b")
    syncer.retire(first)
    syncer.touch(second)
    syncer.close()
    assert synced == [first, second]
    os.close(second)


def test_an_error_is_kept_for_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails to sync is told once."""

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    syncer = Syncer(3600)
    syncer.retire(_open(tmp_path / "a"))
    syncer.close()
    error = syncer.take_error()
    assert error is not None
    assert error.errno == errno.EIO
    assert syncer.take_error() is None


def test_without_work_there_is_no_thread() -> None:
    """A gateway that wrote nothing pays nothing."""
    syncer = Syncer(1)
    syncer.close()
    assert syncer.take_error() is None
