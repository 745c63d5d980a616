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


JUDGED = [
    {"id": "read", "allow": {**ALLOW_ALL["allow"], "json": {"action": "read"}}},
    {"id": "no-delete", "deny": {"hosts": ["api.test"], "json": {"action": "delete"}}},
]


@pytest.mark.parametrize("rules", [JUDGED[:1], [ALLOW_ALL, JUDGED[1]]], ids=["allow", "deny"])
@pytest.mark.parametrize("charset", [b"charset*=utf-8''utf-7", b"charset*0=utf; charset*1=-7", b"charset*0*=''utf-7"])
async def test_a_charset_in_pieces_is_none(rules: list[dict[str, object]], charset: bytes) -> None:
    """Some read `charset*` (RFC 2231) as the charset: to them this body's action is another one than was judged."""
    body = b'{"action":"read","note":"+ACI-,+ACI-action+ACI-:+ACI-delete"}'
    async with Lab(HttpUpstream(echo), rules=rules) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"content-type: application/json; " + charset, body=body)
        assert (answer.status, answer.reason) == (403, "unevaluable")
        client.close()
        await lab.refused("POST /x deny unevaluable 403 denied")
