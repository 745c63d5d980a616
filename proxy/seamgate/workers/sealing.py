"""Records as lines without their place in the chain: written by workers, chained by the supervisor. No I/O.

Only what was allowed goes so. Denials go as they are, because the journal shortens those that are too many.
"""

from __future__ import annotations

from seamgate.audit.line import LineEncoder
from seamgate.audit.record import AuditRecord
from seamgate.audit.sealed import Sealed


class Sealer:
    """Seals the records of one worker."""

    def __init__(self) -> None:
        self._encoder = LineEncoder()

    def seal(self, record: AuditRecord) -> Sealed:
        """Return the record as it can be sent."""
        return Sealed(record.id, self._encoder.tail(record))
