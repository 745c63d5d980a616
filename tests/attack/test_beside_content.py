"""What a content coding carries beside the content, as a gzip's file name: searched on its way up, left off on its way
down. A server that unpacks an upload may keep or show it.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from typing import Any

import brotli
import pytest
import zstandard

from seamgate import Effect, Request, Verdict, hookimpl
from seamgate.flow import BodyState
from support.http2 import tunnel
from support.http2_upstream import H2Upstream, echo2
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, RawUpstream, Talk, echo, silent
from unit.protocol.test_coding import ENCODERS

VALUE = SECRET.encode()
TEXT = b"harmless " * 20


class Defers:
    """A plugin that wants to see bodies."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return Verdict(Effect.DEFER) if request.body_state is BodyState.PENDING else None


READ = [("defers", Defers())]


def member(text: bytes, *, name: bytes = b"", comment: bytes = b"", extra: bytes = b"") -> bytes:
    """Return a gzip member (RFC 1952 2.3) with what may stand in its head."""
    flags = (4 if extra else 0) | (8 if name else 0) | (16 if comment else 0)
    head = b"\x1f\x8b\x08" + bytes((flags,)) + bytes(5) + b"\xff"
    if extra:
        head += len(extra).to_bytes(2, "little") + extra
    head += b"".join([each + b"\0" for each in (name, comment) if each])
    deflate = zlib.compressobj(wbits=-15)
    packed = deflate.compress(text) + deflate.flush()
    return head + packed + zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little")


def skippable(data: bytes) -> bytes:
    """Return a frame that zstd skips (RFC 8878 3.1.2)."""
    return (0x184D2A50).to_bytes(4, "little") + len(data).to_bytes(4, "little") + data


def metadata(data: bytes) -> bytes:
    """Return a brotli stream of a metadata block and an empty last one (RFC 7932 9.2)."""
    return (0x2C | (len(data) - 1) << 7).to_bytes(2, "little") + data + b"\x03"


BESIDE: dict[str, tuple[bytes, bytes]] = {
    "a file name": (b"gzip", member(TEXT, name=b"dump-" + VALUE + b".txt")),
    "a file name of base64": (b"gzip", member(TEXT, name=base64.b64encode(b"x" + VALUE))),
    "a comment": (b"gzip", member(TEXT, comment=VALUE)),
    "an extra field": (b"gzip", member(TEXT, extra=b"XX" + len(VALUE).to_bytes(2, "little") + VALUE)),
    "a second member": (b"gzip", gzip.compress(TEXT) + member(b"", name=VALUE)),
    "a frame that is skipped": (b"zstd", zstandard.compress(TEXT) + skippable(VALUE)),
    "a first frame that is skipped": (b"zstd", skippable(VALUE) + zstandard.compress(TEXT)),
    "metadata": (b"br", metadata(VALUE)),
    "the coding below": (b"gzip, br", brotli.compress(member(TEXT, name=VALUE))),
    "the coding above": (b"br, gzip", member(brotli.compress(TEXT), name=VALUE)),
}


@pytest.mark.parametrize("what", BESIDE)
@pytest.mark.parametrize("rule", [ALLOW_ALL, WITH_KEY], ids=["elsewhere", "its own host"])
@pytest.mark.parametrize("plugins", [[], READ], ids=["streams", "is read"])
async def test_a_value_there_does_not_leave(what: str, rule: dict[str, Any], plugins: list[Any]) -> None:
    """Nothing is sent of a body that is here as a whole."""
    coding, body = BESIDE[what]
    async with Lab(HttpUpstream(echo), rules=[rule], plugins=plugins) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"content-encoding: " + coding, body=body)
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        await lab.refused("POST [withheld] deny secret_leaving 403 denied")


@pytest.mark.parametrize("what", BESIDE)
async def test_a_value_there_in_pieces_is_cut(what: str) -> None:
    """The upstream has at most three bytes of it, and a connection that ends within the message."""
    coding, body = BESIDE[what]
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
        assert VALUE[:4] not in line.received and base64.b64encode(b"x" + VALUE)[:8] not in line.received
        client.close()
        await lab.audited("POST [withheld] deny secret_leaving 403 denied")


async def test_over_http2_too() -> None:
    """The stream is refused, and nothing of it went on."""
    async with Lab(H2Upstream(echo2)) as lab:
        guest = await tunnel(lab)
        body = member(TEXT, name=VALUE)
        reply = await guest.ask("/x", (b"content-encoding", b"gzip"), method="POST", body=body)
        assert (reply.status, reply.reason) == (403, "secret_leaving")
        assert VALUE not in lab.upstream.received
        guest.close()
        await lab.audited("POST [withheld] deny secret_leaving 403 denied")


HARMLESS: dict[str, tuple[bytes, bytes]] = {
    "a name": (b"gzip", member(TEXT, name=b"notes.txt", comment=VALUE[:12], extra=b"XX\1\0y") + member(TEXT)),
    "a frame that is skipped": (b"zstd", skippable(b"index " + VALUE[:-1]) + zstandard.compress(TEXT)),
    "metadata": (b"br", metadata(b"made by hand " + VALUE[:3])),
    "stacked": (b"gzip, br", brotli.compress(member(TEXT, name=b"notes.txt"))),
}


@pytest.mark.parametrize("what", HARMLESS)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1, 7])
async def test_without_a_value_it_is_as_it_was(what: str, piece_bytes: int) -> None:
    """Byte for byte, beginnings of the value included."""
    coding, body = HARMLESS[what]
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


async def test_a_pause_holds_nothing_that_is_no_secret() -> None:
    """A coded piece that ends with up to three characters of a value goes on at once."""
    body = member(TEXT, name=b"name-" + VALUE[:3] + b".txt")
    split = body.index(VALUE[:3]) + 3
    async with Lab(RawUpstream(silent)) as lab:
        client = await lab.tunnel()
        head = [b"POST /x HTTP/1.1", b"host: " + client.authority.encode(), b"content-encoding: gzip"]
        await client.send(b"\r\n".join([*head, b"content-length: %d" % len(body)]) + b"\r\n\r\n" + body[:split])
        line = await lab.upstream.connection()
        await line.seen(body[:split])
        await client.send(body[split:])
        await line.seen(body)
        client.close()
        await lab.settled()
        assert [each.split()[3] for each in await lab.told()] == ["guest_gone"]


@pytest.mark.parametrize("coding", ENCODERS)
@pytest.mark.parametrize("plugins", [[], READ], ids=["streams", "is read"])
async def test_bytes_after_the_end_are_refused(coding: bytes, plugins: list[Any]) -> None:
    """Two readers could disagree about them, so none of them gets any."""
    async with Lab(HttpUpstream(echo), plugins=plugins) as lab:
        client = await lab.tunnel()
        body = ENCODERS[coding](TEXT) + b"\0rest"
        answer = await client.ask("POST", "/x", b"content-encoding: " + coding, body=body)
        assert answer.reason == "body_undecodable"
        client.close()
        await lab.refused(f"POST /x deny body_undecodable {answer.status} denied")


@pytest.mark.parametrize("what", BESIDE)
async def test_an_answer_comes_without_it(what: str) -> None:
    """What is redacted goes on decoded: nothing beside the content does."""
    coding, body = BESIDE[what]

    async def app(talk: Talk) -> None:
        await talk.respond(200, body, [("content-encoding", coding.decode())])

    async with Lab(HttpUpstream(app), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x", b"accept-encoding: gzip, br, zstd")
        assert answer.body == (b"" if what == "metadata" else TEXT)
        assert answer.header(b"content-encoding") is None
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")
