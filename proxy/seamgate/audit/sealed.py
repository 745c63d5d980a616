"""A record whose line another process has written, but for its place in the chain. Value only.

Where a gateway has workers they encode their records themselves, since the supervisor has those of all to write:
`seamgate.workers.sealing` makes these, the journal takes them as any record, and `seamgate.audit.line` puts number and
hash before them.
"""

from __future__ import annotations

from seamgate.audit.record import AuditRecord


class SealedRecord(AuditRecord, frozen=True, kw_only=True):
    """What the journal has to know of a record that was allowed, and the rest of it as it will stand in the file.

    Attributes:
        tail: its line from `"time"` on, line feed included.
    """

    tail: bytes
