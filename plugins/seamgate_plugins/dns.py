"""The plugin `dns`: one cache of names for all guests, with TTLs, negative answers and coalescing.

The gateway calls `resolve_name` for each request, after policy allowed it and before anything is dialled; the core
then checks the addresses. The cache is `seamgate.upstream.dns_cache`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seamgate import Resolution, hookimpl
from seamgate.errors import ConfigError
from seamgate.upstream.dns_cache import Current, DnsCache, Names
from seamgate.upstream.resolver import Answer, DnsConfig, Resolver

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
    def shared(self) -> Names | None: ...  # noqa: D102


class DnsPlugin:
    """Resolves names through one shared cache.

    Attributes:
        asks_elsewhere: whether the cache is a worker's view of that which all workers share.
        direct_hooks: see `seamgate.hookspecs.direct_hooks`.
    """

    def __init__(self, context: PluginContext) -> None:
        config, shared = _dns_config(context), context.shared
        self._settings = config
        if shared is not None:  # then this is a worker's view of the cache that the supervisor has
            config = msgspec.structs.replace(config, serve_stale_s=0.0, prefetch=False)
        self._current = Current(DnsCache(config, shared if shared is not None else Resolver(config)))
        self.asks_elsewhere = shared is not None
        self.direct_hooks: Mapping[str, Callable[..., Any]] = {"resolve_name": self._current.get}

    @property
    def cache(self) -> DnsCache:
        """What it remembers, and its counters."""
        return self._current.cache

    def go_on_from(self, before: DnsPlugin) -> None:
        """Keep the warm cache of the generation before, where a reload leaves the settings as they are."""
        if self._settings == before._settings and self.asks_elsewhere is before.asks_elsewhere:
            self._current.cache = before.cache

    async def answer_name(self, name: str) -> Answer:
        """Answer a worker: the supervisor of several asks this on their behalf."""
        return await self.cache.answer(name)

    @hookimpl
    def resolve_name(self, name: str) -> Resolution | Awaitable[Resolution | None] | None:
        """Answer from the cache, or return an awaitable."""
        return self._current.get(name)

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
