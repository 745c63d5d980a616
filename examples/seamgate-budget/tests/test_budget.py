"""What the budget says, and that it keeps the rules of every plugin. Run by `pytest` in the example's folder."""

from __future__ import annotations

import asyncio

import pytest
from seamgate_budget import BudgetPlugin

from seamgate import Reason, SeamgateError
from seamgate.testing import (
    Check,
    Recorded,
    RecordedUpstream,
    conformance,
    judge,
    make_context,
    make_guest,
    make_record,
    make_request,
    send,
)


@pytest.mark.parametrize("check", conformance(BudgetPlugin, name="budget", options={"requests": 1}), ids=str)
def test_conformance(check: Check) -> None:
    """It withstands what the field has met, is pure and quick, and tells no secret."""
    check()


def test_a_budget_is_each_guests_own() -> None:
    """Who used it up is told so; what was denied costs nothing; others go on."""
    plugin = BudgetPlugin(make_context(options={"requests": 2}))
    spender, saver = make_guest("spender"), make_guest("saver")
    asked = make_request("GET https://api.example.com/", guest=spender)
    for _ in range(2):
        assert judge(asked, plugins={"budget": plugin}).allowed
        plugin.request_done(make_record(asked))
    plugin.request_done(make_record(asked, verdict="deny", reason=Reason.RATE_LIMITED, status=429, outcome="denied"))
    denied = judge(asked, plugins={"budget": plugin})
    assert denied.verdict.reason is Reason.RATE_LIMITED
    assert denied.verdict.message == "guest spender has used its budget of 2 requests"
    assert judge(make_request("GET https://api.example.com/", guest=saver), plugins={"budget": plugin}).allowed


def test_what_was_answered_counts() -> None:
    """All the way, without a network: the answer is recorded, the third request is refused."""
    plugin = BudgetPlugin(make_context(options={"requests": 2}))
    upstream = RecordedUpstream({"GET https://api.example.com/": Recorded(body=b"fine")})

    async def three() -> list[int]:
        asked = "GET https://api.example.com/"
        return [(await send(asked, upstream=upstream, plugins={"budget": plugin})).status for _ in range(3)]

    assert asyncio.run(three()) == [200, 200, 429]
    assert len(upstream.received) == 2


@pytest.mark.parametrize("options", [{"requests": 0}, {"requests": "many"}, {"request": 2}])
def test_options_are_checked(options: dict[str, object]) -> None:
    """What makes no sense keeps the gateway from starting."""
    with pytest.raises(SeamgateError, match="its one option is `requests`"):
        BudgetPlugin(make_context(options=options))
