"""What is computed from samples: medians, ratios, ties, goals. Pure: no clock, no process, no file.

A *sample* is one repetition of one scenario against one peer. A *figure* is the median over a peer's samples. Only
ratios of figures of the same run mean anything: on a shared machine the same peer was seen to differ by 20-30 %
between runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TIE = 1.25
"""Ratios between 1/TIE and TIE are called a tie: neighbours on a shared machine move figures by as much."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition: what the load generator counted and what the kernel accounted to the proxy."""

    requests: int
    seconds: float
    cpu_us: float
    """CPU time of the proxy and its children over the measured part; 0 for `direct`, which has no proxy."""
    p50_us: float
    p99_us: float
    load_cpu_us_per_request: float
    upstream_connects: int
    """Connections that the upstream accepted during the measured part."""
    steal: float
    """Share of the two cores' time that the hypervisor took away, 0..1."""
    neighbours: float
    """Share of the proxy's core that somebody else on this machine used, 0..1."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A peer that holds idle keep-alive connections, one request each, in a fresh process."""

    connections: int
    rss_mb: float
    pss_mb: float
    """Like RSS, but a page that n processes share counts 1/n in each: fair to peers with worker processes."""
    before_pss_mb: float
    """The same process before the first connection."""
    upstream_sessions: int
    setup_cpu_us_per_connection: float


@dataclass(frozen=True, slots=True)
class Figure:
    """The medians over one peer's samples of one scenario."""

    samples: int
    cpu_us_per_request: float
    cpu_us_min: float
    cpu_us_max: float
    requests_per_s: float
    p50_us: float
    p99_us: float
    load_cpu_us_per_request: float
    upstream_connects: float
    steal_max: float
    neighbours_max: float


def summarise(samples: Sequence[Sample]) -> Figure:
    """Return the medians of at least one sample.

    Raises:
        ValueError: there is no sample, or one without a request.
    """
    if not samples or not all(s.requests and s.seconds for s in samples):
        raise ValueError("a figure needs samples with requests in them")
    cpu = [s.cpu_us / s.requests for s in samples]
    return Figure(
        samples=len(samples),
        cpu_us_per_request=statistics.median(cpu),
        cpu_us_min=min(cpu),
        cpu_us_max=max(cpu),
        requests_per_s=statistics.median(s.requests / s.seconds for s in samples),
        p50_us=statistics.median(s.p50_us for s in samples),
        p99_us=statistics.median(s.p99_us for s in samples),
        load_cpu_us_per_request=statistics.median(s.load_cpu_us_per_request for s in samples),
        upstream_connects=statistics.median(s.upstream_connects for s in samples),
        steal_max=max(s.steal for s in samples),
        neighbours_max=max(s.neighbours for s in samples),
    )


def ratio(ours: float, theirs: float) -> float | None:
    """Return ours / theirs, or None where either is missing (zero or less)."""
    return ours / theirs if ours > 0 and theirs > 0 else None


def is_tie(value: float) -> bool:
    """Say whether a ratio is too close to 1 to be told from noise."""
    return 1 / TIE < value < TIE


def describe_ratio(value: float | None) -> str:
    """Return a ratio as the table shows it: "0.64", "1.10 (tie)", "-" for None."""
    if value is None:
        return "-"
    text = f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
    return f"{text} (tie)" if is_tie(value) else text


@dataclass(frozen=True, slots=True)
class Goal:
    """What Seamgate wants to reach: its figure is at most `at_most` times that of `peer`."""

    peer: str
    scenarios: tuple[str, ...]
    measure: str
    """The name of a Figure or Memory field where less is better."""
    at_most: float
    title: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A goal and what was measured: met, missed, or not measured (met is None)."""

    goal: Goal
    scenario: str
    measured: float | None
    met: bool | None


KEEP_ALIVE = ("small", "big", "small-256", "big-256", "small-1500", "big-1500")

GOALS = (
    Goal("mitmproxy", KEEP_ALIVE, "cpu_us_per_request", 1 / 12, "at least 12 times less CPU a request than mitmproxy"),
    Goal("mitmproxy", KEEP_ALIVE, "cpu_us_per_request", 1 / 20, "at least 20 times less CPU a request than mitmproxy"),
    Goal("proxy.py", KEEP_ALIVE, "cpu_us_per_request", 1.0, "less CPU a request than proxy.py"),
    Goal("squid", KEEP_ALIVE, "cpu_us_per_request", 0.7, "at most 0.7 of Squid's CPU a request"),
    Goal("envoy", KEEP_ALIVE, "cpu_us_per_request", 0.7, "at most 0.7 of Envoy's CPU a request"),
    Goal("nginx", KEEP_ALIVE, "cpu_us_per_request", 2.5, "at most 2.5 times nginx's CPU a request"),
    Goal("nginx", ("stream",), "cpu_us_per_request", 1.25, "large bodies streamed within 25 % of nginx"),
    Goal("squid", ("new",), "cpu_us_per_request", 1.0, "new connections as cheap as Squid's"),
    Goal("squid-first", ("new",), "cpu_us_per_request", 1.0, "new connections as cheap as Squid's without a peek"),
    Goal("squid", ("idle",), "pss_mb", 1.0, "less memory for idle connections than Squid"),
    Goal("envoy", ("idle",), "pss_mb", 1.0, "less memory for idle connections than Envoy"),
    Goal("proxy.py", ("idle",), "pss_mb", 1.0, "less memory for idle connections than proxy.py"),
    Goal("mitmproxy", ("idle",), "pss_mb", 1.0, "less memory for idle connections than mitmproxy"),
    Goal("direct", ("latency",), "added_p50_us", 500.0, "adds under 0.5 ms at the median"),
)
"""`added_p50_us` is the one measure that is absolute: microseconds over `direct` in the same run."""

Table = Mapping[str, Mapping[str, Figure | Memory]]
"""scenario -> peer -> figure."""


OURS = "seamgate"


def judge_goals(table: Table) -> list[Outcome]:
    """Compare Seamgate's figures with every goal whose scenario was measured for both sides."""
    outcomes = []
    for goal in GOALS:
        for scenario in goal.scenarios:
            row = table.get(scenario, {})
            if OURS not in row or goal.peer not in row:
                continue
            measured = _measure(row[OURS], row[goal.peer], goal.measure)
            outcomes.append(Outcome(goal, scenario, measured, None if measured is None else measured <= goal.at_most))
    return outcomes


def _measure(ours: Figure | Memory, theirs: Figure | Memory, measure: str) -> float | None:
    if measure == "added_p50_us":
        return added_latency_us(ours, theirs)
    return ratio(float(getattr(ours, measure)), float(getattr(theirs, measure)))


def added_latency_us(ours: Figure | Memory, direct: Figure | Memory) -> float | None:
    """Return how much later the median answer came than without a proxy, None for memory figures."""
    if isinstance(ours, Figure) and isinstance(direct, Figure):
        return ours.p50_us - direct.p50_us
    return None


def as_json(table: Table) -> dict[str, Any]:
    """Return the table as plain values for `--json`."""
    return {scenario: {peer: asdict(figure) for peer, figure in row.items()} for scenario, row in table.items()}
