"""One HTTP/1.1 session to one upstream: a connection to a validated address that carries one exchange at a time.

Opened by `upstream.connect`, lent to exchanges by `upstream.pool`. It never goes back to the pool after an error, with
unread bytes, with a request that was not sent whole, or once the upstream asked for authentication that is bound to
the connection.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from seamgate.errors import Reason, SeamgateError, TlsFailed, UpstreamError
from seamgate.flow import Headers, Request
from seamgate.protocol.coding import CODED_PIECE_BYTES
from seamgate.protocol.heads import CHUNKED, ResponseHead, Trailers
from seamgate.protocol.http1 import write_chunk, write_last_chunk, write_request_head
from seamgate.protocol.http1_reader import NEED_DATA, ResponseReader
from seamgate.sides import UpstreamSide
from seamgate.streams import Transport, is_ending, write_to
from seamgate.turns import Share
from seamgate.upstream.pool_queue import Claim
from seamgate.upstream.tls import describe_tls_error

if TYPE_CHECKING:
    from seamgate.exchange import Exchange

_numbers = itertools.count(1)
# A Final of the module is read at once; an imported name is looked up each time.
_NEED_DATA: Final = NEED_DATA
_ResponseHead: Final = ResponseHead
_Trailers: Final = Trailers
_monotonic: Final = monotonic


class Session(UpstreamSide):
    """State: `exchange` is set while one is carried; `_broken` once nothing may be sent any more.

    `active_at` is what its time runs from: the last that was sent, and, once the final head is here, the last that
    came. Until then an upstream gains no time by 1xx responses or by a head that comes byte by byte.

    `_behind` while bytes wait for a turn of the guest's (`seamgate.turns`): then nothing is read, and what happens
    meanwhile waits in `_afterwards`. `_waits` once a turn was asked for: not while the guest has enough.

    Attributes:
        raw: set where HTTP is over (after a 101): takes all that comes from there on.
        claim: of the guest that it is lent to.
    """

    def __init__(self, address: str, on_idle: Callable[[Session], None], on_gone: Callable[[Session], None]) -> None:
        self.id = f"s{next(_numbers)}"
        self.address = address
        self.reused = False
        self.waited = False
        self.answered = False
        self.opened_at = _monotonic()
        self.active_at = self.opened_at
        self.exchanges = 0
        self.exchange: Exchange | None = None
        self.transport: Transport | None = None
        self.reading_paused = False
        self.raw: Callable[[bytes], None] | None = None
        self.claim: Claim | None = None
        self._share: Share | None = None
        self._behind = self._waits = False
        self._afterwards: list[Callable[[], object]] = []
        self._reader = ResponseReader()
        self._out: list[bytes] = []
        self._chunked = False
        self._responding = False
        self._broken = False
        self._keep_alive = True
        self._on_idle = on_idle
        self._on_gone = on_gone

    def __repr__(self) -> str:
        state = "broken" if self._broken else "active" if self.exchange is not None else "idle"
        return f"<Session {self.id} {self.address} {state} exchanges={self.exchanges}>"

    @property
    def usable(self) -> bool:
        """Whether another exchange may be put on it."""
        return not self._broken and self._keep_alive and self.transport is not None and not is_ending(self.transport)

    # -- what an exchange does with it -------------------------------------------------------------------------------

    def send_head(self, exchange: Exchange, request: Request, headers: Headers, query: str | None, body: int) -> None:
        """Begin a request: written from the model, never relayed. Its time runs from the `flush` that follows."""
        self.exchange = exchange
        self._share = exchange.share
        self.exchanges += 1
        self.answered = self._responding = False
        self._chunked = body == CHUNKED
        self._reader.expect(request.method)
        target = request.path if query is None else f"{request.path}?{query}"
        self._out.append(write_request_head(request.method, target, request.target.authority, headers, body))

    def send_data(self, data: bytes) -> None:
        """Send a piece of the body."""
        self._out.append(write_chunk(data) if self._chunked else data)

    def send_end(self, trailers: Headers) -> None:
        """End the request."""
        if self._chunked:
            self._out.append(write_last_chunk(trailers))

    def flush(self) -> None:
        """Hand what was queued to the transport, in one piece."""
        out = self._out
        if out and self.transport is not None:
            self.active_at = _monotonic()
            write_to(self.transport, out[0] if len(out) == 1 else b"".join(out))
        self._out = []

    def pause_reading(self) -> None:
        """The guest has enough."""
        if self.transport is not None and not self.reading_paused and not self.transport.is_closing():
            self.reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The guest takes more."""
        if self.transport is not None and self.reading_paused and not self.transport.is_closing():
            self.reading_paused = False
            self.active_at = _monotonic()
            if not self._behind:
                self.transport.resume_reading()
            elif not self._waits and self._share is not None:
                self._waits = True
                self._share.wait(self._read_on)

    def release(self, *, reusable: bool) -> None:
        """The exchange is done: back to the pool, or closed."""
        self.exchange = None
        unsent = bool(self._out) or (self.transport is not None and self.transport.get_write_buffer_size() > 0)
        self._out = []
        self.resume_reading()
        if reusable and self.usable and self._reader.between_messages and not unsent:
            self.active_at = _monotonic()
            self.reused = self.waited = True
            self._on_idle(self)
        else:
            self.discard()
        self._end_claim()

    def leave(self) -> None:
        """The WebSocket that it carried is over: close behind what it still has to send."""
        self.raw = self.exchange = None
        self.flush()
        self.close()
        self._end_claim()

    def _end_claim(self) -> None:
        claim, self.claim = self.claim, None
        if claim is not None:
            claim.end()

    def discard(self) -> None:
        """Close it; nothing is sent any more."""
        self._broken = True
        if self.transport is not None:
            self.transport.abort()
        self._on_gone(self)

    def close(self) -> None:
        """Close an idle session politely."""
        self._broken = True
        if self.transport is not None:
            self.transport.close()
        self._on_gone(self)

    # -- as a protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """TCP, and TLS if there is any, is there."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes of a response. Between exchanges nobody asked for any: the session is of no more use."""
        exchange = self.exchange
        if exchange is None:
            self.discard()
            return
        self.answered = True
        if self.raw is None:
            self._reader.feed(data)
            if not self._behind:
                self._read(exchange)
            return
        self.active_at = _monotonic()
        self.raw(data)

    def _read(self, exchange: Exchange) -> None:
        """Hand on what is here, as far as the guest's turn goes."""
        try:
            self._pump(exchange)
            if self.exchange is exchange and (self._responding or self._switched()):  # else `release` has told the time
                self.active_at = _monotonic()
            exchange.on_flush()
        except SeamgateError as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 - fail closed: a fault of ours ends the exchange and is reported
            self._lost(SeamgateError("a fault of the gateway"))
            asyncio.get_running_loop().call_exception_handler({"message": "session failed", "exception": error})

    def _read_on(self) -> None:
        """A later turn: go on with what waits, then with reading, or with what has happened meanwhile."""
        self._waits = False
        if self.reading_paused:
            return
        self._behind = False
        exchange = self.exchange
        if exchange is not None and self.raw is None:
            self._read(exchange)
        if self._is_behind():
            return
        afterwards, self._afterwards = self._afterwards, []
        for each in afterwards:
            each()
        if not self.reading_paused and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _is_behind(self) -> bool:
        """A call, since compiled code takes what it once saw unset for unset."""
        return self._behind

    def _pump(self, exchange: Exchange) -> None:
        """Hand the events that are here to the exchange, until it is over or its guest's turn is."""
        share, reader = exchange.share, self._reader
        may = reader.left = share.allowance
        self._hand_over(exchange, share)
        if self.exchange is None:
            share.spend(may - reader.left)
        elif share.settle(may, reader.left, self._read_on):
            self._behind = self._waits = True
            if self.transport is not None and not self.transport.is_closing():
                self.transport.pause_reading()

    def _hand_over(self, exchange: Exchange, share: Share) -> None:
        reader = self._reader
        while (reader.ends_here or (reader.left > 0 and share.left > 0)) and self.exchange is exchange:
            event = reader.next_event()
            if type(event) is bytes:
                exchange.on_data(event)
            elif event is _NEED_DATA:
                return
            elif type(event) is _ResponseHead:
                if event.status < 200:
                    exchange.on_informational(event)
                    if self.raw is not None:
                        rest = self._reader.take_rest()
                        if rest:
                            self.raw(rest)
                        return
                else:
                    self._responding = True
                    self._keep_alive = event.keep_alive and not event.connection_bound
                    exchange.on_head(event)
                    if exchange.decodes_answer:
                        reader.piece_bytes = CODED_PIECE_BYTES
            elif type(event) is _Trailers:
                exchange.on_end(event.headers)

    def _switched(self) -> bool:
        """Whether HTTP is over. A call, since compiled code takes what it once saw unset for unset."""
        return self.raw is not None

    def eof_received(self) -> bool:
        """The upstream ended cleanly: the end of a close-delimited body, or a cut."""
        if self._behind:
            self._afterwards.append(self._ended)
            return True
        self._ended_now()
        return False

    def _ended(self) -> None:
        """As `eof_received`, later."""
        self._ended_now()
        if self.transport is not None:
            self.transport.close()

    def _ended_now(self) -> None:
        exchange = self.exchange
        self._keep_alive = False
        if exchange is None:
            return
        try:
            end = self._reader.eof()
            if end is None:
                raise UpstreamError("the upstream closed before it answered", reason=Reason.UPSTREAM_CLOSED)
            exchange.on_end(end.headers)
            exchange.on_flush()
        except SeamgateError as error:
            self._lost(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._broken = True
        if self._behind and self.exchange is not None:
            self._afterwards.append(lambda: self.connection_lost(exc))
            return
        if isinstance(exc, ssl.SSLError):
            self._lost(TlsFailed(f"the TLS session with the upstream broke: {describe_tls_error(exc)}"))
        else:
            self._lost(
                UpstreamError("the upstream closed before its answer was complete", reason=Reason.UPSTREAM_CLOSED)
            )
        self._on_gone(self)

    def timed_out(self, error: SeamgateError) -> None:
        """The pool found that the upstream has been silent for too long."""
        self._lost(error)

    def _lost(self, error: SeamgateError) -> None:
        self._broken = True
        exchange = self.exchange
        if exchange is not None:
            exchange.on_session_lost(error)
        else:
            self.discard()

    def pause_writing(self) -> None:
        """The transport has enough."""
        if self.exchange is not None:
            self.exchange.upstream_writable(False)

    def resume_writing(self) -> None:
        """The transport takes more."""
        if self.exchange is not None:
            self.exchange.upstream_writable(True)
