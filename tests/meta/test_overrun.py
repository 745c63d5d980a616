"""What hangs is ended and told: a run that must be waited for helps nobody."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support import overrun

ROOT = Path(__file__).resolve().parents[2]
_FILES = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "run.py"]
_RUN = ("subprocess.run", "subprocess.check_output", "subprocess.check_call")


async def test_a_test_runs_on_uvloop() -> None:
    """As the gateway does."""
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")


def test_a_test_that_waits_for_ever_tells_where() -> None:
    """It fails at its limit, with what each task awaits."""

    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(pytest.fail.Exception, match=r"test_overrun.py:\d+ never > .*wait"):
        overrun.run_limited(never, 0.05)


def test_a_test_that_takes_no_cancellation_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `finally` that awaits, however often, ends with the test, not with the run."""
    monkeypatch.setattr(overrun, "CLEANUP_S", 0.1)

    async def stubborn() -> None:
        for _ in range(20):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(pytest.fail.Exception, match="don't take a cancellation"):
        overrun.run_limited(stubborn, 0.05)


def test_a_thread_that_blocks_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that waits for its threads to return does so in bounded time."""
    monkeypatch.setattr(overrun, "CLEANUP_S", 0.1)
    blocked = threading.Event()

    async def blocks() -> None:
        await asyncio.to_thread(blocked.wait)

    try:
        with pytest.raises(pytest.fail.Exception, match="threads of the loop"):
            overrun.run_limited(blocks, 0.05)
    finally:
        blocked.set()


def test_a_failure_is_the_test_s_own() -> None:
    """What a test raises in time is what is reported."""

    async def fails() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        overrun.run_limited(fails, 5)


_HANGS = """
import subprocess, threading
def test_waits_for_a_program():
    subprocess.run(["sleep", "1000"], check=True)
def test_goes_on():
    pass
def test_waits_for_itself():
    threading.Event().wait()
"""


def test_the_watch_ends_programs_then_the_run(tmp_path: Path) -> None:
    """A hang's programs are ended and the next test goes on; where there are none, the run ends; both are told."""
    (tmp_path / "test_hangs.py").write_text(_HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p no:timeout -p no:xdist\n")
    (tmp_path / "conftest.py").write_text(
        "from support import overrun\n"
        "overrun.WATCH_S, overrun.AFTER_KILL_S = 3, 5\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(overrun.Watch(), 'watch')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "."], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "test_waits_for_a_program FAILED" in done.stdout and "test_goes_on PASSED" in done.stdout
    assert "== hangs: test_hangs.py::test_waits_for_a_program" in done.stderr and ": sleep 1000" in done.stderr
    last = done.stderr.rpartition("== hangs: ")[2]
    assert last.startswith("test_hangs.py::test_waits_for_itself even without its programs") and len(last) < 1900
    assert "MainThread: " in last


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_program_is_waited_for_in_bounded_time(path: Path) -> None:
    """`subprocess.run` has a timeout: the signal of pytest-timeout comes once, and a `finally` may wait again."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    runs = [node for node in calls if ast.unparse(node.func) in _RUN]
    assert not [node.lineno for node in runs if "timeout" not in {word.arg for word in node.keywords}]
