"""`seamgate_plugins.otlp`: every record arrives, whatever the collector does, and what it refuses is counted."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.record import AuditKind, AuditRecord
from seamgate.config import Config
from seamgate.errors import ConfigError
from seamgate.testing import conformance, make_context, make_record, make_request
from seamgate_plugins.delivery import stop_all
from seamgate_plugins.otlp import OtlpPlugin
from support.collector import WAIT_S, Collector

_journals: list[Journal] = []
QUICK = {"interval_s": 0.01, "timeout_s": 5}


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No delivery outlives its test, and no journal."""
    yield
    stop_all()
    for journal in _journals:
        journal.close()
    _journals.clear()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A configuration whose journal has small segments."""
    audit = AuditConfig(path=str(tmp_path / "audit.jsonl"), max_size_bytes=4096, keep=10_000, fsync="never")
    return Config(base=tmp_path, audit=audit)


class Gateway:
    """A journal and the plugin, as a gateway has them: what is written is told to the plugin."""

    def __init__(self, config: Config, collector: Collector, **options: Any) -> None:
        self.config = config
        self.plugin = self.make(endpoint=collector.endpoint, **options)
        self.journal = Journal(config.audit, on_written=lambda _: self.plugin.export_audit())
        _journals.append(self.journal)

    def make(self, **options: Any) -> OtlpPlugin:
        """Make the plugin of a generation."""
        return OtlpPlugin(make_context("otlp", options={**QUICK, **options}, config=self.config))

    def write(self, count: int, *, at_once: bool = True, host: str = "api.test") -> None:
        """Write so many records."""
        for number in range(count):
            self.journal.append(make_record(make_request(f"GET https://{host}/{number}")))
            if not at_once:
                self.journal.flush()
        self.journal.flush()

    @property
    def counts(self) -> Any:
        """What was delivered."""
        return self.plugin.delivery.counts


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the delivery's thread does, with a bound."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_every_record_arrives_once_and_in_order(config: Config) -> None:
    """In batches, over rotations; the position says how far it is."""
    with Collector() as collector:
        gateway = Gateway(config, collector)
        gateway.write(10)
        collector.wait(lambda it: len(it.seqs) == 10)
        gateway.write(50, at_once=False)
        collector.wait(lambda it: len(it.seqs) >= 60)
        until(lambda: gateway.counts.position == 60)
    assert collector.seqs == list(range(1, 61))
    assert len(list(Path(config.audit.path).parent.glob("audit.jsonl.0*"))) > 1
    assert (gateway.counts.delivered, gateway.counts.failures, gateway.counts.lost) == (60, 0, 0)


@pytest.mark.parametrize(
    "answers",
    [
        [503] * 3,
        [(429, {"retry-after": "0"}, b""), 502, 504],
        [401, 403, 404],
        [(503, {"connection": "close"}, b""), 500],
    ],
    ids=["unavailable", "throttled", "misconfigured", "closing"],
)
def test_nothing_is_lost_while_the_collector_fails(config: Config, answers: list[Any]) -> None:
    """Each failure is counted, and the same records are sent until they arrive."""
    with Collector(*answers) as collector:
        gateway = Gateway(config, collector)
        gateway.write(5)
        collector.wait(lambda it: len(it.seqs) == 5)
        until(lambda: gateway.counts.position == 5)
    assert collector.seqs == [1, 2, 3, 4, 5]
    assert (gateway.counts.failures, gateway.counts.rejected) == (len(answers), 0)


def test_a_collector_that_is_away_is_waited_for(config: Config) -> None:
    """Nobody listens, then somebody does: all that was written meanwhile arrives, and the gateway never waited."""
    with Collector() as away:
        port = away.port
    gateway = Gateway(config, away)
    gateway.write(7)
    assert gateway.counts.delivered == 0
    until(lambda: gateway.counts.failures >= 2)
    with Collector(port=port) as back:
        back.wait(lambda it: len(it.seqs) == 7)
    assert back.seqs == list(range(1, 8))


def test_a_restart_goes_on_behind_what_arrived(config: Config) -> None:
    """The position is kept beside the journal; another process sends the rest, and nothing twice."""
    with Collector() as collector:
        first = Gateway(config, collector)
        first.write(4)
        until(lambda: first.counts.position == 4)
        stop_all()
        first.journal.append(make_record(make_request("GET https://api.test/meanwhile")))
        first.journal.close()
        second = Gateway(config, collector)
        second.write(3)
        until(lambda: second.counts.position == 8)
    assert collector.seqs == list(range(1, 9))
    assert Path(f"{config.audit.path}.otlp").stat().st_mode & 0o777 == 0o600


def test_another_journal_is_sent_from_its_beginning(config: Config) -> None:
    """A position is that of one journal, by the hash of its line; it skips nothing of another."""
    with Collector() as collector:
        first = Gateway(config, collector)
        first.write(3)
        until(lambda: first.counts.position == 3)
        stop_all()
        first.journal.close()
        for path in Path(config.audit.path).parent.glob("audit.jsonl*"):
            if not path.name.endswith(".otlp"):
                path.unlink()
        second = Gateway(config, collector)
        second.write(5, host="other.test")
        until(lambda: second.counts.position == 5)
    assert collector.seqs == [1, 2, 3, 1, 2, 3, 4, 5]


def test_what_is_rejected_for_good_is_counted_and_not_repeated(config: Config) -> None:
    """400, and a partial success (OTLP: must not be sent again); they are in the journal still."""
    partly = b'{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"too old"}}'
    with Collector(400, (200, {}, partly)) as collector:
        gateway = Gateway(config, collector)
        gateway.write(3)
        until(lambda: gateway.counts.position == 3)
        gateway.write(4)
        until(lambda: gateway.counts.position == 7)
    assert collector.batches == [3, 4]
    assert (gateway.counts.rejected, gateway.counts.delivered) == (5, 2)


def test_a_batch_that_is_too_large_is_halved(config: Config) -> None:
    """413: the same records in smaller requests; one that is too large by itself is rejected."""
    before = Journal(config.audit)
    for number in range(100):
        before.append(make_record(make_request(f"GET https://api.test/{number}")))
    before.close()
    with Collector(413, 413, 200, 413) as collector:
        gateway = Gateway(config, collector)
        gateway.plugin.export_audit()
        until(lambda: gateway.counts.position == 100)
    assert collector.batches == [100, 50, 25, 75, 37, 38]
    assert collector.seqs == list(range(1, 101))
    with Collector(413) as strict:
        stop_all()
        gateway.journal.close()
        alone = Gateway(config, strict)
        alone.write(1)
        until(lambda: alone.counts.position == 101)
    assert (alone.counts.rejected, strict.seqs) == (1, [])


def test_what_retention_deletes_before_it_arrives_is_counted(config: Config) -> None:
    """The one way to lose records is to delete them; it is told."""
    audit = msgspec.structs.replace(config.audit, keep=4, keep_min_age_s=0.0)
    config = msgspec.structs.replace(config, audit=audit)
    with Collector() as collector:
        gateway = Gateway(config, collector)
        gateway.write(2)
        until(lambda: gateway.counts.position == 2)
        stop_all()
        gateway.write(200, at_once=False)  # of which four segments of some ten records are kept
        gateway.journal.close()
        later = Gateway(config, collector)
        later.write(1)
        until(lambda: later.counts.lost > 0 and later.counts.position > 200)
    first = collector.seqs[2]
    assert later.counts.lost == first - 3 > 0
    assert collector.seqs[2:] == list(range(first, later.counts.position + 1))


def test_what_only_began_counts_as_delivered(config: Config) -> None:
    """It is not sent, and the position goes on behind it."""
    with Collector() as collector:
        gateway = Gateway(config, collector)
        gateway.journal.begin(AuditRecord(1.0, AuditKind.BEGIN, id="x"))
        gateway.write(1)
        until(lambda: gateway.counts.position == 2)
    assert collector.seqs == [2]


def test_a_reload_sends_nothing_twice(config: Config) -> None:
    """The same options: the same delivery goes on. Others: the new one begins where the old one ended."""
    with Collector() as one, Collector() as two:
        gateway = Gateway(config, one)
        gateway.write(3)
        until(lambda: gateway.counts.position == 3)
        before = gateway.plugin.delivery
        gateway.plugin = gateway.make(endpoint=one.endpoint)
        gateway.write(2)
        until(lambda: gateway.counts.position == 5)
        assert gateway.plugin.delivery is before
        gateway.plugin = gateway.make(endpoint=two.endpoint)
        gateway.plugin.export_audit()
        assert before.join(WAIT_S)  # else it may still send what is written now
        gateway.write(2)
        until(lambda: gateway.counts.position == 7)
    assert (one.seqs, two.seqs) == ([1, 2, 3, 4, 5], [6, 7])


def test_a_token_is_shown_and_never_told(config: Config, tmp_path: Path) -> None:
    """Read from its file for each request, so that it may change."""
    (tmp_path / "token").write_text("canary-4f1c9e7a\n")
    with Collector() as collector:
        gateway = Gateway(config, collector, token_file="token")
        gateway.write(1)
        collector.wait(lambda it: len(it.seqs) == 1)
    assert collector.tokens == ["Bearer canary-4f1c9e7a"]
    assert "canary" not in repr(gateway.plugin)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endpoint": "127.0.0.1:4318"}, "is no endpoint"),
        ({"endpoint": "http://user@127.0.0.1/v1/logs"}, "is no endpoint"),
        ({"endpoint": "http://127.0.0.1:99999/"}, "is no endpoint"),
        ({"endpoint": "http://collector.example/v1/logs"}, "in the clear"),
        ({"interval": 1}, "unknown field"),
        ({"interval_s": 0}, "interval_s"),
    ],
)
def test_options_are_checked(options: dict[str, Any], told: str) -> None:
    """What can't work, and what would send the log in the clear, keeps the gateway from starting."""
    with pytest.raises(ConfigError, match=told):
        OtlpPlugin(make_context("otlp", options=options))
    OtlpPlugin(make_context("otlp", options={"endpoint": "https://collector.example/v1/logs"}))
    OtlpPlugin(make_context("otlp", options={"endpoint": "http://collector.example/v1/logs", "plaintext": True}))


def test_tls_is_verified(config: Config, tmp_path: Path) -> None:
    """A collector whose certificate nobody vouches for gets nothing."""
    from support.certificates import server_context, upstream_ca

    (tmp_path / "ca.pem").write_bytes(upstream_ca().cert_pem.bytes())
    with Collector() as collector:
        collector._server.socket = server_context("localhost").wrap_socket(collector._server.socket, server_side=True)
        endpoint = f"https://localhost:{collector.port}/v1/logs"
        gateway = Gateway(config, collector)
        gateway.plugin = gateway.make(endpoint=endpoint)
        gateway.write(2)
        until(lambda: gateway.counts.failures >= 1)
        assert collector.seqs == []
        gateway.plugin = gateway.make(endpoint=endpoint, ca="ca.pem")
        gateway.plugin.export_audit()
        collector.wait(lambda it: len(it.seqs) == 2)
    assert ssl.HAS_TLSv1_3


def test_it_keeps_the_rules_of_every_plugin(config: Config) -> None:
    """The conformance suite, as for the others."""
    options = {"endpoint": "http://127.0.0.1:9/v1/logs", **QUICK}
    for check in conformance(OtlpPlugin, name="otlp", options=options, config=config, budget_s=20):
        check()
