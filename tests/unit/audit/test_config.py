"""The `audit:` part of seamgate.yaml."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from seamgate.audit.config import AuditConfig, default_path


def test_values_are_private_by_default() -> None:
    """Without a word of configuration, no query value is recorded."""
    assert AuditConfig().query == "names"


@pytest.mark.parametrize(
    "bad",
    [
        {"qeury": "full"},
        {"query": "all"},
        {"max_size_bytes": 10},
        {"keep": 0},
        {"fsync": "no"},
        {"fsync_interval_s": 0},
    ],
)
def test_what_is_not_understood_is_refused(bad: dict[str, object]) -> None:
    """A typing error never becomes a default."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, AuditConfig)


def test_the_default_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """$SEAMGATE_AUDIT, else $XDG_STATE_HOME, else the home folder."""
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("SEAMGATE_AUDIT", raising=False)
    assert default_path() == Path("/home/x/.local/state/seamgate/audit.jsonl")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert AuditConfig().file == Path("/state/seamgate/audit.jsonl")
    monkeypatch.setenv("SEAMGATE_AUDIT", "/named.jsonl")
    assert default_path() == Path("/named.jsonl")
    assert AuditConfig(path="~/a.jsonl").file == Path("/home/x/a.jsonl")
