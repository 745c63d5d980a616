"""An upstream speaks HTTP/2: one connection carries many guests' requests, within the isolation of the pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
from time import monotonic
from typing import Any

import pytest

from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http2_guard import CONTROL_BURST
from seamgate.upstream import session2
from support.http2 import claimed, frames, tunnel
from support.http2_upstream import H2Upstream, Talk2, echo2
from support.lab import OTHER_TOKEN, SECRET, TOKEN, WITH_KEY, Lab, proxy_authorization
from support.line import Cut


async def test_http1_guests_share_one_http2_connection() -> None:
    """Thirty at once over thirty tunnels: one connection up, thirty streams."""
    go = asyncio.Event()

    async def app(talk: Talk2) -> None:
        await go.wait()
        await talk.respond(200, talk.target.encode())

    async with Lab(H2Upstream(app), credential=False) as lab:
        guests = [await lab.tunnel() for _ in range(30)]
        for number, guest in enumerate(guests):
            await guest.send(guest.request("GET", f"/{number}"))
        upstream: Any = lab.upstream
        await lab.until(lambda: len(upstream.talks) == 30)
        assert len(upstream.links) == 1
        go.set()
        for number, guest in enumerate(guests):
            assert (await guest.answer()).body == f"/{number}".encode()
        records = await claimed(lab, 30)
        assert {record.upstream.session for record in records if record.upstream is not None} == {"m1"} or len(
            {record.upstream.session for record in records if record.upstream is not None}
        ) == 1


async def test_the_upstream_gets_what_policy_saw() -> None:
    """Host becomes :authority, hop-by-hop fields stay here, trailers and length go along."""
    async with Lab(H2Upstream(echo2)) as lab:
        guest = await lab.tunnel()
        answer = await guest.ask(
            "POST", "/x?y", b"Connection: x-hop", b"x-hop: 1", b"te: gzip", b"cookie: a=1; b=2", body=b"abc"
        )
        assert answer.json["headers"] == [
            [":method", "POST"],
            [":scheme", "https"],
            [":authority", lab.authority()],
            [":path", "/x?y"],
            ["cookie", "a=1; b=2"],
            ["content-length", "3"],
        ]
        assert answer.json["body"] == "abc"
        await guest.send(
            b"PUT /t HTTP/1.1\r\nhost: " + guest.authority.encode() + b"\r\ntransfer-encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\nx-sum: 9\r\n\r\n"
        )
        answer = await guest.answer()
        assert answer.json["trailers"] == [["x-sum", "9"]]
        await lab.audited("POST /x allow allowed 200 complete", "PUT /t allow allowed 200 complete")


async def test_http2_on_both_sides() -> None:
    """Heads, bodies, trailers, HEAD, 204 and 103 cross."""

    async def app(talk: Talk2) -> None:
        if talk.target == "/trailers":
            await talk.begin(103, [(b"link", b"</x>")])
            await talk.begin(200)
            await talk.data(b"fine")
            await talk.finish([(b"x-late", b"1")])
        else:
            await talk.respond(int(talk.target[1:]), b"" if talk.target == "/204" else b"12345")

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/trailers")
        assert (reply.body, reply.trailers, len(reply.informational)) == (b"fine", [(b"x-late", b"1")], 1)
        reply = await guest.ask("/200", method="HEAD")
        assert (reply.status, reply.header(b"content-length"), reply.body) == (200, b"5", b"")
        reply = await guest.ask("/204")
        assert (reply.status, reply.whole) == (204, True)
        await lab.audited(
            "GET /trailers allow allowed 200 complete",
            "HEAD /200 allow allowed 200 complete",
            "GET /204 allow allowed 204 complete",
        )


async def test_bodies_flow_at_once_in_both_directions() -> None:
    """Each piece comes back before the next is sent: nothing waits for the end of the request."""

    async def app(talk: Talk2) -> None:
        await talk.begin(200)
        while (piece := await talk.piece()) is not None:
            await talk.data(piece.upper())
        await talk.finish([(b"done", b"1")])

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/", method="POST")
        reply = guest.replies[stream]
        for number in range(10):
            await guest.data(stream, b"a%d" % number)
            wanted = 2 * number + 2
            await guest.until(lambda: len(reply.body) == wanted)  # noqa: B023 - it is awaited here
        await guest.end(stream)
        await guest.answer(stream)
        assert reply.body == b"".join(b"A%d" % number for number in range(10)) and reply.trailers == [(b"done", b"1")]
        await lab.audited("POST / allow allowed 200 complete")


async def test_a_large_body_crosses_both_windows() -> None:
    """Several windows of body up and down, whole."""
    body = bytes(range(256)) * 8192

    async def app(talk: Talk2) -> None:
        await talk.respond(200, await talk.body())

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/", method="POST", body=body)
        assert reply.body == body
        await lab.audited("POST / allow allowed 200 complete")


async def test_guests_of_other_groups_never_share_a_connection() -> None:
    """The pool's isolation holds for streams as it does for sessions."""
    async with Lab(H2Upstream(echo2), settings={"entries": {"proxy": {"guest": ""}}}) as lab:
        seen = []
        for token in (TOKEN, OTHER_TOKEN, TOKEN):
            guest = await lab.tunnel("", proxy_authorization(token))
            seen.append((await guest.ask("GET", "/")).json["connection"])
        assert seen == [0, 1, 0]
        await lab.audited(*["GET / allow allowed 200 complete"] * 3)


