"""Numbers with their nouns, as people write them. Pure; called by the commands that tell how many."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return "1 rule", "2 rules": of a noun that takes an s."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
