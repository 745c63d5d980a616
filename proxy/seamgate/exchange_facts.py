"""The audit hop of an exchange: what is known of it so far, and the records that say so. Pure.

Owned by an exchange, which notes here what it decides and finds out, from judging it (`seamgate.exchange_approach`) to
its end (`seamgate.exchange`). Writes nothing by itself: whoever asks for a record hands it to the seam.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

from seamgate.audit.parts import guest_part, request_part
from seamgate.audit.record import AuditBytes, AuditKind, AuditRecord, AuditRequest, AuditUpstream, Decision, Outcome
from seamgate.errors import Blame, Reason
from seamgate.flow import Request, Step, Supply
from seamgate.seam import Seam
from seamgate.verdict import NO_OPINION, Effect, Verdict

# A member of an enumeration costs a look-up in its class and its base classes each time, an imported name one in the
# module: these are asked for often.
_ALLOW: Final = Effect.ALLOW
_ALLOWED: Final = Decision.ALLOW
_DENIED: Final = Decision.DENY
_NO_REASON: Final = Reason.ALLOWED
_Record: Final = AuditRecord
_NO_OPINION: Final = NO_OPINION
_monotonic: Final = monotonic
_guest_part: Final = guest_part
# How what was allowed may end without our having refused it after all.
_NOT_OURS: Final = frozenset(
    (Reason.GUEST_GONE, Reason.GUEST_TIMEOUT, *[each for each in Reason if each.blame is Blame.UPSTREAM])
)


class Facts:
    """What there is to say of one exchange.

    Attributes:
        entry: where it came in.
        verdict: the last one on the request.
        ending: why it ended otherwise than well; None: it did not.
        steps: who was asked, in order.
        supplies: the credentials that go along.
        session: what carries it; None: nothing yet.
        status: of the answer that the guest gets; 0: none yet.
        first_byte_ms: from its beginning until the final head came; None: not yet.
    """

    __slots__ = (
        "_asked", "_asked_of", "ending", "entry", "first_byte_ms", "session", "started", "status", "steps", "supplies",
        "verdict",
    )  # fmt: skip

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.started = _monotonic()
        self.verdict: Verdict = _NO_OPINION
        self.ending: Verdict | None = None
        self.steps: list[Step] = []
        self.supplies: list[Supply] = []
        self.session: AuditUpstream | None = None
        self.status = 0
        self.first_byte_ms: float | None = None
        self._asked: AuditRequest | None = None
        self._asked_of: Request | None = None

    @property
    def decision(self) -> Decision:
        """What we decided: an allowed request that the upstream failed, or the guest left, was allowed."""
        if self.verdict.effect is not _ALLOW:
            return _DENIED
        return _ALLOWED if self.ending is None or self.ending.reason in _NOT_OURS else _DENIED

    def elapsed_ms(self) -> float:
        """Return how long ago it began, in milliseconds."""
        return (_monotonic() - self.started) * 1000

    def record(
        self,
        seam: Seam,
        request: Request,
        generation: int,
        kind: AuditKind,
        outcome: Outcome | None,
        passed: AuditBytes | None,
    ) -> AuditRecord:
        """Return the record of what is known now.

        Args:
            seam: for the clock, and how much of a query may be told.
            request: as it is now.
            generation: of the policy that decided last.
            kind: a beginning, or the terminal one.
            outcome: None in the one that is written ahead.
            passed: how much of both bodies went by; None in the one that is written ahead.
        """
        verdict = self.verdict
        why = self.ending or verdict
        reason = why.reason
        terminal = outcome is not None
        return _Record(
            time=seam.clock(),
            kind=kind,
            id=request.id,
            guest=_guest_part(request.guest),
            entry=self.entry,
            request=self._part(seam, request, reason),
            verdict=self.decision,
            reason=reason,
            rule=why.rule or verdict.rule,
            message=why.message,
            would_rule=verdict.would_rule,
            would_deny=verdict.would_deny,
            credentials=tuple([supply.credential for supply in self.supplies]),
            upstream=self.session,
            status=self.status,
            bytes=passed,
            duration_ms=self.elapsed_ms() if terminal else None,
            first_byte_ms=self.first_byte_ms,
            outcome=outcome,
            steps=tuple(self.steps) if terminal else (),
            generation=generation,
        )

    def _part(self, seam: Seam, request: Request, reason: Reason) -> AuditRequest:
        """Return the request's part of a record; both records of an allowed request have the same."""
        if self._asked is None or self._asked_of is not request or reason is not _NO_REASON:
            self._asked = request_part(request, seam.query_mode, reason)
            self._asked_of = request
        return self._asked
