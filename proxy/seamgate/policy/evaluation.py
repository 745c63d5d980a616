"""Judges: default deny, deny overrides, every layer that is present must allow.

One `Evaluator` holds all policies of one generation, indexed. What depends on guest, target, method and path alone is
worked out once and kept (a bounded cache), so that the usual request costs one look-up; what depends on query,
headers or body is judged each time, for the few rules that are left.

    denied, if any deny rule covers the request (or may: UNKNOWN) and no exemption certainly lifts it
    denied, if some present layer has no allow rule that certainly covers it
    deferred, while one of these hangs on a body that has not been read
    allowed, else

Rules and files in audit mode take no part in that. They are judged beside it as if they were enforced, and what that
would have denied goes into `would_deny`. The clock is the caller's: `now` is Unix seconds.

Called by the policy plugin, `explain` and `testing`. No I/O.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from seamgate.errors import ConfigError, Reason, TargetError
from seamgate.flow import Guest, Request, Target
from seamgate.policy.conditions import Condition, Outcome, View, WhenCondition
from seamgate.policy.explain import Explainer, ban_message, unknown_message
from seamgate.policy.index import HostIndex, RuleSet, find_allows, find_denies
from seamgate.policy.kept import Kept
from seamgate.policy.model import Exemption, Layer, Match, Policy, Rule
from seamgate.policy.overrides import Overrides, find_overrides, name_overrides
from seamgate.policy.patterns import covers_as_allow, covers_readings, strict_readings
from seamgate.policy.plan import Ban, Decision, Fold, Plan
from seamgate.policy.selection import check_ties, select
from seamgate.verdict import Effect, Verdict

_Decision: Final = Decision  # a Final of the module is read at once; an imported name is looked up each time

CACHED_PLANS = 16384
"""1,500 guests with ten kinds of request each; a plan takes some 300 bytes, beside its path."""
CACHED_SIZE: Final = 512
"""Characters of paths and methods up to which a plan is kept: guests choose them, and a flood of long ones would fill
gigabytes. So all plans take some 40 MB at most, their messages included, which repeat no more than this of a path."""
CACHED_TARGETS = 4096

_LAYERS = tuple(Layer)
_DEFER = Verdict(Effect.DEFER, Reason.ALLOWED, message="The requests through this tunnel are judged one by one.")


_Outcomes = list[tuple[Rule, Outcome]]


class Evaluator:
    """All policies of one generation, ready to judge.

    Attributes:
        policies: as loaded.
        generation: a loaded policy's number; it goes up with each reload.
        layers: those that must allow a request: of the files that are enforced.
        shadow_layers: those of all files.
        explainer: says why a request was denied.
    """

    def __init__(self, policies: Sequence[Policy], *, generation: int = 1) -> None:
        """Index the policies.

        Raises:
            ConfigError: an id is there twice, or two rules tie (see `selection`).
        """
        self.policies = tuple(policies)
        self.generation = generation
        self.rules = {rule.id: rule for rule in _unique(policies)}
        self.layers = tuple(layer for layer in _LAYERS if any(p.layer is layer and not p.audit for p in policies))
        self.shadow_layers = tuple(layer for layer in _LAYERS if any(p.layer is layer for p in policies))
        self._has_audit = any(p.audit for p in policies) or any(rule.audit for rule in self.rules.values())
        self._asks_readings = any(_asks_readings(rule) for rule in self.rules.values())
        check_ties(self.rules.values())
        self._allows, self._denies = HostIndex(), HostIndex()
        for rule in self.rules.values():
            self._add(rule)
        self.explainer = Explainer(self._allows, self.layers)
        self._shadow_explainer = Explainer(self._allows, self.shadow_layers, shadow=True)
        self._expiries = sorted({at for rule in self.rules.values() for at in _expiries(rule)})
        self._since = self._until = -math.inf  # of the span of time in which nothing expires; empty: not begun
        self._plans, self._connects = Kept(CACHED_PLANS), Kept(CACHED_TARGETS)
        self._allows_of = lru_cache(CACHED_TARGETS)(self._allows.find)
        self._denies_of = lru_cache(CACHED_TARGETS)(self._denies.find)

    def _add(self, rule: Rule) -> None:
        match = rule.match
        for host in (None,) if match.hosts is None else match.hosts:
            if rule.allows:
                bucket = self._allows.bucket(host)
                bucket.add(rule, match.paths)
                bucket.add_connect(rule)
                bucket.add_tcp(rule)
                continue
            bucket = self._denies.bucket(host)
            paths = match.paths
            bucket.add(rule, None if paths is None else [each for path in paths for each in path.folded()])
            bucket.add_tcp(rule)
            if paths is None and match.methods is None and not match.conditions:
                bucket.add_connect(rule)

    def judge_request(self, request: Request, now: float) -> Verdict:
        """Return the verdict on a request in its present phase."""
        return self.decide(request, now).verdict

    def decide(self, request: Request, now: float) -> Decision:
        """Return the verdict on a request in its present phase, with the rate limits that it falls under."""
        if not self._since <= now < self._until:
            self._turn(now)
        if not request.method.isupper():
            message = f"The method {request.method} is not in upper case."
            return Decision(Verdict(Effect.DENY, Reason.NO_RULE_MATCHED, "", message))
        try:
            overrides = find_overrides(request) if self._asks_readings else ()
        except TargetError as error:
            return Decision(Verdict(Effect.DENY, error.reason, "", f"{error.message[0].upper()}{error.message[1:]}."))
        upgrade = request.upgrade
        method, path = request.method, request.path
        plan: Any = None  # a Decision, or a Plan
        if _is_short(method, path, overrides):
            key = (request.target, method, path, upgrade, overrides)
            plan = self._plans.get(request.guest, key)
            if plan is None:
                plan = self._plan(request.guest, request.target, method, path, upgrade, overrides)
                self._plans.put(request.guest, key, plan)
        else:
            plan = self._plan(request.guest, request.target, method, path, upgrade, overrides)
        found = plan if type(plan) is _Decision else self._decide(plan, request, View(request))
        return self._upgrade_refused(found, request, now) if upgrade else found

    def _upgrade_refused(self, found: Decision, request: Request, now: float) -> Decision:
        """Where the request would be allowed if it stayed what it is, say that this is all that it lacks."""
        if found.verdict.reason is not Reason.NO_RULE_MATCHED:
            return found
        verdict = self.decide(msgspec.structs.replace(request, upgrade=""), now).verdict
        if verdict.effect is Effect.DENY:
            return Decision(verdict)
        message = f"Rule {verdict.rule} allows the request, but not to become a {request.upgrade}: it has no `upgrade`."
        return Decision(Verdict(Effect.DENY, Reason.UPGRADE_REFUSED, verdict.rule, message))

    def judge_connect(self, guest: Guest, target: Target, now: float) -> Verdict:
        """Return DEFER if some request of this guest to this target may be allowed, else a denial.

        With port 0: to this host, whatever the port and scheme. With the scheme "tcp" nothing will be judged after
        it: ALLOW, by the rule that says `protocol: tcp`, unless a deny covers anything there.
        """
        if not self._since <= now < self._until:
            self._turn(now)
        verdict: Verdict | None = self._connects.get(guest, target)
        if verdict is None:
            verdict = self._connect(guest, target)
            self._connects.put(guest, target, verdict)
        return verdict

    def _turn(self, now: float) -> None:
        """Forget what was worked out for another span of time."""
        at = bisect_right(self._expiries, now)
        self._since = self._expiries[at - 1] if at else -math.inf
        self._until = self._expiries[at] if at < len(self._expiries) else math.inf
        self._now = now
        self.forget()

    def forget(self) -> None:
        """Empty the caches. Only memory and speed depend on them."""
        self._plans.clear()
        self._connects.clear()
        for cached in (self._allows_of, self._denies_of):
            cached.cache_clear()

    def trace(self, request: Request, now: float) -> list[tuple[Rule, Outcome]]:
        """Return every rule that covers the request or may, denies first, with what it says: for `policy explain`."""
        if not self._since <= now < self._until:
            self._turn(now)
        try:
            overrides = find_overrides(request)
        except TargetError:
            return []  # refused, whatever the rules say
        plan = self._rules_for(request.guest, request.target, request.method, request.path, request.upgrade, overrides)
        view = View(request)
        outcomes = [(ban.rule, _ban_outcome(ban, view)) for ban in plan.bans]
        outcomes += [(rule, _all_of(rule.match.conditions, view)) for rule in plan.allows]
        return [each for each in outcomes if each[1] is not Outcome.NO]

    def _plan(
        self, guest: Guest, target: Target, method: str, path: str, upgrade: str, overrides: Overrides
    ) -> Decision | Plan:
        """Return a decision where guest, target, method and path settle it, else the rules that are left."""
        plan = self._rules_for(guest, target, method, path, upgrade, overrides)
        if any(rule.match.conditions for rule in plan.allows):
            return plan
        if any(ban.exemptions or ban.rule.match.conditions for ban in plan.bans):
            return plan
        headers = name_overrides(overrides)
        return self._decide(plan, Request("", guest, target, method, path, headers=headers, upgrade=upgrade), None)

    def _rules_for(
        self, guest: Guest, target: Target, method: str, path: str, upgrade: str, overrides: Overrides
    ) -> Plan:
        methods, paths = ((method, *overrides[0]), (path, *overrides[1])) if overrides else ((method,), (path,))
        allows = tuple(
            rule
            for rule in find_allows(self._allows_of(target), path, guest)
            if self._covers(rule, guest, target)
            and upgrade in ("", rule.upgrade)
            and all(rule.match.covers_method(each) for each in methods)
        )
        for each in paths:
            allows = _covering(allows, each, found=each is path)
        banning: dict[Rule, None] = {}
        for each in paths:
            banning.update(find_denies(self._denies_of(target), each, guest))
        bans = []
        for rule in banning:
            if self._covers(rule, guest, target) and any(rule.match.covers_method(each) for each in methods):
                exemptions = [each for each in rule.exemptions if self._may_lift(each, guest, target, methods, paths)]
                if all(each.match.conditions for each in exemptions):
                    bans.append(Ban(rule, tuple(exemptions)))
        return Plan(allows, tuple(bans))

    def _covers(self, rule: Rule, guest: Guest, target: Target) -> bool:
        match = rule.match
        return (
            rule.expires_at > self._now
            and (match.covers_port(target.scheme, target.port) or (rule.allows and not target.port))
            and match.covers_guest(guest.labels)
        )

    def _may_lift(
        self, exemption: Exemption, guest: Guest, target: Target, methods: tuple[str, ...], paths: tuple[str, ...]
    ) -> bool:
        match = exemption.match
        return (
            exemption.expires_at > self._now
            and match.covers_host(target.host, target.is_address)
            and match.covers_port(target.scheme, target.port)
            and match.covers_guest(guest.labels)
            and all(match.covers_method(each) for each in methods)
            and all(_lifts_path(match, each) for each in paths)
        )

    def _decide(self, plan: Plan, request: Request, view: View | None) -> Decision:
        """Add up what the plan's rules say. Without a view no rule has a condition, and none is asked."""
        banned: _Outcomes = [
            (ban.rule, outcome) for ban in plan.bans if (outcome := _ban_outcome(ban, view)) is not Outcome.NO
        ]
        allowed: _Outcomes = [
            (rule, outcome)
            for rule in plan.allows
            if (outcome := _all_of(rule.match.conditions, view)) is not Outcome.NO
        ]
        fold = _fold(_enforced(banned), _enforced(allowed), self.layers) if self._has_audit else None
        shadow = _fold(banned, allowed, self.shadow_layers)
        fold = fold or shadow
        if fold.effect is Effect.DENY:
            return Decision(self._denial(fold, request, view, self.explainer))
        pending = fold.rule if fold.effect is Effect.DEFER else _choice_pending(allowed) or _shadow_pending(shadow)
        if pending is not None:
            message = f"Rule {pending.id} needs the body."
            return Decision(Verdict(Effect.DEFER, Reason.ALLOWED, pending.id, message))
        would = self._denial(shadow, request, view, self._shadow_explainer) if shadow.effect is Effect.DENY else None
        return self._allow(_enforced(allowed), request, would)

    def _allow(self, allowed: _Outcomes, request: Request, would: Verdict | None) -> Decision:
        rules = [rule for rule, outcome in allowed if outcome is Outcome.YES]
        chosen = select(rules, request.target, request.path, self.layers)
        if chosen.tied is not None:
            first, second = chosen.tied
            message = f"Rules {first.id} and {second.id} are equally specific and choose differently."
            return Decision(Verdict(Effect.DENY, Reason.UNEVALUABLE, first.id, message))
        verdict = Verdict(
            Effect.ALLOW,
            Reason.ALLOWED,
            chosen.rule.id,
            credentials=chosen.credentials,
            inspect=chosen.inspect,
            limits=chosen.limits,
            addresses=chosen.addresses,
            would_deny=would.message if would else "",
            would_rule=would.rule if would else "",
            upgrade=request.upgrade,
        )
        return Decision(verdict, chosen.rates)

    def _denial(self, fold: Fold, request: Request, view: View | None, explainer: Explainer) -> Verdict:
        rule = fold.rule
        if rule is not None and not rule.allows:
            return Verdict(Effect.DENY, fold.reason, rule.id, ban_message(rule, fold.reason, view))
        if rule is not None and view is not None:
            return Verdict(Effect.DENY, fold.reason, rule.id, unknown_message(rule, view))
        return Verdict(Effect.DENY, fold.reason, "", explainer.missing(request, fold.layer, self._now, view))

    def _connect(self, guest: Guest, target: Target) -> Verdict:
        real = self._connect_fold(guest, target, shadow=False)
        if real.effect is Effect.DENY:
            return self._connect_denial(real, guest, target, self.explainer)
        passed = self._tcp_verdict(guest, target) if target.scheme == "tcp" else _DEFER
        if self._has_audit:
            shadow = self._connect_fold(guest, target, shadow=True)
            if shadow.effect is Effect.DENY:
                would = self._connect_denial(shadow, guest, target, self._shadow_explainer)
                return msgspec.structs.replace(passed, would_deny=would.message, would_rule=would.rule)
        return passed

    def _tcp_verdict(self, guest: Guest, target: Target) -> Verdict:
        rules = [
            rule
            for rule in _rules_of([bucket.tcp for bucket in self._allows_of(target)], guest)
            if not rule.audit and self._covers(rule, guest, target)
        ]
        chosen = select(rules, target, "", self.layers)
        return Verdict(Effect.ALLOW, Reason.ALLOWED, chosen.rule.id, addresses=chosen.addresses, upgrade="tcp")

    def _connect_fold(self, guest: Guest, target: Target, *, shadow: bool) -> Fold:
        tcp = target.scheme == "tcp"
        denies = [bucket.tcp if tcp else bucket.connect for bucket in self._denies_of(target)]
        for rule in _rules_of(denies, guest):
            if (shadow or not rule.audit) and self._covers(rule, guest, target):
                # What is in a stream that nobody reads can't be told: only an exemption that does not depend on it
                # lifts a ban, and a ban of anything there is one of the stream.
                lifts = self._lifts_tcp if tcp else self._may_lift_some
                if not any(lifts(each, guest, target) for each in rule.exemptions):
                    return Fold(Effect.DENY, Reason.RULE_DENIED, rule)
        layers = self.shadow_layers if shadow else self.layers
        missing = dict.fromkeys(layers)
        for rule in _rules_of([bucket.tcp if tcp else bucket.connect for bucket in self._allows_of(target)], guest):
            if rule.layer in missing and (shadow or not rule.audit) and self._covers(rule, guest, target):
                del missing[rule.layer]
        if missing or not layers:
            return Fold(Effect.DENY, Reason.NO_RULE_MATCHED, None, next(iter(missing), None))
        return Fold(Effect.DEFER)

    def _may_lift_some(self, exemption: Exemption, guest: Guest, target: Target) -> bool:
        match = exemption.match
        return (
            exemption.expires_at > self._now
            and match.covers_host(target.host, target.is_address)
            and (match.covers_port(target.scheme, target.port) or not target.port)
            and match.covers_guest(guest.labels)
        )

    def _lifts_tcp(self, exemption: Exemption, guest: Guest, target: Target) -> bool:
        match = exemption.match
        unread = match.methods is None and match.paths is None and not match.conditions
        return unread and self._may_lift_some(exemption, guest, target)

    def _connect_denial(self, fold: Fold, guest: Guest, target: Target, explainer: Explainer) -> Verdict:
        if fold.rule is not None:
            return Verdict(Effect.DENY, fold.reason, fold.rule.id, ban_message(fold.rule, fold.reason, None))
        message = explainer.missing_connect(guest, target, fold.layer, self._now)
        return Verdict(Effect.DENY, fold.reason, "", message)


