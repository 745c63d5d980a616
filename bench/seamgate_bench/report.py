"""Shows results: tables for a terminal, and one document for `--json`."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from seamgate_bench.figures import (
    TIE,
    Figure,
    Memory,
    Outcome,
    Table,
    added_latency_us,
    as_json,
    describe_ratio,
    judge_goals,
    ratio,
)
from seamgate_bench.lineup import Scenario
from seamgate_bench.peers import Peer
from seamgate_bench.runner import Results

SCHEMA = 1
NOISY = 0.10
"""From this share of the proxy's core taken by others (or by the hypervisor) on, a run is called noisy."""


def describe_machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown",
    )
    return {"processor": model, "kernel": platform.release(), "python": platform.python_version(), "system": _system()}


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def as_document(results: Results, scenarios: Sequence[Scenario], base: str) -> dict[str, Any]:
    """Return everything about a run as plain values."""
    table = results.table()
    return {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "tie": TIE,
        "scenarios": {s.name: {"title": s.title, "connections": s.connections} for s in scenarios},
        "versions": results.versions,
        "tls": results.tls,
        "missing": results.missing,
        "failed": {scenario: row for scenario, row in results.failed.items() if row},
        "figures": as_json(table),
        "ratios": {"of": base, "cpu_us_per_request": _cpu_ratios(table, base)},
        "goals": [_goal_as_json(o) for o in judge_goals(table)],
        "audited": {peer: {"records": r, "answered": a} for peer, (r, a) in results.audited.items()},
        "samples": {
            scenario: {peer: [asdict(s) for s in samples] for peer, samples in row.items()}
            for scenario, row in results.samples.items()
        },
    }


def _cpu_ratios(table: Table, base: str) -> dict[str, dict[str, float]]:
    ratios: dict[str, dict[str, float]] = {}
    for scenario, row in table.items():
        ours = row.get(base)
        for peer, theirs in row.items():
            if isinstance(ours, Figure) and isinstance(theirs, Figure) and peer != base:
                value = ratio(ours.cpu_us_per_request, theirs.cpu_us_per_request)
                if value is not None:
                    ratios.setdefault(scenario, {})[peer] = value
    return ratios


def _goal_as_json(outcome: Outcome) -> dict[str, Any]:
    goal = outcome.goal
    return {
        "title": goal.title,
        "scenario": outcome.scenario,
        "at_most": goal.at_most,
        "measured": outcome.measured,
        "met": outcome.met,
    }


def show(console: Console, results: Results, peers: Sequence[Peer], scenarios: Sequence[Scenario], base: str) -> None:
    """Print all tables."""
    table = results.table()
    timed = [s for s in scenarios if not s.idle]
    if timed:
        _grid(console, "CPU of the proxy, microseconds a request (least - most)", table, peers, timed, _cpu)
        _grid(
            console,
            f"The same, {base} = 1: {base} / peer, under 1 is better for {base}",
            table,
            peers,
            timed,
            _over(table, base),
        )
        _grid(console, "Requests a second", table, peers, timed, _rate)
        _grid(console, "Upstream connections opened while measured", table, peers, timed, _connects)
    if "latency" in table:
        _latency(console, table, peers)
    for scenario in scenarios:
        if scenario.idle:
            _memory(console, table, peers, scenario)
    _goals(console, judge_goals(table))
    _remarks(console, results, table)


Cell = Callable[[Scenario, str, Figure], str]


def _cpu(scenario: Scenario, peer: str, figure: Figure) -> str:
    if not figure.cpu_us_per_request:
        return "-"
    return f"{figure.cpu_us_per_request:,.0f} [dim]({figure.cpu_us_min:,.0f} - {figure.cpu_us_max:,.0f})[/dim]"


def _over(table: Table, base: str) -> Cell:
    def cell(scenario: Scenario, peer: str, figure: Figure) -> str:
        ours = table[scenario.name].get(base)
        if not isinstance(ours, Figure) or peer == base:
            return "-"
        return describe_ratio(ratio(ours.cpu_us_per_request, figure.cpu_us_per_request))

    return cell


def _rate(scenario: Scenario, peer: str, figure: Figure) -> str:
    return f"{figure.requests_per_s:,.0f}"


def _connects(scenario: Scenario, peer: str, figure: Figure) -> str:
    return f"{figure.upstream_connects:,.0f}"


