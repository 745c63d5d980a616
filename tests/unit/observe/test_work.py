"""The work of several processes as one: what is counted is added, what is one for all is not."""

from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from seamgate.observe.status import Counts, HookStatus, PluginStatus
from seamgate.observe.work import Family, Sample, Work, add_works, families_of, metrics_of, remains


def counts(**some: int) -> Counts:
    """Return counts that are 1 where nothing else is said."""
    return Counts(**{name: some.get(name, 1) for name in Counts.__struct_fields__})


def work(pid: int, **some: int) -> Work:
    """Return what a process did."""
    registry = CollectorRegistry()
    asked = Counter("asked", "Asked.", ["by"], registry=registry)
    asked.labels("a").inc(pid)
    Gauge("open", "Open.", registry=registry).set(2)
    Histogram("took", "Took.", registry=registry, buckets=(1, 2)).observe(1.5)
    hook = HookStatus("judge_request", pid, 1, 0, 10.0 * pid)
    plugin = PluginStatus("policy", "seamgate", "1", (), (hook,))
    return Work(pid, 1, 0.0, counts(**some), {"proxy": {"allowed": pid}}, (plugin,), families_of(registry.collect()))


def value(families: list[Family], name: str, **labels: str) -> float | None:
    """Return a sample's value."""
    found = [each for family in families for each in family.samples if each.name == name and each.labels == labels]
    return found[0].value if found else None


def test_the_sum_of_two() -> None:
    """Counts, reasons, calls and samples are added; the mean is that of all calls, the limit is one for all."""
    both = add_works([work(1, requests_total=5, connections_limit=7), work(3, requests_total=6, connections_limit=7)])
    assert (both.counts.requests_total, both.counts.connections_limit, both.counts.connections) == (11, 7, 2)
    assert both.reasons == {"proxy": {"allowed": 4}}
    assert both.plugins[0].hooks == (HookStatus("judge_request", 4, 2, 0, 25.0),)
    assert value(both.families, "asked_total", by="a") == 4
    assert value(both.families, "open") == 4
    assert value(both.families, "took_bucket", le="2.0") == 2


def test_times_of_creation_are_not_added() -> None:
    """The oldest of them says since when the sum is counted; the time of a process's start is the first one's."""
    one = Family("a", "A.", "counter", "", [Sample("a_total", {}, 1.0), Sample("a_created", {}, 100.0)])
    other = Family("a", "A.", "counter", "", [Sample("a_total", {}, 2.0), Sample("a_created", {}, 90.0)])
    start = Family("process_start_time_seconds", "S.", "gauge", "", [Sample("process_start_time_seconds", {}, 5.0)])
    first, second = work(1), work(2)
    first = msgspec.structs.replace(first, families=[one, start])
    both = add_works([first, msgspec.structs.replace(second, families=[other, start])])
    assert value(both.families, "a_total") == 3
    assert value(both.families, "a_created") == 90
    assert value(both.families, "process_start_time_seconds") == 5


def test_of_a_dead_process_stays_what_it_did() -> None:
    """Counters stay in the sums, so that none falls; what it held is gone with it."""
    left = remains(work(4, requests_total=9, requests_active=3, connections=8))
    assert (left.counts.requests_total, left.counts.requests_active, left.counts.connections) == (9, 0, 0)
    assert value(left.families, "asked_total", by="a") == 4
    assert value(left.families, "took_count") == 1
    assert value(left.families, "open") is None


def test_sums_are_exported_as_any_metric() -> None:
    """What Prometheus reads of a sum is what it would read of one process."""

    class Sums(CollectorRegistry):
        def collect(self):  # type: ignore[no-untyped-def]
            return metrics_of(add_works([work(1), work(2)]).families)

    text = generate_latest(Sums()).decode()
    assert '# TYPE asked_total counter\nasked_total{by="a"} 3.0\n' in text
    assert 'took_bucket{le="+Inf"} 2.0' in text
