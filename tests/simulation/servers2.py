"""Upstreams of HTTP/2 and of WebSockets in a simulation: correct, slow, or lying, by the dice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from wsproto import ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from seamgate.grpc import is_grpc
from seamgate.protocol.websocket_handshake import accept_of
from simulation.chance import some_bytes
from support.http2_upstream import Fields, Link, Talk2
from support.line import Cut, Line
from support.websocket import Peer, open_frames
from support.websocket2 import UpstreamStream

if TYPE_CHECKING:
    from simulation.servers import Ledger

HONEST = ("whole", "whole", "pieces", "trailers", "informed", "early", "reflects")
LYING = (
    "refuses", "resets", "resets in the body", "stalls", "stalls in the body", "goes away", "goes away at once",
    "longer", "shorter", "garbage", "cut",
)  # fmt: skip
_SETTINGS = h2.settings.SettingCodes


def name_of(target: str) -> str:
    """Return the name of the request with this target."""
    return target.rpartition("/")[2].partition("?")[0]


class StreamServer:
    """One connection of HTTP/2, each stream answered by itself."""

    def __init__(self, line: Line, number: int, rng: random.Random, ledger: Ledger, lying: float) -> None:
        self._line, self._number, self._rng, self._ledger, self._lying = line, number, rng, ledger, lying
        self._tasks: set[asyncio.Task[None]] = set()
        settings = {
            int(_SETTINGS.MAX_CONCURRENT_STREAMS): rng.choice((1, 5, 100)),
            int(_SETTINGS.INITIAL_WINDOW_SIZE): rng.choice((0, 2000, 65535, 1 << 20)),
        }
        self._settings = settings
        self._begun, self._gone = 0, False  # the last stream that was begun; whether that was said
        self._starved = settings[int(_SETTINGS.INITIAL_WINDOW_SIZE)] == 0

    async def serve(self, *, takes_sockets: bool) -> None:
        """Serve until the gateway, the network or a lie ends it; WebSockets too, if it says so (RFC 8441 3)."""
        sockets = {int(_SETTINGS.ENABLE_CONNECT_PROTOCOL): 1} if takes_sockets else {}
        link = self._link = Link(self._line, self._number, {**self._settings, **sockets})
        link.h.initiate_connection()
        await link.flush()
        if self._starved:
            self._begin(self._feed())
        try:
            while data := await self._line.some():
                for event in link.h.receive_data(data):
                    self._on_event(event)
                link.on_data()
                await link.flush()
        except (Cut, h2.exceptions.ProtocolError):
            pass  # cut by the network; what the gateway sends wrong is told by `violations`
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"stream of {self._number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _feed(self) -> None:
        """Open the windows of streams late."""
        await asyncio.sleep(self._rng.choice((0.01, 3.0)))
        with contextlib.suppress(Cut, h2.exceptions.ProtocolError):  # it may be over by then
            self._link.h.update_settings({_SETTINGS.INITIAL_WINDOW_SIZE: 65535})
            await self._link.flush()

    def _on_event(self, event: Any) -> None:
        link, stream = self._link, getattr(event, "stream_id", None)
        if isinstance(event, h2.events.RequestReceived) and stream is not None:
            talk = Talk2(link, stream, [(bytes(name), bytes(value)) for name, value in event.headers or ()])
            link.talks[stream] = talk
            self._begin(self._talk(talk))
        elif stream in link.talks:
            link.talks[stream].on_event(event)

    async def _talk(self, talk: Talk2) -> None:
        rng, ledger = self._rng, self._ledger
        how = rng.choice(LYING) if rng.random() < self._lying else rng.choice(HONEST)
        name = name_of(talk.target)
        if how in ("refuses", "goes away at once"):
            await self._lie(talk, how, b"")  # unprocessed: it may come again (RFC 9113 8.7)
            return
        if self._gone:
            return  # it said that it begins nothing more
        self._begun = max(self._begun, talk.stream)
        ledger.streams += 1
        ledger.note(self._number, name, talk.method, talk.headers)
        try:
            if talk.method == "CONNECT":
                await self._take_socket(talk, name)
                return
            if how != "early":
                ledger.bodies[name].append(await talk.body())
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.01, 1.0)))
            key = talk.header("x-api-key") or b""
            size = rng.choice((0, 5, 100, 3000, 3000, 80_000))
            body = b"<" + key + b">" if how == "reflects" else some_bytes(rng, size)
            if how in LYING and talk.method != "HEAD":
                await self._lie(talk, how, body)
                return
            ledger.say(name, b"" if talk.method == "HEAD" else body)
            await self._answer(talk, how, body)
            if how == "early":
                ledger.bodies[name].append(await talk.body())
        except (Cut, h2.exceptions.ProtocolError, KeyError):
            pass  # the gateway gave the stream up, or the connection is over

    async def _take_socket(self, talk: Talk2, name: str) -> None:
        if self._rng.random() < 0.1:
            await talk.respond(403)
            return
        await talk.begin(200)
        line: Any = UpstreamStream(talk)
        try:
            await _talk_in_frames(line, b"\r\n", b"", name, self._ledger, self._rng, self._lying)
        finally:
            if self._rng.random() < 0.8:
                line.close()
            else:
                line.cut()

    async def _answer(self, talk: Talk2, how: str, body: bytes) -> None:
        if is_grpc(tuple(talk.headers)):
            await self._answer_call(talk, body)
            return
        length: Fields = [(b"content-length", b"%d" % len(body))]
        if how == "informed":
            talk.link.h.send_headers(talk.stream, [(b":status", b"103"), (b"link", b"</x>")])
        if talk.method == "HEAD" or not body:
            await talk.begin(200, length, ended=True)
        elif how in ("pieces", "trailers"):
            await talk.begin(200, [])
            half = len(body) // 2
            await talk.data(body[:half])
            await asyncio.sleep(self._rng.choice((0.0, 0.5)))
            await talk.data(body[half:], ended=how == "pieces")
            if how == "trailers":
                await self._finish(talk, [(b"x-late", b"1")])
        else:
            await talk.begin(200, length)
            await talk.data(body, ended=True)

    async def _answer_call(self, talk: Talk2, message: bytes) -> None:
        """Answer a call of gRPC: its status comes in trailers, or in the only head."""
        kind: Fields = [(b"content-type", b"application/grpc")]
        status: Fields = [(b"grpc-status", self._rng.choice((b"0", b"0", b"5"))), (b"grpc-message", b"said%20so")]
        if not message:
            await talk.begin(200, kind + status, ended=True)
            return
        await talk.begin(200, kind)
        await talk.data(message)
        await self._finish(talk, status)

    async def _finish(self, talk: Talk2, trailers: Fields) -> None:
        self._ledger.trailers[name_of(talk.target)].append(trailers)
        await talk.finish(trailers)

    async def _lie(self, talk: Talk2, how: str, body: bytes) -> None:
        """What is no whole answer, whatever the guest is told."""
        half, link, codes = body[: len(body) // 2], talk.link, h2.errors.ErrorCodes
        if how == "refuses":
            await talk.give_up(codes.REFUSED_STREAM)
        elif how == "resets":
            await talk.give_up(codes.INTERNAL_ERROR)
        elif how == "resets in the body":
            await talk.begin(200, [])
            await talk.data(half)
            await talk.give_up(codes.INTERNAL_ERROR)
        elif how == "stalls in the body":
            await talk.begin(200, [(b"content-length", b"%d" % (len(body) + 1))])
            await talk.data(half)
            await talk.given_up()
        elif how == "stalls":
            await talk.given_up()
        elif how in ("goes away", "goes away at once"):
            if how == "goes away at once" and talk.stream < self._begun:
                await talk.give_up(codes.REFUSED_STREAM)  # no GOAWAY says that of one, and not of a later one
                return
            self._gone = True
            link.h.close_connection(codes.NO_ERROR, last_stream_id=self._begun)
            await link.flush()
            link.line.close()
        elif how == "longer":
            await talk.begin(200, [(b"content-length", b"%d" % (len(body) + 1))])
            await (talk.data(body, ended=True) if body else talk.finish())
        elif how == "shorter":
            # As much as it announces is whole for a guest whose own message ends with the length.
            self._ledger.say(talk.target.rpartition("/")[2], b"")
            await talk.begin(200, [(b"content-length", b"0")])
            await talk.data(body + b"x", ended=True)
        elif how == "garbage":
            await link.raw(self._rng.choice((b"HTTP/1.1 200 OK\r\n\r\n", b"\x00" * 50, self._rng.randbytes(40))))
        else:
            link.line.transport.abort()  # type: ignore[union-attr]


async def serve_socket(line: Line, request: Any, name: str, ledger: Ledger, rng: random.Random, lying: float) -> None:
    """Take a request of h11 to become a WebSocket, and say things in it; raises Cut."""
    key = next(value for field, value in request.headers if field == b"sec-websocket-key")
    head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: "
    head += accept_of(key) + b"\r\n\r\n"
    await _talk_in_frames(line, head, head, name, ledger, rng, lying)


async def _talk_in_frames(
    line: Line, agreed: bytes, sent_first: bytes, name: str, ledger: Ledger, rng: random.Random, lying: float
) -> None:
    """Talk in a WebSocket whose head is this; raises Cut."""
    peer = Peer(line, open_frames(ConnectionType.SERVER, agreed))
    said = ledger.said[name]
    lies = rng.random() < lying
    early = [f"early {number}" for number in range(rng.choice((0, 0, 1, 3)))]
    said += early
    await line.send(sent_first + b"".join(peer.frames.send(TextMessage(data=text)) for text in early))
    try:
        for _ in range(rng.randint(1, 6) if lies else 1000):
            event = await peer.event()
            if isinstance(event, TextMessage | BytesMessage):
                ledger.heard[name].append(event.data if isinstance(event, TextMessage) else bytes(event.data))
                said.append(ledger.heard[name][-1])
                await peer.send(event)
            elif isinstance(event, Ping):
                await peer.send(event.response())
            elif isinstance(event, CloseConnection):
                await peer.send(event.response())
                return
        await _lying(line, rng)
    except (LocalProtocolError, RemoteProtocolError):
        pass  # it was closed while something was to be said


async def _lying(line: Line, rng: random.Random) -> None:
    lie: Callable[[], Any] = rng.choice(
        (
            lambda: line.send(b"\xff\xff\xff\xff"),  # reserved bits and opcode
            lambda: line.send(b"\x81\x05hel"),  # half of a message, then the end
            lambda: line.send(b"\x88\x02\x03\xe8"),
            lambda: line.send(b"\x81\x02\xc3\x28"),  # no UTF-8
            line.end,
        )
    )
    await lie()
