"""The short version of `make simulate`: some seeds in each run of the tests, and that a seed is a replay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*options: str) -> str:
    """Run simulations in a process of their own, whose clocks are not the system's; return what it printed."""
    folders = os.pathsep.join(str(ROOT / name) for name in ("tests", "proxy", "plugins"))
    command = [sys.executable, "-m", "simulation.run", *options]
    environment = {**os.environ, "PYTHONPATH": folders}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_schedule_of_faults_breaks_an_invariant() -> None:
    """One record each, a chain that verifies, nothing denied upstream, nothing pooled after an error, no leak."""
    assert "100 simulations" in run("--seed", "1", "--runs", "100")


def test_the_same_seed_is_the_same_run() -> None:
    """So that a seed that fails can be looked at: two processes decide the same to the last millisecond."""
    options = ("--seed", "500", "--runs", "12", "--trace")
    first, second = (run(*options).splitlines()[:-1] for _ in range(2))
    assert first == second and len(set(first)) == 12
