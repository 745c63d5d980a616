"""Runs a tutorial: writes the files that it shows, types its commands into one shell, compares what they print.

In the Markdown, a file's name above a block (`NAME`: or `NAME`, in place of WHAT:) makes a file of it: what a
reader sees is what is written; one that is there must be said to be replaced. In a `console` block a line `$ COMMAND`
is typed, lines `> ...` go on with it, and what follows is the output: `...` stands for any text, alone on a line for
any lines. Every command must exit with 0; `<!-- exit: N -->` before a block says what its last one exits with.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from support.cli import environment

_BLOCK = re.compile(
    r"(?:^`(?P<file>[^`\n]+)`(?P<replaces>, in place of [^\n]+)?:\n\n|^<!-- exit: (?P<exit>\d+) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_MARK = "---the-command-is-over---"


class Command(msgspec.Struct, frozen=True):
    """What is typed, what it should print, and how it should end."""

    text: str
    output: str
    exit_code: int


class File(msgspec.Struct, frozen=True):
    """What a reader is told to write, and whether in place of a file that is there."""

    name: str
    text: str
    replaces: bool


def parse_tutorial(markdown: str) -> Iterator[Command | File]:
    """Return what a reader does, in order."""
    for block in _BLOCK.finditer(markdown):
        if block["file"] is not None:
            yield File(block["file"], block["body"], block["replaces"] is not None)
        elif block["language"] == "console":
            yield from _commands(block["body"], int(block["exit"] or 0))


def _commands(body: str, last_exit_code: int) -> Iterator[Command]:
    chunks = [chunk for chunk in re.split(r"^\$ ", body, flags=re.MULTILINE) if chunk]
    for number, chunk in enumerate(chunks, 1):
        lines = chunk.splitlines()
        end = next((place for place, line in enumerate(lines[1:], 1) if not line.startswith(">")), len(lines))
        typed = [lines[0], *(line[2:] for line in lines[1:end])]
        yield Command("\n".join(typed), "\n".join(lines[end:]), last_exit_code if number == len(chunks) else 0)


def matches(pattern: str, output: str) -> bool:
    """Whether an output is what the tutorial shows."""
    expression = ""
    for line in pattern.splitlines():
        expression += "(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
    return re.fullmatch(expression, output) is not None


class Shell:
    """One bash, in one folder, with the command `seamgate` of the environment under test on its PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = f"{Path(sys.executable).parent}:{environment(folder)['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=folder, env=environment(folder, {"PATH": path}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def type(self, command: str) -> tuple[str, int]:
        """Type a command; return what it printed and its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # In braces, so that no command reads what is typed after it.
        self._process.stdin.write(f"{{ {command}\n}} < /dev/null\nlast=$?; echo; echo {_MARK} $last\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(_MARK):
                output = "".join(lines).removesuffix("\n")
                return output if output.endswith("\n") or not output else f"{output}\n", int(line.split()[1])
            lines.append(line)
        raise AssertionError(f"the shell ended in: {command}")

    def close(self) -> None:
        """End it and what it left in the background."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=60)
