"""What the tests beside a policy exercise: each rule, and within it each host, path, condition and exception.

A rule is *exercised* if a case is covered by it for certain. Its *branches* are what may be wrong in it without any
exercised rule telling: each element of a list, each condition in both ways, each exception, a limit, an expiry. They
are tried with the rule itself, reduced to the branch, by the real evaluation. Called by the CLI. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from seamgate.errors import Reason, TargetError
from seamgate.flow import BodyState, Request
from seamgate.policy.conditions import Outcome
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.model import Exemption, Match, Policy, Rule
from seamgate.policy.testing import Case, Result, build_request

_METHOD_GROUPS = {"read": frozenset({"GET", "HEAD", "OPTIONS"}), "write": frozenset({"POST", "PUT", "PATCH", "DELETE"})}


class Branch(msgspec.Struct):
    """One part of a rule, and in how many cases it was exercised."""

    text: str
    cases: int = 0


class RuleCoverage(msgspec.Struct, frozen=True):
    """What was exercised of one rule.

    Attributes:
        rule: the rule.
        whole: the rule itself.
        branches: its parts; none where it has only one of each.
    """

    rule: Rule
    whole: Branch
    branches: tuple[Branch, ...]

    @property
    def points(self) -> int:
        """How many things could be exercised."""
        return 1 + len(self.branches)

    @property
    def exercised(self) -> int:
        """How many of them were."""
        return sum(branch.cases > 0 for branch in (self.whole, *self.branches))


class Coverage:
    """Collects what cases exercise of the rules of one set of policies."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._meters = [_Meter(rule) for policy in policies for rule in policy.rules]

    def add(self, result: Result) -> None:
        """Count a case that was judged."""
        try:
            request = _whole(result.case)
        except TargetError:
            return  # it never got to a policy
        for meter in self._meters:
            meter.add(request, result)

    def rules(self) -> list[RuleCoverage]:
        """Return what was exercised, in the order of the files."""
        return [RuleCoverage(meter.rule, meter.whole, meter.branches) for meter in self._meters]


def percent(rules: Iterable[RuleCoverage]) -> float:
    """Return how much of all points was exercised, 100 where there is nothing to exercise."""
    found = list(rules)
    points = sum(each.points for each in found)
    return 100.0 * sum(each.exercised for each in found) / points if points else 100.0


def _whole(case: Case) -> Request:
    request = build_request(case, "coverage")
    if case.body is None:
        return request
    return msgspec.structs.replace(request, body=case.body, body_state=BodyState.COMPLETE)


class _Probe:
    """A rule reduced to something, alone in a policy."""

    def __init__(self, rule: Rule, match: Match | None = None, **changes: object) -> None:
        reduced = msgspec.structs.replace(
            rule,
            **{"match": match or rule.match, "audit": False, "credentials": None, "limits": None, **changes},
        )
        policy = Policy(source=rule.source, layer=rule.layer, rules=(reduced,))
        self._evaluator = Evaluator((policy,))
        self._id = rule.id

    def says(self, request: Request, now: float) -> Outcome:
        """Return what the reduced rule says of a request."""
        if request.target.scheme == "tcp":
            verdict = self._evaluator.judge_connect(request.guest, request.target, now)
            return Outcome.YES if verdict.rule == self._id else Outcome.NO
        return next((said for _, said in self._evaluator.trace(request, now)), Outcome.NO)

    def covers(self, request: Request, now: float) -> bool:
        """Whether it covers the request for certain."""
        return self.says(request, now) is Outcome.YES


class _Meter:
    """One rule with everything that may be exercised of it."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.whole = Branch("the rule")
        match = rule.match
        plain = msgspec.structs.replace(match, conditions=())
        self._reach = _Probe(rule, plain, exemptions=(), expires_at=math.inf)
        self._full = _Probe(rule)
        self._unlifted = _Probe(rule, exemptions=())
        self._undying = _Probe(rule, exemptions=(), expires_at=math.inf)
        self._elements = [(Branch(text), _Probe(rule, each, exemptions=())) for text, each in _elements(match)]
        self._conditions = [
            (Branch(f"{condition.label} holds"), Branch(f"{condition.label} does not hold"), probe)
            for condition in match.conditions
            for probe in [_Probe(rule, msgspec.structs.replace(match, conditions=(condition,)), exemptions=())]
        ]
        self._exemptions = [
            (Branch(_told(number, each)), _Probe(rule, exemptions=(each,)))
            for number, each in enumerate(rule.exemptions, 1)
        ]
        limits = rule.limits
        self._limit = Branch("its limit of requests is reached") if limits is not None and limits.requests else None
        self._expiry = Branch("it has expired") if rule.expires_at < math.inf else None

    @property
    def branches(self) -> tuple[Branch, ...]:
        """All of them."""
        ways = [way for holds, fails, _ in self._conditions for way in (holds, fails)]
        parts = [branch for branch, _ in (*self._elements, *self._exemptions)]
        return (*parts, *ways, *(each for each in (self._limit, self._expiry) if each is not None))

    def add(self, request: Request, result: Result) -> None:
        """Count a case."""
        now = result.case.now
        if not self._reach.covers(request, now):
            return
        self.whole.cases += self._full.covers(request, now)
        for branch, probe in self._elements:
            branch.cases += probe.covers(request, now)
        for holds, fails, probe in self._conditions:
            held = probe.covers(request, now)
            holds.cases += held
            fails.cases += not held
        if self._exemptions and self._unlifted.covers(request, now):
            for branch, probe in self._exemptions:
                branch.cases += probe.says(request, now) is Outcome.NO
        if self._limit is not None:
            verdict = result.verdict
            self._limit.cases += verdict.reason is Reason.RATE_LIMITED and verdict.rule == self.rule.id
        if self._expiry is not None:
            self._expiry.cases += self.rule.expires_at <= now and self._undying.covers(request, now)


def _told(number: int, exemption: Exemption) -> str:
    why = f" ({exemption.reason})" if exemption.reason else ""
    return f"exception {number} lifts it{why}"


def _elements(match: Match) -> Iterator[tuple[str, Match]]:
    """Yield (text, the match with this element alone) for each element of a list of several."""
    replace = msgspec.structs.replace
    if match.hosts is not None and len(match.hosts) > 1:
        yield from ((f"host {each.text}", replace(match, hosts=(each,))) for each in match.hosts)
    if match.paths is not None and len(match.paths) > 1:
        yield from ((f"path {each.text}", replace(match, paths=(each,))) for each in match.paths)
    groups = list(_groups(match.methods or frozenset()))
    if len(groups) > 1:
        yield from ((f"method {name}", replace(match, methods=methods)) for name, methods in groups)


def _groups(methods: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield methods one by one; `read` and `write`, which are written as one word, as one, and HEAD with GET."""
    left = methods
    for name, group in _METHOD_GROUPS.items():
        if group <= methods:
            yield name, group
            left -= group
    for method in sorted(left - {"HEAD"} if "GET" in left else left):
        yield method, frozenset({method})
