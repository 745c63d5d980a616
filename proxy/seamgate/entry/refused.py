"""The record of something that was refused before it was a request: a name, a packet, a connection without HTTP."""

from __future__ import annotations

from seamgate.audit.record import AuditKind, AuditRecord, AuditRequest, Decision, Outcome, guest_part
from seamgate.errors import Reason
from seamgate.flow import Guest
from seamgate.seam import Seam
from seamgate.verdict import Verdict


def record_refusal(
    seam: Seam, guest: Guest | None, entry: str, what: AuditRequest, verdict: Verdict, times: int = 1
) -> None:
    """Write the one record of a refusal, or of so many alike.

    A name that does not resolve was not refused by us: its record says that it was allowed and failed.
    """
    ours = verdict.reason is not Reason.RESOLVE_FAILED
    seam.requests_total += 1
    seam.denied_total += 1
    record = AuditRecord(
        time=seam.clock(),
        kind=AuditKind.CONNECT,
        id=seam.new_id(),
        guest=None if guest is None else guest_part(guest),
        entry=entry,
        request=what,
        verdict=Decision.DENY if ours else Decision.ALLOW,
        reason=verdict.reason,
        rule=verdict.rule,
        message=verdict.message if times == 1 else f"{verdict.message} (refused {times} times)",
        outcome=Outcome.DENIED if ours else Outcome.FAILED,
        generation=seam.pipeline.generation,
    )
    seam.record(record, denied=True)