def _grid(
    console: Console, title: str, table: Table, peers: Sequence[Peer], scenarios: Sequence[Scenario], cell: Cell
) -> None:
    grid = RichTable(title=title, title_justify="left", title_style="bold")
    grid.add_column("peer")
    grid.add_column("kind")
    for scenario in scenarios:
        grid.add_column(scenario.name, justify="right")
    for peer in peers:
        figures = [(s, table.get(s.name, {}).get(peer.name)) for s in scenarios]
        cells = [cell(s, peer.name, f) if isinstance(f, Figure) else "" for s, f in figures]
        if any(c not in ("", "-") for c in cells):
            grid.add_row(peer.name, peer.kind, *cells)
    console.print(grid)


def _latency(console: Console, table: Table, peers: Sequence[Peer]) -> None:
    grid = RichTable(title="Latency, one connection, microseconds", title_justify="left", title_style="bold")
    for name in ("peer", "p50", "p99", "p50 added to direct"):
        grid.add_column(name, justify="left" if name == "peer" else "right")
    row = table["latency"]
    direct = row.get("direct")
    for peer in peers:
        figure = row.get(peer.name)
        if isinstance(figure, Figure):
            added = None if direct is None or peer.name == "direct" else added_latency_us(figure, direct)
            grid.add_row(
                peer.name, f"{figure.p50_us:,.0f}", f"{figure.p99_us:,.0f}", "-" if added is None else f"{added:,.0f}"
            )
    console.print(grid)


def _memory(console: Console, table: Table, peers: Sequence[Peer], scenario: Scenario) -> None:
    grid = RichTable(title=f"Memory: {scenario.title}, MB", title_justify="left", title_style="bold")
    names = ("peer", "PSS", "RSS", "PSS before", "kB a connection", "upstream sessions", "CPU ms to open one")
    for name in names:
        grid.add_column(name, justify="left" if name == "peer" else "right")
    for peer in peers:
        m = table.get(scenario.name, {}).get(peer.name)
        if isinstance(m, Memory):
            each = (m.pss_mb - m.before_pss_mb) * 1000 / m.connections
            setup_ms = m.setup_cpu_us_per_connection / 1000
            cells = (f"{m.pss_mb:,.0f}", f"{m.rss_mb:,.0f}", f"{m.before_pss_mb:,.0f}", f"{each:,.1f}")
            grid.add_row(peer.name, *cells, f"{m.upstream_sessions:,}", f"{setup_ms:.2f}")
    console.print(grid)


def _goals(console: Console, outcomes: Sequence[Outcome]) -> None:
    if not outcomes:
        return
    grid = RichTable(title="Goals", title_justify="left", title_style="bold")
    for name in ("goal", "scenario", "at most", "measured", ""):
        grid.add_column(name, justify="right" if name in ("at most", "measured") else "left")
    for outcome in outcomes:
        absolute = outcome.goal.measure == "added_p50_us"
        measured = (
            "-"
            if outcome.measured is None
            else f"{outcome.measured:,.0f} us"
            if absolute
            else f"{outcome.measured:.3f}"
        )
        word = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not measured"}[outcome.met]
        limit = f"{outcome.goal.at_most:,.0f} us" if absolute else f"{outcome.goal.at_most:.3g}"
        grid.add_row(outcome.goal.title, outcome.scenario, limit, measured, word)
    console.print(grid)


def _remarks(console: Console, results: Results, table: Table) -> None:
    for peer, reason in results.missing.items():
        console.print(f"[yellow]missing[/yellow] {peer}: {reason}", highlight=False)
    for scenario, row in results.failed.items():
        for peer, reason in row.items():
            console.print(f"[red]failed[/red] {scenario}, {peer}: {reason}", highlight=False)
    for peer, (records, answered) in results.audited.items():
        colour = "green" if records >= answered else "red"
        console.print(
            f"[{colour}]audit[/{colour}] {peer}: {records:,} terminal records for {answered:,} answered requests"
        )
    figures = [f for row in table.values() for f in row.values() if isinstance(f, Figure)]
    if figures:
        steal = max(f.steal_max for f in figures)
        # Without a proxy (direct), whoever uses the proxy's core disturbs nobody.
        neighbours = max((f.neighbours_max for f in figures if f.cpu_us_per_request), default=0.0)
        noisy = " [yellow](noisy: run it again on a quiet machine)[/yellow]" if max(steal, neighbours) > NOISY else ""
        console.print(
            f"steal at most {steal:.1%}, others on the proxy's core at most {neighbours:.1%}{noisy}; "
            f"ratios between {1 / TIE:.2f} and {TIE} are a tie; compare only within one run",
            highlight=False,
        )
