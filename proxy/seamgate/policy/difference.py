"""How two sets of policies differ: rule by rule in what they say, and in what becomes of requests.

The first is read from the rules: added, removed, or changed, and whether a change lets more or less through (an allow
that covers more widens, a deny that covers more narrows). The second is tried: requests from tests and from the changed
rules themselves (`samples`) are judged by both. Called by `policy diff`. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from seamgate.policy.conditions import Condition, JsonCondition, ValueCondition, WhenCondition
from seamgate.policy.model import Exemption, Match, Policy, Rule
from seamgate.policy.patterns import Glob
from seamgate.policy.samples import covers_hosts, covers_paths


class Effect(StrEnum):
    """What a change does to what gets through."""

    WIDENED = "widened"
    NARROWED = "narrowed"
    CHANGED = "changed"
    """Both, or neither can be told from the text."""


class RuleChange(msgspec.Struct, frozen=True):
    """What happened to one rule.

    Attributes:
        rule: its id.
        what: "added", "removed", "renamed" or "changed".
        effect: on what gets through, all in all.
        widens: whether something in it lets more through, or may, whatever else it does.
        details: sentences, one for each thing that differs.
        old, new: the rule before and after; None where there is none.
    """

    rule: str
    what: str
    effect: Effect
    details: tuple[str, ...]
    old: Rule | None
    new: Rule | None
    widens: bool = False


def rule_changes(old: Sequence[Policy], new: Sequence[Policy]) -> list[RuleChange]:
    """Compare rules by their ids; one that only got another id is renamed."""
    before = {rule.id: rule for policy in old for rule in policy.rules}
    after = {rule.id: rule for policy in new for rule in policy.rules}
    layers = _layers(old)
    gone = [rule for rule in before.values() if rule.id not in after]
    come = [rule for rule in after.values() if rule.id not in before]
    changes: list[RuleChange] = []
    for rule in gone:
        twin = next((each for each in come if not list(_differences(rule, each))), None)
        if twin is not None:
            come.remove(twin)
            changes.append(RuleChange(rule.id, "renamed", Effect.CHANGED, (f"now {twin.id}",), rule, twin))
        else:
            effect = Effect.NARROWED if rule.allows else Effect.WIDENED
            changes.append(RuleChange(rule.id, "removed", effect, (_kind(rule),), rule, None, not rule.allows))
    for rule in come:
        # The first allows of a layer that is asked from now on let nothing through that the others did not.
        widens = rule.allows and (not layers or str(rule.layer) in layers)
        effect = Effect.WIDENED if widens else Effect.NARROWED
        changes.append(RuleChange(rule.id, "added", effect, (_kind(rule),), None, rule, widens))
    for rule in before.values():
        other = after.get(rule.id)
        found = list(_differences(rule, other)) if other is not None else []
        if other is not None and found:
            effects, texts = zip(*found, strict=True)
            widens = _may_widen(rule, other, effects)
            changes.append(RuleChange(rule.id, "changed", _summed(effects), texts, rule, other, widens))
    return sorted(changes, key=lambda each: each.rule)


def layer_changes(old: Sequence[Policy], new: Sequence[Policy]) -> list[tuple[Effect, str]]:
    """Return what happened to layers: one more narrows everything, one less widens."""
    before, after = _layers(old), _layers(new)
    more = [(Effect.NARROWED, f"layer {layer} must allow everything too") for layer in sorted(after - before)]
    return more + [(Effect.WIDENED, f"layer {layer} is asked no more") for layer in sorted(before - after)]


def _layers(policies: Sequence[Policy]) -> set[str]:
    """Return the layers that are enforced."""
    return {str(policy.layer) for policy in policies if not policy.audit}


def _kind(rule: Rule) -> str:
    return f"{'allow' if rule.allows else 'deny'}{' (audit mode)' if rule.audit else ''}"


def _summed(effects: Iterable[Effect]) -> Effect:
    found = set(effects)
    return found.pop() if len(found) == 1 else Effect.CHANGED


def _may_widen(old: Rule, new: Rule, effects: Iterable[Effect]) -> bool:
    """Whether the text lets more in, or leaves that open in anything but CEL, of which requests tell what it does."""
    found = set(effects)
    if Effect.WIDENED in found or Effect.CHANGED not in found:
        return Effect.WIDENED in found
    return any(effect is not Effect.NARROWED for effect, _ in _differences(_without_cel(old), _without_cel(new)))


def _without_cel(rule: Rule) -> Rule:
    rest = tuple(each for each in rule.match.conditions if not isinstance(each, WhenCondition))
    return msgspec.structs.replace(rule, match=msgspec.structs.replace(rule.match, conditions=rest))


_Difference = tuple[Effect, str]


def _differences(old: Rule, new: Rule) -> Iterator[_Difference]:
    """Yield (effect, sentence) for each thing that differs and counts."""
    if old.allows is not new.allows:
        yield (Effect.WIDENED if new.allows else Effect.NARROWED), f"{_kind(old)} became {_kind(new)}"
        return
    mine, theirs = old.match, new.match
    for each in _DIMENSIONS:
        before, after = each.text(mine), each.text(theirs)
        if before != after:
            effect = _by_cover(each.covers(theirs, mine), each.covers(mine, theirs), old.allows)
            yield effect, _moved(each.name, before, after)
    yield from _exemption_differences(old, new)
    yield from _time_and_mode(old, new)
    yield from _choices(old, new)


def _by_cover(wider: bool, narrower: bool, allows: bool) -> Effect:
    """From whether the new covers the old and the other way round to what that does."""
    if wider is narrower:
        return Effect.CHANGED
    return Effect.WIDENED if wider is allows else Effect.NARROWED


def _moved(name: str, before: tuple[str, ...], after: tuple[str, ...]) -> str:
    gone = [f"- {each}" for each in before if each not in after]
    come = [f"+ {each}" for each in after if each not in before]
    return f"{name}: {', '.join([*gone, *come])}"


def _some(values: Iterable[Any] | None, every: str) -> tuple[str, ...]:
    return (every,) if values is None else tuple(sorted(map(str, values)))


def _ranges(match: Match) -> tuple[tuple[int, int], ...]:
    if match.ports is not None:
        return match.ports
    if not match.default_ports:
        return ((1, 65535),)
    return tuple((443, 443) if scheme == "https" else (80, 80) for scheme in sorted(match.schemes))


def _covers_ports(wide: Match, narrow: Match) -> bool:
    return all(any(a <= low and high <= b for a, b in _ranges(wide)) for low, high in _ranges(narrow))


def _covers_set(wide: frozenset[str] | None, narrow: frozenset[str] | None) -> bool:
    return wide is None or (narrow is not None and narrow <= wide)


def _covers_guests(wide: Match, narrow: Match) -> bool:
    """Whether whoever the second covers is covered by the first: each of its demands is made by the second too."""
    demands = dict(narrow.guests)
    return all(name in demands and _covers_set(values, demands[name]) for name, values in wide.guests)


def _guest_texts(match: Match) -> tuple[str, ...]:
    return tuple(f"{name}={'|'.join(sorted(values)) if values else '*'}" for name, values in sorted(match.guests))


def condition_text(condition: Condition) -> str:
    """Return a condition as written, whole."""
    return f"when {condition.expression.text}" if isinstance(condition, WhenCondition) else condition.label


def _condition_texts(match: Match) -> tuple[str, ...]:
    return tuple(sorted(map(condition_text, match.conditions)))


def _covers_conditions(wide: Match, narrow: Match) -> bool:
    """Whether what the second asks for meets each condition of the first, as far as their texts tell."""
    return all(any(_implies(each, asked) for each in narrow.conditions) for asked in wide.conditions)


def _implies(narrow: Condition, wide: Condition) -> bool:
    """Whether whatever meets the first condition meets the second: the same text, or fewer of the same values."""
    if condition_text(narrow) == condition_text(wide):
        return True
    if isinstance(narrow, ValueCondition) and isinstance(wide, ValueCondition):
        if (narrow.kind, narrow.name) != (wide.kind, wide.name) or narrow.globs is None:
            return False
        # With any value at all it is there.
        return wide.present if wide.globs is None else _among(narrow.globs, wide.globs)
    if isinstance(narrow, JsonCondition) and isinstance(wide, JsonCondition):
        return narrow.path == wide.path and _among(narrow.values, wide.values)
    return False


def _among(narrow: tuple[Any, ...], wide: tuple[Any, ...]) -> bool:
    """Whether each value is one of the others, or text that one of them covers."""
    return all(any(_is_one_of(value, other) for other in wide) for value in narrow)


def _is_one_of(value: Any, other: Any) -> bool:
    if isinstance(value, Glob) and isinstance(other, Glob):
        return value.text == other.text or other.text == "*" or (len(value.pieces) == 1 and other.matches(value.text))
    return type(value) is type(other) and value == other


class _Dimension(msgspec.Struct, frozen=True):
    """One thing that a match restricts: whether one match covers another in it, and its text."""

    name: str
    covers: Callable[[Match, Match], bool]
    text: Callable[[Match], tuple[str, ...]]


_DIMENSIONS = (
    _Dimension(
        "hosts",
        lambda wide, narrow: covers_hosts(wide.hosts, narrow.hosts),
        lambda match: _some(None if match.hosts is None else [each.text for each in match.hosts], "every"),
    ),
    _Dimension("schemes", lambda wide, narrow: narrow.schemes <= wide.schemes, lambda match: _some(match.schemes, "")),
    _Dimension(
        "ports", _covers_ports, lambda match: tuple(f"{a}-{b}" if a != b else str(a) for a, b in _ranges(match))
    ),
    _Dimension(
        "methods",
        lambda wide, narrow: _covers_set(wide.methods, narrow.methods),
        lambda match: _some(match.methods, "every"),
    ),
    _Dimension(
        "paths",
        lambda wide, narrow: covers_paths(wide.paths, narrow.paths),
        lambda match: _some(None if match.paths is None else [each.text for each in match.paths], "every"),
    ),
    _Dimension("guests", _covers_guests, lambda match: _guest_texts(match) or ("every",)),
    _Dimension("conditions", _covers_conditions, _condition_texts),
)


def _exemption_text(exemption: Exemption) -> str:
    match = exemption.match
    parts = [f"{each.name} {'|'.join(each.text(match))}" for each in _DIMENSIONS if each.text(match)]
    return f"{'; '.join(parts)}; until {exemption.expires_at:g}"


def _exemption_differences(old: Rule, new: Rule) -> Iterator[_Difference]:
    before, after = ({_exemption_text(each) for each in rule.exemptions} for rule in (old, new))
    if after - before:
        yield Effect.WIDENED, f"{len(after - before)} exception(s) more or other"
    if before - after:
        yield Effect.NARROWED, f"{len(before - after)} exception(s) less or other"


def _time_and_mode(old: Rule, new: Rule) -> Iterator[_Difference]:
    if old.expires_at != new.expires_at:
        longer = new.expires_at > old.expires_at
        yield (
            (Effect.WIDENED if longer is new.allows else Effect.NARROWED),
            f"expires {'later' if longer else 'earlier'}",
        )
    if old.audit is not new.audit:
        effect = Effect.NARROWED if new.audit is new.allows else Effect.WIDENED
        yield effect, "is recorded only" if new.audit else "is enforced"
    if old.layer is not new.layer:
        yield Effect.CHANGED, f"layer {old.layer} became {new.layer}"
    for name in ("encoded_slash", "upgrade"):
        mine, theirs = getattr(old, name), getattr(new, name)
        if mine != theirs:
            effect = Effect.WIDENED if not mine else Effect.NARROWED if not theirs else Effect.CHANGED
            yield effect, f"{name}: {mine or 'none'} became {theirs or 'none'}"


_CHOSEN = (("addresses", "addresses", True), ("inspect", "inspect", False), ("credentials", "credential", True))
"""Fields of a rule, their name for people, and whether more of them lets more through."""


def _choices(old: Rule, new: Rule) -> Iterator[_Difference]:
    """Yield what goes with a request that is allowed: addresses, inspectors, limits, credentials."""
    # One in another's place widens: what the new one opens was closed, what the lost inspector looked at is passed on.
    for name, shown, more_is_wider in _CHOSEN:
        mine, theirs = set(getattr(old, name) or ()), set(getattr(new, name) or ())
        if mine != theirs:
            wider = theirs - mine if more_is_wider else mine - theirs
            sides = (tuple(sorted(each)) or ("none",) for each in (mine, theirs))
            yield (Effect.WIDENED if wider else Effect.NARROWED), _moved(shown, *sides)
    for name in ("request_body_bytes", "response_body_bytes", "requests"):
        before, after = (getattr(rule.limits, name, None) for rule in (old, new))
        if before != after:
            yield _of_limit(before, after), f"limit {name}: {_limit_text(before)} became {_limit_text(after)}"


def _limit_text(limit: Any) -> str:
    if limit is None:
        return "none"
    return f"{limit[0]} in {limit[1]:g} s" if isinstance(limit, tuple) else str(limit)


def _of_limit(before: Any, after: Any) -> Effect:
    """Return what it does: more at once widens, as more in the long run does."""

    def amounts(limit: Any) -> tuple[float, float]:
        if limit is None:
            return math.inf, math.inf
        return (limit[0], limit[0] / limit[1]) if isinstance(limit, tuple) else (limit, limit)

    wider = any(new > old for old, new in zip(amounts(before), amounts(after), strict=True))
    return Effect.WIDENED if wider else Effect.NARROWED
