"""A reload while requests are under way: what the new policy forbids ends at once, what it allows goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from seamgate import Effect, Guest, Reason, Request, Resolution, Supply, Target, Verdict, hookimpl
from seamgate.audit.record import AuditRecord
from seamgate.errors import ConfigError
from seamgate.flow import BodyState
from support.client import Client
from support.lab import ALLOW_ALL, WITH_KEY, Lab
from support.reloads import (
    NO_STREAMS,
    OTHERS_ONLY,
    Streams,
    audited_as_revoked,
    begin_stream,
    cut,
    reload,
)
from support.upstream import HttpUpstream, Talk, echo

CREDENTIAL = {"credentials": {"key": None}}

JSON = b"content-type: application/json"


async def unanswered(talk: Talk) -> None:
    """An upstream app that reads the request and says nothing."""
    await talk.body()
    await talk.line.end()


@pytest.mark.parametrize("way", ["tunnel", "proxy", "base"])
async def test_a_forbidden_stream_is_cut(way: str) -> None:
    """A stream that a new rule denies is cut at once, through every entry, and audited with the generation."""
    async with Lab(HttpUpstream(Streams(), tls=way != "proxy")) as lab:
        client: Client = await getattr(lab, way)()
        h = await begin_stream(client, "/api/stream" if way == "base" else "/stream")
        report = reload(lab, [ALLOW_ALL, NO_STREAMS])
        await cut(client, h)
        [record] = await lab.audited("GET /stream deny revoked 200 truncated")
        audited_as_revoked(record, rule="no-streams")
        assert (report.generation, report.revoked_requests, report.revoked_tunnels) == (2, 1, 0)
        await lab.upstream.lines[0].end()  # the session is not kept either


async def test_an_allowed_stream_goes_on() -> None:
    """A stream that the new policy allows too goes on to its clean end, as part of the generation that began it."""
    streams = Streams()
    async with Lab(HttpUpstream(streams)) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        report = reload(lab, [ALLOW_ALL, {**NO_STREAMS, "deny": {"hosts": ["other.test"]}}])
        streams.go_on.set()
        assert bytes((await client.event(h)).data) == b"data: two\n\n"
        assert type(await client.event(h)).__name__ == "EndOfMessage"
        [record] = await lab.audited("GET /stream allow allowed 200 complete")
        assert record.generation == 1
        assert report.revoked_requests == 0
        assert (await client.ask("GET", "/x")).status == 200  # the tunnel stays, its requests are the new generation's
        [record] = await lab.audited("GET /x allow allowed 200 complete")
        assert record.generation == 2


async def test_a_request_without_an_answer_gets_a_denial() -> None:
    """What was sent and not answered yet ends with a denial that says why, not with a cut."""
    async with Lab(HttpUpstream(unanswered)) as lab:
        client = await lab.tunnel()
        await client.send(client.request("POST", "/stream", body=b"{}"))
        await lab.upstream.connection()
        await lab.until(lambda: lab.upstream.lines[0].received.endswith(b"{}"))
        reload(lab, [ALLOW_ALL, NO_STREAMS])
        answer = await client.answer("POST")
        assert (answer.status, answer.reason) == (403, "revoked")
        [record] = await lab.audited("POST /stream deny revoked 403 denied")
        audited_as_revoked(record, rule="no-streams")


async def test_an_idle_tunnel_is_closed() -> None:
    """A tunnel to a host of which nothing may be asked any more is closed, idle as it is, and its record says why."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        report = reload(lab, [OTHERS_ONLY])
        await client.closed()
        assert (report.revoked_requests, report.revoked_tunnels) == (0, 1)
        _, record = await lab.audited(
            "GET /x allow allowed 200 complete", f"CONNECT {lab.authority()} deny revoked 200 aborted"
        )
        audited_as_revoked(record)


async def test_a_tunnel_within_its_handshake_is_closed() -> None:
    """So is one whose TLS has not begun."""
    async with Lab(HttpUpstream(echo)) as lab:
        line, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 200 ")
        reload(lab, [OTHERS_ONLY])
        await line.end()
        await lab.audited(f"CONNECT {lab.authority()} deny revoked 200 aborted")


async def test_a_stream_in_a_revoked_tunnel_is_recorded_by_itself() -> None:
    """Where the tunnel goes, the exchange in it ends first: as revoked, not as left by its guest."""
    async with Lab(HttpUpstream(Streams())) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        report = reload(lab, [OTHERS_ONLY])
        await cut(client, h)
        await lab.audited(
            "GET /stream deny revoked 200 truncated", f"CONNECT {lab.authority()} deny revoked 200 aborted"
        )
        assert (report.revoked_requests, report.revoked_tunnels) == (1, 1)