async def test_a_credential_goes_up_and_never_comes_back() -> None:
    """Two guests on one connection, one of them with a secret: neither sees it."""
    async with Lab(H2Upstream(echo2), rules=[WITH_KEY]) as lab:
        upstream: Any = lab.upstream
        guest = await tunnel(lab)
        reply = await guest.ask("/")
        assert upstream.talks[0].header("x-api-key") == SECRET.encode()
        assert SECRET.encode() not in reply.body and b"x-api-key" in reply.body
        await lab.audited("GET / allow allowed 200 complete")


async def test_more_requests_than_the_upstream_takes_at_once_get_more_connections() -> None:
    """SETTINGS_MAX_CONCURRENT_STREAMS is obeyed."""
    go = asyncio.Event()

    async def app(talk: Talk2) -> None:
        await go.wait()
        await talk.respond(200, b"x")

    async with Lab(H2Upstream(app, settings={3: 2}), credential=False) as lab:
        upstream: Any = lab.upstream
        first = await tunnel(lab)
        warm = await first.begin("/", ended=True)
        await lab.until(lambda: len(upstream.talks) == 1)
        streams = [await first.begin("/", ended=True) for _ in range(5)]
        await lab.until(lambda: len(upstream.talks) == 6)
        per_link = [len(link.talks) for link in upstream.links]
        assert max(per_link) <= 2 and sum(per_link) == 6
        go.set()
        for stream in (warm, *streams):
            assert (await first.answer(stream)).status == 200
        await claimed(lab, 6)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_refused_stream_is_sent_again(method: str) -> None:
    """REFUSED_STREAM says that nothing was looked at: even a POST may be repeated."""

    async def app(talk: Talk2) -> None:
        upstream: Any = lab.upstream
        if len(upstream.talks) == 1:
            await talk.give_up(7)
        else:
            await echo2(talk)

    async with Lab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/", method=method, body=b"abc" if method == "POST" else None)
        assert json.loads(reply.body)["body"] == ("abc" if method == "POST" else "")
        (record,) = await lab.audited(f"{method} / allow allowed 200 complete")
        assert record.upstream is not None and record.upstream.attempts == 2
        assert lab.gateway.seam.repeated == {"session_closed": 0, "not_processed": 1}


