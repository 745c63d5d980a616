"""The admin listener of a running gateway, over TCP and over its socket: metrics, probes, status, reload."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector, CollectorRegistry

from seamgate import Direction, Inspector, Reason, Request, SeamgateError, Verdict, deny, hookimpl
from seamgate.config import parse_config
from seamgate.gateway import Gateway
from seamgate.headers import Headers
from seamgate.protocol import http2_frames as wire
from support.cli import COMMAND_S, Running, environment, seamgate
from support.client import Answer, Client, connect
from support.http2_upstream import H2Upstream, Talk2, echo2
from support.lab import ALLOW_ALL, WITH_KEY, Lab
from support.upstream import HttpUpstream, Talk, echo

ON_TCP = {"admin": {"listen": "127.0.0.1:0"}}


async def get(lab: Lab, path: str, *headers: bytes, method: str = "GET") -> Answer:
    """Ask the admin listener."""
    host, _, port = lab.gateway.admin_address.removeprefix("http://").rpartition(":")
    client = Client(await connect(host, int(port)), "localhost")
    try:
        return await client.ask(method, path, *headers)
    finally:
        client.close()


async def samples(lab: Lab) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples of a scrape by name and labels."""
    text = (await get(lab, "/metrics")).body.decode()
    found = [sample for family in parse_text(text) for sample in family.samples]
    by_key = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(by_key) == len(found), "a time series is there twice"
    return by_key


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the key of a sample."""
    return name, frozenset(labels.items())


async def test_requests_are_counted_by_what_became_of_them() -> None:
    """Each request and each tunnel once, by entry, kind, verdict and reason; bytes and time with them."""
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, {"id": "no", "deny": {"hosts": ["**"], "paths": ["/no"],
                   "ports": ["1-65535"]}}], settings=ON_TCP) as lab:  # fmt: skip
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", body=b"12345")
        assert (await client.ask("GET", "/no")).status == 403
        refused, head = await lab.connect("elsewhere.example:443")
        assert head.startswith(b"HTTP/1.1 403 ")
        refused.close()
        await lab.audited("POST /x allow allowed 200 complete", "GET /no deny rule_denied 403 denied",
                          "CONNECT elsewhere.example:443 deny no_rule_matched 403 denied")  # fmt: skip
        client.close()
        await lab.settled()
        found = await samples(lab)
        count = "seamgate_requests_total"
        assert found[key(count, entry="proxy", kind="request", verdict="allow", reason="allowed")] == 1
        assert found[key(count, entry="proxy", kind="request", verdict="deny", reason="rule_denied")] == 1
        assert found[key(count, entry="proxy", kind="connect", verdict="deny", reason="no_rule_matched")] == 1
        assert found[key(count, entry="proxy", kind="connect", verdict="allow", reason="allowed")] == 1
        assert sum(value for (name, _), value in found.items() if name == count) == lab.gateway.seam.requests_total
        assert found[key("seamgate_request_duration_seconds_count", entry="proxy", verdict="allow")] == 1
        assert found[key("seamgate_request_duration_seconds_sum", entry="proxy", verdict="allow")] > 0
        assert found[key("seamgate_body_bytes_total", entry="proxy", direction="request")] == 5
        assert found[key("seamgate_body_bytes_total", entry="proxy", direction="response")] == len(answer.body)
        assert found[key("seamgate_tunnels_active")] == 0


async def test_requests_that_were_sent_again_are_counted() -> None:
    """By reason, and each is there, at 0, before anything was: an alert is never without data."""

    async def app(talk: Talk2) -> None:
        upstream: Any = lab.upstream
        if len(upstream.talks) == 1:
            await talk.give_up(wire.REFUSED_STREAM)
        else:
            await echo2(talk)

    name = "seamgate_requests_repeated_total"
    async with Lab(H2Upstream(app), settings=ON_TCP, credential=False) as lab:
        client = await lab.tunnel()
        found = await samples(lab)
        assert [found[key(name, reason=each)] for each in ("session_closed", "not_processed")] == [0, 0]
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        found = await samples(lab)
        assert [found[key(name, reason=each)] for each in ("session_closed", "not_processed")] == [0, 1]


async def test_gauges_tell_what_is_now() -> None:
    """Requests, tunnels, connections and sessions are there while they are there."""
    come = asyncio.Event()

    async def slow(talk: Talk) -> None:
        await talk.body()
        await come.wait()
        await talk.respond(200)

    async with Lab(HttpUpstream(slow), settings=ON_TCP) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await lab.until(lambda: lab.gateway.seam.pool.counts[0] == 1)
        found = await samples(lab)
        for name in ("seamgate_requests_active", "seamgate_tunnels_active"):
            assert found[key(name)] == 1
        assert found[key("seamgate_connections", state="open")] == 1
        assert found[key("seamgate_sessions", state="busy")] == 1
        come.set()
        assert (await client.answer()).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        found = await samples(lab)
        assert found[key("seamgate_requests_active")] == 0
        assert found[key("seamgate_sessions", state="idle")] == 1
        assert found[key("seamgate_sessions_opened_total")] == 1


async def test_plugins_are_accounted_for() -> None:
    """Each plugin's hooks: how often, how long; what the DNS cache did comes through its own collector."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], settings=ON_TCP) as lab:
        before = await samples(lab)  # the cache is older than this gateway: equal configurations share it
        client = await lab.tunnel()
        for _ in range(3):
            await client.ask("GET", "/x")
        await lab.audited(*["GET /x allow allowed 200 complete"] * 3)
        found = await samples(lab)
        assert found[key("seamgate_plugin_calls_total", plugin="policy", hook="judge_request")] == 3
        assert found[key("seamgate_plugin_calls_total", plugin="credentials", hook="supply_credential")] == 3
        assert 0 < found[key("seamgate_plugin_seconds_total", plugin="policy", hook="judge_request")] < 30
        lookups = [key("seamgate_dns_lookups_total", result=result) for result in ("hits", "misses")]
        assert sum(found[each] - before[each] for each in lookups) == 3


