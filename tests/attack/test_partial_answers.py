"""Answers in which a redactor would not find a value: parts of one, and messages that are compressed one by one."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from seamgate.protocol.whole import OTHER_CODINGS, RANGE_HEADERS
from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, RawUpstream, Talk, ok, says

VALUE = SECRET.encode()


async def gives_parts(talk: Talk) -> None:
    """An origin that repeats the key, and takes any of the headers for a range."""
    await talk.body()
    body = b"key=" + (talk.header("x-api-key") or "").encode()
    asked = next((value for name in RANGE_HEADERS if (value := talk.header(name.decode()))), None)
    if asked is None:
        await talk.respond(200, body)
        return
    first, last = map(int, asked.removeprefix("bytes=").split("-"))
    await talk.respond(206, body[first : last + 1])


@pytest.mark.parametrize("name", [name.decode() for name in RANGE_HEADERS])
async def test_no_header_asks_for_a_part(name: str) -> None:
    """The origin gets none of them with a credential, and answers with the whole, which is redacted."""
    async with Lab(HttpUpstream(gives_parts), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x", f"{name}: bytes=0-9".encode())
        assert (answer.status, answer.body) == (200, b"key=[redacted:key]")
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")


PARTS = {
    "206": b"HTTP/1.1 206 Partial Content\r\ncontent-length: 6\r\n\r\nsk-liv",
    "content-range": ok(b"sk-liv", b"content-range: bytes 0-5/30"),
    "x-content-range": ok(b"sk-liv", b"x-content-range: bytes 0-5/30"),
    "byteranges": ok(b"sk-liv", b"content-type: Multipart/ByteRanges; boundary=x"),
    "x-byteranges": ok(b"sk-liv", b"content-type: multipart/x-byteranges; boundary=x"),
}
INSPECTED = {**ALLOW_ALL, "inspect": ["secrets"]}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("rule", [WITH_KEY, INSPECTED, ALLOW_ALL])
async def test_a_part_that_comes_all_the_same_is_refused(part: str, rule: dict[str, Any]) -> None:
    """However an upstream was asked for it."""
    settings: dict[str, Any] = {"plugins": [{"name": name} for name in ("policy", "dns", "inspection")]}
    settings["plugins"].insert(2, {"name": "credentials", "capabilities": ["secrets"]})
    async with Lab(RawUpstream(says(PARTS[part])), rules=[rule], settings=settings) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        assert (answer.status, answer.reason) == (502, "response_undecodable")
        client.close()
        await lab.audited("GET /x allow response_undecodable 502 failed")


WITH_POST: dict[str, Any] = {**WITH_KEY, "allow": {**ALLOW_ALL["allow"], "methods": ["POST"]}}
OTHERS: dict[str, Any] = {"id": "others", "allow": {**ALLOW_ALL["allow"], "methods": ["GET"]}}


@pytest.mark.parametrize("name", [name.decode() for name in RANGE_HEADERS])
async def test_no_header_asks_for_a_part_by_a_rule_without_the_credential(name: str) -> None:
    """The page that repeats the last key is another one than that which gets it: what counts is the host."""
    last = b""

    async def repeats(talk: Talk) -> None:
        nonlocal last
        await talk.body()
        if talk.method == "POST":
            last = (talk.header("x-api-key") or "").encode()
            await talk.respond(200, b"ok")
        else:
            asked = talk.header(name)
            first, end = map(int, asked.split("=")[1].split("-")) if asked else (0, len(last))
            await talk.respond(206 if asked else 200, last[first : end + 1])

    async with Lab(HttpUpstream(repeats), rules=[WITH_POST, OTHERS]) as lab:
        client = await lab.tunnel()
        await client.ask("POST", "/v1", b"content-length: 0")
        assert last == VALUE
        for part in ("0-15", "16-99"):
            answer = await client.ask("GET", "/debug", f"{name}: bytes={part}".encode())
            assert (answer.status, answer.body) == (200, b"[redacted:key]")
        client.close()
        await lab.audited("POST /v1 allow allowed 200 complete", *["GET /debug allow allowed 200 complete"] * 2)


async def test_parts_of_other_hosts_pass() -> None:
    """Nothing is looked for in their answers, so that nothing is missed."""
    settings = {"credentials": {"key": {"hosts": ["other.test"]}}}
    async with Lab(RawUpstream(says(PARTS["206"])), settings=settings) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x", b"range: bytes=0-5")).status == 206
        assert b"range: bytes=0-5" in lab.upstream.received.lower()
        client.close()
        await lab.audited("GET /x allow allowed 206 complete")


@pytest.mark.parametrize("rule", [WITH_KEY, ALLOW_ALL])
async def test_parts_pass_where_they_are_allowed(rule: dict[str, Any]) -> None:
    """`allow_ranges` is the operator's word."""
    settings = {"credentials": {"key": {"allow_ranges": True}}}
    async with Lab(RawUpstream(says(PARTS["206"])), rules=[rule], settings=settings) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x", b"range: bytes=0-5")).status == 206
        client.close()
        await lab.audited("GET /x allow allowed 206 complete")


@pytest.mark.parametrize("coding", [b"grpc-encoding", b"connect-content-encoding", b"im"])
async def test_messages_that_are_coded_one_by_one_are_refused(coding: bytes) -> None:
    """They are not offered, and not let through to a guest where a value may be in them."""
    message = gzip.compress(VALUE)
    body = b"\1" + len(message).to_bytes(4, "big") + message

    async def app(talk: Talk2) -> None:
        assert not any(talk.header(name.decode()) for name in OTHER_CODINGS)
        await talk.respond(200, body, [(coding, b"gzip")])

    async with Lab(H2Upstream(app), rules=[WITH_KEY]) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/x", *((name, b"gzip") for name in OTHER_CODINGS))
        assert (reply.status, reply.reason) == (502, "response_undecodable")
        guest.close()
        (record,) = await claimed(lab, 1)
        assert record.reason is not None and record.reason.value == "response_undecodable"


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc-web+proto"])
@pytest.mark.parametrize("before", [b"", b"\0\0\0\0\1x"])
async def test_a_message_that_is_compressed_though_no_header_says_so_is_refused(kind: bytes, before: bytes) -> None:
    """An error by gRPC's own words; a lenient client may decompress it all the same."""
    message = gzip.compress(VALUE)
    body = before + b"\1" + len(message).to_bytes(4, "big") + message

    async def app(talk: Talk2) -> None:
        await talk.respond(200, body, [(b"content-type", kind)])

    async with Lab(H2Upstream(app), rules=[WITH_KEY]) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/x")
        await guest.end(stream)
        reply = await guest.answer(stream)
        assert message not in reply.body
        guest.close()
        (record,) = await claimed(lab, 1)
        assert record.reason is not None and record.reason.value == "response_undecodable"
