"""Properties of judging: the index against an oracle, and what may never change a verdict."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from property import policy_oracle
from property.policy_strategies import NOW, allow_rules, deny_rules, layers, policy, requests, rule_lists
from seamgate.flow import BodyState, Request
from seamgate.policy.evaluation import Evaluator
from seamgate.verdict import Effect

WORK = settings(max_examples=100, deadline=None)


@given(rule_lists, rule_lists, layers, layers, st.lists(requests(), min_size=1, max_size=6))
@WORK
def test_index_says_what_the_oracle_says(
    first: list[Any], second: list[Any], one: str, two: str, asked: list[Request]
) -> None:
    """The indexed evaluator gives effect and reason of a linear evaluation of the same rules."""
    policies = [policy(first, one, "a"), policy(second, two, "b")]
    evaluator = Evaluator(policies)
    for request in asked:
        verdict = evaluator.judge_request(request, NOW)
        assert (verdict.effect, verdict.reason) == policy_oracle.judge(policies, request, NOW)


@given(rule_lists, st.randoms(), requests())
@WORK
def test_order_of_rules_never_matters(rules: list[Any], random: Any, request: Request) -> None:
    """Shuffled rules and shuffled lists within them give the same effect and reason."""
    shuffled = [_shuffle(rule, random) for rule in rules]
    random.shuffle(shuffled)
    before = Evaluator([policy(rules)]).judge_request(request, NOW)
    after = Evaluator([policy(shuffled)]).judge_request(request, NOW)
    assert (before.effect, before.reason) == (after.effect, after.reason)


def _shuffle(value: Any, random: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffle(each, random) for key, each in value.items()}
    if isinstance(value, list):
        return random.sample(value, len(value)) + value  # repeated, too
    return value


@given(rule_lists, deny_rules, layers, requests())
@WORK
def test_adding_a_deny_never_allows(rules: list[Any], ban: Any, layer: str, request: Request) -> None:
    """A further deny rule, in any layer that is there, can only narrow."""
    before = Evaluator([policy(rules, layer)]).judge_request(request, NOW)
    after = Evaluator([policy([*rules, ban], layer)]).judge_request(request, NOW)
    assert after.effect <= before.effect


@given(rule_lists, rule_lists, requests())
@WORK
def test_adding_a_layer_never_allows(rules: list[Any], others: list[Any], request: Request) -> None:
    """A further layer, whatever it holds, can only narrow."""
    before = Evaluator([policy(rules, "team", "a")]).judge_request(request, NOW)
    after = Evaluator([policy(rules, "team", "a"), policy(others, "sandbox", "b")]).judge_request(request, NOW)
    assert after.effect <= before.effect


@given(rule_lists, allow_rules, requests())
@WORK
def test_adding_an_allow_never_denies(rules: list[Any], permit: Any, request: Request) -> None:
    """A further allow rule of a layer that is there can only widen, unless it may change what is chosen."""
    before = Evaluator([policy(rules)]).judge_request(request, NOW)
    after = Evaluator([policy([*rules, permit])]).judge_request(request, NOW)
    assert after.effect >= before.effect


@given(rule_lists, st.lists(requests(), min_size=1, max_size=4))
@WORK
def test_audit_mode_enforces_nothing(rules: list[Any], asked: list[Request]) -> None:
    """A whole file in audit mode changes no effect but a deferral, and would_deny says what it would have denied."""
    base = [{"allow": {"hosts": ["**"], "schemes": ["http", "https"], "ports": ["*"]}}]
    enforced = policy(base, "team", "a")
    shadow, real = policy(rules, "org", "b", mode="audit"), policy(rules, "org", "b")
    for request in asked:
        with_shadow = Evaluator([enforced, shadow]).judge_request(request, NOW)
        without = Evaluator([enforced]).judge_request(request, NOW)
        together = Evaluator([enforced, real]).judge_request(request, NOW)
        if with_shadow.effect is not Effect.DEFER:
            assert with_shadow.effect is without.effect
            if without.allowed:
                assert bool(with_shadow.would_deny) == (together.effect is Effect.DENY)
        else:
            assert request.body_state is BodyState.PENDING


@given(rule_lists, st.lists(requests(), min_size=1, max_size=6))
@WORK
def test_connect_is_never_narrower_than_its_requests(rules: list[Any], asked: list[Request]) -> None:
    """If a request may go on, the tunnel to its target was not denied."""
    evaluator = Evaluator([policy(rules)])
    for request in asked:
        if evaluator.judge_request(request, NOW).effect is not Effect.DENY:
            connect = evaluator.judge_connect(request.guest, request.target, NOW)
            assert connect.effect is Effect.DEFER


@given(allow_rules, requests())
@WORK
def test_no_allow_covers_a_path_of_which_it_would_not_cover_a_reading(permit: Any, request: Request) -> None:
    """What is allowed fits the rule's paths in each reading of its path, unless the rule names that very path."""
    rules = policy([permit])
    if Evaluator([rules]).judge_request(request, NOW).effect is not Effect.DENY:
        match = rules.rules[0].match
        named = match.paths is None or any(pattern.text == request.path for pattern in match.paths)
        assert named or policy_oracle.covers_each(match, request.path)


@given(rule_lists, requests())
@WORK
def test_deferral_only_while_the_body_is_pending(rules: list[Any], request: Request) -> None:
    """A verdict is final in every phase but the one in which the body has not been read."""
    verdict = Evaluator([policy(rules)]).judge_request(request, NOW)
    assert verdict.effect is not Effect.DEFER or request.body_state is BodyState.PENDING
