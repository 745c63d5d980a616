"""What policy says of streams that outlive a request: WebSockets (`upgrade:`) and tcp (`protocol: tcp`)."""

from __future__ import annotations

import pytest

from seamgate.errors import ConfigError, Reason
from seamgate.flow import Guest, Target
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.model import Policy
from seamgate.verdict import Effect, Verdict
from unit.policy.ask import GUEST, NOW, judge, load, request

PLAIN = "- {id: plain, allow: {hosts: [ws.test]}}"
SOCKET = (
    "- {id: socket, allow: {hosts: [ws.test], methods: [GET], paths: [/chat]}, upgrade: websocket, credential: key}"
)


def test_an_upgrade_needs_a_rule_that_says_so() -> None:
    """A rule without `upgrade` allows the request, but not what it is to become."""
    verdict = judge(load(PLAIN), "GET wss://ws.test/chat")
    assert (verdict.effect, verdict.reason, verdict.rule) == (Effect.DENY, Reason.UPGRADE_REFUSED, "plain")
    assert "upgrade" in verdict.message
    assert judge(load(PLAIN), "GET https://ws.test/chat").allowed


def test_a_rule_with_upgrade_allows_it_and_the_plain_request() -> None:
    """The key widens a rule; only of an upgrade does the verdict say what it may become."""
    for policy in (load(SOCKET), load(f"{PLAIN}\n{SOCKET}")):
        verdict = judge(policy, "GET wss://ws.test/chat")
        assert (verdict.effect, verdict.rule, verdict.upgrade) == (Effect.ALLOW, "socket", "websocket")
        assert verdict.credentials == ("key",)
        assert judge(policy, "GET https://ws.test/chat").upgrade == ""


def test_an_upgrade_beyond_the_rule_is_refused_for_what_it_lacks() -> None:
    """Where no rule covers the request at all, the denial is the usual one."""
    assert judge(load(SOCKET), "GET wss://ws.test/other").reason is Reason.NO_RULE_MATCHED
    assert judge(load(SOCKET), "GET wss://other.test/chat").reason is Reason.NO_RULE_MATCHED
    assert judge(load(f"{PLAIN}\n{SOCKET}"), "GET wss://ws.test/other").reason is Reason.UPGRADE_REFUSED


def test_every_layer_has_to_allow_an_upgrade() -> None:
    """A lower layer can't widen what an upper one allows."""
    org, team = load(PLAIN.replace("plain", "org"), layer="org"), load(SOCKET)
    assert judge([org, team], "GET wss://ws.test/chat").reason is Reason.UPGRADE_REFUSED
    org = load("- {id: org, allow: {hosts: [ws.test]}, upgrade: websocket}", layer="org")
    assert judge([org, team], "GET wss://ws.test/chat").allowed


def test_a_deny_covers_upgrades() -> None:
    """Whatever the allow says."""
    policy = load(f"{SOCKET}\n- {{id: ban, deny: {{paths: [/chat]}}}}")
    assert judge(policy, "GET wss://ws.test/chat").rule == "ban"


def test_conditions_hold_for_upgrades() -> None:
    """Headers of the handshake can be asked for."""
    policy = load("- {id: v, allow: {hosts: [ws.test], headers: {sec-websocket-protocol: chat}}, upgrade: websocket}")
    assert judge(policy, "GET wss://ws.test/", headers={"sec-websocket-protocol": "chat"}).allowed
    assert not judge(policy, "GET wss://ws.test/", headers={"sec-websocket-protocol": "x"}).allowed


# -- tcp -------------------------------------------------------------------------------------------------------------

DB = """
- {id: db, allow: {hosts: [db.test], ports: [5432], protocol: tcp}, guests: {team: research}, addresses: [private]}
"""


def connect(policies: Policy | list[Policy], host: str, port: int, *, scheme: str = "tcp", **labels: str) -> Verdict:
    loaded = policies if isinstance(policies, list) else [policies]
    guest = Guest("g", labels) if labels else GUEST
    return Evaluator(loaded).judge_connect(guest, Target(scheme, host, port), NOW)


def test_a_tcp_rule_allows_a_stream_to_its_hosts_and_ports_only() -> None:
    """The verdict is final, names the rule and brings the addresses along."""
    verdict = connect(load(DB), "db.test", 5432)
    assert (verdict.effect, verdict.rule, verdict.addresses) == (Effect.ALLOW, "db", ("private",))
    for host, port, labels in [("db.test", 5433, {}), ("x.test", 5432, {}), ("db.test", 5432, {"team": "sales"})]:
        assert connect(load(DB), host, port, **labels).reason is Reason.NO_RULE_MATCHED


def test_a_tcp_rule_allows_no_request_and_a_request_rule_no_stream() -> None:
    """What is judged one by one and what is passed on unread have nothing in common."""
    both = load("- {id: web, allow: {hosts: [db.test], ports: [5432], schemes: [http, https]}}")
    assert connect(both, "db.test", 5432).effect is Effect.DENY
    assert connect(load(DB), "db.test", 5432, scheme="https").effect is Effect.DENY
    assert not judge(load(DB), "GET https://db.test:5432/").allowed
    assert not judge(load(DB), "GET http://db.test:5432/").allowed


