"""Real values in bodies that no rule reads: found across pieces, and what was sent is no whole request upstream."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from seamgate import Direction, Effect, Request, Verdict, hookimpl
from seamgate.credentials.redaction import RedactionSet, Redactor
from seamgate.flow import BodyState
from support.client import Client
from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, Talk2, echo2
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.ring import Ringed
from support.upstream import HttpUpstream, RawUpstream, Talk, echo, silent

LEAK = "POST [withheld] deny secret_leaving 403 denied"
VALUE = SECRET.encode()
SPELLINGS = {
    "plain": VALUE,
    "base64": base64.b64encode(b"x" + VALUE),
    "base64 in lines": base64.encodebytes(bytes(50) + VALUE),
    "JSON": json.dumps({"x": "\u00e9" + SECRET}).encode(),
    "hex": VALUE.hex().encode(),
    "some of it as JSON": VALUE[:9] + b"\\u%04x" % VALUE[9] + VALUE[10:],
    "some of it as JSON in JSON": VALUE[:3] + b"\\\\u%04X" % VALUE[3] + VALUE[4:],
    "some of it as a URL": b"%%%02x" % VALUE[0] + VALUE[1:20] + b"%%%02X" % VALUE[20] + VALUE[21:],
    "some of it as HTML": VALUE[:5] + b"&#%d;&#x%x;" % tuple(VALUE[5:7]) + VALUE[7:],
    "base64 in lines within JSON": base64.encodebytes(bytes(50) + VALUE).replace(b"\n", b"\\n"),
    "URL": "".join(f"%{byte:02X}" for byte in VALUE).encode(),
}


async def begin(lab: Lab, *headers: bytes, way: str = "tunnel") -> Client:
    """Send the head of an upload by HTTP/1.1."""
    client = await (lab.tunnel() if way == "tunnel" else lab.base())
    path = "/x" if way == "tunnel" else "/api/x"
    await client.send(
        b"\r\n".join((b"POST %s HTTP/1.1" % path.encode(), b"host: " + client.authority.encode(), *headers))
    )
    await client.send(b"\r\n\r\n")
    return client


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("rule", [ALLOW_ALL, WITH_KEY])
async def test_a_body_that_is_here_is_denied_before_anything_leaves(spelling: str, rule: dict[str, Any]) -> None:
    """Whole bodies are searched first, in every spelling, towards the credential's own host too."""
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", body=b'{"a": "' + SPELLINGS[spelling] + b'"}')
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        await lab.refused(LEAK)


