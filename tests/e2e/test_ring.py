"""The ring as an entry: what a guest in a microVM sends is judged, served and recorded as behind the explicit proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from seamgate.config import KvmEntry
from seamgate.flow import Isolation
from seamgate_vmm.outcome import Outcome, Reason
from support.certificates import guest_context
from support.client import Answer
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.line import Line
from support.ring import Ringed, preface
from support.upstream import HttpUpstream, RawUpstream, echo

RULES: list[dict[str, Any]] = [
    {"id": "read", "allow": {"hosts": ["api.test"], "methods": ["GET"], "paths": ["/v1/**"], "ports": ["1-65535"]}},
    {
        "id": "send",
        "allow": {"hosts": ["api.test"], "methods": ["POST"], "paths": ["/v1/send"], "ports": ["1-65535"]},
        "credential": "key",
    },
    {"id": "no-admin", "deny": {"hosts": ["**"], "paths": ["/v1/admin/**"]}},
]
CORPUS: list[tuple[str, str, tuple[bytes, ...], bytes | None]] = [
    ("GET", "/v1/x", (), None),
    ("GET", "/v1/x?a=b&c", (b"accept: text/plain", b"x-many: 1", b"x-many: 2"), None),
    ("HEAD", "/v1/x", (), None),
    ("POST", "/v1/x", (), b"no"),
    ("POST", "/v1/send", (b"content-type: text/plain",), b"hello"),
    ("POST", "/v1/send", (b"x-api-key: of-the-guest",), b"hello"),
    ("POST", "/v1/send", (), b"x" * 300_000),
    ("GET", "/v2/x", (), None),
    ("GET", "/v1/admin/users", (), None),
    ("GET", "/v1/%61dmin/users", (), None),
    ("GET", "/v1/../v2/x", (), None),
    ("GET", "/v1//x", (), None),
    ("GET", "/v1/x", (b"connection: keep-alive, x-gone", b"x-gone: 1"), None),
    ("GET", "/v1/x", (b"expect: a-miracle",), None),
    ("DELETE", "/", (), None),
    ("GET", "http://other.test/v1/x", (), None),
    ("CONNECT", "/", (), None),
]


async def test_https_is_plaintext_on_the_ring() -> None:
    """The gateway speaks TLS upstream, with the guest's labels, a credential that it never sees, and one record."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        answers = [await client.ask("GET", path) for path in ("/x", "/y")]
        assert [answer.status for answer in answers] == [200, 200]
        assert SECRET.encode() in lab.upstream.received
        assert SECRET.encode() not in b"".join(answer.body for answer in answers)
        records = await lab.audited("GET /x allow allowed 200 complete", "GET /y allow allowed 200 complete")
        guest = records[0].guest
        assert guest is not None and (guest.isolation, guest.labels) == (Isolation.KVM, {"team": "research"})
        assert records[0].entry == "ring" and records[0].request is not None
        assert (records[0].request.scheme, records[0].request.host) == ("https", "api.test")
        client.close()


async def test_plain_http() -> None:
    """Without a preface it is http, whose Host has to be the name that was asked for."""
    async with Lab(HttpUpstream(echo, tls=False)) as lab, Ringed(lab) as ringed:
        client = await ringed.plain()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        client.authority = "other.test"
        assert (await client.ask("GET", "/x")).reason == "target_mismatch"
        await lab.audited(f"GET {lab.authority()} deny target_mismatch 421 denied")
        client.close()


async def test_tls_of_the_guests_own_is_terminated() -> None:
    """A real ClientHello gets a leaf of the gateway's CA, as in a tunnel."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        client = await ringed.own_tls("api.test", guest_context(lab.gateway.ca_path))
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        client.close()


async def test_a_late_preface_is_read_all_the_same() -> None:
    """A guest that is slow between connecting and greeting, as in a crowd, is not taken for something else."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        line = await ringed.open()
        await lab.until(lambda: bool(ringed.entry._streams.undecided))  # the ring took its silence for an answer
        greeting = preface("api.test")
        await line.send(greeting[:5])
        await line.send(greeting[5:] + b"GET /x HTTP/1.1\r\n", f"host: {lab.authority()}\r\n\r\n".encode())
        assert (await line.head()).startswith(b"HTTP/1.1 200 ")
        await lab.audited("GET /x allow allowed 200 complete")
        line.close()


