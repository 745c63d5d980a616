"""The short version of `make simulate`: some seeds in each run of the tests, and that a seed is a replay."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.met import KINDS

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]


def start(*command: str) -> subprocess.CompletedProcess[str]:
    """Run simulations in a process of their own, whose clocks are not the system's."""
    folders = os.pathsep.join(str(ROOT / name) for name in ("tests", "proxy", "plugins"))
    environment = {**os.environ, "PYTHONPATH": folders, "PYTHONHASHSEED": "0"}
    command = (sys.executable, *command)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850, check=False)


def run(*options: str) -> str:
    """Run simulations that have to hold; return what was printed."""
    done = start("-m", "simulation.run", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_schedule_of_faults_breaks_an_invariant() -> None:
    """HTTP/1.1, HTTP/2, WebSockets over both, gRPC: one record each, a chain that verifies, nothing denied upstream.

    And each kind of thing that is to be looked at was there.
    """
    said = run("--seed", "1", "--runs", "4000", "--jobs", "0")
    assert "4000 simulations" in said
    met = re.search("^met: (.*)$", said, re.MULTILINE)
    assert met is not None
    counts = {name: int(count) for count, _, name in (each.partition(" ") for each in met[1].split(", "))}
    assert {name: count for name, count in counts.items() if count >= 5}.keys() == set(KINDS), counts


def test_the_same_seed_is_the_same_run() -> None:
    """So that a seed that fails can be looked at: alone it decides, to the last millisecond, what it did among many."""
    many = run("--seed", "500", "--runs", "300", "--jobs", "2", "--trace").splitlines()[:-2]
    alone = run("--seed", "785", "--runs", "15", "--trace").splitlines()[:-2]
    assert set(alone) <= set(many) and len(set(many)) == 300 and len(alone) == 15


_PLANTED = """
import sys
sys.argv[1:] = ["--seed", "1", "--runs", "200"]
from simulation.clock import install
install()
from seamgate.audit.journal import Journal
from seamgate.seam import Seam
FAULT
from simulation.run import main
sys.exit(main())
"""
FAULTS = {
    "terminal records": """
record, count = Seam.record, 0
def forgetful(self, *arguments, **more):
    global count
    count += 1
    if count % 40:
        record(self, *arguments, **more)
Seam.record = forgetful
""",
    "upstream with a credential and are not on the disk": """
def later(self, records):
    for record in records:
        self.append(record)
Journal.begin_all = later
""",
    "its limits permit": """
from seamgate.upstream.pool import SessionPool
init = SessionPool.__init__
def patient(self, *arguments, response_timeout_s, **more):
    init(self, *arguments, response_timeout_s=10 * response_timeout_s, **more)
SessionPool.__init__ = patient
""",
}


@pytest.mark.parametrize("found", FAULTS)
def test_a_planted_fault_is_found_and_names_its_seed(found: str) -> None:
    """A gateway that forgets each fortieth record, writes nothing ahead, or waits on: the referee is no ornament."""
    done = start("-c", _PLANTED.replace("FAULT", FAULTS[found]))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fails; again with: make simulate SEED=" in done.stdout and found in done.stdout
