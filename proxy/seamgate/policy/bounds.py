"""Judges requests of which parts are not known: allowed or denied whatever those parts were, or nobody can tell.

The audit log holds no header, no body, and of a query the names. A rule that asks for these is *open* for a recorded
request. It is judged twice: at worst (open allows don't hold, open bans do, exceptions don't) and at best (the other
way round). Where both agree the verdict is certain; where they don't, it is not guessed: the rules and what they ask
for are named. Called by `policy replay`. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from seamgate.flow import Guest, Request, Target
from seamgate.policy.conditions import Condition, JsonCondition, ValueCondition, WhenCondition
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.model import Exemption, Match, Policy, Rule
from seamgate.policy.testing import judge_in_phases
from seamgate.verdict import Verdict

HEADERS, QUERY, BODY = "headers", "query", "body"
_PART_OF_FIELD: Final = {"headers": HEADERS, "query": QUERY, "json": BODY}


def parts_of(condition: Condition) -> frozenset[str]:
    """Return which of headers, query and body a condition looks at."""
    if isinstance(condition, ValueCondition):
        return frozenset({condition.kind})
    if isinstance(condition, JsonCondition):
        return frozenset({HEADERS, BODY})  # the body counts as JSON by its Content-Type only
    assert isinstance(condition, WhenCondition)
    fields = condition.expression.fields
    request = None if fields is None else fields.get("request", {})
    if request is None:
        return frozenset({HEADERS, QUERY, BODY})
    parts = frozenset(part for name, part in _PART_OF_FIELD.items() if name in request)
    return parts | {HEADERS} if BODY in parts else parts


class Open(msgspec.Struct, frozen=True):
    """A rule that asks for what is not known: its id, where it stands, and its conditions as written."""

    rule: str
    place: str
    asks: tuple[str, ...]


class Bounded(msgspec.Struct, frozen=True):
    """What can be told.

    Attributes:
        allowed: True or False where it is certain, None where nobody can tell.
        verdict: a verdict with this effect; None where nobody can tell. Its credentials and limits mean nothing.
        open: the rules on which it hangs, where nobody can tell.
    """

    allowed: bool | None
    verdict: Verdict | None
    open: tuple[Open, ...] = ()


class Bounds:
    """All policies of one generation, ready to judge what is known in part.

    Args:
        policies: as loaded.
        unknown: which of headers, query and body are not known.
    """

    def __init__(self, policies: Sequence[Policy], unknown: frozenset[str]) -> None:
        self._unknown = unknown
        self._exact = Evaluator(policies)
        self._open = {
            rule.id: labels
            for policy in policies
            for rule in policy.rules
            if (labels := tuple(each.label for each in _conditions(rule) if parts_of(each) & unknown))
        }
        self._worst = Evaluator([self._variant(policy, worst=True) for policy in policies])
        self._best = Evaluator([self._variant(policy, worst=False) for policy in policies])

    def judge(self, request: Request, now: float) -> Bounded:
        """Return what can be told of a request whose unknown parts are left out. Limits of requests don't count."""
        hangs_on = self._hangs_on(request, now) if self._open else []
        if not hangs_on:
            return _certain(_judged(self._exact, request, now))
        worst, best = _judged(self._worst, request, now), _judged(self._best, request, now)
        if worst.allowed is best.allowed and not (best.allowed and self._may_tie(request, now)):
            return _certain(best)
        open_rules = [Open(rule.id, rule.place, self._open[rule.id]) for rule in hangs_on]
        return Bounded(None, None, tuple(sorted(open_rules, key=lambda each: each.rule)))

    def _hangs_on(self, request: Request, now: float) -> list[Rule]:
        """Return the open rules that cover the request as far as it is known."""
        if request.target.scheme == "tcp":
            return []  # nothing of what is unknown counts there
        allows = [rule for rule, _ in self._best.trace(request, now) if rule.allows]
        bans = [rule for rule, _ in self._worst.trace(request, now) if not rule.allows]
        found = {rule.id for rule in allows + bans if rule.id in self._open}
        return [self._exact.rules[each] for each in found]

    def _may_tie(self, request: Request, now: float) -> bool:
        """Whether two rules that only conditions tell apart might cover it and choose differently: that is denied."""
        covering = [self._exact.rules[rule.id] for rule, _ in self._best.trace(request, now) if rule.allows]
        choosing = [rule for rule in covering if rule.match.conditions and _chooses(rule)]
        return len(choosing) > 1 and any(rule.id in self._open for rule in choosing)

    def _variant(self, policy: Policy, *, worst: bool) -> Policy:
        rules = [each for rule in policy.rules if (each := self._reduced(rule, worst=worst)) is not None]
        return msgspec.structs.replace(policy, rules=tuple(rules))

    def _reduced(self, rule: Rule, *, worst: bool) -> Rule | None:
        """Return the rule as it would be at worst or at best; None where it would not be there."""
        holds = worst is not rule.allows  # at worst an open ban holds, and an open allow does not
        match = self._settled(rule.match, holds=holds)
        if match is None:
            return None
        exemptions: list[Exemption] = []
        for each in rule.exemptions:
            lifting = self._settled(each.match, holds=not worst)
            if lifting is not None:
                exemptions.append(msgspec.structs.replace(each, match=lifting))
        # Only the effect matters: what rules choose could tie once conditions are gone.
        return msgspec.structs.replace(
            rule, match=match, exemptions=tuple(exemptions), credentials=None, limits=None, inspect=None
        )

    def _settled(self, match: Match, *, holds: bool) -> Match | None:
        known = tuple(each for each in match.conditions if not parts_of(each) & self._unknown)
        if len(known) == len(match.conditions):
            return match
        return msgspec.structs.replace(match, conditions=known) if holds else None


def _conditions(rule: Rule) -> list[Condition]:
    return [*rule.match.conditions, *(each for exemption in rule.exemptions for each in exemption.match.conditions)]


def _chooses(rule: Rule) -> bool:
    return (rule.credentials, rule.limits, rule.inspect) != (None, None, None)


def _certain(verdict: Verdict) -> Bounded:
    return Bounded(verdict.allowed, verdict)


class _At:
    """An evaluator at one moment, as `judge_in_phases` asks it."""

    def __init__(self, evaluator: Evaluator, now: float) -> None:
        self._evaluator = evaluator
        self._now = now

    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        return self._evaluator.judge_connect(guest, target, self._now)

    def judge_request(self, request: Request) -> Verdict:
        return self._evaluator.judge_request(request, self._now)


def _judged(evaluator: Evaluator, request: Request, now: float) -> Verdict:
    return judge_in_phases(request, None, _At(evaluator, now))[0]
