"""The kit's builders and `judge`: what a gateway would say, and who said what."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate import Amendment, BodyState, Effect, Reason, Request, Response, Verdict, deny, hookimpl
from seamgate.errors import ConfigError, PluginRejected, TargetError
from seamgate.registry import register
from seamgate.testing import judge, make_guest, make_record, make_request, make_response, make_target

_POLICY = """\
seamgate: 1
rules:
  - {id: messages, allow: {hosts: [api.example.com], paths: [/v1], json: {model: m}}, guests: {team: research}}
  - {id: read, allow: {hosts: [api.example.com], methods: read}}
"""


class NoDrafts:
    """Denies by body, amends by header, denies by response."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        if request.body_state is BodyState.PENDING:
            return Verdict(Effect.DEFER, Reason.ALLOWED, message="The body is looked at.")
        return deny("no drafts") if b"draft" in (request.body or b"") else None

    @hookimpl
    def amend_request(self, request: Request) -> Amendment | None:
        return None if request.header(b"x-ours") is None else Amendment(remove_headers=(b"x-ours",))

    @hookimpl
    def judge_response(self, response: Response) -> Verdict | None:
        return deny("no redirects", reason=Reason.RESPONSE_DENIED) if response.status in range(300, 400) else None


def test_requests_are_built_as_the_gateway_parses_them() -> None:
    """Canonical target and path, headers as pairs of bytes, JSON declared as such; what is refused raises."""
    request = make_request("POST https://API.example.com:443/%7ea?b=1", headers={"X-A": ["1", "2"]}, json={"c": 1})
    assert (request.target.authority, request.path, request.query) == ("api.example.com", "/~a", "b=1")
    assert request.headers == ((b"x-a", b"1"), (b"x-a", b"2"), (b"content-type", b"application/json"))
    assert (request.body, request.body_state) == (b'{"c":1}', BodyState.COMPLETE)
    assert make_request("GET wss://api.example.com/").upgrade == "websocket"
    assert make_target("tcp://db.example.com:5432").scheme == "tcp"
    with pytest.raises(TargetError):
        make_request("GET https://127.1/")


def test_records_can_be_of_what_was_never_understood() -> None:
    """With a request its parts are there, without one they are not."""
    assert make_record(make_request("GET https://a.test/x")).request.path == "/x"  # type: ignore[union-attr]
    refusal = make_record(None, reason=Reason.BAD_REQUEST, verdict="deny", outcome="denied", status=400)
    assert (refusal.request, refusal.guest) == (None, None)


def test_without_a_policy_the_plugins_decide() -> None:
    """Everything is allowed but for what they deny, tunnels and WebSockets included."""
    plugins = {"drafts": NoDrafts()}
    assert judge("GET https://api.example.com/", plugins=plugins).allowed
    assert judge("CONNECT tcp://db.example.com:5432", plugins=plugins).allowed
    assert judge("GET wss://api.example.com/", plugins=plugins).verdict.upgrade == "websocket"
    denied = judge(make_request("POST https://api.example.com/", body="a draft"), plugins=plugins)
    assert (denied.allowed, denied.verdict.message) == (False, "no drafts")
    assert denied.said["drafts"] is not None
    assert denied.said["policy"].effect is Effect.ALLOW  # type: ignore[union-attr]


@pytest.mark.parametrize("as_file", [False, True])
def test_a_policy_is_judged_in_the_phases_of_an_exchange(as_file: bool, tmp_path: Path) -> None:
    """By the real policy plugin: tunnel, head, body; the rule that decides is named."""
    policy: str | Path = _POLICY
    if as_file:
        policy = tmp_path / "p.yaml"
        policy.write_text(_POLICY)
    research = make_guest("g", team="research")
    post = make_request("POST https://api.example.com/v1", guest=research, json={"model": "m"})
    judged = judge(post, policy=policy)
    assert (judged.rule, judged.phase) == ("messages", "body")
    assert judge("GET https://api.example.com/", policy=policy).phase == "head"
    assert judge("GET https://elsewhere.test/", policy=policy).phase == "connect"
    assert judge("POST https://api.example.com/v1", policy=policy).verdict.reason is Reason.NO_RULE_MATCHED


def test_amendments_are_applied_and_judged_again() -> None:
    """The request that is returned is the one that would leave."""
    judged = judge(make_request("GET https://a.test/", headers={"x-ours": "1"}), plugins={"drafts": NoDrafts()})
    assert (judged.phase, judged.request.headers) == ("amended", ())
    assert ("drafts", "amend_request", "amended") in [(s.plugin, s.hook, s.outcome) for s in judged.steps]


def test_a_plugin_that_does_not_wait_for_the_body_never_sees_it() -> None:
    """As in a gateway: a body is read before the verdict only if somebody defers."""

    class Hasty:
        @hookimpl
        def judge_request(self, request: Request) -> Verdict | None:
            return deny("no drafts") if b"draft" in (request.body or b"") else None

    judged = judge(make_request("POST https://a.test/", body="a draft"), plugins={"hasty": Hasty()})
    assert (judged.allowed, judged.phase) == (True, "head")


def test_a_response_is_judged_too() -> None:
    """If one is given, and the request was allowed."""
    moved = judge("GET https://a.test/", plugins={"drafts": NoDrafts()}, response=make_response(302))
    assert (moved.phase, moved.verdict.reason) == ("response", Reason.RESPONSE_DENIED)
    assert judge("GET https://a.test/", plugins={"drafts": NoDrafts()}, response=make_response(200)).allowed


def test_a_plugin_that_fails_denies_as_in_a_gateway() -> None:
    """An exception, a bad amendment, an overrun: denied by the name that the audit would have."""

    class Bad:
        @hookimpl
        def amend_request(self) -> Amendment:
            return Amendment(set_headers=((b"content-length", b"0"),))

    assert judge("GET https://a.test/", plugins={"bad": Bad()}).verdict.reason is Reason.PLUGIN_FAILED


def test_what_can_not_be_used_is_an_error() -> None:
    """A policy that can't be read, a plugin that can't be vouched for: as at the gateway's start."""
    with pytest.raises(ConfigError):
        judge("GET https://a.test/", policy="seamgate: 2\n")

    class Async:
        @hookimpl
        async def judge_request(self) -> None:
            return None

    with pytest.raises(PluginRejected):
        judge("GET https://a.test/", plugins={"async": Async()})
    judged = judge("GET https://a.test/", plugins={"drafts": register("drafts", NoDrafts(), ["secrets"])})
    assert judged.allowed
