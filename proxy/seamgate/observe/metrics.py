"""The gateway's metrics in the Prometheus and OpenMetrics text formats: live counters, read when they are scraped.

Called by the admin listener. Requests cost nothing here: whoever serves them adds integers (`Seam.tallies`,
`PluginStats`, the pool, the journal), and the collectors below read those. There is one registry per generation, so
that plugins can register their collectors anew after each reload; one that fails loses its own metrics only.
docs/operations.md lists the metrics, and a test holds it to that.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from seamgate import __version__
from seamgate.entry.guest_pool import SOURCES, STATES
from seamgate.observe.readiness import CODES, next_expiry, problems, rule_counts

if TYPE_CHECKING:
    from seamgate.gateway import Gateway

log = structlog.get_logger("seamgate.metrics")


class Metrics:
    """What `/metrics` answers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._failures: dict[str, int] = {}
        self._registry = self._make()

    def renew(self) -> None:
        """Another generation is in force: ask its plugins for their collectors."""
        self._registry = self._make()

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """Return (content type, body) in the format that an Accept header prefers."""
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)

    def _make(self) -> CollectorRegistry:
        registry = _GuardedRegistry(self._failures)
        registry.register_own(_GatewayCollector(self._gateway))
        gather = self._gateway.gathered_metrics
        if gather is None:
            _register_work(registry, self._gateway, self._failures)
        else:
            registry.register_own(_Gathered(gather))
        return registry


class WorkMetrics:
    """What one process of a gateway has to tell, where there are several: its work, plugins and resources.

    Made anew for each generation, like `Metrics`.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._registry = _GuardedRegistry({})
        _register_work(self._registry, gateway, {})

    def collect(self) -> list[Metric]:
        """Return the families as they are now."""
        return list(self._registry.collect())


def _register_work(registry: _GuardedRegistry, gateway: Gateway, failures: dict[str, int]) -> None:
    registry.register_own(_WorkCollector(gateway, failures))
    ProcessCollector(registry=registry)
    gateway.seam.pipeline.register_metrics(registry)


class _GuardedRegistry(CollectorRegistry):
    """A registry in which a plugin's collector can't take the others down, nor their names.

    Names are looked up at registration (`auto_describe`), so that two metrics of one name are refused there, which
    the pipeline counts as the plugin's failure.
    """

    def __init__(self, failures: dict[str, int]) -> None:
        super().__init__(auto_describe=True)
        self._failures = failures

    def register(self, collector: Collector) -> None:
        """Add a collector of a plugin (or of prometheus_client)."""
        super().register(_Guarded(collector, self._failures))

    def register_own(self, collector: Collector) -> None:
        """Add a collector that is ours."""
        super().register(collector)


class _Guarded(Collector):
    """A collector whose failure is counted and logged, and costs its own metrics only."""

    def __init__(self, collector: Collector, failures: dict[str, int]) -> None:
        self._collector = collector
        self._failures = failures
        self._name = f"{type(collector).__module__}.{type(collector).__qualname__}"

    def describe(self) -> Iterable[Metric]:
        """Say which metrics there will be; a collector that can't say it is asked for them."""
        describe = getattr(self._collector, "describe", self._collector.collect)
        return list(describe())

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, or none if the collector fails."""
        try:
            return list(self._collector.collect())
        except Exception as error:  # noqa: BLE001 - a plugin's collector must not take the other metrics down
            self._failures[self._name] = self._failures.get(self._name, 0) + 1
            log.error("a collector failed", collector=self._name, error=type(error).__name__)
            return []


class _Gathered(Collector):
    """The sums over all processes of a gateway."""

    def __init__(self, gather: Callable[[], list[Metric]]) -> None:
        self._gather = gather

    def describe(self) -> Iterable[Metric]:
        """Return none: which there are, the other processes say later."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the sums."""
        return self._gather()


