"""What tests of reloads share: streams that last, a reload of the lab's gateway, what a revocation looks like."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from seamgate.audit.record import AuditRecord
from seamgate.config import parse_config
from seamgate.reloading import ReloadReport
from support.client import Client
from support.lab import Lab, _merged
from support.upstream import Talk

OTHERS_ONLY = {"id": "others", "allow": {"hosts": ["other.test"], "ports": ["1-65535"]}}
NO_STREAMS = {"id": "no-streams", "deny": {"hosts": ["**"], "paths": ["/stream"], "ports": ["1-65535"]}}


class Streams:
    """An upstream app: sends an event, and a second one and the end once it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, talk: Talk) -> None:
        await talk.begin(200, [("content-type", "text/event-stream")])
        await talk.data(b"data: one\n\n")
        await self.go_on.wait()
        await talk.data(b"data: two\n\n")
        await talk.finish()


def reload(
    lab: Lab, rules: Sequence[Mapping[str, Any]] | None = None, settings: Mapping[str, Any] | None = None
) -> ReloadReport:
    """Have the lab's gateway take over other rules, and other settings over those of the lab."""
    if rules is not None:
        lab.write_policy(rules)
    written = _merged(lab.settings(), settings or {})
    return lab.gateway.reload(parse_config(json.dumps(written), "seamgate.yaml", base=lab.folder))


async def begin_stream(client: Client, path: str = "/stream", *, method: str = "GET") -> Any:
    """Ask for a stream and read its first event."""
    await client.send(client.request(method, path, body=b"{}" if method == "POST" else None))
    answer, h = await client.begin(method)
    assert answer.status == 200
    assert bytes((await client.event(h)).data) == b"data: one\n\n"
    return h


async def cut(client: Client, h: Any) -> None:
    """Assert that the stream ends, and that nobody could take its end for a clean one."""
    event = await client.event(h)
    assert type(event).__name__ == "ConnectionClosed"
    assert h.their_state.__name__ != "DONE"


def audited_as_revoked(record: AuditRecord, *, rule: str = "", generation: int = 2) -> None:
    """Assert what an operator needs to see of a revocation."""
    assert record.generation == generation
    assert record.rule == rule
    assert "a newly loaded policy ended it" in record.message
