"""`seamgate vm bench`: agents in microVMs, a gateway as anybody's, an upstream that talks like an LLM API.

Called by `seamgate.cli.vm`. `seamgate_vmm.bench` drives and measures the agents; here are the gateway that judges each
of their requests (policy, condition, credential, inspection, audit record), the upstream's process, and the command.
Everything is on loopback and in a folder that is gone afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop
from prometheus_client import CollectorRegistry

from seamgate.ca.store import init_ca
from seamgate.config import Entries, KvmEntry, parse_config
from seamgate.demo.names import NameServer
from seamgate.entry.identity import GuestConfig, make_guest
from seamgate.entry.ring import RingGuest
from seamgate.errors import PrerequisiteMissing
from seamgate.flow import Isolation
from seamgate.gateway import Gateway
from seamgate.observe.logging import configure_logging
from seamgate_vmm.bench.agents import Measured, Seam, SeamGuest, measure
from seamgate_vmm.bench.report import BenchReport, Upstream
from seamgate_vmm.cli import exit_codes
from seamgate_vmm.names import NameTable
from seamgate_vmm.runner import DEFAULT_TEMPLATE, ensure_template

_HOST = "api.llm.test"
_COLD = 20  # names that are looked up to see what one costs
_KEY, _PLACEHOLDER = "LLM_API_KEY", "sk-bench-placeholder-0000000000"
_SESSIONS = 64
_STARTED_S = 20.0
_CONFIG = """\
entries: {{proxy: {{listen: 127.0.0.1:0, guest: bench}}}}
guests: {{bench: {{labels: {{team: bench}}}}}}
policies: [bench.yaml]
credentials:
  llm:
    source: {{env: LLM_API_KEY}}
    inject: {{header: x-api-key}}
    hosts: [api.llm.test]
    placeholder: {placeholder}
ca: {{dir: ca}}
audit: {{path: audit.jsonl}}
limits: {{plugin_budget_s: 2}}
pool: {{sessions_per_origin: {sessions}, queue_timeout_s: 300}}
dns: {{servers: ["{dns}"], hosts_file: false, families: ipv4}}
upstream_tls:
  origins: [{{hosts: ["*.llm.test"], ca: upstream-ca/ca.pem, roots: only}}]
"""
_POLICY = """\
seamgate: 1
rules:
  - id: llm-messages
    allow: {hosts: [api.llm.test], ports: ["*"], methods: [POST], paths: [/v1/messages]}
    guests: {team: bench}
    when: request.json.model.startsWith("bench-")
    credential: llm
    limits: {requests: 100000/min, request_body: 1MiB}
    inspect: [secrets]
    addresses: [loopback]
