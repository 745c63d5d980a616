"""The tutorials do what they say: every file is written, every command typed, every output compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.tutorial import Command, File, Shell, matches, parse_tutorial

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_TUTORIALS = sorted(path.name for path in _DOCS.glob("tutorial-*.md"))


def test_there_is_one_for_each_reader() -> None:
    """Security team, plugin author, operator."""
    assert _TUTORIALS == ["tutorial-operator.md", "tutorial-plugin-author.md", "tutorial-security-team.md"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", _TUTORIALS)
def test_a_tutorial_is_true(name: str, tmp_path: Path) -> None:
    """From an empty folder, in order, as a reader would."""
    shell = Shell(tmp_path)
    try:
        for step in parse_tutorial((_DOCS / name).read_text(encoding="utf-8")):
            if isinstance(step, File):
                _write(tmp_path / step.name, step)
            else:
                _type(shell, step)
    finally:
        shell.close()


def _write(path: Path, file: File) -> None:
    assert path.exists() is file.replaces, f"{file.name}: the tutorial has to say whether a file is replaced"
    path.write_text(file.text, encoding="utf-8")


def _type(shell: Shell, command: Command) -> None:
    output, exit_code = shell.type(command.text)
    told = f"$ {command.text}\nshould print\n{command.output}\nand printed (exit code {exit_code})\n{output}"
    assert exit_code == command.exit_code, told
    assert matches(command.output, output), told


@pytest.mark.parametrize("name", _TUTORIALS)
def test_names_of_files_are_there_to_read(name: str) -> None:
    """Each tutorial has files, and none that only a comment names, which no reader of the page sees."""
    text = (_DOCS / name).read_text(encoding="utf-8")
    assert "<!-- file" not in text
    files = [step for step in parse_tutorial(text) if isinstance(step, File)]
    assert len(files) == len(re.findall(r"^```(?:yaml|python|toml)$", text, re.MULTILINE)) > 0


@pytest.mark.parametrize(
    ("pattern", "output", "expected"),
    [
        ("", "", True),
        ("", "something\n", False),
        ("one\ntwo", "one\ntwo\n", True),
        ("one ... two", "one (3 ms) two\n", True),
        ("...\nlast", "a\nb\nlast\n", True),
        ("first\n...", "first\n", True),
        ("a.b", "axb\n", False),
    ],
)
def test_outputs_are_compared(pattern: str, output: str, expected: bool) -> None:
    """Three dots stand for any text, alone on a line for any lines; everything else is literal."""
    assert matches(pattern, output) is expected
