"""A gateway of several workers is one gateway: one policy, one audit log, one set of limits, one reload, one view.

The workers are real processes; what dies here is killed as the kernel would.
"""

from __future__ import annotations

import asyncio
import collections
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from dnslib import DNSRecord

from fake_dns import FakeDns
from seamgate.config import Config
from seamgate.errors import ConfigError
from seamgate.reloading import Prepared
from seamgate.upstream.pool_key import PoolConfig
from seamgate.workers.supervisor import Supervisor
from support.client import Answer, Client, connect
from support.crew import Crew, worker_of
from support.lab import ALLOW_ALL, OTHER_TOKEN, WITH_KEY
from support.upstream import HttpUpstream, Talk, echo

ASYNC_TEST_LIMIT_S = 90.0
"""Three processes start for each test, on a machine that may be busy."""
DENY_X = {"id": "no-x", "deny": {"hosts": ["**"], "paths": ["/x/**", "/x"], "ports": ["1-65535"]}}


class Gate:
    """An upstream app that answers `/held` once it is told to, everything else at once."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.held = 0

    async def __call__(self, talk: Talk) -> None:
        if talk.target.startswith("/held"):
            self.held += 1
            await self.open.wait()
        await echo(talk)


async def ask_all(clients: Sequence[Client], path: str, times: int) -> list[Answer]:
    """Have all clients ask at once, each so often, one request after the other, until its connection is cut."""

    async def ask(client: Client) -> list[Answer]:
        answers: list[Answer] = []
        while len(answers) < times and (not answers or answers[-1].whole):
            answers.append(await ask_once(client, path))
        return answers

    return [answer for answers in await asyncio.gather(*map(ask, clients)) for answer in answers]


async def ask_once(client: Client, path: str) -> Answer:
    """Return the answer to a request; one without an end where the connection was closed."""
    try:
        return await client.ask("GET", path)
    except RuntimeError:  # uvloop: it is closed already
        return Answer()


async def test_all_workers_judge_and_record_alike() -> None:
    """Each worker allows and denies the same, puts the credential in, and its records stand in the one chain."""
    async with Crew(HttpUpstream(echo), rules=[WITH_KEY, DENY_X]) as crew:
        clients = await crew.spread()
        for client in clients:
            answer = await client.ask("GET", "/api/y")
            assert answer.status == 200
            assert ["x-api-key", "[redacted:key]"] in answer.json["headers"]
            denied = await client.ask("GET", "/api/x")
            assert (denied.status, denied.reason) == (403, "rule_denied")
            assert worker_of(denied.header(b"x-request-id")) == clients.index(client)
        before = len(crew.upstream.lines)
        await crew.until_soon(lambda: sum(line["reason"] == "rule_denied" for line in crew.terminal()) == 2)
        lines = crew.lines()
        assert sum(line["kind"] == "begin" for line in lines) == 2
        assert {line["generation"] for line in lines} == {1}
        assert before == 2  # each worker has sessions of its own; a denied request opens none


async def test_fifty_misses_of_one_name_cost_one_query() -> None:
    """Whichever worker asks, a name is looked up once; then each worker knows it, and a denied name is never asked."""
    upstream = HttpUpstream(echo, "far.example.test", tls=False)
    async with FakeDns() as dns:
        dns.host("far.example.test", "127.0.0.1")
        dns.hold = asyncio.Event()
        settings = {"dns": {"addresses": None, "servers": [dns.server], "families": "ipv4", "timeout_s": 10.0}}
        async with Crew(upstream, rules=[ALLOW_ALL, DENY_X], settings=settings) as crew:
            route = [Client(client.line, "127.0.0.1") for client in await crew.spread(25)]
            asking = asyncio.ensure_future(ask_all(route, "/api/y", 1))
            async with asyncio.timeout(20):
                await dns.asked.wait()
            for _ in range(3):  # the denied ones pass by those that wait, and ask for nothing
                (denied,) = await ask_all([await crew.proxy(authority="other.example.test")], "/x", 1)
                assert denied.reason == "rule_denied"
            dns.hold.set()
            assert [answer.status for answer in await asking] == [200] * 50
            assert dns.queries == [("far.example.test", "A")]
            assert [answer.status for answer in await ask_all(route, "/api/y", 1)] == [200] * 50
            assert dns.queries == [("far.example.test", "A")]
            await crew.supervisor.refresh()
            samples = {
                sample.labels["result"]: sample.value
                for family in crew.supervisor._gather()
                for sample in family.samples
                if sample.name == "seamgate_dns_lookups_total"
            }
            assert samples["misses"] == 1
            assert sum(samples[each] for each in ("hits", "coalesced", "misses")) == 100


async def test_a_rate_limit_is_of_all_workers_together() -> None:
    """30 an hour are 30 in all, to the request, however they are spread; over a reload too, if the limit stays."""
    rule = {**ALLOW_ALL, "limits": {"requests": "30/h"}}
    async with Crew(HttpUpstream(echo), rules=[rule]) as crew:
        clients = await crew.spread(3)
        for generation, (limit, left) in enumerate((("30/h", 30), ("30/h", 0), ("40/h", 40)), 1):
            if generation > 1:
                crew.write_policy([{**rule, "limits": {"requests": limit}, "reason": f"generation {generation}"}])
                assert (await crew.supervisor.reload_everywhere()).generation == generation
            answers = await ask_all(clients, "/api/y", 10)
            counts = collections.Counter(answer.status for answer in answers)
            assert counts == collections.Counter({200: left, 429: 60 - left}), counts


async def test_the_limit_of_connections_is_of_all_workers_together() -> None:
    """As many guests as the limit says are connected in all; the next is refused, until one of them goes."""
    async with Crew(HttpUpstream(echo), settings={"limits": {"connections": 8}}) as crew:
        clients = [await crew.base() for _ in range(8)]
        workers = {worker_of((await client.ask("GET", "/nowhere")).header(b"x-request-id")) for client in clients}
        assert len(workers) <= 2
        for _ in range(4):
            refused = await crew.base()
            assert (await refused.answer()).status == 503
        assert crew.supervisor.connections.full
        clients[0].close()
        await crew.until_soon(lambda: not crew.supervisor.connections.full)
        again = await crew.base()
        assert (await again.ask("GET", "/nowhere")).status == 400


async def test_held_bodies_are_counted_over_all_workers() -> None:
    """The memory that bodies take until they are judged is one budget: what one worker holds, another has not."""
    rule = {**ALLOW_ALL, "when": 'request.json.model == "a"'}
    limits = {"held_bytes": 400_000, "judged_body_bytes": 300_000}
    async with Crew(HttpUpstream(echo), rules=[rule], settings={"limits": limits}) as crew:
        one, other = await crew.spread()
        fields = b"host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 180000\r\n"
        head = b"POST /api/y HTTP/1.1\r\n" + fields + b"\r\n"
        await one.send(head, b" " * 150_000)
        await crew.until_soon(lambda: crew.supervisor._memory.total(2) == 150_000)
        await other.send(head, b" " * 150_000)
        refused = await other.answer()
        assert (refused.status, refused.reason) == (503, "overloaded")
        one.close()
        await crew.until_soon(lambda: crew.supervisor._memory.total(2) == 0)


async def test_a_worker_that_is_killed_is_replaced() -> None:
    """What it had begun ends as `worker_lost`, the other goes on, a new one serves, and no counter falls."""
    gate = Gate()
    async with Crew(HttpUpstream(gate), rules=[WITH_KEY]) as crew:
        first, second = await crew.spread()
        await first.send(first.request("GET", "/api/held"))
        await second.send(second.request("GET", "/api/held"))
        await crew.until_soon(lambda: gate.held == 2)
        await crew.supervisor.refresh()
        before = crew.supervisor.status()
        await crew.kill(0)
        gate.open.set()
        assert (await second.answer()).status == 200
        assert (await first.answer()).status == 0
        await crew.serving()
        status = crew.supervisor.status()
        assert status.workers[0].restarts == 1
        assert status.counts.requests_total >= before.counts.requests_total
        clients = await crew.spread()
        assert [answer.status for answer in await ask_all(clients, "/api/y", 1)] == [200, 200]
        lost = [line for line in await crew.recorded(6) if line["reason"] == "worker_lost"]
        assert [(line["request"]["path"], line["outcome"], line["credentials"]) for line in lost] == [
            ("/held", "aborted", ["key"])
        ]


async def test_a_worker_is_killed_under_load() -> None:
    """Each request that was begun has one terminal record, each answer that came is in the log, the chain holds."""
    async with Crew(HttpUpstream(echo), rules=[WITH_KEY]) as crew:
        answered: list[str] = []

        async def load() -> None:
            client = await crew.base()
            for number in range(60):
                answer = await ask_once(client, f"/api/y/{number}")
                if not answer.whole:  # its worker was killed: a client connects again
                    client.close()
                    client = await crew.base()
                else:
                    assert answer.status == 200, answer
                    answered.append(answer.json["target"])

        loads = [asyncio.ensure_future(load()) for _ in range(8)]
        await crew.until_soon(lambda: len(answered) > 60)
        await crew.kill(0)
        await crew.serving()
        await crew.kill(1)
        await asyncio.gather(*loads)
        ended = collections.Counter(answered)
        await crew.until_soon(
            lambda: not ended - collections.Counter(line["request"]["path"] for line in crew.terminal())
        )


async def test_a_reload_under_load_is_of_all_workers_or_none() -> None:
    """Once it is said to be done, no worker allows what it forbids; what was under way in each ends, revoked."""
    gate = Gate()
    async with Crew(HttpUpstream(gate), rules=[WITH_KEY]) as crew:
        clients = await crew.spread(3)
        held = [clients[0], clients[3]]
        for client in held:
            await client.send(client.request("GET", "/api/held"))
        await crew.until_soon(lambda: gate.held == 2)
        others = [client for client in clients if client not in held]
        load = asyncio.ensure_future(ask_all(others, "/api/y", 40))
        crew.write_policy([WITH_KEY, {**DENY_X, "deny": {**DENY_X["deny"], "paths": ["/y", "/held"]}}])  # type: ignore[dict-item]
        report = await crew.supervisor.reload_everywhere()
        assert report.generation == 2
        assert report.revoked_requests >= 2
        for client in held:
            assert (await client.answer()).reason == "revoked"
        await load
        answers = await ask_all(await crew.spread(), "/api/y", 1)
        assert {answer.reason for answer in answers} == {"rule_denied"}
        await crew.supervisor.refresh()
        assert {worker.generation for worker in crew.supervisor.status().workers} == {2}
        kinds = [line for line in crew.lines() if line["kind"] == "gateway"]
        assert [line["gateway"]["event"] for line in kinds] == ["start", "reload"]


async def ask_name(place: tuple[str, int], name: str) -> DNSRecord:
    """Ask the entry `dns` for a name over UDP."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        client.connect(place)
        client.send(DNSRecord.question(name).pack())
        return DNSRecord.parse(await loop.sock_recv(client, 4096))


