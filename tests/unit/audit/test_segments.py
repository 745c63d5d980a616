"""Which files are a journal's, and in what order."""

from __future__ import annotations

from pathlib import Path

from seamgate.audit.segments import all_files, finished_segments, first_seq_of, segment_path


def test_segments_sort_as_the_chain_goes_and_nothing_else_counts(tmp_path: Path) -> None:
    """Heads, what was set aside, other journals and other people's files are no segments."""
    journal = tmp_path / "a.jsonl"
    for seq in (100, 9, 1):
        segment_path(journal, seq).touch()
    for other in (
        "a.jsonl.head",
        "a.jsonl.torn-0000000000000001-ab",
        "a.jsonl.1",
        "a.jsonl.gz",
        "ba.jsonl.0000000000000001",
    ):
        (tmp_path / other).touch()
    assert [first_seq_of(path) for path in finished_segments(journal)] == [1, 9, 100]
    assert all_files(journal) == finished_segments(journal)
    journal.touch()
    assert all_files(journal)[-1] == journal


def test_a_folder_that_is_not_there_has_no_segments(tmp_path: Path) -> None:
    """Asking for them is no error."""
    assert all_files(tmp_path / "none" / "a.jsonl") == []
