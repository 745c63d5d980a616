"""Changes of files, as `reload: watch` notices them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seamgate.config import parse_config
from seamgate.watching import FileWatch, watched_files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that is there."""
    path = tmp_path / "policy.yaml"
    path.write_text("one")
    return path


def test_what_lies_still_has_not_changed(file: Path) -> None:
    """Nothing happens to files that nobody touches, nor to one that never was."""
    watch = FileWatch([str(file), str(file.with_name("absent"))])
    assert [watch.changed() for _ in range(3)] == [False, False, False]


def test_a_change_counts_once_it_lies_still(file: Path) -> None:
    """A look that sees it, and one that sees it again: then it is told, once."""
    watch = FileWatch([str(file)])
    file.write_text("two")
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_a_file_that_is_being_written_is_waited_for(file: Path) -> None:
    """As long as each look finds something else, nothing is told."""
    watch = FileWatch([str(file)])
    for size in range(10, 15):
        file.write_text("x" * size)
        assert not watch.changed()
    assert watch.changed()


def test_a_replaced_file_is_a_change(file: Path) -> None:
    """Also one of the same size and time, and one that comes or goes."""
    watch = FileWatch([str(file)])
    times = file.stat()
    other = file.with_name("other")
    other.write_text("two")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(file)
    assert [watch.changed() for _ in range(2)] == [False, True]
    file.unlink()
    assert [watch.changed() for _ in range(2)] == [False, True]
    file.write_text("two")
    assert [watch.changed() for _ in range(2)] == [False, True]


def test_a_link_that_is_moved_is_a_change(file: Path) -> None:
    """What counts is where a link leads, as with a config map that Kubernetes swaps."""
    other = file.with_name("other")
    other.write_text("two")
    link = file.with_name("link")
    link.symlink_to(file)
    watch = FileWatch([str(link)])
    link.unlink()
    link.symlink_to(other)
    assert [watch.changed() for _ in range(2)] == [False, True]


def test_what_was_taken_is_told_no_more(file: Path) -> None:
    """Who reads the files by itself takes them before; what is written after that is a change."""
    watch = FileWatch([str(file)])
    file.write_text("two")
    watch.take()
    assert [watch.changed() for _ in range(2)] == [False, False]
    file.write_text("three")
    assert [watch.changed() for _ in range(2)] == [False, True]


def test_everything_that_a_reload_reads_is_watched(tmp_path: Path) -> None:
    """The configuration, its policies, roots and client certificates, all by their whole paths."""
    text = """
entries: {proxy: {guest: g}}
guests: {g: {}}
policies: [a.yaml, sub/b.yaml]
upstream_tls:
  trust_store: roots.pem
  origins:
    - {hosts: [x.example], ca: x.pem, client_certificate: {certificate: c.pem, key: k.pem}}
reload: watch
"""
    config = parse_config(text, "seamgate.yaml", base=tmp_path)
    names = ["seamgate.yaml", "a.yaml", "sub/b.yaml", "roots.pem", "x.pem", "c.pem", "k.pem"]
    assert watched_files(tmp_path / "seamgate.yaml", config) == tuple(str(tmp_path / name) for name in names)
