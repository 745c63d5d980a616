"""Faults: whatever fails around a request, it is denied with a named reason, audited, and nothing is upstream."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from seamgate import Amendment, Direction, Guest, Request, Resolution, Response, Supply, Target, allow, hookimpl
from seamgate.config import parse_config
from seamgate.errors import AuditError, ConfigError, PluginRejected, PrerequisiteMissing, SeamgateError
from seamgate.gateway import Gateway
from seamgate.headers import Headers
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, RawUpstream, echo, ok, says

ALLOWED = "allow allowed 200 complete"


class Bad:
    """A plugin whose hooks all do the same bad thing."""

    def __init__(self, how: str) -> None:
        self.how = how

    def do(self) -> Any:
        if self.how == "raises":
            raise RuntimeError(f"a secret in an error: {SECRET}")
        if self.how == "overruns":
            time.sleep(0.03)
            return None
        return {"effect": "allow"}


class BadJudge(Bad):
    """As a judge."""

    @hookimpl
    def judge_request(self, request: Request) -> Any:
        return self.do()


class BadAmender(Bad):
    """As one that amends."""

    @hookimpl
    def amend_request(self, request: Request) -> Any:
        return self.do()


class BadResolver(Bad):
    """As a resolver that answers at once."""

    @hookimpl
    def resolve_name(self, name: str) -> Any:
        return self.do()


class BadLateResolver(Bad):
    """As a resolver that is awaited."""

    @hookimpl
    async def resolve_name(self, name: str) -> Any:
        await asyncio.sleep(0)
        if self.how == "overruns":
            await asyncio.Event().wait()
        return self.do()


class BadSupplier(Bad):
    """As a source of credentials."""

    @hookimpl
    def supply_credential(self, request: Request, credential: str) -> Any:
        return self.do()


class BadResponseJudge(Bad):
    """As a judge of responses."""

    @hookimpl
    def judge_response(self, request: Request, response: Response) -> Any:
        return self.do()


class BadOpener(Bad):
    """As one that opens inspectors."""

    @hookimpl
    def open_inspector(self, request: Request, direction: Direction) -> Any:
        return self.do() if direction is Direction.RESPONSE else None


BEFORE = [BadJudge, BadAmender, BadResolver, BadLateResolver, BadSupplier]
QUICK: dict[str, Any] = {"limits": {"plugin_budget_s": 0.02}}


def limits_of(kind: type[Bad], how: str) -> dict[str, Any]:
    """Return settings with the limit that this overruns, and no other: a busy machine overruns any that is short."""
    if how != "overruns":
        return {}
    return {"limits": {"resolve_timeout_s": 0.05}} if kind is BadLateResolver else QUICK


@pytest.mark.parametrize("how", ["raises", "overruns", "returns nonsense"])
@pytest.mark.parametrize("kind", BEFORE)
async def test_a_bad_plugin_denies(kind: type[Bad], how: str) -> None:
    """An exception, an overrun or a wrong type in any hook before the request is sent: denied, never passed over."""
    lab = Lab(HttpUpstream(echo), rules=[WITH_KEY], secrets_first=[("bad", kind(how))], settings=limits_of(kind, how))
    async with lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        late = kind is BadLateResolver and how == "overruns"
        overrun = how == "overruns"
        assert answer.reason == ("resolve_failed" if late else "plugin_overrun" if overrun else "plugin_failed")
        assert SECRET not in answer.body.decode()
        client.close()
        await lab.until(lambda: len(lab.records) == 1)
        assert lab.upstream.received == b""
        verdict, outcome = ("allow", "failed") if late else ("deny", "denied")
        await lab.audited(f"GET /x {verdict} {answer.reason} {answer.status} {outcome}")


@pytest.mark.parametrize("how", ["raises", "overruns", "returns nonsense"])
@pytest.mark.parametrize("kind", [BadResponseJudge, BadOpener])
async def test_a_bad_plugin_keeps_the_answer(kind: type[Bad], how: str) -> None:
    """On the way back too: what was not inspected does not reach the guest."""
    upstream = RawUpstream(says(ok(b"uninspected")))
    async with Lab(
        upstream, secrets_first=[("bad", kind(how))], settings=limits_of(kind, how), credential=False
    ) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        assert answer.reason == ("plugin_overrun" if how == "overruns" else "plugin_failed")
        assert b"uninspected" not in answer.body
        await lab.audited(f"GET /x deny {answer.reason} 503 denied")


class BadInspector:
    """An inspector that fails at one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _at(self, where: str, value: Any) -> Any:
        if self.where == where:
            raise ValueError("no")
        return value

    def head(self, headers: Headers) -> Headers:
        kept: Headers = self._at("head", headers)
        return kept

    def feed(self, data: bytes) -> bytes:
        fed: bytes = self._at("feed", data)
        return fed

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        rest: bytes = self._at("finish", b"")
        return rest


class Inspects:
    """Opens a bad inspector for one direction."""

    def __init__(self, where: str, direction: Direction) -> None:
        self.where, self.direction = where, direction

    @hookimpl
    def open_inspector(self, direction: Direction) -> BadInspector | None:
        return BadInspector(self.where) if direction is self.direction else None


