"""What an origin may take instead of a request's method and path: denied and audited, in each spelling."""

from __future__ import annotations

from typing import Any

import pytest

from support.lab import ALLOW_ALL, WITH_KEY, Lab
from support.line import Line
from support.overrides import METHOD_QUERIES
from support.upstream import HttpUpstream, RawUpstream, echo, ok

ONLY_POST = {"id": "post", "allow": {**ALLOW_ALL["allow"], "methods": ["POST"]}}
NO_DELETE = {"id": "no-delete", "deny": {"hosts": ["**.test"], "methods": ["DELETE"]}}


@pytest.mark.parametrize(
    ("rules", "settings", "reason"),
    [
        ((ONLY_POST,), None, "no_rule_matched"),
        ((ALLOW_ALL, NO_DELETE), None, "rule_denied"),
        ((WITH_KEY,), {"credentials": {"key": {"methods": ["POST"]}}}, "credential_unbound"),
    ],
)
async def test_a_parameter_asks_for_another_method(
    rules: tuple[dict[str, Any], ...], settings: dict[str, Any] | None, reason: str
) -> None:
    """An allow, a deny and a credential's binding hold for `_method` in whatever spelling a framework knows it by."""
    async with Lab(HttpUpstream(echo), rules=rules, settings=settings) as lab:
        client = await lab.tunnel()
        for query in METHOD_QUERIES:
            answer = await client.ask("POST", f"/x?{query}", body=b"x")
            assert (answer.status, answer.reason) == (403, reason), query
        await lab.audited(*[f"POST /x deny {reason} 403 denied"] * len(METHOD_QUERIES))
        assert not lab.upstream.received
        client.close()


@pytest.mark.parametrize("deny", [False, True])
@pytest.mark.parametrize(
    ("when", "path", "header"),
    [
        ('request.method == "POST"', "/public/x", b"x-http-method-override: DELETE"),
        ('request.method == "POST"', "/public/x?[method=DELETE", b"accept: */*"),
        ('request.path.startsWith("/public/")', "/public/x", b"x-original-url: /admin"),
        (
            'request.path.startsWith("/public/")',
            "/public/a%EF%BC%8F..%EF%BC%8F..%EF%BC%8Fadmin",
            b"accept: */*",
        ),
    ],
)
async def test_an_expression_on_method_or_path_is_asked_about_other_readings(
    when: str, path: str, header: bytes, deny: bool
) -> None:
    """An allow by `when` must hold for what an origin may read instead, a deny holds if it may: neither can be told."""
    allow = {"id": "some", "allow": ALLOW_ALL["allow"], "when": when}
    ban = {"id": "none", "deny": {"hosts": ["**.test"]}, "when": f"!({when})"}
    async with Lab(HttpUpstream(echo), rules=(ALLOW_ALL, ban) if deny else (allow,)) as lab:
        client = await lab.tunnel()
        assert (await client.ask("POST", "/public/y", body=b"x")).status == 200
        answer = await client.ask("POST", path, header, body=b"x")
        assert (answer.status, answer.reason) == (403, "unevaluable")
        denied = f"POST {path.partition('?')[0]} deny unevaluable 403 denied"
        await lab.audited("POST /public/y allow allowed 200 complete", denied)
        client.close()


@pytest.mark.parametrize(
    ("method", "path", "header"),
    [
        ("GET", "/x", b"x-http-method-override: POST"),
        ("PUT", "/x", b"x-http-method: PATCH"),
        ("GET", "/x?.method=POST", b"accept: */*"),
    ],
)
async def test_what_asks_for_another_method_is_not_sent_again(method: str, path: str, header: bytes) -> None:
    """An origin may take a GET for the POST that a header or `_method` asks for: it gets that once."""

    async def stale(line: Line) -> None:
        await line.request()
        await line.send(ok(b"warm"))
        await line.head()
        line.reset()

    async with Lab(RawUpstream(stale), credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/warm")).body == b"warm"
        answer = await client.ask(method, path, header, body=b"" if method == "PUT" else None)
        assert answer.reason == "upstream_closed"
        assert sum(line.received.count(f"{method} {path}".encode()) for line in lab.upstream.lines) == 1
        await lab.audited("GET /warm allow allowed 200 complete", f"{method} /x allow upstream_closed 502 failed")
