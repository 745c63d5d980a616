"""What one process of a gateway did, as a value that another one can add up: counts, plugins' costs, metrics.

Made by each worker when it is asked (`work_of`), added up by the supervisor (`add_works`) for `/status` and `/metrics`.
Of a worker that is dead its counters stay in the sums (`remains`), so that none ever falls. No I/O.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client import Metric

from seamgate.observe.metrics import WorkMetrics
from seamgate.observe.status import Counts, HookStatus, PluginStatus, counts_of, plugins_of, reasons_of

if TYPE_CHECKING:
    from seamgate.gateway import Gateway

_COUNTERS: Final = frozenset(("counter", "summary", "histogram"))
# What is the same in all processes, or that of the first.
_NOT_ADDED: Final = frozenset(("process_start_time_seconds",))
_CREATED: Final = "_created"


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One number of a family."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric's samples, as `prometheus_client.Metric` has them."""

    name: str
    documentation: str
    type: str
    unit: str
    samples: list[Sample]


class Work(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        pid: of the process.
        generation: of the policy that it judges by.
        started_at: Unix time of its start.
        counts, reasons, plugins: as in `seamgate.observe.status.Status`.
        families: its metrics.
    """

    pid: int
    generation: int
    started_at: float
    counts: Counts
    reasons: dict[str, dict[str, int]]
    plugins: tuple[PluginStatus, ...]
    families: list[Family]


def work_of(gateway: Gateway, metrics: WorkMetrics) -> Work:
    """Return what this process did so far."""
    return Work(
        os.getpid(),
        gateway.seam.pipeline.generation,
        gateway.started_at,
        counts_of(gateway),
        reasons_of(gateway),
        tuple(plugins_of(gateway)),
        families_of(metrics.collect()),
    )


def families_of(metrics: Iterable[Metric]) -> list[Family]:
    """Return metrics as values."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            metric.unit,
            [Sample(each.name, dict(each.labels), float(each.value)) for each in metric.samples],
        )
        for metric in metrics
    ]


def remains(work: Work) -> Work:
    """Return what stays of a process that is dead: what it did, not what it held."""
    counts = msgspec.structs.asdict(work.counts)
    kept = {name: value if name.endswith("_total") else 0 for name, value in counts.items()}
    families = [family for family in work.families if family.type in _COUNTERS and not _of_process(family)]
    return msgspec.structs.replace(work, counts=Counts(**kept), families=families)


def _of_process(family: Family) -> bool:
    return family.name.startswith("process_")


def add_counts(every: Sequence[Counts]) -> Counts:
    """Return the sums; the limit is one for all."""
    sums = {name: sum([getattr(each, name) for each in every]) for name in Counts.__struct_fields__}
    return Counts(**{**sums, "connections_limit": every[0].connections_limit})


def add_reasons(every: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the sums: entry -> reason -> count."""
    sums: dict[str, dict[str, int]] = {}
    for reasons in every:
        for entry, by_reason in reasons.items():
            into = sums.setdefault(entry, {})
            for reason, count in by_reason.items():
                into[reason] = into.get(reason, 0) + count
    return sums


def add_plugins(every: Sequence[tuple[PluginStatus, ...]]) -> tuple[PluginStatus, ...]:
    """Return the plugins of the first, with the calls of all."""
    calls: dict[tuple[str, str], list[HookStatus]] = {}
    for plugins in every:
        for plugin in plugins:
            for hook in plugin.hooks:
                calls.setdefault((plugin.name, hook.hook), []).append(hook)
    return tuple(
        msgspec.structs.replace(
            plugin, hooks=tuple([_add_hooks(calls[plugin.name, hook.hook]) for hook in plugin.hooks])
        )
        for plugin in every[0]
    )


def _add_hooks(hooks: list[HookStatus]) -> HookStatus:
    calls = sum(each.calls for each in hooks)
    spent_us = sum(each.mean_us * each.calls for each in hooks)
    return HookStatus(
        hooks[0].hook,
        calls,
        sum(each.failures for each in hooks),
        sum(each.overruns for each in hooks),
        round(spent_us / calls, 1) if calls else 0.0,
        sum(each.denials for each in hooks),
    )


def add_works(every: Sequence[Work]) -> Work:
    """Return all of it as one; what can't be added is that of the first."""
    return msgspec.structs.replace(
        every[0],
        counts=add_counts([work.counts for work in every]),
        reasons=add_reasons([work.reasons for work in every]),
        plugins=add_plugins([work.plugins for work in every]),
        families=add_families([work.families for work in every]),
    )


def metrics_of(families: Iterable[Family]) -> list[Metric]:
    """Return values as metrics again."""
    metrics: list[Metric] = []
    for family in families:
        metric = Metric(family.name, family.documentation, family.type, family.unit)
        for sample in family.samples:
            metric.add_sample(sample.name, sample.labels, sample.value)
        metrics.append(metric)
    return metrics


def add_families(every: Iterable[list[Family]]) -> list[Family]:
    """Return the sums of samples with the same name and labels; the oldest of times of creation."""
    merged: dict[str, tuple[Family, dict[tuple[str, tuple[tuple[str, str], ...]], float]]] = {}
    for families in every:
        for family in families:
            known = merged.get(family.name)
            if known is None:
                known = merged[family.name] = family, {}
            sums = known[1]
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                before = sums.get(key)
                if before is None:
                    sums[key] = sample.value
                elif sample.name.endswith(_CREATED):
                    sums[key] = min(before, sample.value)
                elif sample.name not in _NOT_ADDED:
                    sums[key] = before + sample.value
    return [
        msgspec.structs.replace(
            family, samples=[Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
        )
        for family, sums in merged.values()
    ]
