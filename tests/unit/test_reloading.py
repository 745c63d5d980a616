"""What a reload takes over and what waits, and how reloads are counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from seamgate.audit.config import AuditConfig
from seamgate.config import AdminConfig, BaseUrlEntry, Config, Entries, ProxyEntry
from seamgate.limits import LimitsConfig
from seamgate.reloading import ReloadCounts, ReloadReport, waiting_sections
from seamgate.upstream.tls import UpstreamTlsConfig

STARTED = Config(entries=Entries(proxy=ProxyEntry(guest="g")))


@pytest.mark.parametrize(
    "change",
    [{"policies": ("/x.yaml",)}, {"permit_addresses": ("loopback",)}, {"upstream_tls": UpstreamTlsConfig()},
     {"reload": "watch"}, {"source": "other.yaml"}],
)  # fmt: skip
def test_what_is_taken_over_does_not_wait(change: dict[str, Any]) -> None:
    """A change of these sections is in force after the reload."""
    assert waiting_sections(STARTED, msgspec.structs.replace(STARTED, **change)) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entries", Entries(proxy=ProxyEntry(listen="127.0.0.1:1", guest="g"))),
        ("entries", Entries(proxy=ProxyEntry(guest="g"), base_url=BaseUrlEntry(guest="g"))),
        ("audit", AuditConfig(keep=3)),
        ("limits", LimitsConfig(connections=1)),
        ("admin", AdminConfig(listen="127.0.0.1:1")),
    ],
)
def test_what_can_not_follow_waits(name: str, value: object) -> None:
    """A change of any other section is named."""
    assert waiting_sections(STARTED, msgspec.structs.replace(STARTED, **{name: value})) == (name,)


def test_counts() -> None:
    """A refusal is remembered until a reload succeeds; what was ended adds up."""
    counts = ReloadCounts(last_at=1.0)
    counts.refuse("bad.yaml:1:1: no")
    assert (counts.refused, counts.last_problem, counts.last_at) == (1, "bad.yaml:1:1: no", 1.0)
    counts.count(ReloadReport(2, ("limits",), 3, 1), 5.0)
    counts.count(ReloadReport(3, (), 1, 0), 6.0)
    assert (counts.done, counts.refused, counts.last_problem, counts.last_at) == (2, 1, "", 6.0)
    assert (counts.revoked_requests, counts.revoked_tunnels, counts.needs_restart) == (4, 1, ())
