"""Most-specific-wins: what is chosen, how layers combine, and ties."""

from __future__ import annotations

import pytest

from seamgate.errors import ConfigError, Reason
from seamgate.policy.evaluation import Evaluator
from seamgate.verdict import Limits
from unit.policy.ask import judge, load


def chosen(rules: str, line: str, **details: object) -> tuple[str, tuple[str, ...]]:
    """Return the rule and the credentials of an allowed request."""
    verdict = judge(load(rules), line, **details)  # type: ignore[arg-type]
    assert verdict.allowed, verdict.message
    return verdict.rule, verdict.credentials


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("hosts: ['**.acme.test']", "hosts: ['*.acme.test']"),
        ("hosts: ['*.acme.test']", "hosts: [a.acme.test]"),
        ("hosts: ['**']", "hosts: ['**.test']"),
        ("hosts: [a.acme.test]", "hosts: [a.acme.test], paths: ['/**']"),
        ("hosts: [a.acme.test], paths: ['/**']", "hosts: [a.acme.test], paths: ['/v1/**']"),
        ("hosts: [a.acme.test], paths: ['/v1/**']", "hosts: [a.acme.test], paths: ['/v1/*']"),
        ("hosts: [a.acme.test], paths: ['/v1/*']", "hosts: [a.acme.test], paths: [/v1/x]"),
        ("hosts: [a.acme.test]", "hosts: [a.acme.test], methods: [GET]"),
        ("hosts: [a.acme.test], methods: read", "hosts: [a.acme.test], methods: [GET]"),
        ("hosts: [a.acme.test]", "hosts: [a.acme.test], ports: [443]"),
        ("hosts: [a.acme.test], ports: ['*']", "hosts: [a.acme.test]"),
        ("hosts: [a.acme.test], ports: ['400-500']", "hosts: [a.acme.test], ports: [443, 8443]"),
        ("hosts: [a.acme.test]", "hosts: [a.acme.test], query: {q: false}"),
        ("hosts: ['**'], paths: [/v1/x]", "hosts: [a.acme.test]"),
    ],
)
def test_the_more_specific_rule_chooses(wide: str, narrow: str) -> None:
    """Host before port before path before method before guests and conditions, whatever the order in the file."""
    first = f"- id: wide\n  allow: {{{wide}}}\n  credential: w"
    second = f"- id: narrow\n  allow: {{{narrow}}}\n  credential: nn"
    for rules in (f"{first}\n{second}", f"{second}\n{first}"):
        assert chosen(rules, "GET https://a.acme.test/v1/x") == ("narrow", ("nn",))


def test_a_rule_that_says_nothing_leaves_the_choice_to_others() -> None:
    """Each of credential, limits and inspectors comes from the most specific rule that says something of it."""
    verdict = judge(
        load("""
        - id: wide
          allow: {hosts: ['*.test']}
          credential: w
          inspect: [secrets]
        - id: narrow
          allow: {hosts: [a.test]}
          limits: {requests: 5/s}
    """),
        "GET https://a.test/",
    )
    assert (verdict.rule, verdict.credentials, verdict.inspect) == ("narrow", ("w",), ("secrets",))
    assert verdict.limits == Limits(requests=(5, 1.0))


def test_limits_and_inspectors_of_all_layers_hold() -> None:
    """A lower layer can't loosen a limit or drop an inspector; each layer's rate is counted."""
    org = load(
        """
        - id: org
          allow: {hosts: ['**']}
          inspect: [secrets]
          limits: {requests: 10/min, request_body: 1MiB}
    """,
        layer="org",
        source="o.yaml",
    )
    team = load("""
        - id: team
          allow: {hosts: [a.test]}
          inspect: [pii]
          limits: {requests: 100/s, request_body: 5MiB, response_body: 1GiB}
    """)
    verdict = judge([org, team], "GET https://a.test/")
    assert (verdict.rule, verdict.inspect) == ("team", ("secrets", "pii"))
    assert verdict.limits == Limits(2**20, 2**30, (10, 60.0))


def test_addresses_must_be_named_by_every_layer() -> None:
    """What an upper layer does not name, a lower one can't open."""
    team = load("- id: team\n  allow: {hosts: [a.test]}\n  addresses: [10.1.0.0/16, private, loopback]")
    assert judge(team, "GET https://a.test/").addresses == ("10.1.0.0/16", "private", "loopback")
    org = load("- id: org\n  allow: {hosts: ['**']}\n  addresses: [10.0.0.0/8, loopback]", layer="org", source="o.yaml")
    assert judge([org, team], "GET https://a.test/").addresses == ("10.1.0.0/16", "loopback")
    bare = load("- id: org\n  allow: {hosts: ['**']}", layer="org", source="o.yaml")
    assert judge([bare, team], "GET https://a.test/").addresses == ()


def test_a_specific_rule_that_waits_for_the_body_is_waited_for() -> None:
    """Else the body would choose the credential after it had gone in."""
    from seamgate.flow import BodyState
    from seamgate.verdict import Effect

    rules = load("""
        - id: wide
          allow: {hosts: [a.test]}
          credential: w
        - id: narrow
          allow: {hosts: [a.test], json: {tier: gold}}
          credential: gold
    """)
    assert judge(rules, "POST https://a.test/", state=BodyState.PENDING).effect is Effect.DEFER
    assert judge(rules, "POST https://a.test/", body='{"tier": "gold"}').credentials == ("gold",)
    assert judge(rules, "POST https://a.test/", body='{"tier": "tin"}').credentials == ("w",)
    assert judge(rules, "POST https://a.test/", state=BodyState.OVERSIZE).credentials == ("w",)


