"""The files of a journal and their order.

`audit.jsonl` is the active file. A finished segment is `audit.jsonl.<seq>`, where <seq> is the number of its first
line in 16 digits, so that names sort as the chain goes. Nothing else with the journal's name is part of it: not the
head (`.head`), not what was set aside (`.torn-*`). Reads the folder; changes nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

_SEGMENT = re.compile(r"\.([0-9]{16})\Z")


def segment_path(journal: Path, first_seq: int) -> Path:
    """Return the path of the finished segment that begins with this line."""
    return journal.with_name(f"{journal.name}.{first_seq:016d}")


def first_seq_of(segment: Path) -> int:
    """Return the number of the first line that the segment's name claims."""
    return int(segment.name[-16:])


def finished_segments(journal: Path) -> list[Path]:
    """Return the finished segments, oldest first; none if the folder is not there."""
    length = len(journal.name)
    try:
        names = [path for path in journal.parent.iterdir() if path.name.startswith(journal.name)]
    except FileNotFoundError:
        return []
    return sorted(path for path in names if _SEGMENT.fullmatch(path.name[length:]))


def all_files(journal: Path) -> list[Path]:
    """Return every file of the journal in the order of the chain, the active one last if it is there."""
    files = finished_segments(journal)
    if journal.exists():
        files.append(journal)
    return files
