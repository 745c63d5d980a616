"""Judging: default deny, deny overrides, layers, phases, exemptions, expiry, audit mode."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from seamgate.address import parse_authority
from seamgate.errors import ConfigError, Reason, TargetError
from seamgate.flow import BodyState, Guest, Target
from seamgate.paths import canonical_path
from seamgate.policy.evaluation import CACHED_PLANS, CACHED_SIZE, CACHED_TARGETS, Evaluator
from seamgate.verdict import Effect, Limits
from support.overrides import METHOD_QUERIES
from unit.policy.ask import GUEST, NOW, judge, load, request

LLM = load("""
    - id: llm-messages
      allow: {hosts: [api.anthropic.com], methods: [POST], paths: [/v1/messages]}
      guests: {team: research}
      when: request.json.model.startsWith("claude-")
      credential: anthropic
      limits: {requests: 60/min, request_body: 5MiB}
      inspect: [secrets]
      expires: 2027-03-31
""")
URL = "POST https://api.anthropic.com/v1/messages"
HOOKS = load("""
    - id: gh
      allow: {hosts: [api.github.com], paths: ["/repos/**"]}
    - id: no-hooks
      deny: {hosts: [api.github.com], paths: ["/repos/*/*/hooks/**"]}
      except: {guests: {team: release}}
""")
HOOK = "GET https://api.github.com/repos/a/b/hooks/1"


def test_an_allowed_request_carries_what_its_rule_selects() -> None:
    """Effect, rule, credential, limits and inspectors come in one verdict."""
    verdict = judge(LLM, URL, body='{"model": "claude-x"}')
    assert (verdict.effect, verdict.reason, verdict.rule) == (Effect.ALLOW, Reason.ALLOWED, "llm-messages")
    assert (verdict.credentials, verdict.inspect) == (("anthropic",), ("secrets",))
    assert verdict.limits == Limits(5 * 2**20, None, (60, 60.0))


@pytest.mark.parametrize(
    "policies", [[], [load("- id: a\n  allow: {hosts: []}")], [load("- id: a\n  deny: {hosts: [x]}")]]
)
def test_the_default_is_to_deny(policies: list[object]) -> None:
    """No policy, an empty list, only denies: nothing is allowed."""
    verdict = judge(policies, "GET https://a.test/")  # type: ignore[arg-type]
    assert (verdict.effect, verdict.reason, verdict.rule) == (Effect.DENY, Reason.NO_RULE_MATCHED, "")


@pytest.mark.parametrize(
    ("line", "details", "reason"),
    [
        (URL, {"body": '{"model": "gpt"}'}, Reason.NO_RULE_MATCHED),
        (URL, {"body": "{}"}, Reason.UNEVALUABLE),
        (URL, {"body": "not JSON"}, Reason.UNEVALUABLE),
        (URL, {"body": '{"model": "claude-x", "model": "gpt"}'}, Reason.UNEVALUABLE),
        (URL, {"state": BodyState.OVERSIZE}, Reason.UNEVALUABLE),
        (URL, {"state": BodyState.UNDECODABLE}, Reason.UNEVALUABLE),
        (URL, {}, Reason.UNEVALUABLE),
        (URL, {"guest": Guest("x", {"team": "ops"}), "body": '{"model": "claude-x"}'}, Reason.NO_RULE_MATCHED),
        (URL, {"guest": Guest("x"), "body": '{"model": "claude-x"}'}, Reason.NO_RULE_MATCHED),
        ("GET https://api.anthropic.com/v1/messages", {}, Reason.NO_RULE_MATCHED),
        ("POST http://api.anthropic.com/v1/messages", {"body": '{"model": "claude-x"}'}, Reason.NO_RULE_MATCHED),
        ("POST https://api.anthropic.com:8443/v1/messages", {"body": '{"model": "claude-x"}'}, Reason.NO_RULE_MATCHED),
        ("post https://api.anthropic.com/v1/messages", {"body": '{"model": "claude-x"}'}, Reason.NO_RULE_MATCHED),
    ],
)
def test_whatever_is_not_certainly_allowed_is_denied(line: str, details: dict[str, Any], reason: Reason) -> None:
    """Each thing that does not fit, or can't be known, denies with its own reason."""
    verdict = judge(LLM, line, **details)
    assert (verdict.effect, verdict.reason) == (Effect.DENY, reason)