async def test_a_removed_credential_ends_what_uses_it() -> None:
    """A stream that carries a removed credential is cut; one that carries none goes on."""
    streams = Streams()
    async with Lab(HttpUpstream(streams), HttpUpstream(streams, "free.test"), rules=[WITH_KEY_FOR_API, FREE]) as lab:
        with_key, without = await lab.tunnel(), await lab.tunnel(lab.authority(1))
        h, h_free = await begin_stream(with_key), await begin_stream(without)
        report = reload(lab, [{**ALLOW_ALL, "id": "all"}], CREDENTIAL)
        await cut(with_key, h)
        [record] = await lab.audited("GET /stream deny revoked 200 truncated")
        audited_as_revoked(record, rule="all")
        assert "'key'" in record.message
        assert report.revoked_requests == 1
        streams.go_on.set()
        assert type(await without.event(h_free)).__name__ == "Data"
        assert type(await without.event(h_free)).__name__ == "EndOfMessage"
        await lab.audited("GET /stream allow allowed 200 complete")


WITH_KEY_FOR_API = {"id": "api", "allow": {"hosts": ["api.test"], "ports": ["1-65535"]}, "credential": "key"}
FREE = {"id": "free", "allow": {"hosts": ["free.test"], "ports": ["1-65535"]}}


@pytest.mark.parametrize(
    "change",
    [
        {"credentials": {"key": {"hosts": ["other.test"]}}},
        {"credentials": {"key": {"methods": ["POST"]}}},
        {"credentials": {"key": {"paths": ["/v1/*"]}}},
    ],
    ids=["hosts", "methods", "paths"],
)
async def test_a_credential_that_is_bound_elsewhere(change: dict[str, Any]) -> None:
    """A stream whose credential may not go with its request any more is cut."""
    async with Lab(HttpUpstream(Streams()), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        reload(lab, settings=change)
        await cut(client, h)
        await lab.audited("GET /stream deny revoked 200 truncated")


async def test_a_rule_that_selects_the_credential_no_more() -> None:
    """A stream with a credential that its rule does not grant any more is cut, though it is allowed without."""
    async with Lab(HttpUpstream(Streams()), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        reload(lab, [ALLOW_ALL])
        await cut(client, h)
        [record] = await lab.audited("GET /stream deny revoked 200 truncated")
        assert "the credential 'key' no longer goes with it" in record.message


async def test_a_rotated_credential_cuts_nothing() -> None:
    """Where a credential's value comes from may change under a stream that carries the old value."""
    streams = Streams()
    async with Lab(HttpUpstream(streams), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        (lab.folder / "new-key").write_text("sk-live-another-value-0123456789")
        reload(lab, settings={"credentials": {"key": {"source": {"file": str(lab.folder / "new-key")}}}})
        streams.go_on.set()
        assert type(await client.event(h)).__name__ == "Data"
        assert type(await client.event(h)).__name__ == "EndOfMessage"
        await lab.audited("GET /stream allow allowed 200 complete")


async def test_an_address_that_is_not_permitted_any_more() -> None:
    """Taking a class of addresses back ends the streams to them."""
    async with Lab(HttpUpstream(Streams())) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        reload(lab, settings={"permit_addresses": []})
        await cut(client, h)
        [record] = await lab.audited("GET /stream deny revoked 200 truncated")
        assert "loopback" in record.message


def _no_model(*, when: str) -> dict[str, Any]:
    return {"id": "no-model", "deny": {"hosts": ["**"], "ports": ["1-65535"]}, "when": when}


async def test_rules_about_bodies_look_into_what_was_kept() -> None:
    """A body that the old policy had to read is judged by the new rules: one stream is cut, the other goes on."""
    streams = Streams()
    reading = _no_model(when='request.json.model == "none"')
    async with Lab(HttpUpstream(streams), rules=[ALLOW_ALL, reading]) as lab:
        clients = [await lab.tunnel(), await lab.tunnel()]
        for client, model in zip(clients, (b"a", b"b"), strict=True):
            await client.send(client.request("POST", "/stream", JSON, body=b'{"model": "%b"}' % model))
        begun = [await client.begin("POST") for client in clients]
        for client, (_, h) in zip(clients, begun, strict=True):
            assert type(await client.event(h)).__name__ == "Data"
        report = reload(lab, [ALLOW_ALL, _no_model(when='request.json.model == "a"')])
        assert report.revoked_requests == 1
        await cut(clients[0], begun[0][1])
        streams.go_on.set()
        assert type(await clients[1].event(begun[1][1])).__name__ == "Data"
        assert type(await clients[1].event(begun[1][1])).__name__ == "EndOfMessage"
        await lab.audited("POST /stream deny revoked 200 truncated", "POST /stream allow allowed 200 complete")


async def test_a_body_that_went_by_unread_is_unevaluable() -> None:
    """A new rule about a body that was not kept can't be told to allow it: the stream is cut."""
    async with Lab(HttpUpstream(Streams())) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client, method="POST")
        reload(lab, [ALLOW_ALL, _no_model(when='request.json.model == "a"')])
        await cut(client, h)
        await lab.audited("POST /stream deny revoked 200 truncated")


async def test_a_condition_that_does_not_matter_cuts_nothing() -> None:
    """A stream that another rule allows anyway goes on, whatever a new rule asks of a body that is gone."""
    streams = Streams()
    async with Lab(HttpUpstream(streams)) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client, method="POST")
        also = {
            "id": "also",
            "allow": {"hosts": ["**.test"], "ports": ["1-65535"]},
            "when": 'request.json.model == "a"',
        }
        assert reload(lab, [ALLOW_ALL, also]).revoked_requests == 0
        streams.go_on.set()
        assert type(await client.event(h)).__name__ == "Data"
        assert type(await client.event(h)).__name__ == "EndOfMessage"
        await lab.audited("POST /stream allow allowed 200 complete")


class Curious:
    """A plugin that, once it is switched on, would like to see bodies and decides without those that it can't see."""

    def __init__(self) -> None:
        self.on = False

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        """Defer as long as a body may come."""
        pending = self.on and request.body_state is BodyState.PENDING
        return Verdict(Effect.DEFER, Reason.ALLOWED) if pending else None


async def test_a_plugin_is_told_that_a_body_is_gone() -> None:
    """A plugin that would wait for a body is asked as for one that is too long, and its answer counts."""
    streams, curious = Streams(), Curious()
    async with Lab(HttpUpstream(streams), plugins=[("curious", curious)]) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client, method="POST")
        curious.on = True
        assert reload(lab).revoked_requests == 0
        streams.go_on.set()
        assert type(await client.event(h)).__name__ == "Data"
        assert type(await client.event(h)).__name__ == "EndOfMessage"
        await lab.audited("POST /stream allow allowed 200 complete")


