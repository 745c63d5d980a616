"""A value in a request's body behind more codings than are taken off, unknown ones beside known, or S3's framing."""

from __future__ import annotations

import gzip
from typing import Any

import brotli
import pytest

from support.http2 import tunnel
from support.http2_upstream import H2Upstream, echo2
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, RawUpstream, echo, silent
from unit.protocol.test_aws_chunked import frame

VALUE = SECRET.encode()
TEXT = b"harmless " * 20
FOUR = gzip.compress(gzip.compress(gzip.compress(gzip.compress(VALUE))))
RULES = pytest.mark.parametrize("rule", [ALLOW_ALL, WITH_KEY], ids=["elsewhere", "its own host"])

HIDING: dict[str, tuple[bytes, bytes]] = {
    "four": (b"gzip, gzip, gzip, gzip", FOUR),
    "four and the framing": (b"aws-chunked, gzip, gzip, gzip, gzip", frame([FOUR])),
    "an unknown one below": (b"foo, gzip", gzip.compress(VALUE)),
    "an unknown one above": (b"br, foo", brotli.compress(VALUE)),
    "an unknown one between": (b"gzip, foo, gzip", gzip.compress(VALUE)),
    "the framing twice": (b"aws-chunked, aws-chunked", frame([frame([VALUE[:9], VALUE[9:]])])),
    "a framing that is none": (b"aws-chunked", VALUE[:9] + b"\n" + VALUE[9:]),
    "a framing that goes on": (b"aws-chunked, gzip", frame([gzip.compress(TEXT)]) + gzip.compress(VALUE)),
}


@pytest.mark.parametrize("what", HIDING)
@RULES
async def test_what_hides_its_content_is_denied(what: str, rule: dict[str, Any]) -> None:
    """Nothing that could be searched is left: `body_undecodable`, and the upstream has nothing of it."""
    coding, body = HIDING[what]
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"content-encoding: " + coding, body=body)
        assert (answer.status, answer.reason) == (415, "body_undecodable")
        client.close()
        await lab.refused("POST /x deny body_undecodable 415 denied")


@pytest.mark.parametrize("what", HIDING)
async def test_it_is_over_http2_too(what: str) -> None:
    """The stream is refused, and nothing of it went on."""
    coding, body = HIDING[what]
    async with Lab(H2Upstream(echo2)) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/x", (b"content-encoding", coding), method="POST", body=body)
        assert (reply.status, reply.reason) == (415, "body_undecodable")
        guest.close()
        await lab.audited("POST /x deny body_undecodable 415 denied")


FRAMED: dict[str, tuple[bytes, bytes]] = {
    "cut into chunks": (b"aws-chunked", frame([VALUE[at : at + 3] for at in range(0, len(VALUE), 3)])),
    "gzip below": (b"aws-chunked,gzip", frame([gzip.compress(VALUE)])),
    "gzip below, named in front": (b"gzip, aws-chunked", frame([gzip.compress(VALUE)])),
    "an unknown one below": (b"aws-chunked, foo", frame([VALUE[:9], VALUE[9:]])),
    "in an extension": (b"aws-chunked", frame([TEXT], extension=b";" + VALUE)),
    "in a checksum": (b"aws-chunked", frame([TEXT], end=b"0\r\nx-amz-checksum-crc32:" + VALUE + b"\r\n\r\n")),
}


@pytest.mark.parametrize("what", FRAMED)
@RULES
async def test_a_value_in_the_framing_of_s3_does_not_leave(what: str, rule: dict[str, Any]) -> None:
    """It's found across chunks and below them, and in what the framing carries beside them."""
    coding, body = FRAMED[what]
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"content-encoding: " + coding, body=body)
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        await lab.refused("POST [withheld] deny secret_leaving 403 denied")


async def test_in_pieces_it_is_cut() -> None:
    """The upstream has at most three bytes of the value, and a connection that ends within the message."""
    coding, body = FRAMED["cut into chunks"]
    async with Lab(RawUpstream(silent)) as lab:
        client = await lab.tunnel()
        head = [b"POST /x HTTP/1.1", b"host: " + client.authority.encode(), b"content-length: %d" % len(body)]
        await client.send(b"\r\n".join([*head, b"content-encoding: " + coding]) + b"\r\n\r\n")
        for place in range(len(body)):
            await client.send(body[place : place + 1])
        answer = await client.answer("POST")
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        line = await lab.upstream.connection()
        await line.end()
        assert VALUE[3:6] not in line.received.partition(b"\r\n\r\n")[2]
        client.close()
        await lab.audited("POST [withheld] deny secret_leaving 403 denied")


@pytest.mark.parametrize("coding", [b"aws-chunked", b"aws-chunked, gzip"])
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1, 7])
async def test_a_framed_body_without_a_value_is_as_it_was(coding: bytes, piece_bytes: int) -> None:
    """Byte for byte, beginnings of the value included."""
    plain = TEXT + VALUE[:-1]
    chunk = gzip.compress(plain) if coding.endswith(b"gzip") else plain
    body = frame([chunk[:50], chunk[50:]], end=b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n")
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        head = [b"POST /x HTTP/1.1", b"host: " + client.authority.encode(), b"content-length: %d" % len(body)]
        await client.send(b"\r\n".join([*head, b"content-encoding: " + coding]) + b"\r\n\r\n")
        for place in range(0, len(body), piece_bytes):
            await client.send(body[place : place + piece_bytes])
        answer = await client.answer("POST")
        assert answer.json["body"].encode("latin-1") == body
        client.close()
        await lab.audited("POST /x allow allowed 200 complete")
