"""Records as lines without their place in the chain: written by workers, chained by the supervisor. No I/O.

Only what was allowed goes so. Denials go as they are, because the journal shortens those that are too many.
"""

from __future__ import annotations

from typing import Final

import msgspec

from seamgate.audit.line import GENESIS, LineEncoder, decode_line, to_record
from seamgate.audit.record import AuditKind, AuditRecord
from seamgate.audit.sealed import SealedRecord

_HEAD: Final = b'{"seq":1,"prev":"%b",' % GENESIS.encode()


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A record on its way: the request's id, Unix time, and the line from `"time"` on."""

    id: str
    time: float
    tail: bytes


class Sealer:
    """Seals the records of one worker."""

    def __init__(self) -> None:
        self._encoder = LineEncoder()

    def seal(self, record: AuditRecord) -> Sealed:
        """Return the record as it can be sent."""
        return Sealed(record.id, record.time, self._encoder.encode(record, 1, GENESIS)[len(_HEAD) :])


def as_record(sealed: Sealed, kind: AuditKind) -> SealedRecord:
    """Return what the journal takes."""
    return SealedRecord(sealed.time, kind, id=sealed.id, tail=sealed.tail)


def opened(record: AuditRecord) -> AuditRecord:
    """Return the record itself, also of one that is sealed.

    Raises:
        AuditError: what was sealed is no record.
    """
    return to_record(decode_line(_HEAD + record.tail)) if isinstance(record, SealedRecord) else record