async def test_the_name_service_is_one_workers() -> None:
    """The entry `dns` answers by the policy and the cache of all; if its worker dies, the next one goes on."""
    async with FakeDns() as dns:
        dns.host("far.test", "192.0.2.7")
        entry = {"dns": {"listen": "127.0.0.1:0", "guest": "g"}}
        addresses = {"servers": [dns.server], "families": "ipv4"}
        settings = {"entries": entry, "dns": addresses, "permit_addresses": ["loopback", "192.0.2.0/24"]}
        async with Crew(HttpUpstream(echo), rules=[ALLOW_ALL], settings=settings) as crew:
            place = crew.supervisor.addresses["dns"]
            assert [str(each.rdata) for each in (await ask_name(place, "far.test")).rr] == ["192.0.2.7"]
            denied = await ask_name(place, "far.example")
            assert not denied.rr
            assert dns.queries == [("far.test", "A")]
            await crew.kill(0)
            answer = await ask_name(place, "far.test")  # it waits in the socket until the next worker is there
            assert [str(each.rdata) for each in answer.rr] == ["192.0.2.7"]
            assert dns.queries == [("far.test", "A")]


class LosesAFile(Supervisor):
    """A supervisor between whose own look at a file and its workers' look somebody takes the file away."""

    lost = ""

    async def prepare_aside(self, config: Config, generation: int) -> Prepared:
        new = await super().prepare_aside(config, generation)
        if self.lost:
            (config.base / self.lost).unlink()
        return new


