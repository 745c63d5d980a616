"""The loader: what each key means, and every refusal with its place."""

from __future__ import annotations

import math

import pytest

from seamgate.errors import ConfigError
from seamgate.policy.loader import expiry_of, parse_policy
from seamgate.policy.model import Layer, Policy
from seamgate.verdict import Limits

FULL = """\
seamgate: 1
layer: org
owner: secops@acme.example
description: everything
rules:
  - id: all-keys
    allow:
      hosts: [API.Anthropic.com., "**.acme.example"]
      schemes: [https, http]
      ports: [443, "8000-8100"]
      methods: [get, POST]
      paths: [/v1/messages, "/v1/*/x/**"]
      query: {q: true}
      headers: {X-Team: a*}
      json: {model: claude-*}
    guests: {team: [research, ops], role: "*"}
    when: request.json.n > 1
    credential: [anthropic, other]
    limits: {requests: 60/min, request_body: 5MiB, response_body: 10MB}
    inspect: [secrets]
    addresses: [private, 10.0.0.0/8]
    encoded_slash: true
    mode: audit
    expires: 2027-03-31
    owner: team@acme.example
    reason: why
    ticket: ACME-1
  - id: ban
    deny: {hosts: [api.anthropic.com], paths: ["/v1/admin/**"]}
    except: {guests: {team: release}, expires: 2027-01-01T00:00:00+01:00}
"""


def rules(*lines: str) -> str:
    """Return a file with one rule of these lines."""
    return "seamgate: 1\nrules:\n  - id: r\n" + "".join(f"    {line}\n" for line in lines)


def test_every_key_arrives_in_the_model() -> None:
    """A rule with all keys is compiled to canonical values."""
    loaded = parse_policy(FULL, "f.yaml")
    assert (loaded.layer, loaded.owner, loaded.audit, loaded.source) == (
        Layer.ORG,
        "secops@acme.example",
        False,
        "f.yaml",
    )
    rule, ban = loaded.rules
    match = rule.match
    assert [each.text for each in match.hosts or ()] == ["api.anthropic.com", "**.acme.example"]
    assert match.schemes == {"http", "https"}
    assert match.ports == ((443, 443), (8000, 8100))
    assert set(match.methods or ()) == {"GET", "HEAD", "POST"}
    assert [each.text for each in match.paths or ()] == ["/v1/messages", "/v1/*/x/**"]
    assert match.guests == (("role", None), ("team", frozenset({"research", "ops"})))
    assert [each.label for each in match.conditions] == [
        "query q: true", "headers x-team: a*", "json model: claude-*", "when request.json.n > 1",
    ]  # fmt: skip
    assert rule.credentials == ("anthropic", "other")
    assert rule.limits == Limits(5 * 2**20, 10**7, (60, 60.0))
    assert (rule.inspect, rule.addresses) == (("secrets",), ("private", "10.0.0.0/8"))
    assert (rule.encoded_slash, rule.audit, rule.expires_at) == (True, True, 1806537600.0)
    assert (rule.owner, rule.reason, rule.ticket) == ("team@acme.example", "why", "ACME-1")
    assert (rule.place, rule.column) == ("f.yaml:6", 5)
    assert not ban.allows
    assert ban.owner == "secops@acme.example"
    assert ban.exemptions[0].expires_at == expiry_of("2026-12-31T23:00:00Z")
    assert "deny, f.yaml:" in repr(ban)


def test_defaults_of_an_allow_are_narrow_and_of_a_deny_wide() -> None:
    """Without scheme and port an allow is https on 443; a deny is every scheme and port."""
    allow = parse_policy(rules("allow: {hosts: [a.test]}"), "f").rules[0].match
    assert [allow.covers_port(*each) for each in (("https", 443), ("https", 8443), ("http", 80))] == [
        True,
        False,
        False,
    ]
    both = parse_policy(rules("allow: {hosts: [a.test], schemes: [http, https]}"), "f").rules[0].match
    cases = [("https", 443), ("http", 80), ("http", 443), ("https", 80)]
    assert [both.covers_port(*each) for each in cases] == [True, True, False, False]
    ban = parse_policy(rules("deny: {hosts: [a.test]}"), "f").rules[0].match
    assert all(ban.covers_port(*each) for each in (("https", 443), ("https", 8443), ("http", 80)))


