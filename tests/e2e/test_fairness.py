"""A guest that floods does not starve another: sessions upstream and connections here are shared out."""

from __future__ import annotations

import asyncio
from typing import Any

from support.client import Client
from support.lab import OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.upstream import HttpUpstream, Talk

SHARED: dict[str, Any] = {
    "entries": {"proxy": {"guest": ""}},
    "pool": {"isolation": "shared", "sessions_per_origin": 4, "guest_share": 0.75},
}


class Slow:
    """An app that holds every request of `/hold` until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.held = 0

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        await talk.body()
        if talk.target.startswith("/hold"):
            self.held += 1
            await self.go.wait()
        await talk.respond(200, talk.target.encode())


async def tunnel(lab: Lab, token: str) -> Client:
    """Open a tunnel as the guest of this token."""
    return await lab.tunnel("", proxy_authorization(token))


async def test_a_flood_leaves_sessions_for_others() -> None:
    """Forty requests that hang hold three of four sessions; another guest's are answered meanwhile, then all are."""
    slow = Slow()
    async with Lab(HttpUpstream(slow), settings=SHARED) as lab:
        flood = [await tunnel(lab, OTHER_TOKEN) for _ in range(12)]
        waiting = [asyncio.ensure_future(each.ask("GET", f"/hold/{n}")) for n, each in enumerate(flood)]
        await lab.until(lambda: slow.held == 3 and lab.gateway.seam.active == 12)
        quiet = await tunnel(lab, TOKEN)
        for number in range(5):
            assert (await quiet.ask("GET", f"/quick/{number}")).body == f"/quick/{number}".encode()
        assert slow.held == 3
        slow.go.set()
        answers = await asyncio.gather(*waiting)
        assert {answer.status for answer in answers} == {200}
        told = await lab.told()
        assert told[:5] == [f"GET /quick/{number} allow allowed 200 complete" for number in range(5)]
        assert len(told) == 17