async def test_both_ways_in_lead_to_the_same_verdicts() -> None:
    """P12: the same corpus through the ring and through CONNECT: same verdict, reason, rule, status, upstream bytes."""
    seen = []
    for way in ("ring", "proxy"):
        async with Lab(HttpUpstream(echo), rules=RULES, checks=False) as lab, Ringed(lab) as ringed:
            for method, path, headers, body in CORPUS:
                client = await (ringed.tls() if way == "ring" else lab.tunnel())
                await client.send(client.request(method, path, *headers, body=body))
                await client.answer(method)
                client.close()
            await lab.settled()
            port = lab.authority().rpartition(":")[2].encode()
            facts = [(each.verdict, each.reason, each.rule, each.status, each.message) for each in lab.records]
            seen.append(([_without(port, fact) for fact in facts], lab.upstream.received.replace(port, b"PORT")))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == len(CORPUS)


def _without(port: bytes, facts: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*facts[:-1], facts[-1].replace(port.decode(), "PORT"))


async def test_streams_that_pass_unread() -> None:
    """Where a rule says `protocol: tcp`, whoever speaks first, and what is said, is the stream's own business."""

    async def greet(line: Line) -> None:
        await line.send(b"220 hello\r\n")
        assert await line.until(b"\n") == b"quit\n"
        line.close()

    rule = {"id": "mail", "allow": {"hosts": ["mail.test"], "ports": ["1-65535"], "protocol": "tcp"}}
    async with Lab(RawUpstream(greet, "mail.test", tls=False), rules=[rule]) as lab, Ringed(lab) as ringed:
        line = await ringed.open()
        assert await line.until(b"\n") == b"220 hello\r\n"
        await line.send(b"quit\n")
        await line.end()
        line.close()


async def test_names_are_judged_and_never_looked_up() -> None:
    """Any allowed name gets an address without a look-up; a denied one is told, and by default explained."""
    rules = [{"id": "one", "allow": {"hosts": ["api.test", "gone.test"]}}]
    async with Lab(HttpUpstream(echo), rules=rules) as lab, Ringed(lab) as ringed:
        code, address = await ringed.resolve("gone.test")  # which no server knows
        assert (code, address[:7]) == (0, "198.18.")
        assert await ringed.resolve("gone.test", "AAAA") == (0, "")
        client = await ringed.tls("evil.test", 443)
        denied = await client.ask("GET", "/")
        assert (denied.status, denied.reason) == (403, "no_rule_matched")
        await lab.refused("RESOLVE evil.test:53 deny no_rule_matched 0 denied", "GET / deny no_rule_matched 403 denied")
        assert await ringed.resolve("API.Test") == await ringed.resolve("api.test")
        client.close()


@pytest.mark.parametrize(("setting", "code"), [("nxdomain", 3), ("refused", 5)])
async def test_denied_names_as_configured(setting: Any, code: int) -> None:
    """Who wants programs to give up at once says so."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab, entry=KvmEntry(denied_names=setting)) as ringed:
        assert await ringed.resolve("evil.example") == (code, "")
        await lab.refused("RESOLVE evil.example:53 deny no_rule_matched 0 denied")


async def test_a_reload_ends_what_is_no_longer_allowed() -> None:
    """Revocation is live on a ring too: the stream that a new policy denies is cut, and recorded as revoked."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        lab.write_policy([{**ALLOW_ALL, "allow": {"hosts": ["other.test"]}}])
        assert lab.gateway.reload(lab.gateway.config).revoked_tunnels == 1
        await client.closed()
        await lab.refused("CONNECT " + lab.authority() + " deny revoked 0 aborted", upstream_got=lab.upstream.received)


async def test_the_end_of_a_guest_is_told() -> None:
    """Each end is a line of the journal: how, with which status, and which calls it was refused."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        ringed.entry.ended(Outcome(Reason.RING_VIOLATION, 70, "it sent nonsense", {"fork": 1}, 0.5))
        await lab.gateway.stop()
        (line,) = (line for line in lab.lines() if line.get("gateway", {}).get("event") == "guest_end")
        assert line["guest"]["id"] == "run" and line["gateway"]["facts"] == {
            "reason": "ring_violation",
            "exit_status": "70",
            "detail": "it sent nonsense",
            "cpu_s": "0.500",
            "refused_calls": "fork",
        }


async def test_large_bodies_and_many_streams() -> None:
    """Credits and water marks carry more than a ring holds, on many streams at once."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        clients = [await ringed.tls() for _ in range(10)]

        async def ask(number: int) -> Answer:
            return await clients[number].ask("POST", f"/{number}", body=bytes([number]) * 200_000)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(number)) for number in range(10)]
        assert [task.result().status for task in tasks] == [200] * 10
        assert not ringed.violations
        await lab.until(lambda: len(lab.records) == 10)
        assert {record.bytes.request_body for record in lab.records if record.bytes is not None} == {200_000}
        lab._claimed = 10
        for client in clients:
            client.close()
