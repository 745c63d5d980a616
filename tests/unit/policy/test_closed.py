"""Which hosts policies could ever allow: closed lists, open ones, layers, labels; never less than is allowed."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.flow import Guest, Target
from seamgate.policy.closed import MOST_HOSTS, closed_hosts
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.loader import parse_policy
from seamgate.policy.model import Policy
from seamgate.verdict import Effect

NUMBERS = count()


def policy(*rules: dict[str, Any], **file: Any) -> Policy:
    """Parse a policy of these rules."""
    named = [{"id": f"r{next(NUMBERS)}", **rule} for rule in rules]
    return parse_policy(json.dumps({"seamgate": 1, **file, "rules": named}), f"{file.get('layer', 'team')}.yaml")


def allow(*hosts: str, **more: Any) -> dict[str, Any]:
    """Return an allow rule for these hosts."""
    match = {key: more.pop(key) for key in ("schemes", "protocol") if key in more}
    return {"allow": {"hosts": [*hosts], **match}, **more}


@pytest.mark.parametrize(
    ("rules", "domains"),
    [
        ([allow("api.example.com")], ("api.example.com",)),
        ([allow("*.example.com", "**.b.example")], ("b.example", "example.com")),
        ([allow("api.*.example.com")], ("example.com",)),
        ([allow("a.example.com"), allow("**.example.com")], ("example.com",)),
        ([allow("badexample.com"), allow("example.com")], ("badexample.com", "example.com")),
        ([], ()),
        ([allow("x.example", schemes=["http"])], ()),
        ([allow("x.example", guests={"team": "sales"})], ()),
        ([allow("x.example", guests={"team": "research"})], ("x.example",)),
        ([{"deny": {"hosts": ["x.example"]}}], ()),
        ([allow("x.example", mode="audit")], ()),
        ([allow("**")], None),
        ([allow("*")], None),
        ([allow("x.example"), allow("10.0.0.1")], None),
        ([allow(*(f"h{number}.example" for number in range(MOST_HOSTS + 1)))], None),
    ],
)
def test_one_file(rules: list[dict[str, Any]], domains: tuple[str, ...] | None) -> None:
    """What each kind of pattern comes to; what does not concern https, this guest, or enforcement does not count."""
    assert closed_hosts([policy(*rules)], {"team": "research"}) == domains


def test_layers() -> None:
    """Each has to allow, so the shortest list is enough; a file that is only recorded says nothing."""
    org, team = policy(allow("**"), layer="org"), policy(allow("a.example", "b.example"), layer="team")
    sandbox = policy(allow("a.example"), layer="sandbox")
    assert closed_hosts([org, team, sandbox], {}) == ("a.example",)
    assert closed_hosts([org, team], {}) == ("a.example", "b.example")
    assert closed_hosts([org], {}) is None
    recorded = policy(allow("c.example"), layer="sandbox", mode="audit")
    assert closed_hosts([org, recorded], {}) is None
    assert closed_hosts([], {}) is None


LABELS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.builds(
    lambda deep, labels, top: ".".join([*(["**"] if deep else []), *labels, top]),
    st.booleans(),
    st.lists(LABELS, max_size=2),
    st.sampled_from(["x", "y.x", "b"]),
)
HOSTS = st.lists(st.sampled_from(["a", "b", "x", "y"]), min_size=1, max_size=4).map(".".join)


@given(
    files=st.lists(
        st.tuples(st.sampled_from(["org", "team"]), st.lists(PATTERNS, min_size=1, max_size=3)), min_size=1, max_size=3
    ),
    host=HOSTS,
)
def test_never_less_than_is_allowed(files: list[tuple[str, list[str]]], host: str) -> None:
    """A host that the evaluator lets through lies in one of the domains."""
    policies = [policy(allow(*hosts), layer=layer) for layer, hosts in files]
    domains = closed_hosts(policies, {})
    assert domains is not None
    verdict = Evaluator(tuple(policies), generation=1).judge_connect(Guest("g"), Target("https", host, 443), 0.0)
    if verdict.effect is not Effect.DENY:
        assert any(host == domain or host.endswith(f".{domain}") for domain in domains)