async def test_streams_that_are_always_refused_end() -> None:
    """After a few tries."""

    async def app(talk: Talk2) -> None:
        await talk.give_up(7)

    async with Lab(H2Upstream(app)) as lab:
        upstream: Any = lab.upstream
        guest = await tunnel(lab)
        reply = await guest.ask("/")
        assert (reply.status, reply.reason) == (502, "upstream_closed")
        assert len(upstream.talks) == 4
        (record,) = await lab.audited("GET / allow upstream_closed 502 failed")
        assert record.upstream is not None and record.upstream.attempts == 4


async def test_goaway_lets_streams_below_it_finish_and_repeats_those_above() -> None:
    """A graceful restart of the upstream: nobody notices."""
    both = asyncio.Event()

    async def app(talk: Talk2) -> None:
        upstream: Any = lab.upstream
        if talk.connection:
            await talk.respond(200, b"second connection")
            return
        if len(upstream.talks) == 2:
            both.set()
            return
        await both.wait()
        await talk.link.raw(wire.write_goaway(1, 0))
        await talk.respond(200, b"first connection")

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        one = await guest.begin("/1", ended=True)
        upstream: Any = lab.upstream
        await lab.until(lambda: len(upstream.talks) == 1)
        two = await guest.begin("/2", ended=True)
        assert (await guest.answer(one)).body == b"first connection"
        assert (await guest.answer(two)).body == b"second connection"
        await claimed(lab, 2)


async def test_a_reset_answer_is_cut_for_its_guest_only() -> None:
    """Other streams of the connection go on."""

    async def app(talk: Talk2) -> None:
        if talk.target == "/cut":
            await talk.begin(200)
            await talk.data(b"half")
            await talk.give_up(2)
        else:
            await echo2(talk)

    async with Lab(H2Upstream(app), credential=False) as lab:
        upstream: Any = lab.upstream
        guest = await tunnel(lab)
        reply = await guest.ask("/cut")
        assert (reply.status, reply.body, reply.whole, reply.reset) == (200, b"half", False, 2)
        assert (await guest.ask("/")).status == 200
        assert len(upstream.links) == 1
        await lab.audited("GET /cut allow upstream_closed 200 truncated", "GET / allow allowed 200 complete")


@pytest.mark.parametrize(
    "fields",
    [
        [(b"a", b"1\r\nset-cookie: x")],
        [(b"transfer-encoding", b"chunked")],
        [(b"content-length", b"5"), (b"content-length", b"5")],
        [(b"A", b"1")],
    ],
)
async def test_a_malformed_answer_concerns_its_stream_only(fields: list[tuple[bytes, bytes]]) -> None:
    """502 for the one; the other on the same connection is answered."""
    go = asyncio.Event()

    async def app(talk: Talk2) -> None:
        if talk.target == "/bad":
            await talk.begin(200, fields)
            go.set()
            assert await talk.given_up() == 1
        else:
            await go.wait()
            await echo2(talk)

    async with Lab(H2Upstream(app)) as lab:
        upstream: Any = lab.upstream
        guest = await tunnel(lab)
        good = await guest.begin("/good", ended=True)
        await lab.until(lambda: len(upstream.talks) == 1)
        reply = await guest.ask("/bad")
        assert (reply.status, reply.reason) == (502, "upstream_protocol")
        assert (await guest.answer(good)).status == 200
        assert len(upstream.links) == 1
        await lab.audited("GET /bad allow upstream_protocol 502 failed", "GET /good allow allowed 200 complete")


async def test_a_body_longer_than_it_says_is_cut() -> None:
    """The surplus never reaches the guest."""

    async def app(talk: Talk2) -> None:
        await talk.begin(200, [(b"content-length", b"4")])
        await talk.data(b"fine")
        await talk.data(b"evil")
        await talk.given_up()

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await lab.tunnel()
        answer = await guest.ask("GET")
        assert answer.body in (b"", b"fine")
        await claimed(lab, 1)


