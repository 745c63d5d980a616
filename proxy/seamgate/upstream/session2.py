"""One HTTP/2 session to one upstream: a connection to a validated address that carries many exchanges, one a stream.

Opened by `upstream.connect` where ALPN agreed to h2, shared out by `upstream.pool` to exchanges of equal key. What one
exchange does (a guest that reads slowly, gives up, or is answered by nonsense) concerns its stream only.

Words: the session *lends* a stream to an exchange; the stream gets its number when its request is sent, because
numbers have to rise in the order of sending.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from seamgate.errors import (
    NotProcessed,
    Reason,
    SeamgateError,
    TlsFailed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from seamgate.protocol.coding import CODED_PIECE_BYTES
from seamgate.protocol.heads import ResponseHead
from seamgate.protocol.http2 import Http2Connection
from seamgate.protocol.http2_events import (
    ConnectionBroken,
    Event,
    GoingAway,
    SettingsChanged,
    StreamData,
    StreamEnd,
    StreamEvent,
    StreamHead,
    StreamMalformed,
    StreamReset,
    join_data,
)
from seamgate.protocol.http2_frames import CANCEL, NO_ERROR, PROTOCOL_ERROR, REFUSED_STREAM
from seamgate.streams import Transport
from seamgate.turns import Share
from seamgate.upload import HeldBytes
from seamgate.upstream.session2_stream import SessionStream
from seamgate.upstream.tls import describe_tls_error

if TYPE_CHECKING:
    from seamgate.exchange import Exchange

STREAM_WINDOW: Final = 256 * 1024
"""How much of one answer an upstream may send ahead of its guest: what a guest that does not read makes us hold."""
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
MOST_STREAMS: Final = 100
"""Streams at once on one session, whatever more the upstream permits: a lost connection costs them all."""
MOST_RESETS: Final = 300
"""A session on which so many streams were given up takes no more: a guest that floods its own would make the upstream
end the session for all (servers allow some 500 to 1,000)."""
MOST_ASKS: Final = 3
ASK_AGAIN_S: Final = 330.0
"""PINGs to an upstream that tells nothing meanwhile, and how far apart further ones are: a gRPC server takes more than
two within five minutes for a flood, and ends the session."""
LINGER_S: Final = 2.0
"""How long an upstream may take to end a WebSocket's stream."""
_numbers = itertools.count(1)


