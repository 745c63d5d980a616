"""What each pattern of a policy covers, for `seamgate policy check -v`: as lines for people, and for `--json`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from seamgate.policy.model import Policy, Rule
from seamgate.policy.wording import host_words, path_words


def coverage(policy: Policy) -> Iterator[dict[str, str]]:
    """Yield one entry for each pattern: file, rule, effect, key, pattern, and what it covers in words."""
    for rule in policy.rules:
        effect = "allow" if rule.allows else "deny"
        for key, pattern, words in _patterns(rule):
            place = {"file": policy.source, "rule": rule.id, "effect": effect}
            yield {**place, "key": key, "pattern": pattern, "covers": words}


def _patterns(rule: Rule) -> Iterator[tuple[str, str, str]]:
    """Yield (key, pattern, words); also of a key that is absent, which covers everything."""
    match = rule.match
    if match.hosts is None:
        yield "hosts", "", "every name and address"
    for host in match.hosts or ():
        yield "hosts", host.text, host_words(host)
    if match.paths is None and "tcp" not in match.schemes:
        yield "paths", "", "every path"
    for path in match.paths or ():
        yield "paths", path.text, path_words(path)


def coverage_lines(policy: Policy) -> Iterator[str]:
    """Yield the same for people: a line for each rule, and under it one for each pattern."""
    for rule in policy.rules:
        yield f"    {rule.id}  {click.style('allow' if rule.allows else 'deny', dim=True)}"
        found = list(_patterns(rule))
        width = max([len(pattern) for _, pattern, _ in found], default=0)
        for key, pattern, words in found:
            yield f"      {key}  {pattern or '-':{width}}  {click.style(words, dim=True)}"
