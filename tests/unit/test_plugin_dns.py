"""The cache of the plugin `dns` with a pinned clock: TTLs, negative answers, prefetch, bounds, stale answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from seamgate import Resolution, ResolveFailed
from seamgate.errors import ConfigError
from seamgate.registry import register
from seamgate.upstream.dns_cache import DnsCache
from seamgate.upstream.dns_message import Outcome
from seamgate.upstream.resolver import Answer, DnsConfig
from seamgate_plugins.dns import DnsPlugin


class Names:
    """Answers names from a table, counts the questions, and waits for leave if it has a gate."""

    def __init__(self) -> None:
        self.table: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None

    async def query(self, name: str) -> Answer:
        """Answer as `Resolver.query` does."""
        self.asked.append(name)
        if self.gate is not None:
            await self.gate.wait()
        return self.table.get(name) or found(name)


def found(name: str, *addresses: str, ttl_s: float = 100.0) -> Answer:
    """Make a positive answer."""
    return Answer(name, Outcome.ADDRESSES, addresses or ("192.0.2.1",), ttl_s)


def failed(name: str) -> Answer:
    """Make the answer of servers that all fail."""
    return Answer(name, Outcome.FAILED, (), 2.0, f"{name} could not be resolved")


class Bench:
    """A cache with its names and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1000.0
        self.names = Names()
        self.cache = DnsCache(DnsConfig(**settings), self.names, lambda: self.now)

    async def get(self, name: str = "a.example") -> Resolution:
        """Ask, wait if need be, and let what was started in the background end."""
        found = self.cache.get(name)
        result = found if isinstance(found, Resolution) else await found
        for _ in range(5):
            await asyncio.sleep(0)
        return result


def test_answers_hold_for_their_ttl() -> None:
    """Until its TTL is over an answer is a hit, at once and marked as cached; then the name is asked again."""

    async def scenario() -> None:
        bench = Bench(prefetch=False)
        first = await bench.get()
        assert (first.cached, first.expires_at) == (False, 1100.0)
        bench.now = 1099.9
        hit = bench.cache.get("a.example")
        assert isinstance(hit, Resolution)
        assert (hit.cached, hit.expires_at) == (True, 1100.0)
        bench.now = 1100.0
        await bench.get()
        assert bench.names.asked == ["a.example"] * 2

    asyncio.run(scenario())


def test_negative_answers_hold_for_theirs() -> None:
    """A name without address is refused at once until the negative TTL is over."""

    async def scenario() -> None:
        bench = Bench()
        bench.names.table["a.example"] = Answer("a.example", Outcome.NO_SUCH_NAME, (), 10.0, "a.example does not exist")
        for _ in range(2):
            with pytest.raises(ResolveFailed, match="does not exist"):
                await bench.get()
        assert bench.cache.negative == 1
        bench.now += 10
        bench.names.table.clear()
        assert (await bench.get()).addresses == ("192.0.2.1",)

    asyncio.run(scenario())


def test_names_in_use_are_asked_for_early() -> None:
    """A hit near the end of the TTL asks again in the background, once; the answer after the end is a hit."""

    async def scenario() -> None:
        bench = Bench()
        await bench.get()
        bench.now = 1091.0
        bench.names.table["a.example"] = found("a.example", "192.0.2.2")
        assert (await bench.get()).addresses == ("192.0.2.1",)
        bench.now = 1101.0
        assert isinstance(bench.cache.get("a.example"), Resolution)
        assert (await bench.get()).addresses == ("192.0.2.2",)
        assert bench.names.asked == ["a.example"] * 2
        assert bench.cache.prefetched == 1

    asyncio.run(scenario())


def test_a_failed_prefetch_leaves_the_answer_till_its_end() -> None:
    """When all servers fail early, the old answer still holds until its own end, and not longer."""

    async def scenario() -> None:
        bench = Bench()
        await bench.get()
        bench.now = 1091.0
        bench.names.table["a.example"] = failed("a.example")
        await bench.get()
        bench.now = 1099.0
        assert (await bench.get()).addresses == ("192.0.2.1",)
        assert len(bench.names.asked) == 2
        bench.now = 1100.0
        with pytest.raises(ResolveFailed):
            await bench.get()

    asyncio.run(scenario())


def test_stale_answers_are_served_only_if_configured() -> None:
    """With `serve_stale_s`, a failure of all servers yields the old answer for a while; NXDOMAIN never does."""

    async def scenario() -> None:
        bench = Bench(serve_stale_s=60)
        await bench.get()
        bench.names.table["a.example"] = failed("a.example")
        bench.now = 1110.0
        stale = await bench.get()
        assert (stale.addresses, stale.expires_at) == (("192.0.2.1",), 1140.0)
        bench.now = 1120.0
        await bench.get()
        assert len(bench.names.asked) == 2
        bench.now = 1150.0
        assert (await bench.get()).expires_at == 1160.0
        bench.now = 1160.0
        with pytest.raises(ResolveFailed):
            await bench.get()
        assert bench.cache.stale == 2

    asyncio.run(scenario())


