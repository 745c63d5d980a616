"""How a WebSocket is opened: what its exchange does until the upstream has agreed.

The base of `seamgate.websocket_exchange`, which has the messages. The request goes out as any other, with a handshake
of this side's own; on a stream of a shared HTTP/2 session whose upstream takes that (RFC 8441), else on an HTTP/1.1
session of its own that no pool ever sees.

State: `_active_at` is when either side sent anything, `_timer` looks whether that is too long ago.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from seamgate.answer import NOT_FOR_GUESTS, redactors_of
from seamgate.errors import Reason, SeamgateError, UpstreamTimeout
from seamgate.exchange import Exchange
from seamgate.filters import open_response_filters
from seamgate.flow import Headers, Request, Response
from seamgate.protocol.heads import ResponseHead
from seamgate.protocol.websocket_handshake import Offer, new_key, request_headers
from seamgate.seam import Seam
from seamgate.sides import WebSocketGuest
from seamgate.upstream.session import Session
from seamgate.upstream.session2 import Http2Session
from seamgate.upstream.session2_stream import SessionStream
from seamgate.verdict import deny


class WebSocketOpening(Exchange):
    """One request that asks to become a WebSocket, until it is one or is answered otherwise."""

    __slots__ = ("_active_at", "_key", "_offer", "_protocols_sent", "_timer")

    def __init__(self, seam: Seam, guest_side: WebSocketGuest, request: Request, *, entry: str, offer: Offer) -> None:
        super().__init__(seam, guest_side, request, entry=entry, body=0, expects_continue=False)
        self._offer = offer
        self._key = b""
        self._protocols_sent: Headers = ()
        self._active_at = monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def _switch(self, head: ResponseHead) -> None:
        """The upstream has agreed."""
        raise NotImplementedError

    def _resolve(self) -> None:
        """Go on only if what allows the request also allows what it is to become."""
        if self._facts.verdict.upgrade != self.request.upgrade:
            message = f"nothing says that the request may become a {self.request.upgrade}"
            self.refuse(deny(message, reason=Reason.UPGRADE_REFUSED, rule=self._facts.verdict.rule))
        else:
            super()._resolve()

    def _acquire(self, *, fresh: bool = False) -> None:
        """Take a stream where the upstream is known to take WebSockets on one; else open a session."""
        seam, request = self._seam, self.request
        found = seam.pool.acquire_tunnel(
            request.target, self._addresses, request.guest, self._pipeline.generation, fresh=fresh
        )
        patience_s = seam.pool.queue_timeout_s + seam.limits.connect_timeout_s * 2
        self._waiting.then(found, self._got_stream, patience_s, Reason.UPSTREAM_TIMEOUT)

    def _got_stream(self, found: Session | SessionStream | None) -> None:
        if isinstance(found, SessionStream) and found.connects:
            self._got_session(found)
            return
        if found is not None:
            found.release(reusable=True)
        self._open_session()

    def _open_session(self) -> None:
        """Open a session of its own: HTTP/1.1, and never shared."""
        connector = self._seam.connector
        if connector is None:
            raise SeamgateError("nothing opens connections here")
        found = connector.connect(self.request.target, self._addresses, _close, _nothing, http2=False)
        self._waiting.then(found, self._got_session, self._seam.limits.connect_timeout_s * 2, Reason.UPSTREAM_TIMEOUT)

    def _let_out(self) -> None:
        """Ask for the upgrade with a handshake of this side's own."""
        headers, query = self._outgoing
        self._key = new_key() if isinstance(self._session, Session) else b""
        sent = request_headers(headers, self._key, compress=self._offer.deflate is not None)
        self._protocols_sent = tuple([pair for pair in sent if pair[0] == b"sec-websocket-protocol"])
        self._outgoing = (sent, query)
        self._active_at = monotonic()
        self._watch(self._seam.limits.response_timeout_s)
        super()._let_out()

    def _watch(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        """End what has been silent for as long as an upstream may be; pings count."""
        limit_s = self._seam.limits.response_timeout_s
        silent_s = monotonic() - self._active_at
        if silent_s < limit_s:
            self._watch(limit_s - silent_s)
        else:
            self._timer = None
            self.fail(UpstreamTimeout(f"silent for {limit_s:g} s"))

    def on_head(self, head: ResponseHead) -> None:
        """Over HTTP/2 any 2xx makes it a WebSocket (RFC 8441 5); every other final answer is one."""
        session = self._session
        if isinstance(session, SessionStream):
            if 200 <= head.status < 300:
                self._switch(head)
                return
            session.send_end(())  # an answer ends the request
        super().on_head(head)

    def _most_from_guest(self) -> int:
        limits, ours = self._facts.verdict.limits, self._seam.limits
        limit = limits.request_body_bytes if limits is not None else None
        if limit is None:
            limit = ours.request_body_bytes
        return ours.websocket_message_bytes if limit is None else min(limit, ours.websocket_message_bytes)

    def _inspected(self, head: ResponseHead) -> Response:
        """Pass the head through the inspectors of answers."""
        headers = tuple([pair for pair in head.headers if pair[0] not in NOT_FOR_GUESTS])
        secrets: tuple[tuple[str, bytes], ...] = ()
        if self._pipeline.redacts_supplies and self._facts.supplies:
            secrets = tuple([(each.credential, value) for each in self._facts.supplies for value in each.secrets])
        _, response = open_response_filters(
            self._pipeline,
            self.request,
            Response(101, headers),
            self._facts.verdict,
            self._facts.steps,
            redactors_of(secrets, self._pipeline.probes, self.request.guest),
            self._seam.limits.plugin_budget_s,
            bodiless=True,
        )
        return response


def _close(session: Session | Http2Session) -> None:
    """The session answered without becoming a WebSocket, or came too late: nobody else gets it."""
    session.close()


def _nothing(session: Session | Http2Session) -> None:
    """The session is gone, and no pool has to know."""