def _unique(policies: Iterable[Policy]) -> Iterable[Rule]:
    seen: dict[str, Rule] = {}
    for policy in policies:
        for rule in policy.rules:
            other = seen.get(rule.id)
            if other is not None:
                message = f"the id {rule.id!r} is already that of the rule at {other.place}"
                raise ConfigError(message, source=rule.source, line=rule.line, column=rule.column)
            seen[rule.id] = rule
            yield rule


def _is_short(method: str, path: str, overrides: Overrides) -> bool:
    """Whether a plan for these is worth its memory."""
    size = len(method) + len(path)
    for texts in overrides:
        for text in texts:
            size += len(text)
    return size <= CACHED_SIZE


def _asks_readings(rule: Rule) -> bool:
    """Whether a rule depends on method or path, so that what may override them has to be looked at."""
    matches = (rule.match, *(each.match for each in rule.exemptions))
    return any(
        match.methods is not None
        or match.paths is not None
        or any(isinstance(each, WhenCondition) and each.expression.needs_readings for each in match.conditions)
        for match in matches
    )


def _covering(allows: tuple[Rule, ...], path: str, *, found: bool) -> tuple[Rule, ...]:
    """Return those of the rules whose paths cover this one in each reading; `found`: by the index, as it stands."""
    readings = strict_readings(path)
    return tuple(
        rule
        for rule in allows
        if (found or rule.match.covers_path(path))
        and (rule.encoded_slash or "%2F" not in path)
        and (readings is None or rule.match.paths is None or covers_as_allow(rule.match.paths, path, readings))
    )


