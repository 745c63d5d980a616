"""What a gateway is doing, as one value: `/status` answers it as JSON, `seamgate status` shows it to people.

Reads counters; changes nothing. Holds no secret: names, places and numbers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from seamgate import __version__
from seamgate.audit.journal_state import JournalStats
from seamgate.observe.readiness import Problem, loaded_policies, problems
from seamgate.reloading import ReloadCounts

if TYPE_CHECKING:
    from seamgate.gateway import Gateway


class HookStatus(msgspec.Struct, frozen=True):
    """What one hook of a plugin (or its inspectors, as hook "inspector") cost: calls, and wall time on average."""

    hook: str
    calls: int
    failures: int
    overruns: int
    mean_us: float
    denials: int = 0


class PluginStatus(msgspec.Struct, frozen=True):
    """A loaded plugin."""

    name: str
    distribution: str
    version: str
    capabilities: tuple[str, ...]
    hooks: tuple[HookStatus, ...]


class PolicyStatus(msgspec.Struct, frozen=True):
    """A loaded policy file."""

    source: str
    layer: str
    owner: str
    rules: int
    expired: int


class Counts(msgspec.Struct, frozen=True):
    """How much there is of everything, now or since the start (`*_total`)."""

    requests_total: int
    denied_total: int
    requests_active: int
    tunnels_active: int
    connections: int
    connections_limit: int
    connections_refused_total: int
    sessions_busy: int
    sessions_idle: int
    sessions_waiting: int
    sessions_opened_total: int
    sessions_reused_total: int


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker.

    Attributes:
        worker: its number.
        state: "starting", "serving", "stopping" or "gone" (it is started again soon).
        pid: 0 if it is gone.
        generation: that it judges by.
        restarts: how often it was started again.
        requests_total, requests_active, connections: as in `Counts`, of this one.
    """

    worker: int
    state: str
    pid: int
    generation: int
    restarts: int
    requests_total: int
    requests_active: int
    connections: int


class Status(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        entries: entry -> address:port as bound.
        admin: where this is served.
        not_ready: why the gateway is not ready; empty when it is.
        credentials: names only.
        reasons: how requests and tunnels ended: entry -> reason -> count.
        audit: the journal's numbers.
        workers: the processes that carry requests, where they are others than `pid`; all else is of all of them.
    """

    version: str
    pid: int
    configuration: str
    generation: int
    started_at: float
    uptime_s: float
    ready: bool
    not_ready: tuple[Problem, ...]
    entries: dict[str, str]
    admin: str
    reloads: ReloadCounts
    counts: Counts
    reasons: dict[str, dict[str, int]]
    policies: tuple[PolicyStatus, ...]
    credentials: tuple[str, ...]
    plugins: tuple[PluginStatus, ...]
    audit: JournalStats
    workers: tuple[WorkerStatus, ...] = ()


def status_of(gateway: Gateway) -> Status:
    """Return the present status."""
    seam, found = gateway.seam, problems(gateway)
    now = seam.clock()
    return Status(
        version=__version__,
        pid=os.getpid(),
        configuration=gateway.config.source,
        generation=seam.pipeline.generation,
        started_at=gateway.started_at,
        uptime_s=max(0.0, now - gateway.started_at),
        ready=not found,
        not_ready=tuple(found),
        entries={entry: _place(*bound) for entry, bound in gateway.addresses.items()},
        admin=gateway.admin_address,
        reloads=gateway.reloads,
        counts=counts_of(gateway),
        reasons=reasons_of(gateway),
        policies=tuple(_policies(gateway, now)),
        credentials=tuple(gateway.config.credentials),
        plugins=tuple(plugins_of(gateway)),
        audit=gateway.journal_stats,
    )


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def counts_of(gateway: Gateway) -> Counts:
    """Return how much there is in this process."""
    seam, connections = gateway.seam, gateway.connections
    busy, idle, waiting = seam.pool.counts
    return Counts(
        requests_total=seam.requests_total,
        denied_total=seam.denied_total,
        requests_active=seam.active,
        tunnels_active=len(seam.tunnels),
        connections=len(connections.all) + len(connections.handshakes),
        connections_limit=connections.most,
        connections_refused_total=connections.refused_total,
        sessions_busy=busy,
        sessions_idle=idle,
        sessions_waiting=waiting,
        sessions_opened_total=seam.pool.opened_total,
        sessions_reused_total=seam.pool.reused_total,
    )


def reasons_of(gateway: Gateway) -> dict[str, dict[str, int]]:
    """Return how requests and tunnels ended: entry -> reason -> count."""
    found: dict[str, dict[str, int]] = {}
    for (entry, _, _, reason), tally in gateway.seam.tallies.items():
        by_reason = found.setdefault(entry, {})
        by_reason[str(reason or "")] = by_reason.get(str(reason or ""), 0) + tally.count
    return found


def _policies(gateway: Gateway, now: float) -> list[PolicyStatus]:
    return [
        PolicyStatus(
            policy.source,
            str(policy.layer),
            policy.owner,
            len(policy.rules),
            sum([rule.expires_at <= now for rule in policy.rules]),
        )
        for policy in loaded_policies(gateway.seam.pipeline)
    ]


def plugins_of(gateway: Gateway) -> list[PluginStatus]:
    """Return the loaded plugins and what their hooks cost in this process."""
    pipeline = gateway.seam.pipeline
    return [
        PluginStatus(
            plugin.name,
            plugin.distribution,
            plugin.version,
            tuple(sorted(plugin.capabilities)),
            tuple(
                [
                    HookStatus(
                        stats.hook,
                        stats.calls,
                        stats.failures,
                        stats.overruns,
                        round(stats.total_ns / 1000 / stats.calls, 1) if stats.calls else 0.0,
                        stats.denials,
                    )
                    for stats in pipeline.stats
                    if stats.plugin == plugin.name
                ]
            ),
        )
        for plugin in pipeline.plugins
    ]
