"""What is told and recorded of an upstream's broken answer: nothing that the upstream chose, as it may be a value."""

from __future__ import annotations

import pytest

from seamgate.errors import Reason
from support.lab import SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, Talk

VALUE = SECRET.encode()
MESSAGE = b"\x01\0\0\0\x01x"
PLACES: dict[str, tuple[list[tuple[str, str]], bytes]] = {
    "a content coding": ([("content-encoding", SECRET)], b"x"),
    "one of several": ([("content-encoding", f"gzip, {SECRET}")], b"x"),
    "the coding of a message": ([("content-type", "application/grpc"), ("grpc-encoding", SECRET)], MESSAGE),
    "that of Connect's": (
        [("content-type", "application/connect+json"), ("connect-content-encoding", SECRET)],
        MESSAGE,
    ),
}


@pytest.mark.parametrize("what", PLACES)
async def test_a_value_in_what_is_refused_is_not_told(what: str) -> None:
    """The answer is refused, and neither the denial nor the journal has any of it."""
    headers, body = PLACES[what]

    async def app(talk: Talk) -> None:
        await talk.respond(200, body, headers)

    async with Lab(HttpUpstream(app), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        answer = await client.answer("GET")
        assert VALUE[:8] not in bytes(answer.body) + b"".join([value for _, value in answer.headers])
        client.close()
        [record] = await lab.audited(f"GET /x allow response_undecodable {answer.status} failed")
        assert record.reason is Reason.RESPONSE_UNDECODABLE and SECRET[:8] not in repr(record)
