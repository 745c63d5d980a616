"""CONNECT: judge the tunnel, terminate its TLS with a leaf of the gateway's CA, and read requests inside it.

A tunnel is opened only where some rule may allow some request to its target; each request in it is judged by itself.
Its one record is written when it is refused or when it ends. The server name of the TLS inside has to be the
tunnel's target. While the guest still does its handshake, a session to the target is opened in the background.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from time import monotonic
from typing import Any

from seamgate.address import canonical_name, parse_authority
from seamgate.audit.parts import connect_part, guest_part
from seamgate.audit.record import AuditKind, AuditRecord, Decision, Outcome
from seamgate.denial import denial_answer, denial_remark
from seamgate.entry.binding import ProxyBinding, TunnelBinding
from seamgate.entry.connections import Connections
from seamgate.entry.http1_guest import Http1Guest
from seamgate.entry.http2_guest import Http2Guest
from seamgate.entry.splice import Splice, judge_tcp
from seamgate.errors import GuestProtocolError, Reason, SeamgateError, TargetError
from seamgate.flow import Guest, Step, Target
from seamgate.protocol.client_hello import ClientHello
from seamgate.protocol.heads import RequestHead
from seamgate.protocol.http1 import write_response_head
from seamgate.protocol.work import LEAF
from seamgate.refusing import no_stream_begins
from seamgate.revocation import revoked
from seamgate.seam import IsBound, Seam
from seamgate.signing import Authorities
from seamgate.streams import Receiver, TlsStream, Transport
from seamgate.verdict import Effect, Verdict, denial_of, deny

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
# What a client says when it does not trust us (RFC 8446 6.2): the one failure that a user can mend.
_DISTRUST = ("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_UNKNOWN")


class Tunnel:
    """One CONNECT, from its head to its record. State: `_told` is the status that its guest got; 0: none."""

    def __init__(
        self,
        seam: Seam,
        authorities: Authorities,
        connections: Connections,
        entry: str,
        guest: Guest,
        target: Target,
    ) -> None:
        self._seam = seam
        self._authorities = authorities
        self._connections = connections
        self._entry = entry
        self._guest = guest
        self._target = target
        self._id = seam.new_id()
        self._started = monotonic()
        self._steps: list[Step] = []
        self._verdict = Verdict()
        self._revoked: Verdict | None = None
        self._stream: TlsStream | None = None
        self._inner: Http1Guest | Http2Guest | None = None
        self._counted = False
        self._told = 0

    def open(self, connection: Http1Guest) -> None:
        """Judge it; refuse it in the connection, or take the connection's stream over."""
        self._verdict = self._judge()
        if self._verdict.effect is not Effect.DENY and connection.read_ahead:
            # Sent before we agreed: a client that did not wait can't know what it talks to.
            self._verdict = deny("bytes came before the tunnel was open", reason=Reason.BAD_REQUEST)
        if self._verdict.reason is Reason.OVERLOADED:
            self._refuse(connection)
            return
        if self._verdict.effect is Effect.DENY:
            passes = judge_tcp(self._seam, self._guest, self._target, self._steps)
            if passes.allowed and not connection.read_ahead:
                self._splice(passes).take(connection.take_over())
                return
            self._refuse(connection)
            return
        transport = connection.take_over()
        self._serve(transport)
        transport.write(_ESTABLISHED)
        self._told = 200
        self._preconnect()

    def _refuse(self, connection: Http1Guest) -> None:
        """Answer the CONNECT with the denial."""
        self._told = self._verdict.reason.status
        connection.refuse_connect(self._verdict, self._record(self._verdict, Outcome.DENIED))

    def _splice(self, verdict: Verdict) -> Splice:
        """Return what passes the stream on unread."""
        return Splice(
            self._seam,
            self._connections,
            self._entry,
            self._guest,
            self._target,
            verdict,
            self._steps,
            accepted=_ESTABLISHED,
            refusal=whole_denial,
            by_connect=True,
        )

    def adopt(self, transport: Transport, hello: bytes, *, telling: bool) -> None:
        """Judge and take over a stream that came without CONNECT.

        Args:
            transport: the stream.
            hello: what was read of it: the beginning of a ClientHello.
            telling: whether a denied one is opened, to deny each request in it; else it is closed at once.
        """
        self._verdict = self._judge()
        denied = self._verdict.effect is Effect.DENY
        if denied and (not telling or self._verdict.reason is Reason.OVERLOADED):
            self._refuse_late(transport, self._verdict)
            return
        stream = self._serve(transport)
        if not denied:
            self._preconnect()
        stream.data_received(hello)

    def adopt_plaintext(self, *, telling: bool) -> Http1Guest | None:
        """Judge a stream whose TLS is spoken upstream alone: within the guest its bytes are plaintext, as on a ring.

        Args:
            telling: as for `adopt`.

        Returns:
            What reads its requests, to be put on the stream. None: it is denied, and recorded; reset it.
        """
        self._verdict = self._judge()
        denied = self._verdict.effect is Effect.DENY
        if denied and (not telling or self._verdict.reason is Reason.OVERLOADED):
            self._finish(self._verdict, Outcome.DENIED)
            return None
        self._connections.enter(self._guest.id)
        inner = Http1Guest(self._seam, TunnelBinding(self._entry, self._guest, self._target), self._connections)
        inner.on_closed = self._closed
        self._inner = inner
        if not denied:
            self._count()
            self._seam.tunnels.add(self)
            self._preconnect()
        return inner

    def _serve(self, transport: Transport) -> TlsStream:
        """Put TLS, and requests in it, on top of the stream."""
        seam = self._seam
        stream = TlsStream(
            None,
            select=self._select,
            choose=self._choose,
            on_failure=self._tls_failed,
            on_established=self._handshake_over,
            share=seam.shares.of(self._guest.id),
        )
        transport.set_protocol(stream)  # type: ignore[attr-defined]  # the entry's streams are asyncio's here
        stream.connection_made(transport)
        self._connections.enter(self._guest.id)
        self._connections.handshakes[stream] = monotonic() + seam.limits.head_timeout_s
        self._stream = stream
        if self._verdict.effect is not Effect.DENY:
            self._count()
            seam.tunnels.add(self)
        return stream

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            self._seam.requests_total += 1

    def _select(self, alpn: str | None) -> Receiver:
        """Return what reads requests in the protocol that was agreed to."""
        binding = TunnelBinding(self._entry, self._guest, self._target)
        if alpn == "h2":
            inner2 = Http2Guest(self._seam, binding, self._connections)
            inner2.on_closed = self._closed
            self._inner = inner2
            return inner2
        inner = Http1Guest(self._seam, binding, self._connections)
        inner.on_closed = self._closed
        self._inner = inner
        return inner

    def _handshake_over(self) -> None:
        if self._stream is not None:
            self._connections.handshakes.pop(self._stream, None)

    def judge_again(self, is_bound: IsBound) -> bool:
        """A reload replaced the pipeline: if no request may be made any more, cut the tunnel and return True."""
        steps: list[Step] = []
        verdict = self._seam.pipeline.judge_connect(self._guest, self._target, steps, late_denies=False)
        inner, stream = self._inner, self._stream
        if verdict.effect is not Effect.DENY or (inner is None and stream is None):
            return False
        self._steps += steps
        self._revoked = revoked(verdict)
        if inner is not None and inner.transport is not None:
            inner.revoke(self._revoked)
        elif stream is not None:  # still within the handshake
            stream.abort()
        return True

    def _judge(self) -> Verdict:
        seam, target = self._seam, self._target
        refusal = no_stream_begins(seam, target) or self._connections.too_many(self._guest.id)
        return refusal or seam.pipeline.judge_connect(self._guest, target, self._steps)

    def _choose(self, hello: ClientHello) -> ssl.SSLContext:
        """Check the server name against the target and give the leaf's context."""
        name, host = hello.server_name, self._target.host
        if name is not None and name != host and not self._names_target(name):
            raise GuestProtocolError(
                f"the TLS server name is {name[:80]!r}, the tunnel goes to {host}: the guest got the alert"
                " unrecognized_name",
                reason=Reason.TARGET_MISMATCH,
            )
        authority = self._authorities.of(self._guest)
        minted = authority.minted
        try:
            context = authority.leaf_context(host, alpn=self._seam.guest_alpn)
        except GuestProtocolError:
            raise
        except SeamgateError as error:
            raise GuestProtocolError(error.message, reason=Reason.GUEST_TLS_FAILED) from error
        if authority.minted != minted:
            self._seam.shares.of(self._guest.id).spend(LEAF)
        return context

    def _names_target(self, name: str) -> bool:
        try:
            return canonical_name(name) == self._target.host
        except TargetError:
            return False

    def _tls_failed(self, error: Exception) -> None:
        """The handshake with the guest did not succeed: this is the tunnel's end."""
        self._handshake_over()
        self._connections.leave(self._guest.id)
        self._seam.tunnels.discard(self)
        if self._revoked is not None:
            self._finish(self._revoked, Outcome.ABORTED)
            return
        if isinstance(error, SeamgateError):
            verdict = denial_of(error)
        elif self._verdict.effect is Effect.DENY:
            verdict = self._verdict
        elif isinstance(error, ssl.SSLError) and any(each in (error.reason or "") for each in _DISTRUST):
            message = "the guest does not trust the gateway's CA: see `seamgate ca env`"
            verdict = deny(message, reason=Reason.GUEST_TLS_FAILED)
        elif isinstance(error, ssl.SSLError):
            verdict = deny(f"TLS with the guest failed: {error.reason}", reason=Reason.GUEST_TLS_FAILED)
        else:
            verdict = deny("the guest closed within the TLS handshake", reason=Reason.GUEST_TLS_FAILED)
        self._finish(verdict, Outcome.DENIED)

    def _closed(self, inner: Http1Guest | Http2Guest) -> None:
        """The tunnel's connection ended. Of a denied one, its requests were denied, and recorded, by themselves."""
        self._connections.leave(self._guest.id)
        self._seam.tunnels.discard(self)
        if self._revoked is not None:
            self._finish(self._revoked, Outcome.ABORTED)
            return
        if self._verdict.effect is Effect.DENY:
            if not inner.exchanges:
                self._finish(self._verdict, Outcome.DENIED)
            return
        self._seam.record(self._record(self._verdict, Outcome.COMPLETE), denied=False)

    def _refuse_late(self, transport: Transport, verdict: Verdict) -> None:
        transport.close()
        self._finish(verdict, Outcome.DENIED)

    def _finish(self, verdict: Verdict, outcome: Outcome) -> None:
        self._count()
        self._seam.denied_total += 1
        self._seam.record(self._record(verdict, outcome), denied=True)

    def _record(self, verdict: Verdict, outcome: Outcome) -> AuditRecord:
        seam = self._seam
        refused = verdict.effect is Effect.DENY
        return AuditRecord(
            time=seam.clock(),
            kind=AuditKind.CONNECT,
            id=self._id,
            guest=guest_part(self._guest),
            entry=self._entry,
            request=connect_part(self._target),
            verdict=Decision.DENY if refused else Decision.ALLOW,
            reason=verdict.reason,
            rule=verdict.rule,
            message=verdict.message,
            would_rule=verdict.would_rule,
            would_deny=verdict.would_deny,
            status=self._told,
            duration_ms=(monotonic() - self._started) * 1000,
            outcome=outcome,
            steps=tuple(self._steps),
            generation=seam.pipeline.generation,
        )

    def _preconnect(self) -> None:
        """Use the time of the guest's handshake; whatever fails here, its request will meet and report."""
        pool, generation, ahead = self._seam.pool, self._seam.pipeline.generation, self._seam.lookups_ahead
        if not pool.preconnects or pool.has_idle(self._target, self._guest, generation):
            return
        if ahead.has_room(self._guest.id):
            name = f"preconnect {self._target.authority}"
            ahead.spawn(self._guest.id, self._warm(), name=name, on_error=_ignore)

    async def _warm(self) -> None:
        seam, target = self._seam, self._target
        found: Any = seam.known_address(target)
        if found is None:
            found = seam.pipeline.resolve_name(target.host, [])
            if inspect.isawaitable(found):
                async with asyncio.timeout(seam.limits.resolve_timeout_s):
                    found = await found
        if found is None:
            return
        addresses = seam.check(found.addresses, target, seam.permit)
        seam.pool.preconnect(target, addresses, self._guest, seam.pipeline.generation)


