"""The resolver and the plugin `dns` against a real DNS server on loopback that says whatever the script has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from dnslib import RR, DNSRecord

from fake_dns import FakeDns, addresses, no_address, no_such_name, says, silence
from seamgate import Resolution, ResolveFailed
from seamgate.upstream.dns_cache import DnsCache
from seamgate.upstream.dns_message import Outcome
from seamgate.upstream.resolver import DnsConfig, Resolver
from seamgate_plugins.dns import DnsPlugin

Scenario = Callable[[FakeDns], Awaitable[None]]
Runner = Callable[[Any], Any]
on_both_loops = pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def run(scenario: Scenario, runner: Runner = asyncio.run) -> None:
    """Run a scenario against a fresh server, bounded in time."""

    async def main() -> None:
        async with asyncio.timeout(30), FakeDns() as dns:
            await scenario(dns)

    runner(main())


def config(dns: FakeDns, **settings: Any) -> DnsConfig:
    """Make a configuration that asks this server only."""
    given = {"servers": (dns.server,), "hosts_file": False, "families": "both", "timeout_s": 5.0, "deadline_s": 20.0}
    return DnsConfig(**{**given, **settings})


@on_both_loops
def test_both_families_alternate(runner: Runner) -> None:
    """A and AAAA are asked once each; their addresses alternate, AAAA first, on either event loop."""

    async def scenario(dns: FakeDns) -> None:
        dns.host("a.example", "192.0.2.1", "192.0.2.2", "2001:db8::1")
        answer = await Resolver(config(dns)).query("a.example")
        assert answer.addresses == ("2001:db8::1", "192.0.2.1", "192.0.2.2")
        assert answer.ttl_s == 60
        assert sorted(dns.queries) == [("a.example", "A"), ("a.example", "AAAA")]

    run(scenario, runner)


def test_ids_and_ports_are_fresh() -> None:
    """Each query has a socket of its own, and ids don't repeat in a pattern (RFC 5452)."""

    async def scenario(dns: FakeDns) -> None:
        dns.host("a.example", "192.0.2.1")
        resolver = Resolver(config(dns))
        for _ in range(20):
            await resolver.query("a.example")
        assert len(set(dns.ids)) > 35
        assert len(set(dns.ports)) > 20

    run(scenario)


@on_both_loops
def test_forged_datagrams_are_ignored(runner: Runner) -> None:
    """A datagram with another id, another question or without the response bit does not count; the right one does."""

    async def scenario(dns: FakeDns) -> None:
        def forged(query: DNSRecord) -> list[bytes]:
            evil: bytes = addresses("a.example", "203.0.113.66")(query)[0]
            wrong_id = bytes([evil[0] ^ 0xFF]) + evil[1:]
            wrong_question = evil.replace(b"\x01a\x07example", b"\x01b\x07example")
            no_response = evil[:2] + bytes([evil[2] & 0x7F]) + evil[3:]
            right = addresses("a.example", "192.0.2.1")(query)[0]
            return [b"", b"x", wrong_id, wrong_question, no_response, right]

        dns.tell("a.example", "A", forged)
        answer = await Resolver(config(dns, families="ipv4")).query("a.example")
        assert answer.addresses == ("192.0.2.1",)

    run(scenario, runner)


def test_datagrams_from_elsewhere_are_ignored() -> None:
    """What another socket sends to the query's port never arrives, even with the right id."""

    async def scenario(dns: FakeDns) -> None:
        elsewhere = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        def race(query: DNSRecord) -> list[bytes]:
            evil: bytes = addresses("a.example", "203.0.113.66")(query)[0]
            elsewhere.sendto(evil, ("127.0.0.1", dns.ports[-1]))
            return addresses("a.example", "192.0.2.1")(query)

        dns.tell("a.example", "A", race)
        with elsewhere:
            answer = await Resolver(config(dns, families="ipv4")).query("a.example")
        assert answer.addresses == ("192.0.2.1",)

    run(scenario)


@on_both_loops
def test_truncation_asks_over_tcp(runner: Runner) -> None:
    """A truncated answer is thrown away and asked for over TCP."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell("a.example", "A", says("a.example. 60 IN A 203.0.113.66", truncated=True))
        dns.tcp_script["a.example", "A"] = [addresses("a.example", "192.0.2.1")]
        answer = await Resolver(config(dns, families="ipv4")).query("a.example")
        assert answer.addresses == ("192.0.2.1",)
        assert dns.tcp_queries == [("a.example", "A")]

    run(scenario, runner)


def test_thousand_answers_are_capped() -> None:
    """Of 1,000 addresses over TCP the first few are kept, the rest is not even read."""

    async def scenario(dns: FakeDns) -> None:
        many = [f"192.0.{number >> 8}.{number & 255}" for number in range(1000)]
        dns.tell("a.example", "A", says(truncated=True))
        dns.tcp_script["a.example", "A"] = [addresses("a.example", *many)]
        answer = await Resolver(config(dns, families="ipv4", max_addresses=8)).query("a.example")
        assert answer.addresses == tuple(many[:8])

    run(scenario)


def test_alias_chain_is_followed_with_the_smallest_ttl() -> None:
    """Addresses are those at the end of the chain; the TTL is the smallest on the way; strays don't count."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell(
            "www.example",
            "A",
            says(
                "www.example. 300 IN CNAME Edge.CDN.example.",
                "stray.example. 300 IN A 203.0.113.66",
                "edge.cdn.example. 20 IN CNAME node.cdn.example.",
                "node.cdn.example. 100 IN A 192.0.2.7",
            ),
        )
        answer = await Resolver(config(dns, families="ipv4")).query("www.example")
        assert answer.addresses == ("192.0.2.7",)
        assert answer.aliases == ("edge.cdn.example", "node.cdn.example")
        assert answer.ttl_s == 20

    run(scenario)


