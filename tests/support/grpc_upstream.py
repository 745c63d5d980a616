"""A gRPC server, grpcio's own, with one method of each kind; messages are plain bytes, so nothing is generated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from support.certificates import upstream_ca
from support.upstream import RawUpstream, silent


class GrpcUpstream(RawUpstream):
    """The service `test.Echo`.

    Attributes:
        metadata: of the calls, in order.
        cancelled: set once a call that waited was cancelled.
    """

    def __init__(self, *names: str, **more: Any) -> None:
        super().__init__(silent, *names, **more)
        self.metadata: list[dict[str, Any]] = []
        self.cancelled = threading.Event()
        self._grpc: Any = None
        self._pool: ThreadPoolExecutor | None = None

    async def start(self) -> None:
        certificate = upstream_ca().issue_cert(*self.names)
        chain = b"".join(each.bytes() for each in certificate.cert_chain_pems)
        credentials = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
        self._pool = ThreadPoolExecutor(16)
        self._grpc = grpc.server(self._pool)
        self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", self._handlers()),))
        self.port = self._grpc.add_secure_port("127.0.0.1:0", credentials)
        self._grpc.start()

    async def stop(self) -> None:
        stopped = self._grpc.stop(None)
        assert await asyncio.to_thread(stopped.wait, 30), "the gRPC server does not stop"
        assert self._pool is not None
        self._pool.shutdown()

    def _handlers(self) -> dict[str, Any]:
        return {
            "Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "ServerStream": grpc.unary_stream_rpc_method_handler(self._server_stream),
            "ClientStream": grpc.stream_unary_rpc_method_handler(self._client_stream),
            "Bidi": grpc.stream_stream_rpc_method_handler(self._bidi),
            "Fail": grpc.unary_unary_rpc_method_handler(self._fail),
            "Wait": grpc.unary_unary_rpc_method_handler(self._wait),
        }

    def _note(self, context: Any) -> None:
        self.metadata.append(dict(context.invocation_metadata()))

    def _unary(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        context.set_trailing_metadata((("x-late", "1"), ("x-bin-bin", b"\x00\xff")))
        return request[::-1]

    def _server_stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._note(context)
        for number in range(int(request)):
            yield b"item %d" % number

    def _client_stream(self, requests: Iterator[bytes], context: Any) -> bytes:
        self._note(context)
        return b"+".join(requests)

    def _bidi(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._note(context)
        context.send_initial_metadata((("x-early", "1"),))
        for request in requests:
            yield request.upper()

    def _fail(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        context.set_trailing_metadata((("x-why", "because"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not ready: é %")
        raise AssertionError

    def _wait(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        context.add_callback(self.cancelled.set)
        self.cancelled.wait(40)
        return b"late"
