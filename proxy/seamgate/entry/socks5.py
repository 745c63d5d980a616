"""The SOCKS 5 entry: clients that connect by name through it meet the same judge as those of a CONNECT proxy.

A guest is known by the listener, or by its token: the password of its login, or the user if there is none. Where some
rule may allow something there, the stream goes on as TLS or HTTP (`entry.opaque`); else the reply is "not allowed" and
the audit log has a record of the kind connect. The name goes unresolved until a request in it is allowed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from seamgate.audit.record import AuditRequest
from seamgate.entry.identity import Identities
from seamgate.entry.opaque import OpaqueStream, OpaqueStreams, Place
from seamgate.entry.refused import record_refusal
from seamgate.entry.splice import TCP
from seamgate.errors import GuestProtocolError, Reason
from seamgate.flow import Guest
from seamgate.protocol.socks5 import (
    LOGIN,
    NO_LOGIN,
    NONE_FITS,
    Demand,
    Login,
    Methods,
    Reply,
    SocksError,
    SocksReader,
    choice,
    login_answer,
    reply,
)
from seamgate.protocol.work import ACCEPT, ENTRY, HEAD
from seamgate.refusing import STOPPING, nothing_begins
from seamgate.turns import Share, Turnstile
from seamgate.verdict import Effect, Verdict, denial_of, deny


class SocksEntry:
    """What the connections of one SOCKS listener have in common.

    Args:
        streams: of this entry.
        identities: the guests that tokens identify.
        guest: who everybody here is; None: each one logs in.
    """

    def __init__(self, streams: OpaqueStreams, identities: Identities, guest: Guest | None) -> None:
        self.streams = streams
        self.identities = identities
        self.guest = guest
        self.greeting: set[SocksStream] = set()

    @property
    def full(self) -> bool:
        """Whether no further connection is taken."""
        return self.streams.full or len(self.greeting) >= self.streams.connections.share

    def close(self) -> None:
        """End what is not a request yet."""
        self.streams.close()
        for stream in list(self.greeting):
            stream.refuse(STOPPING)

    def accept(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        return SocksStream(self)


class SocksStream(asyncio.Protocol):
    """One connection, until it has said where it goes."""

    def __init__(self, entry: SocksEntry) -> None:
        self._entry = entry
        self._reader = SocksReader()
        self._guest = entry.guest
        self._place: Place | None = None
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._turnstile = Turnstile()
        self._share: Share

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = transport
        entry, guest = self._entry, self._guest
        shares = entry.streams.seam.shares
        self._share = shares.of_stranger(transport) if guest is None else shares.of(guest.id)
        self._share.spend(ACCEPT)
        if entry.full:
            transport.close()
            self._record(deny("too many connections", reason=Reason.OVERLOADED))
            return
        entry.greeting.add(self)
        entry.streams.connections.opening.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(entry.streams.seam.limits.head_timeout_s, self._late)

    def data_received(self, data: bytes) -> None:
        """A piece of the greeting, the login or the request."""
        if self not in self._entry.greeting:
            return
        self._share.spend(ENTRY)
        self._reader.feed(data)
        try:
            while self in self._entry.greeting:
                if self._turnstile.keeps(self._share, self._transport, b"", self.data_received):
                    return  # each step: a login makes it another's share
                event = self._reader.next_event()
                if event is None:
                    return
                self._take(event)
        except SocksError as error:
            self.refuse(denial_of(error), error.reply)

    def _take(self, event: Methods | Login | Demand) -> None:
        if isinstance(event, Methods):
            self._choose(event.offered)
        elif isinstance(event, Login):
            self._log_in(event)
        else:
            self._connect(Place(event.host, event.port, event.is_address))

    def _choose(self, offered: frozenset[int]) -> None:
        """Take no login where the listener says who it is, though a client that insists may log in."""
        wanted = [method for method in (NO_LOGIN, LOGIN) if method in offered and (method == LOGIN or self._guest)]
        if not wanted:
            verdict = deny("log in: the token is the password", reason=Reason.UNAUTHENTICATED)
            self.refuse(verdict, choice(NONE_FITS))
            return
        self._transport.write(choice(wanted[0]))
        self._reader.expect(wanted[0])

    def _log_in(self, login: Login) -> None:
        if self._entry.guest is None:
            try:
                self._guest = self._identify(login)
            except GuestProtocolError as error:
                self.refuse(denial_of(error), login_answer(False))
                return
            self._share = self._entry.streams.seam.shares.of(self._guest.id)
        self._transport.write(login_answer(True))

    def _identify(self, login: Login) -> Guest:
        token = login.password or login.user
        return self._entry.identities.by_token(token.decode("utf-8", "surrogateescape"))

    def _connect(self, place: Place) -> None:
        """Judge, answer, and hand the stream on."""
        self._place = place
        guest, streams = self._guest, self._entry.streams
        assert guest is not None
        self._share.spend(HEAD)
        verdict = self._judge(guest, place)
        if verdict.effect is Effect.DENY:
            self.refuse(verdict, reply(Reply.NOT_ALLOWED))
            return
        if self._reader.take_rest():
            # Sent before we agreed: a client that did not wait can't know what it talks to.
            early = deny("bytes came before the tunnel was open", reason=Reason.BAD_REQUEST)
            self.refuse(early, reply(Reply.FAILURE))
            return
        self._over()
        if verdict.upgrade == TCP:
            answers = {"accepted": reply(Reply.SUCCEEDED), "refusal": _failure}
            splice = streams.splice(guest, place, **answers)
            if splice is not None:
                splice.take(self._transport)
                return
        self._transport.write(reply(Reply.SUCCEEDED))
        OpaqueStream(streams, guest, place, telling=False, on_refused=self._record).take(self._transport)

    def _judge(self, guest: Guest, place: Place) -> Verdict:
        return nothing_begins(self._entry.streams.seam) or self._entry.streams.judge(guest, place)

    # -- ends --------------------------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        """The client ends before it has asked for anything."""
        if self._turnstile.keeps_end():
            return True
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._gone()

    def _gone(self) -> None:
        self.refuse(deny("the guest closed before its request was whole", reason=Reason.GUEST_GONE))

    def _late(self) -> None:
        self.refuse(deny("the request did not come whole", reason=Reason.GUEST_TIMEOUT))

    def _over(self) -> None:
        self._entry.greeting.discard(self)
        self._entry.streams.connections.opening.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse(self, verdict: Verdict, answer: bytes = b"") -> None:
        """Answer, close, and write the record. Once only."""
        if self in self._entry.greeting:
            self._over()
            if answer:
                self._transport.write(answer)
            self._transport.close()
            self._record(verdict)

    def _record(self, verdict: Verdict) -> None:
        place, streams = self._place, self._entry.streams
        what = AuditRequest(method="CONNECT", scheme="tcp")
        if place is not None:
            what = AuditRequest(method="CONNECT", scheme="tcp", host=place.host, port=place.port)
        record_refusal(streams.seam, self._guest, streams.entry, what, verdict)


_REPLIES = {
    Reason.RESOLVE_FAILED: Reply.HOST_UNREACHABLE,
    Reason.CONNECT_FAILED: Reply.REFUSED,
    Reason.UPSTREAM_TIMEOUT: Reply.HOST_UNREACHABLE,
    Reason.ADDRESS_FORBIDDEN: Reply.NOT_ALLOWED,
    Reason.OWN_ADDRESS: Reply.NOT_ALLOWED,
    Reason.REVOKED: Reply.NOT_ALLOWED,
}


def _failure(verdict: Verdict, request_id: str) -> bytes:
    """Return the reply that says best why a stream could not be opened."""
    return reply(_REPLIES.get(verdict.reason, Reply.FAILURE))
