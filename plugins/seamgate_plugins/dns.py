"""The plugin `dns`: one cache of names for all guests, with TTLs, negative answers and coalescing.

The gateway calls `resolve_name` for each request, after policy allowed it and before anything is dialled; the core
then checks the addresses. A hit is answered at once, under a microsecond; a miss returns an awaitable, and however
many wait for the same name, one query pair goes out. It never judges an address, and it never serves an answer beyond
its TTL unless `dns.serve_stale_s` says so and every server fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import monotonic
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seamgate import Resolution, ResolveFailed, hookimpl
from seamgate.errors import ConfigError
from seamgate.tasks import spawn
from seamgate.upstream.dns_message import Outcome
from seamgate.upstream.resolver import Answer, DnsConfig, Resolver

# A name is asked for again early if it was used since the last answer and this part of the TTL is left...
_PREFETCH_PART = 0.1
# ... but not names with TTLs so short that it would only double the queries.
_PREFETCH_MIN_TTL_S = 10.0
# RFC 8767 4: serve a stale answer for 30 s, then try again.
_STALE_TTL_S = 30.0


class _Names(Protocol):
    """What the cache asks: `Resolver`, or what a test puts in its place."""

    async def query(self, name: str) -> Answer: ...


class _Entry:
    """One remembered answer.

    Attributes:
        expires_at: until when it is used.
        ends_at: until when its server said that it holds; earlier than expires_at if it is served stale.
        prefetch_at: from when on a use asks for it again.
        resolution: None if the answer is negative.
        used: since it was stored or last spared.
    """

    __slots__ = ("answer", "ends_at", "expires_at", "prefetch_at", "resolution", "used")

    def __init__(self, answer: Answer, now: float, ends_at: float | None = None) -> None:
        self.answer = answer
        self.expires_at = now + answer.ttl_s
        self.ends_at = self.expires_at if ends_at is None else ends_at
        self.prefetch_at = self.expires_at - answer.ttl_s * _PREFETCH_PART
        self.used = False
        positive = answer.outcome is Outcome.ADDRESSES
        self.resolution = Resolution(answer.name, answer.addresses, self.expires_at, True) if positive else None


class DnsCache:
    """Answers by name, bounded, with the queries under way. Runs on: the event loop's thread, without awaits inside."""

    def __init__(self, config: DnsConfig, names: _Names, clock: Callable[[], float] = monotonic) -> None:
        self._config = config
        self._names = names
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self.hits = 0
        self.misses = 0
        self.coalesced = 0
        self.negative = 0
        self.stale = 0
        self.prefetched = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pending(self) -> int:
        """Look-ups under way."""
        return len(self._pending)

    def get(self, name: str) -> Resolution | Awaitable[Resolution]:
        """Return the addresses of a canonical name, at once or as an awaitable.

        Raises:
            ResolveFailed: it is known to have none.
        """
        entry = self._entries.get(name)
        if entry is not None:
            now = self._clock()
            if now < entry.expires_at:
                entry.used = True
                if entry.resolution is None:
                    self.negative += 1
                    raise _failure(entry.answer)
                self.hits += 1
                if now >= entry.prefetch_at:
                    self._prefetch(name, entry)
                return entry.resolution
        future = self._pending.get(name)
        if future is not None:
            self.coalesced += 1
            return self._wait(future)
        self.misses += 1
        return self._wait(self._ask(name))

    async def answer(self, name: str) -> Answer:
        """Return what is known of a canonical name, asking if need be, with the time that is left of it.

        For another process that has a cache of its own; counted as `get` is. Raises nothing.
        """
        try:
            found = self.get(name)
            resolution = found if isinstance(found, Resolution) else await found
        except ResolveFailed as error:
            entry, now = self._entries.get(name), self._clock()
            if entry is None or now >= entry.expires_at or entry.resolution is not None:
                return Answer(name, Outcome.FAILED, message=error.message)
            return msgspec.structs.replace(entry.answer, ttl_s=entry.expires_at - now)
        left_s = max(0.0, resolution.expires_at - self._clock())
        return Answer(name, Outcome.ADDRESSES, resolution.addresses, left_s)

    def forget(self, name: str | None = None) -> None:
        """Drop what is remembered of this name, or of all. Look-ups under way go on."""
        if name is None:
            self._entries.clear()
        else:
            self._entries.pop(name, None)

    async def _wait(self, future: asyncio.Future[Answer]) -> Resolution:
        """Wait for a shared query; shielded, so that a waiter that goes away takes nobody with it."""
        answer = await asyncio.shield(future)
        if answer.outcome is not Outcome.ADDRESSES:
            raise _failure(answer)
        return Resolution(answer.name, answer.addresses, self._clock() + answer.ttl_s)

    def _ask(self, name: str) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if len(self._pending) >= self._config.max_lookups:
            self.refused += 1
            message = f"{name} could not be resolved: {self._config.max_lookups} look-ups are under way already"
            future.set_result(Answer(name, Outcome.FAILED, message=message))
            return future
        self._pending[name] = future
        spawn(self._fill(name, future), name=f"resolve {name}")
        return future

    async def _fill(self, name: str, future: asyncio.Future[Answer]) -> None:
        """Ask, remember, tell the waiters; whatever happens, nobody is left waiting."""
        answer = Answer(name, Outcome.FAILED, message=f"{name} could not be resolved: the look-up was given up")
        try:
            answer = self._remember(await self._names.query(name))
        finally:
            del self._pending[name]
            if not future.done():
                future.set_result(answer)

    def _remember(self, answer: Answer) -> Answer:
        """Store an answer and return what to use: a stale one while all servers fail, if the configuration says so."""
        now = self._clock()
        old = self._entries.pop(answer.name, None)
        entry = _Entry(answer, now)
        if answer.outcome is Outcome.FAILED and old is not None and old.resolution is not None:
            if now < old.expires_at:  # a prefetch failed: the old answer still holds, till its end
                entry = old
            elif now < old.ends_at + self._config.serve_stale_s:
                self.stale += 1
                ttl_s = min(_STALE_TTL_S, old.ends_at + self._config.serve_stale_s - now)
                entry = _Entry(msgspec.structs.replace(old.answer, ttl_s=ttl_s), now, old.ends_at)
        if entry.answer.ttl_s > 0:
            self._entries[answer.name] = entry
            self._bound(now)
        return entry.answer

    def _bound(self, now: float) -> None:
        """Make room: the oldest goes, but one that was used since gets a second turn (CLOCK)."""
        while len(self._entries) > self._config.cache_size:
            name, entry = next(iter(self._entries.items()))
            del self._entries[name]
            if entry.used and now < entry.expires_at:
                entry.used = False
                self._entries[name] = entry

    def _prefetch(self, name: str, entry: _Entry) -> None:
        """Ask again while the answer still holds, so that nobody waits when it ends. Once per answer."""
        entry.prefetch_at = entry.expires_at
        worthwhile = self._config.prefetch and entry.answer.ttl_s >= _PREFETCH_MIN_TTL_S
        if worthwhile and name not in self._pending and len(self._pending) < self._config.max_lookups:
            self.prefetched += 1
            self._ask(name)


