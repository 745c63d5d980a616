"""A stream whose target is known and whose protocol is not yet: its first byte says whether it is TLS or HTTP.

Used by the entries where a client only connects: redirected connections of a namespace, SOCKS. TLS goes on as in a
CONNECT tunnel, HTTP as a connection to that one target; what is neither, or denied as such, is passed on unread where a
rule says `protocol: tcp`, else it is reset. Where only that may be, nothing is waited for: a server may speak first.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from seamgate.entry.binding import TunnelBinding
from seamgate.entry.connections import Connections
from seamgate.entry.http1_guest import Http1Guest
from seamgate.entry.splice import TCP, Splice, judge_tcp
from seamgate.entry.tunnel import Tunnel
from seamgate.errors import Reason
from seamgate.flow import Guest, Step, Target
from seamgate.protocol.work import ACCEPT, HEAD
from seamgate.refusing import STOPPING
from seamgate.seam import Seam
from seamgate.signing import Authorities
from seamgate.streams import Transport, as_protocol
from seamgate.turns import Turnstile
from seamgate.verdict import Effect, Verdict, deny

SCHEMES: Final = {443: ("https",), 80: ("http",)}
"""What is spoken where, by convention; elsewhere it may be either."""
_TLS_HANDSHAKE = 0x16  # RFC 8446 5.1
_RESET = struct.pack("ii", 1, 0)


class Place(msgspec.Struct, frozen=True):
    """Where a stream goes: canonical host and port, the scheme still open."""

    host: str
    port: int
    is_address: bool

    def target(self, scheme: str) -> Target:
        """Return the target, now that the scheme is known."""
        return Target(scheme, self.host, self.port, self.is_address)


class OpaqueStreams:
    """What the streams of one entry have in common."""

    def __init__(self, seam: Seam, authorities: Authorities, connections: Connections, entry: str) -> None:
        self.seam = seam
        self.authorities = authorities
        self.connections = connections
        self.entry = entry
        self.undecided: set[OpaqueStream] = set()

    @property
    def full(self) -> bool:
        """Whether no further connection is taken."""
        return self.connections.full or len(self.undecided) >= self.connections.share

    def judge(self, guest: Guest, place: Place) -> Verdict:
        """Return a denial if no scheme that may be spoken there is allowed, else the verdict on one that is."""
        judge = self.seam.pipeline.judge_connect
        verdicts = [judge(guest, place.target(scheme)) for scheme in SCHEMES.get(place.port, ("https", "http"))]
        allowed = next((verdict for verdict in verdicts if verdict.effect is not Effect.DENY), None)
        if allowed is not None:
            return allowed
        passes = judge_tcp(self.seam, guest, place.target(TCP), [])
        return passes if passes.allowed else verdicts[0]

    def splice(self, guest: Guest, place: Place, **answers: Any) -> Splice | None:
        """Return what passes a stream there on unread; None if that is not allowed."""
        target, steps = place.target(TCP), list[Step]()
        verdict = judge_tcp(self.seam, guest, target, steps)
        if not verdict.allowed:
            return None
        return Splice(self.seam, self.connections, self.entry, guest, target, verdict, steps, **answers)

    def close(self) -> None:
        """End the streams that have not said yet what they are."""
        for stream in list(self.undecided):
            stream.end(STOPPING)


class OpaqueStream(asyncio.Protocol):
    """One stream, until it has said which protocol it speaks.

    Args:
        common: of its entry.
        guest: whose it is.
        place: where it goes.
        telling: whether what is denied is to be told in the protocol that is spoken.
        on_refused: called with why, if it is reset.
    """

    def __init__(
        self,
        common: OpaqueStreams,
        guest: Guest,
        place: Place,
        *,
        telling: bool,
        on_refused: Callable[[Verdict], None],
    ) -> None:
        self._common = common
        self._guest = guest
        self._place = place
        self._telling = telling
        self._on_refused = on_refused
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._share = common.seam.shares.of(guest.id)
        self._turnstile = Turnstile()

    def take(self, transport: Any) -> None:
        """Take a stream over from the protocol that found out where it goes."""
        transport.set_protocol(self)
        self.connection_made(transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The stream is there: wait for its first byte, not forever."""
        self._transport = transport
        self._common.undecided.add(self)
        self._common.connections.opening.add(self)
        self._share.spend(ACCEPT)
        full = self._common.connections.too_many(self._guest.id)
        if full is not None:
            self.end(full)
            return
        if self._common.judge(self._guest, self._place).upgrade == TCP and self._pass_on(b""):
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._common.seam.limits.head_timeout_s, self._silent)

    def data_received(self, data: bytes) -> None:
        """The first bytes: TLS or HTTP."""
        if self not in self._common.undecided:
            return
        if not self._turnstile.keeps(self._share, self._transport, data, self._decide):
            self._decide(data)

    def _decide(self, data: bytes) -> None:
        """In the guest's turn: find out what it is, and hand it on."""
        if self not in self._common.undecided:
            return
        self._share.spend(HEAD)
        tls = data[0] == _TLS_HANDSHAKE
        http = 0x41 <= data[0] <= 0x5A
        if not (tls and self._allows("https")) and not (http and self._allows("http")) and self._pass_on(data):
            return
        if not tls and not http:
            self.end(deny("What came is neither TLS nor HTTP.", reason=Reason.BAD_REQUEST))
            return
        self._decided()
        if tls:
            self._speak_tls(data)
        else:
            self._speak_http(data)

    def _allows(self, scheme: str) -> bool:
        verdict = self._common.seam.pipeline.judge_connect(self._guest, self._place.target(scheme), [])
        return verdict.effect is not Effect.DENY

    def _pass_on(self, data: bytes) -> bool:
        """Have the stream passed on unread, if a rule allows that."""
        splice = self._common.splice(self._guest, self._place)
        if splice is None:
            return False
        self._decided()
        splice.take(self._transport, data)
        return True

    def _speak_tls(self, data: bytes) -> None:
        common = self._common
        target = self._place.target("https")
        tunnel = Tunnel(common.seam, common.authorities, common.connections, common.entry, self._guest, target)
        tunnel.adopt(self._transport, data, telling=self._telling)

    def _speak_http(self, data: bytes) -> None:
        common = self._common
        binding = TunnelBinding(common.entry, self._guest, self._place.target("http"))
        guest = Http1Guest(common.seam, binding, common.connections)
        self._transport.set_protocol(as_protocol(guest))
        guest.connection_made(self._transport)
        guest.data_received(data)

    def eof_received(self) -> bool:
        """The guest says nothing, and will not."""
        if self._turnstile.keeps_end():
            return True
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The guest is gone."""
        self._gone()

    def _gone(self) -> None:
        self.end(deny("The guest closed the connection before it asked for anything.", reason=Reason.GUEST_GONE))

    def _silent(self) -> None:
        self.end(deny("The connection was opened, and nothing was asked.", reason=Reason.GUEST_TIMEOUT))

    def _decided(self) -> None:
        self._common.undecided.discard(self)
        self._common.connections.opening.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self, verdict: Verdict) -> None:
        """Reset the stream and tell why. Once only."""
        if self in self._common.undecided:
            self._decided()
            reset(self._transport)
            self._on_refused(verdict)


def reset(transport: Transport) -> None:
    """Close a connection so that its client gets a reset, not an end."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
