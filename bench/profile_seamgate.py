#!/usr/bin/env python3
"""Says where a Python proxy's time goes under load: by module that asked for it, by function, by kind of work.

Runs one scenario against Seamgate twice, under py-spy (which Python code) and under perf (which library, or the
kernel), both sampling profilers outside of the proxy, and prints microseconds a request: shares of the samples, times
the CPU time that the kernel accounted to the proxy. docs/performance.md shows what came out.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from seamgate_bench import ground as grounds
from seamgate_bench import load, peers_venv, procfs, profiling
from seamgate_bench.cli import raise_file_limit
from seamgate_bench.lineup import SCENARIOS, choose_scenarios, peers
from seamgate_bench.load import Demand, Load
from seamgate_bench.peers import started
from seamgate_bench.process import PeerFailed, find_program

PACKAGES = {
    "seamgate": ("seamgate", "seamgate_plugins"),
    "proxy.py": ("proxy",),
    "mitmproxy": ("mitmproxy",),
}
ATTACH_S = 1.5
"""A profiler reads the proxy's symbols before it samples: the load runs a little longer than it on both sides."""
ROWS = 25
TIMED = [s.name for s in SCENARIOS if not s.idle]


@dataclass(frozen=True, slots=True)
class Profile:
    """What the two profilers saw of one peer in one scenario."""

    stacks: str
    """py-spy's raw output."""
    objects: str | None
    """perf's report by shared object; None: there is no perf here, or it is not allowed."""
    cpu_us_per_request: float
    """While py-spy looked on."""
    requests: int


@click.command(help=__doc__)
@click.option("--peer", type=click.Choice(list(PACKAGES)), default="seamgate", show_default=True)
@click.option("--scenario", type=click.Choice(TIMED), default="small", show_default=True)
@click.option("--rules", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seconds", type=click.IntRange(1, 120), default=8, show_default=True, help="Of each profiler.")
@click.option("--rate", type=click.IntRange(10, 1000), default=250, show_default=True, help="Samples a second.")
@click.option(
    "--raw", type=click.Path(dir_okay=False, path_type=Path), help="Keep the stacks there (for a flame graph)."
)
def main(peer: str, scenario: str, rules: int, seconds: int, rate: int, raw: Path | None) -> None:
    """Profile and print."""
    console = Console()
    raise_file_limit()
    peers_venv.ensure(lambda text: console.print(text, highlight=False))
    try:
        seen = profile(peer, scenario, rules, seconds, rate)
    except PeerFailed as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        raise SystemExit(3) from error
    if raw is not None:
        raw.write_text(seen.stacks)
    report(console, seen, PACKAGES[peer], f"{peer}, {scenario}")


def report(console: Console, seen: Profile, packages: Sequence[str], title: str) -> None:
    """Print the three tables."""
    stacks = profiling.parse_stacks(seen.stacks)
    owners: Counter[str] = Counter()
    for stack in stacks:
        owners[profiling.owner_of(stack, packages)] += stack.count
    each = seen.cpu_us_per_request
    console.print(
        f"{title}: {seen.requests:,} requests, {each:,.1f} us of CPU each, {owners.total():,} stacks", highlight=False
    )
    show(console, "By module that asked for it", profiling.shares(owners, ROWS), each)
    functions = profiling.functions_of(stacks, packages)
    show(console, "By function, with what it calls elsewhere", profiling.shares(functions, ROWS), each)
    if seen.objects is None:
        console.print("[yellow]missing[/yellow] kinds of work: perf is not installed, or not allowed here")
    else:
        show(console, "By kind of work", profiling.shares(profiling.parse_perf(seen.objects), ROWS), each)


def profile(name: str, scenario_name: str, rules: int, seconds: int, rate: int) -> Profile:
    """Start the peer, and let both profilers look at it under load, one after the other.

    Raises:
        PeerFailed: the proxy or py-spy did not do its part.
    """
    peer = next(p for p in peers([rules]) if p.name == name)
    reason = peers_venv.missing("py-spy") or peer.missing()
    if reason:
        raise PeerFailed(reason)
    scenario = choose_scenarios([scenario_name], None)[0]
    demand = Demand(scenario.path, scenario.connections, seconds + 2 * ATTACH_S, scenario.new_connection)
    with grounds.prepared() as ground, started(peer, ground) as run:
        assert run.program is not None
        pid, program = run.program.pid, load.build(ground.directory)
        stacks, perf_data = ground.directory / "stacks", ground.directory / "perf.data"
        with Load(program, ground, run.way, demand) as generator:
            generator.ready()
            before = procfs.cpu_us(pid)
            done, complaint = _watch(generator, ground.load_core, _py_spy(pid, stacks, seconds, rate))
            cpu_us = procfs.cpu_us(pid) - before
        if not stacks.exists():
            raise PeerFailed(f"py-spy: {complaint[-400:]}")
        perf = find_program("perf")
        if perf is not None:
            with Load(program, ground, run.way, demand) as generator:
                generator.ready()
                _watch(generator, ground.load_core, _perf(perf, procfs.tree(pid), perf_data, seconds, rate))
        objects = _read_perf(perf, perf_data) if perf is not None else None
        return Profile(stacks.read_text(), objects, cpu_us / done["requests"], done["requests"])


def _watch(generator: Load, core: int, profiler: Sequence[str]) -> tuple[dict[str, int], str]:
    """Run the load with a profiler beside it; return what the load counted, and what the profiler complained about."""
    spy = subprocess.Popen(["taskset", "-c", str(core), *profiler], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        done = generator.run()
        _, complaint = spy.communicate(timeout=60)
    finally:
        spy.kill()
    return done, complaint.decode(errors="replace").strip()


def _py_spy(pid: int, output: Path, seconds: int, rate: int) -> list[str]:
    argv = [str(peers_venv.program("py-spy")), "record", "--pid", str(pid), "--format", "raw", "--output", str(output)]
    return [
        *argv,
        "--duration",
        str(seconds),
        "--rate",
        str(rate),
        "--full-filenames",
        "--subprocesses",
        "--nonblocking",
    ]


def _perf(perf: str, pids: Sequence[int], output: Path, seconds: int, rate: int) -> list[str]:
    argv = [perf, "record", "-q", "-e", "cpu-clock", "-F", str(rate), "-o", str(output)]
    return [*argv, "-p", ",".join(map(str, pids)), "--", "sleep", str(seconds)]


def _read_perf(perf: str, data: Path) -> str | None:
    argv = [perf, "report", "-i", str(data), "--stdio", "--no-children", "-g", "none", "--sort", "dso", "-q"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None


def show(console: Console, title: str, rows: list[tuple[str, float]], each_us: float) -> None:
    """Print one table of shares."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("share", justify="right")
    table.add_column("us a request", justify="right")
    for name, share in rows:
        table.add_row(name, f"{share:.1%}", f"{share * each_us:,.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
