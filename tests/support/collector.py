"""An OpenTelemetry collector as a test holds it: takes OTLP over HTTP by the book, and answers as it is told.

What it takes is parsed into the published protobuf messages, unknown fields refused. `answers` are given in turn, then
200; each is a status, or (status, headers, body).
"""

from __future__ import annotations

import gzip
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

WAIT_S = 30.0
Answer = tuple[int, Mapping[str, str], bytes]


class Collector:
    """Listens on loopback. `with Collector() as collector: ...`

    Attributes:
        answers: what to answer with next.
        seqs: the `seamgate.seq` of every record that was taken with 200, in order.
        batches: how many records each request had, whatever the answer.
        tokens: the Authorization values.
    """

    def __init__(self, *answers: int | Answer, port: int = 0) -> None:
        self.answers: deque[int | Answer] = deque(answers)
        self.seqs: list[int] = []
        self.batches: list[int] = []
        self.tokens: list[str] = []
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.collector = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        """The URL to send to."""
        return f"http://127.0.0.1:{self.port}/v1/logs"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=WAIT_S)

    def wait(self, condition: Callable[[Collector], bool]) -> None:
        """Wait for something that a request brings."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), WAIT_S), (self.seqs[-5:], self.batches[-5:])

    def take(self, message: ExportLogsServiceRequest, token: str) -> Answer:
        """Keep a request; return what to answer."""
        records = [each for res in message.resource_logs for scope in res.scope_logs for each in scope.log_records]
        seqs = [attribute.value.int_value for each in records for attribute in each.attributes if attribute.key == _SEQ]
        with self._changed:
            answer = self.answers.popleft() if self.answers else 200
            status, headers, body = answer if isinstance(answer, tuple) else (answer, {}, b"{}")
            self.batches.append(len(records))
            self.tokens.append(token)
            if status == 200:
                self.seqs += seqs
            self._changed.notify_all()
        return status, headers, body


_SEQ = "seamgate.seq"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    collector: Collector


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        """Take a request, by the book."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/logs"
        assert self.headers["content-type"] == "application/json"
        told: Any = json.loads(body)
        message = ParseDict(told, ExportLogsServiceRequest())
        status, headers, answer = self.server.collector.take(message, self.headers.get("authorization", ""))
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