def test_nxdomain_ends_a_stale_answer() -> None:
    """A server that says that the name is gone is believed, stale answer or not."""

    async def scenario() -> None:
        bench = Bench(serve_stale_s=60)
        await bench.get()
        bench.names.table["a.example"] = Answer("a.example", Outcome.NO_SUCH_NAME, (), 10.0, "gone")
        bench.now = 1110.0
        with pytest.raises(ResolveFailed, match="gone"):
            await bench.get()

    asyncio.run(scenario())


def test_the_cache_is_bounded_and_spares_what_is_used() -> None:
    """Beyond its size the oldest names go first, but those that were used since stay."""

    async def scenario() -> None:
        bench = Bench(cache_size=3)
        for name in ("a", "b", "c"):
            await bench.get(name)
        await bench.get("a")
        await bench.get("d")
        assert len(bench.cache) == 3
        bench.names.asked.clear()
        for name in ("a", "c", "d"):
            await bench.get(name)
        assert bench.names.asked == []

    asyncio.run(scenario())


def test_lookups_under_way_are_bounded() -> None:
    """A flood of names is refused at once beyond the limit, with a message that says so; nothing stays pending."""

    async def scenario() -> None:
        bench = Bench(max_lookups=2)
        bench.names.gate = asyncio.Event()
        waits = [bench.cache.get(f"n{index}.example") for index in range(3)]
        with pytest.raises(ResolveFailed, match="2 look-ups are under way"):
            await _awaitable(waits[2])
        bench.names.gate.set()
        for wait in waits[:2]:
            await _awaitable(wait)
        assert (bench.cache.pending, bench.cache.refused) == (0, 1)

    asyncio.run(scenario())


async def _awaitable(wait: Any) -> Resolution:
    result: Resolution = await wait
    return result


def test_a_broken_resolver_leaves_nobody_waiting() -> None:
    """If the resolver itself fails, every waiter gets a failure, and the next one asks anew."""

    async def scenario() -> None:
        bench = Bench()
        problems: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))

        async def broken(_: str) -> Answer:
            raise RuntimeError("broken")

        good = bench.names.query
        bench.names.query = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(ResolveFailed, match="given up"):
            await bench.get()
        assert [type(problem) for problem in problems] == [RuntimeError]
        bench.names.query = good  # type: ignore[method-assign]
        assert (await bench.get()).addresses == ("192.0.2.1",)

    asyncio.run(scenario())


def test_forget_drops_one_or_all() -> None:
    """What is forgotten is asked again."""

    async def scenario() -> None:
        bench = Bench()
        await bench.get("a")
        await bench.get("b")
        bench.cache.forget("a")
        assert len(bench.cache) == 1
        bench.cache.forget()
        assert len(bench.cache) == 0

    asyncio.run(scenario())


def context(options: dict[str, Any] | None = None, dns: DnsConfig | None = None) -> SimpleNamespace:
    """Make what the registry constructs the plugin with."""
    return SimpleNamespace(
        options=options or {}, shared=None, config=SimpleNamespace(dns=dns or DnsConfig(servers=("192.0.2.53",)))
    )


def test_plugin_is_vouched_for_and_exports_counters() -> None:
    """The registry accepts the plugin's hooks, and its counters carry the result as label."""
    plugin = DnsPlugin(context())
    assert register("dns", plugin).hooks == ("register_metrics", "resolve_name")
    registry = CollectorRegistry()
    plugin.register_metrics(registry)
    plugin.cache.hits = 3
    assert registry.get_sample_value("seamgate_dns_lookups_total", {"result": "hits"}) == 3


def test_plugin_keeps_its_cache_over_a_reload() -> None:
    """The next generation with the same settings takes over the warm cache and its metrics; with others not."""
    first, second, other = DnsPlugin(context()), DnsPlugin(context()), DnsPlugin(context({"max_ttl_s": 5}))
    registry = CollectorRegistry()
    second.register_metrics(registry)
    for later in (second, other):
        later.go_on_from(first)
    assert second.cache is first.cache and other.cache is not first.cache
    first.cache.hits = 3
    assert registry.get_sample_value("seamgate_dns_lookups_total", {"result": "hits"}) == 3


def test_two_gateways_share_no_cache() -> None:
    """What one gateway of a process resolved is nothing that another one knows, however alike their settings are."""
    assert DnsPlugin(context()).cache is not DnsPlugin(context()).cache


def test_odd_options_are_refused() -> None:
    """An unknown or senseless option of the plugin is an error of the configuration."""
    odd: tuple[dict[str, Any], ...] = ({"servers_": []}, {"timeout_s": -1}, {"cache_size": "many"})
    for options in odd:
        with pytest.raises(ConfigError, match="plugin dns"):
            DnsPlugin(context(options))