def test_a_body_is_waited_for_only_where_it_matters() -> None:
    """DEFER while the body is pending and a rule that may decide needs it; never for another request."""
    assert judge(LLM, URL, state=BodyState.PENDING).effect is Effect.DEFER
    assert judge(LLM, "POST https://api.anthropic.com/v1/x", state=BodyState.PENDING).effect is Effect.DENY
    assert judge(HOOKS, "POST https://api.github.com/repos/a/b", state=BodyState.PENDING).effect is Effect.ALLOW
    ban = load("- id: ban\n  deny: {hosts: [api.anthropic.com]}", source="b.yaml")
    assert judge([LLM, ban], URL, state=BodyState.PENDING).effect is Effect.DENY


def test_a_deny_outweighs_every_allow() -> None:
    """Whatever the layers and the order, and with the rule's id."""
    for policies in ([HOOKS], [load(HOOK_ALLOW, layer="org", source="o.yaml"), HOOKS]):
        verdict = judge(list(policies), HOOK)
        assert (verdict.effect, verdict.reason, verdict.rule) == (Effect.DENY, Reason.RULE_DENIED, "no-hooks")


HOOK_ALLOW = "- id: exactly\n  allow: {hosts: [api.github.com], paths: [/repos/a/b/hooks/1], methods: [GET]}"


@pytest.mark.parametrize(
    "path", ["/repos/a/b/HOOKS/1", "/repos/a/b/hooks/1/", "/repos/a/b/hooks%2F1", "/repos/a/b/h%6Foks/1"]
)
def test_no_spelling_evades_a_deny(path: str) -> None:
    """Another case, a trailing slash, an encoded slash, an escape: denied."""
    assert judge(HOOKS, f"GET https://api.github.com{path}").effect is Effect.DENY


def test_an_exemption_lifts_the_ban_it_stands_in() -> None:
    """For whom it names, and only while it holds."""
    release = Guest("r", {"team": "release"})
    assert judge(HOOKS, HOOK, guest=release).rule == "gh"
    assert judge(HOOKS, HOOK, guest=GUEST).rule == "no-hooks"


EXEMPT = """
    - id: all
      allow: {hosts: ["**"]}
      encoded_slash: true
    - id: ban
      deny: {hosts: [a.test]}
      except:
        - {paths: ["/pub/*"], methods: [GET]}
        - {when: request.json.safe == true}
        - {guests: {team: ops}, expires: 2027-01-01}
"""


@pytest.mark.parametrize(
    ("line", "details", "effect"),
    [
        ("GET https://a.test/pub/x", {}, Effect.ALLOW),
        ("HEAD https://a.test/pub/x", {}, Effect.ALLOW),
        ("POST https://a.test/pub/x", {}, Effect.DENY),
        ("GET https://a.test/PUB/x", {}, Effect.DENY),
        ("GET https://a.test/pub/x/", {}, Effect.DENY),
        ("GET https://a.test/pub/x%2Fy", {}, Effect.DENY),
        ("POST https://a.test/x", {"body": '{"safe": true}'}, Effect.ALLOW),
        ("POST https://a.test/x", {"body": '{"safe": false}'}, Effect.DENY),
        ("POST https://a.test/x", {"body": "{}"}, Effect.DENY),
        ("POST https://a.test/x", {"state": BodyState.OVERSIZE}, Effect.DENY),
        ("POST https://a.test/x", {"state": BodyState.PENDING}, Effect.DEFER),
        ("GET https://a.test/x", {"guest": Guest("o", {"team": "ops"})}, Effect.ALLOW),
        ("GET https://a.test/x", {"guest": Guest("o", {"team": "ops"}), "now": NOW + 100 * 86400}, Effect.DENY),
    ],
)
def test_an_exemption_must_certainly_hold(line: str, details: dict[str, Any], effect: Effect) -> None:
    """It is read strictly: byte for byte, in every reading, and unknown means that the ban stands."""
    assert judge(load(EXEMPT), line, **details).effect is effect


