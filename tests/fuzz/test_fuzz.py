"""The short version of `make fuzz`: seeds hold, a short search finds nothing, and a planted fault would be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.seeds import SEEDS
from fuzz.targets import TARGETS, everything

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_break_no_rule(name: str) -> None:
    """Where a search begins, all is well; without seeds it would never get past the first byte."""
    assert SEEDS[name]
    for seed in SEEDS[name]:
        TARGETS[name](seed)
        for size in range(len(seed)):
            TARGETS[name](seed[:size])


def test_every_target_is_reached_by_the_first_byte() -> None:
    """A short run is one over all of them."""
    for place in range(len(TARGETS)):
        everything(bytes((place,)))
    everything(b"")


def fuzz(folder: Path, *options: str, planted: str = "") -> subprocess.CompletedProcess[str]:
    """Run the fuzzer in a process of its own."""
    folders = os.pathsep.join(str(ROOT / name) for name in ("tests", "proxy", "plugins", "vmm"))
    code = f"import sys; sys.argv[1:] = {list(options)!r}\n{planted}\nfrom fuzz.run import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folders},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def test_a_short_search_finds_nothing(tmp_path: Path) -> None:
    """Some seconds over all targets, guided by coverage."""
    done = fuzz(tmp_path, "--seconds", "10")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not list(tmp_path.iterdir())


def test_a_planted_fault_is_found_and_can_be_replayed(tmp_path: Path) -> None:
    """A reader that raises something else for one unlikely byte sequence is caught, and its input kept."""
    planted = """
import importlib
find = importlib.import_module
def plant(name):
    module = find(name)
    if name == 'fuzz.targets':
        read = module.parse_client_hello
        def broken(data):
            if data[:1] == b'\\x16' and data[4:5] == b'\\x07':
                raise IndexError('planted')
            return read(data)
        module.parse_client_hello = broken
    return module
importlib.import_module = plant
"""
    done = fuzz(tmp_path, "--seconds", "30", "--target", "client_hello", planted=planted)
    assert done.returncode != 0 and "planted" in done.stdout + done.stderr
    (finding,) = tmp_path.iterdir()
    again = fuzz(tmp_path, "--target", "client_hello", "--input", str(finding), planted=planted)
    assert again.returncode != 0 and "planted" in again.stderr
    assert fuzz(tmp_path, "--target", "client_hello", "--input", str(finding)).returncode == 0
