"""One guest in a microVM, from the gateway's side: what becomes of the streams and the names of its ring.

Called by `seamgate run --isolation kvm` and by the gateway's own pool (`guest_pool.py`), which hand `RingGuest.accept`
and `RingGuest.judge_name` to the ring's server. A stream comes with the host that its guest asked for; HTTPS comes as
plaintext, with the server name in front, and goes upstream as TLS that is always verified. From there on it is what it
would be behind the explicit proxy: the same classes judge, read, record. The guest's identity is the ring: it shows no
token. Nothing here looks a name up, knows how a ring is made, or touches KVM.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from seamgate.address import address_text, canonical_address, canonical_name
from seamgate.audit.parts import guest_part
from seamgate.audit.record import AuditGateway, AuditKind, AuditRecord, AuditRequest
from seamgate.config import KvmEntry
from seamgate.entry.dns_service import DENIED_CODES, judge_name
from seamgate.entry.netns.names import is_stand_in
from seamgate.entry.netns.refusals import Refusals
from seamgate.entry.opaque import SCHEMES, OpaqueStream, OpaqueStreams, Place, reset
from seamgate.entry.tunnel import Tunnel
from seamgate.errors import Reason, TargetError
from seamgate.flow import Guest
from seamgate.protocol.work import HEAD, NAME
from seamgate.streams import as_protocol
from seamgate.upstream.dns_message import NOERROR
from seamgate.verdict import Effect, Verdict, denial_of, deny
from seamgate_vmm.greeting import PREFACE, StreamOpen, read_greeting

if TYPE_CHECKING:
    from seamgate.gateway import Gateway
    from seamgate_vmm.outcome import GuestEvent, Outcome

ENTRY: Final = "ring"
_LONGEST_NAME_SHOWN = 80


class RingGuest:
    """See the module.

    Args:
        gateway: started.
        guest: who it is.
        entry: what the configuration says about this isolation.
    """

    def __init__(self, gateway: Gateway, guest: Guest, entry: KvmEntry) -> None:
        self._seam = gateway.seam
        self._guest = guest
        self._terminates = entry.own_tls == "terminate"
        self._denied_code = DENIED_CODES[entry.denied_names]
        self._streams = OpaqueStreams(gateway.seam, gateway.authorities, gateway.connections, ENTRY)
        self._refusals = Refusals(gateway.seam, guest, ENTRY)
        self._share = gateway.seam.shares.of(guest.id)

    def is_now(self, guest: Guest) -> None:
        """From now on this is who it is: a reload has changed its labels or group."""
        self._guest = self._refusals.guest = guest

    def turn(self, go_on: Callable[[], None]) -> bool:
        """Whether more of the ring may be taken now; if not, `go_on` is called in the guest's turn."""
        if self._share.left > 0:
            return True
        self._share.wait(go_on)
        return False

    # -- names -------------------------------------------------------------------------------------------------------

    def judge_name(self, name: str) -> int:
        """Return the code of the answer to a name: NOERROR gives it an address, which nothing was looked up for.

        Args:
            name: as the guest sent it, in lower case, without trailing dot.
        """
        try:
            canonical = canonical_name(name)
            if canonical != name:  # the address would stand for a spelling that no policy knows
                raise TargetError(f"{name[:_LONGEST_NAME_SHOWN]!r} is not how {canonical} is written")
        except TargetError as error:
            self._refuse_name("", denial_of(error))
            return DENIED_CODES["nxdomain"]
        self._share.spend(NAME)
        verdict = judge_name(self._seam, self._guest, name)
        if verdict.effect is not Effect.DENY:
            return NOERROR
        self._refuse_name(name, verdict)
        return self._denied_code

    def _refuse_name(self, name: str, verdict: Verdict) -> None:
        self._refusals.refuse(AuditRequest(method="RESOLVE", scheme="dns", host=name, port=53), verdict)

    # -- streams -----------------------------------------------------------------------------------------------------

    def accept(self, opened: StreamOpen) -> asyncio.Protocol | None:
        """Return what serves a stream, or None: it is refused, recorded, and to be reset."""
        self._share.spend(HEAD)
        place = _place(opened)
        verdict = self._refusal(opened, place)
        if verdict is not None:
            self.refuse(place, verdict)
            return None
        if opened.tls:
            return self._accept_plaintext(place)
        return _RingStream(self, self._streams, self._guest, place)

    def _refusal(self, opened: StreamOpen, place: Place) -> Verdict | None:
        """Return why a stream is refused whatever is said in it, or None."""
        if self._streams.full:
            return deny("too many connections", reason=Reason.OVERLOADED)
        if place.is_address and is_stand_in(place.host):
            message = f"No name was given the address {place.host}; resolve the name again."
            return deny(message, reason=Reason.BAD_TARGET)
        if opened.server_name is not None and not _same_host(opened.server_name, place.host):
            shown = opened.server_name[:_LONGEST_NAME_SHOWN]
            message = f"the TLS server name is {shown!r}, the stream goes to {place.host}"
            return deny(message, reason=Reason.TARGET_MISMATCH)
        if opened.client_hello and not self._terminates:
            message = "TLS of the guest's own is refused here (entries.kvm.own_tls); use Python's ssl module"
            return deny(message, reason=Reason.GUEST_TLS_FAILED)
        if opened.tls or place.port in SCHEMES:
            return None  # judged as a tunnel, or with the request, so that a denial can be told
        verdict = self._streams.judge(self._guest, place)
        return verdict if verdict.effect is Effect.DENY else None

    def _accept_plaintext(self, place: Place) -> asyncio.Protocol | None:
        streams, target = self._streams, place.target("https")
        tunnel = Tunnel(streams.seam, streams.authorities, streams.connections, ENTRY, self._guest, target)
        reader = tunnel.adopt_plaintext(telling=place.port in SCHEMES)
        return None if reader is None else as_protocol(reader)

    def refuse(self, place: Place, verdict: Verdict) -> None:
        """Tell the audit log of a stream that was reset."""
        self._refusals.refuse(AuditRequest(method="CONNECT", scheme="tcp", host=place.host, port=place.port), verdict)

    # -- life --------------------------------------------------------------------------------------------------------

    def changed(self, event: GuestEvent, facts: Mapping[str, str]) -> None:
        """Tell the audit log that the guest stands still or goes on; made for `Pool.start(on_change=...)`."""
        self._tell(event, facts)

    # -- end ---------------------------------------------------------------------------------------------------------

    def ended(self, outcome: Outcome) -> None:
        """Tell the audit log how the guest ended, and end what it left undecided."""
        self._streams.close()
        self._refusals.flush()
        facts = {
            "reason": outcome.reason.value,
            "exit_status": str(outcome.code),
            "detail": outcome.detail,
            "cpu_s": f"{outcome.cpu_s:.3f}",
            "refused_calls": ", ".join(outcome.unsupported),
            "parked_times": str(outcome.parked_times or ""),
        }
        self._tell("guest_end", {name: value for name, value in facts.items() if value})

    def _tell(self, event: Literal["guest_end"] | GuestEvent, facts: Mapping[str, str]) -> None:
        self._seam.journal.append(
            AuditRecord(
                time=self._seam.clock(),
                kind=AuditKind.GATEWAY,
                guest=guest_part(self._guest),
                entry=ENTRY,
                gateway=AuditGateway(event, facts),
                generation=self._seam.pipeline.generation,
            )
        )


