"""The plugin `otlp`: sends the audit log to an OpenTelemetry collector, OTLP over HTTP in JSON.

    plugins:
      - builtin
      - {name: otlp, options: {endpoint: "http://127.0.0.1:4318/v1/logs"}}

Not one of `builtin`: name it to load it. `export_audit` only says that there is more; a thread of its own reads the
journal from its position and sends batches (`seamgate_plugins.delivery`). So the gateway never waits for a collector,
and nothing is lost while one is away: what did not arrive is sent again, after a restart too.

Options:
    endpoint: where to; plain http to this machine only, unless `plaintext: true`.
    interval_s: how long records may wait for company (1).
    timeout_s: for one request (10).
    token_file: a file with a bearer token, from the configuration's folder; read for each connection.
    ca: a PEM file with the roots to trust, from the configuration's folder; the system's otherwise.
    plaintext: whether http may leave this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seamgate import hookimpl
from seamgate.errors import ConfigError
from seamgate.places import anchored
from seamgate.registry import PluginContext
from seamgate_plugins.delivery import Delivery, Destination, take_over

_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_HERE = frozenset({"127.0.0.1", "::1", "localhost"})


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """This plugin's options; see the module."""

    endpoint: str = "http://127.0.0.1:4318/v1/logs"
    interval_s: _Seconds = 1.0
    timeout_s: _Seconds = 10.0
    token_file: str = ""
    ca: str = ""
    plaintext: bool = False


class OtlpPlugin:
    """Tells the delivery of one generation's configuration that there is more."""

    def __init__(self, context: PluginContext) -> None:
        """Read the options; nothing is opened before the first record.

        Raises:
            ConfigError: an option can't be used.
        """
        try:
            options = msgspec.convert(dict(context.options), Options)
        except msgspec.ValidationError as error:
            raise ConfigError(f"options of the plugin otlp: {error}") from None
        self._check(options)
        base, journal = context.config.base, context.config.audit.file
        self.delivery = Delivery(
            Destination(
                endpoint=options.endpoint,
                interval_s=options.interval_s,
                timeout_s=options.timeout_s,
                token_file=anchored(options.token_file, base) if options.token_file else "",
                ca=anchored(options.ca, base) if options.ca else "",
            ),
            journal,
            journal.with_name(f"{journal.name}.otlp"),  # beside the journal, and no part of it
        )

    def _check(self, options: Options) -> None:
        url = _endpoint(options.endpoint)
        if url is None:
            raise ConfigError(
                f"options of the plugin otlp: {options.endpoint!r} is no endpoint: write http://127.0.0.1:4318/v1/logs"
            )
        if url.scheme == "http" and url.hostname not in _HERE and not options.plaintext:
            raise ConfigError(
                "options of the plugin otlp: the audit log would leave this machine in the clear: use https, or say"
                " `plaintext: true`"
            )

    def __repr__(self) -> str:
        return f"<OtlpPlugin {self.delivery!r}>"

    @hookimpl
    def export_audit(self) -> None:
        """There is more in the journal. Never waits."""
        self.delivery = take_over(self.delivery)
        self.delivery.wake()

    @hookimpl
    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Expose what was delivered."""
        registry.register(_DeliveryCollector(self))


class _DeliveryCollector(Collector):
    """Reads one delivery."""

    def __init__(self, plugin: OtlpPlugin) -> None:
        self._plugin = plugin

    def describe(self) -> list[Metric]:
        """Return all families."""
        return list(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Yield what was delivered, rejected, lost, and how often delivery failed."""
        counts: Any = self._plugin.delivery.counts
        yield CounterMetricFamily("seamgate_otlp_records", "Records that arrived.", counts.delivered)
        yield CounterMetricFamily("seamgate_otlp_failures", "Requests that failed and are repeated.", counts.failures)
        yield CounterMetricFamily("seamgate_otlp_rejected", "Records that the collector refused.", counts.rejected)
        yield CounterMetricFamily("seamgate_otlp_lost", "Records that were deleted before they arrived.", counts.lost)
        yield GaugeMetricFamily("seamgate_otlp_position", "Number of the last record that arrived.", counts.position)


def _endpoint(text: str) -> SplitResult | None:
    """Return the URL in its parts; None if nothing can be sent to it."""
    try:
        url = urlsplit(text)
        usable = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not (url.username or url.query)
    except ValueError:
        return None
    return url if usable else None
