"""WebSockets across the gateway, frame by frame: the handshake, messages both ways, every kind of end, the record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from wsproto import ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from seamgate.audit.record import AuditWebSocket
from seamgate.protocol.websocket import BINARY, TEXT
from support.lab import ALLOW_ALL, SECRET, Lab
from support.line import Line
from support.upstream import RawUpstream, ok, says
from support.websocket import (
    ALLOW_SOCKETS,
    DEFLATE,
    OPENING,
    SOCKETS_WITH_KEY,
    TALKED,
    Peer,
    accept,
    echoing,
    open_frames,
    open_socket,
    serves,
    talk_both_ways,
)
from unit.protocol.test_websocket import frame

COMPLETE = "GET /ws allow allowed 101 complete"


@pytest.mark.parametrize("entry", ["tunnel", "proxy"])
@pytest.mark.parametrize("compressed", [True, False])
async def test_messages_go_both_ways(entry: str, compressed: bool) -> None:
    """Text, bytes, pings and the close handshake pass; the record counts, and no pool sees the connection."""
    upstream = echoing(
        *([b"sec-websocket-extensions: permessage-deflate"] if compressed else []), tls=entry == "tunnel"
    )
    async with Lab(upstream, rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await getattr(lab, entry)(), "/ws", *([DEFLATE] if compressed else []))
        await talk_both_ways(peer)
        (record,) = await lab.audited(COMPLETE)
        assert (record.websocket, record.bytes) == TALKED
        assert lab.gateway.seam.pool.counts == (0, 0, 0)


async def test_the_handshake_upstream_is_written_anew() -> None:
    """A key of the gateway's own, subprotocols as offered, extensions never passed through, other fields kept."""
    heads: list[bytes] = []

    async def script(line: Line) -> None:
        head, peer = await accept(line, b"sec-websocket-protocol: v2.chat", b"x-server: yes", b"alt-svc: h3")
        heads.append(head)
        await peer.closed()

    async with Lab(RawUpstream(script), rules=[ALLOW_SOCKETS], credential=False) as lab:
        client = await lab.tunnel()
        fields = (b"sec-websocket-protocol: v1, v2.chat", b"origin: https://a.test", b"sec-websocket-extensions: x-own")
        await client.send(client.request("GET", "/ws", *OPENING, *fields))
        answer = await client.line.head()
        assert b"sec-websocket-protocol: v2.chat\r\n" in answer and b"x-server: yes\r\n" in answer
        assert b"extensions" not in answer and b"alt-svc" not in answer
        client.line.close()
        await lab.audited("GET /ws allow guest_gone 101 aborted")
    (sent,) = heads
    assert OPENING[3] not in sent and b"x-own" not in sent
    assert b"sec-websocket-protocol: v1, v2.chat\r\n" in sent and b"origin: https://a.test\r\n" in sent