DENY_WHEN = """
    - id: all
      allow: {hosts: [a.test]}
    - id: ban
      deny: {hosts: [a.test], methods: [POST]}
      when: request.json.force == true
"""


@pytest.mark.parametrize(
    ("details", "effect", "reason"),
    [
        ({"body": '{"force": true}'}, Effect.DENY, Reason.RULE_DENIED),
        ({"body": '{"force": false}'}, Effect.ALLOW, Reason.ALLOWED),
        ({"body": "{}"}, Effect.DENY, Reason.UNEVALUABLE),
        ({"body": "x"}, Effect.DENY, Reason.UNEVALUABLE),
        ({"state": BodyState.OVERSIZE}, Effect.DENY, Reason.UNEVALUABLE),
        ({"state": BodyState.PENDING}, Effect.DEFER, Reason.ALLOWED),
    ],
)
def test_unknown_means_yes_for_a_deny(details: dict[str, Any], effect: Effect, reason: Reason) -> None:
    """A ban whose condition can't be evaluated stands."""
    verdict = judge(load(DENY_WHEN), "POST https://a.test/", **details)
    assert (verdict.effect, verdict.reason) == (effect, reason)


def test_every_layer_that_is_there_must_allow() -> None:
    """A lower layer can only narrow; the denial names the layer that lacks a rule."""
    org = load("- id: org\n  allow: {hosts: ['**.acme.test']}", layer="org", source="o.yaml")
    team = load("- id: team\n  allow: {hosts: ['**']}", layer="team", source="t.yaml")
    box = load("- id: box\n  allow: {hosts: [a.acme.test], methods: [GET]}", layer="sandbox", source="s.yaml")
    assert judge([org, team, box], "GET https://a.acme.test/").rule == "box"
    assert "layer org" in judge([org, team, box], "GET https://b.test/").message
    assert "layer sandbox" in judge([box, team, org], "POST https://a.acme.test/").message
    assert judge([org, team], "POST https://a.acme.test/").allowed
    empty = load("- id: nothing\n  deny: {hosts: [x.test]}", layer="sandbox", source="e.yaml")
    assert not judge([org, team, empty], "GET https://a.acme.test/").allowed


def test_rules_expire_by_the_callers_clock() -> None:
    """From its date on an allow allows no more and a ban is lifted, however the clock runs."""
    evaluator = Evaluator(
        [
            load("""
        - id: all
          allow: {hosts: [a.test]}
          expires: 2027-03-31
        - id: freeze
          deny: {hosts: [a.test]}
          expires: 2027-01-03
    """)
        ]
    )
    asked = request("GET https://a.test/")
    freeze_ends, all_ends = 1799020800.0, 1806537600.0
    for now, allowed in (
        (NOW, False), (freeze_ends - 1, False), (freeze_ends, True), (all_ends - 1, True), (all_ends, False),
        (freeze_ends, True), (NOW, False),
    ):  # fmt: skip
        assert evaluator.judge_request(asked, now).allowed is allowed
        connect = evaluator.judge_connect(asked.guest, asked.target, now)
        assert (connect.effect is Effect.DEFER) is allowed


def test_an_encoded_slash_needs_leave() -> None:
    """%2F passes an allow only where the rule says so; a deny covers it anyway."""
    without = load("- id: a\n  allow: {hosts: [a.test], paths: ['/*']}")
    leave = load("- id: a\n  allow: {hosts: [a.test], paths: ['/*']}\n  encoded_slash: true")
    assert not judge(without, "GET https://a.test/@s%2Fp").allowed
    assert judge(leave, "GET https://a.test/@s%2Fp").allowed