async def test_a_guest_that_gives_up_resets_its_stream_only() -> None:
    """CANCEL upstream; the connection and the streams beside it live on."""
    given_up = asyncio.Event()

    async def app(talk: Talk2) -> None:
        if talk.target == "/slow":
            assert await talk.given_up() == 8
            given_up.set()
        else:
            await echo2(talk)

    async with Lab(H2Upstream(app)) as lab:
        upstream: Any = lab.upstream
        leaving, staying = await lab.tunnel(), await lab.tunnel()
        await leaving.send(leaving.request("GET", "/slow"))
        await lab.until(lambda: len(upstream.talks) == 1)
        leaving.close()
        await given_up.wait()
        assert (await staying.ask("GET", "/")).status == 200
        assert len(upstream.links) == 1
        await lab.audited("GET /slow allow guest_gone 0 aborted", "GET / allow allowed 200 complete")


async def test_a_guest_that_does_not_read_keeps_nobody_waiting() -> None:
    """Its stream's window closes at the upstream; another guest's large answer passes on the same connection."""
    size = 8 << 20

    async def app(talk: Talk2) -> None:
        await talk.respond(200, bytes(size))

    async with Lab(H2Upstream(app), credential=False) as lab:
        upstream: Any = lab.upstream
        slow = await tunnel(lab, settings={4: 65535})
        slow.opens_windows = False
        stalled = await slow.begin("/", ended=True)
        await slow.until(lambda: len(slow.replies[stalled].body) == 65535)
        guest = await lab.tunnel(keeps=True)
        assert len((await guest.ask("GET")).body) == size
        assert len(upstream.links) == 1
        slow.close()
        await claimed(lab, 2)


async def test_an_upstream_that_breaks_the_protocol_loses_its_connection() -> None:
    """Every exchange on it fails, with a reason; the next one gets a new connection."""

    async def app(talk: Talk2) -> None:
        if talk.connection == 0:
            await talk.link.raw(wire.write_frame(wire.PUSH_PROMISE, 4, talk.stream, bytes(5)))
        else:
            await echo2(talk)

    async with Lab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/")
        assert (reply.status, reply.reason) == (502, "upstream_protocol")
        assert (await guest.ask("/")).status == 200
        await lab.audited("GET / allow upstream_protocol 502 failed", "GET / allow allowed 200 complete")


