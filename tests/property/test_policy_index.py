"""Properties of patterns and of the index: one pattern, many patterns and a plain definition agree."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from property import policy_oracle
from property.policy_strategies import policy
from seamgate.flow import Guest, Target
from seamgate.policy.index import HostIndex, find_allows, find_denies
from seamgate.policy.meeting import globs_meet, hosts_meet, paths_meet
from seamgate.policy.patterns import denies_path, parse_glob, parse_host, parse_path

WORK = settings(max_examples=400, deadline=None)
GUEST = Guest("g", {"team": "red"})

segments = st.sampled_from(["a", "b", "ab", "A", "*", "**", "a*", "*b", "a*b", "*a*", "a%2Fb", "%40", "x%20y"])
path_patterns = st.lists(segments, max_size=4).map(lambda parts: "/" + "/".join(parts))
path_patterns = st.one_of(path_patterns, path_patterns.map(lambda text: text if text.endswith("/") else text + "/"))
parts = st.sampled_from(["a", "b", "ab", "aab", "A", "a%2Fb", "@", "%40", "x%20y", "B%2Fa"])
paths = st.lists(parts, max_size=5).map(lambda each: "/" + "/".join(each))
paths = st.one_of(paths, paths.map(lambda text: text if text.endswith("/") else text + "/"))
labels = st.sampled_from(["a", "b", "test", "xn--a"])
hosts = st.lists(labels, min_size=1, max_size=5).map(".".join)
host_parts = st.lists(st.one_of(labels, st.just("*")), min_size=1, max_size=4)
host_patterns = st.builds(lambda deep, each: ".".join(["**"] * deep + each), st.booleans(), host_parts) | st.just("**")
text = st.text("abAB", max_size=8)


@given(path_patterns, paths)
@WORK
def test_a_path_pattern_matches_as_defined(pattern: str, path: str) -> None:
    """Byte for byte in an allow, in any reading in a deny."""
    assert parse_path(pattern).matches(path) == policy_oracle.allow_path(pattern, path)
    assert denies_path(parse_path(pattern), path) == policy_oracle.deny_path(pattern, path)


@given(st.lists(path_patterns, min_size=1, max_size=8), paths)
@WORK
def test_the_index_finds_what_the_patterns_match(patterns: list[str], path: str) -> None:
    """Among many patterns on one host, exactly those that match are found, for allows and for denies."""
    rules = policy([{"allow": {"hosts": ["a"], "paths": [pattern]}} for pattern in patterns]).rules
    allows, denies = HostIndex(), HostIndex()
    for rule in rules:
        assert rule.match.hosts and rule.match.paths
        allows.bucket(rule.match.hosts[0]).add(rule, rule.match.paths)
        denies.bucket(rule.match.hosts[0]).add(rule, rule.match.paths[0].folded())
    target = Target("https", "a", 443)
    strict, lenient = find_allows(allows.find(target), path, GUEST), find_denies(denies.find(target), path, GUEST)
    assert set(strict) == {r for r, p in zip(rules, patterns, strict=True) if policy_oracle.allow_path(p, path)}
    assert set(lenient) == {r for r, p in zip(rules, patterns, strict=True) if policy_oracle.deny_path(p, path)}


@given(st.lists(host_patterns, min_size=1, max_size=8), hosts)
@WORK
def test_the_index_finds_the_host_patterns_that_match(patterns: list[str], host: str) -> None:
    """Among many host patterns, exactly those that match are found; the apex is never implied."""
    target = Target("https", host, 443)
    index = HostIndex()
    for pattern in patterns:
        index.bucket(parse_host(pattern))
    found = {bucket.pattern.text for bucket in index.find(target) if bucket.pattern is not None}
    assert found == {pattern for pattern in patterns if policy_oracle.host_matches(pattern, target)}
    assert all(parse_host(p).matches(host, False) == policy_oracle.host_matches(p, target) for p in patterns)


@given(host_patterns | path_patterns)
@WORK
def test_canonical_patterns_are_fixed_points(pattern: str) -> None:
    """canonical(canonical(x)) = canonical(x)."""
    parse = parse_path if pattern.startswith("/") else parse_host
    assert parse(parse(pattern).text) == parse(pattern)


@given(hosts)
@WORK
def test_case_and_trailing_dot_of_a_host_pattern_never_matter(host: str) -> None:
    """Any spelling of a name in a policy is the same name."""
    assert parse_host(host.upper() + ".") == parse_host(host)


@given(st.text("ab*", max_size=8), text)
@WORK
def test_a_glob_matches_as_defined(pattern: str, value: str) -> None:
    """A star is any run of characters, however many stars there are."""
    assert parse_glob(pattern).matches(value) == policy_oracle.glob(pattern, value)


@given(path_patterns, path_patterns, paths)
@WORK
def test_paths_that_match_both_patterns_make_them_meet(one: str, two: str, path: str) -> None:
    """The tie check never misses an overlap of paths."""
    first, second = parse_path(one), parse_path(two)
    if first.matches(path) and second.matches(path):
        assert paths_meet(first.segments, second.segments)


@given(host_patterns, host_patterns, hosts)
@WORK
def test_hosts_that_match_both_patterns_make_them_meet(one: str, two: str, host: str) -> None:
    """The tie check never misses an overlap of hosts."""
    first, second = parse_host(one), parse_host(two)
    if first.matches(host, False) and second.matches(host, False):
        assert hosts_meet(first, second)


@given(st.text("ab*", max_size=6), st.text("ab*", max_size=6), text)
@WORK
def test_values_that_match_both_globs_make_them_meet(one: str, two: str, value: str) -> None:
    """The tie check never misses an overlap of values."""
    if parse_glob(one).matches(value) and parse_glob(two).matches(value):
        assert globs_meet(parse_glob(one), parse_glob(two))