def test_empty_lists_of_an_allow_allow_nothing() -> None:
    """An empty list is not "all"."""
    match = parse_policy(rules("allow: {hosts: [], methods: [], paths: []}"), "f").rules[0].match
    assert (match.hosts, match.methods, match.paths) == ((), frozenset[str](), ())


def test_an_empty_file_is_a_layer_that_allows_nothing() -> None:
    """Without rules there is still a layer, and it must allow."""
    loaded = parse_policy("seamgate: 1", "f")
    assert isinstance(loaded, Policy)
    assert loaded.rules == ()


def test_presets_of_methods() -> None:
    """read is GET, HEAD, OPTIONS; write is POST, PUT, PATCH, DELETE; a star is all."""
    assert methods("read") == {"GET", "HEAD", "OPTIONS"}
    assert methods("write") == {"POST", "PUT", "PATCH", "DELETE"}
    assert methods("[read, DELETE]") == {"GET", "HEAD", "OPTIONS", "DELETE"}
    assert methods("['*']") is None


def methods(text: str) -> set[str] | None:
    """Load a list of methods."""
    found = parse_policy(rules(f"allow: {{hosts: [a.test], methods: {text}}}"), "f").rules[0].match.methods
    return None if found is None else set(found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2027-03-31", 1806537600.0),
        ("2027-03-31T00:00:00Z", 1806451200.0),
        ("2027-03-31T02:00:00+02:00", 1806451200.0),
    ],
)
def test_a_date_lasts_to_its_end_in_utc(text: str, seconds: float) -> None:
    """A date alone is void from the next midnight, UTC; a time from that moment."""
    assert expiry_of(text) == seconds