def _lifts_path(match: Match, path: str) -> bool:
    readings = (path,) if "%2F" not in path else (path, path.replace("%2F", "/"))
    covered = all(match.covers_path(reading) for reading in readings)
    return covered and (match.paths is None or covers_readings(match.paths, path))


def _expiries(rule: Rule) -> Iterable[float]:
    for at in (rule.expires_at, *(each.expires_at for each in rule.exemptions)):
        if at < math.inf:
            yield at


def _rules_of(sets: Iterable[RuleSet], guest: Guest) -> Iterable[Rule]:
    for rules in sets:
        yield from rules.of(guest.labels)


def _all_of(conditions: tuple[Condition, ...], view: View | None) -> Outcome:
    """And: NO outweighs PENDING outweighs UNKNOWN outweighs YES."""
    total = Outcome.YES
    if view is None:
        return total
    for condition in conditions:
        outcome = condition.judge(view)
        if outcome is Outcome.NO:
            return Outcome.NO
        total = max(total, outcome)
    return total


def _ban_outcome(ban: Ban, view: View | None) -> Outcome:
    outcome = _all_of(ban.rule.match.conditions, view)
    if outcome is Outcome.NO:
        return outcome
    for exemption in ban.exemptions:
        lifts = _all_of(exemption.match.conditions, view)
        if lifts is Outcome.YES:
            return Outcome.NO
        if lifts is Outcome.PENDING:
            outcome = Outcome.PENDING
    return outcome


