"""The upstreams and the name server of a simulation: correct, slow, or lying, by the dice.

They note what they got and what they said, so that the referee can tell what a guest may have seen.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any

import h11
from dnslib import QTYPE, RCODE, RR, A, DNSRecord

from seamgate.protocol.client_hello import ClientHello
from seamgate.streams import TlsStream
from simulation.chance import some_bytes, upstream_context
from simulation.network import Network
from simulation.servers2 import StreamServer, serve_socket
from support.http2_upstream import Fields
from support.line import Cut, Line

SECRET = "sk-live-4f9a7c1be23d58a60e917b3d"
NAMES = {"a.sim": "93.184.216.1", "b.sim": "93.184.216.2", "key.sim": "93.184.216.3"}
MOVED = {"a.sim": "93.184.216.4", "b.sim": "93.184.216.5", "key.sim": "93.184.216.6"}
"""Where the same origins are when they have changed their addresses."""
INNER = "169.254.169.254"
HONEST = ("length", "chunked", "until close", "early", "informed", "reflects")
LYING = (
    "stalls",
    "stalls in the body",
    "resets",
    "ends in the body",
    "longer",
    "shorter",
    "garbage",
    "babbles",
    "surplus",
)


class Ledger:
    """What upstreams got and said.

    Attributes:
        heads: (connection, request's name, method) in order.
        bodies: name -> each whole body that came.
        whole: name -> bodies that a guest may take for whole.
        trailers: name -> those behind each whole body that had some.
        said, heard: name -> messages in its WebSocket.
        streams: how many requests came over HTTP/2.
        keyed: names of requests that came with the credential.
        on_keyed: called when one has come.
    """

    def __init__(self) -> None:
        self.heads: list[tuple[int, str, str]] = []
        self.bodies: defaultdict[str, list[bytes]] = defaultdict(list)
        self.whole: defaultdict[str, list[bytes]] = defaultdict(list)
        self.trailers: defaultdict[str, list[Fields]] = defaultdict(list)
        self.said: defaultdict[str, list[str | bytes]] = defaultdict(list)
        self.heard: defaultdict[str, list[str | bytes]] = defaultdict(list)
        self.streams = 0
        self.keyed: set[str] = set()
        self.on_keyed: Callable[[], None] = lambda: None
        self.received = bytearray()
        self.spoiled: set[int] = set()
        self.violations: list[str] = []

    def note(self, number: int, name: str, method: str, headers: Any) -> None:
        """A request's head came over this connection."""
        self.heads.append((number, name, method))
        if any(SECRET.encode() in value for _, value in headers):
            self.keyed.add(name)
            self.on_keyed()

    def say(self, name: str, body: bytes) -> None:
        """This is said whole."""
        self.whole[name].append(body.replace(SECRET.encode(), b"[redacted:key]"))


class Upstreams:
    """All origins: one server on each address, plain on 80 and TLS on 443."""

    def __init__(self, network: Network, rng: random.Random, ledger: Ledger, lying: float) -> None:
        self._network, self._rng, self.ledger, self._lying = network, rng, ledger, lying
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: list[Line] = []
        self._takes_sockets = rng.random() < 0.7
        self._alpn = rng.choice((("http/1.1",), ("h2", "http/1.1"), ("h2", "http/1.1")))
        for name, address in (*NAMES.items(), *MOVED.items()):
            network.listen(self._plain, address, 80)
            network.listen(lambda name=name: self._tls(name), address, 443)  # type: ignore[misc]

    def _plain(self) -> Line:
        return _Accepted(self)

    def _tls(self, name: str) -> TlsStream:
        def choose(_: ClientHello) -> Any:
            return upstream_context(name, *self._alpn)

        return TlsStream(_Accepted(self), choose=choose, on_failure=lambda _: None)

    def begin(self, line: Line) -> None:
        """A connection is there."""
        number = len(self._lines)
        self._lines.append(line)
        task = self._network.loop.create_task(self._serve(line, number), name=f"upstream {number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End all of it."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in self._lines:
            if line.transport is not None:
                line.transport.abort()

    async def _serve(self, line: Line, number: int) -> None:
        try:
            if _speaks_streams(line):
                streams = StreamServer(line, number, self._rng, self.ledger, self._lying)
                await streams.serve(takes_sockets=self._takes_sockets)
                return
            h = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
            while await self._exchange(line, number, h) and h.our_state is h11.DONE and h.their_state is h11.DONE:
                h.start_next_cycle()
        except (Cut, h11.RemoteProtocolError):
            pass  # cut by the gateway or by the network; a request that was cut is no whole one
        finally:
            self.ledger.received += line.received
            line.close()

    async def _event(self, line: Line, h: h11.Connection) -> Any:
        while (event := h.next_event()) is h11.NEED_DATA:
            h.receive_data(await line.some())
        return event

    async def _body(self, line: Line, h: h11.Connection) -> bytes:
        pieces = []
        while isinstance(event := await self._event(line, h), h11.Data):
            pieces.append(bytes(event.data))
        if not isinstance(event, h11.EndOfMessage):
            raise Cut("no end")
        return b"".join(pieces)

    async def _exchange(self, line: Line, number: int, h: h11.Connection) -> bool:
        """Answer one request; whether the connection may go on."""
        request = await self._event(line, h)
        if not isinstance(request, h11.Request):
            return False
        ledger, rng = self.ledger, self._rng
        name = request.target.decode().rpartition("/")[2].partition("?")[0]
        method = request.method.decode()
        if number in ledger.spoiled:
            ledger.violations.append(f"{name} came over connection {number}, which had an error")
        ledger.note(number, name, method, request.headers)
        if any(field == b"upgrade" for field, _ in request.headers):
            ledger.spoiled.add(number)
            await serve_socket(line, request, name, ledger, rng, self._lying)
            return False
        how = rng.choice(LYING) if rng.random() < self._lying else rng.choice(HONEST)
        if how != "early":
            ledger.bodies[name].append(await self._body(line, h))
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.01, 1.0)))
        key = next((value for field, value in request.headers if field == b"x-api-key"), b"")
        body = b"<" + key + b">" if how == "reflects" else some_bytes(rng, rng.choice((0, 5, 100, 3000, 3000, 80_000)))
        if method == "HEAD":
            return await self._say(line, h, b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", name, b"")
        goes_on = await self._answer(line, h, number, name, how, body)
        if how == "early" and goes_on:
            ledger.bodies[name].append(await self._body(line, h))
        return goes_on

    async def _say(self, line: Line, h: h11.Connection, data: bytes, name: str, whole: bytes) -> bool:
        """Say a whole answer; now and then close behind it without having said so."""
        self.ledger.say(name, whole)
        await line.send(*self._split(data))
        # Only h11's book-keeping: what it would have written was said already.
        h.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        h.send(h11.EndOfMessage())
        return self._rng.random() < 0.9

    def _split(self, data: bytes) -> list[bytes]:
        if self._rng.random() < 0.5:
            return [data]
        place = self._rng.randint(0, len(data))
        return [piece for piece in (data[:place], data[place:]) if piece]

    async def _answer(self, line: Line, h: h11.Connection, number: int, name: str, how: str, body: bytes) -> bool:
        ledger = self.ledger
        size = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        if how in ("length", "early", "reflects"):
            return await self._say(line, h, size + body, name, body)
        if how == "informed":
            return await self._say(line, h, b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + size + body, name, body)
        if how == "chunked":
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            return await self._say(line, h, head + chunk + b"0\r\n\r\n", name, body)
        ledger.spoiled.add(number)
        if how == "until close":
            await self._say(line, h, b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body, name, body)
            return False
        if how == "surplus":  # a whole answer, and bytes that nobody asked for right behind it
            ledger.say(name, body)
            await line.send(size + body + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            ledger.spoiled.discard(number)  # it may arrive after the next request has left: see `Referee`
            await line.end()
            return False
        await self._lie(line, how, size, body)
        if how != "resets" and self._rng.random() < 0.5 and await line.some():
            # The connection stays open, and what was asked on it has come whole: nothing more may come.
            ledger.violations.append(f"connection {number} was used again after {how!r} in the answer to {name}")
        return False

    async def _lie(self, line: Line, how: str, size: bytes, body: bytes) -> None:
        """What is no whole answer, whatever the guest is told."""
        half = body[: len(body) // 2]
        if how == "stalls":
            await line.end()
        elif how == "stalls in the body":
            await line.send(size, half) if body else None
            await line.end()
        elif how == "resets":
            await line.send(size + half) if body and self._rng.random() < 0.5 else None
            _reset(line)
        elif how == "ends in the body":
            await line.send(size + half) if body else None
        elif how == "longer":
            await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(body) + 1) + body)
        elif how == "shorter":
            await line.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % (len(body) + 9) + body)
        elif how == "garbage":
            await line.send(self._rng.choice((b"SSH-2.0-x\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"\x00" * 50)))
        else:
            await line.send(*[b"HTTP/1.1 102 Processing\r\n\r\n"] * 200)


def _speaks_streams(line: Line) -> bool:
    assert line.transport is not None
    secured = line.transport.get_extra_info("ssl_object")
    return secured is not None and secured.selected_alpn_protocol() == "h2"


class _Accepted(Line):
    def __init__(self, upstreams: Upstreams) -> None:
        super().__init__()
        self._upstreams = upstreams

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._upstreams.begin(self)


def _reset(line: Line) -> None:
    transport: Any = line.transport
    below = getattr(transport, "_below", transport)  # under TLS, which lets go of it once it is lost
    if below is not None:
        below.reset()


class NameServer:
    """One name server: answers, is slow, silent, fails, lies, or says that a name lies inside; names move.

    Attributes:
        asked: every name that it was asked for.
        moves: how often the names got other addresses.
        dead: whether nobody listens; then a query is refused.
    """

    def __init__(self, network: Network, rng: random.Random, failing: float) -> None:
        self._network, self._rng, self._failing = network, rng, failing
        self._places = NAMES
        self.asked: list[str] = []
        self.moves = 0
        self.revive()

    def revive(self) -> None:
        """Listen."""
        self._network.datagram_servers[PLACE] = self._answer

    def die(self) -> None:
        """Listen no more."""
        del self._network.datagram_servers[PLACE]

    def move(self) -> None:
        """All names get other addresses."""
        self.moves += 1
        self._places = MOVED if self._places is NAMES else NAMES

    def _answer(self, data: bytes, send: Any) -> None:
        rng = self._rng
        question = data[12 : data.index(0, 12) + 5]
        name, has_address = _asked_for(question.lower())
        self.asked.append(name)
        how = rng.choice(DNS_FAULTS) if rng.random() < self._failing * 2 else "right"
        if how == "silent":
            return
        places: tuple[str, ...] = ()
        rcode, ttl_s = RCODE.NOERROR, rng.choice((0, 1, 60))
        if how == "fails":
            rcode = RCODE.SERVFAIL
        elif how == "not there" or (name not in self._places and name != "inner.sim"):
            rcode = RCODE.NXDOMAIN
        elif has_address:
            place = self._places.get(name, INNER)
            places = (place, INNER) if how == "inside too" else (place,)
        head, answers = _reply(question.lower(), rcode, places, ttl_s)
        packed = data[:2] + head + question + answers  # the question as it was asked (RFC 5452 9.1)
        if how == "garbage":
            packed = packed[:2] + rng.randbytes(rng.randint(0, 60))
        elif how == "cut":
            packed = packed[: rng.randint(0, len(packed))]
        elif how == "other id":
            packed = bytes(byte ^ 0xFF for byte in packed[:2]) + packed[2:]
        send(packed, rng.choice((2.0, 4.0, 30.0)) if how == "slow" else rng.choice((0.0, 0.005, 0.5)))


@cache
def _asked_for(question: bytes) -> tuple[str, bool]:
    """Return the name of a question, and whether it is for addresses that there are."""
    asked = DNSRecord.parse(bytes((0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + question).q
    return str(asked.qname).rstrip("."), asked.qtype == QTYPE.A


@cache
def _reply(question: bytes, rcode: int, places: tuple[str, ...], ttl_s: int) -> tuple[bytes, bytes]:
    """Return what stands before and behind the question of a reply, but for the id."""
    query = DNSRecord.parse(bytes((0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + question)
    reply = query.reply()
    reply.header.rcode = rcode
    for place in places:
        reply.add_answer(RR(query.q.qname, QTYPE.A, rdata=A(place), ttl=ttl_s))
    packed = bytes(reply.pack())
    return packed[2:12], packed[12 + len(question) :]


PLACE = ("93.184.216.53", 53)
DNS_FAULTS = ("silent", "fails", "not there", "inside too", "garbage", "cut", "other id", "slow", "slow")
