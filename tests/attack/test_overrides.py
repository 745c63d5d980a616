"""What an origin may take instead of a request's method and path: denied and audited, in each spelling."""

from __future__ import annotations

from typing import Any

import pytest

from support.lab import ALLOW_ALL, WITH_KEY, Lab
from support.overrides import METHOD_QUERIES
from support.upstream import HttpUpstream, echo

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
