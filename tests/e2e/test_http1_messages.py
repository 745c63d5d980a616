"""HTTP/1.1 across the gateway: connections, framing, informational responses, expectations, old versions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from seamgate import Request, hookimpl
from support.lab import ALLOW_ALL, WITH_KEY, Lab
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, Talk, echo, ok, says

ALLOWED = "allow allowed 200 complete"
ONLY_OK: dict[str, Any] = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "paths": ["/ok", "/ok/**"]}}


async def test_keep_alive_on_both_sides() -> None:
    """Many requests of one guest's connection go over one upstream session; another connection takes it over."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        for number in range(5):
            answer = await client.ask("GET", f"/{number}")
            assert answer.json["target"] == f"/{number}"
            assert answer.header(b"connection") is None
        other = await lab.tunnel()
        assert (await other.ask("POST", "/again", body=b"x" * 10)).status == 200
        assert len(lab.upstream.lines) == 1
        await lab.audited(*(f"GET /{number} {ALLOWED}" for number in range(5)), f"POST /again {ALLOWED}")


@pytest.mark.parametrize("entry", ["tunnel", "proxy", "base"])
async def test_each_entry_reaches_the_same_upstream(entry: str) -> None:
    """CONNECT with TLS, absolute-form and base URL: the same request arrives, with our Host and nothing of the hop."""
    async with Lab(HttpUpstream(echo, tls=entry != "proxy")) as lab:
        client = await getattr(lab, entry)()
        path = "/api/a?b=%20c" if entry == "base" else "/a?b=%20c"
        hop = (b"connection: close, x-hop", b"x-hop: 1", b"te: trailers", b"keep-alive: 5", b"x-end: 2", b"proxy-x: 3")
        said = (await client.ask("POST", path, *hop, body=b"hey")).json
        assert (said["method"], said["target"], said["body"]) == ("POST", "/a?b=%20c", "hey")
        assert [pair for pair in said["headers"] if pair[0] != "content-length"] == [
            ["host", lab.authority()],
            ["x-end", "2"],
            ["proxy-x", "3"],
        ]
        assert await client.closed() == b""
        await lab.audited(f"POST /a {ALLOWED}")


async def test_what_policy_saw_is_what_upstream_got() -> None:
    """Method, path, query, headers and body of the judged request, read back by h11 from what arrived, are equal."""

    class Watcher:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        @hookimpl
        def judge_request(self, request: Request) -> None:
            self.seen.append(request)

    watcher = Watcher()
    bodies = [b"", b"x", b"y" * 70_000]
    async with Lab(HttpUpstream(echo), first=[("watcher", watcher)]) as lab:
        client = await lab.tunnel()
        for body in bodies:
            headers = (b"X-Case: Kept", b"accept:  a ", b"x-case: twice", b"x-bytes: \xe4\xff")
            assert (await client.ask("PUT", "/p/%7Eq%C3%A4?a=1&b", *headers, body=body)).status == 200
        for request, talk in zip(watcher.seen, lab.upstream.talks, strict=True):  # type: ignore[attr-defined]
            assert talk.method == request.method
            assert talk.target == f"{request.path}?{request.query}"
            sent = [pair for pair in talk.headers if pair[0] not in (b"host", b"content-length")]
            assert sent == [*request.headers]
            assert talk.header("host") == request.target.authority
        assert [await talk.body() for talk in lab.upstream.talks] == bodies  # type: ignore[attr-defined]
        await lab.audited(*[f"PUT /p/~q%C3%A4 {ALLOWED}"] * 3)


async def test_pipelined_requests_are_judged_one_by_one() -> None:
    """The second, denied, is refused by itself: nothing of it is upstream, not even early; the third is answered."""
    async with Lab(HttpUpstream(echo), rules=[ONLY_OK]) as lab:
        client = await lab.tunnel()
        await client.send(
            client.request("POST", "/ok/1", body=b"one") + client.request("POST", "/no", body=b"two-denied")
            + client.request("POST", "/ok/3", body=b"three")
        )  # fmt: skip
        first, second, third = [await client.answer() for _ in range(3)]
        assert (first.json["body"], second.reason, third.json["body"]) == ("one", "no_rule_matched", "three")
        assert b"/no" not in lab.upstream.received and b"two-denied" not in lab.upstream.received
        await lab.audited(f"POST /ok/1 {ALLOWED}", "POST /no deny no_rule_matched 403 denied", f"POST /ok/3 {ALLOWED}")


