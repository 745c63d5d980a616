"""The policies that `run --allow` stands for."""

from __future__ import annotations

import pytest

from seamgate.cli.allow import allow_hosts
from seamgate.errors import ConfigError
from seamgate.policy.loader import parse_policy


def test_each_host_is_a_rule() -> None:
    """https to that host, on its port or the default one; twice the same is once."""
    policy = parse_policy(allow_hosts(["a.example", "b.example:8443", "*.c.example", "[::1]:444", "a.example"]), "run")
    assert [rule.id for rule in policy.rules] == ["allow-1", "allow-2", "allow-3", "allow-4"]
    assert [[host.text for host in rule.match.hosts or ()] for rule in policy.rules] == [
        ["a.example"], ["b.example"], ["*.c.example"], ["::1"],
    ]  # fmt: skip
    assert [rule.match.ports for rule in policy.rules] == [None, ((8443, 8443),), None, ((444, 444),)]
    assert {scheme for rule in policy.rules for scheme in rule.match.schemes} == {"https"}


def test_nothing_allows_nothing() -> None:
    """No --allow is a policy that denies all, not the absence of a policy."""
    assert parse_policy(allow_hosts([]), "run").rules == ()


@pytest.mark.parametrize("text", ["https://a.example", "a.example/b", "a b", "", "a.example:0", "a.example:x", 'a"b'])
def test_what_is_no_host_is_refused(text: str) -> None:
    """With the text that was given, so that nobody gets into the YAML with it."""
    with pytest.raises(ConfigError, match="--allow"):
        allow_hosts([text])


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("https://a.example", "give the host alone, --allow a.example;"),
        ("https://a.example:8443/x", "give the host alone, --allow a.example:8443;"),
        ("a.example/b", "give the host alone, --allow a.example;"),
        ("a.example:x", "write HOST or HOST:PORT"),
        ("", "--allow needs a host, such as"),
    ],
)
def test_it_is_told_what_to_write(text: str, advice: str) -> None:
    """A URL is what people have at hand: the message has the part of it that --allow takes."""
    with pytest.raises(ConfigError, match=advice):
        allow_hosts([text])
