"""Policy tests as a user writes them: what is judged, what is expected, and what a mistake in the file says."""

from __future__ import annotations

import pytest

from seamgate.errors import ConfigError
from seamgate.flow import BodyState, Guest, Request, Target
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.testing import Judge, Result, parse_tests, run_suite
from seamgate.verdict import Effect, Verdict, allow
from unit.policy.ask import load

HEAD = "seamgate_test: 1\npolicy: [p.yaml]\nnow: 2026-12-01T09:00:00Z\n"
POLICY = load("""
    - id: post
      allow: {hosts: [a.test], methods: [POST], headers: {x-a: v}, json: {model: m}}
      guests: {team: research}
      credential: key
      limits: {request_body: 100B}
      expires: 2027-01-01
    - id: watch
      deny: {hosts: [a.test]}
      mode: audit
""")


class Direct:
    """The evaluator with a pinned clock."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.evaluator = Evaluator([POLICY])

    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        """As the plugin does."""
        return self.evaluator.judge_connect(guest, target, self.now)

    def judge_request(self, request: Request) -> Verdict:
        """As the plugin does."""
        return self.evaluator.judge_request(request, self.now)


def run(text: str) -> list[Result]:
    """Run a file's cases."""
    return list(run_suite(parse_tests(HEAD + text, "t.yaml"), Direct))


CASE = "request: POST https://a.test/x, guest: {team: research}, headers: {X-A: v}, json: {model: m}"


def test_what_is_as_expected_passes() -> None:
    """Effect, rule, credential and the rule in audit mode are compared."""
    (result,) = run(f"cases:\n  - {{{CASE}, expect: allow, rule: post, credential: key, would_deny: watch}}")
    assert result.passed, result.failures
    assert (result.phase, result.case.line) == ("body", 5)


@pytest.mark.parametrize(
    ("case", "failure"),
    [
        (CASE, "expected deny, got allow by post"),
        (f"{CASE}, expect: allow, rule: other", "expected rule other, got post"),
        (f"{CASE}, expect: allow, credential: [x, z]", "expected credential x, z, got key"),
        (f"{CASE}, expect: allow, would_deny: ''", "expected would_deny none, got watch"),
        (f"{CASE}, expect: allow, reason: revoked", "expected reason revoked, got allowed"),
        ("request: GET https://a.test/, expect: allow", "expected allow, got deny: No rule allows https://a.test"),
    ],
)
def test_what_is_not_as_expected_fails_with_a_sentence(case: str, failure: str) -> None:
    """Each difference is told."""
    (result,) = run(f"cases:\n  - {{{case}}}")
    assert not result.passed
    assert any(each.startswith(failure) for each in result.failures), result.failures


@pytest.mark.parametrize(
    ("case", "phase", "reason"),
    [
        ("request: POST https://b.test/", "connect", "no_rule_matched"),
        ("request: POST http://a.test/, guest: {team: research}", "head", "no_rule_matched"),
        ("request: GET https://a.test/, guest: {team: research}", "head", "no_rule_matched"),
        ("request: POST https://a.test/a/../b", "parse", "bad_path"),
        ("request: POST https://0x7f.1/", "parse", "bad_target"),
        ("request: 'POST https://a.test:0443/'", "parse", "bad_target"),
        (CASE.replace("model: m", "model: x"), "body", "no_rule_matched"),
        (CASE.replace("model: m", f"model: m, pad: {'x' * 100}"), "body", "body_too_large"),
        (f"{CASE}, now: 2027-02-01T00:00:00Z", "connect", "no_rule_matched"),
    ],
)
def test_cases_are_judged_in_the_phases_of_an_exchange(case: str, phase: str, reason: str) -> None:
    """Parsing, tunnel, head, body: each can be the end, and what is not listed is expected to be denied."""
    (result,) = run(f"cases:\n  - {{{case}, reason: {reason}}}")
    assert result.passed, result.failures
    assert result.phase == phase


def test_a_matrix_expects_denial_of_what_it_does_not_list() -> None:
    """Each guest with each request; only the listed ones are allowed."""
    results = run("""
guests: {research: {team: research}, ops: {team: ops}}
requests:
  good: {request: POST https://a.test/, headers: {x-a: v}, json: {model: m}}
  bare: {request: POST https://a.test/}
matrix:
  - expect: {research: {good: {expect: allow, rule: post}}}
  - {guests: [ops], requests: [bare]}
""")
    assert [(each.case.name, each.passed) for each in results] == [
        ("research x good", True), ("research x bare", True), ("ops x good", True), ("ops x bare", True),
        ("ops x bare", True),
    ]  # fmt: skip
    assert results[0].case.guest.id == "research"


