"""What is done ahead of requests is shared out: tunnels on which nothing is asked hold up no other guest's names."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from seamgate.upstream.ahead import MOST_AHEAD
from support.lab import ALLOW_ALL, OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.upstream import HttpUpstream, echo

RULE: dict[str, Any] = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "hosts": ["*.test"]}}
TUNNELS = MOST_AHEAD + 12


async def test_tunnels_to_names_that_are_slow_to_resolve() -> None:
    """One guest has so many look-ups ahead and no more; another one's tunnel has its own, and each tunnel a record."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as never_answers:
        never_answers.bind(("127.0.0.1", 0))
        settings: dict[str, Any] = {
            "entries": {"proxy": {"guest": ""}},
            "pool": {"preconnect": True},
            "dns": {"servers": [f"127.0.0.1:{never_answers.getsockname()[1]}"], "timeout_s": 30, "deadline_s": 30},
            "limits": {"resolve_timeout_s": 30},
        }
        async with Lab(HttpUpstream(echo), rules=[RULE], credential=False, settings=settings) as lab:
            ahead, login = lab.gateway.seam.lookups_ahead, proxy_authorization(TOKEN)
            tunnels = [await lab.connect(f"n{number}.test:443", login) for number in range(TUNNELS)]
            assert all(head.startswith(b"HTTP/1.1 200 ") for _, head in tunnels)
            assert len(ahead) == MOST_AHEAD
            tunnels.append(await lab.connect("other.test:443", proxy_authorization(OTHER_TOKEN)))
            assert len(ahead) == MOST_AHEAD + 1
            names = {task.get_name() for task in asyncio.all_tasks()}
            assert sum(name.startswith("resolve n") for name in names) == MOST_AHEAD
            assert "resolve other.test" in names
            client = await lab.tunnel("", login)  # a guest without room is served all the same
            assert (await client.ask("GET", "/x")).status == 200
            for line, _ in tunnels:
                line.close()
            await lab.until(lambda: len(lab.records) == TUNNELS + 2)
            told = await lab.told()
            assert told[0] == "GET /x allow allowed 200 complete"
            assert sum(each.endswith("deny guest_tls_failed 200 denied") for each in told) == TUNNELS + 1
