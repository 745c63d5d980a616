"""`seamgate_plugins.credentials`: supply, guard, redact."""

from __future__ import annotations

import asyncio
import base64
import inspect
import sys
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from seamgate import CredentialError, Direction, Guest, Inspector, Reason, Request, Supply
from seamgate.address import parse_authority
from seamgate.credentials.config import CredentialConfig
from seamgate.errors import ConfigError
from seamgate.flow import BodyState, Headers
from seamgate_plugins.credentials import CredentialsPlugin

VALUE = "sk-ant-api03-canary-4f1c9e7a"
RAW: dict[str, Any] = {
    "llm": {
        "source": {"env": "LLM_KEY"},
        "inject": {"header": "x-api-key"},
        "placeholder": "sk-ant-api03-placeholder",
        "hosts": ["api.example.com"],
        "methods": ["POST"],
        "paths": ["/v1/**"],
    },
    "git": {"source": {"env": "GIT_TOKEN"}, "hosts": ["git.example.com"]},
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", VALUE)
    monkeypatch.setenv("GIT_TOKEN", "ghp-canary-77777777")


def plugin(raw: dict[str, Any] | None = None, **options: Any) -> CredentialsPlugin:
    configs = msgspec.convert(RAW if raw is None else raw, dict[str, CredentialConfig])
    return CredentialsPlugin(cast("Any", SimpleNamespace(options=options, config=SimpleNamespace(credentials=configs))))


def request(
    headers: Headers = (),
    *,
    host: str = "api.example.com",
    path: str = "/v1/messages",
    scheme: str = "https",
    method: str = "POST",
    query: str | None = None,
    body: bytes | None = None,
) -> Request:
    state = BodyState.ABSENT if body is None else BodyState.COMPLETE
    target = parse_authority(host, scheme)
    return Request("1", Guest("g"), target, method, path, query, headers, body, state)


def basic(text: bytes) -> Headers:
    return ((b"authorization", b"Basic " + base64.b64encode(text)),)


# -- supply ----------------------------------------------------------------------------------------------------------


def test_a_value_at_hand_is_supplied_at_once() -> None:
    """Not as an awaitable."""
    supply = plugin().supply_credential(request(), "llm")
    assert isinstance(supply, Supply)
    assert supply.set_headers == ((b"x-api-key", VALUE.encode()),)


def test_a_value_that_takes_a_command_is_awaited() -> None:
    """Once; then it is at hand, and known to guard and redactor. Until then no answer of its host passes."""
    command = [sys.executable, "-I", "-S", "-c", "print('canary-of-a-command')"]
    one = plugin({"cmd": {"source": {"command": command}, "inject": {"bearer": True}, "hosts": ["api.example.com"]}})

    async def scenario() -> Supply:
        with pytest.raises(CredentialError, match="has given none yet") as caught:
            one.open_inspector(request(), Direction.RESPONSE)
        assert caught.value.reason is Reason.CREDENTIAL_UNAVAILABLE
        pending = one.supply_credential(request(), "cmd")
        assert inspect.isawaitable(pending)
        return await pending

    supply = asyncio.run(scenario())
    assert supply.set_headers == ((b"authorization", b"Bearer canary-of-a-command"),)
    assert isinstance(one.supply_credential(request(), "cmd"), Supply)
    verdict = one.judge_request(request(body=b"canary-of-a-command"))
    assert verdict is not None
    assert verdict.reason is Reason.SECRET_LEAVING
    inspector = one.open_inspector(request(), Direction.RESPONSE)
    assert inspector is not None
    assert inspector.feed(b"canary-of-a-command!") == b"[redacted:cmd]!"


def test_a_name_that_is_not_configured_is_left_to_others() -> None:
    """Another plugin may have it; if none has, the core denies."""
    assert plugin().supply_credential(request(), "other") is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scheme": "http"}, Reason.CREDENTIAL_OVER_PLAINTEXT),
        ({"host": "evil.example.com"}, Reason.CREDENTIAL_UNBOUND),
        ({"method": "GET"}, Reason.CREDENTIAL_UNBOUND),
        ({"path": "/v2/messages"}, Reason.CREDENTIAL_UNBOUND),
    ],
)
def test_outside_of_its_binding_nothing_is_supplied(change: dict[str, Any], reason: Reason) -> None:
    """Scheme, host, method and path; whatever the policy selected."""
    with pytest.raises(CredentialError) as caught:
        plugin().supply_credential(request(**change), "llm")
    assert caught.value.reason is reason
    assert "canary" not in caught.value.message


