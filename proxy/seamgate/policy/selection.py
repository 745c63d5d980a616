"""Most-specific-wins, for what does not authorise: which of the rules that allow a request chooses what goes with it.

The credential comes from the most specific rule that names one, over all layers. Limits and inspectors come from the
most specific rule of each layer and hold together, so that a lower layer can't loosen them. Addresses beyond public
ones must be named in every layer. Two equally specific rules that disagree are an error at load where that can be
seen (`check_ties`), else a denial at run time: nothing is ever chosen by position.

Called by `evaluation`. No I/O.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

import msgspec

from seamgate.errors import ConfigError
from seamgate.flow import Target
from seamgate.policy.conditions import Condition, JsonCondition, ValueCondition, WhenCondition
from seamgate.policy.meeting import globs_meet, hosts_meet, paths_meet
from seamgate.policy.model import Layer, Match, Rule
from seamgate.policy.patterns import Glob, HostPattern, PathPattern, Rank
from seamgate.verdict import Limits

T = TypeVar("T")
MAX_PAIRS = 500_000
"""Pairs of rules compared at load. Beyond it (thousands of alike rules) the check at run time stands alone."""


class Rate(msgspec.Struct, frozen=True):
    """A rate limit to count against: the rule's id, how many requests, in how many seconds."""

    rule: str
    count: int
    window_s: float


class Selection(msgspec.Struct, frozen=True):
    """What the allowing rules choose together.

    Attributes:
        rule: the most specific of them.
        credentials, inspect, addresses, limits: as in `seamgate.verdict.Verdict`.
        rates: each layer's rate limit.
        tied: two rules that disagree, or None.
    """

    rule: Rule
    credentials: tuple[str, ...] = ()
    inspect: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    limits: Limits | None = None
    rates: tuple[Rate, ...] = ()
    tied: tuple[Rule, Rule] | None = None


class _Tied(Exception):
    def __init__(self, first: Rule, second: Rule) -> None:
        super().__init__()
        self.rules = (first, second)


def select(rules: Sequence[Rule], target: Target, path: str, layers: Iterable[Layer]) -> Selection:
    """Choose.

    Args:
        rules: at least one; all allow the request.
        target: of the request.
        path: canonical.
        layers: those that had to allow it.
    """
    if len(rules) == 1:
        rule = rules[0]
        rates = _rates([rule])
        limits = rule.limits
        return Selection(rule, rule.credentials or (), rule.inspect or (), rule.addresses, limits, rates)
    ranked = sorted(((_rank(rule, target, path), rule) for rule in rules), key=lambda each: each[1].id)
    by_layer = [[each for each in ranked if each[1].layer is layer] for layer in layers]
    highest = max(rank for rank, _ in ranked)
    best = next(rule for rank, rule in ranked if rank == highest)
    try:
        credential = _most_specific(ranked, lambda rule: rule.credentials)
        limited = [top for each in by_layer if (top := _most_specific(each, lambda rule: rule.limits))]
        inspecting = [top for each in by_layer if (top := _most_specific(each, lambda rule: rule.inspect))]
    except _Tied as tied:
        return Selection(best, tied=tied.rules)
    return Selection(
        best,
        (credential.credentials or ()) if credential else (),
        tuple(dict.fromkeys(name for rule in inspecting for name in rule.inspect or ())),
        _common_addresses([[text for _, rule in each for text in rule.addresses] for each in by_layer]),
        _strictest([rule.limits for rule in limited if rule.limits is not None]),
        _rates(limited),
    )


def _rank(rule: Rule, target: Target, path: str) -> tuple[Rank, ...]:
    match = rule.match
    hosts = [pattern.rank for pattern in match.hosts or () if pattern.matches(target.host, target.is_address)]
    paths = [pattern.rank for pattern in match.paths or () if pattern.matches(path)]
    return _total_rank(match, max(hosts, default=()), max(paths, default=()))


