"""What goes wrong after a request was allowed: the guest sees an error, never a clean end, and the audit says what."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable
from time import monotonic
from typing import Any

import pytest

from seamgate import Request, Supply, hookimpl
from seamgate.audit.record import AuditRecord
from support.client import Client
from support.lab import ALLOW_ALL, WITH_KEY, Lab
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, Script, Talk, echo, ok, says, silent

ALLOWED = "allow allowed 200 complete"


# -- answers that are cut ----------------------------------------------------------------------------------------------

HALF = {
    "length": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
    "chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n64\r\nhalf",
    "no last chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    "until close": b"HTTP/1.1 200 OK\r\n\r\nhalf",
}


def pausing(first: bytes, then: str) -> Script:
    """Answer, wait until the guest has it, end."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(first)
        await script.arrived.wait()  # type: ignore[attr-defined]
        getattr(line, then)()

    script.arrived = asyncio.Event()  # type: ignore[attr-defined]
    return script


async def _half(client: Client, script: Any) -> Any:
    """Read a head and the half body, let the upstream end, read the rest: (answer, the body, whether it was whole)."""
    answer, h = await client.begin()
    body = b""
    while len(body) < 4:
        event = await client.event(h)
        body += bytes(event.data)
    script.arrived.set()
    return answer, body, type(await client.event(h)).__name__ == "EndOfMessage"


@pytest.mark.parametrize("redacts", [True, False])
@pytest.mark.parametrize("then", ["close", "cut", "reset"])
@pytest.mark.parametrize("framing", HALF)
async def test_a_cut_answer_is_visibly_cut(framing: str, then: str, redacts: bool) -> None:
    """Whatever the framing and the kind of end, a guest never takes half an answer for a whole one.

    A body until the end of the connection is whole with close_notify only.
    """
    script = pausing(HALF[framing], then)
    async with Lab(RawUpstream(script), rules=[WITH_KEY if redacts else ALLOW_ALL], credential=redacts) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        answer, body, whole = await _half(client, script)
        assert (answer.status, body) == (200, b"half")
        if framing == "until close" and then == "close":
            assert whole
            await lab.audited(f"GET /x {ALLOWED}")
        else:
            assert not whole
            records = await lab.audited("GET /x allow upstream_closed 200 truncated")
            assert records[0].bytes is not None and records[0].bytes.response_body == 4
        assert lab.gateway.seam.pool.counts == (0, 0, 0)


@pytest.mark.parametrize("entry", ["proxy", "tunnel"])
async def test_a_cut_is_visible_to_an_http_1_0_guest(entry: str) -> None:
    """Where only the end of the connection ends a body, a cut is a reset."""
    script = pausing(HALF["chunk"], "reset")
    async with Lab(RawUpstream(script, tls=entry == "tunnel"), credential=False) as lab:
        client: Client = await getattr(lab, entry)()
        target = "/x" if entry == "tunnel" else f"http://{lab.authority()}/x"
        await client.send(f"GET {target} HTTP/1.0\r\nhost: {lab.authority()}\r\n\r\n".encode())
        await client.line.until(b"half")
        script.arrived.set()  # type: ignore[attr-defined]
        while not client.line.lost:
            await client.line.changed()
        assert client.line.error is not None or not client.line.ended
        await lab.audited("GET /x allow upstream_closed 200 truncated")


async def test_a_body_that_its_coding_says_is_not_whole_is_cut() -> None:
    """A gzip body that ends early is whole by its framing and yet broken: where it is decoded, it is cut."""

    said = ok(gzip.compress(bytes(100_000))[:-4], b"content-encoding: gzip")
    async with Lab(RawUpstream(says(said)), rules=[WITH_KEY]) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x", b"accept-encoding: gzip")
        assert (answer.status, answer.reason) == (502, "response_undecodable")
        await lab.audited("GET /x allow response_undecodable 502 failed")


