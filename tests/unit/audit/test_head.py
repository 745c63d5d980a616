"""The head: two slots, a lock, and no state in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.audit.head import SIZE_BYTES, Head, HeadState, Mark, head_path, is_locked, parse_head, read_head
from seamgate.errors import AuditError

ONE, TWO = Mark(1, 100, "ab" * 32), Mark(2, 200, "cd" * 32)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_a_head_says_what_it_was_told(journal: Path) -> None:
    """What is written and what is intended are kept apart, also for who reads while it is open."""
    head = Head(journal)
    assert (head.existed, head.found, read_head(journal)) == (False, None, None)
    head.update(ONE, TWO)
    assert read_head(journal) == HeadState(ONE, TWO, False, 1)
    head.update(TWO, TWO, clean=True)
    assert read_head(journal) == HeadState(TWO, TWO, True, 2)
    head.close()
    again = Head(journal)
    assert again.found == HeadState(TWO, TWO, True, 2)
    again.update(TWO, TWO)
    assert read_head(journal) == HeadState(TWO, TWO, False, 3)
    again.close()


def test_a_slot_that_was_cut_off_leaves_the_other(journal: Path) -> None:
    """A kill in the middle of an update costs nothing: any damage to the newer slot gives the older."""
    head = Head(journal)
    head.update(ONE, TWO)
    head.update(TWO, TWO)
    head.close()
    block = bytearray(head_path(journal).read_bytes())
    for offset in range(124):
        spoilt = bytearray(block)
        spoilt[offset] ^= 0xFF
        state = parse_head(bytes(spoilt))
        assert state is not None
        assert state == HeadState(ONE, TWO, False, 1)


@pytest.mark.parametrize("block", [b"", b"x", bytes(SIZE_BYTES), b"SEAMHEAD" * 512])
def test_what_is_no_head_says_nothing(block: bytes) -> None:
    """Damage is "unknown", never a made-up end."""
    assert parse_head(block) is None


def test_one_writer_at_a_time(journal: Path) -> None:
    """The lock lasts as long as the head is open, and can be asked for without taking it."""
    assert not is_locked(journal)
    head = Head(journal)
    assert is_locked(journal)
    with pytest.raises(AuditError, match="another gateway"):
        Head(journal)
    head.close()
    assert not is_locked(journal)
    Head(journal).close()


def test_a_head_that_lost_its_name_or_size_is_not_intact(journal: Path) -> None:
    """It is asked before each update, since writing to a mapped file that shrank would kill the process."""
    head = Head(journal)
    assert head.intact()
    with head_path(journal).open("r+b") as file:
        file.truncate(10)
        assert not head.intact()
        file.truncate(SIZE_BYTES)
    head_path(journal).unlink()
    assert not head.intact()
    head.close()
