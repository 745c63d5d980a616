"""A stream that is passed on unread, where a rule says `protocol: tcp`: judged, resolved, checked, dialled, counted.

Begun by the entries in which a client names host and port: CONNECT, SOCKS, redirected connections. Bytes go both ways
as they come, an end of one side is an end to the other, and who does not read holds the other side back. If what a
guest says first is a TLS ClientHello, its server name has to be the target. A reload that no longer allows it ends it.
Its one record, of the kind connect, is written when it is over, or when it could not begin.

What passes is counted, and once a guest's share of a turn is used up its streams are read on in a later one.

State: `_far` is set once the upstream is connected; `_over` once the record is written. A direction is not read while
who takes it has enough (`_up_full`, `_down_full`), or while it is others' turn (`_up_behind`, `_down_behind`).
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import msgspec

from seamgate.address import canonical_name
from seamgate.audit.parts import connect_part, guest_part
from seamgate.audit.record import AuditBytes, AuditKind, AuditRecord, AuditUpstream, Decision, Outcome
from seamgate.entry.connections import Connections
from seamgate.errors import (
    Blame,
    GuestProtocolError,
    Reason,
    ResolveFailed,
    SeamgateError,
    TargetError,
    UpstreamError,
    UpstreamTimeout,
)
from seamgate.flow import Guest, Step, Target
from seamgate.protocol.client_hello import MAX_HELLO_BYTES, parse_client_hello
from seamgate.protocol.work import SPLICE_SHIFT
from seamgate.refusing import STOPPING, no_stream_begins
from seamgate.revocation import revoked
from seamgate.seam import IsBound, Seam
from seamgate.streams import keep_alive
from seamgate.tasks import spawn
from seamgate.upstream.addresses import compile_permit
from seamgate.verdict import Effect, Verdict, denial_of, deny

TCP: Final = "tcp"
_TLS: Final = b"\x16\x03"
"""A handshake record of any TLS (RFC 8446 5.1)."""
_ALERT_UNRECOGNIZED_NAME: Final = b"\x15\x03\x01\x00\x02\x02\x70"
_HELD_BYTES: Final = 65536
"""What a guest may say before the upstream is connected."""
_RESET: Final = struct.pack("ii", 1, 0)


def judge_tcp(seam: Seam, guest: Guest, target: Target, steps: list[Step], *, late_denies: bool = True) -> Verdict:
    """Say whether this guest may have a stream to this host and port passed on unread: an allow, or a denial."""
    target = msgspec.structs.replace(target, scheme=TCP)
    refusal = no_stream_begins(seam, target)
    if refusal is not None:
        return refusal
    verdict = seam.pipeline.judge_connect(guest, target, steps, late_denies=late_denies)
    if verdict.effect is Effect.DENY or (verdict.allowed and verdict.upgrade == TCP):
        return verdict
    # Nothing is judged after it, so an allow that does not say that it means this is not enough.
    return deny("nothing says that the stream may pass unread", reason=Reason.NO_RULE_MATCHED, rule=verdict.rule)


class Splice:
    """One stream: the guest's side; `_Far` is the other one.

    Args:
        seam, connections: of the gateway.
        entry: its name.
        guest: whose it is.
        target: where it goes; of whatever scheme.
        verdict: of `judge_tcp`, an allow, and `steps` who said what.
        accepted: what to tell the guest once the upstream is connected.
        refusal: what to tell it instead if it can't be; b"" for a reset.
        by_connect: whether the guest asked for it over HTTP, so that a status is what it was told.
    """

    def __init__(
        self,
        seam: Seam,
        connections: Connections,
        entry: str,
        guest: Guest,
        target: Target,
        verdict: Verdict,
        steps: list[Step],
        *,
        accepted: bytes = b"",
        refusal: Callable[[Verdict, str], bytes] = lambda verdict, request_id: b"",
        by_connect: bool = False,
    ) -> None:
        self.transport: Any = None
        self.exchanges = 0
        self.whose: str | None = None  # what a reload ends is the tunnel
        self._seam = seam
        self._connections = connections
        self._entry = entry
        self._guest = guest
        self._target = msgspec.structs.replace(target, scheme=TCP)
        self._verdict = verdict
        self._steps = list(steps)
        self._accepted = accepted
        self._refusal = refusal
        self._by_connect = by_connect
        self._id = seam.new_id()
        self._generation = seam.pipeline.generation
        self._started = self._active_at = monotonic()
        self._dial: asyncio.Task[Any] | None = None
        self._far: _Far | None = None
        self._address = ""
        self._held = b""
        self._checked = False
        self._share = seam.shares.of(guest.id)
        self._up_full = self._down_full = False
        self._up_behind = self._down_behind = False
        self._ended = False
        self._far_ended = False
        self._over = False
        self._up_bytes = 0
        self._down_bytes = 0

    def __repr__(self) -> str:
        return f"<Splice {self._id} {self._target.authority} up={self._up_bytes} down={self._down_bytes}>"

    @property
    def awaited(self) -> bool:
        """No: it is no request."""
        return False

    def take(self, transport: Any, first: bytes = b"") -> None:
        """Take a guest's stream over, with what was read of it, and begin."""
        seam = self._seam
        seam.requests_total += 1
        seam.tunnels.add(self)
        self._connections.add(self)
        self._connections.enter(self._guest.id)
        self.transport = transport
        transport.set_protocol(self)
        if first:
            self.data_received(first)
        if not self._over:
            self._dial = spawn(self._connect(), name=f"splice {self._target.authority}")

    # -- to the upstream ---------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Resolve, check and dial; then pass on what the guest has said so far."""
        far = _Far(self)
        failure: SeamgateError | None = None
        try:
            self._address = await self._dialled(far)
        except TimeoutError:
            failure = UpstreamTimeout(f"{self._target.authority} can't be reached in time")
        except SeamgateError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - fail closed: a fault of ours ends the stream and is reported
            failure = SeamgateError("a fault of the gateway")
            asyncio.get_running_loop().call_exception_handler({"message": "splice failed", "exception": error})
        finally:
            self._dial = None
            if self._over:
                far.abort()
        if failure is None and not self._over:
            failure = self._forbidden(self._verdict)  # a reload may have narrowed what may be dialled meanwhile
        if failure is not None:
            far.abort()
            self._fail(failure)
        elif not self._over:
            self._connected(far)

    def _connected(self, far: _Far) -> None:
        """Tell the guest, and pass on what it has said so far, then what the upstream has."""
        self._far = far
        self._active_at = monotonic()
        keep_alive(self.transport)  # the other side's is the connector's
        self._seam.opened(self._guest, self._target, self._address)
        if self._accepted:
            self.transport.write(self._accepted)
        self._send()
        far.open()

    async def _dialled(self, far: _Far) -> str:
        seam, target = self._seam, self._target
        found: Any = seam.known_address(target)
        if found is None:
            async with asyncio.timeout(seam.limits.resolve_timeout_s):
                found = seam.pipeline.resolve_name(target.host, self._steps)
                if inspect.isawaitable(found):
                    found = await found
        if found is None:
            raise ResolveFailed(f"no plugin resolves names; {target.host} can't be reached")
        addresses = seam.check(found.addresses, target, self._permit(self._verdict))
        if seam.connector is None:
            raise SeamgateError("nothing opens connections here")
        return await seam.connector.dial(target, addresses, far)

    def _forbidden(self, verdict: Verdict) -> SeamgateError | None:
        """Say why nothing may be sent any more to where it was dialled, if so."""
        seam, target = self._seam, self._target
        try:
            seam.check((self._address,), target, self._permit(verdict))
        except SeamgateError as error:
            return error
        return None

    def _permit(self, verdict: Verdict) -> Any:
        named = verdict.addresses
        return self._seam.permit | compile_permit(named) if named else self._seam.permit

    def _send(self) -> None:
        """Pass on what is held, once there is somebody to take it and it may go."""
        far = self._far
        if far is None or self._over or not self._check():
            return
        held, self._held = self._held, b""
        if held:
            far.transport.write(held)
        self._read_up()
        if self._ended:
            _end(far.transport)

    def _check(self) -> bool:
        """If what is said first is TLS, hold it to the target; False while that can't be told, or if it failed."""
        if self._checked:
            return True
        held = self._held
        if not held.startswith(_TLS) and not (len(held) == 1 and held == _TLS[:1] and not self._ended):
            self._checked = bool(held) or self._ended
            return True  # and what has not been said yet is looked at when it is
        try:
            hello = parse_client_hello(held)
            if hello is None and (self._ended or len(held) > MAX_HELLO_BYTES):
                raise GuestProtocolError("the TLS ClientHello is not whole", reason=Reason.GUEST_TLS_FAILED)
            if hello is not None and hello.server_name is not None and not self._names_target(hello.server_name):
                name, host = hello.server_name[:80], self._target.host
                message = f"the TLS server name is {name!r}, the stream goes to {host}: the guest got the alert"
                raise GuestProtocolError(f"{message} unrecognized_name", reason=Reason.TARGET_MISMATCH)
        except GuestProtocolError as error:
            if error.reason is Reason.TARGET_MISMATCH and self._far is not None:
                self.transport.write(_ALERT_UNRECOGNIZED_NAME)
            self._finish(denial_of(error), Outcome.DENIED)  # nothing of it went up, whatever was open
            return False
        self._checked = hello is not None
        return self._checked

    def _names_target(self, name: str) -> bool:
        try:
            return canonical_name(name) == self._target.host
        except TargetError:
            return False

    # -- the guest's side, as a protocol -----------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """The stream is there: it was before."""

    def data_received(self, data: bytes) -> None:
        """Bytes of the guest."""
        self._active_at = monotonic()
        self._up_bytes += len(data)
        if self._spend(len(data)) and not self._up_behind:
            self._up_behind = True
            self.transport.pause_reading()
            self._share.wait(self._read_up_on)
        far = self._far
        if far is not None and self._checked:
            far.transport.write(data)
            return
        self._held += data
        if far is not None:
            self._send()
        elif len(self._held) > _HELD_BYTES:
            self.transport.pause_reading()

    def _spend(self, size_bytes: int) -> bool:
        """Count a read; return whether the next one is for a later turn. This one is passed on: that costs least."""
        self._share.spend(1 + (size_bytes >> SPLICE_SHIFT))
        return self._share.left <= 0

    def _read_up(self) -> None:
        """Read the guest, if nothing is against it."""
        if not (self._up_full or self._up_behind or self._over or self.transport.is_closing()):
            self.transport.resume_reading()

    def _read_up_on(self) -> None:
        self._up_behind = False
        if self._far is not None or len(self._held) <= _HELD_BYTES:
            self._read_up()

    def _read_down(self) -> None:
        """Read the upstream, if nothing is against it."""
        far = self._far
        if far is not None and not (self._down_full or self._down_behind or self._over or far.transport.is_closing()):
            far.transport.resume_reading()

    def _read_down_on(self) -> None:
        self._down_behind = False
        self._read_down()

    def eof_received(self) -> bool:
        """The guest sends no more; it may still read."""
        self._ended = True
        if self._far_ended:
            self._finish(None, Outcome.COMPLETE)
        elif self._far is not None:
            self._send()
        return not self._over

    def connection_lost(self, exc: Exception | None) -> None:
        """The guest is gone."""
        if self._far_ended:
            self._finish(None, Outcome.COMPLETE)
        else:
            self._finish(deny("the guest closed its connection", reason=Reason.GUEST_GONE), Outcome.ABORTED)

    def pause_writing(self) -> None:
        """The guest has enough: the upstream is not read."""
        self._down_full = True
        if self._far is not None:
            self._far.transport.pause_reading()

    def resume_writing(self) -> None:
        """The guest takes more."""
        self._down_full = False
        self._read_down()

    # -- the upstream's side, told by `_Far` -------------------------------------------------------------------------

    def on_far_data(self, data: bytes) -> None:
        """Bytes of the upstream."""
        if self._over:
            return
        self._active_at = monotonic()
        self._down_bytes += len(data)
        self.transport.write(data)
        if self._spend(len(data)) and not self._down_behind and self._far is not None:
            self._down_behind = True
            self._far.transport.pause_reading()
            self._share.wait(self._read_down_on)

    def on_far_end(self) -> None:
        """The upstream sends no more; it may still read."""
        self._far_ended = True
        if self._ended:
            self._finish(None, Outcome.COMPLETE)
        elif not self._over:
            _end(self.transport)

    def on_far_lost(self) -> None:
        """The upstream is gone: after its end that is the end of all, else it broke off."""
        if self._far_ended:
            self._finish(None, Outcome.COMPLETE)
        else:
            cut = UpstreamError("the upstream broke the connection", reason=Reason.UPSTREAM_CLOSED)
            self._finish(denial_of(cut), Outcome.TRUNCATED)

    def far_writable(self, writable: bool) -> None:
        """The upstream takes no more, or takes more again."""
        self._up_full = not writable
        if self._over:
            return
        if writable:
            self._read_up()
        else:
            self.transport.pause_reading()

    # -- as a connection of the gateway ------------------------------------------------------------------------------

    def check_deadline(self, now: float) -> None:
        """End what has been silent both ways for as long as an upstream may be, or says half a ClientHello."""
        limits = self._seam.limits
        if now - self._active_at > limits.response_timeout_s:
            self._fail(UpstreamTimeout(f"silent for {limits.response_timeout_s:g} s"))
        elif self._held and self._far is not None and now - self._active_at > limits.head_timeout_s:
            self._fail(GuestProtocolError("the TLS ClientHello did not come whole", reason=Reason.GUEST_TIMEOUT))

    def drain(self, *, patient: bool = False) -> None:
        """The gateway stops: a stream that nobody reads has no good moment to end, so it goes on as long as it may."""

    def revoke(self, verdict: Verdict) -> None:
        """It is no longer allowed."""
        self._finish(verdict, Outcome.ABORTED)

    def close(self) -> None:
        """The gateway closes."""
        self._finish(STOPPING, Outcome.ABORTED)

    def judge_again(self, is_bound: IsBound) -> bool:
        """A reload replaced the pipeline: if the stream is no longer allowed, end it and return True."""
        steps: list[Step] = []
        verdict = judge_tcp(self._seam, self._guest, self._target, steps, late_denies=False)
        if verdict.allowed and self._address:
            forbidden = self._forbidden(verdict)
            verdict = verdict if forbidden is None else denial_of(forbidden)
        if verdict.allowed or self._over:
            if not self._address:
                self._verdict = verdict  # what is not dialled yet is dialled by the new rules
            return False
        self._steps += steps
        self._generation = self._seam.pipeline.generation
        self.revoke(revoked(verdict))
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def _fail(self, error: SeamgateError) -> None:
        begun = self._far is not None
        ours = error.reason.blame is not Blame.UPSTREAM
        outcome = Outcome.ABORTED if begun else Outcome.DENIED if ours else Outcome.FAILED
        self._finish(denial_of(error), outcome)

    def _finish(self, why: Verdict | None, outcome: Outcome) -> None:
        """Close both sides and write the record. Once only."""
        if self._over:
            return
        self._over = True
        self._connections.forget(self)
        self._connections.leave(self._guest.id)
        self._seam.tunnels.discard(self)
        far, dial, self._dial = self._far, self._dial, None
        if dial is not None:
            dial.cancel()
        if outcome is Outcome.COMPLETE:
            self.transport.close()
        else:
            self._cut(why)
        if far is not None:
            if outcome is Outcome.COMPLETE:
                far.transport.close()
            else:
                far.abort()
        ours = why is not None and why.reason.blame is not Blame.UPSTREAM and why.reason is not Reason.GUEST_GONE
        self._seam.denied_total += ours
        self._seam.record(self._record(why, outcome, denied=ours), denied=ours)

    def _cut(self, why: Verdict | None) -> None:
        """Tell the guest, where its entry has a way to; else reset, so that it takes nothing for an end."""
        told = self._refusal(why, self._id) if why is not None and self._far is None else b""
        if told:
            self.transport.write(told)
        if told or (why is not None and why.reason is Reason.TARGET_MISMATCH):
            self.transport.close()
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None and not self.transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _record(self, why: Verdict | None, outcome: Outcome, *, denied: bool) -> AuditRecord:
        verdict = self._verdict
        said = why or verdict
        return AuditRecord(
            time=self._seam.clock(),
            kind=AuditKind.CONNECT,
            id=self._id,
            guest=guest_part(self._guest),
            entry=self._entry,
            request=connect_part(self._target),
            verdict=Decision.DENY if denied else Decision.ALLOW,
            reason=said.reason,
            rule=said.rule or verdict.rule,
            message=said.message,
            would_rule=verdict.would_rule,
            would_deny=verdict.would_deny,
            upstream=AuditUpstream(self._address, "", False) if self._address else None,
            status=0 if not self._by_connect else 200 if self._far is not None else said.reason.status,
            bytes=AuditBytes(self._up_bytes if self._far is not None else 0, self._down_bytes),
            duration_ms=(monotonic() - self._started) * 1000,
            outcome=outcome,
            steps=tuple(self._steps),
            generation=self._generation,
        )