def test_addresses_are_covered_only_by_name_but_denied_by_any() -> None:
    """`**` allows no address; a deny of `**` covers addresses too."""
    every = load("- id: a\n  allow: {hosts: ['**', 10.0.0.1]}")
    assert judge(every, "GET https://10.0.0.1/").allowed
    assert not judge(every, "GET https://10.0.0.2/").allowed
    ban = load("- id: b\n  deny: {hosts: ['**'], methods: [GET]}", source="b.yaml")
    assert judge([every, ban], "GET https://10.0.0.1/").rule == "b"


def test_options_star_falls_under_rules_without_paths() -> None:
    """`OPTIONS *` has no path: no pattern allows it, and a deny of every path covers it."""
    paths = load("- id: a\n  allow: {hosts: [a.test], paths: ['/**']}")
    plain = load("- id: a\n  allow: {hosts: [a.test]}")
    ban = load("- id: b\n  deny: {hosts: [a.test], paths: ['/**'], methods: [OPTIONS]}", source="b.yaml")
    star = request("OPTIONS https://a.test/")
    star = type(star)("r", star.guest, star.target, "OPTIONS", "*")
    assert not Evaluator([paths]).judge_request(star, NOW).allowed
    assert Evaluator([plain]).judge_request(star, NOW).allowed
    assert not Evaluator([plain, ban]).judge_request(star, NOW).allowed


AUDIT = """
    - id: all
      allow: {hosts: [a.test]}
    - id: ban
      deny: {hosts: [a.test], paths: [/admin]}
      mode: audit
    - id: wide
      allow: {hosts: [b.test]}
      mode: audit
"""


def test_a_rule_in_audit_mode_records_and_enforces_nothing() -> None:
    """An audited deny lets pass and says so; an audited allow does not allow, and the denial says so."""
    passed = judge(load(AUDIT), "GET https://a.test/admin")
    assert (passed.allowed, passed.rule, passed.would_rule) == (True, "all", "ban")
    assert passed.would_deny == "Rule ban denies it."
    assert judge(load(AUDIT), "GET https://a.test/").would_deny == ""
    refused = judge(load(AUDIT), "GET https://b.test/")
    assert not refused.allowed
    assert "it is in audit mode" in refused.message


def test_a_file_in_audit_mode_is_a_candidate() -> None:
    """Its layer is not demanded; what it would deny by default is recorded."""
    real = load("- id: all\n  allow: {hosts: [a.test]}")
    candidate = load(
        "- id: less\n  allow: {hosts: [a.test], methods: [GET]}", layer="org", mode="audit", source="c.yaml"
    )
    assert judge([real, candidate], "GET https://a.test/").would_deny == ""
    posted = judge([real, candidate], "POST https://a.test/")
    assert posted.allowed
    assert posted.would_deny.startswith("No rule of layer org allows POST https://a.test/")
    assert not judge([candidate], "GET https://a.test/").allowed


def test_a_candidate_that_needs_the_body_waits_for_it() -> None:
    """Audit mode sees the body as enforcement would, and never denies for it."""
    real = load("- id: all\n  allow: {hosts: [a.test]}")
    shadow = load("- id: ban\n  deny: {hosts: [a.test]}\n  when: request.json.x == 1\n  mode: audit", source="s.yaml")
    assert judge([real, shadow], "POST https://a.test/", state=BodyState.PENDING).effect is Effect.DEFER
    seen = judge([real, shadow], "POST https://a.test/", body='{"x": 1}')
    assert (seen.allowed, seen.would_rule) == (True, "ban")
    assert judge([real, shadow], "POST https://a.test/", state=BodyState.OVERSIZE).allowed


def connect(policies: Any, authority: str, guest: Guest = GUEST, scheme: str = "https") -> tuple[Effect, str]:
    """Judge a tunnel."""
    loaded = policies if isinstance(policies, list) else [policies]
    verdict = Evaluator(loaded).judge_connect(guest, parse_authority(authority, scheme), NOW)
    return verdict.effect, verdict.rule


