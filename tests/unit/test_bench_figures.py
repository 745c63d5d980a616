"""What the bench computes from its samples."""

import math

import pytest

from seamgate_bench import figures
from seamgate_bench.figures import Figure, Memory, Sample


def sample(requests: int = 1000, cpu_us: float = 50_000.0, steal: float = 0.0) -> Sample:
    return Sample(
        requests=requests,
        seconds=0.5,
        cpu_us=cpu_us,
        p50_us=100.0,
        p99_us=300.0,
        load_cpu_us_per_request=8.0,
        upstream_connects=0,
        steal=steal,
        neighbours=0.0,
    )


def figure(cpu_us_per_request: float, p50_us: float = 100.0) -> Figure:
    one = figures.summarise([sample(cpu_us=cpu_us_per_request * 1000)])
    return Figure(**{**{f: getattr(one, f) for f in one.__slots__}, "p50_us": p50_us})


def memory(pss_mb: float) -> Memory:
    return Memory(1500, pss_mb * 1.2, pss_mb, 20.0, 16, 500.0)


def test_a_figure_is_the_median_and_not_the_mean() -> None:
    """One repetition that a neighbour disturbed does not move the figure; it shows in the extremes."""
    one = figures.summarise([sample(cpu_us=50_000), sample(cpu_us=52_000), sample(cpu_us=900_000, steal=0.4)])
    assert one.cpu_us_per_request == 52.0
    assert (one.cpu_us_min, one.cpu_us_max, one.steal_max) == (50.0, 900.0, 0.4)
    assert one.requests_per_s == 2000.0


@pytest.mark.parametrize("samples", [[], [sample(requests=0)]])
def test_no_figure_comes_from_nothing(samples: list[Sample]) -> None:
    """A repetition without an answered request is an error, never a zero in a table."""
    with pytest.raises(ValueError, match="needs samples"):
        figures.summarise(samples)


def test_a_ratio_needs_both_sides() -> None:
    """What was not measured gives no ratio."""
    assert figures.ratio(50.0, 100.0) == 0.5
    assert figures.ratio(0.0, 100.0) is None
    assert figures.ratio(50.0, 0.0) is None


@pytest.mark.parametrize(("value", "tie"), [(1.0, True), (1.24, True), (0.81, True), (1.25, False), (0.8, False)])
def test_a_quarter_is_the_border_of_a_tie(value: float, tie: bool) -> None:
    """Under 25 % either way is a tie."""
    assert figures.is_tie(value) is tie


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0512, "0.051"), (0.64, "0.64"), (1.1, "1.10 (tie)")])
def test_ratios_read_well(value: float | None, text: str) -> None:
    """Small ratios keep two significant digits, ties are called so."""
    assert figures.describe_ratio(value) == text


def test_a_goal_is_met_by_at_most_its_ratio() -> None:
    """Seamgate at 0.7 of Squid meets "at most 0.7"; at 0.8 it misses."""
    for ours, met in ((70.0, True), (80.0, False)):
        outcomes = figures.judge_goals({"small": {"seamgate": figure(ours), "squid": figure(100.0)}})
        assert [(o.scenario, o.met) for o in outcomes] == [("small", met)]


def test_memory_and_latency_goals_read_their_own_measures() -> None:
    """Idle memory is compared as a ratio, added latency in microseconds over direct."""
    table: figures.Table = {
        "idle": {"seamgate": memory(80.0), "squid": memory(300.0)},
        "latency": {"seamgate": figure(50.0, p50_us=120.0), "direct": figure(1.0, p50_us=20.0)},
    }
    measured = {o.scenario: o.measured for o in figures.judge_goals(table)}
    assert math.isclose(measured["idle"] or 0, 80 / 300)
    assert measured["latency"] == 100.0


def test_goals_are_about_seamgate_alone() -> None:
    """A run without Seamgate judges no goal."""
    assert figures.judge_goals({"small": {"squid": figure(100.0), "nginx": figure(30.0)}}) == []
