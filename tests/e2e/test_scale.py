"""The short version of `make scale-connections` and `make soak`: the same programs, smaller. Times are not judged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import run

pytestmark = pytest.mark.clients
SCALE = Path(__file__).parents[2] / "bench" / "scale.py"


async def scale(folder: Path, *options: str) -> Any:
    """Run the bench on the sources as they are; return what it found."""
    out = folder / "found.json"
    command = (sys.executable, str(SCALE), *options, "--pure", "--json", str(out))
    code, _, err = await run(*command, env={"PATH": os.environ["PATH"], "HOME": str(folder)})
    assert code == 0, err.decode()[-2000:]
    return json.loads(out.read_text())


async def test_connections_cost_little_memory(tmp_path: Path) -> None:
    """Idle and active ones are all served; one costs tens of kilobytes, not hundreds."""
    found = await scale(tmp_path, "connections", "--connections", "400", "--seconds", "0.3", "--repeat", "1")
    assert [(each["connections"], each["active"]) for each in found["points"]] == [(10, 10), (400, 10), (400, 400)]
    assert all(each["requests"] > 0 for each in found["points"])
    assert 0 < found["kb_per_connection"] < 100


async def test_requests_leave_no_memory_behind(tmp_path: Path) -> None:
    """After many times as many requests the process is as large as it was after the first of them."""
    found = await scale(tmp_path, "soak", "--requests", "2000", "--seconds", "0.3")
    assert found["requests"] >= 2_000
    assert found["ratio_rss"] < 1.2