def _total_rank(match: Match, host: Rank, path: Rank) -> tuple[Rank, ...]:
    methods = (0,) if match.methods is None else (1, -len(match.methods))
    return host, _ports_rank(match), path, methods, (len(match.guests), len(match.conditions))


def _ports_rank(match: Match) -> Rank:
    """Fewer ports before more; those that are written before the default."""
    if match.ports is None:
        return -1, 0
    return -sum(high - low + 1 for low, high in match.ports), 1


def _most_specific(ranked: list[tuple[tuple[Rank, ...], Rule]], value: Callable[[Rule], T | None]) -> Rule | None:
    having = [(rank, rule) for rank, rule in ranked if value(rule) is not None]
    if not having:
        return None
    top = max(rank for rank, _ in having)
    first, *others = (rule for rank, rule in having if rank == top)
    for other in others:
        if value(other) != value(first):
            raise _Tied(first, other)
    return first


def _rates(rules: list[Rule]) -> tuple[Rate, ...]:
    return tuple(Rate(rule.id, *rule.limits.requests) for rule in rules if rule.limits and rule.limits.requests)


def _strictest(limits: list[Limits]) -> Limits | None:
    if len(limits) < 2:
        return limits[0] if limits else None
    requests = [each.requests for each in limits if each.requests is not None]
    return Limits(
        request_body_bytes=_least(each.request_body_bytes for each in limits),
        response_body_bytes=_least(each.response_body_bytes for each in limits),
        requests=min(requests, key=lambda rate: rate[0] / rate[1], default=None),
    )


def _least(sizes: Iterable[int | None]) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _common_addresses(layers: list[list[str]]) -> tuple[str, ...]:
    """Return what every layer names: the same class or network, or a network inside one of the others' networks."""
    common = layers[0] if layers else []
    for texts in layers[1:]:
        common = [*_covered(common, texts), *_covered(texts, common)]
    return tuple(sorted(set(common)))


def _covered(texts: list[str], by: list[str]) -> list[str]:
    return [text for text in texts if any(_inside(text, each) for each in by)]


def _inside(text: str, other: str) -> bool:
    if text == other or "/" not in text or "/" not in other:
        return text == other
    inner, outer = ipaddress.ip_network(text), ipaddress.ip_network(other)
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)


def check_ties(rules: Iterable[Rule]) -> None:
    """Refuse two rules that may allow one request, are equally specific, and choose differently.

    Pairs that only a `when` could tell apart are left to the check at run time.

    Raises:
        ConfigError: at the later rule, naming both.
    """
    groups: dict[object, list[tuple[Rule, HostPattern, PathPattern | None]]] = {}
    for rule in rules:
        if not rule.allows or rule.audit or (rule.credentials, rule.limits, rule.inspect) == (None, None, None):
            continue
        for host in rule.match.hosts or ():
            for path in rule.match.paths if rule.match.paths is not None else (None,):
                # Equal rank implies literal fronts of equal length, so overlap implies equal fronts.
                fronts = (_host_front(host), _path_front(path))
                rank = _total_rank(rule.match, host.rank, path.rank if path else ())
                groups.setdefault((rank, fronts), []).append((rule, host, path))
    budget = MAX_PAIRS
    for group in groups.values():
        for members in _by_guest(group):
            if len({(rule.credentials, rule.limits, rule.inspect) for rule, _, _ in members}) < 2:
                continue
            for first, second in combinations(members, 2):
                budget -= 1
                if budget < 0:
                    return
                _check_pair(first, second)


_Entry = tuple[Rule, HostPattern, PathPattern | None]


def _by_guest(group: list[_Entry]) -> Iterable[list[_Entry]]:
    """Split a group by the guests where no two parts can share one: all ask for single values of the same labels."""
    names = {tuple(name for name, _ in rule.match.guests) for rule, _, _ in group}
    values = [values for rule, _, _ in group for _, values in rule.match.guests]
    if len(names) > 1 or any(each is None or len(each) > 1 for each in values):
        return [group]
    parts: dict[object, list[_Entry]] = {}
    for entry in group:
        parts.setdefault(entry[0].match.guests, []).append(entry)
    return parts.values()


