"""Whether growth is flat: the cost of a request at few and at many connections, after few and after many requests.

Called by `bench/scale.py`. Uses the bench's own upstream, load generator and gateway (interception, 100 rules, an
injected credential, audit on), one gateway process on one core. Absolute figures are this machine's; the ratios count.

Exit codes: 0 fine; 1 growth is not flat (`--check`), or a request failed; 3 a prerequisite is missing.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from seamgate_bench import ground as grounds
from seamgate_bench import load, procfs
from seamgate_bench.adapters.seamgate import Seamgate
from seamgate_bench.ground import Ground
from seamgate_bench.load import Demand, Load
from seamgate_bench.peers import Running, started
from seamgate_bench.process import PeerFailed

PATH = "/v1/small"
FEW = 10
SPARE_FILES = 256
"""Of the gateway besides two for each connection, and of the load generator."""
FLAT = 1.25
"""A ratio up to this is a tie, see docs/performance.md."""
FLAT_MEMORY = 1.1


@dataclass(frozen=True, slots=True)
class AtConnections:
    """What one number of connections costs; `active`: how many of them send requests, the others are idle."""

    connections: int
    active: int
    cpu_us_per_request: float
    requests: int
    pss_mb: float


@dataclass(frozen=True, slots=True)
class AfterRequests:
    """What a stretch of a long run cost, by the requests before its end."""

    requests: int
    cpu_us_per_request: float
    rss_mb: float


class Bench:
    """One started gateway and the load on it."""

    def __init__(self, ground: Ground, program: Path, running: Running) -> None:
        assert running.program is not None
        self._ground = ground
        self._program = program
        self._running = running
        self.pid = running.program.pid

    def pss_mb(self) -> float:
        """Memory of the gateway now."""
        return procfs.memory_mb(self.pid)[1]

    def rss_mb(self) -> float:
        """The same, shared pages counted in full."""
        return procfs.memory_mb(self.pid)[0]

    @contextmanager
    def load(self, connections: int, seconds: float, rehearse: int = 2) -> Iterator[Load]:
        """Open connections and hold them."""
        demand = Demand(PATH, connections, seconds, rehearse=rehearse)
        with Load(self._program, self._ground, self._running.way, demand) as running:
            running.ready()
            yield running

    def cost(self, running: Load) -> tuple[float, int]:
        """Send requests over the connections of a load; return (CPU-us a request, requests)."""
        before = procfs.cpu_us(self.pid)
        done = running.run()
        return (procfs.cpu_us(self.pid) - before) / done["requests"], done["requests"]


def scale_connections(bench: Bench, most: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Measure at few connections, at many of which few are active, and at many that all are."""
    at_rest_mb = bench.pss_mb()
    points: list[AtConnections] = []

    def point(connections: int, active: int, measured: list[tuple[float, int]]) -> None:
        cpu = statistics.median(each for each, _ in measured)
        points.append(AtConnections(connections, active, cpu, sum(n for _, n in measured), bench.pss_mb()))

    measured = []
    for _ in range(repeats):
        with bench.load(FEW, seconds) as few:
            measured.append(bench.cost(few))
    point(FEW, FEW, measured)
    with bench.load(most, seconds) as many:
        idle_mb = bench.pss_mb()
        measured = []
        for _ in range(repeats):
            with bench.load(FEW, seconds) as few:
                measured.append(bench.cost(few))
        point(most, FEW, measured)
        point(most, most, [bench.cost(many)])
    return {
        "points": [asdict(each) for each in points],
        "kb_per_connection": (idle_mb - at_rest_mb) * 1000 / most,
        "ratio_idle": points[1].cpu_us_per_request / points[0].cpu_us_per_request,
        "ratio_active": points[2].cpu_us_per_request / points[0].cpu_us_per_request,
    }


