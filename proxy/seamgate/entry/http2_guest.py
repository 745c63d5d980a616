"""A guest's HTTP/2 connection: many exchanges at once, each with a guest's side of its own, a stream (`http2_stream`).

Bytes -> `protocol.http2` -> event -> stream -> exchange; what the exchanges of one turn of the loop answer leaves in
one piece. Each request is bound, judged, given credentials, inspected and audited by itself; what one does wrong ends
its stream only, what breaks the connection ends this guest's connection only.

Time: a connection is idle since its last request or answer, whatever PINGs come; a frame or field block that is half
here has its time from its first byte.

State: `_streams` holds those whose exchange is under way; `_blocked` while the transport takes no more, then answers
wait in the queues of their streams; `_discarding` once nothing that the guest sends matters any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from seamgate.audit.parts import guest_part, refused_part
from seamgate.audit.record import AuditKind, AuditRecord, Decision, Outcome
from seamgate.entry.binding import Binding
from seamgate.entry.bound import Bound
from seamgate.entry.connections import Connections
from seamgate.entry.http1_guest import LINGER_S
from seamgate.entry.http2_stream import Http2Stream
from seamgate.errors import GuestProtocolError, ProtocolError, Reason, SeamgateError
from seamgate.exchange import Exchange
from seamgate.flow import BodyState, Request
from seamgate.protocol.heads import RequestHead
from seamgate.protocol.http2 import Http2Connection
from seamgate.protocol.http2_events import (
    ConnectionBroken,
    Event,
    StreamData,
    StreamEnd,
    StreamHead,
    StreamMalformed,
    StreamReset,
)
from seamgate.protocol.http2_frames import INTERNAL_ERROR, NO_ERROR
from seamgate.protocol.websocket_handshake import WEBSOCKET, parse_extended_offer
from seamgate.seam import Seam
from seamgate.streams import Transport
from seamgate.verdict import Verdict, denial_of
from seamgate.websocket_exchange import WebSocketExchange

STREAM_WINDOW: Final = 65535
"""How much of one request's body a guest may send ahead of its upstream."""
CONNECTION_WINDOW: Final = 1 << 20
"""The same for all requests of one connection: what a guest can make us hold."""
UNSENT_BYTES: Final = 256 * 1024
"""A guest that reads nothing is not read any more once so much waits for it."""