def _check_pair(first: _Entry, second: _Entry) -> None:
    (one, one_host, one_path), (two, two_host, two_path) = first, second
    if one is two or not _disagree(one, two) or not _may_meet(one.match, two.match):
        return
    if not hosts_meet(one_host, two_host):
        return
    if one_path is not None and two_path is not None and not paths_meet(one_path.segments, two_path.segments):
        return
    what = _disagree(one, two)
    raise ConfigError(
        f"rules {one.id!r} ({one.place}) and {two.id!r} ({two.place}) are equally specific and choose different {what}"
        ": make one of them narrower, or let them agree",
        source=two.source,
        line=two.line,
        column=two.column,
    )


def _disagree(one: Rule, two: Rule) -> str:
    if one.credentials is not None and two.credentials is not None and one.credentials != two.credentials:
        return "credentials"
    if one.layer is not two.layer:
        return ""  # limits and inspectors of both layers hold
    if one.limits is not None and two.limits is not None and one.limits != two.limits:
        return "limits"
    if one.inspect is not None and two.inspect is not None and one.inspect != two.inspect:
        return "inspectors"
    return ""


def _may_meet(one: Match, two: Match) -> bool:
    """Whether some request may be covered by both, as far as can be told without evaluating CEL."""
    if not one.schemes & two.schemes or not _ports_meet(one, two):
        return False
    if one.methods is not None and two.methods is not None and not one.methods & two.methods:
        return False
    theirs = dict(two.guests)
    for name, values in one.guests:
        other = theirs.get(name)
        if values is not None and other is not None and not values & other:
            return False
    if _whens(one) != _whens(two):
        return False
    return not any(_exclude(mine, other) for mine in one.conditions for other in two.conditions)


def _whens(match: Match) -> set[str]:
    return {each.expression.text for each in match.conditions if isinstance(each, WhenCondition)}


def _ports_meet(one: Match, two: Match) -> bool:
    if one.ports is None or two.ports is None:
        # A default port against a list: assume that they meet if the list has it.
        ranges = one.ports if one.ports is not None else two.ports
        return ranges is None or any(low <= port <= high for low, high in ranges for port in (80, 443))
    return any(low <= high2 and low2 <= high for low, high in one.ports for low2, high2 in two.ports)


def _exclude(one: Condition, two: Condition) -> bool:
    """Whether no request can meet both: they ask for different literal values of the same thing."""
    if isinstance(one, ValueCondition) and isinstance(two, ValueCondition):
        if (one.kind, one.name) != (two.kind, two.name):
            return False
        if one.globs is None or two.globs is None:
            return one.present != two.present  # one that has values is one that must be present
        return _globs_exclude(one.globs, two.globs)
    if isinstance(one, JsonCondition) and isinstance(two, JsonCondition) and one.path == two.path:
        mine = [each for each in one.values if isinstance(each, Glob)]
        theirs = [each for each in two.values if isinstance(each, Glob)]
        if len(mine) == len(one.values) and len(theirs) == len(two.values):
            return _globs_exclude(mine, theirs)
    return False


def _globs_exclude(one: Sequence[Glob], two: Sequence[Glob]) -> bool:
    return not any(globs_meet(mine, other) for mine in one for other in two)


def _host_front(host: HostPattern) -> tuple[str, ...]:
    if host.is_address:
        return (host.text,)
    return host.labels[: host.labels.index("*")] if "*" in host.labels else host.labels


def _path_front(path: PathPattern | None) -> tuple[str, ...]:
    if path is None:
        return ()
    front: list[str] = []
    for segment in path.segments:
        if len(segment.pieces) != 1:
            break
        front.append(segment.pieces[0])
    return tuple(front)