@pytest.mark.parametrize("where", ["head", "feed", "finish"])
async def test_a_bad_inspector_of_responses(where: str) -> None:
    """Denied if nothing was sent yet, else visibly cut: never a clean end."""
    plugin = Inspects(where, Direction.RESPONSE)
    async with Lab(RawUpstream(says(ok(b"body"))), plugins=[("bad", plugin)], credential=False) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert answer.reason == "plugin_failed" and answer.body.startswith(b"{")
        await lab.audited("GET /x deny plugin_failed 503 denied")


@pytest.mark.parametrize("where", ["head", "feed", "finish"])
async def test_a_bad_inspector_of_requests(where: str) -> None:
    """What an inspector did not pass does not go up; the upstream never takes it for whole."""
    plugin = Inspects(where, Direction.REQUEST)
    async with Lab(HttpUpstream(echo), plugins=[("bad", plugin)], credential=False) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", body=b"body")
        assert answer.reason == "plugin_failed"
        client.close()
        await lab.audited("POST /x deny plugin_failed 503 denied")
        assert b"0\r\n\r\n" not in lab.upstream.received


async def test_a_bad_observer_changes_nothing() -> None:
    """An observer that fails is counted, and nobody notices."""

    class BadObserver:
        @hookimpl
        def request_done(self, record: Any) -> None:
            raise RuntimeError("no")

        @hookimpl
        def connected(self, guest: Guest, target: Target, address: str) -> None:
            raise RuntimeError("no")

    async with Lab(HttpUpstream(echo), plugins=[("bad", BadObserver())]) as lab:
        assert (await (await lab.tunnel()).ask("GET", "/x")).status == 200
        await lab.audited(f"GET /x {ALLOWED}")
        failures = {stats.hook: stats.failures for stats in lab.gateway.seam.pipeline.stats if stats.plugin == "bad"}
        assert failures == {"request_done": 1, "connected": 1}


async def test_an_amendment_is_judged_again() -> None:
    """A plugin that amends a request into one that policy denies does not get it through."""

    class Amends:
        @hookimpl
        def amend_request(self, request: Request) -> Amendment:
            return Amendment(set_headers=((b"x-mode", b"danger"),))

    no_danger = {"id": "no", "deny": {"hosts": ["api.test"], "headers": {"x-mode": "danger"}}}
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, no_danger], plugins=[("amends", Amends())]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "rule_denied"
        client.close()
        await lab.refused("GET /x deny rule_denied 403 denied")


async def test_a_plugins_allow_does_not_beat_a_denial() -> None:
    """One denial outweighs any number of allows, in any order."""

    class Allows:
        @hookimpl
        def judge_request(self, request: Request) -> Any:
            return allow("generous")

    deny_all = {"id": "no", "deny": {"hosts": ["api.test"]}}
    for place in ("first", "plugins"):
        placed: dict[str, Any] = {place: [("allows", Allows())]}
        async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, deny_all], **placed) as lab:
            line, head = await lab.connect()
            line.close()
            assert head.startswith(b"HTTP/1.1 403")
            await lab.refused(f"CONNECT {lab.authority()} deny rule_denied 403 denied")


async def test_a_resolver_can_not_lead_inside() -> None:
    """Whatever a plugin resolves to is checked like any other answer."""

    class Liar:
        @hookimpl
        def resolve_name(self, name: str) -> Resolution:
            return Resolution(name, ("169.254.169.254",), 0.0)

    async with Lab(HttpUpstream(echo), first=[("liar", Liar())]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "address_forbidden"
        client.close()
        await lab.refused("GET /x deny address_forbidden 403 denied")


async def test_a_supplier_that_hangs_is_given_up() -> None:
    """A credential has a deadline; without it nothing is sent."""

    class Hangs:
        @hookimpl
        async def supply_credential(self, request: Request, credential: str) -> Supply:
            await asyncio.Event().wait()
            raise AssertionError

    settings = {"limits": {"credential_timeout_s": 0.05}}
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], secrets_first=[("h", Hangs())], settings=settings) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "credential_unavailable"
        client.close()
        await lab.refused("GET /x deny credential_unavailable 503 denied")


# -- the audit log -----------------------------------------------------------------------------------------------------


async def test_a_full_disk_stops_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal can't be written, nothing is let out, with or without a credential; then it goes on."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/before")).status == 200
        journal: Any = lab.gateway.seam.journal
        journal.flush()
        full = OSError(28, "No space left on device")

        def refuse(*_: object) -> int:
            raise full

        before = lab.upstream.received
        with monkeypatch.context() as patch:
            patch.setattr("os.write", refuse)
            patch.setattr("os.writev", refuse)
            for _ in range(2):
                assert (await client.ask("GET", "/full")).reason == "audit_unavailable"
            assert lab.upstream.received == before
            line, head = await lab.connect()
            line.close()
            assert head.startswith(b"HTTP/1.1 503")
        journal.flush()
        assert (await client.ask("GET", "/after")).status == 200
        refused = "GET /full deny audit_unavailable 503 denied"
        tunnel = f"CONNECT {lab.authority()} deny audit_unavailable 503 denied"
        await lab.audited(f"GET /before {ALLOWED}", refused, refused, tunnel, f"GET /after {ALLOWED}")