def test_plain_http_where_it_is_configured() -> None:
    """allow_http, for an upstream on loopback."""
    one = plugin({"llm": {**RAW["llm"], "allow_http": True}})
    assert isinstance(one.supply_credential(request(scheme="http"), "llm"), Supply)


def test_a_missing_value_is_unavailable() -> None:
    """Its reason says whom to ask."""
    command = [sys.executable, "-I", "-S", "-c", "raise SystemExit(1)"]
    one = plugin({"cmd": {"source": {"command": command}, "hosts": ["api.example.com"]}})

    async def scenario() -> None:
        await cast("Awaitable[Supply]", one.supply_credential(request(), "cmd"))

    with pytest.raises(CredentialError) as caught:
        asyncio.run(scenario())
    assert caught.value.reason is Reason.CREDENTIAL_UNAVAILABLE


# -- judge -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        request(),
        request(((b"x-api-key", b"sgph-llm"),)),
        request(((b"x-api-key", b"sk-ant-api03-placeholder"),)),
        request(basic(b"me:sgph-llm")),
        request(((b"authorization", b"Bearer sgph-llm"),)),
        request(basic(b"me:password"), host="other.example.com"),
        request(body=b"my key is sgph-llm"),
        request(body=b"about sgph-anything", host="other.example.com"),
        request(query="a=%20b", path="/v1/a%20b"),
    ],
)
def test_where_all_is_well_it_has_no_opinion(sent: Request) -> None:
    """It never allows: that is the policy's."""
    assert plugin().judge_request(sent) is None


@pytest.mark.parametrize(
    "sent",
    [
        request(((b"x-api-key", b"sgph-llm"),), host="evil.example.com"),
        request(((b"x-api-key", b"sgph-llm"),), method="GET"),
        request(((b"x-api-key", b"sgph-llm"),), path="/v2"),
        request(((b"x-api-key", b"sgph-git"),)),
        request(((b"x-api-key", b"sgph-nobody"),)),
        request(basic(b"me:sk-ant-api03-placeholder"), host="evil.example.com"),
        request(((b"x", base64.b64encode(b"sgph-llm")),)),
        request(((b"user-agent", b"sgph-llm"),)),
        request(((b"cookie", b"a=1; k=sk-ant-api03-placeholder"),)),
        request(((b"x-api-key", b"sgph-llm"), (b"referer", b"sgph-llm"))),
        request(path="/v1/sgph-llm"),
        request(query="key=sgph-llm"),
        request(query="key=sgph%2Dllm", host="evil.example.com"),
        request(body=b"sgph-llm", host="evil.example.com"),
        request(body=b'{"k": "sgph\\u002dllm"}', host="evil.example.com"),
    ],
)
def test_a_placeholder_in_the_wrong_place_is_denied(sent: Request) -> None:
    """Host, method, path, surface, spelling, name."""
    verdict = plugin().judge_request(sent)
    assert verdict is not None
    assert not verdict.allowed
    assert verdict.reason is Reason.PLACEHOLDER_MISPLACED


def test_a_placeholder_over_plain_http_is_denied() -> None:
    """Before anything is resolved, and by its own reason."""
    verdict = plugin().judge_request(request(((b"x-api-key", b"sgph-llm"),), scheme="http"))
    assert verdict is not None
    assert verdict.reason is Reason.CREDENTIAL_OVER_PLAINTEXT


def test_placeholders_in_bodies_may_pass_where_configured() -> None:
    """A placeholder is no secret; a real value still is."""
    one = plugin(placeholders_in_bodies="pass")
    assert one.judge_request(request(body=b"sgph-llm", host="other.example.com")) is None
    assert one.judge_request(request(body=VALUE.encode(), host="other.example.com")) is not None