# -- answers that are none ---------------------------------------------------------------------------------------------

GARBAGE = {
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 5\r\n\r\n",
    "length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded": b"HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000,
    "HTTP/2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\r\n\r\n",
    "unknown status": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("way", ["tunnel", "proxy", "base"])
async def test_a_407_of_the_upstream_is_none_of_the_gateways(way: str) -> None:
    """It would look like the gateway's own: a client would send its token anew, or drop it (RFC 9110 15.5.8)."""
    login = b'HTTP/1.1 407 Login\r\nproxy-authenticate: Basic realm="x"\r\ncontent-length: 2\r\n\r\nno'
    async with Lab(RawUpstream(says(login), tls=way != "proxy"), credential=False) as lab:
        client: Client = await getattr(lab, way)()
        for _ in range(2):
            answer = await client.ask("GET", "/api/x" if way == "base" else "/x")
            assert (answer.status, answer.reason, answer.whole) == (502, "upstream_protocol", True)
            assert answer.header(b"proxy-authenticate") is None
        await lab.audited(*["GET /x allow upstream_protocol 502 failed"] * 2)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_is_a_502(what: str, method: str) -> None:
    """An answer that is not well-formed is the upstream's fault, once; the session is gone, the guest goes on."""
    async with Lab(RawUpstream(says(GARBAGE[what])), credential=False) as lab:
        client = await lab.tunnel()
        for _ in range(2):
            answer = await client.ask(method, "/x", body=b"b" if method == "POST" else None)
            assert (answer.status, answer.reason, answer.whole) == (502, "upstream_protocol", True)
        assert len(lab.upstream.lines) == 2
        await lab.audited(*[f"{method} /x allow upstream_protocol 502 failed"] * 2)


async def test_garbage_after_an_answer_spoils_the_session() -> None:
    """Bytes that nobody asked for are nobody's answer: the next request goes over a fresh session."""
    extra = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
    async with Lab(RawUpstream(says(ok(b"true") + extra)), credential=False) as lab:
        client = await lab.tunnel()
        for _ in range(3):
            assert (await client.ask("GET", "/x")).body == b"true"
        assert len(lab.upstream.lines) == 3
        await lab.audited(*[f"GET /x {ALLOWED}"] * 3)


async def test_an_answer_that_comes_late_is_not_the_next_requests() -> None:
    """Bytes that come while a session is idle end it."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(ok(b"true"))
        await late.wait()
        await line.send(ok(b"forged"))

    late = asyncio.Event()
    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).body == b"true"
        late.set()
        await lab.until(lambda: lab.gateway.seam.pool.counts == (0, 0, 0))
        assert (await client.ask("GET", "/x")).body == b"true"
        await lab.audited(*[f"GET /x {ALLOWED}"] * 2)


@pytest.mark.parametrize("status", [b"401 X\r\nwww-authenticate: Negotiate", b"401 X\r\nwww-authenticate: NTLM"])
async def test_a_session_with_an_identity_is_not_shared(status: bytes) -> None:
    """Authentication that is bound to the connection ends its sharing."""
    async with Lab(RawUpstream(says(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)), credential=False) as lab:
        client = await lab.tunnel()
        for _ in range(2):
            assert (await client.ask("GET", "/x")).status == 401
        assert len(lab.upstream.lines) == 2
        await lab.audited(*["GET /x allow allowed 401 complete"] * 2)


async def test_the_upstreams_words_for_us_are_taken_out() -> None:
    """An upstream can't pretend to be the gateway, nor lead a guest past it."""
    said = ok(b"x", b'alt-svc: h3=":443"', b"proxy-status: seamgate; error=x", b"x-seamgate-reason: allowed", b"x-a: 1")
    async with Lab(RawUpstream(says(said)), credential=False) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert [name for name, _ in answer.headers] == [b"x-a", b"content-length"]
        await lab.audited(f"GET /x {ALLOWED}")


# -- sessions that are gone --------------------------------------------------------------------------------------------


FRESH = says(ok(b"fresh"))


def stale(times: int, *, then: Script = FRESH) -> Script:
    """The first connections answer one request, and close when they get the next; later ones do `then`."""
    seen = 0

    async def script(line: Line) -> None:
        nonlocal seen
        seen += 1
        if seen > times:
            await then(line)
            return
        await line.request()
        await line.send(ok(b"first"))
        await line.head()
        line.reset()

    return script


def attempts(records: list[AuditRecord]) -> list[int]:
    """Return how often each was sent."""
    return [0 if record.upstream is None else record.upstream.attempts for record in records]


async def test_a_get_on_a_stale_session_is_sent_once_more() -> None:
    """The upstream closed just as the session was used: the guest does not notice, the record and a metric say it."""
    async with Lab(RawUpstream(stale(1)), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).body == b"first"
        assert (await client.ask("GET", "/x")).body == b"fresh"
        assert [line.received.count(b"GET /x") for line in lab.upstream.lines] == [2, 1]
        records = await lab.audited(*[f"GET /x {ALLOWED}"] * 2)
        assert records[1].upstream is not None and not records[1].upstream.reused
        assert attempts(records) == [1, 2]
        assert lab.gateway.seam.repeated == {"session_closed": 1, "not_processed": 0}


async def test_a_retry_takes_a_fresh_session() -> None:
    """If all idle sessions are stale, the one retry is not wasted on another of them."""
    both = asyncio.Barrier(2)

    async def script(line: Line) -> None:
        await line.request()
        if len(lab.upstream.lines) > 2:
            await line.send(ok(b"fresh"))
            return
        await both.wait()
        await line.send(ok(b"first"))
        await line.head()
        line.reset()

    async with Lab(RawUpstream(script), credential=False) as lab:
        one, two = await lab.tunnel(), await lab.tunnel()
        await asyncio.gather(one.ask("GET", "/x"), two.ask("GET", "/x"))
        assert lab.gateway.seam.pool.counts == (0, 2, 0)
        assert (await one.ask("GET", "/y")).body == b"fresh"
        await lab.audited(*[f"GET /x {ALLOWED}"] * 2, f"GET /y {ALLOWED}")


async def test_a_retry_happens_once() -> None:
    """An upstream that closes on every request gets it twice, not for ever."""

    async def closing(line: Line) -> None:
        await line.head()
        line.reset()

    async with Lab(RawUpstream(stale(1, then=closing)), credential=False) as lab:
        client = await lab.tunnel()
        await client.ask("GET", "/x")
        assert (await client.ask("GET", "/y")).reason == "upstream_closed"
        assert lab.upstream.received.count(b"GET /y") == 2
        records = await lab.audited(f"GET /x {ALLOWED}", "GET /y allow upstream_closed 502 failed")
        assert attempts(records) == [1, 2]


async def test_a_retry_that_finds_no_upstream_was_no_attempt() -> None:
    """What was sent once, and then had no session to go again on, was sent once: the record and the metric agree."""
    async with Lab(RawUpstream(stale(1)), credential=False) as lab:
        client = await lab.tunnel()
        await client.ask("GET", "/x")
        lab.upstream.refuse_more()
        assert (await client.ask("GET", "/y")).reason == "connect_failed"
        records = await lab.audited(f"GET /x {ALLOWED}", "GET /y allow connect_failed 502 failed")
        assert attempts(records) == [1, 1]
        assert lab.gateway.seam.repeated == {"session_closed": 0, "not_processed": 0}


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_post_is_never_sent_again(method: str) -> None:
    """What is not idempotent is not repeated: the guest is told."""
    async with Lab(RawUpstream(stale(1)), credential=False) as lab:
        client = await lab.tunnel()
        await client.ask("GET", "/x")
        assert (await client.ask(method, "/y", body=b"pay")).reason == "upstream_closed"
        assert lab.upstream.received.count(b"pay") <= 1
        assert len(lab.upstream.lines) == 1
        records = await lab.audited(f"GET /x {ALLOWED}", f"{method} /y allow upstream_closed 502 failed")
        assert attempts(records) == [1, 1]


async def test_a_get_on_a_fresh_session_is_not_sent_again() -> None:
    """An upstream that closes a fresh connection has decided so."""

    async def closing(line: Line) -> None:
        await line.head()
        line.close()

    async with Lab(RawUpstream(closing), credential=False) as lab:
        assert (await (await lab.tunnel()).ask("GET", "/y")).reason == "upstream_closed"
        assert len(lab.upstream.lines) == 1
        await lab.audited("GET /y allow upstream_closed 502 failed")


async def test_garbage_on_a_stale_session_is_not_a_reason_to_retry() -> None:
    """Only a close without any answer is: an answer that is garbage was an answer."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(ok(b"first"))
        await line.head()
        await line.send(b"garbage\r\n\r\n")

    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel()
        await client.ask("GET", "/x")
        assert (await client.ask("GET", "/y")).reason == "upstream_protocol"
        assert lab.upstream.received.count(b"GET /y") == 1
        await lab.audited(f"GET /x {ALLOWED}", "GET /y allow upstream_protocol 502 failed")


class SlowKey:
    """A source of credentials that has to be asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    @hookimpl
    def supply_credential(self, request: Request, credential: str) -> Awaitable[Supply | None]:
        return self._answer(credential)

    async def _answer(self, credential: str) -> Supply:
        self.asked.set()
        await self.go.wait()
        return Supply(credential, set_headers=((b"x-api-key", b"slow-secret-value"),), secrets=(b"slow-secret-value",))


async def test_a_session_that_dies_while_a_credential_is_fetched() -> None:
    """Nothing was taken from the pool yet, so that any request gets another one, POST too."""
    key = SlowKey()
    key.go.set()
    async with Lab(RawUpstream(says(ok(b"fine"))), rules=[WITH_KEY], secrets_first=[("slow", key)]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).body == b"fine"
        key.go.clear()
        key.asked.clear()
        await client.send(client.request("POST", "/y", body=b"pay"))
        await key.asked.wait()
        lab.upstream.lines[0].close()
        await lab.until(lambda: lab.gateway.seam.pool.counts == (0, 0, 0))
        key.go.set()
        assert (await client.answer()).body == b"fine"
        assert lab.upstream.received.count(b"pay") == 1
        await lab.audited(f"GET /x {ALLOWED}", f"POST /y {ALLOWED}")


@pytest.mark.parametrize("credential", [True, False])
async def test_an_upstream_that_closes_every_connection_at_once(credential: bool) -> None:
    """It is tried a bounded number of times, then the guest is told."""

    async def slam(line: Line) -> None:
        line.close()

    rules = [WITH_KEY if credential else ALLOW_ALL]
    async with Lab(RawUpstream(slam), rules=rules, credential=credential) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert answer.status == 502
        assert len(lab.upstream.lines) <= 3
        await lab.audited("GET /x allow upstream_closed 502 failed")


# -- an upstream that can't be reached, or is silent -------------------------------------------------------------------


async def test_an_upstream_that_is_not_there() -> None:
    """Refused connections and names without address are told apart."""
    upstream = HttpUpstream(echo)
    async with Lab(upstream) as lab:
        client = await lab.tunnel(f"api.test:{lab.gateway.addresses['proxy'][1] ^ 1}")
        port = client.authority.rpartition(":")[2]
        assert (await client.ask("GET", "/x")).reason == "connect_failed"
        other = await lab.tunnel("gone.test:443")
        assert (await other.ask("GET", "/x")).reason == "resolve_failed"
        assert port != str(upstream.port)
        await lab.audited("GET /x allow connect_failed 502 failed", "GET /x allow resolve_failed 502 failed")


async def test_an_upstream_with_the_wrong_certificate() -> None:
    """TLS to the upstream is always verified: nothing of the request is sent where it fails."""
    upstream = HttpUpstream(echo, "other.test")
    settings = {"dns": {"addresses": {"api.test": ["127.0.0.1"]}}}
    async with Lab(upstream, rules=[WITH_KEY], settings=settings) as lab:
        client = await lab.tunnel(f"api.test:{upstream.port}")
        assert (await client.ask("GET", "/x")).reason == "upstream_tls_failed"
        assert upstream.received == b""
        await lab.audited("GET /x allow upstream_tls_failed 502 failed")


async def test_a_silent_upstream_times_out() -> None:
    """Silence beyond the limit is a 504 for the guest, and never a retry."""
    async with Lab(RawUpstream(silent), settings={"limits": {"response_timeout_s": 0.05}}, credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "upstream_timeout"
        assert lab.upstream.received.count(b"GET /x") == 1
        await lab.audited("GET /x allow upstream_timeout 504 failed")


NOT_THEIRS = [("proxy-status", "evil"), ("alt-svc", 'h3=":1"'), ("x-seamgate-reason", "no"), ("x-seamgate-rule", "r")]


async def test_what_only_the_gateway_says_is_in_no_trailer_either() -> None:
    """Head, trailers and 103 of an upstream: its Proxy-Status, Alt-Svc and denial headers reach no guest."""

    async def app(talk: Talk) -> None:
        await talk.inform(103, [("link", "</a>"), *NOT_THEIRS])
        await talk.begin(200, NOT_THEIRS)
        await talk.data(b"x")
        await asyncio.sleep(0.02)
        await talk.finish([("x-t", "1"), *NOT_THEIRS])

    async with Lab(HttpUpstream(app), credential=False) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert answer.trailers == [(b"x-t", b"1")]
        assert answer.informational == [(103, [(b"link", b"</a>")])]
        assert not {name.encode() for name, _ in NOT_THEIRS} & {name for name, _ in answer.headers}
        await lab.audited(f"GET /x {ALLOWED}")


# -- guests that go ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "reset", "cut"])
async def test_a_guest_that_goes_while_its_answer_comes(end: str) -> None:
    """The upstream's session is closed, not pooled; the audit says aborted."""

    async def app(talk: Talk) -> None:
        await talk.begin(200)
        await talk.data(b"one")
        await talk.line.end()

    async with Lab(HttpUpstream(app), credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await client.line.seen(b"one")
        getattr(client.line, end)()
        await lab.audited("GET /x allow guest_gone 200 aborted")
        assert lab.gateway.seam.pool.counts == (0, 0, 0)


async def test_a_guest_that_goes_while_its_body_goes_up() -> None:
    """The upstream never takes half a body for a whole one."""

    async def script(line: Line) -> None:
        await line.until(b"half")
        arrived.set()
        await line.end()

    arrived = asyncio.Event()
    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel()
        head = b"POST /x HTTP/1.1\r\nhost: %b\r\ntransfer-encoding: chunked\r\n\r\n" % lab.authority().encode()
        await client.send(head + b"4\r\nhalf\r\n")
        await arrived.wait()
        client.close()
        await lab.audited("POST /x allow guest_gone 0 aborted")
        assert b"0\r\n\r\n" not in lab.upstream.received


async def test_a_guest_that_goes_before_anything_began() -> None:
    """Gone in the turn in which it asked: nothing is left behind."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        client.line.reset()
        await lab.until(lambda: bool(lab.records) or not lab.gateway.connections.all)
        lab._claimed = len(lab.records)


async def test_a_body_that_stops_coming() -> None:
    """A guest that does not send on is refused with 408 once its time is over."""
    async with Lab(RawUpstream(silent), credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("POST", "/x", b"content-length: 9") + b"half")
        await (await lab.upstream.connection()).seen(b"half")
        for connection in [*lab.gateway.connections.all]:
            connection.check_deadline(monotonic() + 1000)
        assert (await client.answer()).reason == "guest_timeout"
        await lab.audited("POST /x allow guest_timeout 408 failed")


async def test_a_head_that_stops_coming() -> None:
    """Half a head is refused with 408; silence between requests just ends."""
    async with Lab(HttpUpstream(echo)) as lab:
        idle, half = await lab.tunnel(), await lab.tunnel()
        await half.send(b"GET / HTTP/1.1\r\nhost:")
        connections: Any = lab.gateway.connections.all
        await lab.until(lambda: any(not each.idle for each in connections))
        for connection in [*lab.gateway.connections.all]:
            connection.check_deadline(monotonic() + 1000)
        assert (await half.answer()).reason == "guest_timeout"
        assert await idle.closed() == b""
        half.close()
        await lab.refused(f"- {lab.authority()} deny guest_timeout 408 denied")


async def test_a_guest_that_never_reads_is_ended() -> None:
    """It may not keep an upstream's session for ever: cut, and the audit says so."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99000000\r\n\r\n")
        while not line.lost:
            await line.send(bytes(1 << 20))

    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel(keeps=False)
        client.line.hold()
        await client.send(client.request("GET", "/x"))
        connections: Any = lab.gateway.connections.all
        await lab.until(lambda: any(each._stuck_at for each in connections))
        for connection in [*lab.gateway.connections.all]:
            connection.check_deadline(monotonic() + 1000)
        client.line.go_on()
        await lab.audited("GET /x allow guest_timeout 200 truncated")
        assert lab.gateway.seam.pool.counts == (0, 0, 0)


async def test_a_refused_guest_that_does_not_go_is_ended() -> None:
    """After a refusal that ends the connection, the guest has a moment to read it, then it is closed."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.proxy()
        await client.send(b"GARBAGE\r\n\r\n")
        assert (await client.answer()).status == 400
        for connection in [*lab.gateway.connections.all]:
            connection.check_deadline(monotonic() + 3)
        await client.closed()
        await lab.refused("- - deny bad_request 400 denied")


# -- the gateway stops -------------------------------------------------------------------------------------------------


async def test_a_stop_lets_requests_finish_and_takes_no_new_one() -> None:
    """An answer under way is completed; the connection then ends, and the journal says stop."""
    go = asyncio.Event()

    async def app(talk: Talk) -> None:
        await talk.begin(200)
        await talk.data(b"one")
        await go.wait()
        await talk.data(b"two")
        await talk.finish()

    async with Lab(HttpUpstream(app), credential=False, checks=False) as lab:
        client, idle = await lab.tunnel(), await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await client.line.seen(b"one")
        stopping = asyncio.ensure_future(lab.gateway.stop())
        assert await idle.closed() == b""
        go.set()
        answer = await client.answer()
        assert (answer.body, answer.whole) == (b"onetwo", True)
        await stopping
        await lab.audited(f"GET /x {ALLOWED}")
        assert lab.lines()[-1]["gateway"]["event"] == "stop"


@pytest.mark.parametrize("tls", [True, False])
async def test_the_kernel_looks_for_upstreams_that_are_gone(tls: bool) -> None:
    """A session whose upstream vanished without a word (no FIN, no RST) is found by probes, long before its time."""
    async with Lab(HttpUpstream(echo, tls=tls), credential=False) as lab:
        client = await (lab.tunnel() if tls else lab.proxy())
        assert (await client.ask("GET", "/x")).status == 200
        pool: Any = lab.gateway.seam.pool
        (session,) = [each for bucket in pool._buckets.values() for each in bucket.idle]
        connection = session.transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle_s, between_s, count = [connection.getsockopt(socket.IPPROTO_TCP, option) for option in options]
        assert idle_s + between_s * count <= 120
        await lab.audited(f"GET /x {ALLOWED}")
