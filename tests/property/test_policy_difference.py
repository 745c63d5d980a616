"""What `policy diff` says of a rule's change is true of every request."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from property.policy_strategies import (
    NOW,
    allow_rules,
    deny_rules,
    expiries,
    full_matches,
    guests,
    policy,
    requests,
)
from seamgate.flow import BodyState
from seamgate.policy.difference import Effect, rule_changes
from seamgate.policy.evaluation import Evaluator

_EVERYTHING = {
    "allow": {"hosts": ["**", "10.0.0.1"], "schemes": ["https", "http"], "ports": ["*"]},
    "encoded_slash": True,
}


@st.composite
def changed_rules(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A rule, and the same with one thing taken off, added or replaced."""
    kind = draw(st.sampled_from(["allow", "deny"]))
    old = draw(allow_rules if kind == "allow" else deny_rules)
    other = draw(full_matches)
    new = {**old, kind: dict(old[kind])}
    name = draw(st.sampled_from(["hosts", "paths", "methods", "ports", "query", "json", "guests", "expires"]))
    if name in ("guests", "expires"):
        new[name] = draw(guests if name == "guests" else expiries)
    elif name in other and name in old[kind] and isinstance(other[name], list) and isinstance(old[kind][name], list):
        new[kind][name] = [*old[kind][name], *other[name]] if draw(st.booleans()) else old[kind][name][:1]
    elif name in other:
        new[kind][name] = other[name]
    elif name != "hosts" and name in old[kind]:
        del new[kind][name]
    return old, new


@given(changed_rules(), st.lists(requests(), min_size=4, max_size=12))
@settings(max_examples=100, deadline=None)
def test_what_widens_never_denies_and_what_narrows_never_allows(
    change: tuple[dict[str, Any], dict[str, Any]], asked: list[Any]
) -> None:
    """Said of a rule by its text, it holds for any request, whatever the other rules are."""
    old, new = ([policy([rule, *([] if "allow" in rule else [_EVERYTHING])])] for rule in change)
    found = rule_changes(old, new)
    assume(found)
    (told,) = found
    event(str(told.effect))
    before, after = Evaluator(old), Evaluator(new)
    for request in asked:
        if request.body_state is BodyState.PENDING:
            continue  # "wait for the body" is no verdict yet
        was, now = (each.judge_request(request, NOW).effect for each in (before, after))
        if told.effect is Effect.WIDENED:
            assert now >= was, told.details
        elif told.effect is Effect.NARROWED:
            assert now <= was, told.details


@given(allow_rules | deny_rules)
@settings(max_examples=100, deadline=None)
def test_the_same_rule_does_not_differ(rule: dict[str, Any]) -> None:
    """Nor does one that only got another id: that is said."""
    assert rule_changes([policy([rule])], [policy([rule])]) == []
    (renamed,) = rule_changes([policy([rule], prefix="a")], [policy([rule], prefix="b")])
    assert (renamed.what, renamed.rule, renamed.details) == ("renamed", "a0", ("now b0",))
