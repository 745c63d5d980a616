"""docs/operations.md and the alerts say what the code says: metrics, limits, codes, messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from seamgate.config import Config
from seamgate.limits import LimitsConfig
from seamgate.observe.readiness import CODES
from seamgate.reloading import TAKEN_OVER
from seamgate.upstream.pool_key import PoolConfig
from support.lab import Lab
from support.upstream import HttpUpstream, echo

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
ALERTS = (ROOT / "deploy" / "prometheus-alerts.yaml").read_text()
DOCUMENTED = dict(re.findall(r"^\| `(seamgate_[a-z_]+)` \| ([a-z]+) \|", PAGE, re.MULTILINE))
SUFFIX = {"counter": "_total"}


async def exposed() -> dict[str, str]:
    """Return the families of a running gateway by name as it is scraped, with their types."""
    async with Lab(HttpUpstream(echo), settings={"admin": {"listen": "127.0.0.1:0"}}) as lab:
        assert lab.gateway._admin is not None
        registry = lab.gateway._admin._metrics._registry
        families = [family for family in registry.collect() if family.name.startswith("seamgate_")]
    names = {family.name + SUFFIX.get(family.type, ""): family.type for family in families}
    names["seamgate_build_info"] = "gauge"  # as the text format has it
    names.pop("seamgate_build", None)
    return names


async def test_every_metric_is_documented() -> None:
    """What is exposed stands in the table with its type, and nothing else does."""
    assert await exposed() == DOCUMENTED


async def test_alerts_are_about_metrics_that_exist() -> None:
    """An alert on a metric that nobody exposes never fires."""
    rules = yaml.safe_load(ALERTS)["groups"][0]["rules"]
    used = {name for rule in rules for name in re.findall(r"\b(?:seamgate|process)_[a-z_]+", rule["expr"])}
    assert used - {"process_open_fds", "process_max_fds"} <= set(await exposed())
    for rule in rules:
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("page", "ticket")


@pytest.mark.parametrize(("key", "section"), [("limits", LimitsConfig), ("pool", PoolConfig)])
def test_every_limit_has_its_default_and_its_reason(key: str, section: type[msgspec.Struct]) -> None:
    """Each key stands in the section's table with the default that the code has, and with a reason."""
    table = PAGE.partition(f"\nIn `{key}:`")[2].partition("\n\nIn ")[0]
    for field in msgspec.structs.fields(section):
        row = re.search(rf"^\| `{field.name}` \| ([^|]+) \| (.{{20,}}) \|$", table, re.MULTILINE)
        assert row is not None, field.name
        value: Any = "none" if field.default is None else field.default
        shown = value if isinstance(value, str) else json.dumps(value)
        assert row[1] == shown.removesuffix(".0"), field.name


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_readiness_is_explained(code: str) -> None:
    """Each reason not to be ready has its row, with what to do."""
    assert re.search(rf"^\| `{code}` \| .+ \| .+ \|$", PAGE, re.MULTILINE)


def test_what_a_reload_takes_over_is_what_is_said() -> None:
    """Each section of the configuration stands in the text on its side."""
    taken = re.search(r"^Taken over: (.*?)Everything else \((.*?)\)", PAGE, re.MULTILINE | re.DOTALL)
    assert taken is not None
    sections = set(Config.__struct_fields__) - {"source", "base", "policy_texts"}
    names = [set(re.findall(r"`([a-z0-9_]+)`", part)) for part in taken.groups()]
    assert names[0] & sections == sections & TAKEN_OVER
    assert names[1] == sections - TAKEN_OVER


def test_every_documented_message_is_logged() -> None:
    """The messages to search for are those that the source has."""
    source = "".join(path.read_text() for path in (ROOT / "proxy" / "seamgate").rglob("*.py"))
    messages = re.findall(r"^\| `([^`]+)` \| (?:info|warning|error) \|", PAGE, re.MULTILINE)
    assert len(messages) > 10
    assert [message for message in messages if f'"{message}"' not in source] == []