@pytest.mark.parametrize("host", ["api.example.com", "evil.example.com"])
@pytest.mark.parametrize(
    "change",
    [
        {"headers": ((b"x-api-key", VALUE.encode()),)},
        {"headers": basic(b"me:" + VALUE.encode())},
        {"query": f"k={VALUE}"},
        {"path": f"/v1/{VALUE}"},
        {"body": f'{{"k": "{VALUE}"}}'.encode()},
        {"body": base64.encodebytes(b"x" * 40 + VALUE.encode() + b"y" * 90)},
        {"headers": ((VALUE.lower().encode(), b"1"),)},
    ],
)
def test_a_real_value_that_leaves_is_denied_everywhere(host: str, change: dict[str, Any]) -> None:
    """Even towards the host that it is for: a guest that knows it is an incident. The message does not hold it."""
    verdict = plugin().judge_request(request(host=host, **change))
    assert verdict is not None
    assert verdict.reason is Reason.SECRET_LEAVING
    assert "canary" not in repr(verdict)
    assert "'llm'" in verdict.message or "in lines" in verdict.message


def test_the_query_may_be_swapped_where_configured() -> None:
    """Then its placeholder is in its place."""
    one = plugin({"llm": {**RAW["llm"], "swap_query": True}})
    assert one.judge_request(request(query="key=sgph-llm")) is None
    supply = one.supply_credential(request(query="key=sgph-llm"), "llm")
    assert isinstance(supply, Supply)
    assert supply.query == f"key={VALUE}"


# -- redact ----------------------------------------------------------------------------------------------------------


def opened(one: CredentialsPlugin, host: str = "api.example.com") -> Inspector | None:
    return one.open_inspector(request(host=host), Direction.RESPONSE)


def test_a_response_of_a_bound_host_is_redacted() -> None:
    """Headers and body, and only the credentials of that host."""
    inspector = opened(plugin())
    assert inspector is not None
    assert inspector.head(((b"x-echo", VALUE.encode()),)) == ((b"x-echo", b"[redacted:llm]"),)
    assert inspector.feed(f"{VALUE} ghp-canary-77777777\n".encode()) == b"[redacted:llm] ghp-canary-77777777\n"


def test_other_hosts_and_requests_without_a_body_cost_nothing() -> None:
    """No inspector is opened; nor for a body that was searched when it was judged."""
    assert opened(plugin(), "other.example.com") is None
    assert plugin().open_inspector(request(), Direction.REQUEST) is None
    judged = msgspec.structs.replace(request(), body=b"x", body_state=BodyState.COMPLETE)
    assert plugin().open_inspector(judged, Direction.REQUEST) is None


def test_what_is_remembered_per_host_ends() -> None:
    """With a wildcard binding a guest could name hosts for ever."""
    one = plugin({"git": {"source": {"env": "GIT_TOKEN"}, "hosts": ["*.example.com"]}})
    for number in range(5000):
        assert opened(one, f"h{number}.example.com") is not None
    assert len(one.keeper._redaction) <= 4096


# -- start -----------------------------------------------------------------------------------------------------------


def test_a_missing_secret_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name of credential and variable."""
    monkeypatch.delenv("GIT_TOKEN")
    with pytest.raises(ConfigError, match=r"credential 'git'.*GIT_TOKEN is not set"):
        plugin()


def test_unknown_options_stop_the_start() -> None:
    """As everywhere."""
    with pytest.raises(ConfigError, match=r"options of the plugin credentials.*unknown field"):
        plugin(placeholder_in_body="pass")


def test_no_repr_shows_a_value() -> None:
    """Of the plugin, its parts, its supplies and its inspectors."""
    one = plugin()
    keeper = one.keeper
    parts = [one, keeper, keeper.credentials, keeper._scanner, keeper._redaction, one.placeholders, opened(one)]
    parts.append(one.supply_credential(request(), "llm"))
    assert "canary" not in repr(parts)