class Recorder:
    """Allows everything, defers while the body is pending, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        """Note the tunnel."""
        self.asked.append(target.authority)
        return Verdict(Effect.DEFER)

    def judge_request(self, request: Request) -> Verdict:
        """Note the phase."""
        self.asked.append((request.id, request.body_state, request.body))
        return Verdict(Effect.DEFER) if request.body_state is BodyState.PENDING else allow()


def test_a_judge_sees_what_the_pipeline_would_see() -> None:
    """Tunnel, head with the body pending, then the body; a new id each time."""
    recorder = Recorder()
    suite = parse_tests(HEAD + "cases: [{request: POST https://a.test/, body: x, times: 2, expect: allow}]", "t")

    def new_judge(now: float) -> Judge:
        assert now == 1796115600.0
        return recorder

    assert [each.passed for each in run_suite(suite, new_judge)] == [True]
    assert recorder.asked == [
        "a.test", ("test-0", BodyState.PENDING, None), ("test-0", BodyState.COMPLETE, b"x"),
        "a.test", ("test-1", BodyState.PENDING, None), ("test-1", BodyState.COMPLETE, b"x"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "there is no case"),
        (HEAD + "cases: [{request: GET a.test}]", "4:19: 'GET a.test' is not METHOD URL"),
        (HEAD + "requests: {good: {request: GET https://a.test/}}\ncases: [{request: god}]", "did you mean 'good'?"),
        (HEAD + "cases: [{request: GET https://a.test/, guest: nobody}]", "no guest 'nobody' under guests"),
        (HEAD + "cases: [{request: GET https://a.test/, expect: maybe}]", "4:48: cases[0].expect"),
        (HEAD + "cases: [{request: GET https://a.test/, reason: rule_denyed}]", "did you mean 'rule_denied'?"),
        (HEAD + "cases: [{request: GET https://a.test/, exepct: allow}]", "did you mean 'expect'?"),
        (HEAD + "cases: [{request: POST https://a.test/, json: {}, body: x}]", "either json or body"),
        (HEAD + "cases: [{request: POST https://a.test/, headers: {Expect: 100-continue}}]", "policy never sees it"),
        (HEAD + "cases: [{request: POST https://a.test/, now: today}]", "is not a time"),
        (HEAD + "matrix: [{guests: [a]}]", "there is no guest 'a'"),
        (HEAD + "guests: {a: {}}\nmatrix: [{expect: {b: {}}}]", "the guest 'b' is not in this matrix"),
        (HEAD + "guests: {a: {}}\nmatrix: [{expect: {a: {r: allow}}}]", "the request 'r' is not in this matrix"),
        ("seamgate_test: 1\npolicy: []\nnow: x\n", "policy: expected a list of length >= 1"),
        ("seamgate_test: 1\npolicy: [p]\nnow: 2026-12-01\ncases: []", "3:6: '2026-12-01' is not a time"),
    ],
)
def test_mistakes_in_a_test_file_are_told_with_their_place(text: str, message: str) -> None:
    """A test that can't be run is an error, never a pass."""
    with pytest.raises(ConfigError) as caught:
        parse_tests(text, "t.yaml")
    assert message in str(caught.value)


def test_websockets_and_streams_can_be_tested() -> None:
    """`wss://` is a request that is to become a WebSocket, `CONNECT tcp://` a stream that is passed on unread."""
    policy = load("""
        - {id: socket, allow: {hosts: [a.test]}, upgrade: websocket}
        - {id: plain, allow: {hosts: [b.test]}}
        - {id: db, allow: {hosts: [a.test], ports: [5432], protocol: tcp}}
    """)
    cases = """cases:
      - {request: GET wss://a.test/chat, expect: allow, rule: socket}
      - {request: GET wss://b.test/chat, reason: upgrade_refused}
      - {request: "CONNECT tcp://a.test:5432", expect: allow, rule: db}
      - {request: "CONNECT tcp://a.test:22", reason: no_rule_matched}
    """

    class Judged(Direct):
        def __init__(self, now: float) -> None:
            self.now = now
            self.evaluator = Evaluator([policy])

    results = list(run_suite(parse_tests(HEAD + cases, "t.yaml"), Judged))
    assert [result.failures for result in results] == [()] * 4