"""


class Ground:
    """The gateway, the name server and the upstream. `async with Ground(folder) as ground: ...`"""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = NameServer({_HOST: "127.0.0.1"} | {f"cold-{n}.llm.test": "127.0.0.1" for n in range(_COLD)})
        self._process: asyncio.subprocess.Process | None = None
        self._key_before = os.environ.get(_KEY)
        self.gateway: Gateway
        self.port = 0

    async def __aenter__(self) -> Ground:
        key = f"sk-bench-{secrets.token_hex(16)}"
        os.environ[_KEY] = key  # the credential's source is the gateway's environment
        try:
            init_ca(self._folder / "ca")
            self.port = await self._start_upstream()
            text = _CONFIG.format(placeholder=_PLACEHOLDER, sessions=_SESSIONS, dns=await self._names.start())
            (self._folder / "bench.yaml").write_text(_POLICY, encoding="utf-8")
            config = parse_config(text, "vm bench", base=self._folder)
            rings_only = Entries(kvm=KvmEntry())
            self.gateway = Gateway(msgspec.structs.replace(config, entries=rings_only))
            await self.gateway.start()
        except BaseException:
            await self._take_down()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.gateway.stop(grace_s=1.0)
        await self._take_down()

    async def _start_upstream(self) -> int:
        command = [sys.executable, "-m", "seamgate.demo.upstream_process", str(self._folder / "upstream-ca")]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            return int(await self._line())
        except (TimeoutError, ValueError):
            raise PrerequisiteMissing("the upstream of the bench did not start; see above") from None

    async def _line(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        async with asyncio.timeout(_STARTED_S):
            return await self._process.stdout.readline()

    async def _take_down(self) -> None:
        if self._key_before is None:
            os.environ.pop(_KEY, None)
        else:
            os.environ[_KEY] = self._key_before
        self._names.stop()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()

    def seam(self) -> Seam:
        """Return what the agents get."""
        return Seam(self._guest, self.port, _PLACEHOLDER)

    def _guest(self, name: str) -> SeamGuest:
        guest = make_guest(name, GuestConfig(labels={"team": "bench"}), Isolation.KVM)
        ring = RingGuest(self.gateway, guest, KvmEntry())
        return SeamGuest(ring.accept, NameTable(ring.judge_name), ring.ended)

    async def counted(self) -> Upstream:
        """Return what gateway and upstream have counted, and what looking up a name costs."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(b"\n")
        upstream: dict[str, int] = json.loads(await self._line())
        registry = CollectorRegistry()
        pipeline = self.gateway.seam.pipeline
        pipeline.register_metrics(registry)

        def lookups(result: str) -> int:
            return int(registry.get_sample_value("seamgate_dns_lookups_total", {"result": result}) or 0)

        hits, misses = lookups("hits") + lookups("coalesced"), lookups("misses")
        return Upstream(
            upstream["open"], upstream["connections"], upstream["requests"], self.gateway.journal_stats.records,
            hits, misses, *await self._cost_of_names(),
        )  # fmt: skip

    async def _cost_of_names(self) -> tuple[float, float]:
        """Return the microseconds of a look-up of a name that is known, and of one that has to be asked for."""
        pipeline = self.gateway.seam.pipeline
        known: list[float] = []
        asked: list[float] = []
        for number in range(_COLD):
            for name, costs in ((f"cold-{number}.llm.test", asked), (_HOST, known)):
                start = time.perf_counter_ns()
                found = pipeline.resolve_name(name, [])
                if asyncio.isfuture(found) or asyncio.iscoroutine(found):
                    await found
                costs.append((time.perf_counter_ns() - start) / 1e3)
        return sorted(known)[_COLD // 2], sorted(asked)[_COLD // 2]


class _Progress:
    """One line on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far it is."""
        if self._shown:
            end = "\n" if self._what and self._what != what else ""
            self._what = what
            click.echo(f"{end}\r{what}: {done} of {total}\x1b[K", nl=False, err=True)

    def end(self) -> None:
        """Leave the line."""
        if self._shown and self._what:
            click.echo("", err=True)


async def run_bench(template: Path, guests: int, calls: int, progress: Any, idle_s: float) -> BenchReport:
    """Measure. Raises: VmmError, PrerequisiteMissing."""
    with tempfile.TemporaryDirectory(prefix="seamgate-bench-") as folder:
        async with Ground(Path(folder)) as ground:
            measured: Measured = await measure(template, guests, calls, ground.seam(), progress, idle_s)
            return BenchReport(measured, await ground.counted())


@click.command("bench")
@click.option("--template", "name", default=DEFAULT_TEMPLATE, show_default=True, help="Restore this template.")
@click.option("--guests", default=1500, show_default=True, type=click.IntRange(1, 10_000), help="How many at once.")
@click.option("--calls", default=4, show_default=True, type=click.IntRange(1, 1000), help="HTTPS calls of each guest.")
@click.option("--idle", "idle_s", default=40.0, show_default=True, type=click.FloatRange(0, 3600), help="Seconds that "
              "all agents wait, once up, before they call.")  # fmt: skip
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Write the histograms here.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@exit_codes
def bench(name: str, guests: int, calls: int, idle_s: float, svg: Path | None, as_json: bool) -> None:
    """Run agents that all call an LLM API through a gateway. Prints six numbers beside their goals."""
    configure_logging("console", "error")
    progress = _Progress()
    try:
        report = uvloop.run(run_bench(ensure_template(name), guests, calls, progress, idle_s))
    finally:
        progress.end()
    if svg is not None:
        svg.write_text(report.svg(), encoding="utf-8")
    click.echo(json.dumps(report.json()) if as_json else str(report))
    sys.exit(0 if report.measured.right == guests else 1)