class Picky:
    """Denies /no, and has an inspector that refuses /odd and fails at /bad."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return deny("no") if request.path == "/no" else None

    @hookimpl
    def open_inspector(self, request: Request, direction: Direction) -> Inspector | None:
        return _Picky(request.path) if direction is Direction.RESPONSE else None


class _Picky:
    def __init__(self, path: str) -> None:
        self.path = path

    def head(self, headers: Headers) -> Headers:
        if self.path == "/odd":
            raise SeamgateError("odd", reason=Reason.RESPONSE_DENIED)
        if self.path == "/bad":
            raise ValueError("bad")
        return headers

    def feed(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


async def test_denials_and_failures_are_told_apart_by_plugin_and_hook() -> None:
    """What a plugin means to deny is a denial, its inspectors' refusals included; what it raises is a failure."""
    async with Lab(HttpUpstream(echo), plugins=[("picky", Picky())], settings=ON_TCP) as lab:
        client = await lab.tunnel()
        statuses = [(await client.ask("GET", path)).status for path in ("/no", "/odd", "/fine", "/bad")]
        assert statuses == [403, 502, 200, 503]
        client.close()
        await lab.audited(
            "GET /no deny rule_denied 403 denied",
            "GET /odd allow response_denied 502 failed",
            "GET /fine allow allowed 200 complete",
            "GET /bad deny plugin_failed 503 denied",
        )
        found = await samples(lab)

        def counted(what: str, hook: str) -> float:
            return found[key(f"seamgate_plugin_{what}_total", plugin="picky", hook=hook)]

        assert (counted("denials", "judge_request"), counted("failures", "judge_request")) == (1, 0)
        assert (counted("denials", "inspector"), counted("failures", "inspector")) == (1, 1)
        assert counted("calls", "judge_request") == 4
        assert counted("calls", "inspector") >= 5
        assert 0 < counted("seconds", "inspector") < 30