def test_a_name_may_be_resolved_for_a_stream() -> None:
    """A host at any port is one that some rule names."""
    assert connect(load(DB), "db.test", 0, scheme="https").effect is Effect.DEFER


@pytest.mark.parametrize(
    ("deny", "denied"),
    [
        ("deny: {hosts: [db.test]}", True),
        ("deny: {ports: [5432]}", True),
        ("deny: {hosts: [db.test], methods: [DELETE]}", True),
        ("deny: {hosts: [db.test], paths: [/admin]}", True),
        ("deny: {hosts: [db.test], headers: {x: true}}", True),
        ("deny: {hosts: [db.test], methods: [DELETE], schemes: [https, http]}", False),
        ("deny: {hosts: [db.test], schemes: [http]}", False),
        ("deny: {hosts: [other.test]}", False),
        ("deny: {hosts: [db.test]}, except: {guests: {team: research}}", False),
        ("deny: {hosts: [db.test]}, except: {ports: [5432]}", False),
        ("deny: {hosts: [db.test]}, except: {methods: [GET]}", True),
        ("deny: {hosts: [db.test]}, except: {guests: {team: research}, paths: [/x]}", True),
    ],
)
def test_a_deny_of_anything_there_denies_the_stream(deny: str, denied: bool) -> None:
    """What is in a stream can't be told, so a ban that may concern it holds, unless it names its schemes."""
    verdict = connect(load(f"{DB}\n- {{id: ban, {deny}}}"), "db.test", 5432)
    assert (verdict.effect is Effect.DENY) == denied
    assert verdict.rule == ("ban" if denied else "db")


def test_every_layer_has_to_allow_a_stream() -> None:
    """As with requests; addresses have to be named by each."""
    org = load("- {id: org, allow: {hosts: [db.test]}}", layer="org")
    assert connect([org, load(DB)], "db.test", 5432).effect is Effect.DENY
    org = load("- {id: org, allow: {hosts: ['**'], ports: ['*'], protocol: tcp}}", layer="org")
    assert connect([org, load(DB)], "db.test", 5432).addresses == ()


def test_an_audited_or_expired_rule_allows_no_stream() -> None:
    """As with requests."""
    assert connect(load(DB.replace("guests", "mode: audit, guests")), "db.test", 5432).effect is Effect.DENY
    assert connect(load(DB.replace("guests", "expires: 2026-01-01, guests")), "db.test", 5432).effect is Effect.DENY


def test_a_candidate_deny_is_recorded() -> None:
    """A deny in audit mode says what it would have done."""
    verdict = connect(load(f"{DB}\n- {{id: ban, deny: {{hosts: [db.test]}}, mode: audit}}"), "db.test", 5432)
    assert (verdict.effect, verdict.rule, verdict.would_rule) == (Effect.ALLOW, "db", "ban")


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("allow: {hosts: [a.test], protocol: tcp}", "needs ports"),
        ("allow: {hosts: [a.test], ports: [1], protocol: tcp, methods: [GET]}", "methods can't be told"),
        ("allow: {hosts: [a.test], ports: [1], protocol: tcp, paths: [/]}", "paths can't be told"),
        ("allow: {hosts: [a.test], ports: [1], protocol: tcp, schemes: [http]}", "schemes can't be told"),
        ("allow: {hosts: [a.test], ports: [1], protocol: tcp}, credential: key", "credential does not go with"),
        ("allow: {hosts: [a.test], ports: [1], protocol: tcp}, when: 'true'", "when does not go with"),
        ("allow: {hosts: [a.test], ports: [1], protocol: tcp}, upgrade: websocket", "upgrade does not go with"),
        ("allow: {hosts: [a.test], ports: [1], protocol: udp}", "protocol"),
        ("deny: {hosts: [a.test], protocol: tcp}", "protocol"),
        ("deny: {hosts: [a.test]}, upgrade: websocket", "upgrade belongs to an allow"),
        ("allow: {hosts: [a.test]}, upgrade: h2c", "upgrade"),
    ],
)
def test_what_has_no_meaning_is_refused(rule: str, complaint: str) -> None:
    """A key that could not be held to is an error, not a decoration."""
    with pytest.raises(ConfigError, match=complaint):
        load(f"- {{id: r, {rule}}}")


def test_upgrade_and_plain_request_are_remembered_apart() -> None:
    """The cache of decisions knows the one from the other, whichever comes first."""
    evaluator = Evaluator([load(PLAIN)])
    for line, allowed in [("GET https://ws.test/", True), ("GET wss://ws.test/", False)] * 2:
        assert evaluator.judge_request(request(line), NOW).allowed == allowed


def test_a_denied_tunnel_says_what_a_rule_for_streams_lacked() -> None:
    """The port, not that a tunnel is no stream: it would have become one."""
    assert connect(load(DB), "db.test", 5433, scheme="https").message.endswith(
        "nearest rule db: port 5433 is not 5432."
    )
