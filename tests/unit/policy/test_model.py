"""The frozen model: what a match covers, one fact at a time."""

from __future__ import annotations

import pytest

from seamgate.policy.model import Match
from seamgate.policy.patterns import parse_host, parse_path


def test_an_empty_match_covers_everything_but_hosts_and_paths_can_be_empty_lists() -> None:
    """None is no restriction; an empty tuple covers nothing."""
    every, nothing = Match(), Match(hosts=(), paths=(), methods=frozenset(), ports=())
    assert every.covers_host("a.test", False)
    assert every.covers_path("/x")
    assert every.covers_method("GET")
    assert every.covers_port("http", 1)
    assert not nothing.covers_host("a.test", False)
    assert not nothing.covers_path("/x")
    assert not nothing.covers_method("GET")
    assert not nothing.covers_port("https", 443)


@pytest.mark.parametrize(
    ("labels", "covered"),
    [({"team": "a", "role": "x"}, True), ({"team": "a"}, False), ({"team": "c", "role": "x"}, False), ({}, False)],
)
def test_labels_are_anded(labels: dict[str, str], covered: bool) -> None:
    """Every label must be there; one without values may have any."""
    match = Match(guests=(("role", None), ("team", frozenset({"a", "b"}))))
    assert match.covers_guest(labels) is covered


def test_lists_are_ored() -> None:
    """One pattern of a list is enough."""
    match = Match(hosts=(parse_host("a.test"), parse_host("*.b.test")), paths=(parse_path("/x"), parse_path("/y/*")))
    assert match.covers_host("z.b.test", False)
    assert match.covers_path("/y/z")
    assert not match.covers_path("/y")
