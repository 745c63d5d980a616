"""Faults of plugins while an upstream speaks HTTP/2: each ends its exchange, and only that."""

from __future__ import annotations

from typing import Any

from seamgate import Direction, Reason, hookimpl
from seamgate.audit.record import Outcome
from seamgate.hookspecs import Inspector
from support.http2 import claimed
from support.http2_upstream import H2Upstream, echo2
from support.lab import Lab


class _Fails:
    """An inspector that fails at the first piece."""

    def head(self, headers: Any) -> Any:
        return headers

    def feed(self, data: bytes) -> bytes:
        raise RuntimeError("no")

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


class _Inspecting:
    @hookimpl
    def open_inspector(self, direction: Direction) -> Inspector | None:
        return _Fails() if direction is Direction.RESPONSE else None


async def test_an_inspector_that_fails_before_the_end_ends_the_exchange() -> None:
    """Also where the end of the answer has come with the piece at which it failed: nobody waits for ever."""
    async with Lab(H2Upstream(echo2), plugins=[("fails", _Inspecting())], credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/"))
        await client.line.end()
        (record,) = await claimed(lab, 1)
        assert (record.reason, record.outcome) == (Reason.PLUGIN_FAILED, Outcome.TRUNCATED)
