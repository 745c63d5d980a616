"""What a guest's HTTP/1.1 connection writes: answers, queued, that leave in one piece per batch.

The base of `seamgate.entry.http1_guest`, which reads. Called by exchanges (`seamgate.sides.GuestSide`). Knows how the
answer under way is framed, and whether the connection can go on after it; decides nothing else.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from seamgate.denial import denial_answer, denial_remark
from seamgate.flow import Headers
from seamgate.protocol.heads import CHUNKED, UNTIL_CLOSE, RequestHead
from seamgate.protocol.http1 import write_chunk, write_last_chunk, write_response_head
from seamgate.protocol.http1_reader import RequestReader
from seamgate.sides import WebSocketGuest
from seamgate.streams import Transport, write_to
from seamgate.verdict import Verdict

DRAINED_BYTES: Final = 1024 * 1024
"""How much of a refused request's body is read over, so that the guest can read the refusal and go on."""
_monotonic: Final = monotonic
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Http1Writer(WebSocketGuest):
    """The writing side of one connection of one guest.

    State: `_head` is that of the request that is answered; `_out` waits for the end of the batch.
    """

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self._active_at = _monotonic()
        self._reader = RequestReader()
        self._head: RequestHead | None = None
        self._out: list[bytes] = []
        self._keep_alive = True
        self._chunked = False
        self._until_close = False

    def send_continue(self) -> None:
        """Ask for the body."""
        self._out.append(_CONTINUE)
        self.flush()

    def send_informational(self, status: int, headers: Headers) -> None:
        """Pass on a 1xx response; an HTTP/1.0 guest knows none."""
        if self._head is not None and self._head.minor:
            self._out.append(write_response_head(status, headers, None, keep_alive=True))

    def send_head(self, status: int, headers: Headers, body: int | None, remark: bytes = b"") -> None:
        """Begin the response."""
        head = self._head
        minor = 1 if head is None else head.minor
        self._until_close = body == CHUNKED and minor == 0
        self._chunked = body == CHUNKED and minor == 1
        if self._until_close or not self._can_go_on():
            self._keep_alive = False
        framing = UNTIL_CLOSE if self._until_close else body
        keep_alive = self._keep_alive
        self._out.append(
            write_response_head(status, headers, framing, keep_alive=keep_alive, minor=minor, remark=remark)
        )

    def send_data(self, data: bytes) -> None:
        """Pass on a piece of the body."""
        self._out.append(write_chunk(data) if self._chunked else data)

    def send_end(self, trailers: Headers) -> None:
        """End the response."""
        if self._chunked:
            self._out.append(write_last_chunk(trailers))

    def send_denial(self, verdict: Verdict, request_id: str) -> None:
        """Refuse with a whole response."""
        self._out.clear()
        headers, body = denial_answer(verdict, request_id, () if self._head is None else self._head.headers)
        self.send_head(verdict.reason.status, headers, len(body), denial_remark(verdict))
        if self._head is None or self._head.method != "HEAD":
            self._out.append(body)

    def flush(self) -> None:
        """Send what was queued, in one piece."""
        out = self._out
        if out and self.transport is not None:
            write_to(self.transport, out[0] if len(out) == 1 else b"".join(out))
            self._active_at = _monotonic()
            self._out = []

    def _can_go_on(self) -> bool:
        """Whether the connection can be kept although the request's body is not read yet."""
        head = self._head
        if head is None:
            return False
        if self._reader.message_done or head.body == 0:
            return True
        return not head.expect_continue and 0 < head.body <= DRAINED_BYTES
