"""The policy plugin: built by the registry or of loaded policies, vouched for, counting requests once."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.config import Config
from seamgate.errors import ConfigError, Reason
from seamgate.flow import BodyState, Guest
from seamgate.pipeline import Pipeline
from seamgate.registry import PluginContext, register
from seamgate.verdict import Effect
from seamgate_plugins.policy import PolicyPlugin
from unit.policy.ask import GUEST, NOW, load, request

LIMITED = load("""
    - id: two
      allow: {hosts: [a.test]}
      limits: {requests: 2/min}
    - id: body
      allow: {hosts: [b.test], json: {x: 1}}
      limits: {requests: 1/min}
""")


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        """Unix seconds."""
        return self.now


def asked(number: int, line: str = "GET https://a.test/", **details: object) -> object:
    """A request with an id of its own."""
    import msgspec

    return msgspec.structs.replace(request(line, **details), id=f"id{number}")  # type: ignore[arg-type]


def context(tmp_path: Path, **options: object) -> PluginContext:
    """What the registry hands over."""
    file = tmp_path / "p.yaml"
    file.write_text("seamgate: 1\nrules:\n  - {id: a, allow: {hosts: [a.test]}}\n", encoding="utf-8")
    return PluginContext("policy", options, Config(policies=(str(file),)), 7, Clock())


def test_the_registry_builds_it_of_the_configuration(tmp_path: Path) -> None:
    """It reads the policies that the configuration names, and keeps the generation."""
    plugin = PolicyPlugin(context(tmp_path))
    assert plugin.evaluator.generation == 7
    assert plugin.judge_request(request("GET https://a.test/")).rule == "a"
    assert plugin.judge_connect(GUEST, request("GET https://a.test/").target).effect is Effect.DEFER


def test_what_it_cannot_use_stops_the_start(tmp_path: Path) -> None:
    """An option, or a policy that can't be read: a ConfigError, not a gateway without policy."""
    with pytest.raises(ConfigError, match="has no options"):
        PolicyPlugin(context(tmp_path, mode="off"))
    missing = PluginContext("policy", {}, Config(policies=("/nowhere/p.yaml",)), 1, Clock())
    with pytest.raises(ConfigError, match="can't be read"):
        PolicyPlugin(missing)


def test_its_hooks_are_vouched_for() -> None:
    """The registry takes it, and the pipeline calls both judges."""
    loaded = register("policy", PolicyPlugin.from_policies([LIMITED], clock=Clock()))
    assert loaded.hooks == ("judge_connect", "judge_request")
    pipeline = Pipeline([loaded])
    assert pipeline.judge_request(request("GET https://a.test/")).allowed
    assert not pipeline.judge_request(request("GET https://c.test/")).allowed


def test_requests_beyond_the_limit_are_denied_until_the_window_slides() -> None:
    """Per guest; with the rule, and how long to wait."""
    clock = Clock()
    plugin = PolicyPlugin.from_policies([LIMITED], clock=clock)
    verdicts = [plugin.judge_request(asked(number)) for number in range(3)]  # type: ignore[arg-type]
    assert [verdict.allowed for verdict in verdicts] == [True, True, False]
    assert (verdicts[2].reason, verdicts[2].rule) == (Reason.RATE_LIMITED, "two")
    assert verdicts[2].message == "Rule two allows 2 requests in 60 s; try again in 60 s."
    assert plugin.judge_request(asked(9, guest=Guest("other"))).allowed  # type: ignore[arg-type]
    clock.now += 60
    assert plugin.judge_request(asked(4)).allowed  # type: ignore[arg-type]


def test_a_request_that_is_judged_in_phases_counts_once() -> None:
    """Deferred with its head, allowed with its body, judged again after an amendment: one request."""
    plugin = PolicyPlugin.from_policies([LIMITED], clock=Clock())
    for state, body in (
        (BodyState.PENDING, None),
        (BodyState.COMPLETE, b'{"x": 1}'),
        (BodyState.COMPLETE, b'{"x": 1}'),
    ):
        verdict = plugin.judge_request(asked(1, "POST https://b.test/", state=state, body=body))  # type: ignore[arg-type]
        assert verdict.effect is not Effect.DENY
    assert not plugin.judge_request(asked(2, "POST https://b.test/", body=b'{"x": 1}')).allowed  # type: ignore[arg-type]


def test_denied_requests_use_nothing_up() -> None:
    """Only what is allowed counts."""
    plugin = PolicyPlugin.from_policies([LIMITED], clock=Clock())
    for number in range(5):
        assert not plugin.judge_request(asked(number, "POST https://b.test/", body=b'{"x": 2}')).allowed  # type: ignore[arg-type]
    assert plugin.judge_request(asked(9, "POST https://b.test/", body=b'{"x": 1}')).allowed  # type: ignore[arg-type]
