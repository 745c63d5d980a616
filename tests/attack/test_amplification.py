"""What a guest sends costs the gateway no more than is counted for it, and nothing of it stays when it is answered."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from seamgate.policy.evaluation import CACHED_SIZE, Evaluator
from seamgate.protocol import http2_frames as wire
from support.http2 import tunnel
from support.lab import ALLOW_ALL, Lab
from support.upstream import HttpUpstream, echo

PORTS = ["1-65535"]
GETS: list[dict[str, Any]] = [
    {"id": "get", "allow": {"hosts": ["api.test"], "ports": PORTS, "methods": ["GET"], "paths": ["/ok/**"]}},
    {"id": "no-debug", "deny": {"hosts": ["api.test"], "paths": ["/debug/**"], "query": {"debug": True}}},
]


# -- memory ------------------------------------------------------------------------------------------------------------


async def test_long_paths_are_not_remembered() -> None:
    """No plan is kept for a path or an override that is long, allowed or denied; a sentence shows its beginning."""
    async with Lab(HttpUpstream(echo), rules=GETS, credential=False) as lab:
        client = await lab.tunnel()
        plans = [each._plan_of for each in gc.get_objects() if isinstance(each, Evaluator) and "no-debug" in each.rules]
        for number in range(20):
            long = f"{number}{'x' * (CACHED_SIZE + number)}"
            assert (await client.ask("GET", f"/no/{long}")).reason == "no_rule_matched"
            assert (await client.ask("GET", f"/ok/{long}")).status == 200
            header = f"x-original-url: /no/{long}".encode()
            assert (await client.ask("GET", "/ok/a", header)).reason == "no_rule_matched"
        assert sum(each.cache_info().currsize for each in plans) == 0
        assert (await client.ask("GET", "/no/short")).reason == "no_rule_matched"
        assert sum(each.cache_info().currsize for each in plans) == 1
        told = await lab.told()
        assert len(told) == 61
        assert sum("deny no_rule_matched 403 denied" in each for each in told) == 41
        assert max(len(record.message) for record in lab.records) < 2 * CACHED_SIZE


JUDGED: dict[str, Any] = {"id": "no-y", "deny": {"hosts": ["api.test"], "methods": ["POST"], "json": {"x": "y"}}}


@pytest.mark.parametrize("size", [1, 2, 700])
async def test_tiny_pieces_that_wait_take_what_is_counted_of_them(size: int) -> None:
    """A body that a rule waits for, in frames of two bytes: what holds it is hardly larger than `held_bytes` says."""
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, JUDGED], credential=False) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/x", (b"content-type", b"application/json"), method="POST")
        body = b'{"x": "y", "z": "' + b"a" * 40_000
        frames = [wire.write_frame(wire.DATA, 0, stream, body[at : at + size]) for at in range(0, len(body), size)]
        await guest.raw(*frames)
        held = lab.gateway.seam.held
        await lab.until(lambda: held.used_bytes == len(body))
        exchange: Any = next(iter(lab.gateway.seam.under_way))
        pieces = exchange._upload.held
        assert b"".join(pieces) == body
        assert sum(map(sys.getsizeof, pieces)) + sys.getsizeof(pieces) < 1.1 * len(body)
        await guest.data(stream, b'"}', ended=True)
        assert (await guest.answer(stream)).reason == "rule_denied"
        await lab.audited("POST /x deny rule_denied 403 denied")
        assert held.used_bytes == 0
