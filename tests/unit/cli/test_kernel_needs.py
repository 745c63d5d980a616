"""What `--isolation auto` sees in a program's source of what a microVM does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.cli.kernel_needs import what_needs_a_kernel

_NEEDS = {
    "import subprocess": "subprocess",
    "import os.path, multiprocessing.pool": "multiprocessing.pool",
    "from subprocess import run": "subprocess",
    "from http import server": "http.server",
    "from http.server import HTTPServer": "http.server",
    "import os\nos.system('ls')": "os.system",
    "from os import fork as f": "os.fork",
    "def later():\n    import pty": "pty",
    "import asyncio\nasync def f():\n    await asyncio.create_subprocess_exec('ls')": "asyncio.create_subprocess_exec",
    "from asyncio import start_server": "asyncio.start_server",
    "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()": "concurrent.futures.ProcessPoolExecutor",
}
_FINE = (
    "import os, sys, json, http.client, asyncio, threading, concurrent.futures",
    "import os\nos.environ['system'] = os.path.join('a', 'fork')",
    "from . import subprocess",
    "from .subprocess import run",
    "text = 'import subprocess'",
    "import subprocesses",
    "this is no python",
    "",
)


@pytest.mark.parametrize("source", _NEEDS)
def test_what_is_found(tmp_path: Path, source: str) -> None:
    """In a script, in -c, and in a module: with the place and the name."""
    (tmp_path / "agent.py").write_text(source)
    line = source[: source.rindex(_NEEDS[source].rpartition(".")[2])].count("\n") + 1
    assert what_needs_a_kernel(["agent.py", "x"], tmp_path) == f"agent.py line {line} uses {_NEEDS[source]}"
    assert what_needs_a_kernel(["-u", "-c", source], tmp_path) == f"-c line {line} uses {_NEEDS[source]}"
    assert what_needs_a_kernel(["-m", "agent"], tmp_path) == f"agent.py line {line} uses {_NEEDS[source]}"


@pytest.mark.parametrize("source", _FINE)
def test_what_is_not_found(tmp_path: Path, source: str) -> None:
    """What a microVM has, what only looks like it, and what is no Python."""
    (tmp_path / "agent.py").write_text(source)
    assert what_needs_a_kernel(["agent.py"], tmp_path) == ""
    assert what_needs_a_kernel(["-c", source], tmp_path) == ""


def test_modules_of_the_folder_are_read(tmp_path: Path) -> None:
    """Those that the program imports, directly or not, packages too; circles and missing ones end the search."""
    (tmp_path / "agent.py").write_text("from package import deep\nimport missing, json")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "deep.py").write_text("import other")
    (tmp_path / "other.py").write_text("import agent, other\nimport subprocess")
    assert what_needs_a_kernel(["agent.py"], tmp_path) == "other.py line 2 uses subprocess"
    (tmp_path / "other.py").write_text("import agent, other")
    assert what_needs_a_kernel(["agent.py"], tmp_path) == ""


def test_a_package_that_is_run(tmp_path: Path) -> None:
    """`-m package` is its __main__."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import socketserver")
    (tmp_path / "package" / "__init__.py").write_text("")
    assert what_needs_a_kernel(["-m", "package"], tmp_path) == "package/__main__.py line 1 uses socketserver"


@pytest.mark.parametrize("arguments", [[], ["-m"], ["-c"], ["nowhere.py"], ["-m", "nowhere"], ["-"], ["."]])
def test_nothing_to_read(tmp_path: Path, arguments: list[str]) -> None:
    """Where there is no program, whoever runs it says so."""
    assert what_needs_a_kernel(arguments, tmp_path) == ""


def test_huge_and_broken_files_are_left_to_who_runs_them(tmp_path: Path) -> None:
    """Nothing is read without bound."""
    (tmp_path / "agent.py").write_text("import subprocess\n" + "#" * (1 << 20))
    assert what_needs_a_kernel(["agent.py"], tmp_path) == ""
    (tmp_path / "agent.py").write_text("(" * 100_000)
    assert what_needs_a_kernel(["agent.py"], tmp_path) == ""
