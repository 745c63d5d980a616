"""One session: what may go back to the pool, and what an exchange is told of each kind of end."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from seamgate.errors import Reason, SeamgateError
from seamgate.flow import Guest, Request, Target
from seamgate.protocol.heads import CHUNKED
from seamgate.turns import BUDGET, Share
from seamgate.upstream.session import Session
from support.sessions import MemoryTransport

REQUEST = Request("r", Guest("g"), Target("https", "a.test", 443), "GET", "/x", "q=1")


class Exchange:
    """Notes what a session tells its exchange; ends as the real one does."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.told: list[Any] = []
        self.share = Share()
        self.decodes_answer = False

    def on_informational(self, head: Any) -> None:
        self.told.append(head.status)

    def on_head(self, head: Any) -> None:
        self.told.append(head.status)

    def on_data(self, data: bytes) -> None:
        self.told.append(data)

    def on_end(self, trailers: Any) -> None:
        self.told.append("end")
        self.session.release(reusable=True)

    def on_flush(self) -> None: ...

    def on_session_lost(self, error: SeamgateError) -> None:
        self.told.append(error.reason)
        self.session.release(reusable=False)

    def upstream_writable(self, writable: bool) -> None:
        self.told.append(writable)


def test_a_break_of_tls_is_explained() -> None:
    """In TLS 1.3 a server refuses a client certificate only after the handshake: the guest hears why."""
    world, said = World(), list[str]()
    world.exchange.on_session_lost = lambda error: said.append(error.message)
    refusal = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")
    refusal.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    world.session.connection_lost(refusal)
    assert said == [
        "the TLS session with the upstream broke: it asks for a client certificate; name one under upstream_tls.origins"
    ]


class World:
    """A session over memory, with an exchange on it."""

    def __init__(self, request: Request = REQUEST, body: int = 0) -> None:
        self.idle: list[Session] = []
        self.gone: list[Session] = []
        self.session = Session("192.0.2.1", self.idle.append, self.gone.append)
        self.transport = MemoryTransport(self.session)
        self.session.connection_made(self.transport)
        self.exchange: Any = Exchange(self.session)
        self.send(request, body)

    def send(self, request: Request = REQUEST, body: int = 0) -> None:
        self.session.send_head(self.exchange, request, (), request.query, body)
        self.session.flush()

    def says(self, data: bytes) -> list[Any]:
        self.session.data_received(data)
        told: list[Any] = self.exchange.told
        return told


FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def test_a_whole_answer_gives_it_back() -> None:
    """Sent from the model, answered, idle, usable again."""
    world = World()
    assert world.transport.written == b"GET /x?q=1 HTTP/1.1\r\nhost: a.test\r\n\r\n"
    assert world.says(FINE) == [200, b"ok", "end"]
    assert (world.idle, world.session.usable, world.session.reused, world.session.waited) == (
        [world.session],
        True,
        True,
        True,
    )
    world.send()
    assert not world.session.answered
    assert world.says(FINE)[3:] == [200, b"ok", "end"]


@pytest.mark.parametrize(
    "answer",
    [
        FINE + b"more",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 401 X\r\nwww-authenticate: NTLM\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_what_spoils_a_session(answer: bytes) -> None:
    """Surplus, a wish to close, an old version, an identity: the answer is fine, the session is not kept."""
    world = World()
    assert world.says(answer)[-1] == "end"
    assert world.idle == []
    assert world.transport.closing and world.gone


async def test_not_reusable_is_closed() -> None:
    """An exchange that did not send or read all does not give it back."""
    world = World()
    world.session.release(reusable=False)
    assert world.idle == [] and world.transport.closing


async def test_half_an_answer_read_is_not_given_back() -> None:
    """Unread bytes of an answer would be the next one's."""
    world = World()
    world.says(FINE[:-1])
    world.session.release(reusable=True)
    assert world.idle == [] and world.transport.closing


async def test_garbage_is_told_once() -> None:
    """As the upstream's protocol error; nothing after it is read."""
    world = World()
    assert world.says(b"garbage\r\n\r\n" + FINE) == [Reason.UPSTREAM_PROTOCOL]
    assert world.says(FINE) == [Reason.UPSTREAM_PROTOCOL]


@pytest.mark.parametrize(
    ("sent", "eof", "lost"),
    [
        (b"", [Reason.UPSTREAM_CLOSED], [Reason.UPSTREAM_CLOSED]),
        (b"HTTP/1.1 2", [Reason.UPSTREAM_CLOSED], [Reason.UPSTREAM_CLOSED]),
        (FINE[:-1], [200, b"o", Reason.UPSTREAM_CLOSED], [200, b"o", Reason.UPSTREAM_CLOSED]),
        (b"HTTP/1.1 200 OK\r\n\r\nall", [200, b"all", "end"], [200, b"all", Reason.UPSTREAM_CLOSED]),
    ],
)
async def test_ends(sent: bytes, eof: list[Any], lost: list[Any]) -> None:
    """A clean end ends a body without framing; everything else, and a loss always, is a cut."""
    for end, expected in (("eof_received", eof), ("connection_lost", lost)):
        world = World()
        if sent:
            world.says(sent)
        getattr(world.session, end)(*([None] if end == "connection_lost" else []))
        world.session.connection_lost(None)
        assert world.exchange.told == expected
        assert world.idle == []


async def test_bytes_while_idle_end_it() -> None:
    """Nobody asked for them."""
    world = World()
    world.says(FINE)
    world.session.data_received(FINE)
    assert not world.session.usable and world.gone


async def test_bodies_and_trailers_go_up_framed() -> None:
    """Chunks where the length is not known."""
    world = World(body=CHUNKED)
    world.session.send_data(b"abc")
    world.session.send_end(((b"x", b"1"),))
    world.session.flush()
    assert world.transport.written.endswith(b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: 1\r\n\r\n")


async def test_flow_control_reaches_the_exchange() -> None:
    """And nobody while idle."""
    world = World()
    world.session.pause_writing()
    world.session.resume_writing()
    assert world.exchange.told == [False, True]
    world.says(FINE)
    world.session.pause_writing()
    assert world.exchange.told[-1] == "end"


@pytest.mark.parametrize("end", ["eof_received", "connection_lost"])
async def test_an_end_waits_for_what_came_before_it(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that wait for a turn are handed on before the exchange hears that its upstream is gone."""
    monkeypatch.setattr(BUDGET, "units", 1)
    monkeypatch.setattr(BUDGET, "least", 1)
    world = World()
    world.says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n")
    getattr(world.session, end)(*([None] if end == "connection_lost" else []))
    assert world.exchange.told == [200]
    for _ in range(100):
        await asyncio.sleep(0)
    assert world.exchange.told == [200, b"a", b"b", Reason.UPSTREAM_CLOSED]


async def test_a_guest_that_has_enough_is_told_nothing_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a turn waits on while reading is paused, and takes no turn; then it goes on."""
    monkeypatch.setattr(BUDGET, "units", 1)
    monkeypatch.setattr(BUDGET, "least", 1)
    world = World()
    world.says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")
    world.session.pause_reading()
    for _ in range(100):
        await asyncio.sleep(0)
    assert (world.exchange.told, world.exchange.share.idle) == ([200], True)
    world.session.resume_reading()
    for _ in range(100):
        await asyncio.sleep(0)
    assert (world.exchange.told, world.idle) == ([200, b"a", "end"], [world.session])