async def test_a_reload_that_one_worker_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker can't load, no process uses: the old policy stays in force everywhere, and the error says why."""
    monkeypatch.setattr("support.crew.Supervisor", LosesAFile)
    async with Crew(HttpUpstream(echo), rules=[ALLOW_ALL]) as crew:
        clients = await crew.spread()
        crew.write_policy([DENY_X])
        monkeypatch.setattr(LosesAFile, "lost", "upstream-ca.pem")
        monkeypatch.setattr(LosesAFile, "lost", crew.settings()["upstream_tls"]["origins"][0]["ca"])
        with pytest.raises(ConfigError, match="worker 0 can't take it over"):
            await crew.supervisor.reload_everywhere()
        assert [answer.status for answer in await ask_all(clients, "/api/y", 1)] == [200, 200]
        assert crew.supervisor.reloads.refused == 1
        monkeypatch.setattr(LosesAFile, "lost", "")
        crew.settings()  # writes the file again
        assert (await crew.supervisor.reload_everywhere()).generation == 2
        assert {answer.reason for answer in await ask_all(clients, "/api/x", 1)} == {"rule_denied"}


async def test_a_worker_that_is_started_again_has_what_is_in_force() -> None:
    """Whatever became of the policy's file since it was loaded, the new worker judges as the others do."""
    async with Crew(HttpUpstream(echo), rules=[ALLOW_ALL, DENY_X]) as crew:
        await crew.spread()
        settings = crew.settings()
        (crew.folder / "seamgate.yaml").write_text(json.dumps({**settings, "workers": 3}))
        report = await crew.supervisor.reload_everywhere()
        assert report.needs_restart == ("workers",)
        crew.write_policy([ALLOW_ALL])  # saved, not loaded
        await crew.kill(1)
        await crew.serving()
        clients = await crew.spread()
        assert {answer.reason for answer in await ask_all(clients, "/api/x", 1)} == {"rule_denied"}


