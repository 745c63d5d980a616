"""A gateway between raw clients and fake upstreams, in the test's own loop, with everything real: CA, policy, journal.

    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")

When it ends without an error, it holds the gateway to what must be true after every test: each request that the test
made (and named by `audited`) has exactly one terminal record, so has each tunnel; the journal verifies; nothing that
was secret stands in it; no exchange is under way, no session is lent, no connection is open; nothing failed unseen.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from seamgate import hookimpl
from seamgate.audit.reading import read_lines, verify_journal
from seamgate.audit.record import AuditKind, AuditRecord, Decision, Outcome
from seamgate.ca.environment import client_environment
from seamgate.ca.store import init_ca
from seamgate.config import Config, parse_config
from seamgate.gateway import Gateway
from seamgate.pipeline import Pipeline
from seamgate.registry import load_plugins, register
from support.certificates import guest_context, upstream_ca, write_upstream_ca
from support.client import Client, connect, start_tls
from support.line import Line
from support.upstream import RawUpstream

TOKEN = "guest-token-0123456789abcdef"
OTHER_TOKEN = "other-token-0123456789abcdef"
SECRET = "sk-live-4f9a7c1be23d58a60e917b3d"
"""The value of the credential `key`, bound to api.test: a canary that must be in no record and reach no guest."""

ALLOW_ALL: dict[str, Any] = {
    "id": "all",
    "allow": {"hosts": ["**.test"], "schemes": ["https", "http"], "ports": ["1-65535"]},
}
WITH_KEY: dict[str, Any] = {**ALLOW_ALL, "credential": "key"}

PluginSpec = tuple[str, object]


class Observer:
    """The plugin that tells a test of each terminal record."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self.changed = asyncio.Event()

    @hookimpl
    def request_done(self, record: AuditRecord) -> None:
        self.records.append(record)
        self.changed.set()


class LabGateway(Gateway):
    """The gateway with plugins that no entry point offers: a test's own, and the observer."""

    def __init__(
        self, config: Config, first: Sequence[tuple[Any, ...]], last: Sequence[tuple[Any, ...]], **more: Any
    ) -> None:
        super().__init__(config, **more)
        self._first, self._last = first, last

    def _make_pipeline(self, config: Config, generation: int, aside: Mapping[str, object] | None = None) -> Pipeline:
        mine, after = ([register(*plugin) for plugin in each] for each in (self._first, self._last))
        loaded = load_plugins(config, generation, self._clock, aside=aside)
        budget_s, guest_s = config.limits.plugin_budget_s, config.limits.guest_plugin_s
        every = (*mine, *loaded, *after)
        return Pipeline(every, generation=generation, budget_s=budget_s, guest_plugin_s=guest_s)


