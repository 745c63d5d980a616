"""Which hosts a set of policies could ever let a guest reach, where that is a closed list. Pure.

Called by `seamgate run` to limit the CA of one run to them. Looks at allow rules only: whoever wants to know what is
decided asks the evaluator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seamgate.policy.model import Policy, Rule
from seamgate.policy.patterns import HostPattern

MOST_HOSTS = 1000
"""Beyond so many a list is as good as open: every client reads it at every handshake."""


def closed_hosts(policies: Iterable[Policy], labels: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return domains that hold every host which a guest with these labels may be let to by https.

    A host is in one of them if it is that name or lies below it. Since a request has to be allowed by every layer, the
    shortest list of one layer is enough. None: every layer's list is open, by a pattern without a fixed end, by an
    address, or by its length. Empty: nothing can be allowed.
    """
    lists: list[tuple[str, ...]] = []
    enforced = [policy for policy in policies if not policy.audit]
    for layer in {policy.layer for policy in enforced}:
        rules = [rule for policy in enforced if policy.layer == layer for rule in policy.rules if _counts(rule, labels)]
        domains = _domains(rules)
        if domains is not None:
            lists.append(domains)
    return min(lists, key=len, default=None)


def _counts(rule: Rule, labels: Mapping[str, str]) -> bool:
    return rule.allows and not rule.audit and "https" in rule.match.schemes and rule.match.covers_guest(labels)


def _domains(rules: Iterable[Rule]) -> tuple[str, ...] | None:
    found: set[str] = set()
    for rule in rules:
        if rule.match.hosts is None:
            return None
        for pattern in rule.match.hosts:
            domain = _domain(pattern)
            if not domain:
                return None
            found.add(domain)
    # What lies below another one is covered by it.
    kept = [name for name in found if not any(name.endswith(f".{other}") for other in found)]
    return tuple(sorted(kept)) if len(kept) <= MOST_HOSTS else None


def _domain(pattern: HostPattern) -> str:
    """Return the fixed end of a pattern; "" if it has none, or is an address."""
    fixed: list[str] = []
    for label in pattern.labels:
        if label == "*":
            break
        fixed.append(label)
    return ".".join(reversed(fixed))
