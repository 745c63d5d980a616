"""What an HTTP/2 upstream must not say to a guest in the gateway's name."""

from __future__ import annotations

from typing import Any

from support.http2 import tunnel
from support.http2_upstream import H2Upstream, Talk2, echo2
from support.lab import Lab


async def test_a_407_of_the_upstream_is_none_of_the_gateways() -> None:
    """502 for its stream; the connection goes on."""

    async def app(talk: Talk2) -> None:
        if talk.target == "/bad":
            await talk.respond(407, b"no")
        else:
            await echo2(talk)

    async with Lab(H2Upstream(app)) as lab:
        upstream: Any = lab.upstream
        guest = await tunnel(lab)
        reply = await guest.ask("/bad")
        assert (reply.status, reply.reason) == (502, "upstream_protocol")
        assert (await guest.ask("/good")).status == 200
        assert len(upstream.links) == 1
        await lab.audited("GET /bad allow upstream_protocol 502 failed", "GET /good allow allowed 200 complete")