class Http2Guest:
    """One connection of one guest. State: `_behind` while frames wait for a turn: then nothing is read."""

    def __init__(self, seam: Seam, binding: Binding, connections: Connections) -> None:
        self.seam = seam
        self.binding = binding
        self.connections = connections
        self.transport: Transport | None = None
        self.exchanges = 0
        self.whose: str | None = None  # what a reload ends is the tunnel
        self.opened_at = self._active_at = self._begun_at = monotonic()
        self.on_closed: Callable[[Http2Guest], None] | None = None
        self.core = Http2Connection(
            server=True,
            clock=monotonic,
            most_streams=seam.limits.streams,
            stream_window=STREAM_WINDOW,
            connection_window=CONNECTION_WINDOW,
        )
        guest = binding.guest
        self.share = seam.shares.of("" if guest is None else guest.id)
        self._behind = False
        self._streams: dict[int, Http2Stream] = {}
        self._blocked_at = 0.0
        self._reading_paused = False
        self._discarding = False
        self._flush_due = False
        self._close_at = 0.0

    def __repr__(self) -> str:
        return f"<Http2Guest {self.binding.entry} exchanges={self.exchanges} open={len(self._streams)}>"

    @property
    def idle(self) -> bool:
        """Whether no request is under way and every answer has gone out."""
        return not self._streams and not self.core.stream_count

    @property
    def awaited(self) -> bool:
        """Whether its first request is still to come, or one that came waits for a turn."""
        return not self._discarding and (not self.exchanges or self._behind)

    # -- as a protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """The stream is there."""
        self.transport = transport
        self.connections.add(self)
        self.core.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Bytes of frames."""
        if self._discarding:
            return
        touched: set[int] = set()
        core, share = self.core, self.share
        may = share.allowance
        core.left = 0 if self._behind else may
        whole, fresh = core.whole_total, core.between_frames
        for event in core.feed(data):
            self._on_event(event, touched)
        if fresh or core.whole_total != whole:
            self._begun_at = monotonic()
        for number in touched:
            stream = self._streams.get(number)
            if stream is not None and stream.exchange is not None:
                stream.exchange.flush_upstream()
        if not (self._behind or self._discarding) and share.settle(may, core.left, self._read_on):
            self._behind = True
            self._pause_reading()
        self.flush()
        if self._blocked_at and self.core.output_bytes > UNSENT_BYTES:
            self._pause_reading()

    def _read_on(self) -> None:
        """A later turn: go on with the frames that wait, then with reading."""
        self._behind = False
        self.data_received(b"")
        if not self._blocked_at or self.core.output_bytes <= UNSENT_BYTES:
            self._resume_reading()

    def eof_received(self) -> bool:
        """The guest sends no more, so it can't open windows: what is not out yet can't be relied on to go out."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The guest is gone."""
        self._discarding = True
        self.connections.forget(self)
        for stream in list(self._streams.values()):
            if stream.exchange is not None:
                stream.exchange.on_guest_gone()
        if self.on_closed is not None:
            on_closed, self.on_closed = self.on_closed, None
            on_closed(self)

    def pause_writing(self) -> None:
        """The guest reads too slowly: answers wait in their streams, which fill, one by one."""
        self._blocked_at = monotonic()

    def resume_writing(self) -> None:
        """The guest has caught up."""
        self._blocked_at = 0.0
        self._resume_reading()
        self.flush()

    # -- events ------------------------------------------------------------------------------------------------------

    def _on_event(self, event: Event, touched: set[int]) -> None:
        """Handle one event; a fault of ours ends its exchange, or the connection, and is reported."""
        try:
            if isinstance(event, StreamHead):
                self._begin(event)
                touched.add(event.stream)
            elif isinstance(event, StreamData | StreamEnd):
                stream = self._streams.get(event.stream)
                if stream is not None:
                    stream.on_event(event)
                    touched.add(event.stream)
            elif isinstance(event, StreamMalformed):
                self._on_malformed(event)
            elif isinstance(event, StreamReset):
                stream = self._streams.get(event.stream)
                if stream is not None:
                    stream.gone()
            elif isinstance(event, ConnectionBroken):
                self._on_broken(event.error)
        except Exception as error:  # noqa: BLE001 - fail closed: a fault of ours ends all, is audited and is reported
            self._on_broken(SeamgateError("a fault of the gateway", reason=Reason.INTERNAL_ERROR))
            asyncio.get_running_loop().call_exception_handler({"message": "connection failed", "exception": error})

    def _begin(self, event: StreamHead) -> None:
        """A request: bind it, and let its exchange judge it."""
        head = event.head
        assert isinstance(head, RequestHead)
        self.exchanges += 1
        self._active_at = monotonic()
        stream = Http2Stream(self, event.stream, head)
        try:
            bound = self.binding.bind(head)
        except GuestProtocolError as error:
            self._refuse(stream, error)
            return
        self._streams[event.stream] = stream
        if head.upgrade is not None:
            self._begin_websocket(stream, head, bound)
            return
        exchange = stream.exchange = Exchange(
            self.seam,
            stream,
            self._request_for(head, bound),
            entry=self.binding.entry,
            body=head.body,
            expects_continue=head.expect_continue,
        )
        exchange.guarded(exchange.start)

    def _begin_websocket(self, stream: Http2Stream, head: RequestHead, bound: Bound) -> None:
        """An extended CONNECT: what comes before it is answered waits."""
        stream.paused = True
        request = self._request_for(head, bound)
        entry = self.binding.entry
        exchange: Exchange
        try:
            offer = parse_extended_offer(head)
        except GuestProtocolError as error:
            denial = denial_of(error)
            exchange = stream.exchange = Exchange(
                self.seam, stream, request, entry=entry, body=0, expects_continue=False
            )
            exchange.guarded(lambda: exchange.start(denial))
            return
        exchange = stream.exchange = WebSocketExchange(self.seam, stream, request, entry=entry, offer=offer)
        exchange.guarded(exchange.start)

    def _request_for(self, head: RequestHead, bound: Bound) -> Request:
        seam = self.seam
        upgrades = head.upgrade is not None
        return Request(
            seam.new_id(),
            bound.guest,
            bound.target,
            head.method,
            bound.path,
            bound.query,
            head.headers,
            None,
            BodyState.PENDING if head.body and not upgrades else BodyState.ABSENT,
            seam.clock(),
            WEBSOCKET if upgrades else "",
        )

    def _on_malformed(self, event: StreamMalformed) -> None:
        stream = self._streams.get(event.stream)
        if stream is not None and stream.exchange is not None:
            stream.exchange.fail(event.error)
        else:
            self.exchanges += 1
            self._refuse(Http2Stream(self, event.stream, None), event.error)

    def _on_broken(self, error: SeamgateError) -> None:
        """Nothing that follows can be trusted: every exchange ends, or the breach itself is recorded."""
        if self._discarding:
            return
        self._discarding = True
        under_way = list(self._streams.values())
        for stream in under_way:
            if stream.exchange is not None:
                stream.exchange.fail(error)
        if not under_way:
            self._record(denial_of(error), None)
        self.core.go_away(INTERNAL_ERROR)
        self._resume_reading()
        self._close_at = monotonic() + LINGER_S

    def _refuse(self, stream: Http2Stream, error: ProtocolError) -> None:
        """Refuse a request that is malformed, has no valid target, or is nobody's."""
        verdict = denial_of(error)
        request_id = self._record(verdict, stream.head)
        stream.send_denial(verdict, request_id)
        self.core.finish(stream.number)

    def _record(self, verdict: Verdict, head: RequestHead | None) -> str:
        """Write the record of what never became an exchange; return its id."""
        seam, guest = self.seam, self.binding.whose(head)
        seam.requests_total += 1
        seam.denied_total += 1
        record = AuditRecord(
            time=seam.clock(),
            kind=AuditKind.REQUEST,
            id=seam.new_id(),
            guest=None if guest is None else guest_part(guest),
            entry=self.binding.entry,
            request=refused_part("" if head is None else head.method, self.binding.place(head)),
            verdict=Decision.DENY,
            reason=verdict.reason,
            message=verdict.message,
            status=verdict.reason.status,
            outcome=Outcome.DENIED,
            generation=seam.pipeline.generation,
        )
        seam.record(record, denied=True)
        return record.id

    # -- writing -----------------------------------------------------------------------------------------------------

    def stream_done(self, number: int) -> None:
        """An exchange is over."""
        self._streams.pop(number, None)
        self._active_at = monotonic()
        self.core.finish(number)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send what is queued at the end of this turn."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_late)

    def _flush_late(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self) -> None:
        """Send what the guest takes now."""
        transport = self.transport
        if transport is None or self._blocked_at or transport.is_closing():
            return
        answering = self.core.stream_count
        out = self.core.take_output()
        if out:
            if answering:
                self._active_at = monotonic()
            transport.write(out)
        for number in self.core.take_drained():
            stream = self._streams.get(number)
            if stream is not None:
                stream.drained()
        if self.core.going_away and not self._discarding and self.idle:
            self.close()

    # -- time and ends -----------------------------------------------------------------------------------------------

    def check_deadline(self, now: float) -> None:
        """End what is silent for longer than its present state allows."""
        limits = self.seam.limits
        if self._close_at:
            if now >= self._close_at:
                self._abort()
        elif self._blocked_at and now - self._blocked_at > limits.idle_timeout_s:
            self._on_broken(GuestProtocolError("the guest does not read its answers", reason=Reason.GUEST_TIMEOUT))
            self._abort()
        elif self._late(now):
            self._on_broken(GuestProtocolError("the request did not come whole", reason=Reason.GUEST_TIMEOUT))
            self.flush()
        elif self._streams:
            self._check_streams(now)
        elif self.core.between_frames and now - self._active_at > limits.idle_timeout_s:
            self.close()

    def _late(self, now: float) -> bool:
        """Whether a frame, or a field block, did not come whole in its time, counted from its first byte."""
        core, limits = self.core, self.seam.limits
        if core.between_frames or self._reading_paused:
            return False
        return now - self._begun_at > (limits.head_timeout_s if core.in_head else limits.body_timeout_s)

    def _check_streams(self, now: float) -> None:
        limits = self.seam.limits
        for stream in list(self._streams.values()):
            exchange = stream.exchange
            if exchange is None:
                if stream.close_at and now >= stream.close_at:
                    stream.end()
                continue
            waits_for_guest = not exchange.body_done and not stream.paused
            patience_s = limits.response_timeout_s if stream.lasting else limits.body_timeout_s
            if waits_for_guest and now - stream.active_at > patience_s:
                exchange.fail(GuestProtocolError("the body stopped coming", reason=Reason.GUEST_TIMEOUT))
            elif stream.full_at and now - stream.full_at > limits.idle_timeout_s:
                exchange.fail(GuestProtocolError("the guest does not read its answer", reason=Reason.GUEST_TIMEOUT))

    def drain(self, *, patient: bool = False) -> None:
        """The gateway stops: take no new stream, close once those under way are over; end WebSockets.

        `patient`: only say so. A guest that has not heard it yet may open streams; none of them is refused.
        """
        for stream in list(self._streams.values()):
            if stream.websocket is not None:
                stream.websocket.on_drain()
        if patient:
            self.core.warn()
        else:
            self.core.go_away(NO_ERROR)
        self.flush()

    def revoke(self, verdict: Verdict) -> None:
        """The tunnel that this connection is in was revoked: end what is under way, and close."""
        for stream in list(self._streams.values()):
            if stream.exchange is not None:
                stream.exchange.refuse(verdict)
        self.close()
        self._close_at = self._close_at or monotonic() + LINGER_S

    def close(self) -> None:
        """Send what the guest takes now, then close."""
        if not self._discarding:
            self._discarding = True
            self.core.go_away(NO_ERROR)
            self.flush()
        if self.transport is not None:
            self.transport.close()

    def _abort(self) -> None:
        self._discarding = True
        if self.transport is not None:
            self.transport.abort()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self.transport is not None and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._behind:
            return
        if self._reading_paused and self.transport is not None and not self.transport.is_closing():
            self._reading_paused = False
            self._begun_at = monotonic()
            self.transport.resume_reading()