class _GatewayCollector(Collector):
    """Reads what there is once in a gateway, however many processes it has: configuration, policy, audit log.

    Every family is there from the start, so that alerts on it are never without data.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def describe(self) -> Iterable[Metric]:
        """Return all families: there is none that comes later."""
        return list(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from self._about()
        yield from self._reloads()
        yield from self._audit()
        yield from self._microvms()

    def _about(self) -> Iterator[Metric]:
        gateway, seam = self._gateway, self._gateway.seam
        build = InfoMetricFamily("seamgate_build", "Version of the gateway and of its Python.")
        build.add_metric([], {"version": __version__, "python": platform.python_version()})
        yield build
        yield GaugeMetricFamily(
            "seamgate_start_time_seconds", "Unix time at which the gateway started.", gateway.started_at
        )
        found = {problem.code for problem in problems(gateway)}
        yield GaugeMetricFamily("seamgate_ready", "1 if the gateway is ready, as /readyz says.", float(not found))
        not_ready = GaugeMetricFamily("seamgate_not_ready", "1 for each reason not to be ready.", labels=["reason"])
        for code in CODES:
            not_ready.add_metric([code], float(code in found))
        yield not_ready
        yield GaugeMetricFamily("seamgate_generation", "Number of the policy in force.", seam.pipeline.generation)
        active, expired = rule_counts(seam.pipeline, seam.clock())
        rules = GaugeMetricFamily("seamgate_policy_rules", "Rules in force, and expired.", labels=["state"])
        rules.add_metric(["active"], active)
        rules.add_metric(["expired"], expired)
        yield rules
        expiry = GaugeMetricFamily("seamgate_policy_next_expiry_timestamp_seconds", "When the next rule expires.")
        at = next_expiry(seam.pipeline, seam.clock())
        if at is not None:
            expiry.add_metric([], at)
        yield expiry
        ca = GaugeMetricFamily("seamgate_ca_expiry_timestamp_seconds", "When the CA that guests trust expires.")
        if gateway.ca_expires_at is not None:
            ca.add_metric([], gateway.ca_expires_at)
        yield ca
        yield GaugeMetricFamily("seamgate_connections_limit", "Most connections at once.", gateway.connections.most)

    def _reloads(self) -> Iterator[Metric]:
        counts = self._gateway.reloads
        reloads = CounterMetricFamily("seamgate_reloads", "Reloads that were done, or refused.", labels=["result"])
        reloads.add_metric(["done"], counts.done)
        reloads.add_metric(["refused"], counts.refused)
        yield reloads
        yield GaugeMetricFamily(
            "seamgate_last_reload_successful", "0 if the last reload was refused.", float(not counts.last_problem)
        )
        yield GaugeMetricFamily(
            "seamgate_last_reload_timestamp_seconds", "When what is in force was loaded.", counts.last_at
        )
        yield GaugeMetricFamily(
            "seamgate_restart_pending", "Changed sections that wait for a restart.", len(counts.needs_restart)
        )
        revoked = CounterMetricFamily("seamgate_revoked", "What reloads ended while it was under way.", labels=["what"])
        revoked.add_metric(["request"], counts.revoked_requests)
        revoked.add_metric(["tunnel"], counts.revoked_tunnels)
        yield revoked

    def _audit(self) -> Iterator[Metric]:
        stats, healthy = self._gateway.journal_stats, self._gateway.seam.journal.healthy
        yield GaugeMetricFamily("seamgate_audit_healthy", "0 while the audit log can't be written.", float(healthy))
        yield GaugeMetricFamily("seamgate_audit_seq", "Number of the last record in the journal.", stats.seq)
        yield GaugeMetricFamily("seamgate_audit_pending", "Records that wait in memory.", stats.pending)
        yield CounterMetricFamily("seamgate_audit_records", "Records written.", stats.records)
        yield CounterMetricFamily("seamgate_audit_bytes", "Bytes written.", stats.bytes)
        yield CounterMetricFamily("seamgate_audit_writes", "Write calls that they took.", stats.batches)
        yield CounterMetricFamily("seamgate_audit_lost", "Records that did not fit into memory.", stats.lost)
        yield CounterMetricFamily("seamgate_audit_failures", "Writes that failed.", stats.failures)
        yield CounterMetricFamily("seamgate_audit_rotations", "Segments finished.", stats.rotations)

    def _microvms(self) -> Iterator[Metric]:
        pool = self._gateway.guest_pool
        states = GaugeMetricFamily(
            "seamgate_microvms", "Machines that wait, and guests of the gateway's pool.", labels=["state"]
        )
        counts = {} if pool is None else pool.states()
        for state in STATES:
            states.add_metric([state], counts.get(state, 0))
        restores = CounterMetricFamily(
            "seamgate_microvm_restores", "Guests that were restored, by what on.", labels=["source"]
        )
        restored = {} if pool is None else pool.restores()
        for source in SOURCES:
            restores.add_metric([source], restored.get(source, 0))
        ends = CounterMetricFamily("seamgate_microvm_ends", "Guests of the pool that ended.", labels=["reason"])
        for reason, count in ({} if pool is None else pool.ends()).items():
            ends.add_metric([reason], count)
        yield from (states, restores, ends)


class _WorkCollector(Collector):
    """Reads what each process of a gateway counts for itself: requests, connections, sessions, calls of plugins."""

    def __init__(self, gateway: Gateway, failures: dict[str, int]) -> None:
        self._gateway = gateway
        self._failures = failures

    def describe(self) -> Iterable[Metric]:
        """Return all families: there is none that comes later."""
        return list(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from self._requests()
        yield from self._connections()
        yield from self._plugins()

    def _requests(self) -> Iterator[Metric]:
        seam = self._gateway.seam
        outcome = ["entry", "kind", "verdict", "reason"]
        count = CounterMetricFamily("seamgate_requests", "Requests and tunnels that ended, each once.", labels=outcome)
        duration = SummaryMetricFamily(
            "seamgate_request_duration_seconds", "From a request's head to its end.", labels=["entry", "verdict"]
        )
        body = CounterMetricFamily(
            "seamgate_body_bytes", "Body bytes, on the guests' side.", labels=["entry", "direction"]
        )
        durations: dict[tuple[str, str], list[float]] = {}
        volumes: dict[str, list[int]] = {}
        for (entry, kind, verdict, reason), tally in seam.tallies.items():
            decided, why = str(verdict or ""), str(reason or "")
            count.add_metric([entry, str(kind), decided, why], tally.count)
            if kind == "request":  # a tunnel's time is that of its connection
                spent = durations.setdefault((entry, decided), [0, 0.0])
                spent[0] += tally.count
                spent[1] += tally.duration_ms / 1000
            volume = volumes.setdefault(entry, [0, 0])
            volume[0] += tally.request_bytes
            volume[1] += tally.response_bytes
        for (entry, decided), (number, seconds) in durations.items():
            duration.add_metric([entry, decided], int(number), seconds)
        for entry, (sent, received) in volumes.items():
            body.add_metric([entry, "request"], sent)
            body.add_metric([entry, "response"], received)
        yield from (count, duration, body)
        repeated = CounterMetricFamily(
            "seamgate_requests_repeated", "Requests that were sent again.", labels=["reason"]
        )
        for why, times in seam.repeated.items():
            repeated.add_metric([why], times)
        yield repeated
        yield GaugeMetricFamily("seamgate_requests_active", "Requests under way.", seam.active)
        yield GaugeMetricFamily("seamgate_tunnels_active", "Tunnels that are open.", len(seam.tunnels))

    def _connections(self) -> Iterator[Metric]:
        connections, pool = self._gateway.connections, self._gateway.seam.pool
        guests = GaugeMetricFamily("seamgate_connections", "Guests' connections.", labels=["state"])
        guests.add_metric(["open"], len(connections.all))
        guests.add_metric(["handshake"], len(connections.handshakes))
        yield guests
        yield CounterMetricFamily(
            "seamgate_connections_refused", "Connections beyond the limit.", connections.refused_total
        )
        busy, idle, waiting = pool.counts
        sessions = GaugeMetricFamily("seamgate_sessions", "Sessions with upstreams.", labels=["state"])
        sessions.add_metric(["busy"], busy)
        sessions.add_metric(["idle"], idle)
        yield sessions
        yield GaugeMetricFamily("seamgate_sessions_waiting", "Requests that wait for a session.", waiting)
        yield CounterMetricFamily("seamgate_sessions_opened", "Sessions opened.", pool.opened_total)
        yield CounterMetricFamily("seamgate_sessions_reused", "Requests on a session that was warm.", pool.reused_total)
        asked = CounterMetricFamily("seamgate_dns_queries", "Questions to the entry `dns`.", labels=["result"])
        for result, times in self._gateway.listeners.dns_counts.items():
            asked.add_metric([result], times)
        yield asked

    def _plugins(self) -> Iterator[Metric]:
        labels = ["plugin", "hook"]
        calls = CounterMetricFamily("seamgate_plugin_calls", "Calls of a plugin's hook.", labels=labels)
        denials = CounterMetricFamily("seamgate_plugin_denials", "Calls that denied or refused.", labels=labels)
        failures = CounterMetricFamily("seamgate_plugin_failures", "Calls that raised or gave nonsense.", labels=labels)
        overruns = CounterMetricFamily("seamgate_plugin_overruns", "Calls that took too long.", labels=labels)
        seconds = CounterMetricFamily("seamgate_plugin_seconds", "Wall time that calls took.", labels=labels)
        for stats in self._gateway.seam.pipeline.stats:
            at = [stats.plugin, stats.hook]
            calls.add_metric(at, stats.calls)
            denials.add_metric(at, stats.denials)
            failures.add_metric(at, stats.failures)
            overruns.add_metric(at, stats.overruns)
            seconds.add_metric(at, stats.total_ns / 1e9)
        yield from (calls, denials, failures, overruns, seconds)
        broken = CounterMetricFamily(
            "seamgate_collector_failures", "Scrapes without a collector.", labels=["collector"]
        )
        for name, count in self._failures.items():
            broken.add_metric([name], count)
        yield broken