# -- at start ----------------------------------------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "entries": {"base_url": {"listen": "127.0.0.1:0", "guest": "g", "routes": {"api": "https://api.test"}}},
    "guests": {"g": {}},
    "policies": ["policy.yaml"],
    "plugins": ["policy", "dns", {"name": "credentials", "capabilities": ["secrets"]}],
    "audit": {"path": "audit.jsonl"},
}
KEY = {"source": {"env": "NOT_SET"}, "inject": {"bearer": True}, "hosts": ["api.test"]}


def config(folder: Path, **over: Any) -> Any:
    """Parse a configuration with parts replaced."""
    return parse_config(json.dumps({**BASE, **over}), "seamgate.yaml", base=folder)


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"entires": {}}, "entires"),
    "an unknown limit": ({"limits": {"connection": 5}}, "connection"),
    "a limit of no sense": ({"limits": {"connections": 0}}, "connections"),
    "no entry": ({"entries": {}}, "entry"),
    "no policy": ({"policies": []}, "policy"),
    "no guest": ({"guests": {}}, "guest"),
    "a public network": ({"permit_addresses": ["0.0.0.0/0"]}, "class"),
    "a route to nowhere": (
        {"entries": {"base_url": {"listen": "127.0.0.1:0", "guest": "g", "routes": {"a": "ftp://x"}}}},
        "origin",
    ),
    "a listener that is none": ({"entries": {"proxy": {"listen": "localhost", "guest": "g"}}}, "address:port"),
    "a credential without hosts": ({"credentials": {"k": {**KEY, "hosts": []}}}, "hosts"),
    "a plugin twice": ({"plugins": ["policy", "policy"]}, "twice"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_configuration_is_refused(what: str, tmp_path: Path) -> None:
    """With the place and a word that helps; nothing is ignored."""
    over, word = UNUSABLE[what]
    with pytest.raises(ConfigError, match=word) as caught:
        config(tmp_path, **over)
    assert str(caught.value).startswith("seamgate.yaml:1:")


STARTS: dict[str, tuple[dict[str, Any], str, type[SeamgateError], str]] = {
    "no policy file": ({"policies": ["gone.yaml"]}, "", ConfigError, "gone.yaml"),
    "a broken policy": ({}, "rules: [", ConfigError, "policy.yaml"),
    "an unknown key in a policy": ({}, "seamgate: 1\nrulez: []\n", ConfigError, "rulez"),
    "a missing secret": ({"credentials": {"k": KEY}}, "seamgate: 1\nrules: []\n", ConfigError, "NOT_SET"),
    "an unknown plugin": ({"plugins": ["policy", "polcy"]}, "seamgate: 1\nrules: []\n", PluginRejected, "did you mean"),
    "secrets without leave": ({"plugins": ["credentials"]}, "seamgate: 1\nrules: []\n", PluginRejected, "capabilities"),
    "a journal that can't be": ({"audit": {"path": "/dev/null/x"}}, "seamgate: 1\nrules: []\n", AuditError, "journal"),
    "no CA": (
        {"entries": {"proxy": {"listen": "127.0.0.1:0", "guest": "g"}}, "ca": {"dir": "gone"}},
        "seamgate: 1\nrules: []\n",
        ConfigError,
        "ca init",
    ),
}


@pytest.mark.parametrize("what", STARTS)
async def test_a_gateway_that_can_not_be_right_does_not_start(what: str, tmp_path: Path) -> None:
    """A missing or broken part stops the start with a named error; it listens nowhere."""
    over, policy, kind, word = STARTS[what]
    (tmp_path / "policy.yaml").write_text(policy)
    gateway = Gateway(config(tmp_path, **over))
    with pytest.raises(kind, match=word):
        await gateway.start()
    assert gateway.addresses == {}


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """It says which entry and what to do; nothing is left open."""
    (tmp_path / "policy.yaml").write_text("seamgate: 1\nrules: []\n")
    async with Gateway(config(tmp_path)) as first:
        taken = "{}:{}".format(*first.addresses["base_url"])
        entry = {**BASE["entries"]["base_url"], "listen": taken}
        second = Gateway(config(tmp_path, entries={"base_url": entry}, audit={"path": "other.jsonl"}))
        with pytest.raises(PrerequisiteMissing, match="another port"):
            await second.start()


async def test_an_empty_policy_allows_nothing() -> None:
    """Empty is not all."""
    async with Lab(HttpUpstream(echo), rules=[]) as lab:
        client = await lab.base()
        assert (await client.ask("GET", "/api/x")).reason == "no_rule_matched"
        client.close()
        await lab.refused("GET /x deny no_rule_matched 403 denied")
