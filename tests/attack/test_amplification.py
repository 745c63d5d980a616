"""What a guest sends costs the gateway no more than is counted for it, and nothing of it stays when it is answered."""

from __future__ import annotations

import gc
from typing import Any

from seamgate.policy.evaluation import CACHED_SIZE, Evaluator
from support.lab import Lab
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
