"""What says how a body is read, spelt so that a server may take it for something else than was judged."""

from __future__ import annotations

import pytest

from support.lab import ALLOW_ALL, Lab
from support.upstream import HttpUpstream, echo


@pytest.mark.parametrize("coding", [b"gzip;q=1", b'"gzip"', b"gzip br", b"gzip/1"])
async def test_a_coding_that_is_no_name_is_refused(coding: bytes) -> None:
    """A lenient server may see one in it that nobody took off here. What is a name, if not a known one, passes."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"content-encoding: " + coding, body=b"x")
        assert answer.reason == "body_undecodable"
        assert (await client.ask("POST", "/x", b"content-encoding: foo,", body=b"x")).status == 200
        client.close()
        await lab.audited(f"POST /x deny body_undecodable {answer.status} denied", "POST /x allow allowed 200 complete")


PLAIN = {"id": "plain", "allow": {**ALLOW_ALL["allow"], "headers": {"content-type": "text/plain*"}}}


@pytest.mark.parametrize(
    "headers",
    [
        [b"content-type: text/plain, application/json"],
        [b"content-type: text/plain", b"content-type: application/json"],
        [b"content-type: text/plain", b"content_type: application/json"],
        [b"content-type: text/plain;,application/json"],
    ],
)
async def test_two_media_types_are_none(headers: list[bytes]) -> None:
    """A rule for text lets through nothing that a server could take for JSON by what it says of itself."""
    async with Lab(HttpUpstream(echo), rules=[PLAIN]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", *headers, body=b'{"a": 1}')
        assert answer.status == 403
        client.close()
        await lab.refused(f"POST /x deny {answer.reason} 403 denied")