async def test_an_early_frame_of_the_server_is_not_lost() -> None:
    """Frames in the same segment as the 101, and a 100 and 103 before it, change nothing."""

    async def script(line: Line) -> None:
        await line.seen(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        _, peer = await accept(line, early=frame(TEXT, b"first") + frame(BINARY, b"second")[:3])
        await line.send(frame(BINARY, b"second")[3:])
        await peer.closed()

    async with Lab(RawUpstream(script), rules=[ALLOW_SOCKETS], credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/ws", *OPENING))
        await client.line.until(b"HTTP/1.1 103 ")
        await client.line.head()
        head = await client.line.head()
        assert head.startswith(b"HTTP/1.1 101 ")
        peer = Peer(client.line, open_frames(ConnectionType.CLIENT, head))
        assert [await peer.hear(), await peer.hear()] == ["first", b"second"]
        assert await peer.close() == (1000, "")
        await lab.audited(COMPLETE)


async def test_nothing_goes_up_before_the_101() -> None:
    """Frames that a guest sends before it has its answer never leave, and end the connection."""

    async def script(line: Line) -> None:
        await line.seen(b"\r\n\r\n")
        for _ in range(20):
            await asyncio.sleep(0)
        assert line.received.endswith(b"\r\n\r\n")
        await accept(line)

    async with Lab(RawUpstream(script), rules=[ALLOW_SOCKETS], credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/ws", *OPENING) + frame(TEXT, b"too early", masked=True))
        assert (await client.answer()).reason == "bad_request"
        await lab.audited("GET /ws deny bad_request 400 denied")
        assert b"too early" not in lab.upstream.received
        client.close()


async def test_another_answer_than_101_is_an_answer() -> None:
    """A server that declines is heard as ever, and the connection goes on; its own connection is not kept."""
    async with Lab(RawUpstream(says(ok(b"no sockets"))), rules=[ALLOW_SOCKETS], credential=False) as lab:
        client = await lab.tunnel()
        for _ in range(2):
            assert (await client.ask("GET", "/ws", *OPENING)).body == b"no sockets"
        assert len(lab.upstream.lines) == 2
        await lab.audited(*["GET /ws allow allowed 200 complete"] * 2)
        assert lab.gateway.seam.pool.counts == (0, 0, 0)


class Silence:
    """The silence of the upstream of the only WebSocket, made longer than it is, and looked at as a timer does."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    @property
    def _exchange(self) -> Any:
        (connection,) = self._lab.gateway.connections.all
        return connection._exchange  # type: ignore[attr-defined]

    async def ended_by(self, sign: Callable[[], None]) -> None:
        """Let all but a moment of the time pass, have the upstream give a sign of life, and look."""
        exchange = self._exchange
        exchange._active_at = silent_since = exchange._active_at - 800
        sign()
        await self._lab.until(lambda: exchange._active_at > silent_since)
        exchange._look()

    def too_long(self) -> None:
        """Let all of the time pass, and look."""
        exchange = self._exchange
        exchange._active_at -= 900
        exchange._look()


async def test_another_answer_may_take_its_time() -> None:
    """Each piece of its body is life, however long the whole takes."""
    more = asyncio.Semaphore(0)

    async def script(line: Line) -> None:
        await line.head()
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        for _ in range(5):
            await more.acquire()
            await line.send(b"x")

    async with Lab(RawUpstream(script), rules=[ALLOW_SOCKETS], credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/ws", *OPENING))
        _, h = await client.begin()
        for _ in range(4):
            await Silence(lab).ended_by(more.release)
        more.release()
        while type(event := await client.event(h)).__name__ == "Data":
            assert set(event.data) == set(b"x")
        assert type(event).__name__ == "EndOfMessage"
        client.close()
        await lab.audited("GET /ws allow allowed 200 complete")


BAD_101 = {
    "another accept": b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n",
    "another protocol": b"connection: upgrade\r\nupgrade: h2c\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("case", BAD_101)
async def test_a_101_that_is_none_is_an_error(case: str) -> None:
    """The upstream is held to the handshake; the guest gets a 502, not a stream of anything."""
    said = b"HTTP/1.1 101 Switching Protocols\r\n" + BAD_101[case] + b"\r\n"
    async with Lab(RawUpstream(says(said)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/ws", *OPENING)
        assert (answer.status, answer.reason) == (502, "upstream_protocol")
        await lab.audited("GET /ws allow upstream_protocol 502 failed")


# -- ends ------------------------------------------------------------------------------------------------------------


async def test_a_server_may_close_first() -> None:
    """Its code and reason reach the guest, whose answer reaches it."""
    heard: list[tuple[int, str]] = []

    async def talk(peer: Peer) -> None:
        heard.append(await peer.close(1001, "restart"))

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        assert await peer.closed() == (1001, "restart")
        await peer.line.end()
        (record,) = await lab.audited(COMPLETE)
        assert record.websocket == AuditWebSocket(0, 0, 1001)
    assert heard == [(1001, "restart")]


@pytest.mark.parametrize("end", ["close", "cut", "reset"])
async def test_a_server_that_breaks_off_is_an_error(end: str) -> None:
    """Without a Close there is no clean end: the guest gets 1011, the record says truncated."""

    async def talk(peer: Peer) -> None:
        await peer.say("half")
        await peer.hear()
        getattr(peer.line, end)()

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        assert await peer.hear() == "half"
        await peer.say("go")
        code, reason = await peer.closed()
        assert code == 1011 and reason.startswith("upstream_closed; rule=all; id=")
        (record,) = await lab.audited("GET /ws allow upstream_closed 101 truncated")
        assert record.websocket == AuditWebSocket(1, 1, 1011)


async def test_a_guest_that_breaks_off_is_told_upstream() -> None:
    """The upstream gets a Close (going away), the record says aborted."""
    heard: list[tuple[int, str]] = []

    async def talk(peer: Peer) -> None:
        heard.append(await peer.closed())

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        peer.line.close()
        await lab.audited("GET /ws allow guest_gone 101 aborted")
        await lab.until(lambda: bool(heard))
    assert heard == [(1001, "")]


async def test_a_guest_that_leaves_after_the_servers_close_ended_well() -> None:
    """Who does not answer a Close but closes its connection has ended, too."""

    async def talk(peer: Peer) -> None:
        await peer.send(CloseConnection(code=1000, reason=""))
        await peer.line.end()

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        assert isinstance(await peer.event(), CloseConnection)
        peer.line.close()
        await lab.audited(COMPLETE)


@pytest.mark.parametrize(
    ("broken", "code", "reason"),
    [
        (frame(TEXT, b"not masked"), 1002, "bad_request"),
        (frame(TEXT, b"\xff", masked=True), 1007, "bad_request"),
        (frame(BINARY, bytes(2000), masked=True), 1009, "body_too_large"),
        (frame(3, b"", masked=True), 1002, "bad_request"),
    ],
)
async def test_a_guest_that_breaks_the_protocol_is_closed(broken: bytes, code: int, reason: str) -> None:
    """With the code that the RFC names; nothing of the broken frame goes up."""
    settings = {"limits": {"websocket_message_bytes": 1000}}
    async with Lab(echoing(), rules=[ALLOW_SOCKETS], credential=False, settings=settings) as lab:
        peer = await open_socket(await lab.tunnel())
        await peer.say("fine")
        assert await peer.hear() == "fine"
        await peer.line.send(broken)
        assert (await peer.closed())[0] == code
        (record,) = await lab.audited(f"GET /ws deny {reason} 101 truncated")
        assert record.websocket == AuditWebSocket(1, 1, code)


async def test_a_guest_reads_why_its_large_message_was_refused() -> None:
    """The rest of what it sends is read over, so that no reset takes the Close away."""
    settings = {"limits": {"websocket_message_bytes": 1000}}
    async with Lab(echoing(), rules=[ALLOW_SOCKETS], credential=False, settings=settings) as lab:
        peer = await open_socket(await lab.tunnel())
        message = frame(BINARY, bytes(8_000_000), masked=True)
        await peer.line.send(*[message[at : at + 100_000] for at in range(0, len(message), 100_000)])
        assert (await peer.closed())[0] == 1009
        await lab.audited("GET /ws deny body_too_large 101 truncated")


async def test_a_server_that_breaks_the_protocol_is_closed() -> None:
    """The guest gets 1011 and nothing of the broken frame."""

    async def talk(peer: Peer) -> None:
        await peer.line.send(frame(TEXT, b"masked", masked=True))
        await peer.line.end()

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        assert (await peer.closed())[0] == 1011
        await lab.audited("GET /ws allow upstream_protocol 101 truncated")


async def test_the_limit_of_a_rule_holds_for_each_message() -> None:
    """`request_body` of the deciding rule bounds what a guest may say at once."""
    rule = {**ALLOW_SOCKETS, "limits": {"request_body": "100B"}}
    async with Lab(echoing(), rules=[rule], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        for _ in range(3):
            await peer.say("x" * 100)
            assert await peer.hear() == "x" * 100
        await peer.say("x" * 101)
        assert (await peer.closed())[0] == 1009
        await lab.audited("GET /ws deny body_too_large 101 truncated")


# -- time, flow, reload ----------------------------------------------------------------------------------------------


async def test_silence_as_long_as_an_upstream_may_be_silent_ends_it() -> None:
    """Not before; pings count as life."""

    alive = asyncio.Semaphore(0)

    async def talk(peer: Peer) -> None:
        for _ in range(4):
            await alive.acquire()
            await peer.send(Ping(payload=b"alive"))
        await peer.line.end()

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer, silence = await open_socket(await lab.tunnel()), Silence(lab)
        for _ in range(4):
            await silence.ended_by(alive.release)
            assert isinstance(await peer.event(), Ping)
        silence.too_long()
        assert (await peer.closed())[0] == 1011
        await lab.audited("GET /ws allow upstream_timeout 101 truncated")


async def test_an_upstream_that_never_answers_the_upgrade_is_a_timeout() -> None:
    """As with any request."""

    async def script(line: Line) -> None:
        await line.end()

    settings = {"limits": {"response_timeout_s": 0.1}}
    async with Lab(RawUpstream(script), rules=[ALLOW_SOCKETS], credential=False, settings=settings) as lab:
        assert (await (await lab.tunnel()).ask("GET", "/ws", *OPENING)).reason == "upstream_timeout"
        await lab.audited("GET /ws allow upstream_timeout 504 failed")


HELD, HELD_BYTES = 60, 1_000_000


async def _flood(line: Line, data: bytes) -> None:
    for _ in range(HELD):
        await line.send(data)


async def _still_under_way(flood: asyncio.Future[None], lab: Lab) -> None:
    """Give it time to fill whatever has room; the gateway itself must not take it all."""
    for _ in range(300):
        await asyncio.sleep(0.001)
    assert not flood.done()
    (connection,) = lab.gateway.connections.all
    assert connection.transport is not None
    assert connection.transport.get_write_buffer_size() < 4_000_000


async def test_a_guest_that_does_not_read_holds_the_upstream_back() -> None:
    """Memory stays bounded, and all of it arrives once it is read."""
    floods: list[asyncio.Future[None]] = []

    async def talk(peer: Peer) -> None:
        floods.append(asyncio.ensure_future(_flood(peer.line, frame(BINARY, bytes(HELD_BYTES)))))
        await peer.line.end()

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        peer.line.hold()
        await lab.until(lambda: bool(floods))
        await _still_under_way(floods[0], lab)
        peer.line.keeps = False
        peer.line.go_on()
        await floods[0]
        while peer.line.received_bytes < HELD * HELD_BYTES:
            await peer.line.changed()
        peer.line.close()
        (record,) = await lab.audited("GET /ws allow guest_gone 101 aborted")
        assert record.websocket is not None and record.websocket.from_upstream == HELD


async def test_an_upstream_that_does_not_read_holds_the_guest_back() -> None:
    """As the other way round."""
    taken: list[Line] = []

    async def talk(peer: Peer) -> None:
        peer.line.hold()
        taken.append(peer.line)
        await peer.line.end()

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        await lab.until(lambda: bool(taken))
        flood = asyncio.ensure_future(_flood(peer.line, frame(BINARY, bytes(HELD_BYTES), masked=True)))
        await _still_under_way(flood, lab)
        taken[0].go_on()
        await flood
        while taken[0].received_bytes < HELD * HELD_BYTES:
            await taken[0].changed()
        peer.line.close()
        (record,) = await lab.audited("GET /ws allow guest_gone 101 aborted")
        assert record.websocket is not None and record.websocket.from_guest == HELD


async def test_a_reload_that_takes_the_upgrade_away_ends_it() -> None:
    """Within the reload itself, with 1008, the reason and the rule, on both sides."""
    heard: list[tuple[int, str]] = []

    async def talk(peer: Peer) -> None:
        await peer.say("on")
        heard.append(await peer.closed())

    async with Lab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        assert await peer.hear() == "on"
        lab.write_policy([ALLOW_ALL])
        lab.gateway.reload(lab.gateway.config)
        code, reason = await peer.closed()
        assert code == 1008 and reason.startswith("revoked; rule=all; id=")
        (record,) = await lab.audited("GET /ws deny revoked 101 truncated")
        assert record.generation == 2
        await lab.until(lambda: bool(heard))
    assert heard == [(1001, "")]


async def test_a_reload_that_still_allows_it_leaves_it_alone() -> None:
    """A new generation of the same rules cuts nothing."""
    async with Lab(echoing(), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        lab.gateway.reload(lab.gateway.config)
        await peer.say("still")
        assert await peer.hear() == "still"
        await peer.close()
        await lab.audited(COMPLETE)


async def test_a_stop_closes_with_going_away() -> None:
    """A gateway that stops says so at once; agents reconnect to the next one."""
    async with Lab(echoing(), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel())
        stop = asyncio.ensure_future(lab.gateway.stop(grace_s=5.0))
        code, reason = await peer.closed()
        assert code == 1001 and reason.startswith("shutting_down")
        await stop
        await lab.audited("GET /ws deny shutting_down 101 truncated")


async def test_a_credential_goes_along_and_is_written_ahead() -> None:
    """It is injected into the opening request, begun in the journal before, and what repeats it is redacted."""

    async def script(line: Line) -> None:
        head, peer = await accept(line, b"x-echo: " + SECRET.encode())
        assert b"x-api-key: " + SECRET.encode() in head
        await peer.send(TextMessage(data=f'{{"key": "{SECRET}"}}'), BytesMessage(data=SECRET.encode()))
        await peer.send(Ping(payload=SECRET.encode()))
        await peer.closed()

    async with Lab(RawUpstream(script), rules=[SOCKETS_WITH_KEY]) as lab:
        client = await lab.tunnel()
        peer = await open_socket(client)
        heard: list[Any] = [await peer.hear(), await peer.hear(), await peer.event()]
        assert heard == ['{"key": "[redacted:key]"}', b"[redacted:key]", Ping(payload=b"[redacted:key]")]
        assert SECRET.encode() not in client.line.received
        await peer.close()
        (record,) = await lab.audited(COMPLETE)
        assert record.credentials == ("key",)

        def kinds() -> list[str]:
            return [line["kind"] for line in lab.lines() if line.get("id") == record.id]

        assert kinds()[:1] == ["begin"]
        await lab.until(lambda: kinds() == ["begin", "request"])