def whole_denial(verdict: Verdict, request_id: str) -> bytes:
    """Return the answer to a CONNECT that could not be done, head and body."""
    headers, body = denial_answer(verdict, request_id)
    remark = denial_remark(verdict)
    return write_response_head(verdict.reason.status, headers, len(body), keep_alive=False, remark=remark) + body


def _ignore(error: BaseException) -> None:
    """See `_preconnect`."""


def connect_target(head: RequestHead) -> Target:
    """Return the target of a CONNECT request (RFC 9110 9.3.6).

    Raises:
        GuestProtocolError: it is not host:port, its Host header names another, or it has a body.
    """
    if head.body:
        raise GuestProtocolError("CONNECT has no body")
    target = parse_authority(head.target, "https", port_required=True)
    if head.host is not None and head.host != head.target:
        named = parse_authority(head.host, "https")
        port_given = head.host.rpartition(":")[2].isdigit() and not head.host.endswith("]")
        if named.host != target.host or (port_given and named.port != target.port):
            raise GuestProtocolError(
                f"the Host header names {named.authority}, CONNECT {target.authority}", reason=Reason.TARGET_MISMATCH
            )
    return target


class ConnectHandler:
    """What the explicit proxy does with CONNECT."""

    def __init__(self, seam: Seam, authorities: Authorities, connections: Connections, binding: ProxyBinding) -> None:
        self._seam = seam
        self._authorities = authorities
        self._connections = connections
        self._binding = binding

    def __call__(self, connection: Http1Guest, head: RequestHead) -> None:
        """Open a tunnel, or refuse it in the connection.

        Raises:
            GuestProtocolError: the CONNECT is malformed, or nobody's.
        """
        guest = self._binding.identify(head)
        target = connect_target(head)
        tunnel = Tunnel(self._seam, self._authorities, self._connections, self._binding.entry, guest, target)
        tunnel.open(connection)