FLOOD = CONTROL_BURST + 200
FLOODS = {
    "PING": wire.write_frame(wire.PING, 0, 0, bytes(8)) * FLOOD,
    "SETTINGS": wire.write_settings([]) * FLOOD,
    "GOAWAY": wire.write_goaway(1, 0) * FLOOD,
    "PRIORITY": wire.write_frame(wire.PRIORITY, 0, 9, bytes(5)) * FLOOD,
    "unknown frames": wire.write_frame(0xAA, 0, 0, b"") * FLOOD,
    "1xx responses": wire.write_headers(1, b"\x08\x03103", ended=False) * FLOOD,
    "empty DATA": wire.write_headers(1, b"\x88", ended=False) + wire.write_frame(wire.DATA, 0, 1, b"") * FLOOD,
    "CONTINUATION": wire.write_frame(wire.HEADERS, 0, 1, b"") + wire.write_frame(wire.CONTINUATION, 0, 1, b"") * 40,
    "a header bomb": wire.write_headers(1, b"\x88\x40\x04bomb\x7f\xb9\x1d" + b"x" * 3900 + b"\xbe" * 12000, ended=True),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_an_upstream_that_floods_loses_its_connection(what: str) -> None:
    """Whatever it is that carries nothing: its guest hears of it, the connection ends, another upstream's does not."""

    async def app(talk: Talk2) -> None:
        with contextlib.suppress(Cut):
            await talk.link.raw(FLOODS[what])

    async with Lab(H2Upstream(app), H2Upstream(echo2, "good.test"), credential=False) as lab:
        other = await tunnel(lab, authority=lab.authority(1))
        assert (await other.ask("/")).status == 200
        guest = await tunnel(lab)
        reply = await guest.ask("/")
        assert reply.reason == "upstream_protocol" or (reply.status, reply.whole) == (200, False)
        assert (await other.ask("/")).status == 200
        await lab.until(
            lambda: lab.gateway.seam.pool.counts == (0, 1, 0)
        )  # its frames are read a turn's worth at a time
        (_, flooded, _) = await claimed(lab, 3)
        assert flooded.reason == "upstream_protocol"


async def test_http2_can_be_turned_off_on_either_side() -> None:
    """Then ALPN offers http/1.1 only."""
    async with Lab(H2Upstream(echo2), settings={"http2": {"upstreams": False}}, checks=False) as lab:
        guest = await tunnel(lab)
        upstream: Any = lab.upstream
        await guest.begin("/", ended=True)
        await lab.until(lambda: bool(upstream.lines))
        assert upstream.lines[0].transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        upstream.failures.clear()
        guest.close()
    async with Lab(H2Upstream(echo2), settings={"http2": {"guests": False}}) as lab:
        with pytest.raises(AssertionError):
            await tunnel(lab)


async def test_a_silent_upstream_times_out_by_stream() -> None:
    """The others, and the connection, live on."""

    async def app(talk: Talk2) -> None:
        if talk.target == "/silent":
            await talk.given_up()
        else:
            await echo2(talk)

    async with Lab(H2Upstream(app)) as lab:
        upstream: Any = lab.upstream
        guest = await tunnel(lab)
        silent = await guest.begin("/silent", ended=True)
        await lab.until(lambda: bool(upstream.talks))
        (bucket,) = lab.gateway.seam.pool._buckets.values()
        (asked,) = bucket.shared[0]._streams.values()
        asked.active_at -= 901
        lab.age_upstreams(0)
        assert (await guest.answer(silent)).reason == "upstream_timeout"
        assert (await guest.ask("/")).status == 200
        assert len(upstream.links) == 1
        await lab.audited("GET /silent allow upstream_timeout 504 failed", "GET / allow allowed 200 complete")


async def test_a_stream_gains_no_time_by_informational_responses() -> None:
    """A 103 now and then is not an answer: the stream times out as a silent one does."""
    go = asyncio.Event()

    async def app(talk: Talk2) -> None:
        await go.wait()
        for _ in range(3):
            await talk.begin(103)
        await talk.given_up()

    upstream = H2Upstream(app)
    async with Lab(upstream, credential=False) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/", ended=True)
        await lab.until(lambda: bool(upstream.talks))
        (bucket,) = lab.gateway.seam.pool._buckets.values()
        (asked,) = bucket.shared[0]._streams.values()
        asked_at = asked.active_at
        go.set()
        await guest.until(lambda: len(guest.replies[stream].informational) > 0)
        assert asked.active_at == asked_at
        lab.age_upstreams(901)
        assert (await guest.answer(stream)).reason == "upstream_timeout"
        await lab.audited("GET / allow upstream_timeout 504 failed")


async def test_a_guest_may_be_silent_in_a_stream_that_is_answered() -> None:
    """A subscription lasts: only a request that nobody has answered has to keep coming. gRPC may wait."""

    async def app(talk: Talk2) -> None:
        if talk.target == "/answered":
            await talk.begin(200)
        await talk.body()
        if talk.target != "/answered":
            await talk.begin(200)
        await talk.finish()

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        grpc = (b"content-type", b"application/grpc")
        answered = await guest.begin("/answered", method="POST")
        silent = await guest.begin("/silent", grpc, method="POST")
        await guest.until(lambda: guest.replies[answered].status == 200)
        lab.age_guests(301)
        for stream in (answered, silent):
            await guest.end(stream)
            assert (await guest.answer(stream)).whole
        await claimed(lab, 2)


async def test_trailers_survive_an_empty_body_in_one_batch() -> None:
    """A gRPC error after early metadata is just that: head and trailers, at once. In HTTP/1.1 they come chunked."""

    async def app(talk: Talk2) -> None:
        talk.link.h.send_headers(talk.stream, [(b":status", b"200")])
        talk.link.h.send_headers(talk.stream, [(b"grpc-status", b"9")], end_stream=True)
        await talk.link.flush()

    async with Lab(H2Upstream(app), credential=False) as lab:
        reply = await (await tunnel(lab)).ask("/")
        assert (reply.body, reply.trailers, reply.whole) == (b"", [(b"grpc-status", b"9")], True)
        answer = await (await lab.tunnel()).ask("GET")
        assert (answer.body, answer.trailers, answer.whole) == (b"", [(b"grpc-status", b"9")], True)
        await lab.audited(*["GET / allow allowed 200 complete"] * 2)


async def test_a_large_answer_crosses_small_windows() -> None:
    """A guest that reads a window at a time gets all of it: each window that opens is passed on at once."""

    async def app(talk: Talk2) -> None:
        await talk.respond(200, bytes(4 << 20))

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        assert len((await guest.ask("/")).body) == 4 << 20
        await lab.audited("GET / allow allowed 200 complete")


def pings(upstream: H2Upstream) -> int:
    """How many PINGs, answers left out, the upstream got over its first connection."""
    got = frames(bytes(upstream.lines[0].received)[len(wire.PREFACE) :])
    return sum(kind == wire.PING and not flags & wire.ACK for kind, flags, _, _ in got)


async def test_an_upstream_that_is_gone_is_found_by_a_ping() -> None:
    """No end, no reset, no answer, as behind a cable that was pulled: found soon, not after the time of an answer."""

    async def app(talk: Talk2) -> None:
        if talk.connection == 0:
            talk.link.line.hold()
            await talk.given_up()
        await talk.respond(200, b"there")

    upstream = H2Upstream(app)
    async with Lab(upstream) as lab:
        guest = await tunnel(lab)
        asked = await guest.begin("/", ended=True)
        await lab.until(lambda: bool(upstream.talks))
        lab.age_upstreams(16)
        assert not lab.records
        lab.age_upstreams(32)
        reply = await guest.answer(asked)
        assert (reply.status, reply.reason) == (504, "upstream_timeout")
        assert (await guest.ask("/")).body == b"there"
        await lab.audited("GET / allow upstream_timeout 504 failed", "GET / allow allowed 200 complete")


async def test_an_upstream_that_answers_a_ping_may_think(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked a few times at most, since there are servers that count; then a request is all the news there is."""
    go = asyncio.Event()
    passed_s = 0.0
    monkeypatch.setattr(session2, "monotonic", lambda: monotonic() + passed_s)

    async def app(talk: Talk2) -> None:
        await go.wait()
        await talk.respond(200, b"thought")

    upstream = H2Upstream(app)
    async with Lab(upstream) as lab:
        guest = await tunnel(lab)
        streams = []

        def answered() -> bool:
            (bucket,) = lab.gateway.seam.pool._buckets.values()
            (session,) = bucket.shared
            return not session._awaits_ping or session._heard_at > session._asked_at

        for count in (1, 2, 3, 4):
            streams.append(await guest.begin("/", ended=True))
            await lab.until(lambda count=count: len(upstream.talks) == count)  # type: ignore[misc]
            for _ in range(3):
                passed_s += 16
                lab.age_upstreams(passed_s)
                await lab.until(answered)
            assert pings(upstream) == min(count, 3)
        go.set()
        assert [(await guest.answer(stream)).body for stream in streams] == [b"thought"] * 4
        await claimed(lab, 4)
        assert len(upstream.lines) == 1


async def test_a_session_that_nobody_waits_for_is_not_asked() -> None:
    """Idle sessions grow old by themselves; servers take PINGs without requests for a flood."""
    upstream = H2Upstream(echo2)
    async with Lab(upstream) as lab:
        guest = await tunnel(lab)
        await guest.ask("/")
        for seconds in (16, 32, 48):
            lab.age_upstreams(seconds)
            await asyncio.sleep(0)
        assert pings(upstream) == 0
        await lab.audited("GET / allow allowed 200 complete")