def test_a_tunnel_opens_where_a_request_may_be_allowed() -> None:
    """By host, port and guest; method, path and body are for later."""
    assert connect(LLM, "api.anthropic.com:443") == (Effect.DEFER, "")
    assert connect(LLM, "api.anthropic.com:8443") == (Effect.DENY, "")
    assert connect(LLM, "api.openai.com:443") == (Effect.DENY, "")
    assert connect(LLM, "api.anthropic.com:443", Guest("o", {"team": "ops"})) == (Effect.DENY, "")
    assert connect(LLM, "api.anthropic.com", scheme="http") == (Effect.DENY, "")
    assert connect([], "api.anthropic.com:443") == (Effect.DENY, "")


def test_a_tunnel_is_denied_by_a_ban_on_all_of_it() -> None:
    """A ban of some paths or methods waits; one of everything denies at once, unless an exemption may lift it."""
    allow = load("- id: all\n  allow: {hosts: ['**']}")

    def ban(text: str) -> list[object]:
        return [allow, load(f"- id: ban\n  deny: {{{text}}}", source="b.yaml")]

    assert connect(ban("hosts: [a.test]"), "a.test:443") == (Effect.DENY, "ban")
    assert connect(ban("hosts: ['**'], paths: ['/**']"), "a.test:443") == (Effect.DENY, "ban")
    assert connect(ban("hosts: [a.test], paths: ['/x/**']"), "a.test:443") == (Effect.DEFER, "")
    assert connect(ban("hosts: [a.test], methods: [GET]"), "a.test:443") == (Effect.DEFER, "")
    assert connect(ban("hosts: [a.test], ports: [8443]"), "a.test:443") == (Effect.DEFER, "")
    assert connect(ban("hosts: [a.test], headers: {x: true}"), "a.test:443") == (Effect.DEFER, "")
    assert connect([allow, load(BAN_EXCEPT)], "a.test:443") == (Effect.DENY, "ban")
    assert connect([allow, load(BAN_EXCEPT)], "a.test:443", Guest("o", {"team": "ops"})) == (Effect.DEFER, "")


BAN_EXCEPT = "- id: ban\n  deny: {hosts: [a.test]}\n  except: {guests: {team: ops}, paths: [/x]}"


def test_a_name_may_be_asked_for_where_some_port_is_allowed() -> None:
    """Port 0 asks about a host at any port and scheme, before its name is resolved for a guest."""

    def name(*policies: object) -> tuple[Effect, str]:
        verdict = Evaluator(policies).judge_connect(GUEST, Target("https", "a.test", 0), NOW)  # type: ignore[arg-type]
        return verdict.effect, verdict.rule

    odd = load("- id: odd\n  allow: {hosts: [a.test], ports: [8443], schemes: [http]}")
    assert name(odd) == (Effect.DEFER, "")
    assert name(load("- id: other\n  allow: {hosts: [b.test]}")) == (Effect.DENY, "")
    assert name(odd, load("- id: ban\n  deny: {hosts: [a.test]}", source="b.yaml")) == (Effect.DENY, "ban")
    assert name(odd, load("- id: ban\n  deny: {hosts: [a.test], ports: [443]}", source="b.yaml")) == (Effect.DEFER, "")
    lifted = load("- id: ban\n  deny: {hosts: [a.test]}\n  except: {ports: [8443]}", source="b.yaml")
    assert name(odd, lifted) == (Effect.DEFER, "")


def test_a_tunnel_needs_every_layer() -> None:
    """As a request does."""
    org = load("- id: org\n  allow: {hosts: [b.test]}", layer="org", source="o.yaml")
    team = load("- id: team\n  allow: {hosts: [a.test]}")
    assert connect([org, team], "a.test:443") == (Effect.DENY, "")
    shadow = load("- id: org\n  allow: {hosts: [b.test]}", layer="org", mode="audit", source="o.yaml")
    verdict = Evaluator([shadow, team]).judge_connect(GUEST, parse_authority("a.test:443", "https"), NOW)
    assert verdict.effect is Effect.DEFER
    assert verdict.would_deny.startswith("No rule of layer org")