class Http2Session:
    """One connection. State: `lent` holds the streams that exchanges have; `_broken` once nothing may be sent.

    `_heard_at` is when anything came, `_told_at` when a piece of an answer did, `_begun_at` when a request was sent;
    `_asked_at` is when a PING was sent, and `_asks` how often that was since the upstream told anything. `_behind`
    while frames wait for a turn of the session's, which is many guests': then nothing is read.

    Attributes:
        budget: what guests that have enough make us hold is counted here, if anywhere.
    """

    def __init__(
        self,
        address: str,
        on_idle: Callable[[Http2Session], None],
        on_gone: Callable[[Http2Session], None],
        budget: HeldBytes | None = None,
    ) -> None:
        self.id = f"m{next(_numbers)}"
        self.address = address
        self.opened_at = self.active_at = self._heard_at = monotonic()
        self._told_at = self._begun_at = self._asked_at = 0.0
        self._asks = 0
        self._awaits_ping = False
        self.budget = budget
        self.exchanges = 0
        self.transport: Transport | None = None
        self.lent: set[SessionStream] = set()
        self.core = Http2Connection(
            server=False, clock=monotonic, stream_window=STREAM_WINDOW, connection_window=CONNECTION_WINDOW
        )
        self._streams: dict[int, SessionStream] = {}
        self._begun = False
        self._settled = False
        self._broken = False
        self._going_away = False
        self._blocked = False
        self._flush_due = False
        self._behind = False
        self._share = Share()
        self._resets = 0
        self._on_idle = on_idle
        self._on_gone = on_gone

    def __repr__(self) -> str:
        state = "broken" if self._broken else "going away" if self._going_away else "open"
        return f"<Http2Session {self.id} {self.address} {state} lent={len(self.lent)} exchanges={self.exchanges}>"

    @property
    def usable(self) -> bool:
        """Whether further streams may be lent, once there is room."""
        open_ = self.transport is not None and not self.transport.is_closing()
        return open_ and not (self._broken or self._going_away or self.core.exhausted or self._resets >= MOST_RESETS)

    @property
    def settling(self) -> bool:
        """Whether the upstream has not yet said how many streams it takes: one request may go ahead, no more."""
        return not self._settled and self.usable

    @property
    def connects(self) -> bool | None:
        """Whether the upstream takes extended CONNECT (RFC 8441); None until it has said so."""
        return self.core.peer_connects if self._settled else None

    @property
    def room(self) -> int:
        """How many further streams may be lent."""
        most = min(MOST_STREAMS, self.core.peer_most_streams) if self._settled else 1
        return most - len(self.lent)

    @property
    def takes_another(self) -> bool:
        """Whether a stream that is lent may begin now."""
        return self.usable and self.core.stream_count < self.core.peer_most_streams

    def lend(self) -> SessionStream:
        """Lend a stream; ask `usable` and `room` before."""
        stream = SessionStream(self, reused=self._begun)
        self._begun = True
        self.lent.add(stream)
        return stream

    def begin(self, stream: SessionStream, method: str) -> int:
        """Give a stream its number."""
        self.exchanges += 1
        self.active_at = self._begun_at = monotonic()
        number = self.core.open_stream(method)
        self._streams[number] = stream
        return number

    def returned(self, stream: SessionStream) -> None:
        """An exchange is done with its stream."""
        self.lent.discard(stream)
        self._streams.pop(stream.number, None)
        self._resets += self.core.reset(stream.number, CANCEL)  # if it is not over
        self._freed()

    def left(self, stream: SessionStream) -> None:
        """A WebSocket is over: the upstream has a moment to read what is queued and to end the stream."""
        self.lent.discard(stream)
        asyncio.get_running_loop().call_later(LINGER_S, self._give_up, stream)
        self._freed()

    def _read_over(self, stream: SessionStream, events: list[StreamEvent]) -> None:
        """Nobody wants what comes on a stream but its end."""
        for event in events:
            if isinstance(event, StreamData):
                self.core.consumed(stream.number, len(event.data))
            elif isinstance(event, StreamEnd) or event.ended:
                self._give_up(stream)

    def _give_up(self, stream: SessionStream) -> None:
        """End our side by a reset, as browsers do: servers are known to break at an end of what they have ended."""
        if self._streams.pop(stream.number, None) is not None and self.core.reset(stream.number, CANCEL):
            self.flush_soon()

    def _freed(self) -> None:
        """A stream is nobody's any more."""
        self.active_at = monotonic()
        self.flush_soon()
        if self.usable:
            self._on_idle(self)
        elif not self.lent:
            self.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Send what is queued at the end of this turn."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_late)

    def _flush_late(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self) -> None:
        """Send what the upstream takes now."""
        transport = self.transport
        if transport is None or self._blocked or transport.is_closing():
            return
        out = self.core.take_output()
        if out:
            transport.write(out)
        for number in self.core.take_drained():
            stream = self._streams.get(number)
            if stream is not None:
                stream.drained()

    def close(self) -> None:
        """Close politely; exchanges that have streams lose them."""
        if not self._broken:
            self._broken = True
            self.core.go_away(NO_ERROR)
            self.flush()
        if self.transport is not None:
            self.transport.close()
        self._on_gone(self)

    # -- as a protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """TLS is there."""
        self.transport = transport
        self.core.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Bytes of frames: each stream gets its own, in order, then its exchange is told that the batch is over."""
        core, share = self.core, self._share
        may = share.allowance
        core.left = 0 if self._behind else may
        self._heard_at = monotonic()
        self._handle(core.feed(data))
        if not self._behind and share.settle(may, core.left, self._read_on):
            self._behind = True
            if self.transport is not None and not self.transport.is_closing():
                self.transport.pause_reading()
        self.flush()

    def _read_on(self) -> None:
        """A later turn: go on with the frames that wait, then with reading."""
        self._behind = False
        self.data_received(b"")
        if not self._is_behind() and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _is_behind(self) -> bool:
        """A call, since compiled code takes what it once saw unset for unset."""
        return self._behind

    def _handle(self, events: list[Event]) -> None:
        batches: dict[SessionStream, list[StreamEvent]] = {}
        for event in events:
            if isinstance(event, StreamHead | StreamData | StreamEnd):
                stream = self._streams.get(event.stream)
                if stream is not None:
                    batches.setdefault(stream, []).append(event)
                continue
            for stream, batch in batches.items():
                self.deliver(stream, batch)
            batches = {}
            self._on_other(event)
        for stream, batch in batches.items():
            self.deliver(stream, batch)

    def deliver(self, stream: SessionStream, events: list[StreamEvent]) -> None:
        """Hand events to the exchange, behind those that are held, until it is over or its guest has enough."""
        exchange = stream.exchange
        if exchange is None:
            self._read_over(stream, events)
            return
        stream.held += events
        if len(stream.held) > 1:
            stream.held = join_data(stream.held)
        try:
            while stream.held and not (stream.reading_paused or stream.behind):
                self._hand_over(stream, exchange, stream.held.pop(0))
                if stream.exchange is not exchange:
                    return
            if stream.responding:
                stream.active_at = self._told_at = self._heard_at
            if stream.reading_paused or stream.behind or stream.counts:
                stream.count_held()
            exchange.on_flush()
        except SeamgateError as error:
            stream.refused(error)
        except Exception as error:  # noqa: BLE001 - fail closed: a fault of ours ends the exchange and is reported
            stream.refused(SeamgateError("a fault of the gateway"))
            asyncio.get_running_loop().call_exception_handler({"message": "session failed", "exception": error})

    def _hand_over_coded(self, stream: SessionStream, exchange: Exchange, data: bytes) -> None:
        """A piece that is decoded: little by little, as long as the guest's turn lasts; the rest in a later one."""
        share, place = exchange.share, 0
        while place < len(data) and stream.exchange is exchange:
            if share.left <= 0 or stream.is_paused():
                stream.held.insert(0, StreamData(stream.number, data[place:]))
                if share.left <= 0:
                    stream.behind = True
                    share.wait(stream.go_on)
                return
            piece = data[place : place + CODED_PIECE_BYTES]
            place += len(piece)
            exchange.on_data(piece)
            self.core.consumed(stream.number, len(piece))
        self.core.consumed(stream.number, len(data) - place)

    def _hand_over(self, stream: SessionStream, exchange: Exchange, event: StreamEvent) -> None:
        if isinstance(event, StreamData):
            if exchange.decodes_answer:
                self._hand_over_coded(stream, exchange, event.data)
                return
            exchange.on_data(event.data)
            self.core.consumed(stream.number, len(event.data))
        elif isinstance(event, StreamEnd):
            exchange.on_end(event.trailers)
        else:
            head = event.head
            assert isinstance(head, ResponseHead)
            stream.answered = True
            if head.status < 200:
                exchange.on_informational(head)
                return
            stream.responding = True
            exchange.on_head(head)
            if event.ended and stream.exchange is exchange:
                exchange.on_end(())

    def _on_other(self, event: Event) -> None:
        """What concerns the connection, or ends a stream."""
        if isinstance(event, StreamMalformed):
            stream = self._streams.get(event.stream)
            self.core.reset(event.stream, PROTOCOL_ERROR)
            if stream is not None:
                stream.lost(event.error)
        elif isinstance(event, StreamReset):
            stream = self._streams.get(event.stream)
            if stream is not None:
                stream.lost(_reset_error(event.code))
        elif isinstance(event, SettingsChanged):
            self._settled = True
            if self.usable:
                self._on_idle(self)
        elif isinstance(event, GoingAway):
            self._on_going_away(event)
        elif isinstance(event, ConnectionBroken):
            self._lose_all(event.error)

    def _on_going_away(self, event: GoingAway) -> None:
        """The upstream takes no more: streams above its last were not looked at, the others are still answered."""
        self._going_away = True
        for number, stream in list(self._streams.items()):
            if number > event.last:
                stream.answered = False
                stream.lost(NotProcessed("the upstream went away before it looked at the request"))
        if not self.lent:
            self.close()

    def _lose_all(self, error: SeamgateError) -> None:
        self.flush()
        self._broken = True
        for stream in list(self._streams.values()):
            stream.lost(error)
        if self.transport is not None:
            self.transport.close()
        self._on_gone(self)

    def eof_received(self) -> bool:
        """The upstream ended: what is not whole is cut."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._broken = True
        for stream in list(self._streams.values()):
            if isinstance(exc, ssl.SSLError):
                stream.lost(TlsFailed(f"the TLS session with the upstream broke: {describe_tls_error(exc)}"))
            else:
                message = "the upstream closed before its answer was complete"
                stream.lost(UpstreamError(message, reason=Reason.UPSTREAM_CLOSED))
        self._on_gone(self)

    def pause_writing(self) -> None:
        """The transport has enough: requests wait in their streams, which fill, one by one."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The transport takes more."""
        self._blocked = False
        self.flush()

    # -- time --------------------------------------------------------------------------------------------------------

    def sweep(self, now: float, response_timeout_s: float, ping_s: float) -> None:
        """End the streams whose upstream has been silent for too long; all of them, if it is not there any more."""
        if self._streams and not self._broken:
            self._check_alive(now, ping_s)
        for stream in list(self._streams.values()):
            if not stream.reading_paused and now - stream.active_at > response_timeout_s:
                stream.lost(UpstreamTimeout(f"silent for {response_timeout_s:g} s"))

    def _check_alive(self, now: float, ping_s: float) -> None:
        """Ask by a PING whether an upstream that somebody waits for, and that is silent, is still there."""
        if self._awaits_ping and self._heard_at < self._asked_at:
            if now - self._asked_at > ping_s:
                self._lose_all(UpstreamTimeout(f"does not answer a PING within {ping_s:g} s"))
            return
        self._awaits_ping = False
        if self._told_at > self._asked_at:
            self._asks = 0
        news = max(self._told_at, self._begun_at) > self._asked_at
        may_ask = (news and self._asks < MOST_ASKS) or now - self._asked_at > ASK_AGAIN_S
        if may_ask and now - max(self._heard_at, self._begun_at) > ping_s:
            self._awaits_ping = True
            self._asked_at = now
            self._asks += 1
            self.core.ping()
            self.flush_soon()


def _reset_error(code: int) -> SeamgateError:
    if code == REFUSED_STREAM:
        return NotProcessed("the upstream refused the stream before it looked at the request")
    if code in (PROTOCOL_ERROR, _HTTP_1_1_REQUIRED):
        return UpstreamProtocolError(f"the upstream reset the stream with code {code}")
    message = f"the upstream reset the stream with code {code} before its answer was complete"
    return UpstreamError(message, reason=Reason.UPSTREAM_CLOSED)


_HTTP_1_1_REQUIRED: Final = 0xD
