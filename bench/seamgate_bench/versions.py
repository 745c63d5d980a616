"""Finds out which version of a program was measured."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence


def parse_version(text: str) -> str:
    """Return what looks like a version number, after the word "version" where there is one; "" if nothing does."""
    found = re.search(r"\d+\.\d+(?:\.\d+)*", text.partition("ersion")[2] or text)
    return found[0] if found else ""


def printed_version(argv: Sequence[str]) -> str:
    """Run a program with its version option, and return the number that it prints."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return parse_version(done.stdout + done.stderr)
