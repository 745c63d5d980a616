"""What an exchange leaves behind: nothing that only the garbage collector could find."""

from __future__ import annotations

import gc

from seamgate.exchange import Exchange
from support.lab import WITH_KEY, Lab
from support.upstream import HttpUpstream


async def test_a_finished_exchange_is_gone_without_a_collection() -> None:
    """At thousands of requests a second, exchanges that hold themselves would keep the collector busy all the time."""
    async with Lab(HttpUpstream(), rules=[WITH_KEY], credential=True) as lab:
        client = await lab.tunnel()
        gc.collect()
        gc.disable()
        try:
            for number in range(5):
                await client.ask("GET", f"/{number}")
                await lab.audited(f"GET /{number} allow allowed 200 complete")
            left = [each for each in gc.get_objects() if isinstance(each, Exchange)]
        finally:
            gc.enable()
        assert not left