class Lab:
    """See the module.

    Args:
        upstreams: servers to start; each of their names leads to them. The first is where clients go by default.
        rules: of the one policy file.
        settings: merged over the configuration.
        first, plugins: (name, object) to run before and after the built-in ones.
        secrets_first: as `first`, with the capability `secrets`.
        credential: whether the credential `key` exists; rules have to name it.
        checks: whether to hold the gateway to its invariants at the end.
    """

    def __init__(
        self,
        *upstreams: RawUpstream,
        rules: Sequence[Mapping[str, Any]] = (ALLOW_ALL,),
        settings: Mapping[str, Any] | None = None,
        first: Sequence[PluginSpec] = (),
        secrets_first: Sequence[PluginSpec] = (),
        plugins: Sequence[PluginSpec] = (),
        credential: bool = True,
        checks: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.upstreams = upstreams
        self.folder = Path(tempfile.mkdtemp(prefix="lab-"))
        self.observer = Observer()
        self.failures: list[str] = []
        self.gateway: LabGateway
        self._rules = list(rules)
        self._settings = settings or {}
        secrets = frozenset({"secrets"})
        self._first = [*((*each, secrets) for each in secrets_first), *first]
        self._plugins = plugins
        self._credential = credential
        self._checks = checks
        self._clock = clock
        self._claimed = 0
        self._lines: list[Line] = []

    @property
    def upstream(self) -> RawUpstream:
        """The first upstream."""
        return self.upstreams[0]

    @property
    def records(self) -> list[AuditRecord]:
        """The terminal records so far, in order, those of tunnels that were let through left out."""
        return [each for each in self.observer.records if not _tunnel_allowed(each)]

    # -- around ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().set_exception_handler(self._on_failure)
        try:
            for upstream in self.upstreams:
                await upstream.start()
            self.write_policy(self._rules)
            init_ca(self.folder / "ca")
            await self._start_gateway()
        except BaseException:
            for server in self.gateway.listeners.servers if hasattr(self, "gateway") else ():
                server.close()  # or the loop would wait for them for ever
            await self._stop_upstreams()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    async def _start_gateway(self) -> None:
        config = parse_config(json.dumps(self.settings()), "seamgate.yaml", base=self.folder)
        observer = ("observer", self.observer)
        self.gateway = LabGateway(config, self._first, (*self._plugins, observer), clock=self._clock)
        await self.gateway.start()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for line in self._lines:
            line.close()
        try:
            if kind is None and self._checks:
                await self.settled()
            if not self.gateway.seam.draining:
                await self.gateway.stop(grace_s=1.0)
            await asyncio.sleep(0)
            if kind is None and self._checks:
                self._check()
        finally:
            for server in self.gateway.listeners.servers:
                server.close()
            await self._stop_upstreams()
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _stop_upstreams(self) -> None:
        for upstream in self.upstreams:
            await upstream.stop()

    def _on_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def settled(self) -> None:
        """Wait until every connection of a guest is gone and its records are there."""
        for line in self._lines:
            await line.end()
        seam, connections = self.gateway.seam, self.gateway.connections
        await self.until(
            lambda: (
                not seam.active
                and not connections.all
                and not connections.handshakes
                and len(self.observer.records) >= seam.requests_total
            )
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a record announces, or that the next turns of the loop bring."""
        for turn in range(10_000):
            if condition():
                return
            await asyncio.sleep(0 if turn < 100 else 0.001)
        raise AssertionError(f"never came: {self.gateway.seam.pool}, {self.records[-3:]}")

    def age_guests(self, seconds: float) -> None:
        """Do what the gateway does every second, as if guests' connections were so much older.

        So no limit has to be so short that a machine which stands still for a moment exceeds it as well.
        """
        self.gateway.connections.sweep(time.monotonic() + seconds)

    def age_upstreams(self, seconds: float) -> None:
        """Do what the gateway does every second, as if sessions were so much older."""
        self.gateway.seam.pool.sweep(time.monotonic() + seconds)

    # -- configuration -----------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return the configuration as it is written."""
        ca = write_upstream_ca(self.folder)
        (self.folder / "key").write_text(SECRET)
        (self.folder / "token").write_text(TOKEN)
        (self.folder / "other").write_text(OTHER_TOKEN)
        (self.folder / "key").chmod(0o600)
        names = [name for upstream in self.upstreams for name in upstream.names]
        first = self.upstreams[0] if self.upstreams else None
        scheme = "https" if first is None or first.tls else "http"
        origin = f"{scheme}://{first.names[0]}:{first.port}" if first is not None else "https://api.test"
        plugins = ["policy", "dns", {"name": "credentials", "capabilities": ["secrets"]}]
        return _merged(
            {
                "entries": {
                    "proxy": {"listen": "127.0.0.1:0", "guest": "g"},
                    "base_url": {
                        "listen": "127.0.0.1:0",
                        "guest": "g",
                        "routes": {"api": origin},
                        "hosts": ["api.test"],
                    },
                },
                "ca": {"dir": str(self.folder / "ca")},
                "policies": ["policy.yaml"],
                "plugins": plugins,
                "guests": {
                    "g": {"token": {"file": str(self.folder / "token")}, "labels": {"team": "research"}},
                    "h": {"token": {"file": str(self.folder / "other")}, "labels": {"team": "sales"}},
                },
                "credentials": {
                    "key": {
                        "source": {"file": str(self.folder / "key")},
                        "inject": {"header": "x-api-key"},
                        "hosts": ["api.test"],
                    }
                }
                if self._credential
                else {},
                "audit": {"path": "audit.jsonl"},
                "dns": {
                    "addresses": {name: [up.address] for up in self.upstreams for name in up.names},
                    "hosts_file": False,
                    "servers": ["127.0.0.1:9"],
                    "timeout_s": 0.2,
                    "attempts": 1,
                },
                "permit_addresses": ["loopback"],
                "pool": {"preconnect": False},
                # A machine that stands still for a moment is no plugin that overruns; tests of that set their own.
                "limits": {"plugin_budget_s": 20.0},
                "upstream_tls": {"origins": [{"hosts": [*names, "*.test"], "ca": ca.name}]},
            },
            self._settings,
        )

    def write_policy(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Write the policy file."""
        (self.folder / "policy.yaml").write_text(json.dumps({"seamgate": 1, "rules": list(rules)}))

    def upstream_trust(self) -> bytes:
        """The PEM of the CA that signs the upstreams."""
        return upstream_ca().cert_pem.bytes()

    def environment(self, *, token: str = TOKEN) -> dict[str, str]:
        """Return the variables that a real client gets, as `seamgate run` sets them, and nothing else but PATH."""
        host, port = self.gateway.addresses["proxy"]
        variables = client_environment(f"http://g:{token}@{host}:{port}", self.gateway.ca_path)
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8", **variables}

    @property
    def base_url(self) -> str:
        """The base URL of the first upstream's route."""
        host, port = self.gateway.addresses["base_url"]
        return f"http://{host}:{port}/api"

    def url(self, path: str = "/", number: int = 0) -> str:
        """Return the URL of an upstream."""
        upstream = self.upstreams[number]
        return f"{'https' if upstream.tls else 'http'}://{self.authority(number)}{path}"

    def authority(self, number: int = 0) -> str:
        """Return host:port of an upstream."""
        upstream = self.upstreams[number]
        return f"{upstream.names[0]}:{upstream.port}"

    # -- raw clients -------------------------------------------------------------------------------------------------

    async def line(self, entry: str = "proxy", *, keeps: bool = True) -> Line:
        """Open a connection to an entry."""
        line = await connect(*self.gateway.addresses[entry], keeps=keeps)
        self._lines.append(line)
        return line

    async def proxy(self, *, token: str = "", authority: str = "") -> Client:
        """Return a client that sends absolute-form requests."""
        extra = proxy_authorization(token) + b"\r\n" if token else b""
        return Client(await self.line(), authority or self.authority(), absolute=True, extra=extra)

    async def base(self) -> Client:
        """Return a client of the base-URL entry; paths begin with /api."""
        return Client(await self.line("base_url"), "127.0.0.1")

    async def connect(self, authority: str = "", *headers: bytes) -> tuple[Line, bytes]:
        """Send a CONNECT; return the connection and the head of the answer."""
        line = await self.line()
        authority = authority or self.authority()
        fields = b"".join(header + b"\r\n" for header in headers)
        await line.send(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n".encode() + fields + b"\r\n")
        return line, await line.head()

    async def tunnel(self, authority: str = "", *headers: bytes, keeps: bool = True) -> Client:
        """Open a tunnel and TLS in it, verified as a well-behaved client does."""
        authority = authority or self.authority()
        line, head = await self.connect(authority, *headers)
        assert head.startswith(b"HTTP/1.1 200 "), head
        line.keeps = keeps
        inner = await start_tls(line, guest_context(self.gateway.ca_path), authority.rpartition(":")[0].strip("[]"))
        self._lines.append(inner)
        self._lines.remove(line)
        return Client(inner, authority)

    # -- audit -------------------------------------------------------------------------------------------------------

    async def audited(self, *expected: str) -> list[AuditRecord]:
        """Assert that exactly these requests, after those named before, have their one terminal record, in order.

        Each as "METHOD path verdict reason status outcome"; for a refused tunnel the path is host:port, and for what
        was no request at all method and path are "-".
        """
        await self.until(lambda: len(self.records) >= self._claimed + len(expected))
        found = self.records[self._claimed :]
        assert [_told(record) for record in found] == [*expected]
        self._claimed += len(expected)
        return found

    async def told(self) -> list[str]:
        """Return what was audited since, each as in `audited`: for real clients, who decide how often they ask."""
        await self.until(lambda: not self.gateway.seam.active)
        found = self.records[self._claimed :]
        self._claimed += len(found)
        return [_told(record) for record in found]

    async def refused(self, *expected: str, upstream_got: bytes = b"") -> list[AuditRecord]:
        """Assert `audited`, that each was denied, and that no upstream got anything (but what is named)."""
        records = await self.audited(*expected)
        assert all(record.verdict is Decision.DENY for record in records)
        assert b"".join(upstream.received for upstream in self.upstreams) == upstream_got
        return records

    def lines(self) -> list[dict[str, Any]]:
        """Return the journal's lines as they are on the disk."""
        return [json.loads(line) for line in read_lines(self.gateway.journal_path)]

    def _check(self) -> None:
        """Hold the gateway to what must be true after every test."""
        seam = self.gateway.seam
        assert [_told(record) for record in self.records[self._claimed :]] == [], "not named by the test"
        assert len(self.observer.records) == seam.requests_total
        written = self.lines()
        terminal = [line["id"] for line in written if line["kind"] in ("request", "connect")]
        assert sorted(terminal) == sorted({record.id for record in self.observer.records})
        assert {line["id"] for line in written if line["kind"] == "begin"} <= set(terminal)
        self._verify()
        assert seam.active == 0
        assert seam.pool.counts[0] == 0, seam.pool
        assert self.gateway.connections.guests == {}, "a guest's connection is counted though it is gone"
        assert self.failures == []
        failed = [failure for upstream in self.upstreams for failure in upstream.failures]
        assert failed == [], failed

    def _verify(self) -> None:
        """Hold the journal to its promises."""
        report = verify_journal(self.gateway.journal_path)
        assert report.fault is None and not report.lost, report
        kept = self.gateway.journal_path.read_bytes()
        for secret in (SECRET, TOKEN, OTHER_TOKEN, base64.b64encode(SECRET.encode()).decode()):
            assert secret.encode() not in kept, "a secret stands in the journal"


def proxy_authorization(token: str, user: str = "g") -> bytes:
    """Return the header that shows a token."""
    return b"proxy-authorization: Basic " + base64.b64encode(f"{user}:{token}".encode())


def _tunnel_allowed(record: AuditRecord) -> bool:
    return record.kind is AuditKind.CONNECT and record.outcome is Outcome.COMPLETE


def _told(record: AuditRecord) -> str:
    request = record.request
    assert request is not None and record.verdict is not None and record.reason is not None
    assert record.outcome is not None
    place = request.path or (f"{request.host}:{request.port}" if request.host else "-")
    verdict, reason, outcome = record.verdict.value, record.reason.value, record.outcome.value
    return f"{request.method or '-'} {place} {verdict} {reason} {record.status} {outcome}"


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings; None takes a key away."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged
