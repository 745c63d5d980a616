"""What an exchange leaves behind: nothing that only the garbage collector could find."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from seamgate.entry.http1_guest import Http1Guest
from seamgate.entry.http2_guest import Http2Guest
from seamgate.entry.http2_stream import Http2Stream
from seamgate.entry.tunnel import Tunnel
from seamgate.exchange import Exchange
from seamgate.streams import TlsStream
from support.http2 import claimed, tunnel
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


@pytest.mark.parametrize("entry", ["tunnel", "http2", "base", "half a tunnel"])
async def test_a_finished_connection_is_gone_without_a_collection(entry: str) -> None:
    """A dead connection with TLS holds some 40 KB: thousands that wait for the collector would be hundreds of MB."""
    async with Lab(HttpUpstream(), credential=False) as lab:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                if entry == "half a tunnel":
                    line, _ = await lab.connect()
                elif entry == "http2":
                    guest = await tunnel(lab)
                    await guest.ask("/")
                    line = guest.line
                else:
                    client = await getattr(lab, entry)()
                    await client.ask("GET", "/api/x")
                    line = client.line
                line.close()
                await line.end()
            await lab.until(lambda: not lab.gateway.connections.all)
            await lab.until(lambda: not _left(lab))
        finally:
            gc.enable()
        await claimed(lab, len(lab.records))


def _left(lab: Lab) -> list[object]:
    """What there is of guests' connections and their TLS; the streams of sessions in the pool are not meant."""
    pool: Any = lab.gateway.seam.pool
    pooled = [session.transport for bucket in pool._buckets.values() for session in bucket.idle]
    kinds = (Http1Guest, Http2Guest, Http2Stream, Tunnel, TlsStream)
    return [each for each in gc.get_objects() if isinstance(each, kinds) and each not in pooled]
