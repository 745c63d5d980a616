"""WebSockets over HTTP/2 (RFC 8441) across the gateway, on either side or both: the same as over HTTP/1.1."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from seamgate.audit.record import AuditWebSocket, Decision
from seamgate.protocol import http2_frames as wire
from seamgate.protocol.websocket import BINARY, TEXT
from seamgate.upstream import session2
from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, SECRET, Lab
from support.line import Cut
from support.upstream import HttpUpstream, RawUpstream
from support.upstream import echo as echo1
from support.websocket import (
    ALLOW_SOCKETS,
    OPENING,
    SOCKETS_WITH_KEY,
    TALKED,
    Peer,
    echo,
    open_socket,
    serves,
    talk_both_ways,
)
from support.websocket2 import CONNECTS, BothUpstream, open_stream, opening, serves2, socket_of, upstream_of
from unit.protocol.test_websocket import frame

COMPLETE = "GET /ws allow allowed 101 complete"
DEFLATE = (b"sec-websocket-extensions", b"permessage-deflate")
WARM: dict[str, Any] = {"pool": {"preconnect": True}}
"""A session is opened as soon as a guest asks for a tunnel, so that it is known what the upstream takes."""
BOTH = [(1, 2), (2, 1), (2, 2)]


def a_lab(upstream: RawUpstream, **more: Any) -> Lab:
    return Lab(upstream, **{"rules": [ALLOW_SOCKETS], "credential": False, "settings": WARM, **more})


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(("guest", "upstream"), BOTH)
async def test_messages_go_both_ways(guest: int, upstream: int, compressed: bool) -> None:
    """Text, bytes, pings and the close handshake pass; the record is that of HTTP/1.1; no stream is left open."""
    server = upstream_of(upstream, echo, *([DEFLATE] if compressed else []))
    async with a_lab(server) as lab:
        peer = await socket_of(guest, lab, "/ws", *([DEFLATE] if compressed else []))
        await talk_both_ways(peer)
        (record,) = await lab.audited(COMPLETE)
        assert (record.websocket, record.bytes) == TALKED
        assert lab.gateway.seam.pool.counts[0] == 0


async def test_streams_share_connections_with_requests() -> None:
    """Two guests' WebSockets and requests, one connection to the upstream; a session without streams is kept."""
    async with a_lab(upstream_of(2, echo)) as lab:
        one, other = await tunnel(lab), await tunnel(lab)
        peers = [await open_stream(each) for each in (one, other, one)]
        assert (await one.ask("/")).body == b"plain"
        for number, peer in enumerate(peers):
            await peer.say(f"I am {number}")
        assert [await peer.hear() for peer in peers] == ["I am 0", "I am 1", "I am 2"]
        assert len(lab.upstream.lines) == 1
        for peer in peers:
            await peer.close()
        await lab.until(lambda: lab.gateway.seam.pool.counts == (0, 1, 0))
        await claimed(lab, 4)


async def test_nothing_is_opened_to_find_out() -> None:
    """Where no session has shown that the upstream takes it, a WebSocket has an HTTP/1.1 connection of its own."""
    upstream = BothUpstream(echo, connects=True)
    async with a_lab(upstream, settings={}) as lab:
        guest = await tunnel(lab)
        first = await open_stream(guest)
        assert (await guest.ask("/")).body == b"plain"
        then = await open_stream(guest)
        for peer in (first, then):
            await peer.say("hello")
            assert await peer.hear() == "hello"
            await peer.close()
        assert upstream.versions == ["http/1.1", "h2"]
        await claimed(lab, 3)


@pytest.mark.parametrize("settings", [{}, WARM])
async def test_an_upstream_that_does_not_take_it_is_asked_over_http1(settings: dict[str, Any]) -> None:
    """HTTP/2 without the setting: WebSockets get connections of their own, requests share the other one."""
    upstream = BothUpstream(echo, connects=False)
    async with a_lab(upstream, settings=settings) as lab:
        guest = await tunnel(lab)
        assert (await guest.ask("/")).body == b"plain"
        peer = await open_stream(guest)
        await peer.say("hello")
        assert await peer.hear() == "hello"
        await peer.close()
        assert upstream.versions == ["h2", "http/1.1"]
        await claimed(lab, 2)


async def test_what_the_upstream_takes_is_found_out_first() -> None:
    """No CONNECT came before, for which a session would have been opened: one of HTTP/2 alone is still asked in it."""
    async with a_lab(upstream_of(2, echo)) as lab:
        peer = await open_socket(await lab.base(), "/api/ws")
        await peer.say("hello")
        assert await peer.hear() == "hello"
        await peer.close()
        await lab.audited(COMPLETE)