@asynccontextmanager
async def full_disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Have the supervisor's writes to files fail."""

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", refuse)
        patch.setattr("os.writev", refuse)
        yield


async def test_a_full_disk_stops_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the supervisor can't write the audit log, no worker lets anything out; then all go on."""
    async with Crew(HttpUpstream(echo), rules=[WITH_KEY]) as crew:
        clients = await crew.spread()
        assert [answer.status for answer in await ask_all(clients, "/api/before", 1)] == [200, 200]
        async with full_disk(monkeypatch):
            for _ in range(2):
                answers = await ask_all(clients, "/api/full", 1)
                assert {answer.reason for answer in answers} == {"audit_unavailable"}
            assert b"/full" not in crew.upstream.received
        await crew.until_soon(lambda: crew.supervisor.seam.journal.healthy)
        await crew.until_soon(lambda: crew.supervisor._told_problem == "")
        for client in clients:
            answer = await client.ask("GET", "/api/after")
            while answer.reason == "audit_unavailable":  # it has not heard yet
                answer = await client.ask("GET", "/api/after")
            assert answer.status == 200


async def test_a_stop_lets_all_workers_finish() -> None:
    """What is under way in each worker ends well; the journal says that the gateway stopped, after their records."""
    gate = Gate()
    async with Crew(HttpUpstream(gate), rules=[WITH_KEY]) as crew:
        clients = await crew.spread()
        for client in clients:
            await client.send(client.request("GET", "/api/held"))
        await crew.until_soon(lambda: gate.held == 2)
        stopping = asyncio.ensure_future(crew.supervisor.stop(grace_s=10))
        with pytest.raises(OSError):
            while True:
                (await crew.base()).close()
        gate.open.set()
        assert [(await client.answer()).status for client in clients] == [200, 200]
        await stopping
        lines = crew.lines()
        assert lines[-1]["gateway"]["event"] == "stop"
        assert sum(line["kind"] == "request" and line["reason"] == "allowed" for line in lines) == 2


