"""A busy guest holds nobody up: another one is answered between what it does, whatever protocol, side and connection.

In each test a flood is on its way, whole, before the neighbour asks; with a tiny budget of a turn, its request is
denied, and recorded, long before the flood is through. All of the flood arrives in the end. The flood is one connection
of tiny pieces, or many connections with an ordinary request, a handshake, or an opening each.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import pytest
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import BytesMessage, CloseConnection

from seamgate.entry.http1_guest import STRANGE_REFUSALS
from seamgate.protocol.work import HEAD
from seamgate.turns import BUDGET, Share
from support.client import Client
from support.http2 import Peer, Reply, get, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, echo, ok, silent
from support.websocket import accept, open_socket

PIECES = 400
MANY = PIECES // 8
"""Turns that each of these floods takes at least: none of them has more than eight pieces in one."""
TWO_GUESTS: dict[str, Any] = {"entries": {"proxy": {"guest": ""}}}
NEIGHBOUR = "GET /neighbour deny no_rule_matched 403 denied"
ALLOWED: dict[str, Any] = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "hosts": ["api.test"]}}
SOCKETS: dict[str, Any] = {**ALLOWED, "upgrade": "websocket"}


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Share]:
    """A turn ends after very few pieces, on every layer; return a list that grows with each turn of anybody's."""
    for name in ("units", "least", "records"):
        monkeypatch.setattr(BUDGET, name, 4)
    taken: list[Share] = []
    next_turn = Share._next_turn

    def count(share: Share) -> None:
        taken.append(share)
        next_turn(share)

    monkeypatch.setattr(Share, "_next_turn", count)
    return taken


class Neighbour:
    """Another guest, connected before the flood begins, that asks for something which needs no upstream."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    async def of(cls, lab: Lab) -> Neighbour:
        """Connect."""
        line = await lab.line()
        extra = proxy_authorization(OTHER_TOKEN) + b"\r\n"
        return cls(Client(line, "nowhere.test", absolute=True, extra=extra))

    def begins(self) -> None:
        """Ask, at once: it is on its way behind all that was sent before."""
        send(self._client, self._client.request("GET", "/neighbour"))

    async def is_answered(self) -> None:
        """Wait for the denial."""
        assert (await self._client.answer()).status == 403

    async def asks(self) -> None:
        """Ask, and wait for the denial."""
        assert (await self._client.ask("GET", "/neighbour")).status == 403


def send(client: Client | Line, data: bytes) -> None:
    """Send without a turn of the loop, so that what several connections send is there together."""
    line = client if isinstance(client, Line) else client.line
    assert line.transport is not None
    line.transport.write(data)


async def guest(lab: Lab) -> Client:
    """Open a tunnel as the guest that floods."""
    return await lab.tunnel("", proxy_authorization(TOKEN))


def lab_of(upstream: RawUpstream, rule: dict[str, Any] = ALLOWED) -> Lab:
    """Return a gateway for two guests, which may go to this upstream and nowhere else."""
    return Lab(upstream, rules=[rule], credential=False, settings=TWO_GUESTS)


async def test_pipelined_requests_that_are_denied(turns: list[Share]) -> None:
    """Each of them is answered and recorded in the end; the neighbour is, between them."""
    async with lab_of(HttpUpstream(echo)) as lab:
        neighbour = await Neighbour.of(lab)
        line = await lab.line()
        flood = Client(line, "nowhere.test", absolute=True, extra=proxy_authorization(TOKEN) + b"\r\n")
        await flood.send(flood.request("GET", "/flood") * PIECES)
        await neighbour.asks()
        for _ in range(PIECES):
            assert (await flood.answer()).status == 403
        told = await lab.told()
        assert len(told) == PIECES + 1
        assert told.index(NEIGHBOUR) < PIECES // 2
        assert len(turns) > MANY


async def test_a_listener_takes_several_connections_a_turn() -> None:
    """So that who comes next waits a few turns behind those that came before it, not one for each of them."""
    async with lab_of(HttpUpstream(echo)) as lab, contextlib.AsyncExitStack() as stack:
        connections, place = lab.gateway.connections, lab.gateway.addresses["proxy"]
        for _ in range(64):
            stack.enter_context(socket.create_connection(place, timeout=10))
        assert connections.open == 0
        waited = 0
        while connections.open < 64:
            await asyncio.sleep(0)
            waited += 1
            assert waited < 32, connections.open


CONNECTIONS = 40
EARLY = 4
"""How much of what many connections do at once may come before the neighbour, who sends last of all."""


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends after one request, which is what a connection may do in its turn anyhow."""
    monkeypatch.setattr(BUDGET, "units", HEAD)
    monkeypatch.setattr(BUDGET, "least", 2 * HEAD)