async def test_a_body_that_is_still_coming_is_judged_by_the_new_policy() -> None:
    """A request whose body is awaited to be judged meets the rules that are in force when it has come."""
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, _no_model(when='request.json.model == "none"')]) as lab:
        client = await lab.tunnel()
        whole = client.request("POST", "/x", JSON, body=b'{"model": "a"}')
        await client.send(whole[:-3])
        await lab.until(lambda: bool(lab.gateway.seam.active))
        report = reload(lab, [ALLOW_ALL, _no_model(when='request.json.model == "a"')])
        assert report.revoked_requests == 0
        await client.send(whole[-3:])
        assert (await client.answer("POST")).reason == "rule_denied"
        [record] = await lab.refused("POST /x deny rule_denied 403 denied")
        assert (record.generation, record.rule) == (2, "no-model")


class Waits:
    """A plugin that resolves names once it is told to, and counts how often it was asked."""

    def __init__(self, resolution: Callable[[str], Resolution]) -> None:
        self.resolution = resolution
        self.go_on = asyncio.Event()
        self.asked = 0

    @hookimpl
    async def resolve_name(self, name: str) -> Resolution:
        """Wait, then answer."""
        self.asked += 1
        await self.go_on.wait()
        return self.resolution(name)


def _loopback(name: str) -> Resolution:
    return Resolution(name, ("127.0.0.1",), monotonic() + 60)


async def test_what_was_not_sent_goes_on_by_the_new_generation() -> None:
    """A request that waits for its name is judged again and begins anew: nothing of it is the old generation's."""
    waits = Waits(_loopback)
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], first=[("waits", waits)]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await lab.until(lambda: waits.asked == 1)
        report = reload(lab)
        await lab.until(lambda: waits.asked == 2)
        waits.go_on.set()
        assert (await client.answer()).status == 200
        [record] = await lab.audited("GET /x allow allowed 200 complete")
        assert record.generation == 2
        assert report.revoked_requests == 0
        assert len(lab.upstream.lines) == 1


