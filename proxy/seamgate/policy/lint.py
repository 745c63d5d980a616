"""Looks for what is legal but probably not meant: too broad, without effect, soon over.

Findings are sentences with a place and a stable code; errors are not found here but refused at load. Called by
`policy lint`. No I/O; the caller brings the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from seamgate.policy.methods import unknown_methods
from seamgate.policy.model import SCHEMES, Match, Policy, Rule
from seamgate.policy.patterns import DEEP, HostPattern, PathPattern, denies_path, literal_tail

if TYPE_CHECKING:
    from seamgate.policy.suffixes import PublicSuffixes

GetSuffixes: TypeAlias = "Callable[[], PublicSuffixes]"
"""Gives the public suffixes, which take a while to read."""
SOON_S = 30 * 86400.0
MAX_PAIRS = 1_000_000
MOST_TCP_PORTS = 16
"""Of one rule that lets streams pass unread: more is hardly a list of what is used."""


class Finding(msgspec.Struct, frozen=True):
    """Something to look at.

    Attributes:
        code: stable.
        severity: "warning" or "note".
        message: what, and what to do.
        source, line: where.
        rule: id, or "".
    """

    code: str
    severity: str
    message: str
    source: str
    line: int
    rule: str = ""


def lint(policies: Iterable[Policy], now: float, suffixes: GetSuffixes) -> list[Finding]:
    """Return what was found, by file and line.

    Args:
        policies: that are in force together.
        now: Unix seconds.
        suffixes: gives the public suffixes; called only if a pattern has to be held against them.
    """
    policies = tuple(policies)
    rules = [rule for policy in policies for rule in policy.rules]
    findings = [finding for policy in policies for finding in _policy_findings(policy)]
    findings += [finding for rule in rules for finding in _rule_findings(rule, now, suffixes)]
    findings += [*_repeated(rules), *_shadowed(rules, now)]
    return sorted(findings, key=lambda each: (each.source, each.line, each.code))


def _policy_findings(policy: Policy) -> Iterator[Finding]:
    if not any(rule.allows and not rule.audit for rule in policy.rules) and not policy.audit:
        message = f"the file allows nothing: unless another file of layer {policy.layer} does, everything is denied"
        yield Finding("allows-nothing", "note", message, policy.source, 1)
    if not policy.owner:
        yield Finding("no-owner", "note", "the file has no owner: say whom to ask", policy.source, 1)


def _finding(rule: Rule, code: str, message: str, severity: str = "warning") -> Finding:
    return Finding(code, severity, message, rule.source, rule.line, rule.id)


def _rule_findings(rule: Rule, now: float, suffixes: GetSuffixes) -> Iterator[Finding]:
    if rule.expires_at <= now:
        ends = "it allows nothing any more" if rule.allows else "its ban is lifted"
        yield _finding(rule, "expired", f"expired: {ends}; renew or remove it")
    elif rule.expires_at <= now + SOON_S:
        days = int((rule.expires_at - now) // 86400)
        yield _finding(rule, "expires-soon", f"expires in {days} days", "note")
    if not rule.reason:
        yield _finding(rule, "no-reason", "has no reason: the next reader will wonder", "note")
    for match in (rule.match, *(each.match for each in rule.exemptions)):
        for message in unknown_methods(match.methods or ()):
            yield _finding(rule, "unknown-method", message)
    if rule.allows:
        yield from _allow_findings(rule, suffixes)


def _allow_findings(rule: Rule, suffixes: GetSuffixes) -> Iterator[Finding]:
    match = rule.match
    for key in ("hosts", "methods", "paths", "schemes", "ports"):
        value = getattr(match, key)
        if value is not None and not value:
            yield _finding(rule, "empty-list", f"{key} is empty, so the rule allows nothing")
    for host in match.hosts or ():
        yield from _host_findings(rule, host, suffixes)
    if "http" in match.schemes and rule.credentials:
        yield _finding(rule, "credential-over-http", "puts a credential in over plain http: drop http from schemes")
    if rule.credentials and match.methods is None:
        yield _finding(rule, "credential-any-method", "puts a credential in for every method: list the methods")
    if rule.credentials and (match.paths is None or any(path.everything for path in match.paths)):
        yield _finding(rule, "credential-any-path", "puts a credential in on every path: list the paths", "note")
    if "tcp" in match.schemes:
        yield from _tcp_findings(rule)
    if "metadata" in rule.addresses or "link-local" in rule.addresses:
        yield _finding(
            rule, "metadata", "lets its hosts resolve to metadata services, which hand out cloud credentials"
        )


def _tcp_findings(rule: Rule) -> Iterator[Finding]:
    ports = sum(high - low + 1 for low, high in rule.match.ports or ())
    if ports > MOST_TCP_PORTS:
        yield _finding(rule, "tcp-ports", f"lets {ports} ports pass unread: name those that are used")
    if any(low <= port <= high for low, high in rule.match.ports or () for port in (80, 443)):
        yield _finding(rule, "tcp-web", "lets a port of the web pass unread: nothing of its requests is judged", "note")


def _host_findings(rule: Rule, host: HostPattern, suffixes: GetSuffixes) -> Iterator[Finding]:
    if not host.wild:
        return
    if host.text == "*":
        yield _finding(rule, "single-label", "the host * covers names of one label only; every name is **")
    elif all(label == "*" for label in host.labels):
        yield _finding(rule, "any-host", f"the host {host.text} covers names of anybody")
    elif host.labels[1:].count("*") == len(host.labels) - 1:
        yield _finding(rule, "top-level", f"the host {host.text} covers a whole top-level domain")
    else:
        yield from _suffix_findings(rule, host, suffixes)
    if rule.credentials:
        yield _finding(rule, "credential-wildcard", f"puts a credential in on {host.text}: name the hosts")


def covered_suffixes(policies: Iterable[Policy], suffixes: GetSuffixes) -> list[Finding]:
    """Return the findings about public suffixes alone, by file and line: what `policy check` warns of."""
    rules = [rule for policy in policies for rule in policy.rules if rule.allows]
    found = [
        each for rule in rules for host in rule.match.hosts or () for each in _suffix_findings(rule, host, suffixes)
    ]
    return sorted(found, key=lambda each: (each.source, each.line, each.code))


def _suffix_findings(rule: Rule, host: HostPattern, suffixes: GetSuffixes) -> Iterator[Finding]:
    if host.wild and literal_tail(host):
        suffix = suffixes().covered_by(host)
        if suffix:
            message = f"the host {host.text} covers names that anybody can get under {suffix}: name the hosts"
            yield _finding(rule, "public-suffix", message)


def _repeated(rules: list[Rule]) -> Iterator[Finding]:
    seen: dict[object, Rule] = {}
    for rule in rules:
        chooses = (rule.credentials, rule.limits, rule.upgrade)
        key = (rule.allows, rule.layer, rule.audit, rule.match, rule.exemptions, chooses)
        other = seen.setdefault(key, rule)
        if other is not rule:
            yield _finding(rule, "repeated", f"says the same as {other.id} ({other.place})")


def _shadowed(rules: list[Rule], now: float) -> Iterator[Finding]:
    """Allows that one deny covers whole."""
    bans = [rule for rule in rules if not rule.allows and not rule.audit and rule.expires_at > now]
    bans = [ban for ban in bans if not ban.match.conditions and not ban.exemptions and not ban.match.guests]
    budget = MAX_PAIRS
    for rule in rules:
        if not rule.allows or not rule.match.hosts:
            continue
        for ban in bans:
            budget -= 1
            if budget < 0:
                return
            if _within(rule.match, ban.match):
                yield _finding(rule, "shadowed", f"is denied whole by {ban.id} ({ban.place}): it allows nothing")
                break


def _within(inner: Match, outer: Match) -> bool:
    hosts = outer.hosts is None or all(any(_host_within(i, o) for o in outer.hosts) for i in inner.hosts or ())
    methods = outer.methods is None or (inner.methods is not None and inner.methods <= outer.methods)
    paths = outer.paths is None or (
        inner.paths is not None and all(any(_path_within(i, o) for o in outer.paths) for i in inner.paths)
    )
    ports = outer.ports is None or outer.ports == inner.ports
    if "tcp" in inner.schemes:  # what is in such a stream can't be told: a ban of anything there is one of it
        return hosts and ports and "tcp" in outer.schemes
    return hosts and methods and paths and ports and (inner.schemes <= outer.schemes or outer.schemes == SCHEMES)


def _host_within(inner: HostPattern, outer: HostPattern) -> bool:
    if not inner.wild:
        return outer.matches(inner.text, inner.is_address)
    if inner.text == outer.text:
        return True
    deeper = len(inner.labels) + inner.deep > len(outer.labels)
    return outer.deep and deeper and inner.labels[: len(outer.labels)] == outer.labels


def _path_within(inner: PathPattern, outer: PathPattern) -> bool:
    if not inner.wild:
        return denies_path(outer, inner.text)
    if inner.text == outer.text:
        return True
    front = outer.segments[:-1]
    return outer.segments[-1] is DEEP and DEEP not in front and inner.segments[: len(front)] == front
