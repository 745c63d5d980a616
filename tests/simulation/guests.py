"""The guests of a simulation: polite, slow, hasty, silent or gone, by the dice."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
from typing import Any

import h11
import msgspec

from seamgate.streams import TlsStream
from simulation.chance import some_bytes
from simulation.guests2 import ask_streams, talk_in_socket, talk_in_stream
from simulation.network import Network
from simulation.servers import SECRET, Ledger
from support.line import Cut, Line

TOKEN = "guest-token-0123456789abcdef"
PATHS = (*("/ok/",) * 6, "/key/", "/key/", "/judged/", "/flip/", "/deny/", "/nothing/", "/%2e%2e/")
PLAIN = ("proxy", "proxy", "base_url", "base_url", "socket", "silent")
SECURED = ("proxy", "tunnel", "streams", "streams", "socket")
HOSTS = (*("a.sim", "b.sim", "key.sim") * 4, "inner.sim", "gone.sim", "dead.sim")


class Asked(msgspec.Struct):
    """One request of a guest.

    Attributes:
        name: the last segment of its path, which is its own.
        sent: whether all of it was handed to the network.
        status: of the answer's head; 0: none came.
        reason: the denial's code, "" for an upstream's answer.
        body: of the answer, if `whole`.
        on_stream: whether it went over HTTP/2.
        is_call: whether it is one of gRPC, with its status in `trailers`.
        said, heard: messages in a WebSocket.
    """

    name: str
    method: str
    host: str
    path: str
    body: bytes
    sent: bool = False
    status: int = 0
    reason: str = ""
    whole: bool = False
    answer: bytes = b""
    on_stream: bool = False
    is_call: bool = False
    trailers: list[tuple[bytes, bytes]] = []
    said: list[str | bytes] = []
    heard: list[str | bytes] = []


class Guest:
    """One guest with one connection after the other."""

    def __init__(
        self, number: int, network: Network, rng: random.Random, places: dict[str, Any], ledger: Ledger
    ) -> None:
        self._number, self._network, self._rng, self._places = number, network, rng, places
        self._ledger = ledger
        self._ways = SECURED if places["secured"] else PLAIN
        self.asked: list[Asked] = []
        self.received = bytearray()
        self.lines: list[Line] = []

    async def run(self) -> None:
        """Use some connections."""
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            try:
                await self._connection(self._rng.choice(self._ways))
            except (Cut, OSError, ssl.SSLError, h11.RemoteProtocolError):
                pass  # the gateway or the network ended it
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 3.0)))
        for line in self.lines:
            line.close()

    async def _connection(self, how: str) -> None:
        entry = "base_url" if how == "base_url" else "proxy"
        line = Line()
        await self._network.connect(lambda: line, *self._places[entry])
        self.lines.append(line)
        if how == "silent":
            await line.send(b"GET http://a.si")
            await line.end()
            return
        host = self._rng.choice(HOSTS)
        raw, tunnelled = line.transport, how in ("tunnel", "streams") or (how == "socket" and self._ways is SECURED)
        if tunnelled:
            self._network.loop.call_later(self._rng.choice((0.0, 0.002, 0.02)), self._cut, raw)
            line = await self._tunnel(line, host, "h2" if how == "streams" else "http/1.1")
        try:
            if how == "socket":
                asked = self._make(host, "/ws/", "GET")
                await talk_in_socket(line, "tunnel" if tunnelled else "proxy", asked, self._rng)
                return
            if how == "streams":
                assert line.transport is not None
                if line.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
                    if self._rng.random() < 0.3:
                        await talk_in_stream(line, host, self._make(host, "/ws/", "GET"), self._rng)
                        return
                    asked_all = [self._make(host) for _ in range(self._rng.choice((1, 1, 3, 8)))]
                    await ask_streams(line, host, asked_all, self._rng)
                    return
                how = "tunnel"
            for _ in range(self._rng.choice((1, 1, 2, 4))):
                asked = self._make(host if how == "tunnel" else "key.sim" if how == "base_url" else None)
                if not await self._ask(line, how, asked):
                    break
        finally:
            self.received += line.received
            line.close() if self._rng.random() < 0.7 else line.transport.abort()  # type: ignore[union-attr]

    def _cut(self, raw: Any) -> None:
        """Now and then, wherever the handshakes are by then: a reset, or an end without close_notify."""
        if self._rng.random() < 0.1:
            self._rng.choice((raw.abort, raw.reset, raw.write_eof))()

    async def _tunnel(self, line: Line, host: str, alpn: str) -> Line:
        await line.send(b"CONNECT %b:443 HTTP/1.1\r\nhost: %b:443\r\n\r\n" % (host.encode(), host.encode()))
        head = await line.head()
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Cut("refused")
        inner = Line()
        failed: list[Exception] = []
        context = self._places["contexts"][alpn]
        stream = TlsStream(inner, context=context, server_hostname=host, on_failure=lambda e: _ended(inner, failed, e))
        transport: Any = line.transport
        transport.set_protocol(stream)
        stream.connection_made(transport)
        while inner.transport is None and not inner.lost:
            await inner.changed()
        if inner.lost:
            raise Cut(f"no TLS: {failed}")
        return inner

    def _make(self, host: str | None, path: str = "", method: str = "") -> Asked:
        rng = self._rng
        name = f"{self._number}-{len(self.asked)}"
        method = method or rng.choice(("GET", "GET", "POST", "PUT", "HEAD"))
        path = path or rng.choice(PATHS)
        body = b""
        if method in ("POST", "PUT"):
            body = rng.choice((b'{"ok": true}', b'{"ok": false}', b"x" * 3000, some_bytes(rng, 100_000)))
        asked = Asked(name, method, host or rng.choice(HOSTS), path, body)
        self.asked.append(asked)
        return asked

    def _message(self, how: str, asked: Asked) -> bytes:
        host = asked.host.encode()
        target = asked.path.encode() + asked.name.encode()
        lines = []
        if how == "proxy":
            target = b"http://" + host + target
        elif how == "base_url":
            target = b"/api" + target
        lines.append(b"%b %b HTTP/1.1\r\nhost: %b" % (asked.method.encode(), target, host))
        if self._rng.random() < 0.1:
            lines.append(b"x-api-key: " + self._rng.choice((b"sgph-key", SECRET.encode(), b"sgph-nobody")))
        if asked.method not in ("POST", "PUT"):
            return b"\r\n".join(lines) + b"\r\n\r\n"
        lines.append(b"content-type: application/json")
        if self._rng.random() < 0.3:
            lines.append(b"expect: 100-continue")
        if self._rng.random() < 0.5:
            chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(asked.body), asked.body)
            return b"\r\n".join((*lines, b"transfer-encoding: chunked")) + b"\r\n\r\n" + chunk
        return b"\r\n".join((*lines, b"content-length: %d" % len(asked.body))) + b"\r\n\r\n" + asked.body

    async def _ask(self, line: Line, how: str, asked: Asked) -> bool:
        """Send one request, or part of it, and read the answer, or part of it; whether the connection goes on."""
        rng = self._rng
        message = self._message(how, asked)
        mood = rng.choice(("polite", "polite", "polite", "polite", "slow", "hasty", "gone", "half", "deaf"))
        if mood == "half":
            message = message[: rng.randint(0, len(message) - 1)]
        pieces = [message]
        if mood == "slow":
            place = rng.randint(0, len(message))
            pieces = [message[:place], message[place:]]
        for piece in pieces:
            await line.send(piece)
            if mood == "slow":
                await asyncio.sleep(rng.choice((0.1, 4.0, 40.0)))
        asked.sent = mood != "half"
        if mood == "gone":
            return False
        if mood == "deaf":
            line.hold()
            await asyncio.sleep(rng.choice((1.0, 100.0)))
            line.go_on()
        if mood == "half":
            await asyncio.sleep(rng.choice((0.0, 60.0, 400.0)))
            return False
        if mood == "hasty":
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.5)))
            return False
        return await self._answer(line, asked)

    async def _answer(self, line: Line, asked: Asked) -> bool:
        h = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        h.send(h11.Request(method=asked.method, target="/", headers=[("host", "x")]))
        h.send(h11.EndOfMessage())
        pieces = []
        while True:
            event = h.next_event()
            if event is h11.NEED_DATA:
                h.receive_data(await line.some())
            elif isinstance(event, h11.Response):
                asked.status = event.status_code
                asked.reason = next((v.decode() for k, v in event.headers if k == b"x-seamgate-reason"), "")
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                asked.whole, asked.answer = True, b"".join(pieces)
                return h.their_state is h11.DONE and not h.trailing_data[0]
            elif isinstance(event, h11.ConnectionClosed):
                return False


def _ended(inner: Line, failed: list[Exception], error: Exception) -> None:
    failed.append(error)
    inner.connection_lost(error)


def authorization() -> bytes:
    """The header that shows the token."""
    return b"proxy-authorization: Basic " + base64.b64encode(f"g:{TOKEN}".encode())


def is_denial(body: bytes) -> bool:
    """Whether a body is one of the gateway's own."""
    try:
        return bool(json.loads(body)["error"]["type"] == "seamgate_denied")
    except (ValueError, KeyError, TypeError):
        return False