async def test_a_name_that_comes_at_the_moment_of_a_reload() -> None:
    """An answer that was under way to a request that is taken back is dropped: the request is sent once."""
    waits = Waits(_loopback)
    async with Lab(HttpUpstream(echo), first=[("waits", waits)]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await lab.until(lambda: waits.asked == 1)
        waits.go_on.set()
        reload(lab)
        assert (await client.answer()).status == 200
        [record] = await lab.audited("GET /x allow allowed 200 complete")
        assert record.generation == 2
        assert waits.asked == 2
        assert lab.upstream.received.count(b"GET /x") == 1


class Vault:
    """A plugin that supplies a credential once it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.asked = 0

    @hookimpl
    async def supply_credential(self, credential: str) -> Supply:
        """Wait, then supply."""
        self.asked += 1
        await self.go_on.wait()
        return Supply(credential, ((b"x-api-key", b"from-the-vault"),))


async def test_a_request_that_waits_for_its_credential_waits_for_the_new_one() -> None:
    """Nothing is dialled before the credential is there; after a reload, that is the one of the new generation."""
    vault = Vault()
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], secrets_first=[("vault", vault)]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await lab.until(lambda: vault.asked == 1)
        reload(lab)
        await lab.until(lambda: vault.asked == 2)
        assert lab.gateway.seam.pool.counts[0] == 0 and lab.upstream.lines == []
        vault.go_on.set()
        assert (await client.answer()).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        assert len(lab.upstream.lines) == 1


class ReloadsOnce:
    """A plugin that has the gateway reload as soon as a session is open, before anything is sent on it."""

    def __init__(self) -> None:
        self.lab: Lab | None = None

    @hookimpl
    def connected(self, guest: Guest, target: Target, address: str) -> None:
        """Ask for it, once."""
        lab, self.lab = self.lab, None
        if lab is not None:
            asyncio.get_running_loop().call_soon(reload, lab)


async def test_a_session_that_was_taken_before_a_reload_is_given_back() -> None:
    """It is not used after it, and not kept."""
    plugin = ReloadsOnce()
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], plugins=[("reloads", plugin)]) as lab:
        plugin.lab = lab
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        [record] = await lab.audited("GET /x allow allowed 200 complete")
        assert record.generation == 2
        assert len(lab.upstream.lines) == 2
        assert lab.upstream.lines[0].received == b""


async def test_what_was_not_sent_and_is_forbidden_is_not_sent() -> None:
    """A request that waits for its name and is denied by the new policy is refused; no upstream hears of it."""
    waits = Waits(_loopback)
    async with Lab(HttpUpstream(echo), first=[("waits", waits)]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/stream"))
        await lab.until(lambda: waits.asked == 1)
        reload(lab, [ALLOW_ALL, NO_STREAMS])
        assert (await client.answer()).reason == "revoked"
        waits.go_on.set()
        [record] = await lab.refused("GET /stream deny revoked 403 denied")
        audited_as_revoked(record, rule="no-streams")


class ReloadsBeforeItLeaves:
    """A plugin that has a reload happen after all was prepared and before the journal let the request out."""

    def __init__(self) -> None:
        self.reload: Callable[[], object] | None = None

    @hookimpl
    def connected(self) -> None:
        """The session is there: the write-ahead follows in this turn of the loop, the reload comes before its end."""
        if self.reload is not None:
            once, self.reload = self.reload, None
            asyncio.get_running_loop().call_soon(once)


@pytest.mark.parametrize("forbidden", [False, True])
async def test_a_reload_between_the_record_and_the_request(forbidden: bool) -> None:
    """A request whose write-ahead is under way is taken back: sent once, by the new generation, or not at all."""
    plugin = ReloadsBeforeItLeaves()
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], plugins=[("reloads", plugin)]) as lab:
        client = await lab.tunnel()
        plugin.reload = lambda: reload(lab, [WITH_KEY, NO_STREAMS] if forbidden else [WITH_KEY])
        answer = await client.ask("GET", "/stream")
        if forbidden:
            assert answer.reason == "revoked"
            await lab.refused("GET /stream deny revoked 403 denied")
        else:
            assert answer.status == 200
            [record] = await lab.audited("GET /stream allow allowed 200 complete")
            assert record.generation == 2
            assert lab.upstream.received.count(b"GET /stream") == 1


async def test_a_bad_policy_changes_nothing() -> None:
    """What can't be used leaves everything as it was: the streams, the generation, the rules."""
    streams = Streams()
    async with Lab(HttpUpstream(streams)) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        with pytest.raises(ConfigError, match=r"policy\.yaml"):
            reload(lab, [{"id": "broken", "alow": {}}])
        with pytest.raises(ConfigError):
            reload(lab, [OTHERS_ONLY], {"upstream_tls": {"origins": [{"hosts": ["x.test"], "ca": "nowhere.pem"}]}})
        assert lab.gateway.seam.pipeline.generation == 1
        streams.go_on.set()
        assert type(await client.event(h)).__name__ == "Data"
        assert type(await client.event(h)).__name__ == "EndOfMessage"
        await lab.audited("GET /stream allow allowed 200 complete")


async def test_upstream_tls_is_reloaded() -> None:
    """Other roots hold for the next request, which gets a session of its own; the old ones come back as well."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        distrusted = {"upstream_tls": {"origins": [{"hosts": ["*.test"], "ca": "ca/ca.pem", "roots": "only"}]}}
        (lab.folder / "ca").mkdir(exist_ok=True)
        (lab.folder / "ca" / "ca.pem").write_bytes(lab.gateway.ca_path.read_bytes())
        assert reload(lab, settings=distrusted).needs_restart == ()
        assert (await client.ask("GET", "/x")).reason == "upstream_tls_failed"
        reload(lab)
        assert (await client.ask("GET", "/x")).status == 200
        good = "GET /x allow allowed 200 complete"
        await lab.audited(good, "GET /x allow upstream_tls_failed 502 failed", good)


async def test_what_waits_for_a_restart_is_said_each_time() -> None:
    """Sections that can't follow are named, compared with the start, until they are as they were."""
    other = {"limits": {"connections": 7}, "audit": {"keep": 3}, "entries": {"base_url": None}}
    async with Lab(HttpUpstream(echo)) as lab:
        most = lab.gateway.connections.most
        for _ in range(2):
            assert reload(lab, settings=other).needs_restart == ("entries", "audit", "limits")
            assert lab.gateway.reloads.needs_restart == ("entries", "audit", "limits")
        assert reload(lab).needs_restart == ()
        assert lab.gateway.connections.most == most > 7


class Exporter:
    """An exporter that says which generation's it is."""

    def __init__(self) -> None:
        self.generations: list[int] = []

    @hookimpl
    def export_audit(self, records: list[AuditRecord]) -> None:
        """Note the records' generations."""
        self.generations += [record.generation for record in records]


async def test_records_go_to_the_exporters_of_the_present_generation() -> None:
    """After a reload, what is written is handed to the new pipeline's plugins."""
    async with Lab(HttpUpstream(echo)) as lab:
        exporter = Exporter()
        lab.gateway._last = (*lab.gateway._last, ("exporter", exporter))
        reload(lab)
        assert exporter.generations == [2]  # the record of the reload itself
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        await lab.until(lambda: len(exporter.generations) == 2)


async def test_a_hundred_streams_are_cut_at_once() -> None:
    """Revocation does not queue: when the reload reports, each has ended and has its record, before the loop turns."""
    async with Lab(HttpUpstream(Streams(), tls=False)) as lab:
        clients = [await lab.proxy() for _ in range(100)]
        begun = [await begin_stream(client) for client in clients]
        report = reload(lab, [NO_STREAMS])
        assert report.revoked_requests == 100
        assert not lab.gateway.seam.active
        assert [str(record.reason) for record in lab.records] == ["revoked"] * 100
        for client, h in zip(clients, begun, strict=True):
            await cut(client, h)
        await lab.audited(*["GET /stream deny revoked 200 truncated"] * 100)


async def test_what_outlives_a_reload_is_counted() -> None:
    """Inspectors of a stream that the old generation opened add to the counters that operators see, reload or not."""
    streams = Streams()
    async with Lab(HttpUpstream(streams), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        for _ in range(2):
            reload(lab, [WITH_KEY])
        before = lab.gateway.seam.pipeline.inspector_stats["credentials"].calls
        assert before > 0
        streams.go_on.set()
        assert bytes((await client.event(h)).data) == b"data: two\n\n"
        assert type(await client.event(h)).__name__ == "EndOfMessage"
        pipeline = lab.gateway.seam.pipeline
        assert pipeline.inspector_stats["credentials"].calls > before
        assert pipeline.inspector_stats["credentials"] in pipeline.stats
        client.close()
        await lab.audited("GET /stream allow allowed 200 complete")