def test_long_paths_are_judged_as_short_ones_are() -> None:
    """Those whose plans are not kept get the same verdict, whether path or override is what makes them long."""
    evaluator = Evaluator([load(ELSEWHERE)])
    for size in (1, CACHED_SIZE - 8, CACHED_SIZE, 4 * CACHED_SIZE):
        assert evaluator.judge_request(request(f"GET https://a.test/pub/{'x' * size}"), NOW).allowed
        headers = {"x-original-url": f"/pub/{'x' * size}"}
        assert evaluator.judge_request(request("GET https://a.test/pub/x", headers=headers), NOW).allowed
        denied = evaluator.judge_request(request(f"GET https://a.test/no/{'x' * size}"), NOW)
        assert denied.reason is Reason.NO_RULE_MATCHED
        assert len(denied.message) < 2 * CACHED_SIZE
    assert len(evaluator._plans) == 5


def test_ids_are_unique_over_all_files() -> None:
    """A rule that is named in an audit record is one rule."""
    with pytest.raises(ConfigError, match=r"b\.yaml:5:5: the id 'a' is already that of the rule at p\.yaml:5"):
        Evaluator([load("- id: a\n  allow: {hosts: [x]}"), load("- id: a\n  deny: {hosts: [z]}", source="b.yaml")])


def test_the_cache_never_changes_a_verdict() -> None:
    """Asked again, after others, after forgetting: the same."""
    evaluator = Evaluator([HOOKS])
    lines = [HOOK, "GET https://api.github.com/repos/a/b/pulls", "GET https://x.test/"]
    first = [evaluator.judge_request(request(line), NOW) for line in lines]
    assert [evaluator.judge_request(request(line), NOW) for line in lines] == first
    evaluator.forget()
    assert [evaluator.judge_request(request(line), NOW) for line in lines] == first


def test_one_guests_flood_leaves_anothers_plans_alone() -> None:
    """However many distinct requests and hosts one guest asks for, what another asked for is not worked out again."""
    evaluator, flood = Evaluator([load(ELSEWHERE)]), Guest("flood")
    hot = request("GET https://a.test/pub/hot")
    evaluator.judge_request(hot, NOW)
    evaluator.judge_connect(hot.guest, hot.target, NOW)
    key = (hot.target, "GET", "/pub/hot", "", ())
    first = evaluator._plans.get(hot.guest, key), evaluator._connects.get(hot.guest, hot.target)
    assert None not in first
    for number in range(CACHED_PLANS + 1000):
        asked = msgspec.structs.replace(hot, guest=flood, path=f"/pub/{number}")
        assert evaluator.judge_request(asked, NOW).allowed
    for number in range(CACHED_TARGETS + 1000):
        evaluator.judge_connect(flood, parse_authority(f"h{number}.test", "https"), NOW)
    kept = evaluator._plans.get(hot.guest, key), evaluator._connects.get(hot.guest, hot.target)
    assert kept[0] is first[0] and kept[1] is first[1]
    assert CACHED_PLANS // 8 < len(evaluator._plans) <= CACHED_PLANS // 4
    assert CACHED_TARGETS // 8 < len(evaluator._connects) <= CACHED_TARGETS // 4


def test_the_trace_names_every_rule_that_covers() -> None:
    """Denies first, with what each says."""
    found = Evaluator([load(DENY_WHEN)]).trace(request("POST https://a.test/", body="x"), NOW)
    assert [(rule.id, said.name) for rule, said in found] == [("ban", "UNKNOWN"), ("all", "YES")]


NO_DELETE = """
- id: all
  allow: {hosts: [a.test]}
- id: no-delete
  deny: {hosts: [a.test], methods: [DELETE]}
  except: {methods: [DELETE], paths: ["/tmp/**"]}
"""


