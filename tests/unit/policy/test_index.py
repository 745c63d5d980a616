"""The index: flat in the number of rules, and bounded where neighbours are looked for."""

from __future__ import annotations

from seamgate.flow import Guest, Target
from seamgate.policy.index import HostIndex, RuleSet, find_allows
from unit.policy.ask import GUEST, load

TARGET = Target("https", "a.test", 443)


def test_rules_of_other_guests_are_not_even_looked_at() -> None:
    """A set is split by one label of each rule."""
    rules = load(
        "\n".join(f"- id: r{i}\n  allow: {{hosts: [a.test]}}\n  guests: {{team: t{i}}}" for i in range(50))
    ).rules
    found = RuleSet()
    for rule in rules:
        found.add(rule)
    assert [rule.id for rule in found.of({"team": "t7", "other": "x"})] == ["r7"]
    assert found.of({}) == []


def test_a_rule_with_many_patterns_is_found_once() -> None:
    """However many of its patterns match."""
    (rule,) = load("- id: r\n  allow: {hosts: [a.test, '*.test', '**'], paths: ['/**', '/a/*', /a/b]}").rules
    index = HostIndex()
    for host in rule.match.hosts or ():
        index.bucket(host).add(rule, rule.match.paths)
    assert list(find_allows(index.find(TARGET), "/a/b", GUEST)) == [rule]


def test_neighbours_are_few_and_near() -> None:
    """Among thousands of paths, those that share the most come, in bounded number."""
    rules = load(
        "\n".join(f"- id: r{i}\n  allow: {{hosts: [a.test], paths: [/v1/n{i:05}/x]}}" for i in range(2000))
    ).rules
    index = HostIndex()
    for rule in rules:
        index.bucket((rule.match.hosts or ())[0]).add(rule, rule.match.paths)
    (bucket,) = (each for each in index.find(TARGET) if each.pattern is not None)
    near = [rule.id for rule in bucket.near("v1/n01000/y", 8)]
    assert "r1000" in near
    assert len(near) <= 8


def test_a_walk_through_many_wildcards_stays_small() -> None:
    """Patterns of many `**` against a long path: the ways are merged, not multiplied."""
    (rule,) = load(f"- id: r\n  allow: {{hosts: [a.test], paths: ['{'/**' * 30}/end']}}").rules
    index = HostIndex()
    index.bucket((rule.match.hosts or ())[0]).add(rule, rule.match.paths)
    path = "/x" * 2000
    assert find_allows(index.find(TARGET), path, Guest("g")) == {}
    assert list(find_allows(index.find(TARGET), path + "/end", Guest("g"))) == [rule]