def _place(opened: StreamOpen) -> Place:
    try:
        return Place(address_text(ipaddress.ip_address(opened.host)), opened.port, True)
    except ValueError:
        return Place(opened.host, opened.port, False)


def _same_host(server_name: str, host: str) -> bool:
    """Return whether what the guest's TLS names is where its stream goes."""
    try:
        return canonical_address(server_name) == host or canonical_name(server_name) == host
    except TargetError:
        return False


class _RingStream(OpaqueStream):
    """A stream that began without a preface: plain HTTP, TLS of the guest's own, or a guest that was slow to greet."""

    def __init__(self, ring: RingGuest, streams: OpaqueStreams, guest: Guest, place: Place) -> None:
        super().__init__(
            streams,
            guest,
            place,
            telling=place.port in SCHEMES,
            on_refused=lambda verdict: ring.refuse(place, verdict),
        )
        self._ring = ring
        self._host_port = (place.host, place.port)
        self._seen = b""

    def _decide(self, data: bytes) -> None:
        """The first bytes: a late preface, or what every such stream begins with."""
        self._seen += data
        if self._seen[:1] != PREFACE[:1]:
            super()._decide(self._seen)
            return
        greeting = read_greeting(self._seen, *self._host_port)
        if greeting is None or self not in self._common.undecided:
            return
        opened, length = greeting
        if not opened.tls:
            super()._decide(self._seen)
            return
        self._decided()
        reader = self._ring.accept(opened)
        if reader is None:
            reset(self._transport)
            return
        self._transport.set_protocol(reader)
        reader.connection_made(self._transport)
        if len(self._seen) > length:
            reader.data_received(self._seen[length:])