TIED = "- id: {id}\n  allow: {{{allow}}}\n  {more}"


def pair(one: str, two: str, more_one: str = "credential: a", more_two: str = "credential: b") -> str:
    """Return two rules."""
    return TIED.format(id="one", allow=one, more=more_one) + "\n" + TIED.format(id="two", allow=two, more=more_two)


@pytest.mark.parametrize(
    "rules",
    [
        pair("hosts: [a.test]", "hosts: [a.test]"),
        pair("hosts: [b.test, a.test]", "hosts: [a.test, c.test]"),
        pair("hosts: ['*.test']", "hosts: ['*.test'], schemes: [https, http]"),
        pair("hosts: ['*.a.test']", "hosts: ['*.a.test']"),
        pair("hosts: [a.test], paths: ['/a/*/c']", "hosts: [a.test], paths: ['/a/*/c']"),
        pair("hosts: [a.test], paths: ['/a*/b']", "hosts: [a.test], paths: ['/*a/b']"),
        pair("hosts: [a.test], methods: [GET, PUT]", "hosts: [a.test], methods: [GET, DELETE]"),
        pair("hosts: [a.test]", "hosts: [a.test]", "limits: {requests: 1/s}", "limits: {requests: 2/s}"),
        pair("hosts: [a.test]", "hosts: [a.test]", "inspect: [x]", "inspect: []"),
        pair("hosts: [a.test], query: {q: a*}", "hosts: [a.test], query: {r: b}"),
    ],
)
def test_a_tie_that_disagrees_is_an_error_at_load(rules: str) -> None:
    """It names both rules and both lines."""
    with pytest.raises(ConfigError, match=r"rules 'one' \(p\.yaml:5\) and 'two' \(p\.yaml:8\) are equally specific"):
        Evaluator([load(rules)])


@pytest.mark.parametrize(
    "rules",
    [
        pair("hosts: [a.test]", "hosts: [a.test]", more_two="credential: a"),
        pair("hosts: [a.test]", "hosts: [a.test]", more_two="limits: {requests: 1/s}"),
        pair("hosts: [a.test]", "hosts: [b.test]"),
        pair("hosts: ['*.a.test']", "hosts: ['*.b.test']"),
        pair("hosts: [a.test], paths: ['/a/*']", "hosts: [a.test], paths: ['/b/*']"),
        pair("hosts: [a.test], paths: ['/*/a']", "hosts: [a.test], paths: ['/*/b']"),
        pair("hosts: [a.test], methods: [PUT]", "hosts: [a.test], methods: [POST]"),
        pair("hosts: [a.test], ports: [443]", "hosts: [a.test], ports: [8443]"),
        pair("hosts: [a.test], json: {model: a}", "hosts: [a.test], json: {model: b}"),
        pair("hosts: [a.test], query: {q: a*}", "hosts: [a.test], query: {q: b*}"),
        pair("hosts: [a.test], headers: {x: true}", "hosts: [a.test], headers: {x: false}"),
        pair(
            "hosts: [a.test]", "hosts: [a.test]", "guests: {t: a}\n  credential: a", "guests: {t: b}\n  credential: b"
        ),
        pair("hosts: [a.test]", "hosts: [a.test]", "credential: a\n  mode: audit"),
    ],
)
def test_rules_that_agree_or_never_meet_do_not_tie(rules: str) -> None:
    """No false alarm where nothing can be ambiguous."""
    Evaluator([load(rules)])


def test_a_tie_that_only_cel_can_tell_apart_is_settled_per_request() -> None:
    """One of two conditions: fine. Both: denied, since nothing is ever chosen by position."""
    rules = load(pair(
        "hosts: [a.test]", "hosts: [a.test]",
        "when: 'request.query.m.startsWith(\"x\")'\n  credential: a",
        "when: 'request.query.m.endsWith(\"z\")'\n  credential: b",
    ))  # fmt: skip
    assert judge(rules, "GET https://a.test/?m=xy").credentials == ("a",)
    assert judge(rules, "GET https://a.test/?m=yz").credentials == ("b",)
    both = judge(rules, "GET https://a.test/?m=xz")
    assert (both.allowed, both.reason) == (False, Reason.UNEVALUABLE)
    assert "one and two are equally specific" in both.message


def test_ties_between_layers_concern_credentials_only() -> None:
    """Limits and inspectors of both layers hold together, so they can't contradict each other."""
    org = load("- id: o\n  allow: {hosts: [a.test]}\n  limits: {requests: 1/s}", layer="org", source="o.yaml")
    team = load("- id: t\n  allow: {hosts: [a.test]}\n  limits: {requests: 2/s}")
    Evaluator([org, team])
    other = load("- id: o\n  allow: {hosts: [a.test]}\n  credential: x", layer="org", source="o.yaml")
    with pytest.raises(ConfigError, match="choose different credentials"):
        Evaluator([other, load("- id: t\n  allow: {hosts: [a.test]}\n  credential: yy")])


def test_many_rules_for_many_guests_load_quickly() -> None:
    """Rules that differ in one label only are never compared pair by pair."""
    rules = "\n".join(
        f"- id: r{i}\n  allow: {{hosts: [a.test]}}\n  guests: {{team: t{i}}}\n  credential: c{i}" for i in range(3000)
    )
    assert len(Evaluator([load(rules)]).rules) == 3000