@pytest.mark.parametrize("name", ["x-http-method-override", "x-method-override", "x-http-method", "x_http_method"])
@pytest.mark.parametrize("value", ["DELETE", "delete", " Delete ", "PUT, DELETE"])
def test_a_ban_of_a_method_covers_headers_that_ask_for_it(name: str, value: str) -> None:
    """An origin may take X-HTTP-Method-Override and its kin for the method: a deny on methods covers both."""
    verdict = judge(load(NO_DELETE), "POST https://a.test/x", headers={name: value})
    assert (verdict.reason, verdict.rule) == (Reason.RULE_DENIED, "no-delete")


def test_an_override_is_not_a_ban_by_itself() -> None:
    """Another method in the header, or a header without that meaning, is not what the deny is about."""
    assert judge(load(NO_DELETE), "POST https://a.test/x", headers={"x-http-method-override": "GET"}).allowed
    assert judge(load(NO_DELETE), "POST https://a.test/x", headers={"x-method": "DELETE"}).allowed


def test_an_exception_lifts_only_what_it_covers_in_each_reading() -> None:
    """An exception must cover the method and what may override it, and the path in each reading."""
    policy = load(NO_DELETE)
    assert judge(policy, "DELETE https://a.test/tmp/x").allowed
    assert judge(policy, "DELETE https://a.test/tmp/x%20y.").allowed
    assert not judge(policy, "POST https://a.test/tmp/x", headers={"x-http-method-override": "DELETE"}).allowed
    assert not judge(policy, "DELETE https://a.test/tmp/x", headers={"x-http-method": "PUT"}).allowed
    assert not judge(policy, "DELETE https://a.test/tmp/%E2%80%A5/x").allowed
    assert not judge(policy, "DELETE https://a.test/tmp/x%EF%BC%8F..%EF%BC%8F..%EF%BC%8Fy").allowed


CALLS = """
- id: calls
  allow: {hosts: [a.test], paths: ["/models/*:run", "/projects/*/issues", "/files/**", /odd%3Fname]}
  encoded_slash: true
"""


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/models/x:run", True),
        ("/models/x:delete%3F:run", False),  # cut at the question mark
        ("/models/x:delete%23:run", False),
        ("/models/x%5C..%5C..%5Cadmin:run", None),  # no canonical path
        ("/models/x%EF%BC%8F..%EF%BC%8F..%EF%BC%8Fy:run", False),  # full-width slashes
        ("/models/x%20y:run", True),
        ("/projects/a%2Fb/issues", True),  # what encoded_slash is for
        ("/projects/a%2F..%20%2F..%20%2Fb/issues", False),  # dot segments once blanks are off
        ("/projects/%E2%80%A5/issues", False),
        ("/files/a%20b/c%3F", True),
        ("/files/x%2Fy", True),
        ("/files/%E2%80%A5/%E2%80%A5/admin", False),
        ("/projects/%E2%80%8B/issues", False),  # nothing to be seen: no project
        ("/odd%3Fname", True),  # written in the rule
    ],
)
def test_an_allow_covers_a_path_in_each_reading(path: str, allowed: bool | None) -> None:
    """What an origin may make of escapes, blanks and compatible characters must fit an allow's patterns, too."""
    if allowed is None:
        with pytest.raises(TargetError):
            canonical_path(path)
        return
    verdict = judge(load(CALLS), f"POST https://a.test{canonical_path(path)}")
    assert verdict.allowed is allowed
    assert allowed or "may read as another path" in verdict.message


@pytest.mark.parametrize("query", METHOD_QUERIES)
def test_a_ban_of_a_method_covers_a_parameter_that_asks_for_it(query: str) -> None:
    """Symfony, Laravel and others take `_method` from the query."""
    verdict = judge(load(NO_DELETE), f"POST https://a.test/x?{query}")
    assert (verdict.reason, verdict.rule) == (Reason.RULE_DENIED, "no-delete")
    assert judge(load(NO_DELETE), "POST https://a.test/x?method=DELETE&x_method=DELETE&q=_method%3DDELETE").allowed
    assert judge(load(NO_DELETE), "POST https://a.test/x?a%5B_method%5D=DELETE&%C3%A9=DELETE").allowed