class _Far(asyncio.Protocol):
    """The upstream's side of a splice. State: `_early` is what happened before the guest was told; None after."""

    def __init__(self, splice: Splice) -> None:
        self.transport: Any = None
        self._splice = splice
        self._aborted = False
        self._early: list[Callable[[], object]] | None = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected; the splice is told by whoever dialled."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes of the upstream."""
        self._tell(lambda: self._splice.on_far_data(data))

    def eof_received(self) -> bool:
        """The upstream sends no more."""
        self._tell(self._splice.on_far_end)
        return True

    def open(self) -> None:
        """The guest knows that it is connected: tell what happened since."""
        early, self._early = self._early, None
        for each in early or ():
            each()

    def _tell(self, what: Callable[[], object]) -> None:
        if self._aborted:
            return
        if self._early is not None:
            self._early.append(what)
        else:
            what()

    def connection_lost(self, exc: Exception | None) -> None:
        """The upstream is gone."""
        self._tell(self._splice.on_far_lost)

    def pause_writing(self) -> None:
        """The upstream has enough."""
        self._splice.far_writable(False)

    def resume_writing(self) -> None:
        """The upstream takes more."""
        self._splice.far_writable(True)

    def abort(self) -> None:
        """Close with a reset; the splice knows."""
        self._aborted = True
        if self.transport is not None:
            connection = self.transport.get_extra_info("socket")
            if connection is not None and not self.transport.is_closing():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()


def _end(transport: Any) -> None:
    """Pass an end on; a stream that can't be half closed is closed."""
    if transport.is_closing():
        return
    if transport.can_write_eof():
        transport.write_eof()
    else:
        transport.close()
