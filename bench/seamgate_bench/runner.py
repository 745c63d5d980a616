"""Runs scenarios against peers, interleaved: repetition by repetition, each peer in turn, all on the same cores.

What goes wrong with one peer is kept as text and shown in its place; the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seamgate_bench import procfs
from seamgate_bench.figures import Figure, Memory, Sample, summarise
from seamgate_bench.ground import Ground, UpstreamStatus, connects_between, upstream_status
from seamgate_bench.lineup import Scenario, fits
from seamgate_bench.load import Demand, Load
from seamgate_bench.peers import Peer, Running, started
from seamgate_bench.process import PeerFailed, can_mount

Say = Callable[[str], None]
NEEDS_HOSTS = frozenset({"mitmproxy", "proxy.py"})
"""These resolve the upstream's name through the system, and so need an /etc/hosts of their own."""

TERMINAL_RECORD = b'"kind":"request"'
"""Each request has exactly one such line in Seamgate's audit log, besides the one that is written ahead."""


@dataclass(slots=True)
class Results:
    """All that a run found out."""

    missing: dict[str, str] = field(default_factory=dict)
    """peer -> why it was not measured at all."""
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """scenario -> peer -> what went wrong."""
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)
    memory: dict[str, dict[str, Memory]] = field(default_factory=dict)
    tls: dict[str, str] = field(default_factory=dict)
    """peer -> what TLS the client agreed on with it."""
    versions: dict[str, str] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    """peer -> requests that the load generator saw answered while all peers ran, the unmeasured ones too."""
    audited: dict[str, tuple[int, int]] = field(default_factory=dict)
    """peer -> (terminal records in its audit log, requests answered)."""

    def table(self) -> dict[str, dict[str, Figure | Memory]]:
        """Return scenario -> peer -> figure."""
        rows: dict[str, dict[str, Figure | Memory]] = {
            scenario: {peer: summarise(samples) for peer, samples in row.items() if samples}
            for scenario, row in self.samples.items()
        }
        for scenario, memories in self.memory.items():
            rows.setdefault(scenario, {}).update(memories)
        return rows


