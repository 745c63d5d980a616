"""`seamgate vm bench`: agents in microVMs through a real gateway, and what is told of them."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest
from click.testing import CliRunner

from seamgate.cli.vm import vm
from seamgate_vmm.bench.agents import Measured
from seamgate_vmm.bench.histogram import histogram_svg, histogram_text, percentile
from seamgate_vmm.bench.memory import PhysicalMemory
from seamgate_vmm.bench.report import GOALS, BenchReport, Upstream
from seamgate_vmm.host import Host
from seamgate_vmm.snapshot import Loaded


@pytest.mark.kvm
@pytest.mark.timeout(120)
def test_agents_call_through_the_gateway(host: Host, template: Loaded, tmp_path: Path) -> None:
    """Every call of every agent reaches the upstream with the real key and the audit log; all six numbers are told."""
    assert template.meta.name == "test"
    svg = tmp_path / "h.svg"
    command = [
        "bench",
        "--template",
        "test",
        "--guests",
        "4",
        "--calls",
        "2",
        "--idle",
        "0",
        "--svg",
        str(svg),
        "--json",
    ]
    result = CliRunner().invoke(vm, command)
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    measured, upstream, figures = told["measured"], told["upstream"], told["figures"]
    assert (measured["right"], measured["calls"], measured["wrong"]) == (4, 8, [])
    assert upstream["requests"] == 8 + len(measured["paced_call_ms"])  # the upstream answers only to the real key
    assert upstream["audit_records"] >= 2 * upstream["requests"]  # before the bytes leave, and at the end
    assert 1 <= upstream["sessions"] <= min(64, upstream["connections"])
    assert set(GOALS) <= set(figures)
    assert min(figures[name] for name in ("warm_start_s", "idle_mb", "agents_per_gib", "name_hit_us")) > 0
    assert figures["mb_per_s_into_guests"] > 0
    assert svg.read_text().startswith("<svg")


def test_the_report_shows_goals_and_what_was_published() -> None:
    """Each of the six numbers stands beside its goal; agents that were not right are named with their reason."""
    measured = Measured(2, right=1, tier="nested", idle_bytes=2_000_000, loaded_bytes=1 << 22, wrong=["agent 1: fault"])
    measured.paced_call_ms = [4.0, 6.0]
    text = str(BenchReport(measured, Upstream(3, 4, 9, 20, 9, 1, 0.5, 300.0)))
    lines = {line[:40].strip(): line[40:].split() for line in text.splitlines()}
    assert lines["agents per GiB under load"] == ["256", "200", "10.8"]
    assert lines["idle guest"] == ["2.00", "MB", "1", "MB", "3", "MB"]
    assert lines["upstream sessions for 2 agents"] == ["3", "64", "338"]
    assert lines["names: known, or being looked up"][:1] == ["90.00%"]
    assert text.endswith("agent 1: fault")


def test_memory_is_counted_and_the_group_is_gone() -> None:
    """What this process takes is counted; afterwards no control group is left behind."""
    size = 64 << 20
    with PhysicalMemory() as memory:
        before = memory.used()
        with mmap.mmap(-1, size) as taken:
            for at in range(0, size, 4096):
                taken[at] = 1
            assert memory.used() - before > size // 2
    assert not [*Path("/sys/fs/cgroup").glob("**/seamgate-bench-*")]


def test_histograms() -> None:
    """A histogram counts every value once, also those over the last border."""
    values = [0.5, 1.5, 3, 3, 1e9]
    assert [int(line.split("ms")[1].split()[0]) for line in histogram_text(values)] == [1, 1, 2, 1]
    assert histogram_svg({"one": values, "two": [1.0]}).count("<rect") == 5
    assert (percentile([], 0.5), percentile([3, 1, 2], 0.5), percentile([1, 2], 1.0)) == (0.0, 2, 2)