# -- before it is open -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upstream", [1, 2])
async def test_nothing_goes_up_before_it_is_open(upstream: int) -> None:
    """Frames that a guest sends before it has its answer never leave, and end the stream, not the connection."""
    async with a_lab(upstream_of(upstream, echo)) as lab:
        guest = await tunnel(lab)
        stream = await guest.send(opening(guest.authority), ended=False)
        await guest.data(stream, frame(TEXT, b"too early", masked=True))
        assert (await guest.answer(stream)).reason == "bad_request"
        assert b"too early" not in lab.upstream.received
        peer = await open_stream(guest)
        await peer.close()
        await lab.audited("GET /ws deny bad_request 400 denied", COMPLETE)


async def test_policy_has_to_allow_it() -> None:
    """A rule that allows the GET does not allow the WebSocket; a path that none allows is a 403 as ever."""
    rules = [{**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "paths": ["/ws"]}}]
    async with a_lab(HttpUpstream(echo1), rules=rules, settings={}) as lab:
        guest = await tunnel(lab)
        reply = await guest.answer(await guest.send(opening(guest.authority), ended=False))
        assert (reply.status, reply.reason) == (501, "upgrade_refused")
        reply = await guest.answer(await guest.send(opening(guest.authority, "/other"), ended=False))
        assert (reply.status, reply.reason) == (403, "no_rule_matched")
        await lab.refused("GET /ws deny upgrade_refused 501 denied", "GET /other deny no_rule_matched 403 denied")


