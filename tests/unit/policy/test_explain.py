"""Denials teach: the nearest rule and what was lacking, at a bounded cost, without a value of the request."""

from __future__ import annotations

import pytest

from seamgate.flow import Guest
from seamgate.policy.conditions import View
from seamgate.policy.evaluation import Evaluator
from unit.policy.ask import GUEST, NOW, judge, load, request

RULES = load("""
    - id: llm-messages
      allow: {hosts: [api.llm.test], methods: [POST], paths: [/v1/messages]}
      guests: {team: research}
    - id: llm-models
      allow: {hosts: [api.llm.test], methods: [GET], paths: [/v1/models, /v1/models/*]}
    - id: packages
      allow: {hosts: ["*.packages.test"], methods: read}
      expires: 2026-11-30
    - id: ban
      deny: {hosts: [api.llm.test], paths: ["/v1/admin/**"]}
      reason: accounts are for people.
""")


@pytest.mark.parametrize(
    ("line", "guest", "message"),
    [
        (
            "GET https://api.llm.test/v1/messages",
            GUEST,
            (
                "No rule allows GET https://api.llm.test/v1/messages; nearest rule llm-messages: "
                "method GET is not one of POST."
            ),
        ),
        (
            "POST https://api.llm.test/v1/messages?key=hunter2",
            Guest("o", {"team": "ops"}),
            (
                "No rule allows POST https://api.llm.test/v1/messages; nearest rule llm-messages: "
                "the guest's label team is 'ops', not 'research'."
            ),
        ),
        (
            "POST https://api.llm.test/v1/messages",
            Guest("o"),
            (
                "No rule allows POST https://api.llm.test/v1/messages; nearest rule llm-messages: "
                "the guest has no label team."
            ),
        ),
        (
            "GET https://api.llm.test/v1/model",
            GUEST,
            (
                "No rule allows GET https://api.llm.test/v1/model; nearest rule llm-models: "
                "path /v1/model is not /v1/models or /v1/models/*."
            ),
        ),
        (
            "GET https://api.llm.test:8443/v1/models",
            GUEST,
            "No rule allows GET https://api.llm.test:8443/v1/models; nearest rule llm-models: port 8443 is not 443.",
        ),
        (
            "GET http://api.llm.test/v1/models",
            GUEST,
            "No rule allows GET http://api.llm.test/v1/models; nearest rule llm-models: scheme http is not https.",
        ),
        (
            "GET https://a.packages.test/x",
            GUEST,
            "No rule allows GET https://a.packages.test/x; nearest rule packages: it has expired.",
        ),
        (
            "GET https://www.llm.test/v1/models",
            GUEST,
            (
                "No rule allows GET https://www.llm.test/v1/models; nearest rule llm-models: "
                "host www.llm.test is not api.llm.test."
            ),
        ),
        ("GET https://example.org/", GUEST, "No rule allows GET https://example.org/."),
        ("GET https://api.llm.test/v1/admin/x", GUEST, "Rule ban denies it: accounts are for people."),
    ],
)
def test_a_denial_names_the_nearest_rule_and_what_it_lacked(line: str, guest: Guest, message: str) -> None:
    """One sentence for whoever asked; the query is never repeated."""
    assert judge(RULES, line, guest=guest).message == message


def test_a_tunnel_that_is_denied_teaches_too() -> None:
    """Also where only the host is known, also for a slip of the pen."""
    evaluator = Evaluator([RULES])
    asked = request("GET https://api.lm.test:443/")
    message = evaluator.judge_connect(GUEST, asked.target, NOW).message
    assert message.startswith("No rule allows https://api.lm.test; nearest rule llm-me")
    assert "host api.lm.test is not api.llm.test" in message


def test_without_an_enforced_policy_the_message_says_so() -> None:
    """A gateway that only audits denies everything, and says why."""
    audit = load("- id: a\n  allow: {hosts: [a.test]}", mode="audit")
    assert judge(audit, "GET https://a.test/").message == "No rule allows GET https://a.test/: no policy is enforced."


def test_unevaluable_says_what_could_not_be_read() -> None:
    """Both for the allow that would have and the deny that may."""
    allow = load("- id: a\n  allow: {hosts: [a.test]}\n  when: request.json.secret == 'x'")
    message = judge(allow, "POST https://a.test/", body='{"other": "hunter2"}').message
    assert message == (
        "Rule a would allow it, but when request.json.secret == 'x' can't be evaluated: 'secret' is not there."
    )
    ban = load("- id: all\n  allow: {hosts: [a.test]}\n- id: b\n  deny: {hosts: [a.test], query: {q: x}}")
    message = judge(ban, "GET https://a.test/?q=%ff").message
    assert message == ("Rule b may deny it: query q: x can't be evaluated: the query has escapes that are not UTF-8.")


def test_the_long_form_lists_what_each_rule_lacked() -> None:
    """Nearest first, conditions included, as many as asked for."""
    rules = load("""
        - id: near
          allow: {hosts: [a.test], query: {q: x}}
        - id: far
          allow: {hosts: [a.test], methods: [POST], paths: [/x], query: {q: x}}
    """)
    evaluator, asked = Evaluator([rules]), request("GET https://a.test/?q=z")
    found = evaluator.explainer.nearest(asked, None, NOW, view=View(asked), limit=5)
    assert [(near.rule.id, len(near.lacks)) for near in found] == [("near", 1), ("far", 3)]
    assert found[0].lacks == ("query q: x does not hold",)


def test_long_lists_are_cut() -> None:
    """A rule with a thousand hosts does not make a sentence of a thousand hosts."""
    hosts = ", ".join(f"h{i}.a.test" for i in range(1000))
    message = judge(load(f"- id: a\n  allow: {{hosts: [{hosts}]}}"), "GET https://x.a.test/").message
    assert message.endswith("host x.a.test is not h0.a.test or h1.a.test or h2.a.test or 997 more.")