def soak(bench: Bench, requests: int, seconds: float, connections: int) -> dict[str, Any]:
    """Send many requests, stretch by stretch, and compare the first stretches with the last."""
    points: list[AfterRequests] = []
    total = 0
    while total < requests:
        with bench.load(connections, seconds) as running:
            cpu, count = bench.cost(running)
        total += count + 3 * connections  # those of the set-up and the rehearsal
        points.append(AfterRequests(total, cpu, bench.rss_mb()))
        click.echo(f"  after {total:>9,} requests  {cpu:6.1f} us a request  {points[-1].rss_mb:7.1f} MB", err=True)
    edge = max(1, len(points) // 5)
    first, last = points[:edge], points[-edge:]
    return {
        "points": [asdict(each) for each in points],
        "requests": total,
        "ratio_cpu": _median(last, "cpu_us_per_request") / _median(first, "cpu_us_per_request"),
        "ratio_rss": last[-1].rss_mb / first[-1].rss_mb,
    }


def _median(points: list[AfterRequests], name: str) -> float:
    return statistics.median(getattr(point, name) for point in points)


@contextmanager
def _bench(connections: int, *, pure: bool) -> Iterator[Bench]:
    most = connections + 2 * FEW
    # A plugin's budget is wall time: on a machine that is busy with other things its default could be overrun.
    limits = {"connections": most, "guest_connections": most, "plugin_budget_s": 5.0}
    peer = Seamgate(compiled=not pure, limits=limits)
    reason = peer.missing()
    if reason is not None:
        raise PeerFailed(reason)
    with grounds.prepared() as ground:
        program = load.build(ground.directory)
        with started(peer, ground) as running:
            yield Bench(ground, program, running)


def allow_files(connections: int) -> int:
    """Raise the limit of open files for so many connections; return how many can be had under what is permitted."""
    wanted = 2 * (connections + 2 * FEW) + SPARE_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, hard), max(wanted, hard)))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return min(connections, (hard - SPARE_FILES) // 2 - 2 * FEW)
    return connections


def _finish(found: dict[str, Any], ratios: dict[str, float], json_file: Path | None, *, check: bool) -> None:
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n")
    grown = [name for name, most in ratios.items() if found[name] > most]
    for name, most in ratios.items():
        click.echo(f"  {name.removeprefix('ratio_'):<8} {found[name]:5.2f}   flat is up to {most:g}")
    raise SystemExit(int(check and bool(grown)))


@click.group(help="Is the cost of a request flat? docs/performance.md tells how to read it.")
def main() -> None:
    """See the module."""


_pure = click.option("--pure", is_flag=True, help="Plain Python instead of the wheel of `make compiled`.")
_json = click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write it there.")
_check = click.option("--check", is_flag=True, help="Exit with 1 where growth is not flat.")


@main.command("connections", help="A request's cost at 10 and at many connections, and the memory of one.")
@click.option("--connections", type=click.IntRange(FEW, 50_000), default=10_000, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=3.0, show_default=True, help="Of each repetition.")
@click.option("--repeat", type=click.IntRange(1, 20), default=3, show_default=True)
@_pure
@_json
@_check
def _connections(
    connections: int, seconds: float, repeat: int, json_file: Path | None, *, pure: bool, check: bool
) -> None:
    fitting = allow_files(connections)
    if fitting < connections:
        click.echo(f"open files are limited: {fitting:,} connections instead of {connections:,}", err=True)
    with _failing(), _bench(fitting, pure=pure) as bench:
        found = scale_connections(bench, fitting, seconds, repeat)
    click.echo("  connections  active  us a request    MB")
    for each in found["points"]:
        row = f"{each['connections']:>13,} {each['active']:>7,} {each['cpu_us_per_request']:>13.1f}"
        click.echo(f"{row} {each['pss_mb']:>5.0f}")
    click.echo(f"  {found['kb_per_connection']:.1f} KB a connection")
    _finish(found, {"ratio_idle": FLAT, "ratio_active": FLAT}, json_file, check=check)


@main.command("soak", help="A request's cost and the memory, at the beginning and at the end of many requests.")
@click.option("--requests", type=click.IntRange(1000), default=1_000_000, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=5.0, show_default=True, help="Of each stretch.")
@click.option("--connections", type=click.IntRange(1, 1000), default=32, show_default=True)
@_pure
@_json
@_check
def _soak(requests: int, seconds: float, connections: int, json_file: Path | None, *, pure: bool, check: bool) -> None:
    allow_files(connections)
    with _failing(), _bench(connections, pure=pure) as bench:
        found = soak(bench, requests, seconds, connections)
    click.echo(f"  {found['requests']:,} requests")
    _finish(found, {"ratio_cpu": FLAT, "ratio_rss": FLAT_MEMORY}, json_file, check=check)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except PeerFailed as error:
        click.echo(str(error), err=True)
        raise SystemExit(3) from error
