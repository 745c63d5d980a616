"""A guest speaks HTTP/2: each request is judged, carried and audited by itself; an HTTP/1.1 upstream can't tell."""

from __future__ import annotations

import asyncio
import json

from support.client import Client
from support.http2 import claimed, tunnel
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, RawUpstream, Talk, echo, ok, says


async def test_requests_share_a_connection_and_are_audited_one_by_one() -> None:
    """Many at once over one tunnel: each has its own upstream exchange, answer and record."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        streams = [await guest.begin(f"/{number}", ended=True) for number in range(20)]
        replies = [await guest.answer(stream) for stream in streams]
        assert [json.loads(reply.body)["target"] for reply in replies] == [f"/{number}" for number in range(20)]
        records = await claimed(lab, 20)
        assert sorted(record.request.path for record in records if record.request is not None) == sorted(
            f"/{number}" for number in range(20)
        )


async def test_the_upstream_gets_what_policy_saw() -> None:
    """Cookie crumbs are one cookie, :authority is Host, TE and Proxy-Authorization stay here, the length goes along."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask(
            "/x?y=1",
            (b"cookie", b"a=1"),
            (b"te", b"trailers"),
            (b"x-one", b"1"),
            (b"cookie", b"b=2"),
            (b"proxy-authorization", b"Basic xyz"),
            (b"content-length", b"3"),
            method="POST",
            body=b"abc",
        )
        assert json.loads(reply.body) == {
            "method": "POST",
            "target": "/x?y=1",
            "headers": [["host", lab.authority()], ["x-one", "1"], ["cookie", "a=1; b=2"], ["content-length", "3"]],
            "trailers": [],
            "body": "abc",
        }
        await lab.audited("POST /x allow allowed 200 complete")


