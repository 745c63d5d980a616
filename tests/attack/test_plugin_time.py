"""A guest whose requests keep plugins busy again and again is refused for a while, and its neighbours are served."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from seamgate import Direction, Request, hookimpl
from support.client import Client
from support.lab import OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.reloads import reload
from support.upstream import HttpUpstream, echo

# The budget is far above what a busy machine makes of a quick call, and the account holds two calls that overrun it.
TIGHT: dict[str, Any] = {
    "entries": {"proxy": {"guest": ""}},
    "limits": {"plugin_budget_s": 1.0, "guest_plugin_s": 2.0},
}
OVERRUN_S = 1.05


class Chokes:
    """A plugin that takes long over what a guest sends: paths, or bodies."""

    @hookimpl
    def judge_request(self, request: Request) -> None:
        if request.path == "/choke":
            time.sleep(OVERRUN_S)

    @hookimpl
    def open_inspector(self, request: Request, direction: Direction) -> Any:
        return Slow() if direction is Direction.REQUEST and request.path == "/body" else None


class Slow:
    """An inspector that takes long over one word."""

    def head(self, headers: Any) -> Any:
        return headers

    def feed(self, data: bytes) -> bytes:
        if b"choke" in data:
            time.sleep(OVERRUN_S)
        return data

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


class Clock:
    """What accounts go by, in place of the machine's clocks: it stands until a test moves it.

    So an overrun costs its budget, and a call that a busy machine makes slow costs nothing.
    """

    def __init__(self, lab: Lab) -> None:
        self.now = 0.0
        accounts = lab.gateway.seam.pipeline.plugin_time
        accounts._clock = lambda: self.now
        accounts._processor, accounts._counted_s = lambda: 0.0, 0.0


async def tunnel(lab: Lab, token: str) -> Client:
    """Open a tunnel as the guest of this token."""
    return await lab.tunnel("", proxy_authorization(token))


async def overrun(client: Client, how: str) -> None:
    """Have a plugin overrun, once."""
    if how == "judge":
        answer = await client.ask("GET", "/choke")
    else:
        answer = await client.ask("POST", "/body", body=b"choke")
    assert (answer.status, answer.reason) == (503, "plugin_overrun")


@pytest.mark.parametrize("how", ["judge", "inspector"])
async def test_the_offender_is_refused_and_its_neighbour_served(how: str) -> None:
    """Two overruns fill the account: whatever the guest asks then is refused before any plugin is, tunnels too."""
    async with Lab(HttpUpstream(echo), settings=TIGHT, plugins=[("chokes", Chokes())]) as lab:
        Clock(lab)
        asked = "GET /choke" if how == "judge" else "POST /body"
        for _ in range(2):
            bad = await tunnel(lab, TOKEN)
            await overrun(bad, how)
            bad.close()
        good = await tunnel(lab, OTHER_TOKEN)
        _, head = await lab.connect(lab.authority(), proxy_authorization(TOKEN))
        assert head.startswith(b"HTTP/1.1 429 ") and b"retry-after: " in head.lower()
        for _ in range(3):
            assert (await good.ask("GET", "/x")).status == 200
        records = await lab.audited(
            *[f"{asked} deny plugin_overrun 503 denied"] * 2,
            f"CONNECT {lab.authority()} deny plugin_time_spent 429 denied",
            *["GET /x allow allowed 200 complete"] * 3,
        )
        assert [each.guest.id for each in records if each.guest is not None] == ["g", "g", "g", "h", "h", "h"]


async def test_requests_in_an_open_tunnel_are_refused_too() -> None:
    """The guest that has a connection already gains nothing by it; a reload forgets nothing; then it may come again."""
    async with Lab(HttpUpstream(echo), settings=TIGHT, plugins=[("chokes", Chokes())]) as lab:
        clock, idle = Clock(lab), await tunnel(lab, TOKEN)
        for _ in range(2):
            bad = await tunnel(lab, TOKEN)
            await overrun(bad, "judge")
            bad.close()
        reload(lab, settings=TIGHT)
        answer = await idle.ask("GET", "/x")
        assert (answer.status, answer.reason) == (429, "plugin_time_spent")
        assert "simpler or fewer" in answer.json["error"]["advice"]
        clock.now += 1.0
        again = await tunnel(lab, TOKEN)
        assert (await again.ask("GET", "/y")).status == 200
        await lab.audited(
            *["GET /choke deny plugin_overrun 503 denied"] * 2,
            "GET /x deny plugin_time_spent 429 denied",
            "GET /y allow allowed 200 complete",
        )


async def test_what_is_under_way_elsewhere_goes_on() -> None:
    """A neighbour's request that is on its way when another guest overruns is answered, and so is its next one."""
    async with Lab(HttpUpstream(echo), settings=TIGHT, plugins=[("chokes", Chokes())]) as lab:
        good, bad = await tunnel(lab, OTHER_TOKEN), await tunnel(lab, TOKEN)
        answers = await asyncio.gather(good.ask("GET", "/x"), bad.ask("GET", "/choke"))
        assert [answer.status for answer in answers] == [200, 503]
        assert lab.gateway.seam.pipeline.plugin_time.refusal("h") is None
        told = await lab.told()
        assert sorted(told) == [
            "GET /choke deny plugin_overrun 503 denied", "GET /x allow allowed 200 complete",
        ]  # fmt: skip