@pytest.mark.parametrize("way", ["tunnel", "base URL"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_value_across_pieces_is_cut_out_of_http1(framing: str, way: str) -> None:
    """The upstream has the beginning, less than the value, and a connection that ends within the message."""
    async with Lab(RawUpstream(silent)) as lab:
        frame = b"content-length: 100" if framing == "length" else b"transfer-encoding: chunked"
        client = await begin(lab, frame, way=way)

        def piece(data: bytes) -> bytes:
            return data if framing == "length" else b"%x\r\n%s\r\n" % (len(data), data)

        await client.send(piece(b"begin "))
        line = await lab.upstream.connection()
        await line.seen(b"begin ")
        for place in range(len(VALUE)):
            await client.send(piece(VALUE[place : place + 1]))
        answer = await client.answer("POST")
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        await line.end()
        head, _, body = bytes(line.received).partition(b"\r\n\r\n")
        assert frame in head.lower() and VALUE[:4] not in body and b"0\r\n\r\n" not in body
        assert len(body) < 100
        client.close()
        await lab.audited(LEAK)


async def test_a_value_across_frames_resets_the_stream_of_http2() -> None:
    """The stream upstream is reset, so that it is not taken for a whole request; the others go on."""

    async def app(talk: Talk2) -> None:
        if talk.method == "POST":
            await talk.given_up()
            return
        await echo2(talk)

    async with Lab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/x", method="POST")
        await guest.data(stream, b"begin ")
        for place in range(len(VALUE)):
            await guest.data(stream, VALUE[place : place + 1])
        reply = await guest.answer(stream)
        assert (reply.status, reply.reason) == (403, "secret_leaving")
        await claimed(lab, 1)
        assert (await guest.ask("/")).status == 200
        upstream: Any = lab.upstream
        assert VALUE[:4] not in lab.upstream.received and len(upstream.lines) >= 1
        guest.close()
        records = lab.records
        assert [each.reason.value for each in records if each.reason] == ["secret_leaving", "allowed"]
        lab._claimed = len(records)


async def test_a_grpc_call_is_refused_in_its_own_words() -> None:
    """A message of a client's stream that tells a value ends the call with PERMISSION_DENIED."""

    async def app(talk: Talk2) -> None:
        await talk.given_up()

    async with Lab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/pkg.Service/Put", (b"content-type", b"application/grpc"), method="POST")
        for message in (b"\x0a\x02hi", b"\x0a%c%s" % (len(VALUE), VALUE)):
            await guest.data(stream, b"\0" + len(message).to_bytes(4, "big") + message)
        reply = await guest.answer(stream)
        assert reply.header(b"grpc-status") == b"7"
        assert VALUE not in lab.upstream.received
        guest.close()
        (record,) = await claimed(lab, 1)
        assert record.reason is not None and record.reason.value == "secret_leaving"


async def test_over_a_ring_too() -> None:
    """A guest without a kernel streams under the same guard."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        answer = await client.ask("POST", "/x", body=b"x" * 100 + VALUE)
        assert answer.reason == "secret_leaving"
        await lab.refused(LEAK)
        client.close()


def message(data: bytes, flags: int = 1) -> bytes:
    """Return a message of gRPC or Connect."""
    return bytes((flags,)) + len(data).to_bytes(4, "big") + data


# What a guest sends, by which header, and what that is refused as.
IN_MESSAGES: dict[str, tuple[list[bytes], tuple[bytes, bytes], str]] = {
    "gzip": ([message(gzip.compress(b"x" * 500 + VALUE))], (b"grpc-encoding", b"gzip"), "secret_leaving"),
    "deflate": ([message(zlib.compress(VALUE))], (b"grpc-encoding", b"deflate"), "secret_leaving"),
    "the second of two": (
        [message(gzip.compress(b"harmless")), message(gzip.compress(VALUE))],
        (b"grpc-encoding", b"GZIP"),
        "secret_leaving",
    ),
    "a plain one among them": ([message(gzip.compress(b"x")), message(VALUE, 0)], (b"grpc-encoding", b"gzip"),
                               "secret_leaving"),
    "Connect": ([message(gzip.compress(VALUE))], (b"connect-content-encoding", b"gzip"), "secret_leaving"),
    "a coding that is not known": ([message(VALUE[::-1])], (b"grpc-encoding", b"snappy"), "body_undecodable"),
    "two codings": ([message(gzip.compress(VALUE))], (b"grpc-encoding", b"gzip, identity"), "body_undecodable"),
    "no gzip": ([message(VALUE[::-1])], (b"grpc-encoding", b"gzip"), "body_undecodable"),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_MESSAGES)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 3])
async def test_within_a_message_that_is_compressed_by_itself(what: str, piece_bytes: int) -> None:
    """Each message of a stream is looked into, however it is split; what can't be is refused by name."""
    messages, coding, reason = IN_MESSAGES[what]

    async def app(talk: Talk2) -> None:
        await talk.given_up()

    async with Lab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/p.S/Put", (b"content-type", b"application/grpc"), coding, method="POST")
        body = b"".join(messages)
        for place in range(0, len(body), piece_bytes):
            await guest.data(stream, body[place : place + piece_bytes])
        reply = await guest.answer(stream)
        assert reply.header(b"grpc-status") == (b"7" if reason == "secret_leaving" else b"3")
        assert messages[-1] not in lab.upstream.received
        guest.close()
        (record,) = await claimed(lab, 1)
        assert record.reason is not None and record.reason.value == reason


PACKED = message(gzip.compress(VALUE))
UNSAID = {
    "the first": [PACKED],
    "the second": [message(b"harmless", 0), PACKED],
    "behind an empty one": [message(b"", 0), PACKED],
}


@pytest.mark.parametrize("what", UNSAID)
@pytest.mark.parametrize("kind", [b"application/grpc", b"Application/gRPC-web+proto"])
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1, 3])
async def test_a_message_that_is_compressed_though_no_header_says_so(what: str, kind: bytes, piece_bytes: int) -> None:
    """An error by gRPC's own words; nobody here can look into it, and a lenient server may."""

    async def app(talk: Talk2) -> None:
        await talk.given_up()

    async with Lab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/p.S/Put", (b"content-type", kind), method="POST")
        body = b"".join(UNSAID[what])
        for place in range(0, len(body), piece_bytes):
            await guest.data(stream, body[place : place + piece_bytes])
        await guest.answer(stream)
        assert PACKED not in lab.upstream.received
        guest.close()
        (record,) = await claimed(lab, 1)
        assert record.reason is not None and record.reason.value == "body_undecodable"


