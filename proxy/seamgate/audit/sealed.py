"""A record whose line another process has written, but for its place in the chain. Value only.

Where a gateway has workers they encode their records themselves, since the supervisor has those of all to write:
`seamgate.workers.sealing` makes these, the journal takes them as any record, and `seamgate.audit.line` puts number and
hash before them. They come as they go into the file: nothing is taken apart on the way.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from seamgate.audit.record import AuditRecord


class Sealed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record about a request that was allowed.

    Attributes:
        id: the request's.
        tail: its line from `"time"` on, line feed included.
        gap: of no such record.
    """

    id: str
    tail: bytes
    gap: ClassVar[None] = None


Entry: TypeAlias = AuditRecord | Sealed
"""What the journal writes."""
