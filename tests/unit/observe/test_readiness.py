"""When rules expire, and what that means, for pipelines of any size."""

from __future__ import annotations

from typing import Any

import pytest

from seamgate.observe import readiness
from seamgate.observe.readiness import _nothing_allowed, loaded_policies, next_expiry, rule_counts
from seamgate.pipeline import Pipeline
from seamgate.policy.loader import parse_policy
from seamgate.registry import register
from seamgate_plugins.policy import PolicyPlugin

EXPIRES = 1_796_115_600.0  # 2026-12-01T09:00:00Z


def pipeline(*rules: str) -> Pipeline:
    """Return a pipeline that enforces these rules."""
    text = "\n".join(["seamgate: 1", "rules:", *(f"  - {rule}" for rule in rules)])
    return Pipeline([register("policy", PolicyPlugin.from_policies([parse_policy(text, "p.yaml")]))])


def allow(name: str, expires: str = "") -> str:
    """Return a rule that allows something."""
    return f"{{id: {name}, allow: {{hosts: [{name}.example]}}{f', expires: {expires}' if expires else ''}}}"


def test_rules_expire_at_their_moment() -> None:
    """At the second that the rule names it is void, and counts as expired."""
    found = pipeline(allow("a", "2026-12-01T09:00:00Z"), allow("b", "2026-12-02"), allow("c"))
    assert rule_counts(found, EXPIRES - 1) == (3, 0)
    assert rule_counts(found, EXPIRES) == (2, 1)
    assert next_expiry(found, EXPIRES - 1) == EXPIRES
    assert (next_expiry(found, EXPIRES) or 0) > EXPIRES
    assert next_expiry(found, EXPIRES * 2) is None


def test_nothing_is_allowed_once_the_last_permission_has_expired() -> None:
    """One that goes on is enough; bans do not count; a policy that never allowed anything means that."""
    expiring = allow("a", "2026-12-01T09:00:00Z")
    ban = "{id: ban, deny: {hosts: [x.example]}}"
    assert _nothing_allowed(pipeline(expiring, ban), EXPIRES)
    assert not _nothing_allowed(pipeline(expiring, ban), EXPIRES - 1)
    assert not _nothing_allowed(pipeline(expiring, allow("b")), EXPIRES)
    assert not _nothing_allowed(pipeline(ban), EXPIRES)
    assert not _nothing_allowed(Pipeline([]), EXPIRES)


def test_policies_are_those_of_whoever_enforces_them() -> None:
    """A pipeline without a policy has none."""
    assert [policy.source for policy in loaded_policies(pipeline(allow("a")))] == ["p.yaml"]
    assert loaded_policies(Pipeline([])) == ()


def test_asking_again_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes and scrapes look through the rules once, not each time."""
    found = pipeline(*(allow(f"h{number}", "2026-12-01") for number in range(500)))
    looked: list[Pipeline] = []

    def counted(of: Pipeline) -> tuple[Any, ...]:
        looked.append(of)
        return loaded_policies(of)

    monkeypatch.setattr(readiness, "loaded_policies", counted)
    for _ in range(3):
        assert rule_counts(found, 0.0) == (500, 0)
        assert next_expiry(found, 0.0) is not None
    assert looked == [found]