@pytest.mark.parametrize("coding", [b"gzip", b"identity", b"snappy", None])
async def test_messages_without_a_value_are_as_they_were(coding: bytes | None) -> None:
    """Byte for byte, also in a coding that is not known where none of them is compressed, and after a pause."""

    async def app(talk: Talk2) -> None:
        await talk.respond(200, await talk.body())

    packed = message(gzip.compress(VALUE[:-1])) if coding == b"gzip" else message(b"plain", 0)
    async with Lab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        fields = [(b"content-type", b"application/grpc"), *([] if coding is None else [(b"grpc-encoding", coding)])]
        stream = await guest.begin("/p.S/Put", *fields, method="POST")
        sent = [packed, message(b"", 0), message(VALUE[:-1], 0), packed[:9], packed[9:]]
        for number, piece in enumerate(sent, 1):
            await guest.data(stream, piece, ended=number == len(sent))
        reply = await guest.answer(stream)
        assert (reply.status, reply.body) == (200, b"".join(sent))
        guest.close()
        await lab.audited("POST /p.S/Put allow allowed 200 complete")


class Defers:
    """A plugin that wants to see bodies."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return Verdict(Effect.DEFER) if request.body_state is BodyState.PENDING else None


async def test_a_body_that_a_plugin_waits_for_is_looked_into_as_well() -> None:
    """It was held to be judged, so nothing of it has left when the value in its message is found."""
    async with Lab(HttpUpstream(echo), plugins=[("defers", Defers())]) as lab:
        client = await lab.tunnel()
        body = message(gzip.compress(VALUE))
        for coding, reason in ((b"gzip", "secret_leaving"), (b"snappy", "body_undecodable")):
            answer = await client.ask("POST", "/x", b"grpc-encoding: " + coding, body=body)
            assert answer.reason == reason
        client.close()
        told = await lab.told()
        assert [line.split()[3] for line in told] == ["secret_leaving", "body_undecodable"]
        assert lab.upstream.received == b""


class Changes:
    """A plugin that may change what guests send."""

    @hookimpl
    def open_inspector(self, direction: Direction) -> Any:
        return Redactor(RedactionSet([])) if direction is Direction.REQUEST else None


async def test_who_would_change_such_messages_is_not_let() -> None:
    """An inspector that is no mere looker would see what it can't read: refused, unless nothing is coded."""
    async with Lab(HttpUpstream(echo), plugins=[("changes", Changes())]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"grpc-encoding: gzip", body=message(gzip.compress(b"x")))
        assert answer.reason == "body_undecodable"
        assert (await client.ask("POST", "/x", b"grpc-encoding: identity", body=message(b"x", 0))).status == 200
        client.close()
        await lab.audited(f"POST /x deny body_undecodable {answer.status} denied", "POST /x allow allowed 200 complete")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (gzip.compress(b"x" * 1000 + VALUE), "secret_leaving"),
        (b"not gzip " + VALUE, "secret_leaving"),
        (b"not gzip " + VALUE[::-1], "body_undecodable"),
    ],
)
async def test_within_a_content_coding(body: bytes, reason: str) -> None:
    """What gzip hides is looked at, and what is not a gzip although it says so is no way out either."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"content-encoding: gzip", body=body)
        assert answer.reason == reason
        client.close()
        path = "[withheld]" if reason == "secret_leaving" else "/x"
        await lab.refused(f"POST {path} deny {reason} {answer.status} denied")


@pytest.mark.parametrize("coding", [b"", b"content-encoding: gzip", b"content-encoding: foo"])
async def test_a_body_without_a_value_is_as_it_was(coding: bytes) -> None:
    """Length, coding and every byte are the guest's, beginnings of the value included, at the end too."""
    plain = b"a " + VALUE[:-1] + b" b " + VALUE[:12] + b"\n" + base64.b64encode(VALUE[:10]) + b" " + VALUE[:-1]
    body = gzip.compress(plain) if coding.endswith(b"gzip") else plain
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        client = await begin(lab, b"content-length: %d" % len(body), *([coding] if coding else []))
        for place in range(0, len(body), 7):
            await client.send(body[place : place + 7])
        answer = await client.answer("POST")
        said = answer.json
        headers = dict(said["headers"])
        assert said["body"].encode("latin-1") == body
        assert headers["content-length"] == str(len(body)) and "transfer-encoding" not in headers
        assert headers.get("content-encoding", "").encode() == coding[18:]
        client.close()
        await lab.audited("POST /x allow allowed 200 complete")