class Runner:
    """One run over a ground."""

    def __init__(self, ground: Ground, load: Path, *, repeats: int, seconds: float, say: Say) -> None:
        self._ground = ground
        self._load = load
        self._repeats = repeats
        self._seconds = seconds
        self._say = say
        self.results = Results()

    def run(self, peers: Sequence[Peer], scenarios: Sequence[Scenario]) -> Results:
        """Measure every peer in every scenario that fits it."""
        present = [p for p in peers if self._is_there(p)]
        timed = [s for s in scenarios if not s.idle]
        if timed:
            self._run_timed(present, timed)
        for scenario in scenarios:
            if scenario.idle:
                self._run_idle([p for p in present if p.name not in self.results.missing], scenario)
        return self.results

    def _is_there(self, peer: Peer) -> bool:
        reason = peer.missing()
        if reason is None and peer.name in NEEDS_HOSTS and not can_mount():
            reason = (
                "no private mount namespace can be made here (needs root), so its name for the upstream can't be set"
            )
        if reason is not None:
            self.results.missing[peer.name] = reason
            return False
        self.results.versions[peer.name] = peer.version()
        return True

    def _run_timed(self, peers: Sequence[Peer], scenarios: Sequence[Scenario]) -> None:
        with ExitStack() as stack:
            running: list[tuple[Peer, Running]] = []
            for peer in peers:
                if not any(fits(peer, s) for s in scenarios):
                    continue
                self._say(f"starting {peer.name}")
                try:
                    running.append((peer, stack.enter_context(started(peer, self._ground))))
                except PeerFailed as error:
                    self.results.missing[peer.name] = str(error)
            for scenario in scenarios:
                self._run_scenario(scenario, [(p, r) for p, r in running if fits(p, scenario)])
        for peer, run in running:
            self._count_audit(peer, run)

    def _run_scenario(self, scenario: Scenario, running: Sequence[tuple[Peer, Running]]) -> None:
        row = self.results.samples.setdefault(scenario.name, {})
        failed = self.results.failed.setdefault(scenario.name, {})
        repeats = min(self._repeats, scenario.repeats_at_most)
        for repeat in range(repeats):
            for peer, run in running:
                if peer.name in failed:
                    continue
                self._say(f"{scenario.name} {repeat + 1}/{repeats}: {peer.name}")
                try:
                    row.setdefault(peer.name, []).append(self._sample(peer, run, scenario))
                except PeerFailed as error:
                    failed[peer.name] = str(error)
                    row.pop(peer.name, None)

    def _demand(self, scenario: Scenario) -> Demand:
        rehearse = 0 if scenario.idle else 2
        return Demand(scenario.path, scenario.connections, self._seconds, scenario.new_connection, rehearse)

    def _sample(self, peer: Peer, run: Running, scenario: Scenario) -> Sample:
        pid = run.program.pid if run.program is not None else None
        if pid is not None and scenario.one_core:
            procfs.pin_tree(pid, self._ground.load_core)
        try:
            with Load(self._load, self._ground, run.way, self._demand(scenario)) as load:
                ready = load.ready()
                self.results.tls[peer.name] = ready["tls"]
                before = _Moment.now(self._ground, pid)
                done = load.run()
                after = _Moment.now(self._ground, pid)
                answered = self.results.answered.get(peer.name, 0)
                self.results.answered[peer.name] = answered + ready["answered"] + done["requests"]
        finally:
            if pid is not None and scenario.one_core:
                procfs.pin_tree(pid, self._ground.proxy_core)
        return _make_sample(done, before, after, self._ground, alone=not scenario.one_core)

    def _run_idle(self, peers: Sequence[Peer], scenario: Scenario) -> None:
        row = self.results.memory.setdefault(scenario.name, {})
        failed = self.results.failed.setdefault(scenario.name, {})
        for peer in peers:
            if not fits(peer, scenario):
                continue
            self._say(f"{scenario.name}: {peer.name}")
            try:
                with started(peer, self._ground, suffix="-idle") as run:
                    row[peer.name] = self._hold(run, scenario)
            except PeerFailed as error:
                failed[peer.name] = str(error)

    def _hold(self, run: Running, scenario: Scenario) -> Memory:
        assert run.program is not None
        pid = run.program.pid
        _, before_pss = procfs.memory_mb(pid)
        cpu = procfs.cpu_us(pid)
        with Load(self._load, self._ground, run.way, self._demand(scenario)) as load:
            load.ready()
            cpu = procfs.cpu_us(pid) - cpu
            sessions = upstream_status(self._ground).active
            rss, pss = procfs.memory_mb(pid)
        return Memory(
            connections=scenario.connections,
            rss_mb=rss,
            pss_mb=pss,
            before_pss_mb=before_pss,
            upstream_sessions=sessions,
            setup_cpu_us_per_connection=cpu / scenario.connections,
        )

    def _count_audit(self, peer: Peer, run: Running) -> None:
        """Compare the audit log of a peer that has ended with the requests that were answered through it."""
        if run.audit is None:
            return
        records = 0
        # Finished segments lie beside the active file: audit.jsonl.0000000000000001 and so on.
        segments = [p for p in run.audit.parent.glob(f"{run.audit.name}*") if p.suffix[1:].isdigit()]
        for path in [*segments, run.audit]:
            if path.exists():
                with path.open("rb") as lines:
                    records += sum(TERMINAL_RECORD in line for line in lines)
        self.results.audited[peer.name] = (records, self.results.answered.get(peer.name, 0))


@dataclass(frozen=True, slots=True)
class _Moment:
    """The clocks at one end of a measured part."""

    cpu_us: float
    upstream: UpstreamStatus
    cores: dict[int, procfs.CoreTicks]
    at: float

    @classmethod
    def now(cls, ground: Ground, pid: int | None) -> _Moment:
        cpu = procfs.cpu_us(pid) if pid is not None else 0.0
        return cls(cpu, upstream_status(ground), procfs.core_ticks(), time.monotonic())


def _make_sample(done: dict[str, Any], before: _Moment, after: _Moment, ground: Ground, *, alone: bool) -> Sample:
    cpu_us = after.cpu_us - before.cpu_us
    cores = (ground.proxy_core, ground.load_core)
    total = sum(after.cores[c].total - before.cores[c].total for c in cores)
    steal = sum(after.cores[c].steal - before.cores[c].steal for c in cores)
    busy_us = (after.cores[ground.proxy_core].busy - before.cores[ground.proxy_core].busy) * procfs.TICK_US
    elapsed_us = (after.at - before.at) * 1e6
    return Sample(
        requests=done["requests"],
        seconds=done["seconds"],
        cpu_us=cpu_us,
        p50_us=done["latency_us"]["p50"],
        p99_us=done["latency_us"]["p99"],
        load_cpu_us_per_request=done["load_cpu_us_per_request"],
        upstream_connects=connects_between(before.upstream, after.upstream),
        steal=steal / total if total else 0.0,
        neighbours=max(0.0, (busy_us - cpu_us) / elapsed_us) if alone else 0.0,
    )
