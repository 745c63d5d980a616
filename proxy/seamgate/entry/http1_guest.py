"""A guest's HTTP/1.1 connection, over whatever stream its entry has: the guest's side of exchanges, one at a time.

Bytes -> reader -> head -> binding -> exchange; what the exchange answers is `seamgate.entry.http1_writer`'s to send.
CONNECT is handed to the entry. State: `_exchange` while one is under way; `_discarding` once nothing that the guest
sends matters any more; the reader knows how far the present request was read; `_behind` while what was read waits for a
turn of the guest's (`seamgate.turns`), then nothing more is read; `_late` is the head that said whose the connection
is, and waits for that guest's turn.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from seamgate.audit.parts import guest_part, refused_part
from seamgate.audit.record import AuditKind, AuditRecord, Decision, Outcome
from seamgate.entry.binding import Binding
from seamgate.entry.bound import Bound
from seamgate.entry.connections import Connections
from seamgate.entry.http1_writer import DRAINED_BYTES, Http1Writer
from seamgate.errors import GuestProtocolError, Reason, SeamgateError
from seamgate.exchange import Exchange
from seamgate.flow import BodyState, Guest, Headers, Request
from seamgate.protocol.heads import RequestHead, Trailers
from seamgate.protocol.http1 import write_response_head
from seamgate.protocol.http1_reader import NEED_DATA
from seamgate.protocol.websocket_handshake import WEBSOCKET, asks, parse_offer
from seamgate.protocol.work import ACCEPT, ENTRY
from seamgate.seam import Seam
from seamgate.streams import TlsStream, Transport
from seamgate.turns import Share
from seamgate.verdict import Verdict, denial_of
from seamgate.websocket_exchange import WebSocketExchange

PIPELINED_BYTES: Final = 65536
"""How much a guest may send ahead of its answer."""
LINGER_S: Final = 2.0
"""How long a connection that ends with a refusal stays open for the guest to read it."""

STRANGE_REFUSALS: Final = 8
"""Requests of nobody that one connection is told about, each with its record, before it is closed. A client that learns
by a 407 that it has to show a token needs one or two."""

OnConnect = Callable[["Http1Guest", RequestHead], None]
# A Final of the module is read at once; an imported name is looked up each time.
_NEED_DATA: Final = NEED_DATA
_RequestHead: Final = RequestHead
_Trailers: Final = Trailers
_Request: Final = Request
_monotonic: Final = monotonic
_PENDING: Final = BodyState.PENDING
_ABSENT: Final = BodyState.ABSENT


class Http1Guest(Http1Writer):
    """One connection of one guest."""

    def __init__(
        self, seam: Seam, binding: Binding, connections: Connections, on_connect: OnConnect | None = None
    ) -> None:
        super().__init__()
        self._keep_alive = not seam.retiring
        self.seam = seam
        self.binding = binding
        self.connections = connections
        self.exchanges = 0
        self.opened_at = self._begun_at = self._active_at
        self.on_closed: Callable[[Http1Guest], None] | None = None
        self._on_connect = on_connect
        self._exchange: Exchange | None = None
        self._websocket: WebSocketExchange | None = None
        self._body_paused = False
        self._reading_paused = False
        self._discarding = False
        self._drained_bytes = 0
        self._close_at = 0.0
        self._stuck_at = 0.0
        self._pumping = False
        self._counted = False
        self.whose: str | None = None
        guest = binding.guest
        self._share = seam.shares.of("" if guest is None else guest.id)
        self._sharer = "" if guest is None else guest.id
        self._behind = self._ended = False
        self._late: RequestHead | None = None
        self._strange = 0

    def __repr__(self) -> str:
        return f"<Http1Guest {self.binding.entry} exchanges={self.exchanges} {self._reader!r}>"

    @property
    def share(self) -> Share:
        """The guest's part of each turn."""
        return self._share

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self._exchange is None and self._reader.between_messages

    @property
    def awaited(self) -> bool:
        """Whether its first request is still to come, or one that came waits for a turn."""
        return not self._discarding and (not self.exchanges or self._behind)

    # -- as a protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """The stream is there."""
        self.transport = transport
        self.connections.add(self)
        if self.binding.guest is None:
            self._share = self.seam.shares.of_stranger(transport)
            self.connections.add_stranger(self)
        self._share.spend(ACCEPT)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        self._active_at = _monotonic()
        if self._websocket is not None:
            self._websocket.on_guest_data(data)
            return
        if self._discarding:
            return
        if self._exchange is None and self._reader.between_messages:
            self._begun_at = self._active_at
        self._reader.feed(data)
        self._pump()
        if self._reader.unread_bytes > PIPELINED_BYTES and not self._discarding:
            self._pause_reading()

    def eof_received(self) -> bool:
        """The guest sends no more. It may still read: the present exchange goes on, none follows."""
        if self._behind:
            self._ended = True
            return True
        self._keep_alive = False
        if self._websocket is not None:
            return self._websocket.awaits_close
        return self._exchange is not None and self._exchange.body_done

    def connection_lost(self, exc: Exception | None) -> None:
        """The guest is gone."""
        self._discarding = True
        self._forget()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_guest_gone()
        if self.on_closed is not None:
            on_closed, self.on_closed = self.on_closed, None
            on_closed(self)

    def pause_writing(self) -> None:
        """The guest reads too slowly."""
        self._stuck_at = _monotonic()
        if self._exchange is not None:
            self._exchange.guest_writable(False)

    def resume_writing(self) -> None:
        """The guest has caught up: so it may be given the next answer."""
        self._stuck_at = 0.0
        if self._exchange is not None:
            self._exchange.guest_writable(True)
        elif not self._discarding:
            self._pump()

    def check_deadline(self, now: float) -> None:
        """Close the connection if it is silent for longer than its present state allows."""
        limits = self.seam.limits
        silent_s = now - self._active_at
        if self._close_at:
            unsent = self.transport is not None and self.transport.get_write_buffer_size() > 0
            if now >= self._close_at + (limits.idle_timeout_s if unsent else 0.0):
                self._abort()
        elif self._stuck_at and now - self._stuck_at > limits.idle_timeout_s:
            self._fail_exchange(GuestProtocolError("the guest does not read its answer", reason=Reason.GUEST_TIMEOUT))
            self._abort()
        elif self._exchange is not None:
            waits_for_guest = not self._exchange.body_done and not self._body_paused
            if waits_for_guest and silent_s > limits.body_timeout_s:
                self._exchange.fail(GuestProtocolError("the body stopped coming", reason=Reason.GUEST_TIMEOUT))
        elif self._reader.between_messages:
            if silent_s > limits.idle_timeout_s:
                self.close()
        elif now - self._begun_at > (limits.head_timeout_s if self._reader.in_head else limits.body_timeout_s):
            # Counted from its first byte: a head, or the rest of a refused body, gains no time by coming in bits.
            self._refuse_stream(GuestProtocolError("the request did not come whole", reason=Reason.GUEST_TIMEOUT))

    # -- reading -----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Take events from the reader as long as there is somebody to take them, and a turn. Not reentrant."""
        if self._pumping or self._behind:
            return
        self._pumping = True
        reader = self._reader
        may = reader.left = self._share.allowance
        try:
            if self._late is not None and not self._discarding:
                late, self._late = self._late, None
                self._begin(late)
            while (reader.ends_here or (reader.left > 0 and self._share.left > 0)) and self._step():
                pass
            if self._exchange is not None:
                self._exchange.flush_upstream()
        except GuestProtocolError as error:
            self._refuse_stream(error)
        except SeamgateError as error:
            self._fail_exchange(error)
        except Exception as error:  # noqa: BLE001 - fail closed: a fault of ours denies, is audited and is reported
            self._fail_exchange(SeamgateError("a fault of the gateway", reason=Reason.INTERNAL_ERROR))
            asyncio.get_running_loop().call_exception_handler({"message": "connection failed", "exception": error})
        finally:
            self._pumping = False
        share = self._share  # of the guest, where the head has said who it is
        behind = reader.left <= 0 or share.left <= 0 or self._late is not None
        share.spend(may - reader.left)
        if behind and not self._discarding:
            share.wait(self._read_on)
            self._behind = True
            self._pause_reading()
        self.flush()

    def _read_on(self) -> None:
        """A later turn: go on with what waits, then with reading, or with the end that came meanwhile."""
        self._behind = False
        self._active_at = _monotonic()
        self._pump()
        if self._ended and not self._is_behind():
            self._ended = False
            if not self.eof_received() and self.transport is not None:
                self.transport.close()
        if not self._body_paused and (self._discarding or self._reader.unread_bytes <= PIPELINED_BYTES):
            self._resume_reading()

    def _is_behind(self) -> bool:
        """A call, since compiled code takes what it once saw unset for unset."""
        return self._behind

    def _step(self) -> bool:
        """Handle one event; False if there is none, or nobody to take it now."""
        exchange = self._exchange
        if self._discarding or self._body_paused or self._late is not None or (self._stuck_at and exchange is None):
            return False
        event = self._reader.next_event()
        if event is _NEED_DATA:
            return False
        if type(event) is bytes:
            if exchange is not None:
                exchange.on_body(event)
            else:
                self._drain(event)
        elif type(event) is _RequestHead:
            self._begin(event)
        elif type(event) is _Trailers:
            if exchange is not None:
                exchange.on_body_end(event.headers)
            else:
                self._reader.start_next()
        return True

    def _begin(self, head: RequestHead) -> None:
        """A request: bind it, and let its exchange judge it; once it is its guest's turn."""
        if not self._sharer and not self._enter(head):
            self._late = head
            return
        self._head = head
        self._keep_alive = self._keep_alive and head.keep_alive
        self.exchanges += 1
        if head.method == "CONNECT":
            self._connect(head)
            return
        try:
            bound = self.binding.bind(head)
        except GuestProtocolError as error:
            self._refuse_head(head, error)
            return
        self.connections.strangers.pop(self, None)
        if self._sharer != bound.guest.id:
            self._sharer = bound.guest.id
            self._share = self.seam.shares.of(self._sharer)
        if not self._counted and not self._count(head, bound.guest):
            return
        if head.upgrade is not None:
            self._begin_upgrade(head, bound)
            return
        exchange = self._exchange_for(head, bound)
        self._exchange = exchange
        exchange.start()

    def _enter(self, head: RequestHead) -> bool:
        """Find out whose the connection is, whose share has all that follows; False if it is others' turn."""
        guest = self.binding.whose(head)
        if guest is None:
            return True  # it is refused, in the turn of those that are nobody
        self._share.spend(ENTRY)
        self._sharer = guest.id
        self._share = self.seam.shares.of(guest.id)
        return self._share.left > 0

    def _count(self, head: RequestHead, guest: Guest) -> bool:
        """Count the connection as this guest's, unless the tunnel that it is in does; False: it has too many."""
        if self.on_closed is None:
            full = self.connections.too_many(guest.id)
            if full is not None:
                self._keep_alive = False
                self._refuse_head(head, GuestProtocolError(full.message, reason=full.reason))
                return False
            self.connections.enter(guest.id)
            self.whose = guest.id
        self._counted = True
        return True

    def _begin_upgrade(self, head: RequestHead, bound: Bound) -> None:
        """A request that asks for another protocol: it may become a WebSocket; every other one is refused."""
        try:
            if not asks(head):
                raise GuestProtocolError("the only upgrade is to WebSocket", reason=Reason.UPGRADE_REFUSED)
            offer = parse_offer(head)
        except GuestProtocolError as error:
            self._exchange = refused = self._exchange_for(head, bound)
            refused.start(denial_of(error))
            return
        request = self._request_for(head, bound, WEBSOCKET)
        exchange = WebSocketExchange(self.seam, self, request, entry=self.binding.entry, offer=offer)
        self._exchange = exchange
        exchange.start()

    def _connect(self, head: RequestHead) -> None:
        try:
            if self._on_connect is None:
                raise GuestProtocolError("CONNECT is not for here", reason=Reason.METHOD_REFUSED)
            self._on_connect(self, head)
        except GuestProtocolError as error:
            self._refuse_head(head, error)

    def _exchange_for(self, head: RequestHead, bound: Bound) -> Exchange:
        request = self._request_for(head, bound, "")
        return Exchange(
            self.seam, self, request, entry=self.binding.entry, body=head.body, expects_continue=head.expect_continue
        )

    def _request_for(self, head: RequestHead, bound: Bound, upgrade: str) -> Request:
        seam = self.seam
        now = seam.clock()
        return _Request(
            seam.new_id(now),
            bound.guest,
            bound.target,
            head.method,
            bound.path,
            bound.query,
            head.headers,
            None,
            _PENDING if head.body else _ABSENT,
            now,
            upgrade,
        )

    def _drain(self, data: bytes) -> None:
        """Read over the rest of a refused request."""
        self._drained_bytes += len(data)
        if self._drained_bytes > DRAINED_BYTES:
            self._linger()

    # -- refusals without an exchange --------------------------------------------------------------------------------

    def refuse_connect(self, verdict: Verdict, record: AuditRecord) -> None:
        """Refuse a CONNECT: its record is the entry's. What came after it was for the tunnel, and is no request."""
        self._keep_alive = self._keep_alive and not self.read_ahead
        self.seam.requests_total += 1
        self.seam.denied_total += 1
        self.seam.record(record, denied=True)
        self.send_denial(verdict, record.id)
        self.finished()

    def _refuse_head(self, head: RequestHead, error: GuestProtocolError) -> None:
        """Refuse a well-formed request that has no valid target, or nobody to ask for it."""
        if not self._sharer:
            self._strange += 1
            self._keep_alive = self._keep_alive and self._strange < STRANGE_REFUSALS
        self._refuse(error, head)
        self.finished()

    def _refuse_stream(self, error: GuestProtocolError) -> None:
        """The guest broke the protocol: nothing that follows can be trusted."""
        if self._discarding:
            return
        self._keep_alive = False
        exchange = self._exchange
        if exchange is not None:
            exchange.fail(error)
        else:
            self._refuse(error, None)
        self._linger()

    def _fail_exchange(self, error: SeamgateError) -> None:
        self._keep_alive = False
        exchange = self._exchange
        if exchange is not None:
            exchange.fail(error)
        self._linger()

    def _refuse(self, error: GuestProtocolError, head: RequestHead | None) -> None:
        seam = self.seam
        seam.requests_total += 1
        seam.denied_total += 1
        guest: Guest | None = self.binding.whose(head)
        verdict = denial_of(error)
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
        self.send_denial(verdict, record.id)

    # -- the guest's side of an exchange -----------------------------------------------------------------------------

    def abort(self) -> None:
        """Cut the response visibly: what was queued goes out, its end does not."""
        self._keep_alive = False
        self._discarding = True
        self._close_soon()
        self._close_at = _monotonic() + LINGER_S  # a guest that does not read would keep it open for ever
        self.flush()
        transport = self.transport
        if transport is None:
            return
        if self._until_close:
            _reset(transport)  # for a close-delimited body only a reset is not an end
        elif isinstance(transport, TlsStream):
            transport.cut()
        else:
            transport.close()

    def pause_body(self) -> None:
        """Stop delivering the request's body."""
        self._body_paused = True
        self._pause_reading()

    def resume_body(self) -> None:
        """Deliver it again."""
        if self._body_paused:
            self._body_paused = False
            self._resume_reading()
            self._pump()

    def finished(self) -> None:
        """The exchange is over: close, read over what is left of its request, or take the next one."""
        exchange, self._exchange = self._exchange, None
        self._body_paused = False
        whole = self._reader.message_done or (self._head is not None and self._head.body == 0)
        self._head = None
        self._drained_bytes = 0
        answered = bool(self._out)
        self.flush()
        self._begun_at = self._active_at if answered else _monotonic()
        if self._websocket is not None:
            self._linger()  # the guest may still have to answer our Close
            return
        if self._discarding:
            return
        if not self._keep_alive:
            if whole and not self._reader.unread_bytes:
                self.close()
            else:
                self._linger()
            return
        if self._reader.message_done:
            self._reader.start_next()
        self._resume_reading()
        if exchange is not None and self._reader.unread_bytes and not self._pumping:
            asyncio.get_running_loop().call_soon(self._pump)

    # -- the stream --------------------------------------------------------------------------------------------------

    @property
    def read_ahead(self) -> bool:
        """Whether more was read than the present head."""
        return self._reader.unread_bytes > 0

    def upgrade(self, websocket: WebSocketExchange, headers: Headers) -> None:
        """Pass on the 101; from here on all that comes is frames, and goes to the exchange."""
        self._websocket = websocket
        self._keep_alive = self._chunked = self._until_close = False
        self._out.append(write_response_head(101, headers, None, keep_alive=True))
        self.flush()

    def take_over(self) -> Transport:
        """Give the stream away, for a tunnel; nothing may have been read ahead."""
        assert self.transport is not None
        self.flush()
        self._discarding = True
        self._forget()
        return self.transport

    def _forget(self) -> None:
        self.connections.forget(self)
        if self.whose is not None:
            self.connections.leave(self.whose)
            self.whose = None

    def drain(self, *, patient: bool = False) -> None:
        """The gateway stops: close now if idle, unless it is patient, else after the present exchange."""
        self._keep_alive = False
        if self._websocket is not None:
            self._websocket.on_drain()
        elif self.idle and not patient:
            self.close()

    def revoke(self, verdict: Verdict) -> None:
        """The tunnel that this connection is in was revoked: end what is under way, and close."""
        self._keep_alive = False
        if self._exchange is not None:
            self._exchange.refuse(verdict)
        if not self._discarding:
            self.close()
        self._close_at = self._close_at or monotonic() + LINGER_S

    def close(self) -> None:
        """Send what is queued, then close."""
        self._discarding = True
        self.connections.strangers.pop(self, None)
        self._close_soon()
        self.flush()
        if self.transport is not None:
            self.transport.close()

    def _abort(self) -> None:
        self._discarding = True
        if self.transport is not None:
            self.transport.abort()

    def _linger(self) -> None:
        """Read on without looking, so that closing does not reset what the guest has not read yet."""
        self.flush()
        self._discarding = True
        self._resume_reading()
        self._close_soon()

    def _close_soon(self) -> None:
        """Have the sweep end the connection if it does not end by itself: a guest that reads nothing must not stay."""
        if not self._close_at:
            self._close_at = _monotonic() + LINGER_S

    def _pause_reading(self) -> None:
        if not self._reading_paused and self.transport is not None and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._behind:
            return
        if self._reading_paused and self.transport is not None and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()


def _reset(transport: Transport) -> None:
    """Close with RST instead of FIN; what is queued is lost. TLS without close_notify is a cut in itself."""
    below = transport.get_extra_info("socket")
    if below is not None:
        below.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