MALFORMED: dict[str, tuple[list[tuple[bytes, bytes]], str]] = {
    "another protocol": ([(b":protocol", b"connect-udp")], "upgrade_refused"),
    "GET": ([(b":method", b"GET")], "bad_request"),
    "no path": ([(b":path", b"")], "bad_request"),
    "another scheme": ([(b":scheme", b"wss")], "target_mismatch"),
    "another version": ([(b"sec-websocket-version", b"8")], "upgrade_refused"),
    "bad subprotocols": ([(b"sec-websocket-protocol", b"a,,b")], "bad_request"),
    "bad extensions": ([(b"sec-websocket-extensions", b"a;;")], "bad_request"),
    "a length": ([(b"content-length", b"0")], "bad_request"),
    "an expectation": ([(b"expect", b"100-continue")], "bad_request"),
    "an upgrade": ([(b"upgrade", b"websocket")], "bad_request"),
    "another authority": ([(b":authority", b"evil.test")], "target_mismatch"),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_opening_is_refused(what: str) -> None:
    """On its stream, with one record, and nothing goes up."""
    changed, reason = MALFORMED[what]
    async with a_lab(HttpUpstream(echo1), settings={}) as lab:
        guest = await tunnel(lab)
        fields = opening(guest.authority)
        known = {name for name, _ in fields}
        fields = [(name, dict(changed).get(name, value)) for name, value in fields]
        fields += [pair for pair in changed if pair[0] not in known]
        reply = await guest.answer(await guest.send(fields, ended=False))
        assert reply.reason == reason
        (record,) = await claimed(lab, 1)
        assert record.verdict is Decision.DENY and lab.upstream.received == b""
        assert (await guest.ask("/")).status == 200
        await claimed(lab, 1)


async def test_an_opening_that_ends_at_once_is_refused() -> None:
    """END_STREAM on an extended CONNECT: a connection that is closed before it is open."""
    async with a_lab(HttpUpstream(echo1), settings={}) as lab:
        guest = await tunnel(lab)
        reply = await guest.answer(await guest.send(opening(guest.authority), ended=True))
        assert reply.reason == "bad_request"
        await lab.refused(f"- {lab.authority()} deny bad_request 400 denied")


async def test_another_answer_is_an_answer() -> None:
    """A server that declines is heard, with its body; the session stays, and is not charged with a reset."""

    async def app(talk: Talk2) -> None:
        if talk.method == "CONNECT":
            await talk.respond(418, b"no sockets")
            return
        await talk.respond(200, b"plain")

    async with a_lab(H2Upstream(app, settings=CONNECTS)) as lab:
        guest = await tunnel(lab)
        for _ in range(2):
            reply = await guest.answer(await guest.send(opening(guest.authority), ended=False))
            assert (reply.status, reply.body) == (418, b"no sockets")
        await lab.until(lambda: lab.gateway.seam.pool.counts == (0, 1, 0))
        pool: Any = lab.gateway.seam.pool
        (bucket,) = pool._buckets.values()
        assert bucket.shared[0]._resets == 0
        await lab.audited(*["GET /ws allow allowed 418 complete"] * 2)


async def test_what_was_not_looked_at_is_asked_again() -> None:
    """REFUSED_STREAM: the upstream did not see it, so it is sent once more."""
    asked: list[Talk2] = []

    async def app(talk: Talk2) -> None:
        asked.append(talk)
        if len(asked) == 1:
            await talk.give_up(wire.REFUSED_STREAM)
        else:
            await serves2(echo)(talk)

    async with a_lab(H2Upstream(app, settings=CONNECTS)) as lab:
        peer = await socket_of(2, lab)
        await peer.say("again")
        assert await peer.hear() == "again"
        await peer.close()
        await lab.audited(COMPLETE)


BAD_ANSWERS = {
    "an extension that was not offered": (b"sec-websocket-extensions", b"x-own"),
    "a subprotocol that was not offered": (b"sec-websocket-protocol", b"v9"),
}


@pytest.mark.parametrize("what", BAD_ANSWERS)
async def test_an_upstream_is_held_to_what_was_asked(what: str) -> None:
    """The guest gets a 502, not a stream of anything."""
    async with a_lab(upstream_of(2, echo, BAD_ANSWERS[what])) as lab:
        guest = await tunnel(lab)
        reply = await guest.answer(await guest.send(opening(guest.authority), ended=False))
        assert (reply.status, reply.reason) == (502, "upstream_protocol")
        await lab.audited("GET /ws allow upstream_protocol 502 failed")


# -- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("guest", "upstream"), BOTH)
async def test_a_server_may_close_first(guest: int, upstream: int) -> None:
    """Its code and reason reach the guest, whose answer reaches it."""
    heard: list[tuple[int, str]] = []

    async def talk(peer: Peer) -> None:
        heard.append(await peer.close(1001, "restart"))

    async with a_lab(upstream_of(upstream, talk)) as lab:
        peer = await socket_of(guest, lab)
        assert await peer.closed() == (1001, "restart")
        await peer.line.end()
        (record,) = await lab.audited(COMPLETE)
        assert record.websocket == AuditWebSocket(0, 0, 1001)
        await lab.until(lambda: bool(heard))
    assert heard == [(1001, "restart")]


@pytest.mark.parametrize("guest", [1, 2])
@pytest.mark.parametrize("end", ["close", "cut", "reset"])
async def test_a_server_that_breaks_off_is_an_error(end: str, guest: int) -> None:
    """The end of the stream, its reset, the loss of the connection: without a Close the guest gets 1011."""

    async def talk(peer: Peer) -> None:
        await peer.say("half")
        await peer.hear()
        getattr(peer.line, end)()

    async with a_lab(upstream_of(2, talk)) as lab:
        peer = await socket_of(guest, lab)
        assert await peer.hear() == "half"
        await peer.say("go")
        code, reason = await peer.closed()
        assert code == 1011 and reason.startswith("upstream_closed; rule=all; id=")
        (record,) = await lab.audited("GET /ws allow upstream_closed 101 truncated")
        assert record.websocket == AuditWebSocket(1, 1, 1011)


@pytest.mark.parametrize(("guest", "upstream"), [(1, 1), (2, 1), (2, 2)])
async def test_a_guest_that_closes_and_ends_its_side_hears_the_close(guest: int, upstream: int) -> None:
    """Its Close and the end of its stream, or its FIN, come together, as from Chromium: it is told all the same."""

    async def talk(peer: Peer) -> None:
        assert await peer.closed() == (1000, "fin")

    async with a_lab(upstream_of(upstream, talk)) as lab:
        peer = await (socket_of(2, lab) if guest == 2 else open_socket(await lab.base(), "/api/ws"))
        close = peer.frames.send(CloseConnection(code=1000, reason="fin"))
        line: Any = peer.line
        if guest == 2:
            line.client.h.send_data(line.stream, close, end_stream=True)
            await line.client.flush()
        else:
            line.transport.write(close)
            line.transport.write_eof()
        assert await peer.closed() == (1000, "fin")
        await peer.line.end()
        await lab.audited(COMPLETE)


@pytest.mark.parametrize("upstream", [1, 2])
@pytest.mark.parametrize("end", ["finish", "reset", "close"])
async def test_a_guest_that_breaks_off_is_told_upstream(end: str, upstream: int) -> None:
    """The end of its stream, its reset, the loss of its connection: the upstream gets a Close (going away)."""
    heard: list[tuple[int, str]] = []

    async def talk(peer: Peer) -> None:
        heard.append(await peer.closed())

    async with a_lab(upstream_of(upstream, talk)) as lab:
        peer = await socket_of(2, lab)
        done: Any = getattr(peer.line, end)()
        if done is not None:
            await done
        await lab.audited("GET /ws allow guest_gone 101 aborted")
        await lab.until(lambda: bool(heard))
    assert heard == [(1001, "")]


@pytest.mark.parametrize(
    ("broken", "code", "reason"),
    [
        (frame(TEXT, b"not masked"), 1002, "bad_request"),
        (frame(TEXT, b"\xff", masked=True), 1007, "bad_request"),
        (frame(BINARY, bytes(2000), masked=True), 1009, "body_too_large"),
    ],
)
async def test_a_guest_that_breaks_the_protocol_is_closed(broken: bytes, code: int, reason: str) -> None:
    """With the code that the RFC names; the stream ends, and the connection's other streams do not."""
    settings = {**WARM, "limits": {"websocket_message_bytes": 1000}}
    async with a_lab(upstream_of(2, echo), settings=settings) as lab:
        client = await tunnel(lab)
        other, peer = await open_stream(client), await open_stream(client)
        await peer.say("fine")
        assert await peer.hear() == "fine"
        await peer.line.send(broken)
        assert (await peer.closed())[0] == code
        (record,) = await lab.audited(f"GET /ws deny {reason} 101 truncated")
        assert record.websocket == AuditWebSocket(1, 1, code)
        await other.say("still here")
        assert await other.hear() == "still here"
        await other.close()
        await lab.audited(COMPLETE)


async def test_a_guest_that_does_not_answer_a_close_is_not_waited_for() -> None:
    """Its stream is given up after a moment; what it holds of the connection is free again."""

    async def talk(peer: Peer) -> None:
        await peer.send(CloseConnection(code=1000, reason=""))
        await peer.line.end()

    async with a_lab(upstream_of(1, talk)) as lab:
        client = await tunnel(lab)
        peer = await open_stream(client)
        assert isinstance(await peer.event(), CloseConnection)
        (connection,) = lab.gateway.connections.all
        (stream,) = connection._streams.values()  # type: ignore[attr-defined]
        stream.websocket._close_late()
        await lab.audited(COMPLETE)
        assert stream.close_at and not connection.idle  # type: ignore[attr-defined]
        stream.close_at = 1e-9
        lab.age_guests(0.0)
        with pytest.raises(Cut):
            while True:
                assert not await peer.line.some()
                await client.read()
        assert connection.idle  # type: ignore[attr-defined]


async def test_an_upstream_that_does_not_end_its_stream_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After both Closes it has a moment to end the stream; then that is reset."""
    monkeypatch.setattr(session2, "LINGER_S", 0.01)
    given_up: list[int] = []

    async def talk(peer: Peer) -> None:
        await peer.closed()
        stream: Any = peer.line
        given_up.append(await stream.talk.given_up())

    async with a_lab(upstream_of(2, talk)) as lab:
        peer = await socket_of(2, lab)
        assert await peer.close() == (1000, "")
        await lab.audited(COMPLETE)
        await lab.until(lambda: bool(given_up))
    assert given_up == [wire.CANCEL]


# -- flow, reload, stop, credentials ---------------------------------------------------------------------------------

HELD, HELD_BYTES = 20, 1_000_000


@pytest.mark.parametrize("upstream", [1, 2])
async def test_a_guest_that_does_not_read_holds_the_upstream_back(upstream: int) -> None:
    """Its stream's window stays closed; another WebSocket of both connections goes on; all of it arrives at last."""
    sent: list[int] = []

    async def talk(peer: Peer) -> None:
        word = await peer.hear()
        if word == "flood":
            for _ in range(HELD):
                await peer.send(BytesMessage(data=bytes(HELD_BYTES)))
                sent.append(1)
        else:
            await peer.say(str(word))
        await peer.closed()

    async with a_lab(upstream_of(upstream, talk)) as lab:
        client = await tunnel(lab)
        client.opens_windows = False
        flooded, other = await open_stream(client), await open_stream(client)
        await flooded.say("flood")
        await client.until(lambda: len(client.replies[1].body) > 60_000)
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert len(sent) < HELD
        await other.say("hello")
        client.opens_windows = True
        client.h.increment_flow_control_window(1 << 24)
        await client.flush()
        assert await other.hear() == "hello"
        client.h.increment_flow_control_window(1 << 24, 1)
        await client.flush()
        heard = [len(await flooded.hear()) for _ in range(HELD)]
        assert heard == [HELD_BYTES] * HELD
        for peer in (flooded, other):
            await peer.close()
        await claimed(lab, 2)


@pytest.mark.parametrize("upstream", [1, 2])
async def test_an_upstream_that_does_not_read_holds_the_guest_back(upstream: int) -> None:
    """As the other way round."""
    go = asyncio.Event()
    message = frame(BINARY, bytes(HELD_BYTES), masked=True)

    async def talk(peer: Peer) -> None:
        line: Any = peer.line
        if upstream == 1:
            line.hold()
            line.keeps = False
        await go.wait()
        if upstream == 1:
            line.go_on()
            while line.received_bytes < HELD * len(message):
                await line.changed()
        else:
            left = HELD * len(message)
            while left > 0:
                left -= len(await line.some())
        await peer.send(CloseConnection(code=1000, reason=""))
        await line.end()

    async with a_lab(upstream_of(upstream, talk)) as lab:
        peer = await socket_of(2, lab)
        flooding = asyncio.ensure_future(peer.line.send(*[message] * HELD))
        for _ in range(300):
            await asyncio.sleep(0.001)
        assert not flooding.done()
        go.set()
        await flooding
        assert await peer.closed() == (1000, "")
        (record,) = await lab.audited(COMPLETE)
        assert record.websocket == AuditWebSocket(HELD, 0, 1000)


async def test_a_reload_that_takes_the_upgrade_away_ends_it() -> None:
    """Within the reload itself, with 1008, the reason and the rule, on both sides; the connection goes on."""
    heard: list[tuple[int, str]] = []

    async def talk(peer: Peer) -> None:
        await peer.say("on")
        event = await peer.event()
        assert isinstance(event, CloseConnection)
        heard.append((event.code, event.reason or ""))

    async with a_lab(upstream_of(2, talk)) as lab:
        client = await tunnel(lab)
        peer = await open_stream(client)
        assert await peer.hear() == "on"
        lab.write_policy([ALLOW_ALL])
        lab.gateway.reload(lab.gateway.config)
        code, reason = await peer.closed()
        assert code == 1008 and reason.startswith("revoked; rule=all; id=")
        await lab.audited("GET /ws deny revoked 101 truncated")
        assert (await client.ask("/")).body == b"plain"
        await lab.audited("GET / allow allowed 200 complete")
        await lab.until(lambda: bool(heard))
    assert heard == [(1001, "")]


async def test_a_stop_closes_with_going_away() -> None:
    """A gateway that stops says so at once, on the stream and for the connection."""
    async with a_lab(upstream_of(2, echo)) as lab:
        client = await tunnel(lab)
        peer = await open_stream(client)
        stop = asyncio.ensure_future(lab.gateway.stop(grace_s=5.0))
        event = await peer.event()
        assert isinstance(event, CloseConnection) and event.code == 1001
        assert (event.reason or "").startswith("shutting_down")
        await client.until(lambda: client.goaway == wire.NO_ERROR)
        client.close()
        await stop
        await lab.audited("GET /ws deny shutting_down 101 truncated")


async def test_a_credential_goes_along_and_is_redacted() -> None:
    """It is injected into the opening request, begun in the journal before, and what repeats it is redacted."""

    async def app(talk: Talk2) -> None:
        if talk.method == "CONNECT":
            assert talk.header("x-api-key") == SECRET.encode()
        await serves2(says_it, (b"x-echo", SECRET.encode()))(talk)

    async def says_it(peer: Peer) -> None:
        await peer.send(TextMessage(data=f'{{"key": "{SECRET}"}}'), Ping(payload=SECRET.encode()))
        await peer.closed()

    upstream = H2Upstream(app, settings=CONNECTS)
    async with Lab(upstream, rules=[SOCKETS_WITH_KEY], settings=WARM) as lab:
        client = await tunnel(lab)
        peer = await open_stream(client)
        heard: list[Any] = [await peer.hear(), await peer.event()]
        assert heard == ['{"key": "[redacted:key]"}', Ping(payload=b"[redacted:key]")]
        assert client.replies[1].header(b"x-echo") == b"[redacted:key]"
        await peer.close()
        (record,) = await lab.audited(COMPLETE)
        assert record.credentials == ("key",)
        await lab.until(lambda: [line["kind"] for line in lab.lines() if line.get("id") == record.id][:1] == ["begin"])


async def test_a_guest_of_http1_is_as_ever_over_a_connection_of_its_own() -> None:
    """Where the upstream is HTTP/1.1, nothing is shared and no pool sees it."""
    upstream = RawUpstream(serves(echo))
    async with a_lab(upstream, settings={}) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/ws", *OPENING))
        assert (await client.line.head()).startswith(b"HTTP/1.1 101 ")
        assert lab.gateway.seam.pool.counts == (0, 0, 0)
        client.line.close()
        await lab.audited("GET /ws allow guest_gone 101 aborted")
