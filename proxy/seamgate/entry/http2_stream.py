"""One stream of a guest's HTTP/2 connection: the guest's side of one exchange, also of one that becomes a WebSocket.

Made by `entry.http2_guest` for each request; called by it with what came, and by the exchange with what goes back.
Decides nothing and reads no frames: windows and states are `protocol.http2`'s.

State: `paused` while the upstream takes no more, `_behind` while a body that is decoded waits for a turn of the
guest's; then what came waits in `held`; `websocket` once the stream is the connection of one (RFC 8441); `close_at`
once it is only waited for the guest to end it.
"""

from __future__ import annotations

import functools
from time import monotonic
from typing import TYPE_CHECKING

from seamgate.denial import denial_answer
from seamgate.entry.http1_guest import LINGER_S
from seamgate.exchange import Exchange
from seamgate.flow import Headers
from seamgate.grpc import grpc_denial, is_grpc
from seamgate.holding import Holding
from seamgate.protocol.coding import CODED_PIECE_BYTES
from seamgate.protocol.heads import RequestHead
from seamgate.protocol.http2_events import StreamData, StreamEnd, StreamEvent, hold_event, join_data
from seamgate.protocol.http2_fields import response_fields
from seamgate.protocol.http2_frames import CANCEL, INTERNAL_ERROR
from seamgate.sides import WebSocketGuest
from seamgate.turns import Share
from seamgate.verdict import Verdict
from seamgate.websocket_exchange import WebSocketExchange

if TYPE_CHECKING:
    from seamgate.entry.http2_guest import Http2Guest


