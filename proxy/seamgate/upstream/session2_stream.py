"""One stream of an HTTP/2 session, as it is lent to one exchange: the upstream's side of that exchange.

Made by `upstream.session2` when it lends one; called by it with what came, and by the exchange with what goes up.
Reads no frames: windows and states are `protocol.http2`'s.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from seamgate.errors import SeamgateError
from seamgate.flow import Headers, Request
from seamgate.grpc import is_grpc
from seamgate.holding import Holding
from seamgate.protocol.heads import CHUNKED
from seamgate.protocol.http2_events import StreamData, StreamEnd, StreamEvent, StreamHead
from seamgate.protocol.http2_fields import request_fields
from seamgate.sides import UpstreamSide
from seamgate.upstream.pool_queue import Claim

if TYPE_CHECKING:
    from seamgate.exchange import Exchange
    from seamgate.upstream.session2 import Http2Session


class SessionStream(UpstreamSide):
    """A stream as it is lent to one exchange. State: `number` is 0 until the request is sent.

    `active_at` is what its time runs from: the last that was sent, and, once the final head is here (`responding`), the
    last that came. 1xx responses gain an upstream no time. `behind` while an answer that is decoded waits for a turn of
    its guest's, in `held`.
    """

    __slots__ = (
        "_holding", "active_at", "behind", "claim", "exchange", "full", "held", "number", "over", "reading_paused",
        "responding", "session",
    )  # fmt: skip

    def __init__(self, session: Http2Session, *, reused: bool) -> None:
        self.session = session
        self.id = session.id
        self.address = session.address
        self.reused = self.waited = reused
        self.answered = self.responding = False
        self.number = 0
        self.exchange: Exchange | None = None
        self.active_at = monotonic()
        self.reading_paused = False
        self.behind = False
        self.full = False
        self.over = False
        self.held: list[StreamEvent] = []
        self._holding: Holding | None = None
        self.claim: Claim | None = None

    def __repr__(self) -> str:
        return f"<SessionStream {self.id}/{self.number} {self.address}>"

    @property
    def connects(self) -> bool:
        """Whether a WebSocket may be opened on it."""
        return self.session.connects is True

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it: the upstream may have changed its mind about how many."""
        return not self.over and self.session.takes_another

    # -- what an exchange does with it -------------------------------------------------------------------------------

    def send_head(self, exchange: Exchange, request: Request, headers: Headers, query: str | None, body: int) -> None:
        """Begin a request: written from the model, never relayed."""
        self.exchange = exchange
        self.active_at = monotonic()
        target = request.path if query is None else f"{request.path}?{query}"
        method = "CONNECT" if request.upgrade else request.method  # RFC 8441 4
        fields = request_fields(
            method,
            request.target.scheme,
            request.target.authority,
            target,
            headers,
            CHUNKED if request.upgrade else body,
            trailers=is_grpc(request.headers),
            protocol=request.upgrade,
        )
        self.number = self.session.begin(self, method)
        self.session.core.send_fields(self.number, fields, ended=body == 0 and not request.upgrade)

    def send_data(self, data: bytes) -> None:
        """Send a piece of the body, as far as the upstream's windows permit; queue the rest."""
        core = self.session.core
        core.send_data(self.number, data)
        if not self.full and core.is_full(self.number):
            self.full = True
            if self.exchange is not None:
                self.exchange.upstream_writable(False)

    def send_end(self, trailers: Headers) -> None:
        """End the request."""
        self.session.core.send_end(self.number, trailers)

    def flush(self) -> None:
        """Send what was queued, together with what other exchanges queue in this turn."""
        self.active_at = monotonic()
        self.session.flush_soon()

    def pause_reading(self) -> None:
        """The guest has enough: this stream's window stays closed."""
        self.reading_paused = True

    def resume_reading(self) -> None:
        """The guest takes more."""
        if not self.reading_paused:
            return
        self.reading_paused = False
        self.active_at = monotonic()
        if self.held:
            self.session.deliver(self, [])
            self.session.flush_soon()  # the windows that this opened

    def go_on(self) -> None:
        """A later turn: hand over what waits."""
        self.behind = False
        if self.exchange is not None:
            self.session.deliver(self, [])
            self.session.flush_soon()

    def is_paused(self) -> bool:
        """A call, since compiled code takes what it once saw unset for unset."""
        return self.reading_paused

    def release(self, *, reusable: bool) -> None:
        """The exchange is done with it; a stream that is not over is given up."""
        if self._end():
            self.session.returned(self)

    def leave(self) -> None:
        """The WebSocket that it carried is over: what is queued still goes out, and the upstream may end the stream."""
        if self._end():
            self.session.left(self)

    @property
    def counts(self) -> bool:
        """Whether anything of it is, or was, counted."""
        return self._holding is not None

    def _end(self) -> bool:
        if self.over:
            return False
        self.over = True
        self.exchange = None
        self.held = []
        if self._holding is not None:
            self._holding.close()
        if self.claim is not None:
            self.claim.end()
        return True

    def count_held(self) -> None:
        """Count what waits for a guest that has enough.

        Raises:
            SeamgateError: it is more than may be in memory.
        """
        budget, exchange = self.session.budget, self.exchange
        if budget is None or exchange is None:
            return
        if self._holding is None:
            self._holding = Holding(budget, exchange.request.guest.id)
        self._holding.say(sum([len(event.data) for event in self.held if isinstance(event, StreamData)]))

    # -- from the session --------------------------------------------------------------------------------------------

    def drained(self) -> None:
        """The upstream took most of what was queued."""
        self.full = False
        if self.exchange is not None:
            self.exchange.upstream_writable(True)

    def lost(self, error: SeamgateError) -> None:
        """The stream ended before the response did."""
        exchange = self.exchange
        if any(isinstance(event, StreamEnd) or (isinstance(event, StreamHead) and event.ended) for event in self.held):
            return  # the answer is whole, only its guest has not read it yet
        self.held = []
        if exchange is not None:
            exchange.on_session_lost(error)

    def refused(self, error: SeamgateError) -> None:
        """The exchange can't take what came: it ends, though the rest of the answer is here."""
        self.held = []
        self.lost(error)