def _enforced(outcomes: _Outcomes) -> _Outcomes:
    return [(rule, outcome) for rule, outcome in outcomes if not rule.audit]


def _fold(banned: _Outcomes, allowed: _Outcomes, layers: tuple[Layer, ...]) -> Fold:
    """Add up outcomes that are not NO. Free of order: of several rules of one kind the first by id is named."""
    for outcome, reason in ((Outcome.YES, Reason.RULE_DENIED), (Outcome.UNKNOWN, Reason.UNEVALUABLE)):
        rule = _first(banned, outcome)
        if rule is not None:
            return Fold(Effect.DENY, reason, rule)
    waiting = _first(banned, Outcome.PENDING)
    for layer in layers:
        mine = [each for each in allowed if each[0].layer is layer]
        if any(outcome is Outcome.YES for _, outcome in mine):
            continue
        pending = _first(mine, Outcome.PENDING)
        if pending is None:
            unknown = _first(mine, Outcome.UNKNOWN)
            reason = Reason.NO_RULE_MATCHED if unknown is None else Reason.UNEVALUABLE
            return Fold(Effect.DENY, reason, unknown, layer)
        waiting = waiting or pending
    if not layers:
        return Fold(Effect.DENY, Reason.NO_RULE_MATCHED)
    return Fold(Effect.ALLOW) if waiting is None else Fold(Effect.DEFER, Reason.ALLOWED, waiting)


def _first(outcomes: _Outcomes, wanted: Outcome) -> Rule | None:
    return min((rule for rule, outcome in outcomes if outcome is wanted), key=lambda rule: rule.id, default=None)


def _choice_pending(allowed: _Outcomes) -> Rule | None:
    """Return a rule that hangs on the body and may change what goes with an allowed request."""
    choosing = [
        each
        for each in _enforced(allowed)
        if each[0].addresses or (each[0].credentials, each[0].limits, each[0].inspect) != (None, None, None)
    ]
    return _first(choosing, Outcome.PENDING)


def _shadow_pending(shadow: Fold) -> Rule | None:
    return shadow.rule if shadow.effect is Effect.DEFER else None