class Measured:
    """A plugin with a metric of its own, one that fails, and one whose name is taken."""

    def __init__(self) -> None:
        self.broken = False
        self.counter: Counter | None = None

    @hookimpl
    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Register three collectors."""
        self.counter = Counter("measured_things", "Things.", registry=registry)
        registry.register(_Sometimes(self))
        Counter("seamgate_reloads", "Not mine.", registry=registry)


class _Sometimes(Collector):
    def __init__(self, plugin: Measured) -> None:
        self._plugin = plugin

    def collect(self) -> Iterator[Any]:
        """Fail if the plugin is broken."""
        if self._plugin.broken:
            raise RuntimeError("broken")
        yield GaugeMetricFamily("measured_state", "State.", 1)


async def test_a_plugins_metrics_are_there_and_can_break_nothing() -> None:
    """A plugin's collectors are scraped along; one that fails, or takes a name, costs its own only, and is counted."""
    plugin = Measured()
    async with Lab(HttpUpstream(echo), plugins=[("measured", plugin)], settings=ON_TCP) as lab:
        assert plugin.counter is not None
        plugin.counter.inc()
        found = await samples(lab)
        assert found[key("measured_things_total")] == 1
        assert found[key("measured_state")] == 1
        assert found[key("seamgate_plugin_failures_total", plugin="measured", hook="register_metrics")] == 1
        plugin.broken = True
        found = await samples(lab)
        assert key("measured_state") not in found
        assert found[key("measured_things_total")] == 1
        assert any(name == "seamgate_collector_failures_total" for name, _ in await samples(lab))


async def test_counters_never_fall_over_a_reload() -> None:
    """A reload registers everything anew, doubles nothing and goes on counting."""
    async with Lab(HttpUpstream(echo), settings=ON_TCP) as lab:
        client = await lab.tunnel()
        await client.ask("GET", "/x")
        before = await samples(lab)
        for _ in range(2):
            lab.gateway.reload(parse_config(json.dumps(lab.settings()), "seamgate.yaml", base=lab.folder))
        after = await samples(lab)
        assert {name for name in before if name[0].endswith("_total")} <= set(after)
        assert [name for name, value in before.items() if name[0].endswith("_total") and after[name] < value] == []
        assert after[key("seamgate_generation")] == 3
        assert after[key("seamgate_reloads_total", result="done")] == 2
        assert after[key("seamgate_plugin_calls_total", plugin="dns", hook="register_metrics")] == 3
        await lab.audited("GET /x allow allowed 200 complete")