@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
async def test_an_ordinary_request_on_each_of_many_connections(known: bool) -> None:
    """They are one guest's, so they share its turn, also those that say by this request whose they are."""
    async with lab_of(HttpUpstream(echo)) as lab:
        neighbour = await Neighbour.of(lab)
        await neighbour.asks()
        login = proxy_authorization(TOKEN) + b"\r\n"
        flood = [Client(await lab.line(), "nowhere.test", absolute=True, extra=login) for _ in range(CONNECTIONS)]
        asked = 1
        if known:
            for client in flood:
                assert (await client.ask("GET", "/known")).status == 403
            asked += CONNECTIONS
        await lab.until(lambda: lab.gateway.connections.open > CONNECTIONS)
        for client in flood:
            send(client, client.request("GET", "/flood"))
        neighbour.begins()
        await neighbour.is_answered()
        for client in flood:
            assert (await client.answer()).status == 403
        told = (await lab.told())[asked:]
        assert told.index(NEIGHBOUR) < EARLY
        assert len(told) == CONNECTIONS + 1


@pytest.mark.usefixtures("ordinary")
async def test_a_newcomer_does_not_wait_for_another_guests_new_connections() -> None:
    """Who has not said who it is waits for the heads of those before it, not for what is done for them."""
    async with lab_of(HttpUpstream(echo)) as lab:
        flood = [
            Client(await lab.line(), "nowhere.test", absolute=True, extra=proxy_authorization(TOKEN) + b"\r\n")
            for _ in range(CONNECTIONS)
        ]
        neighbour = await Neighbour.of(lab)
        await lab.until(lambda: lab.gateway.connections.open > CONNECTIONS)
        for client in flood:
            send(client, client.request("GET", "/flood"))
        neighbour.begins()
        await neighbour.is_answered()
        for client in flood:
            assert (await client.answer()).status == 403
        assert (await lab.told()).index(NEIGHBOUR) < CONNECTIONS // 2


@pytest.mark.usefixtures("ordinary")
async def test_answers_that_come_all_at_once() -> None:
    """An upstream that answers many requests of one guest together takes nobody's turn but that guest's."""
    async with lab_of(RawUpstream(silent, tls=False)) as lab:
        neighbour = await Neighbour.of(lab)
        flood = [await lab.proxy(token=TOKEN) for _ in range(CONNECTIONS)]
        sessions = []
        for number, client in enumerate(flood):
            await client.send(client.request("GET", "/flood"))
            sessions.append(await lab.upstream.connection(number))
            await sessions[-1].request()
        for session in sessions:
            send(session, ok(b"x"))
        neighbour.begins()
        await neighbour.is_answered()
        for client in flood:
            assert (await client.answer()).status == 200
        told = await lab.told()
        assert told.index(NEIGHBOUR) < EARLY
        assert len(told) == len(flood) + 1


@pytest.mark.usefixtures("ordinary")
async def test_handshakes() -> None:
    """A ClientHello is answered in its guest's turn: signing for one takes as long as several requests."""
    wrong = client_hello("elsewhere.test")
    async with lab_of(HttpUpstream(echo)) as lab:
        neighbour = await Neighbour.of(lab)
        await neighbour.asks()
        lines = []
        for _ in range(CONNECTIONS):
            line, head = await lab.connect("", proxy_authorization(TOKEN))
            assert head.startswith(b"HTTP/1.1 200 ")
            lines.append(line)
        await lab.until(lambda: lab.gateway.connections.open > CONNECTIONS)
        for line in lines:
            send(line, wrong)
        neighbour.begins()
        await neighbour.is_answered()
        for line in lines:
            await line.end()
        refused = f"CONNECT {lab.authority()} deny target_mismatch 200 denied"
        told = (await lab.told())[1:]
        assert told.index(NEIGHBOUR) < EARLY
        assert sorted(told) == sorted([NEIGHBOUR] + [refused] * CONNECTIONS)


