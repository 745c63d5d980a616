"""`make bench-dns`, short: every server answers every scenario, and the table says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(120)
@pytest.mark.clients
def test_the_name_services_are_measured_side_by_side() -> None:
    """Three scenarios, three servers, each with answers and CPU of its own; no figure is asserted."""
    for program in ("dnsperf", "dnsmasq", "unbound"):
        if shutil.which(program, path=f"/usr/sbin:/sbin:{os.environ['PATH']}") is None:
            pytest.skip(f"{program} is not installed")
    command = [sys.executable, str(ROOT / "bench" / "dns_bench.py"), "--seconds", "0.3", "--repetitions", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert {(row["scenario"], row["server"]) for row in rows} == {
        (scenario, server) for scenario in ("known", "fresh", "denied") for server in ("seamgate", "dnsmasq", "unbound")
    }
    assert all(row["per_s"] > 0 for row in rows)