async def test_both_formats() -> None:
    """The text format by default, OpenMetrics for who asks for it; both parse."""
    async with Lab(HttpUpstream(echo), settings=ON_TCP) as lab:
        plain = await get(lab, "/metrics")
        assert plain.header(b"content-type") == b"text/plain; version=0.0.4; charset=utf-8"
        wanted = await get(lab, "/metrics", b"accept: application/openmetrics-text; version=1.0.0")
        assert (wanted.header(b"content-type") or b"").startswith(b"application/openmetrics-text")
        names = {family.name for family in parse_openmetrics(wanted.body.decode())}  # type: ignore[no-untyped-call]
        assert {"seamgate_requests", "seamgate_audit_records", "seamgate_plugin_calls"} <= names
        head = await get(lab, "/metrics", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert int(head.header(b"content-length") or 0) > 1000


async def test_readiness() -> None:
    """Ready after the start; not while draining; alive all the time."""
    come = asyncio.Event()

    async def slow(talk: Talk) -> None:
        await come.wait()
        await talk.respond(200)

    async with Lab(HttpUpstream(slow), settings=ON_TCP) as lab:
        assert (await get(lab, "/readyz")).body == b"ready\n"
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await lab.until(lambda: lab.gateway.seam.pool.counts[0] == 1)
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(lab.gateway.stop(grace_s=20))
            await lab.until(lambda: lab.gateway.seam.draining)
            answer = await get(lab, "/readyz")
            assert (answer.status, answer.body.partition(b":")[0]) == (503, b"draining")
            assert (await get(lab, "/healthz")).body == b"ok\n"
            assert (await samples(lab))[key("seamgate_not_ready", reason="draining")] == 1
            come.set()
            assert (await client.answer()).status == 200
            await stopping
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await get(lab, "/healthz")
        lab._checks = False  # what follows is only for the lab to have a gateway to stop
        await lab._start_gateway()


async def test_an_expired_policy_is_not_ready() -> None:
    """Once every rule that allowed anything has expired, probes say so, and the metrics what expired."""
    now = [1_796_000_000.0]
    rule = {**ALLOW_ALL, "expires": "2026-12-01T09:00:00Z"}
    async with Lab(HttpUpstream(echo), rules=[rule], settings=ON_TCP, clock=lambda: now[0]) as lab:
        assert (await get(lab, "/readyz")).status == 200
        found = await samples(lab)
        assert found[key("seamgate_policy_next_expiry_timestamp_seconds")] == 1_796_115_600
        now[0] = 1_796_115_600.0
        answer = await get(lab, "/readyz")
        assert (answer.status, answer.body.partition(b":")[0]) == (503, b"policy_expired")
        found = await samples(lab)
        assert found[key("seamgate_policy_rules", state="expired")] == 1
        assert found[key("seamgate_ready")] == 0


async def test_a_journal_that_fails_is_not_ready(tmp_path: Path) -> None:
    """While the audit log can't be written no request is taken, and probes say why; afterwards it is ready again."""
    async with Lab(HttpUpstream(echo), settings=ON_TCP) as lab:
        journal = lab.gateway._journal
        folder = journal.path.parent
        journal.path.rename(journal.path.with_name("moved"))
        journal.path.mkdir()
        client = await lab.tunnel()
        await client.ask("GET", "/x")
        await lab.until(lambda: not journal.healthy)
        assert (await get(lab, "/readyz")).body.startswith(b"audit_unavailable")
        assert (await get(lab, "/healthz")).status == 200
        assert (await samples(lab))[key("seamgate_audit_healthy")] == 0
        journal.path.rmdir()
        (folder / "moved").rename(journal.path)
        await lab.until(lambda: journal.healthy)
        assert (await get(lab, "/readyz")).status == 200
        lab._checks = False  # the journal tells of the break, which the lab does not expect


async def test_status_is_the_whole_picture() -> None:
    """/status names version, generation, entries, policies, plugins with their timing, and the counts."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], settings=ON_TCP) as lab:
        client = await lab.tunnel()
        await client.ask("GET", "/x")
        await lab.audited("GET /x allow allowed 200 complete")
        told = (await get(lab, "/status")).json
        assert (told["generation"], told["ready"], told["pid"]) == (1, True, os.getpid())
        assert told["entries"] == {name: f"{host}:{port}" for name, (host, port) in lab.gateway.addresses.items()}
        assert told["counts"]["requests_total"] == 2  # the tunnel, and the request in it
        assert told["reasons"] == {"proxy": {"allowed": 1}}  # the tunnel is still open
        assert told["credentials"] == ["key"]
        [policy] = told["policies"]
        assert (policy["rules"], policy["layer"]) == (1, "team")
        plugins = {plugin["name"]: plugin for plugin in told["plugins"]}
        assert plugins["credentials"]["capabilities"] == ["secrets"]
        judged = next(hook for hook in plugins["policy"]["hooks"] if hook["hook"] == "judge_request")
        assert judged["calls"] == 1 and judged["mean_us"] > 0


async def test_a_gateway_without_an_admin_listener() -> None:
    """None is there unless the configuration asks for one."""
    async with Lab(HttpUpstream(echo)) as lab:
        assert lab.gateway.admin_address == ""
        assert set(lab.gateway.addresses) == {"proxy", "base_url"}


async def test_a_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    """Without its admin listener the gateway does not start, and leaves nothing open."""
    async with Lab(HttpUpstream(echo), settings=ON_TCP) as lab:
        taken = lab.gateway.admin_address.removeprefix("http://")
        settings = {**lab.settings(), "admin": {"listen": taken}, "audit": {"path": str(tmp_path / "audit.jsonl")}}
        second = Gateway(parse_config(json.dumps(settings), "seamgate.yaml", base=lab.folder))
        with pytest.raises(Exception, match="the admin listener can't have"):
            await second.start()
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await connect(*second.addresses["proxy"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration on a free port, with an admin socket."""
    assert seamgate("init", home=tmp_path).returncode == 0
    config = (tmp_path / "seamgate.yaml").read_text().replace("127.0.0.1:8080", "127.0.0.1:0")
    (tmp_path / "seamgate.yaml").write_text(config + "admin: {listen: 'unix:admin.sock'}\n")
    return tmp_path


def test_the_commands_ask_a_running_gateway(folder: Path) -> None:
    """`status` and `reload` find the socket in the configuration and say what came of it, for people and as JSON."""
    with Running("serve", home=folder) as gateway:
        gateway.wait_for('"start"')
        shown = seamgate("status", home=folder)
        assert shown.returncode == 0
        assert "ready" in shown.stdout and "generation  1" in shown.stdout
        assert seamgate("status", "--live", home=folder).returncode == 0
        done = seamgate("reload", home=folder)
        assert (done.returncode, done.stdout) == (0, "reloaded: generation 2 is in force\n")
        config = folder / "seamgate.yaml"
        config.write_text(config.read_text() + "limits: {connections: 77}\n")
        told = json.loads(seamgate("reload", "--json", home=folder).stdout)
        assert told == {"generation": 3, "needs_restart": ["limits"], "revoked_requests": 0, "revoked_tunnels": 0}
        status = json.loads(seamgate("status", "--json", home=folder).stdout)
        assert status["reloads"]["needs_restart"] == ["limits"]
        assert "needs a restart: limits" in " ".join(seamgate("status", home=folder).stdout.split())
        curl = ["curl", "-sS", "--unix-socket", "admin.sock", "http://localhost/readyz"]
        ready = subprocess.run(
            curl, cwd=folder, capture_output=True, text=True, check=True, timeout=COMMAND_S, env=environment(folder)
        )
        assert ready.stdout == "ready\n"


def test_a_refused_reload_is_told_counted_and_loud(folder: Path) -> None:
    """Exit code 1 with the place in the file; the log has it as an error; status and metrics remember it."""
    with Running("serve", home=folder) as gateway:
        gateway.wait_for('"start"')
        policy = folder / "policy.yaml"
        good = policy.read_text()
        policy.write_text("seamgate: 1\nrules: [{id: one, alow: {}}]\n")
        done = seamgate("reload", home=folder)
        assert done.returncode == 1
        assert "policy.yaml:2:" in done.stderr and "alow" in done.stderr and "stays in force" in done.stderr
        assert json.loads(gateway.wait_for("reload refused"))["level"] == "error"
        status = json.loads(seamgate("status", "--json", home=folder).stdout)
        assert (status["generation"], status["reloads"]["refused"]) == (1, 1)
        assert "alow" in status["reloads"]["last_problem"]
        policy.write_text(good)
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for('"reloaded"')
        status = json.loads(seamgate("status", "--json", home=folder).stdout)
        assert (status["generation"], status["reloads"]["last_problem"]) == (2, "")


def test_commands_say_what_is_missing(folder: Path) -> None:
    """No gateway: exit code 3. No admin listener, or one over TCP for a reload: 2, with what to do."""
    gone = seamgate("status", home=folder)
    assert gone.returncode == 3
    assert "is it running?" in gone.stderr
    assert seamgate("status", "--live", home=folder).returncode == 3
    over_tcp = seamgate("reload", "--admin", "127.0.0.1:9901", home=folder)
    assert over_tcp.returncode == 2
    assert "SIGHUP" in over_tcp.stderr
    config = folder / "seamgate.yaml"
    config.write_text(config.read_text().replace("admin: {listen: 'unix:admin.sock'}\n", ""))
    none = seamgate("status", home=folder)
    assert none.returncode == 2
    assert "admin: {listen: unix:admin.sock}" in none.stderr
    away = seamgate("status", "--admin", "10.0.0.1:9901", home=folder)
    assert away.returncode == 2
    assert "this machine only" in away.stderr


def test_files_that_change_are_taken_over_where_that_is_wanted(folder: Path) -> None:
    """With `reload: watch` a saved policy is in force soon; a broken one is refused, loudly, and only once."""
    config, policy = folder / "seamgate.yaml", folder / "policy.yaml"
    config.write_text(config.read_text() + "reload: watch\n")
    with Running("serve", home=folder) as gateway:
        gateway.wait_for('"start"')
        good = policy.read_text()
        policy.write_text(good + "\n# changed\n")
        assert json.loads(gateway.wait_for('"reloaded"'))["generation"] == 2
        policy.write_text("rules: [")
        gateway.wait_for("reload refused")
        policy.write_text(good)
        assert json.loads(gateway.wait_for('"reloaded"'))["generation"] == 3
        config.write_text(config.read_text().replace("reload: watch\n", ""))
        assert json.loads(gateway.wait_for('"reloaded"'))["generation"] == 4
        status = json.loads(seamgate("status", "--json", home=folder).stdout)
        assert (status["reloads"]["refused"], status["reloads"]["needs_restart"]) == (1, [])