class Http2Stream(WebSocketGuest):
    """One stream: the guest's side of one exchange."""

    __slots__ = (
        "_behind", "_held_bytes", "_holding", "_queued_bytes", "active_at", "close_at", "connection", "exchange",
        "full_at", "head", "held", "lasting", "number", "paused", "websocket",
    )  # fmt: skip

    def __init__(self, connection: Http2Guest, number: int, head: RequestHead | None) -> None:
        self.connection = connection
        self.number = number
        self.head = head
        self.exchange: Exchange | None = None
        self.websocket: WebSocketExchange | None = None
        self.close_at = 0.0
        self.paused = False
        self.lasting = head is not None and is_grpc(head.headers)
        self.held: list[StreamEvent] = []
        self.active_at = monotonic()
        self.full_at = 0.0
        self._holding: Holding | None = None
        self._behind = False
        self._held_bytes = self._queued_bytes = 0

    def __repr__(self) -> str:
        return f"<Http2Stream {self.number} {self.exchange!r}>"

    # -- from the guest ----------------------------------------------------------------------------------------------

    def on_event(self, event: StreamEvent) -> None:
        """A piece of the request, or its end; held back while the upstream takes no more."""
        self.active_at = monotonic()
        if self.paused or self._behind:
            self._hold(event)
        else:
            self._deliver(event)

    def _hold(self, event: StreamEvent) -> None:
        hold_event(self.held, event)
        exchange = self.exchange
        if isinstance(event, StreamData) and exchange is not None:
            self._held_bytes += len(event.data)
            exchange.guarded(self._count)

    def _count(self) -> None:
        """Count what waits here for either side.

        Raises:
            SeamgateError: it is more than may be in memory.
        """
        if self.exchange is not None:
            if self._holding is None:
                self._holding = Holding(self.connection.seam.held, self.exchange.request.guest.id)
            self._holding.say(self._held_bytes + self._queued_bytes)

    @property
    def share(self) -> Share:
        """The guest's part of each turn."""
        return self.connection.share

    def gone(self) -> None:
        """The guest gave the stream up; or ended it, which for a WebSocket is the end of its connection."""
        if self.exchange is not None:
            self.exchange.on_guest_gone()
        if self.websocket is not None:
            self.end()

    def _deliver(self, event: StreamEvent) -> None:
        websocket = self.websocket
        if websocket is not None:
            if isinstance(event, StreamData):
                websocket.on_guest_data(event.data)
                self.connection.core.consumed(self.number, len(event.data))
            elif not websocket.awaits_close:
                self.gone()
            return
        exchange = self.exchange
        if exchange is None:
            return
        if isinstance(event, StreamData):
            data = event.data
            if exchange.decodes_request:
                self._deliver_coded(exchange, data)
                return
            exchange.guarded(lambda: exchange.on_body(data))
            self.connection.core.consumed(self.number, len(data))
        elif isinstance(event, StreamEnd) and not exchange.body_done:
            trailers = event.trailers
            exchange.guarded(lambda: exchange.on_body_end(trailers))

    def _deliver_coded(self, exchange: Exchange, data: bytes) -> None:
        """A piece that is decoded: little by little, as long as the guest's turn lasts; the rest in a later one."""
        core, share, place = self.connection.core, self.connection.share, 0
        while place < len(data) and self.exchange is exchange:
            if share.left <= 0 or self._is_paused():
                self.held.insert(0, StreamData(self.number, data[place:]))
                self._held_bytes += len(data) - place
                exchange.guarded(self._count)
                if share.left <= 0:
                    self._behind = True
                    share.wait(self._go_on)
                return
            piece = data[place : place + CODED_PIECE_BYTES]
            place += len(piece)
            exchange.guarded(functools.partial(exchange.on_body, piece))
            core.consumed(self.number, len(piece))
        core.consumed(self.number, len(data) - place)

    def _go_on(self) -> None:
        """A later turn: go on with what waits."""
        self._behind = False
        if not self.paused:
            self._release()

    def _is_paused(self) -> bool:
        """A call, since compiled code takes what it once saw unset for unset."""
        return self.paused

    # -- the guest's side of an exchange -----------------------------------------------------------------------------

    def send_continue(self) -> None:
        """Ask for the body."""
        self.send_informational(100, ())
        self.flush()

    def send_informational(self, status: int, headers: Headers) -> None:
        """Pass on a 1xx response."""
        self.connection.core.send_fields(self.number, response_fields(status, headers, None), ended=False)

    def send_head(self, status: int, headers: Headers, body: int | None) -> None:
        """Begin the response. Without a body it ends with its head: gRPC tells by that."""
        self.lasting = True  # both bodies flow at once: the guest may be silent while it is answered
        is_head = self.head is not None and self.head.method == "HEAD"
        ended = is_head or not body
        fields = response_fields(status, headers, body if is_head or body else None)
        self.connection.core.send_fields(self.number, fields, ended=ended)

    def send_data(self, data: bytes) -> None:
        """Pass on a piece of the body, as far as the guest's windows permit; queue the rest.

        Raises:
            SeamgateError: more waits for guests than may be in memory.
        """
        core = self.connection.core
        self.active_at = monotonic()
        core.send_data(self.number, data)
        if not self.full_at and core.is_full(self.number):
            self.full_at = monotonic()
            if self.exchange is not None:
                self.exchange.guest_writable(False)
            if self.websocket is None:  # which counts what it queues
                self._queued_bytes = core.queued_bytes(self.number)
                self._count()

    def send_end(self, trailers: Headers) -> None:
        """End the response."""
        self.connection.core.send_end(self.number, trailers)

    def send_denial(self, verdict: Verdict, request_id: str) -> None:
        """Refuse with a whole response; with a status of its own for gRPC."""
        core, number = self.connection.core, self.number
        if self.head is not None and is_grpc(self.head.headers):
            core.send_fields(number, response_fields(200, grpc_denial(verdict, request_id), None), ended=True)
            return
        headers, body = denial_answer(verdict, request_id, () if self.head is None else self.head.headers)
        self.send_head(verdict.reason.status, headers, len(body))
        core.send_data(number, body)
        core.send_end(number)

    def abort(self) -> None:
        """Cut the response visibly: what the guest takes now goes out, then a reset, never an end."""
        self.connection.flush()
        self.connection.core.reset(self.number, INTERNAL_ERROR)

    def flush(self) -> None:
        """Send what was queued, together with what other streams queue in this turn."""
        self.connection.flush_soon()

    def drained(self) -> None:
        """The guest took most of what was queued."""
        self.full_at = 0.0
        self._queued_bytes = 0
        self._count()
        if self.exchange is not None:
            self.exchange.guest_writable(True)

    def pause_body(self) -> None:
        """Stop delivering the request's body: its window stays closed."""
        self.paused = True

    def resume_body(self) -> None:
        """Deliver it again."""
        if not self.paused:
            return
        self.paused = False
        if not self._behind:
            self._release()

    def _release(self) -> None:
        if len(self.held) > 1:
            self.held = join_data(self.held)
        while self.held and not (self.paused or self._behind):
            event = self.held.pop(0)
            if isinstance(event, StreamData):
                self._held_bytes -= len(event.data)
            self._deliver(event)
        if self._holding is not None:
            self._count()
        if self.exchange is not None:
            self.exchange.flush_upstream()
        self.flush()

    def finished(self) -> None:
        """The exchange is over: so is the stream, once its answer has gone out, and a WebSocket's is closed."""
        self.exchange = None
        if self._holding is not None:
            self._holding.close()
        if self.websocket is None:
            self.held = []
            self.connection.stream_done(self.number)
            return
        self._linger()
        self.resume_body()  # the guest may still have to answer our Close
        self.flush()

    # -- as a WebSocket (RFC 8441) -----------------------------------------------------------------------------------

    @property
    def read_ahead(self) -> bool:
        """Whether more came than the request."""
        return bool(self.held)

    def upgrade(self, websocket: WebSocketExchange, headers: Headers) -> None:
        """Say 200; from here on the stream is the WebSocket's connection."""
        self.websocket = websocket
        self.connection.core.send_fields(self.number, response_fields(200, headers, None), ended=False)
        self.paused = False
        self.flush()

    def close(self) -> None:
        """End our side behind what is queued, and leave the guest a moment to end its own."""
        self.connection.core.send_end(self.number)
        self._linger()
        self.flush()

    def end(self) -> None:
        """End both sides: now, what is queued and was not taken is lost."""
        core = self.connection.core
        if core.queued_bytes(self.number):
            core.reset(self.number, CANCEL)
        core.send_end(self.number)
        self.held = []
        self.connection.stream_done(self.number)

    def _linger(self) -> None:
        self.close_at = self.close_at or monotonic() + LINGER_S