async def test_a_body_without_length_and_trailers_become_chunked() -> None:
    """And the upstream's trailers become the guest's."""

    async def app(talk: Talk) -> None:
        assert await talk.body() == b"abc" and talk.trailers == [(b"x-sum", b"9")]
        assert talk.header("transfer-encoding") == "chunked"
        await talk.begin(200, [("transfer-encoding", "chunked")])
        await talk.data(b"fine")
        await talk.finish([("x-late", "1")])

    async with Lab(HttpUpstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/", method="POST")
        await guest.data(stream, b"abc")
        await guest.end(stream, [(b"x-sum", b"9")])
        reply = await guest.answer(stream)
        assert (reply.status, reply.body, reply.trailers) == (200, b"fine", [(b"x-late", b"1")])
        assert reply.header(b"transfer-encoding") is None
        await lab.audited("POST / allow allowed 200 complete")


async def test_heads_without_bodies_end_their_streams() -> None:
    """HEAD keeps the length that GET would have; 204 and 304 have none."""

    async def app(talk: Talk) -> None:
        status = int(talk.target[1:])
        await talk.respond(status, b"12345" if status == 200 else b"")

    async with Lab(HttpUpstream(app), credential=False, rules=[ALLOW_ALL]) as lab:
        guest = await tunnel(lab)
        head = await guest.ask("/200", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        for status in (204, 304):
            reply = await guest.ask(f"/{status}")
            assert (reply.status, reply.body, reply.header(b"content-length")) == (status, b"", None)
        await lab.audited(
            "HEAD /200 allow allowed 200 complete",
            "GET /204 allow allowed 204 complete",
            "GET /304 allow allowed 304 complete",
        )


async def test_informational_responses_and_expect() -> None:
    """100 is asked for and passed on; 103 too."""

    async def app(talk: Talk) -> None:
        await talk.inform(103, [("link", "</x>")])
        await talk.body()
        await talk.respond(200, b"fine")

    async with Lab(HttpUpstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/", (b"expect", b"100-continue"), (b"content-length", b"1"), method="PUT")
        reply = guest.replies[stream]
        await guest.until(lambda: len(reply.informational) == 2)
        await guest.data(stream, b"x", ended=True)
        await guest.answer(stream)
        assert [dict(each)[b":status"] for each in reply.informational] == [b"103", b"100"]
        await lab.audited("PUT / allow allowed 200 complete")


async def test_a_denial_is_a_response_on_its_stream() -> None:
    """With reason and JSON body; the connection goes on, and the denied one's body is declined."""
    rule = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "paths": ["/ok"]}}
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/no", method="POST")
        await guest.data(stream, b"x" * 1000)
        reply = await guest.answer(stream)
        assert (reply.status, reply.reason) == (403, "no_rule_matched")
        assert json.loads(reply.body)["error"]["code"] == "no_rule_matched"
        await guest.until(lambda: reply.reset >= 0)
        assert reply.reset == 0
        assert (await guest.ask("/ok")).status == 200
        await lab.audited(
            "POST /no deny no_rule_matched 403 denied",
            "GET /ok allow allowed 200 complete",
        )


async def test_a_credential_goes_up_and_never_comes_back() -> None:
    """Injected per request; what the upstream echoes of it is redacted."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/")
        assert lab.upstream.received.count(SECRET.encode()) == 1
        assert reply.status == 200 and SECRET.encode() not in reply.body
        await lab.audited("GET / allow allowed 200 complete")


async def test_a_guest_that_gives_up_ends_its_exchange_only() -> None:
    """RST_STREAM: the upstream's connection is closed, the record says aborted, other streams go on."""
    began = asyncio.Event()

    async def app(talk: Talk) -> None:
        if talk.target == "/slow":
            began.set()
            await talk.line.end()
        else:
            await echo(talk)

    async with Lab(HttpUpstream(app)) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/slow", ended=True)
        await began.wait()
        guest.h.reset_stream(stream, 8)
        await guest.flush()
        assert (await guest.ask("/")).status == 200
        await lab.audited(
            "GET /slow allow guest_gone 0 aborted",
            "GET / allow allowed 200 complete",
        )


async def test_a_guest_that_leaves_ends_all_its_exchanges() -> None:
    """Each gets its record."""
    async with Lab(HttpUpstream(lambda talk: talk.line.end())) as lab:  # type: ignore[arg-type,return-value]
        guest = await tunnel(lab)
        for number in range(3):
            await guest.begin(f"/{number}", ended=True)
        await lab.until(lambda: len(lab.upstream.lines) == 3)
        guest.close()
        await lab.audited(*[f"GET /{number} allow guest_gone 0 aborted" for number in range(3)])


async def test_a_response_that_is_cut_resets_its_stream() -> None:
    """Never a clean end: the guest sees RST_STREAM, the record says truncated."""
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    async with Lab(RawUpstream(says(cut, then="close")), credential=False) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/")
        assert (reply.status, reply.body, reply.whole) == (200, b"half", False)
        assert reply.reset == 2
        await lab.audited("GET / allow upstream_closed 200 truncated")


async def test_a_slow_reader_holds_its_own_upstream_only() -> None:
    """A closed window stops the upstream's reading in bounded memory; a stream beside it goes on."""
    size = 4 << 20

    async def app(talk: Talk) -> None:
        await talk.respond(200, bytes(size) if talk.target == "/big" else b"small")

    async with Lab(HttpUpstream(app), credential=False) as lab:
        guest = await tunnel(lab, settings={4: 65535})
        guest.h.increment_flow_control_window(64 << 20)
        await guest.flush()
        guest.opens_windows = False
        big = await guest.begin("/big", ended=True)
        await guest.until(lambda: len(guest.replies[big].body) == 65535)
        assert (await guest.ask("/small")).body == b"small"
        connection = next(iter(lab.gateway.connections.all))
        held = connection.core.queued_bytes(big)  # type: ignore[attr-defined]
        assert 0 < held < 1 << 20
        guest.opens_windows = True
        guest.h.increment_flow_control_window(size, big)
        await guest.flush()
        assert len((await guest.answer(big)).body) == size
        await lab.audited(
            "GET /small allow allowed 200 complete",
            "GET /big allow allowed 200 complete",
        )


async def test_a_slow_upstream_holds_its_own_stream_only() -> None:
    """A guest may send its window ahead and no more; a request beside it goes on."""
    go = asyncio.Event()

    async def app(talk: Talk) -> None:
        if talk.target == "/up":
            talk.line.hold()
            await go.wait()
            talk.line.go_on()
            body = await talk.body()
            await talk.respond(200, str(len(body)).encode())
        else:
            await talk.respond(200, b"small")

    size = 16 << 20
    async with Lab(HttpUpstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        up = await guest.begin("/up", method="POST")
        left = bytes(size)
        for _ in range(2000):
            room = min(guest.h.local_flow_control_window(up), 16384)
            if room <= 0:
                break
            await guest.data(up, left[:room])
            left = left[room:]
            reply = await guest.ask("/small") if not len(left) % 7 else None
            assert reply is None or reply.body == b"small"
            for _ in range(20):
                await asyncio.sleep(0)
            if guest.line.unread:
                await guest.read()
        assert len(left) > 0, "it was never held back"
        assert (await guest.ask("/small")).body == b"small"
        go.set()
        await guest.data(up, left)
        await guest.end(up)
        assert (await guest.answer(up)).body == str(size).encode()
        assert all(record.status == 200 for record in await claimed(lab, len(lab.records)))


async def test_a_stopping_gateway_lets_streams_finish() -> None:
    """GOAWAY, the present request is answered, then the connection closes."""
    go = asyncio.Event()

    async def app(talk: Talk) -> None:
        await go.wait()
        await talk.respond(200, b"fine")

    async with Lab(HttpUpstream(app)) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/", ended=True)
        await lab.until(lambda: bool(lab.upstream.lines))
        for connection in list(lab.gateway.connections.all):
            connection.drain()
        await lab.until(lambda: bool(guest.line.unread))
        go.set()
        got = b""
        while not guest.line.ended:
            got += await guest.line.some()
        assert b"fine" in got and stream == 1
        await lab.audited("GET / allow allowed 200 complete")


async def test_clear_text_http2_is_refused_visibly() -> None:
    """Prior knowledge gets 505, Upgrade: h2c gets 501; both are audited, nothing goes up."""
    async with Lab(HttpUpstream(echo, tls=False)) as lab:
        line = await lab.line("base_url")
        await line.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        assert (await line.head()).startswith(b"HTTP/1.1 505 ")
        base = await lab.base()
        answer = await base.ask(
            "GET",
            "/api/x",
            b"connection: upgrade, http2-settings",
            b"upgrade: h2c",
            b"http2-settings: AAMAAABkAAQAAP__",
        )
        assert (answer.status, answer.reason) == (501, "upgrade_refused")
        await lab.refused("- - deny version_refused 505 denied", "GET /x deny upgrade_refused 501 denied")


async def test_http1_guests_are_served_as_before() -> None:
    """A client that offers no ALPN, or only http/1.1, gets HTTP/1.1."""
    async with Lab(RawUpstream(says(ok())), credential=False) as lab:
        guest: Client = await lab.tunnel()
        assert (await guest.ask("GET")).status == 200
        await lab.audited("GET / allow allowed 200 complete")