async def test_a_pipelined_request_waits_for_the_answer_before_it() -> None:
    """The second request is not upstream while the first is unanswered."""
    go = asyncio.Event()

    async def app(talk: Talk) -> None:
        if talk.target == "/1":
            await go.wait()
        await echo(talk)

    async with Lab(HttpUpstream(app)) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/1") + client.request("GET", "/2"))
        await (await lab.upstream.connection()).seen(b"\r\n\r\n")
        assert b"/2" not in lab.upstream.received
        go.set()
        assert [(await client.answer()).json["target"] for _ in range(2)] == ["/1", "/2"]
        await lab.audited(f"GET /1 {ALLOWED}", f"GET /2 {ALLOWED}")


async def test_chunked_both_ways_with_trailers() -> None:
    """Chunks of a guest, extensions and all, arrive as a body with its trailers; so do the upstream's."""

    async def app(talk: Talk) -> None:
        body = await talk.body()
        await talk.begin(200, [("trailer", "x-sum")])
        await talk.data(body)
        await talk.data(json.dumps([[*map(bytes.decode, pair)] for pair in talk.trailers]).encode())
        await talk.finish([("x-sum", "9")])

    async with Lab(HttpUpstream(app), credential=False) as lab:
        client = await lab.tunnel()
        head = b"POST /c HTTP/1.1\r\nhost: %b\r\ntransfer-encoding: chunked\r\n\r\n" % lab.authority().encode()
        await client.send(head, b"3;a=b\r\nabc\r\n", b"0002\r\nde\r\n0\r\nX-T: 7\r\n\r\n")
        answer = await client.answer()
        assert answer.body == b'abcde[["x-t", "7"]]'
        assert answer.trailers == [(b"x-sum", b"9")]
        assert b"a=b" not in lab.upstream.received
        await lab.audited(f"POST /c {ALLOWED}")


@pytest.mark.parametrize(
    ("method", "said", "status", "length"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n", 200, b"1234"),
        ("HEAD", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 200, None),
        ("HEAD", b"HTTP/1.1 200 OK\r\n\r\n", 200, None),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204, None),
        ("GET", b"HTTP/1.1 304 Not Modified\r\netag: x\r\ncontent-length: 99\r\n\r\n", 304, None),
        ("GET", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, b"0"),
        ("POST", b"HTTP/1.1 205 Reset\r\ncontent-length: 0\r\n\r\n", 205, b"0"),
    ],
)
async def test_answers_without_a_body(method: str, said: bytes, status: int, length: bytes | None) -> None:
    """HEAD keeps its length, 204 and 304 have none; the connection goes on on both sides."""
    async with Lab(RawUpstream(says(said)), credential=False) as lab:
        client = await lab.tunnel()
        body = b"" if method == "POST" else None
        for _ in range(2):
            answer = await client.ask(method, "/x", body=body)
            assert (answer.status, answer.body, answer.whole) == (status, b"", True)
            assert answer.header(b"content-length") == length
        assert len(lab.upstream.lines) == 1
        await lab.audited(*[f"{method} /x allow allowed {status} complete"] * 2)