@pytest.mark.parametrize("length", [2, 40])
def test_alias_loops_and_endless_chains_fail(length: int) -> None:
    """A chain that leads in a circle, or on and on, is a failure, not an answer."""

    async def scenario(dns: FakeDns) -> None:
        lines = [f"n{index}.example. 60 IN CNAME n{index + 1}.example." for index in range(length)]
        if length == 2:
            lines[-1] = "n1.example. 60 IN CNAME n0.example."
        else:
            lines.append(f"n{length}.example. 60 IN A 192.0.2.1")
        dns.tell("n0.example", "A", says(truncated=True))
        dns.tcp_script["n0.example", "A"] = [says(*lines)]
        answer = await Resolver(config(dns, families="ipv4", attempts=1)).query("n0.example")
        assert answer.outcome is Outcome.FAILED
        assert "alias" in answer.message

    run(scenario)


def test_servfail_goes_to_the_next_server() -> None:
    """A server that fails is passed over for the next one."""

    async def scenario(dns: FakeDns) -> None:
        async with FakeDns() as second:
            dns.tell("a.example", "A", says(code="SERVFAIL"))
            second.host("a.example", "192.0.2.1")
            both = config(dns, servers=(dns.server, second.server), families="ipv4")
            answer = await Resolver(both).query("a.example")
            assert answer.addresses == ("192.0.2.1",)
            assert len(dns.queries) == 1

    run(scenario)


@on_both_loops
def test_failure_names_each_server_and_why(runner: Runner) -> None:
    """When every server fails, the message says which said what."""

    async def scenario(dns: FakeDns) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
            closed.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{closed.getsockname()[1]}"
        dns.tell("a.example", "A", says(code="REFUSED"))
        resolver = Resolver(config(dns, servers=(dns.server, dead), families="ipv4", attempts=1))
        with pytest.raises(ResolveFailed) as caught:
            await resolver.resolve("a.example")
        assert f"{dns.server}: REFUSED" in caught.value.message
        assert f"{dead}: the connection was refused" in caught.value.message

    run(scenario, runner)


@on_both_loops
def test_silence_ends_at_the_deadline(runner: Runner) -> None:
    """Servers that never answer cost the deadline, not more, and the message says so."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell("a.example", "A", silence)
        answer = await Resolver(config(dns, families="ipv4", deadline_s=0.2, timeout_s=60)).query("a.example")
        assert answer.outcome is Outcome.FAILED
        assert "within 0.2 s" in answer.message

    run(scenario, runner)


def test_one_silent_family_does_not_hold_the_other() -> None:
    """With the addresses of one family in hand, the other's silence costs a moment, not the deadline."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell("a.example", "A", addresses("a.example", "192.0.2.1"))
        dns.tell("a.example", "AAAA", silence)
        answer = await Resolver(config(dns, timeout_s=60, deadline_s=100)).query("a.example")
        assert answer.addresses == ("192.0.2.1",)

    run(scenario)


def test_edns_refusal_asks_without() -> None:
    """A server that does not know EDNS is asked again without it (RFC 6891 7)."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell("a.example", "A", says(code="FORMERR"), addresses("a.example", "192.0.2.1"))
        answer = await Resolver(config(dns, families="ipv4", attempts=1)).query("a.example")
        assert answer.addresses == ("192.0.2.1",)
        assert dns.had_edns == [True, False]

    run(scenario)


def test_malformed_answers_are_a_failure() -> None:
    """Bytes that carry the right id and question, but are cut, are passed over, and never crash the resolver."""

    async def scenario(dns: FakeDns) -> None:
        def cut(query: DNSRecord) -> list[bytes]:
            return [addresses("a.example", "192.0.2.1")(query)[0][:-3]]

        dns.tell("a.example", "A", cut)
        answer = await Resolver(config(dns, families="ipv4", attempts=1)).query("a.example")
        assert answer.outcome is Outcome.FAILED
        assert "cut" in answer.message

    run(scenario)


def test_negative_answers_take_the_soa_ttl() -> None:
    """NXDOMAIN and NODATA are told apart, and hold for the smaller of the SOA's TTL and minimum, within bounds."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell("gone.example", "A", no_such_name(ttl=500, minimum=25))
        dns.tell("empty.example", "A", no_address(ttl=20, minimum=7200))
        dns.tell("long.example", "A", no_such_name(ttl=9000, minimum=9000))
        dns.tell("bare.example", "A", says(code="NXDOMAIN"))
        resolver = Resolver(config(dns, families="ipv4"))
        gone, empty, long, bare = [
            await resolver.query(f"{name}.example") for name in ("gone", "empty", "long", "bare")
        ]
        assert (gone.outcome, gone.ttl_s) == (Outcome.NO_SUCH_NAME, 25)
        assert (empty.outcome, empty.ttl_s) == (Outcome.NO_ADDRESS, 20)
        assert long.ttl_s == 300
        assert bare.ttl_s == 2

    run(scenario)


