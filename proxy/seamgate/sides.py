"""The two sides of an exchange, as it sees them: whatever protocol the guest speaks, whatever the upstream does.

Implemented by an entry's connection and by a session; called by `seamgate.exchange` and `seamgate.answer` only. Base
classes rather than protocols by shape: compiled, a call of a method of a known class costs a twentieth of one by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from seamgate.flow import Headers, Request
from seamgate.streams import Transport
from seamgate.turns import Share
from seamgate.verdict import Verdict

if TYPE_CHECKING:
    from seamgate.exchange import Exchange
    from seamgate.websocket_exchange import WebSocketExchange


class GuestSide:
    """The guest's end of one exchange, in whatever protocol it speaks."""

    __slots__ = ()

    @property
    def share(self) -> Share:
        """The guest's part of each turn: what its exchange reads belongs to it too."""
        raise NotImplementedError

    def send_continue(self) -> None:
        """Ask for the body."""
        raise NotImplementedError

    def send_informational(self, status: int, headers: Headers) -> None:
        """Pass on a 1xx response."""
        raise NotImplementedError

    def send_head(self, status: int, headers: Headers, body: int | None) -> None:
        """Begin the response; body is a length, CHUNKED, or None for no body and no framing."""
        raise NotImplementedError

    def send_data(self, data: bytes) -> None:
        """Pass on a piece of the response's body."""
        raise NotImplementedError

    def send_end(self, trailers: Headers) -> None:
        """End the response."""
        raise NotImplementedError

    def send_denial(self, verdict: Verdict, request_id: str) -> None:
        """Refuse: a whole response, in the form that the protocol has."""
        raise NotImplementedError

    def abort(self) -> None:
        """Cut the response so that the guest sees an error, never a clean end."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what was queued."""
        raise NotImplementedError

    def pause_body(self) -> None:
        """Stop delivering the request's body."""
        raise NotImplementedError

    def resume_body(self) -> None:
        """Deliver it again."""
        raise NotImplementedError

    def finished(self) -> None:
        """The exchange is over; its record is written."""
        raise NotImplementedError


class WebSocketGuest(GuestSide):
    """The guest's end of an exchange that may become a WebSocket: then a connection, or a stream, is all its own."""

    __slots__ = ()

    @property
    def read_ahead(self) -> bool:
        """Whether more was read than the request."""
        raise NotImplementedError

    def upgrade(self, websocket: WebSocketExchange, headers: Headers) -> None:
        """Pass on the 101, in HTTP/2 a 200; from here on all that comes is frames, and goes to the exchange."""
        raise NotImplementedError

    def close(self) -> None:
        """Send what is queued, then close."""
        raise NotImplementedError


class GuestConnection(Protocol):
    """A guest's connection, as the gateway sees all of them: swept once a second, drained and closed together."""

    transport: Transport | None
    exchanges: int
    whose: str | None
    """The guest whose connection it is, by name; None where nobody has said it yet, or the tunnel that it is in has."""

    @property
    def awaited(self) -> bool:
        """Whether its first request is still to come, or one that came waits for its guest's turn."""
        ...

    def check_deadline(self, now: float) -> None:
        """End what is silent for longer than its present state allows."""

    def drain(self, *, patient: bool = False) -> None:
        """The gateway stops: close now if idle, else after what is under way.

        `patient`: it is only about to, so an idle connection may ask once more, since its guest may be doing so now.
        """

    def revoke(self, verdict: Verdict) -> None:
        """The tunnel that this connection is in was revoked: end what is under way, and close."""

    def close(self) -> None:
        """Send what is queued, then close."""


class UpstreamSide:
    """An upstream session that carries one exchange."""

    __slots__ = ("address", "answered", "id", "reused", "waited")
    id: str
    address: str
    reused: bool
    waited: bool
    """Whether it lay idle in the pool before: the upstream may have closed it in the meantime."""
    answered: bool
    """Whether anything of an answer to the present request came."""

    @property
    def usable(self) -> bool:
        """Whether anything can be sent on it."""
        raise NotImplementedError

    def send_head(self, exchange: Exchange, request: Request, headers: Headers, query: str | None, body: int) -> None:
        """Begin the request."""
        raise NotImplementedError

    def send_data(self, data: bytes) -> None:
        """Send a piece of the request's body."""
        raise NotImplementedError

    def send_end(self, trailers: Headers) -> None:
        """End the request."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what was queued."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """The guest has enough."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """The guest takes more."""
        raise NotImplementedError

    def release(self, *, reusable: bool) -> None:
        """The exchange is done with it."""
        raise NotImplementedError

    def leave(self) -> None:
        """The WebSocket that it carried is over: what is queued still goes out, then its end."""
        raise NotImplementedError