async def test_a_pause_delays_nothing_that_is_no_secret() -> None:
    """What came goes on at once while the guest waits for an answer, up to three bytes of a beginning with it."""
    async with Lab(RawUpstream(silent)) as lab:
        client = await begin(lab, b"transfer-encoding: chunked")
        await client.send(b"7\r\none sk-\r\n")
        line = await lab.upstream.connection()
        await line.seen(b"one ")
        await line.seen(b"sk-")
        await client.send(b"3\r\ntwo\r\n")
        await line.seen(b"two")
        client.close()
        await lab.audited("POST /x allow guest_gone 0 aborted")


MIXED = [name for name in SPELLINGS if name.startswith(("some of", "base64 in lines within"))]


@pytest.mark.parametrize("spelling", MIXED)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1, 5])
async def test_what_comes_back_with_some_characters_escaped_is_redacted(spelling: str, piece_bytes: int) -> None:
    """At any split, whatever the escapes are of, and in a header."""
    body = b'{"a": "' + SPELLINGS[spelling] + b'", "b": "\\u0073k-"}'

    async def app(talk: Talk) -> None:
        await talk.begin(200, [("x-echo", SPELLINGS["some of it as a URL"].decode())])
        for place in range(0, len(body), piece_bytes):
            await talk.data(body[place : place + piece_bytes])
        await talk.finish()

    async with Lab(HttpUpstream(app), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        first, last = b'{"a": "', b'", "b": "\\u0073k-"}'
        assert b"[redacted:key]" in answer.body and answer.header(b"x-echo") == b"[redacted:key]"
        assert answer.body.startswith(first) and answer.body.endswith(last)
        if spelling.startswith("some of"):
            assert answer.body == first + b"[redacted:key]" + last
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")


async def test_over_two_data_lines_of_an_event_too() -> None:
    """Who joins them has the value; the events around it, and lines that hold none, are as they were."""

    async def app(talk: Talk) -> None:
        await talk.begin(200, [("content-type", "text/event-stream")])
        for piece in (
            b"data: one\ndata: two\n\n",
            b"event: x\ndata: " + VALUE[:9] + b"\n",
            b"data:" + VALUE[9:],
            b"\n\n",
        ):
            await talk.data(piece)
        await talk.finish()

    async with Lab(HttpUpstream(app), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        assert answer.body == b"data: one\ndata: two\n\nevent: x\ndata: [redacted:key]\n\n"
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")