def test_no_expiry_is_never() -> None:
    """A rule without expires stays."""
    assert parse_policy(rules("allow: {hosts: [a.test]}"), "f").rules[0].expires_at == math.inf


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("seamgate: 2\nrules: []", "1:11", "seamgate: 2 means nothing here: write 1"),
        ("rules: []", "1:1", "lacks the key 'seamgate'"),
        ("seamgate: 1\nlayer: global", "2:8", "layer: 'global' means nothing here: write one of org, sandbox, team"),
        ("seamgate: 1\nrule: []", "2:1", "did you mean 'rules'?"),
        (rules("alow: {hosts: [a.test]}"), "4:5", "did you mean 'allow'?"),
        (rules("allow: {host: [a.test]}"), "4:13", "did you mean 'hosts'?"),
        (rules("reason: x"), "3:5", "has neither allow nor deny: say what it allows or denies"),
        (
            rules("allow: {hosts: [a.test]}", "deny: {hosts: [a.test]}"),
            "5:5",
            "has both allow and deny: make two rules of it",
        ),
        (rules("allow: {methods: [GET]}"), "4:5", "an allow needs hosts"),
        (rules("allow: {hosts: a.test}"), "4:20", "expected a list"),
        (rules("allow: {hosts: [https://a.test/]}"), "4:21", "is not a host"),
        (rules("allow: {hosts: [a.test, 'a_*.test']}"), "4:29", "a whole label"),
        (rules("allow: {hosts: [0x7f.1]}"), "4:21", "odd spelling of an address"),
        (rules("allow: {hosts: [a.test], ports: [0]}"), "4:38", "is not a port"),
        (rules("allow: {hosts: [a.test], ports: ['9-1']}"), "4:38", "is not a port"),
        (rules("allow: {hosts: [a.test], ports: [70000]}"), "4:38", "is not a port"),
        (
            rules("allow: {hosts: [a.test], schemes: [ftp]}"),
            "4:40",
            "'ftp' means nothing here: write one of http, https",
        ),
        (rules("allow: {hosts: [a.test], methods: [CONNECT]}"), "4:40", "CONNECT is not judged as a method"),
        (rules("allow: {hosts: [a.test], methods: ['G T']}"), "4:40", "is not a method"),
        (rules("allow: {hosts: [a.test], paths: [v1]}"), "4:38", "must begin with /"),
        (rules("allow: {hosts: [a.test], paths: [/a/../b]}"), "4:38", "dot segment"),
        (rules("allow: {hosts: [a.test], paths: ['/a?b=1']}"), "4:38", "match the query with the key query"),
        (rules("allow: {hosts: [a.test], query: {q: []}}"), "4:41", "has no value"),
        (rules("allow: {hosts: [a.test], headers: {'x y': a}}"), "4:40", "is not a header name"),
        (rules("allow: {hosts: [a.test], headers: {Host: a}}"), "4:40", "policy never sees it"),
        (rules("deny: {hosts: [a.test], headers: {Expect: true}}"), "4:39", "policy never sees it"),
        (rules("allow: {hosts: [a.test], json: {a..b: 1}}"), "4:37", "is not a path"),
        (rules("deny: {hosts: []}"), "4:19", "hosts is empty"),
        (rules("deny: {paths: []}"), "4:19", "paths is empty"),
        (rules("deny: {query: {}}"), "4:19", "query is empty"),
        (rules("deny: {hosts: [a.test]}", "credential: x"), "5:5", "credential belongs to an allow"),
        (rules("deny: {hosts: [a.test]}", "limits: {requests: 1/s}"), "5:5", "limits belongs to an allow"),
        (rules("deny: {hosts: [a.test]}", "encoded_slash: true"), "5:5", "encoded_slash belongs to an allow"),
        (rules("allow: {hosts: [a.test]}", "except: {guests: {a: b}}"), "5:5", "except belongs to a deny"),
        (rules("deny: {hosts: [a.test]}", "except: {}"), "5:13", "lifts the whole ban"),
        (rules("deny: {hosts: [a.test]}", "except: {hosts: []}"), "5:21", "hosts is empty"),
        (rules("allow: {hosts: [a.test]}", "guests: {}"), "5:13", "guests is empty"),
        (rules("allow: {hosts: [a.test]}", "guests: {team: []}"), "5:20", "has no value"),
        (rules("allow: {hosts: [a.test]}", "guests: {team: re*}"), "5:20", "matched whole"),
        (rules("allow: {hosts: [a.test]}", "guests: {team: 5}"), "5:20", "put it in quotes"),
        (rules("allow: {hosts: [a.test]}", "when: request.jsn == 1"), "5:11", "did you mean request.json?"),
        (rules("allow: {hosts: [a.test]}", "credential: 'a b'"), "5:17", "is not a name"),
        (rules("allow: {hosts: [a.test]}", "credential: [a, a]"), "5:21", "is there twice"),
        (rules("allow: {hosts: [a.test]}", "limits: {requests: 60}"), "5:24", "expected `str`"),
        (rules("allow: {hosts: [a.test]}", "limits: {requests: 60/week}"), "5:24", "is not a rate"),
        (rules("allow: {hosts: [a.test]}", "limits: {requests: 0/s}"), "5:24", "is not a rate"),
        (rules("allow: {hosts: [a.test]}", "limits: {request_body: 5M}"), "5:28", "is not a size"),
        (rules("allow: {hosts: [a.test]}", "limits: {tokens: 1}"), "5:14", "unknown key 'tokens'"),
        (rules("allow: {hosts: [a.test]}", "addresses: [internal]"), "5:17", "neither a network"),
        (rules("allow: {hosts: [a.test]}", "addresses: [10.0.0.1/8]"), "5:17", "neither a network"),
        (rules("allow: {hosts: [a.test]}", "addresses: [public]"), "5:17", "need no naming"),
        (rules("allow: {hosts: [a.test]}", "expires: tomorrow"), "5:14", "is not a date"),
        (rules("allow: {hosts: [a.test]}", "expires: 2027-02-30"), "5:14", "is not a date"),
        (rules("allow: {hosts: [a.test]}", "expires: 2027-02-20T10:00:00"), "5:14", "has no offset"),
        (
            rules("allow: {hosts: [a.test]}", "mode: warn"),
            "5:11",
            "'warn' means nothing here: write one of audit, enforce",
        ),
        (rules("allow: {hosts: [a.test]}", "protocol: tcp"), "5:5", "unknown key 'protocol'"),
        ("seamgate: 1\nrules:\n  - {id: a b, allow: {hosts: [x]}}", "3:10", "an id is letters"),
        (
            "seamgate: 1\nrules:\n  - {id: a, allow: {hosts: [x]}}\n  - {id: a, deny: {hosts: [x]}}",
            "4:10",
            "already that of the rule on line 3",
        ),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(text: str, place: str, message: str) -> None:
    """Each error names line and column of what is wrong, and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "f")
    assert str(caught.value).startswith(f"f:{place}: "), str(caught.value)
    assert message in str(caught.value)