@pytest.mark.parametrize("coding", [b"", b"content-encoding: gzip\r\n"])
async def test_head_tells_no_length_that_get_might_not_have(coding: bytes) -> None:
    """What is redacted of a GET may be longer or shorter than what the upstream said: so HEAD says nothing of it."""
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n" + coding + b"etag: x\r\n\r\n"
    async with Lab(RawUpstream(says(said)), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        for _ in range(2):
            answer = await client.ask("HEAD", "/x")
            assert (answer.status, answer.body, answer.whole) == (200, b"", True)
            assert (answer.header(b"content-length"), answer.header(b"etag")) == (None, b"x")
        assert len(lab.upstream.lines) == 1
        await lab.audited(*["HEAD /x allow allowed 200 complete"] * 2)


async def test_informational_responses() -> None:
    """103 is passed on, a 100 that nobody asked for and a 102 are not; the final answer follows."""
    said = b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 E\r\nlink: </a>\r\n\r\n" + ok(b"end")
    async with Lab(RawUpstream(says(said)), credential=False) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert answer.informational == [(103, [(b"link", b"</a>")])]
        assert answer.body == b"end"
        await lab.audited(f"GET /x {ALLOWED}")


async def test_early_hints_may_not_carry_a_secret_out() -> None:
    """Where a credential went along, 103 is not passed on: it would pass by the redactor."""
    said = b"HTTP/1.1 103 E\r\nlink: </a>\r\n\r\n" + ok(b"end")
    async with Lab(RawUpstream(says(said)), rules=[WITH_KEY]) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert (answer.informational, answer.body) == ([], b"end")
        await lab.audited(f"GET /x {ALLOWED}")


EXPECTING = (b"expect: 100-continue", b"content-length: 5")


async def test_expect_with_an_upstream_that_knows_it() -> None:
    """The upstream's 100 asks the guest for its body."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        await client.send(client.request("PUT", "/x", *EXPECTING))
        assert await client.line.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        assert (await client.answer()).json["body"] == "hello"
        assert b"expect: 100-continue" in lab.upstream.received
        await lab.audited(f"PUT /x {ALLOWED}")


async def test_expect_with_an_upstream_that_does_not() -> None:
    """An upstream that just waits gets the body after a second, and so does a guest that waits for it."""

    async def script(line: Line) -> None:
        await line.head()
        assert await line.exactly(5) == b"hello"
        await line.send(ok(b"done"))

    async with Lab(RawUpstream(script)) as lab:
        client = await lab.tunnel()
        await client.send(client.request("PUT", "/x", *EXPECTING))
        assert await client.line.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        assert (await client.answer()).body == b"done"
        await lab.audited(f"PUT /x {ALLOWED}")


async def test_expect_and_a_guest_that_does_not_wait() -> None:
    """A body that comes without waiting is sent on, whatever the upstream does about Expect."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        await client.send(client.request("PUT", "/x", *EXPECTING) + b"hello")
        assert (await client.answer()).json["body"] == "hello"
        await lab.audited(f"PUT /x {ALLOWED}")


async def test_expect_refused_by_the_upstream() -> None:
    """A final answer instead of 100 is passed on; the body is never asked for, and the session is not reused."""
    refusal = b"HTTP/1.1 417 Expectation Failed\r\ncontent-length: 2\r\n\r\nno"

    async def script(line: Line) -> None:
        await line.head()
        await line.send(refusal)
        await line.end()

    async with Lab(RawUpstream(script)) as lab:
        client = await lab.tunnel()
        answer = await client.ask("PUT", "/x", *EXPECTING)
        assert (answer.status, answer.body, answer.informational) == (417, b"no", [])
        assert answer.header(b"connection") == b"close"
        assert lab.gateway.seam.pool.counts == (0, 0, 0)
        client.close()
        await lab.audited("PUT /x allow allowed 417 complete")


async def test_a_denial_does_not_demand_the_body() -> None:
    """A guest that waits for 100 is refused at once, without being asked for what nobody wants."""
    async with Lab(HttpUpstream(echo), rules=[ONLY_OK]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("PUT", "/no", b"expect: 100-continue", b"content-length: 99999999999")
        assert (answer.status, answer.informational) == (403, [])
        assert answer.header(b"connection") == b"close"
        client.close()
        await lab.refused("PUT /no deny no_rule_matched 403 denied")


async def test_a_denied_body_is_read_over() -> None:
    """A refused request's small body does not cost the connection; nor is it taken for the next request."""
    async with Lab(HttpUpstream(echo), rules=[ONLY_OK]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("POST", "/no", body=client.request("GET", "/ok") * 50)[:-10])
        assert (await client.answer()).status == 403
        await client.send(client.request("GET", "/ok")[-10:])
        assert (await client.ask("GET", "/ok")).json["target"] == "/ok"
        await lab.audited("POST /no deny no_rule_matched 403 denied", f"GET /ok {ALLOWED}")


async def test_a_denied_large_upload_is_told_why() -> None:
    """A guest that pours out a refused body can read the refusal; then the connection ends."""
    async with Lab(HttpUpstream(echo), rules=[ONLY_OK]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("POST", "/no", b"content-length: 50000000"), *[bytes(65536)] * 40)
        answer = await client.answer()
        assert (answer.status, answer.header(b"connection")) == (403, b"close")
        client.close()
        await lab.refused("POST /no deny no_rule_matched 403 denied")


async def test_an_http_1_0_guest() -> None:
    """It gets lengths where they are known, the end of the connection where not, and keep-alive if it asks."""

    async def app(talk: Talk) -> None:
        if talk.target == "/sized":
            await talk.respond(200, b"sized")
        else:
            await talk.begin(200)
            await talk.data(b"one")
            await talk.data(b"two")
            await talk.finish()

    async with Lab(HttpUpstream(app, tls=False), credential=False) as lab:
        line = await lab.line()
        url = lab.url("/").encode()
        await line.send(b"GET %bsized HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" % url)
        head = await line.head()
        assert b"content-length: 5\r\n" in head and b"connection: keep-alive\r\n" in head
        assert await line.exactly(5) == b"sized"
        await line.send(b"GET %bstream HTTP/1.0\r\n\r\n" % url)
        head = await line.head()
        assert b"chunked" not in head and b"connection: close\r\n" in head
        assert await line.end() == b"onetwo"
        await lab.audited(f"GET /sized {ALLOWED}", f"GET /stream {ALLOWED}")


@pytest.mark.parametrize("keep", [True, False])
async def test_an_http_1_0_upstream(keep: bool) -> None:
    """It is reused if it says so, closed if not; the guest's connection goes on either way."""
    extra = b"connection: keep-alive\r\n" if keep else b""
    said = b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n%b\r\nok" % extra
    async with Lab(RawUpstream(says(said)), credential=False) as lab:
        client = await lab.tunnel()
        for _ in range(2):
            assert (await client.ask("GET", "/x")).body == b"ok"
        assert len(lab.upstream.lines) == (1 if keep else 2)
        await lab.audited(*[f"GET /x {ALLOWED}"] * 2)


@pytest.mark.parametrize("credential", [True, False])
async def test_a_body_until_the_end_of_the_connection(credential: bool) -> None:
    """With close_notify it is whole: the guest gets it in chunks with an end, or with its exact length."""
    async with Lab(RawUpstream(says(b"HTTP/1.1 200 OK\r\n\r\nall of it", then="close")), credential=credential) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        assert (answer.body, answer.whole) == (b"all of it", True)
        assert (await client.ask("GET", "/y")).whole
        await lab.audited(f"GET /x {ALLOWED}", f"GET /y {ALLOWED}")


@pytest.mark.parametrize(
    ("upgrade", "reason", "status"),
    [(b"websocket", "bad_request", 400), (b"h2c", "upgrade_refused", 501), (b"TLS/1.0", "upgrade_refused", 501)],
)
async def test_upgrades_are_refused_visibly(upgrade: bytes, reason: str, status: int) -> None:
    """501 with the reason (400 for a WebSocket without its key), nothing upstream; the connection stays HTTP/1.1."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x", b"connection: upgrade", b"upgrade: " + upgrade)
        assert (answer.status, answer.reason) == (status, reason)
        assert lab.upstream.received == b""
        assert (await client.ask("GET", "/y")).status == 200
        await lab.audited(f"GET /x deny {reason} {status} denied", f"GET /y {ALLOWED}")


async def test_options_star() -> None:
    """OPTIONS * reaches the server itself, by tunnel and by absolute form."""
    rule = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "methods": ["OPTIONS"]}}
    async with Lab(HttpUpstream(echo), HttpUpstream(echo, "plain.test", tls=False), rules=[rule]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("OPTIONS", "*")).json["target"] == "*"
        line = await lab.line()
        plain = lab.authority(1).encode()
        await line.send(b"OPTIONS http://%b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (plain, plain))
        assert b'"target": "*"' in await line.end()
        await lab.audited(*[f"OPTIONS * {ALLOWED}"] * 2)


async def test_head_is_judged_as_head_and_sent_as_head() -> None:
    """A rule for GET covers HEAD; what is sent is HEAD."""
    rule = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "methods": ["GET"]}}
    async with Lab(HttpUpstream(echo), rules=[rule], credential=False) as lab:
        answer = await (await lab.tunnel()).ask("HEAD", "/x")
        assert (answer.status, answer.body, answer.whole) == (200, b"", True)
        assert lab.upstream.talks[0].method == "HEAD"  # type: ignore[attr-defined]
        await lab.audited(f"HEAD /x {ALLOWED}")


async def test_a_guest_that_sends_its_end_early_still_gets_its_answer() -> None:
    """A half-closed guest is answered, then the connection ends."""
    go = asyncio.Event()

    async def app(talk: Talk) -> None:
        await go.wait()
        await talk.respond(200, b"late")

    async with Lab(HttpUpstream(app, tls=False)) as lab:
        client = await lab.proxy()
        await client.send(client.request("GET", "/x"))
        client.line.cut()
        await (await lab.upstream.connection()).seen(b"\r\n\r\n")
        go.set()
        assert (await client.answer()).body == b"late"
        assert await client.closed() == b""
        await lab.audited(f"GET /x {ALLOWED}")
