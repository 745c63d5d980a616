"""One call that judges a request as a gateway would: the real pipeline, the real policy, the phases of an exchange.

    judged = judge("POST https://api.example.com/v1", plugins={"ticket": TicketPlugin(make_context())})
    assert not judged.allowed
    assert judged.said["ticket"].message.startswith("name a ticket")

Called by plugin authors' tests and by `conformance`. Nothing is resolved, dialled or written; `seamgate.testing.send`
goes all the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from seamgate.errors import PluginError, SeamgateError
from seamgate.flow import BodyState, Guest, Request, Response, Step, Target
from seamgate.hookspecs import hookimpl
from seamgate.pipeline import Pipeline
from seamgate.policy.files import read_policy
from seamgate.policy.loader import parse_policy
from seamgate.policy.testing import judge_in_phases
from seamgate.registry import LoadedPlugin, available, register
from seamgate.testing.building import AT, make_request
from seamgate.testing.listening import Listener
from seamgate.verdict import Verdict, allow, denial_of

BUDGET_S = 2.0
"""Wall time of one hook call in tests: that of a gateway (0.25 s) could be a flake on a busy machine."""


class Judgement(msgspec.Struct, frozen=True):
    """What became of a request, and who said what.

    Attributes:
        verdict: the last: after amendments, or of the response if one was given and denied.
        phase: where it was settled: "connect", "head", "body", "amended" or "response".
        request: as it was judged last, amendments applied.
        steps: each call of a hook that left a trace: plugin, hook, microseconds, outcome.
        said: by plugin, its last opinion in a `judge_*` hook; None: no opinion.
    """

    verdict: Verdict
    phase: str
    request: Request
    steps: tuple[Step, ...]
    said: Mapping[str, Verdict | None]

    @property
    def allowed(self) -> bool:
        """Whether the request would go on."""
        return self.verdict.allowed

    @property
    def rule(self) -> str:
        """Id of the rule that decided."""
        return self.verdict.rule


def judge(
    request: Request | str,
    *,
    plugins: Mapping[str, object] | None = None,
    policy: str | Path | None = None,
    response: Response | None = None,
    now: float = AT,
    budget_s: float = BUDGET_S,
) -> Judgement:
    """Judge a request in the phases of a real exchange: tunnel (https), head, body, amendments, response head.

    Args:
        request: of `make_request`, or `METHOD URL`.
        plugins: by name, in the order in which they are asked after the policy: plugin objects, or what
            `seamgate.registry.register` returned, where a plugin needs a capability.
        policy: the text of a policy file, or its path; None: everything is allowed, so that the plugins decide.
        response: its head, for `judge_response`.
        now: Unix seconds at which the policy judges.
        budget_s: wall time that one call of a hook may take.

    Raises:
        ConfigError: the policy can't be used.
        PluginRejected: a plugin can't be vouched for.
    """
    asked = make_request(request, at=now) if isinstance(request, str) else request
    listener = Listener()
    loaded = [policy_plugin(policy, lambda: now), *vouched(plugins or {})]
    pipeline = Pipeline([listener.listen(each) for each in loaded], budget_s=budget_s)
    trial = _Trial(pipeline, asked)
    verdict, phase = trial.run(response)
    said: dict[str, Verdict | None] = {each.name: None for each in loaded}
    for heard in listener.heard:
        if heard.hook.startswith("judge_"):
            said[heard.plugin] = heard.answer if isinstance(heard.answer, Verdict) else None
    return Judgement(verdict, phase, trial.request, tuple(trial.steps), said)


class _Trial:
    """The phases, with the steps that they left. `judge_connect` and `judge_request` are what `policy.testing` asks."""

    def __init__(self, pipeline: Pipeline, request: Request) -> None:
        self.request = request
        self.steps: list[Step] = []
        self._pipeline = pipeline

    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        return self._pipeline.judge_connect(guest, target, self.steps)

    def judge_request(self, request: Request) -> Verdict:
        return self._pipeline.judge_request(request, self.steps)

    def run(self, response: Response | None) -> tuple[Verdict, str]:
        whole = self.request
        first = whole
        if whole.body_state is BodyState.COMPLETE:
            first = msgspec.structs.replace(whole, body=None, body_state=BodyState.PENDING)
        verdict, phase = judge_in_phases(first, whole.body, self)
        try:
            if verdict.allowed and self._pipeline.amends:
                self.request = self._pipeline.amend_request(whole, self.steps)
                if self.request is not whole:
                    verdict, phase = self.judge_request(self.request), "amended"
        except (PluginError, SeamgateError) as error:
            return denial_of(error), "amended"
        if verdict.allowed and response is not None:
            denial = self._pipeline.judge_response(self.request, response, self.steps)
            if denial is not None:
                return denial, "response"
        return verdict, phase


def vouched(plugins: Mapping[str, object]) -> list[LoadedPlugin]:
    """Return plugins as the registry vouches for them; what it returned before is taken as it is.

    Raises:
        PluginRejected: one can't be vouched for.
    """
    return [each if isinstance(each, LoadedPlugin) else register(name, each) for name, each in plugins.items()]


def policy_plugin(policy: str | Path | None, clock: Callable[[], float]) -> LoadedPlugin:
    """Return the policy plugin around this policy; for None one that allows everything, by the rule `test`.

    Raises:
        ConfigError: the policy can't be used.
    """
    if policy is None:
        return register("policy", _AllowAll())
    loaded = read_policy(policy) if isinstance(policy, Path) else parse_policy(policy, "policy.yaml")
    return register("policy", builtin("policy").from_policies([loaded], clock=clock))


def builtin(name: str) -> Any:
    """Return the class of a built-in plugin, found as the gateway finds it."""
    return available()[name].load()


class _AllowAll:
    """Allows everything: where only the plugins are to decide."""

    @hookimpl
    def judge_connect(self, target: Target) -> Verdict:
        verdict = allow("test")
        return msgspec.structs.replace(verdict, upgrade="tcp") if target.scheme == "tcp" else verdict

    @hookimpl
    def judge_request(self, request: Request) -> Verdict:
        return msgspec.structs.replace(allow("test"), upgrade=request.upgrade)