def test_special_names_and_static_ones_ask_nobody() -> None:
    """Localhost, .onion, static addresses and literals cost no query; localhost is loopback, whatever a server says."""

    async def scenario(dns: FakeDns) -> None:
        dns.host("evil.localhost", "192.0.2.66")
        resolver = Resolver(config(dns, addresses={"Fixed.Example.": ("192.0.2.9",)}))
        assert (await resolver.query("evil.localhost")).addresses == ("127.0.0.1", "::1")
        assert (await resolver.query("fixed.example")).addresses == ("192.0.2.9",)
        assert (await resolver.query("192.0.2.3")).addresses == ("192.0.2.3",)
        assert (await resolver.query("hidden.onion")).outcome is Outcome.NO_SUCH_NAME
        assert dns.queries == []

    run(scenario)


# -- the plugin ------------------------------------------------------------------------------------------------------


@on_both_loops
def test_fifty_misses_cost_one_query_pair(runner: Runner) -> None:
    """50 simultaneous misses of a name ask once for A and once for AAAA; then hits ask nothing and need no await."""

    async def scenario(dns: FakeDns) -> None:
        dns.host("a.example", "192.0.2.1")
        dns.hold = asyncio.Event()
        plugin = DnsPlugin(SimpleNamespace(options={}, config=SimpleNamespace(dns=config(dns)), shared=None))
        waits = [plugin.resolve_name("a.example") for _ in range(50)]
        dns.hold.set()
        results = [await wait for wait in waits if wait is not None and not isinstance(wait, Resolution)]
        assert [result.addresses for result in results if result is not None] == [("192.0.2.1",)] * 50
        assert sorted(dns.queries) == [("a.example", "A"), ("a.example", "AAAA")]
        hit = plugin.resolve_name("a.example")
        assert isinstance(hit, Resolution)
        assert hit.cached
        assert (plugin.cache.misses, plugin.cache.coalesced, plugin.cache.hits) == (1, 49, 1)

    run(scenario, runner)


@on_both_loops
def test_cancelled_waiter_takes_nobody_with_it(runner: Runner) -> None:
    """The guest that asked first goes away; the others still get the answer of its query."""

    async def scenario(dns: FakeDns) -> None:
        dns.host("a.example", "192.0.2.1")
        dns.hold = asyncio.Event()
        cache = DnsCache(config(dns), Resolver(config(dns)))

        async def wait() -> Resolution:
            found = cache.get("a.example")
            return found if isinstance(found, Resolution) else await found

        first, second = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        await dns.asked.wait()
        first.cancel()
        dns.hold.set()
        assert (await second).addresses == ("192.0.2.1",)
        assert first.cancelled()
        assert len(dns.queries) == 2

    run(scenario, runner)


def test_zero_ttl_is_asked_again() -> None:
    """An answer with TTL 0 serves those who waited for it, and nobody after (changing answers are seen)."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell(
            "a.example",
            "A",
            addresses("a.example", "192.0.2.1", ttl=0),
            addresses("a.example", "10.0.0.1", ttl=0),
        )
        cache = DnsCache(config(dns), Resolver(config(dns, families="ipv4")))
        seen = []
        for _ in range(2):
            found = cache.get("a.example")
            assert not isinstance(found, Resolution)
            seen.append((await found).addresses)
        assert seen == [("192.0.2.1",), ("10.0.0.1",)]

    run(scenario)


def test_negative_answer_is_remembered() -> None:
    """A name that does not exist is asked for once; the next one is refused at once, with the same message."""

    async def scenario(dns: FakeDns) -> None:
        cache = DnsCache(config(dns), Resolver(config(dns)))
        first = cache.get("gone.example")
        assert not isinstance(first, Resolution)
        with pytest.raises(ResolveFailed, match="NXDOMAIN"):
            await first
        count = len(dns.queries)
        with pytest.raises(ResolveFailed, match="NXDOMAIN"):
            cache.get("gone.example")
        assert len(dns.queries) == count
        assert cache.negative == 1

    run(scenario)


def test_the_server_speaks_what_the_script_says() -> None:
    """The fake itself: zone lines become records that dnslib reads back."""
    query = DNSRecord.question("a.example")
    reply = DNSRecord.parse(addresses("a.example", "192.0.2.1", ttl=7)(query)[0])
    assert reply.rr == RR.fromZone("a.example. 7 IN A 192.0.2.1")