ELSEWHERE = """
- id: pub
  allow: {hosts: [a.test], methods: [GET, POST], paths: ["/pub/**", "/free/*"]}
- id: no-admin
  deny: {hosts: [a.test], paths: ["/pub/admin/**"]}
  except: {guests: {team: research}, paths: [/pub/admin/log]}
"""


@pytest.mark.parametrize(
    "name", ["x-original-url", "x-rewrite-url", "x_original_url", "x.forwarded.uri", "x-original-uri"]
)
@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("/pub/x", "/pub/y", Reason.ALLOWED),
        ("/pub/x", "/free/y", Reason.ALLOWED),
        ("/pub/x", "/pub/admin/keys", Reason.RULE_DENIED),
        ("/pub/x", "/pub/Admin%20/keys", Reason.RULE_DENIED),
        ("/pub/admin/log", "/pub/admin/log", Reason.ALLOWED),
        ("/pub/admin/log", "/pub/admin/keys", Reason.RULE_DENIED),
        ("/pub/admin/keys", "/pub/admin/log", Reason.RULE_DENIED),
        ("/pub/x", "/private", Reason.NO_RULE_MATCHED),
        ("/pub/x", "/free/a%3Fb/c", Reason.NO_RULE_MATCHED),
        ("/private", "/pub/x", Reason.NO_RULE_MATCHED),
        ("/pub/x", "/pub/../private", Reason.BAD_PATH),
        ("/pub/x", "/pub/y?admin=1", Reason.BAD_PATH),
        ("/pub/x", "https://a.test/pub/y", Reason.BAD_PATH),
        ("/pub/x", "pub/y", Reason.BAD_PATH),
    ],
)
def test_a_path_in_a_header_is_a_path(name: str, path: str, value: str, reason: Reason) -> None:
    """X-Original-URL and its kin name another reading of the path: denies cover it, allows and exceptions must."""
    verdict = judge(load(ELSEWHERE), f"GET https://a.test{path}", headers={name: value})
    assert verdict.reason is reason


def test_an_allow_covers_the_method_that_a_header_asks_for() -> None:
    """What an origin may take for the method must be allowed as well, and the denial says what was lacking."""
    verdict = judge(load(ELSEWHERE), "POST https://a.test/pub/x", headers={"x-http-method-override": "PATCH"})
    assert verdict.reason is Reason.NO_RULE_MATCHED
    assert "the method that a header" in verdict.message
    assert judge(load(ELSEWHERE), "POST https://a.test/pub/x", headers={"x-http-method-override": "GET"}).allowed


def test_a_request_names_few_other_paths() -> None:
    """Each is looked up, so there are four at most."""
    names = ("x-original-url", "x-rewrite-url", "x-original-uri", "x-forwarded-uri", "x-override-url")
    sent = {name: f"/pub/{index}" for index, name in enumerate(names)}
    assert judge(load(ELSEWHERE), "GET https://a.test/pub/x", headers=sent).reason is Reason.BAD_PATH


def test_a_request_names_few_other_methods() -> None:
    """Each is looked up, from headers and the query together: sixteen at most."""
    many = ",".join(f"M{number}" for number in range(8))
    query = "&".join(f"_method=Q{number}" for number in range(9))
    headers = {"x-http-method-override": many}
    assert judge(load(ELSEWHERE), "GET https://a.test/pub/x", headers=headers).reason is Reason.NO_RULE_MATCHED
    asked = f"GET https://a.test/pub/x?{query}"
    assert judge(load(ELSEWHERE), asked).reason is Reason.NO_RULE_MATCHED
    assert judge(load(ELSEWHERE), asked, headers=headers).reason is Reason.BAD_PATH


def test_overrides_do_not_fill_the_cache_with_what_a_guest_sends() -> None:
    """A plan is kept per method that a header may ask for, not per text that a guest puts there."""
    evaluator = Evaluator([load(NO_DELETE)])
    for size in range(100, 200):
        asked = request("POST https://a.test/x", headers={"x-http-method": "x" * size})
        assert evaluator.judge_request(asked, NOW).allowed
    assert len(evaluator._plans) == 1