def _failure(answer: Answer) -> ResolveFailed:
    """Return the error of an answer without addresses."""
    known = {Outcome.NO_SUCH_NAME: False, Outcome.NO_ADDRESS: True}
    return ResolveFailed(answer.message, exists=known.get(answer.outcome))


_RESULTS = ("hits", "misses", "coalesced", "negative", "stale", "prefetched", "refused")


class _Metrics(Collector):
    """The cache's counters, read when they are scraped, so that the hot path only adds integers."""

    def __init__(self, plugin: DnsPlugin) -> None:
        self._plugin = plugin
        # What is asked of the cache that all workers share is counted there; here are those that it never saw.
        self._results = ("hits", "coalesced", "negative") if plugin.asks_elsewhere else _RESULTS

    def collect(self) -> Iterator[Metric]:
        """Yield the counters by result, and the sizes."""
        cache = self._plugin.cache
        lookups = CounterMetricFamily("seamgate_dns_lookups", "Names asked of the DNS cache.", labels=["result"])
        for result in self._results:
            lookups.add_metric([result], getattr(cache, result))
        yield lookups
        if self._plugin.asks_elsewhere:
            return
        yield GaugeMetricFamily("seamgate_dns_cached_names", "Names in the DNS cache.", value=len(cache))
        yield GaugeMetricFamily("seamgate_dns_pending_lookups", "Look-ups under way.", value=cache.pending)


class PluginContext(Protocol):
    """The part of `seamgate.registry.PluginContext` that this plugin reads."""

    @property
    def options(self) -> Mapping[str, Any]: ...  # noqa: D102

    @property
    def config(self) -> Any: ...  # noqa: D102

    @property
    def shared(self) -> _Names | None: ...  # noqa: D102


class DnsPlugin:
    """Resolves names through one shared cache.

    Attributes:
        cache: what it remembers, and its counters.
        asks_elsewhere: whether the cache is a worker's view of that which all workers share.
    """

    def __init__(self, context: PluginContext) -> None:
        config, shared = _dns_config(context), context.shared
        self._settings = config
        if shared is not None:  # then this is a worker's view of the cache that the supervisor has
            config = msgspec.structs.replace(config, serve_stale_s=0.0, prefetch=False)
        self.cache = DnsCache(config, shared if shared is not None else Resolver(config))
        self.asks_elsewhere = shared is not None

    def go_on_from(self, before: DnsPlugin) -> None:
        """Keep the warm cache of the generation before, where a reload leaves the settings as they are."""
        if self._settings == before._settings and self.asks_elsewhere is before.asks_elsewhere:
            self.cache = before.cache

    async def answer_name(self, name: str) -> Answer:
        """Answer a worker: the supervisor of several asks this on their behalf."""
        return await self.cache.answer(name)

    @hookimpl
    def resolve_name(self, name: str) -> Resolution | Awaitable[Resolution | None] | None:
        """Answer from the cache, or return an awaitable."""
        return self.cache.get(name)

    @hookimpl
    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Export the cache's counters."""
        registry.register(_Metrics(self))


def _dns_config(context: PluginContext) -> DnsConfig:
    """Return the section `dns`, with the plugin's own options over it.

    Raises:
        ConfigError: an option is unknown or of a wrong type.
    """
    section = getattr(context.config, "dns", None) or DnsConfig()
    if not context.options:
        return section
    try:
        return msgspec.convert({**msgspec.to_builtins(section), **context.options}, DnsConfig)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"plugin dns: {exc}") from None
