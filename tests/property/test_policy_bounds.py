"""What `policy replay` calls certain is so, whatever the parts were that no audit log holds."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from property.policy_strategies import NOW, layers, policy, requests, rule_lists
from seamgate.errors import ConfigError
from seamgate.flow import BodyState, Guest, Request, Target
from seamgate.policy.bounds import BODY, HEADERS, QUERY, Bounds
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.testing import judge_in_phases
from seamgate.verdict import Verdict

_PARTS = st.sets(st.sampled_from([HEADERS, QUERY, BODY])).map(frozenset)


class _Judge:
    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        return self._evaluator.judge_connect(guest, target, NOW)

    def judge_request(self, request: Request) -> Verdict:
        return self._evaluator.judge_request(request, NOW)


def _choosing(rules: list[Any], credentials: list[int]) -> list[Any]:
    """Give some allow rules a credential, so that they may tie."""
    return [
        {**rule, "credential": f"k{number}"} if "allow" in rule and place in credentials else rule
        for place, (number, rule) in enumerate(enumerate(rules))
    ]


@given(rule_lists, rule_lists, layers, st.lists(st.integers(0, 5)), requests(), _PARTS)
@settings(max_examples=100, deadline=None)
def test_what_is_certain_holds_for_the_whole_request(
    first: list[Any], second: list[Any], layer: str, credentials: list[int], whole: Request, unknown: frozenset[str]
) -> None:
    """Take any parts off a request: if the rest has a certain verdict, the whole has the same."""
    assume(whole.body_state in (BodyState.COMPLETE, BodyState.ABSENT))
    assume(not {"x-http-method-override"} & {name.decode() for name, _ in whole.headers})
    policies = [policy(_choosing(first, credentials), "team", "a"), policy(second, layer, "b")]
    try:
        exact = Evaluator(policies)
    except ConfigError:
        assume(False)
    if BODY not in unknown:
        whole = msgspec.structs.replace(whole, body=None, body_state=BodyState.ABSENT)
    told = msgspec.structs.replace(
        whole,
        headers=() if HEADERS in unknown else whole.headers,
        query=None if QUERY in unknown else whole.query,
        body=None,
        body_state=BodyState.ABSENT,
    )
    found = Bounds(policies, unknown).judge(told, NOW)
    head = whole
    if whole.body_state is BodyState.COMPLETE:
        head = msgspec.structs.replace(whole, body=None, body_state=BodyState.PENDING)
    verdict, _ = judge_in_phases(head, whole.body, _Judge(exact))
    if found.allowed is not None:
        assert found.allowed is verdict.allowed
    else:
        assert found.open
        assert all(each.asks for each in found.open)
