"""The record of something that was judged and is no request: a name, a packet, a connection without HTTP."""

from __future__ import annotations

from seamgate.audit.parts import guest_part
from seamgate.audit.record import AuditKind, AuditRecord, AuditRequest, Decision, Outcome
from seamgate.errors import Reason
from seamgate.flow import Guest
from seamgate.seam import Seam
from seamgate.verdict import Effect, Verdict


def record_refusal(
    seam: Seam, guest: Guest | None, entry: str, what: AuditRequest, verdict: Verdict, times: int = 1
) -> None:
    """Write the one record of a refusal, or of so many alike; or of a name that was let through.

    A name that does not resolve was not refused by us: its record says that it was allowed and failed.
    """
    ours = verdict.reason is not Reason.RESOLVE_FAILED
    passed = verdict.effect is not Effect.DENY
    many = "" if times == 1 else f"asked {times} times" if passed else f"(refused {times} times)"
    seam.requests_total += 1
    seam.denied_total += not passed
    record = AuditRecord(
        time=seam.clock(),
        kind=AuditKind.CONNECT,
        id=seam.new_id(),
        guest=None if guest is None else guest_part(guest),
        entry=entry,
        request=what,
        verdict=Decision.DENY if ours and not passed else Decision.ALLOW,
        reason=verdict.reason,
        rule=verdict.rule,
        message=" ".join([part for part in (verdict.message, many) if part]),
        outcome=Outcome.COMPLETE if passed else Outcome.DENIED if ours else Outcome.FAILED,
        generation=seam.pipeline.generation,
    )
    seam.record(record, denied=not passed)
