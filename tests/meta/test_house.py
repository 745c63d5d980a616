"""House rules for every file: size, docstrings, no traces of one's own machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_MODULE_LINES = 600
_FOLDERS = ("proxy", "plugins", "vmm", "tests", "bench", "docs", "examples")
# Homes of examples are fine; `me`, `x`, `user` are nobody's.
_MACHINE = re.compile(
    rb"/root/|/home/(?!(?:x|me|user|agent|runner|alice)\b)[a-z]+/|/Users/[a-z]|/tmp/(?!seamgate)[a-z0-9_]+/"
    rb"|--index-url|--extra-index-url|--find-links"
    rb"|\b(?:pypi|npmjs|pythonhosted|yarnpkg|rubygems|packagist)\.(?:org|com)\b|\bcrates\.io\b|\b(?:docker|ghcr|quay)\.io\b"
)
_BINARY = (".png", ".jpg", ".gz", ".bin", ".so")


def _tracked() -> list[Path]:
    """Return the files that are under version control."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=100)
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


TRACKED = _tracked()
PYTHON = [path for path in TRACKED if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in _FOLDERS]
TESTS = [path for path in PYTHON if path.name.startswith("test_")]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in PYTHON if path.exists()], ids=_name)
def test_a_module_is_not_too_long(path: Path) -> None:
    """Beyond 600 lines nobody holds it in the head: split it before."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE_LINES


@pytest.mark.parametrize("path", [path for path in PYTHON if path.exists()], ids=_name)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    """The first thing in a file is what this room is for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body


@pytest.mark.parametrize("path", [path for path in TESTS if path.exists()], ids=_name)
def test_a_test_states_its_rule(path: Path) -> None:
    """Each test function has a docstring: the rule that it holds the product to."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    silent = [each.name for each in functions if each.name.startswith("test_") and not ast.get_docstring(each)]
    assert not silent


@pytest.mark.parametrize("path", [path for path in PYTHON if path.exists()], ids=_name)
def test_no_test_skips_itself_green(path: Path) -> None:
    """The one reason to skip inside of a test is a third-party program that is not installed; CI installs them all.

    Beside it, `support.kvm` leaves out what needs /dev/kvm where there is none; CI says that there has to be one.
    """
    if path == ROOT / "tests" / "support" / "kvm.py":
        return
    skips = re.findall(r"pytest\.skip\((.*)\)", path.read_text(encoding="utf-8")) if path != Path(__file__) else []
    assert not [skip for skip in skips if "is not installed" not in skip]


def test_no_file_knows_our_machines() -> None:
    """No path of a developer's machine and no public registry's host stands in what is committed."""
    found = []
    for path in TRACKED:
        if path.suffix in _BINARY or not path.is_file() or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if _MACHINE.search(line):
                found.append(f"{_name(path)}:{number}: {line[:120].decode('utf-8', 'replace')}")
    assert not found, "\n".join(found)


def test_the_lock_names_no_registry() -> None:
    """requirements.lock pins versions and hashes; where packages come from is each machine's own business."""
    assert "://" not in (ROOT / "requirements.lock").read_text()