async def test_status_and_metrics_are_of_all_workers() -> None:
    """One view: sums over the workers, what there is once from the supervisor, and each worker by itself."""
    settings = {"admin": {"listen": "127.0.0.1:0"}, "limits": {"connections": 100}}
    own = {"id": "own", "allow": {"hosts": ["127.0.0.1"], "schemes": ["http"], "ports": ["1-65535"]}}
    async with Crew(HttpUpstream(echo), rules=[ALLOW_ALL, own], settings=settings) as crew:
        clients = await crew.spread(2)
        await ask_all(clients, "/api/y", 5)
        host, port = crew.supervisor.admin_address.removeprefix("http://").split(":")
        admin = Client(await connect(host, int(port)), "127.0.0.1")
        status = (await admin.ask("GET", "/status")).json
        total = status["counts"]["requests_total"]
        assert total >= 24
        assert total == sum(worker["requests_total"] for worker in status["workers"])
        assert [worker["state"] for worker in status["workers"]] == ["serving", "serving"]
        assert status["ready"] and status["generation"] == 1
        assert status["counts"]["connections_limit"] == 100
        text = (await admin.ask("GET", "/metrics")).body.decode()
        assert f'seamgate_connections{{state="open"}} {status["counts"]["connections"]}.0' in text
        allowed = 'seamgate_requests_total{entry="base_url",kind="request",reason="allowed",verdict="allow"} 20.0'
        assert allowed in text
        assert "\nseamgate_generation 1.0\n" in text
        assert "\nprocess_cpu_seconds_total " in text
        refused = await Client(await crew.line("proxy"), f"127.0.0.1:{port}", absolute=True).ask("GET", "/status")
        assert refused.reason == "own_address"
        admin.close()


def test_too_few_sessions_for_so_many_workers() -> None:
    """A limit that can't be split is an error that says what to change, not a limit that is exceeded."""
    config = Config(workers=4, pool=PoolConfig(sessions_per_origin=3))
    with pytest.raises(ConfigError, match="less than one for each of 4 workers"):
        Supervisor(config)


async def test_guests_change_in_all_workers_by_a_reload() -> None:
    """A new token is known to every worker, also to one that is started after it; a removed guest's is to none."""
    settings: dict[str, Any] = {"entries": {"base_url": {"guest": ""}}}
    async with Crew(HttpUpstream(echo), settings=settings) as crew:
        (crew.folder / "new").write_text("n" * 40)

        async def reasons(token: str, connections: int = 12) -> set[str]:
            return {(await (await crew.base()).ask("GET", f"/~{token}/api/x")).reason for _ in range(connections)}

        assert await reasons("n" * 40) == {"unauthenticated"}
        crew._settings = {**settings, "guests": {"h": None, "n": {"token": {"file": str(crew.folder / "new")}}}}
        crew.write_settings()
        assert (await crew.supervisor.reload_everywhere()).needs_restart == ()
        assert await reasons("n" * 40) == {""}
        assert await reasons(OTHER_TOKEN) == {"unauthenticated"}
        await crew.kill(0)
        await crew.serving()
        assert await reasons("n" * 40) == {""}
