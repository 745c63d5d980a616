"""An upstream that answers what was recorded: no network, the gateway's own HTTP on both ends of a stream in memory.

    upstream = RecordedUpstream({"GET https://api.example.com/v1": Recorded(body=b"{}")})
    upstream = RecordedUpstream.from_har("recorded.har")      # what a browser or a proxy saved

Used with `seamgate.testing.send`. A request that was not recorded is answered with 599 and kept in `unexpected`, and
`send` then fails: a test never passes on an answer that nobody wrote down.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from seamgate.errors import ConfigError, ProtocolError
from seamgate.flow import Headers, Target
from seamgate.headers import OF_THE_GATEWAY
from seamgate.protocol.heads import CHUNKED, RequestHead, Trailers
from seamgate.protocol.http1 import write_chunk, write_last_chunk, write_response_head
from seamgate.protocol.http1_reader import NEED_DATA, RequestReader
from seamgate.testing.building import GivenHeaders, make_headers
from seamgate.testing.memory import MemoryStream

NOT_RECORDED = 599
_BODILESS = frozenset({204, 304})
# What a recorder saves of a message as it was coded; its text is without.
_OF_THE_CODED_BODY = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One answer.

    Attributes:
        status: 200 to 599.
        headers: text by name, or pairs of bytes; framing is written for you.
        body: whole; sent with a Content-Length.
        pieces: the body in pieces instead, each sent as one chunk in a turn of the loop of its own, as events come.
        trailers: after the last piece.
    """

    status: int = 200
    headers: GivenHeaders = ()
    body: bytes = b""
    pieces: tuple[bytes, ...] = ()
    trailers: GivenHeaders = ()


class Received(msgspec.Struct, frozen=True):
    """What the upstream got: the request as it left the gateway, credentials included."""

    method: str
    url: str
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header with this lower-case name, or None."""
        return next((value for key, value in self.headers if key == name), None)


class RecordedUpstream:
    """Answers by `METHOD URL`, with or without the query; several answers to one request are given in turn.

    Attributes:
        received: what came, in order.
        unexpected: `METHOD URL` of what came and was not recorded.
    """

    def __init__(self, answers: Mapping[str, Recorded | Iterable[Recorded]] | None = None) -> None:
        self.received: list[Received] = []
        self.unexpected: list[str] = []
        self._answers: dict[str, list[Recorded]] = {}
        for request, recorded in (answers or {}).items():
            for each in [recorded] if isinstance(recorded, Recorded) else recorded:
                self.add(request, each)

    def add(self, request: str, answer: Recorded) -> None:
        """Add an answer: the last one of a request is given as often as it is asked for."""
        self._answers.setdefault(request, []).append(answer)

    @classmethod
    def from_har(cls, path: Path | str) -> RecordedUpstream:
        """Read an HTTP Archive (HAR 1.2), as browsers and proxies save it.

        Raises:
            ConfigError: it is none.
        """
        upstream = cls()
        try:
            archive: Any = msgspec.json.decode(Path(path).read_bytes())
            for entry in archive["log"]["entries"]:
                asked, answered = entry["request"], entry["response"]
                upstream.add(f"{asked['method']} {asked['url']}", _of_har(answered))
        except (KeyError, TypeError, ValueError, msgspec.DecodeError, binascii.Error) as error:
            raise ConfigError(f"this is no HTTP archive (HAR 1.2): {error}", source=str(path)) from None
        except OSError as error:
            raise ConfigError(f"it can't be read: {error.strerror}", source=str(path)) from None
        return upstream

    def answer(self, received: Received) -> Recorded:
        """Keep what came and return the answer to it."""
        self.received.append(received)
        asked = f"{received.method} {received.url}"
        answers = self._answers.get(asked) or self._answers.get(asked.partition("?")[0])
        if answers is None:
            self.unexpected.append(asked)
            return Recorded(status=NOT_RECORDED, body=f"not recorded: {asked}".encode())
        return answers[0] if len(answers) == 1 else answers.pop(0)


def _of_har(answered: Mapping[str, Any]) -> Recorded:
    fields: defaultdict[str, list[str]] = defaultdict(list)
    for each in answered["headers"]:
        name = each["name"].lower()
        if not name.startswith(":") and name.encode() not in OF_THE_GATEWAY | _OF_THE_CODED_BODY:
            fields[name].append(each["value"])
    content = answered.get("content", {})
    text = content.get("text", "")
    body = base64.b64decode(text, validate=True) if content.get("encoding") == "base64" else text.encode()
    return Recorded(status=answered["status"], headers=fields, body=body)


class RecordedConnection:
    """One connection to a recorded upstream: reads requests as the gateway reads them, writes what was recorded."""

    def __init__(self, upstream: RecordedUpstream, target: Target) -> None:
        self._upstream = upstream
        self._target = target
        self._reader = RequestReader()
        self._head: RequestHead | None = None
        self._body = bytearray()
        self._stream: MemoryStream

    def connection_made(self, transport: Any) -> None:
        """The stream is there."""
        self._stream = transport

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._reader.feed(data)
        try:
            while (event := self._reader.next_event()) is not NEED_DATA:
                self._on(event)
        except ProtocolError:
            self._stream.abort()

    def _on(self, event: object) -> None:
        if isinstance(event, RequestHead):
            self._head = event
            self._body.clear()
            if event.expect_continue:
                self._stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif isinstance(event, bytes):
            self._body += event
        elif isinstance(event, Trailers) and self._head is not None:
            head, self._head = self._head, None
            self._reader.start_next()
            url = f"{self._target.origin}{head.target}"
            headers = (*head.headers, *event.headers)
            self._write(head.method, self._upstream.answer(Received(head.method, url, headers, bytes(self._body))))

    def _write(self, method: str, answer: Recorded) -> None:
        headers, trailers = make_headers(answer.headers), make_headers(answer.trailers)
        bodiless = method == "HEAD" or answer.status in _BODILESS
        chunked = bool(answer.pieces or trailers) and not bodiless
        length = None if answer.status in _BODILESS else len(answer.body)
        self._stream.write(write_response_head(answer.status, headers, CHUNKED if chunked else length, keep_alive=True))
        if bodiless:
            return
        if not chunked:
            self._stream.write(answer.body)
            return
        for piece in answer.pieces or (answer.body,):
            if piece:
                self._stream.write(write_chunk(piece))
        self._stream.write(write_last_chunk(trailers))

    def eof_received(self) -> bool:
        """The gateway sends no more: close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream is gone."""

    def pause_writing(self) -> None:
        """Do nothing: what is recorded is in memory anyway."""

    def resume_writing(self) -> None:
        """Do nothing."""