@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize("entry", ["proxy", "socks5"])
async def test_openings(entry: str) -> None:
    """A tunnel that is asked for and denied is work as well, by CONNECT or in SOCKS."""
    settings = {"entries": {"proxy": {"guest": ""}, "socks5": {"listen": "127.0.0.1:0"}}}
    async with Lab(HttpUpstream(echo), rules=[ALLOWED], credential=False, settings=settings) as lab:
        neighbour = await Neighbour.of(lab)
        await neighbour.asks()
        lines = [await lab.line(entry) for _ in range(CONNECTIONS)]
        socks = lab.gateway.listeners._socks
        assert socks is not None
        await lab.until(lambda: lab.gateway.connections.open + len(socks.greeting) > CONNECTIONS)
        for line in lines:
            send(line, _socks_opening() if entry == "socks5" else _connect_opening())
        neighbour.begins()
        await neighbour.is_answered()
        await lab.until(lambda: len(lab.records) == CONNECTIONS + 2)
        told = (await lab.told())[1:]
        # One that only has to say who it is has said so before any of them is judged.
        assert told.index(NEIGHBOUR) < EARLY
        assert len(told) == CONNECTIONS + 1


def _connect_opening() -> bytes:
    login = proxy_authorization(TOKEN)
    return b"CONNECT nowhere.test:443 HTTP/1.1\r\nhost: nowhere.test:443\r\n" + login + b"\r\n\r\n"


def _socks_opening() -> bytes:
    """A client that does not wait for what it is told in between."""
    login = b"\1\1g" + bytes((len(TOKEN),)) + TOKEN.encode()
    return b"\5\1\2" + login + b"\5\1\0\3\x0cnowhere.test" + (443).to_bytes(2)


