"""The demo's upstream: HTTPS with a CA of its own, and the manners of an LLM API, in the shapes that SDKs know.

    POST /v1/messages   an answer, or with "stream": true its events, one by one
    POST /v1/echo       tells back every header that it got: an endpoint that leaks the caller's key
    POST /v1/events     takes a report
    GET  /v1/admin/keys what an agent should never reach

It keeps a book of the requests that reached it and of the key that each one carried.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import h11
import msgspec

from seamgate.ca.leaf import CertificateAuthority
from seamgate.errors import PrerequisiteMissing
from seamgate.tasks import spawn

PORTS = range(8443, 8500)
"""Where it may listen: the first that is free."""
EVENT_GAP_S = 0.12
"""Between two events of a stream: long enough to see that each one comes by itself."""
_READ_BYTES = 65536
_ANSWER = ("The ", "agent ", "never ", "holds ", "the ", "key.")


class Seen(msgspec.Struct, frozen=True):
    """One request that reached the upstream."""

    method: str
    host: str
    path: str
    key: str


class Upstream:
    """The server.

    Attributes:
        book: what reached it, in order.
        connections: how many TLS connections it took.
        open_most: how many of them were open at once, at most.
    """

    def __init__(self, authority: CertificateAuthority, key: str) -> None:
        self.book: list[Seen] = []
        self.connections = self.open_most = 0
        self._open = 0
        self.port = 0
        self._authority = authority
        self._key = key
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on the first free port of `PORTS`.

        Raises:
            PrerequisiteMissing: none is free.
        """
        context = self._authority.leaf_context("api.llm.test")
        context.sni_callback = self._choose_leaf
        for port in PORTS:
            try:
                self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, ssl=context)
            except OSError:
                continue
            self.port = port
            return
        raise PrerequisiteMissing(
            f"no port of 127.0.0.1 from {PORTS[0]} to {PORTS[-1]} is free for the demo's upstream"
        )

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def _choose_leaf(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name is not None:
            connection.context = self._authority.leaf_context(name)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        spawn(self._serve(reader, writer), name="demo upstream")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open += 1
        self.open_most = max(self.open_most, self._open)
        try:
            await self._converse(h11.Connection(h11.SERVER), reader, writer)
        except (h11.RemoteProtocolError, ConnectionError, ssl.SSLError):
            pass  # the gateway hung up, which is its right
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, wire: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await _read_request(wire, reader)
            if head is None:
                return
            await self._answer(wire, writer, head, body)
            if wire.our_state is not h11.DONE or wire.their_state is not h11.DONE:
                return
            wire.start_next_cycle()

    async def _answer(self, wire: h11.Connection, writer: asyncio.StreamWriter, head: h11.Request, body: bytes) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        method, path = head.method.decode(), head.target.decode().partition("?")[0]
        self.book.append(Seen(method, headers.get("host", ""), path, headers.get("x-api-key", "")))
        sent = _parse(body)
        if (method, path) == ("POST", "/v1/messages") and headers.get("x-api-key") == self._key and sent.get("stream"):
            await _send_events(wire, writer, _stream(str(sent.get("model"))))
            return
        status, answer = self._decide(method, path, headers, sent)
        payload = json.dumps(answer).encode()
        fields = [("content-type", "application/json"), ("content-length", str(len(payload)))]
        if path == "/v1/echo":
            fields.append(("x-debug-key", headers.get("x-api-key", "")))
        await _send(wire, writer, h11.Response(status_code=status, headers=fields), payload)

    def _decide(
        self, method: str, path: str, headers: Mapping[str, str], sent: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        key = headers.get("x-api-key", "")
        if (method, path) == ("POST", "/v1/events"):
            return 202, {"ok": True}
        if key != self._key:
            return 401, {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
        if (method, path) == ("POST", "/v1/messages"):
            return 200, _message(str(sent.get("model")), "".join(_ANSWER)) | {"key_ends_with": key[-4:]}
        if (method, path) == ("POST", "/v1/echo"):
            return 200, {"you_sent": dict(headers)}
        if path.startswith("/v1/admin/"):
            return 200, {"keys": [key]}
        return 404, {"type": "error", "error": {"type": "not_found_error", "message": path}}


async def _read_request(wire: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request | None, bytes]:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return head, bytes(body)
        else:
            return None, b""


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _message(model: str, text: str) -> dict[str, Any]:
    return {
        "id": "msg_demo",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 12, "output_tokens": len(_ANSWER)},
    }


async def _stream(model: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    yield "message_start", {"type": "message_start", "message": _message(model, "") | {"stop_reason": None}}
    yield (
        "content_block_start",
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    )
    for piece in _ANSWER:
        await asyncio.sleep(EVENT_GAP_S)
        delta = {"type": "text_delta", "text": piece}
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    yield "message_stop", {"type": "message_stop"}


async def _send_events(
    wire: h11.Connection, writer: asyncio.StreamWriter, events: AsyncIterator[tuple[str, dict[str, Any]]]
) -> None:
    fields = [("content-type", "text/event-stream"), ("transfer-encoding", "chunked"), ("cache-control", "no-cache")]
    writer.write(wire.send(h11.Response(status_code=200, headers=fields)) or b"")
    async for name, data in events:
        writer.write(wire.send(h11.Data(data=f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())) or b"")
        await writer.drain()
    writer.write(wire.send(h11.EndOfMessage()) or b"")
    await writer.drain()


async def _send(wire: h11.Connection, writer: asyncio.StreamWriter, head: h11.Response, payload: bytes) -> None:
    for event in (head, h11.Data(data=payload), h11.EndOfMessage()):
        writer.write(wire.send(event) or b"")
    await writer.drain()
