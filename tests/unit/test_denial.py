"""What a refused guest is told: the code, the rule, what to do; nothing of its own request, in a form that parses."""

from __future__ import annotations

import json

import msgspec
import pytest

from seamgate.denial import denial_answer, denial_body, denial_headers, denial_remark
from seamgate.errors import Blame, Reason
from seamgate.protocol.http1 import write_response_head
from seamgate.protocol.http1_reader import ResponseReader
from seamgate.verdict import deny


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.ALLOWED])
def test_every_reason_can_be_told(reason: Reason) -> None:
    """Body and headers name the code; a client's parser reads both."""
    verdict = deny("because", reason=reason, rule="r-1")
    error = json.loads(denial_body(verdict, "id-1"))["error"]
    assert error["code"] == reason.value
    assert error["message"] == f"seamgate: because [{reason.value}]"
    assert (error["rule"], error["request_id"], error["blame"]) == ("r-1", "id-1", reason.blame.value)
    assert error["advice"]
    headers = dict(denial_headers(verdict))
    assert headers[b"x-seamgate-reason"] == reason.value.encode()
    assert headers[b"x-seamgate-rule"] == b"r-1"
    assert headers[b"proxy-status"].startswith(b"seamgate; error=")
    assert headers[b"cache-control"] == b"no-store"
    reader = ResponseReader()
    reader.expect("GET")
    reader.feed(write_response_head(reason.status, denial_headers(verdict), 0, keep_alive=True))
    assert getattr(reader.next_event(), "status", 0) == reason.status


def test_without_a_message_the_reasons_own_text_is_told() -> None:
    """Nobody gets an empty sentence."""
    error = json.loads(denial_body(deny("", reason=Reason.NO_RULE_MATCHED), "i"))["error"]
    assert Reason.NO_RULE_MATCHED.text in error["message"]
    assert error["rule"] is None


def test_git_is_told_in_plain_text() -> None:
    """git prints plain text only; who sends any other user agent gets JSON."""
    verdict = deny("no push here", reason=Reason.RULE_DENIED, rule="r-1")
    headers, body = denial_answer(verdict, "id-1", ((b"user-agent", b"git/2.39.5"),))
    assert body.startswith(b"seamgate: no push here [rule_denied]\n") and body.endswith(b"\nrequest id: id-1\n")
    assert dict(headers)[b"content-type"] == b"text/plain; charset=utf-8"
    assert dict(headers)[b"x-request-id"] == b"id-1"
    for asked in ((), ((b"user-agent", b"curl/8 git/2"),), ((b"x-agent", b"git/2"),)):
        headers, body = denial_answer(verdict, "id-1", asked)
        assert json.loads(body)["error"]["code"] == "rule_denied"
        assert dict(headers)[b"content-type"] == b"application/json"


def test_the_reason_stands_in_the_reason_phrase() -> None:
    """pip, npm and clients whose CONNECT is refused print the phrase, and nothing else of an answer."""
    remark = denial_remark(deny("x", reason=Reason.NO_RULE_MATCHED))
    head = write_response_head(403, (), 0, keep_alive=True, remark=remark)
    assert head.startswith(b"HTTP/1.1 403 Forbidden (seamgate: no_rule_matched)\r\n")


@pytest.mark.parametrize("rule", ["a\r\nx: y", 'a"b', "a b", "\u00e4", "a;b", "a,b"])
def test_an_odd_rule_id_splits_no_header(rule: str) -> None:
    """An id that is no token stands in the body only."""
    headers = denial_headers(deny("x", rule=rule))
    assert b"x-seamgate-rule" not in dict(headers)
    assert all(b"\r" not in value and b"seamgate-rule" not in value for _, value in headers)
    assert json.loads(denial_body(deny("x", rule=rule), "i"))["error"]["rule"] == rule


POLICY = {
    reason
    for reason in Reason
    if reason.blame is Blame.GUEST
    and reason.status in (403, 413, 499, 501)
    and reason not in (Reason.UNEVALUABLE, Reason.METHOD_REFUSED)
}


def test_who_should_retry() -> None:
    """What was refused by policy is refused again: SDKs are told not to retry; a limit and a fault may pass."""
    assert dict(denial_headers(deny("x")))[b"x-should-retry"] == b"false"
    busy = dict(denial_headers(deny("x", reason=Reason.UPSTREAM_BUSY)))
    assert (busy[b"x-should-retry"], busy[b"retry-after"]) == (b"true", b"1")
    assert b"retry-after" in dict(denial_headers(deny("x", reason=Reason.RATE_LIMITED)))
    asked = dict(denial_headers(deny("x", reason=Reason.UNAUTHENTICATED)))
    assert asked[b"proxy-authenticate"] == b'Basic realm="seamgate"'


def test_a_limit_says_how_long_to_wait() -> None:
    """A rate limit passes: SDKs are told to retry, after as long as the policy says."""
    told = dict(denial_headers(msgspec.structs.replace(deny("x", reason=Reason.RATE_LIMITED), retry_after_s=42)))
    assert (told[b"retry-after"], told[b"x-should-retry"]) == (b"42", b"true")


def test_each_reason_has_a_fitting_advice() -> None:
    """Whoever has to act is told so; what is malformed, unknown or over a limit is not blamed on the policy."""
    for reason in Reason:
        if reason is not Reason.ALLOWED:
            told = json.loads(denial_body(deny("x", reason=reason), "i"))["error"]["advice"]
            blames_policy = "decision of the policy" in told
            assert told and blames_policy == (reason in POLICY)