def client_hello(name: str) -> bytes:
    """Return what a client that asks for this name says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.usefixtures("ordinary")
async def test_streams_of_many_http2_connections() -> None:
    """So are the streams of several connections one guest's."""
    async with lab_of(HttpUpstream(echo)) as lab:
        neighbour = await Neighbour.of(lab)
        await neighbour.asks()
        peers = [await tunnel(lab, proxy_authorization(TOKEN)) for _ in range(CONNECTIONS // 2)]
        fields = get("/flood", "nowhere.test", "GET")
        begun = []
        for peer in peers:
            stream = peer.h.get_next_available_stream_id()
            peer.replies[stream] = Reply(headers=[], trailers=[], informational=[])
            peer.h.send_headers(stream, fields, end_stream=True)
            send(peer.line, peer.h.data_to_send())
            begun.append((peer, stream))
        neighbour.begins()
        await neighbour.is_answered()
        for peer, stream in begun:
            assert (await peer.answer(stream)).status == 421
        told = (await lab.told())[1:]
        assert told.index(NEIGHBOUR) < EARLY
        assert len(told) == len(begun) + 1


async def test_a_guests_chunks(turns: list[Share]) -> None:
    """A body in chunks of one byte reaches the upstream whole."""
    async with lab_of(HttpUpstream(echo)) as lab:
        neighbour, client = await Neighbour.of(lab), await guest(lab)
        head = client.request("POST", "/flood", b"transfer-encoding: chunked")
        await client.send(head + b"1\r\nx\r\n" * PIECES + b"0\r\n\r\n")
        await neighbour.asks()
        answer = await client.answer("POST")
        assert answer.json["body"] == "x" * PIECES
        assert await lab.told() == [NEIGHBOUR, "POST /flood allow allowed 200 complete"]
        assert len(turns) > MANY


async def test_an_upstreams_chunks(turns: list[Share]) -> None:
    """An answer in chunks of one byte, whose upstream closes at once, reaches the guest whole."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * PIECES + b"0\r\n\r\n"
        )
        line.close()

    async with lab_of(RawUpstream(script)) as lab:
        neighbour, client = await Neighbour.of(lab), await guest(lab)
        await client.send(client.request("GET", "/flood"))
        answer, h = await client.begin()
        await neighbour.asks()
        assert answer.status == 200
        body = b""
        while data := getattr(await client.event(h), "data", b""):
            body += data
        assert body == b"x" * PIECES
        assert await lab.told() == [NEIGHBOUR, "GET /flood allow allowed 200 complete"]
        assert len(turns) > MANY


async def test_the_end_of_a_connection_waits_for_what_came_before_it() -> None:
    """A body that ends with its connection, in the same segment: all of it is passed on, and it is an end, no cut."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000)
        line.close()

    async with lab_of(RawUpstream(script)) as lab:
        answer = await (await guest(lab)).ask("GET", "/x")
        assert (answer.body, answer.whole) == (b"x" * 100_000, True)
        await lab.audited("GET /x allow allowed 200 complete")


async def test_a_guests_messages(turns: list[Share]) -> None:
    """WebSocket messages of one byte reach the upstream, each of them, and so does the Close behind them."""
    got: list[bytes] = []

    async def script(line: Line) -> None:
        _, peer = await accept(line)
        for _ in range(PIECES):
            event = await peer.event()
            assert isinstance(event, BytesMessage)
            got.append(bytes(event.data))
        await peer.send(CloseConnection(1000))

    async with lab_of(RawUpstream(script), SOCKETS) as lab:
        neighbour, client = await Neighbour.of(lab), await guest(lab)
        peer = await open_socket(client, "/flood")
        ours = Connection(ConnectionType.CLIENT)
        await client.send(ours.send(BytesMessage(b"x")) * PIECES + ours.send(CloseConnection(1000)))
        await neighbour.asks()
        assert isinstance(await peer.event(), CloseConnection)
        assert got == [b"x"] * PIECES
        assert await lab.told() == [NEIGHBOUR, "GET /flood allow allowed 101 complete"]
        assert len(turns) > MANY


async def test_an_upstreams_messages(turns: list[Share]) -> None:
    """WebSocket messages of one byte reach the guest, each of them, and so does the Close behind them."""

    async def script(line: Line) -> None:
        await accept(line)
        theirs = Connection(ConnectionType.SERVER)
        await line.send(theirs.send(BytesMessage(b"x")) * PIECES + theirs.send(CloseConnection(1000)))
        await line.end()

    async with lab_of(RawUpstream(script), SOCKETS) as lab:
        neighbour, client = await Neighbour.of(lab), await guest(lab)
        peer = await open_socket(client, "/flood")
        await neighbour.asks()
        for _ in range(PIECES):
            event = await peer.event()
            assert isinstance(event, BytesMessage) and bytes(event.data) == b"x"
        assert isinstance(await peer.event(), CloseConnection)
        await peer.send(CloseConnection(1000))
        assert await lab.told() == [NEIGHBOUR, "GET /flood allow allowed 101 complete"]
        assert len(turns) > MANY


@pytest.mark.parametrize("side", ["guest", "upstream"])
async def test_frames_of_http2(side: str, turns: list[Share]) -> None:
    """DATA frames of one byte, of a guest or of an upstream, are passed on whole."""

    async def app(talk: Talk2) -> None:
        body = await talk.body()
        if side == "guest":
            await talk.respond(200, body)
            return
        await talk.begin()
        await talk.link.raw(Peer.data(talk.stream, b"x") * PIECES + Peer.data(talk.stream, b"", ended=True))

    async with lab_of(H2Upstream(app)) as lab:
        neighbour = await Neighbour.of(lab)
        client = await tunnel(lab, proxy_authorization(TOKEN))
        stream = await client.begin("/flood", method="POST", ended=side == "upstream")
        if side == "guest":
            await client.raw(Peer.data(stream, b"x") * PIECES + Peer.data(stream, b"", ended=True))
        await neighbour.asks()
        reply = await client.answer(stream)
        assert (reply.body, reply.whole) == (b"x" * PIECES, True)
        told = await lab.told()
        assert told == [NEIGHBOUR, "POST /flood allow allowed 200 complete"]
        assert len(turns) > MANY


async def test_bodies_that_rules_look_into() -> None:
    """A guest has one such body judged in its turn; the neighbour is answered before its last one is."""
    rule = {**ALLOWED, "when": 'request.json.model == "m"'}
    body = b'{"model": "other", "text": "' + b"x" * 50_000 + b'"}'
    async with lab_of(HttpUpstream(echo), rule) as lab:
        neighbour = await Neighbour.of(lab)
        clients = [await guest(lab) for _ in range(4)]
        for client in clients:
            await client.send(client.request("POST", "/judged", b"content-type: application/json", body=body))
        await neighbour.asks()
        for client in clients:
            assert (await client.answer("POST")).status == 403
        told = await lab.told()
        assert told[-1] != NEIGHBOUR and len(told) == 5


async def test_nobody_is_told_again_and_again_that_a_token_is_missing() -> None:
    """A connection of nobody's has a few requests refused, each with its record; then it is closed, the rest unread."""
    async with lab_of(HttpUpstream(echo)) as lab:
        line = await lab.line()
        nobody = Client(line, "nowhere.test", absolute=True)
        await nobody.send(nobody.request("GET", "/x") * PIECES)
        answers = [await nobody.answer() for _ in range(STRANGE_REFUSALS)]
        assert [answer.status for answer in answers] == [407] * STRANGE_REFUSALS
        assert answers[-1].header(b"connection") == b"close"
        assert await nobody.closed() == b""
        assert len(await lab.told()) == STRANGE_REFUSALS
