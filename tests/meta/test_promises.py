"""Promises name their tests: what SPECIFICATION.md and SECURITY.md point to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
_FOLDERS = "attack|e2e|fuzz|meta|property|simulation|support|unit|vmm"
_REFERENCE = re.compile(rf"`((?:{_FOLDERS})/[\w/*]+(?:\.py)?(?:::\w+)?/?)`")


def _references(document: str) -> list[str]:
    return sorted(set(_REFERENCE.findall((ROOT / document).read_text(encoding="utf-8"))))


@pytest.mark.parametrize("document", ["SPECIFICATION.md", "SECURITY.md"])
def test_each_named_test_exists(document: str) -> None:
    """A file that is named is there (a pattern finds one), and so is the test in it."""
    missing = []
    for reference in _references(document):
        name, _, function = reference.partition("::")
        found = list(TESTS.glob(name.rstrip("/")))
        if not found or (function and f"def {function}(" not in found[0].read_text(encoding="utf-8")):
            missing.append(reference)
    assert not missing


def test_each_promise_is_held_or_says_why_not() -> None:
    """A numbered promise names at least one test, or says *not tested*."""
    rows = re.findall(r"^\| (\d+\.\d+) \|(.*)$", (ROOT / "SPECIFICATION.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 40
    assert not [number for number, row in rows if not _REFERENCE.search(row) and "*not tested*" not in row]
