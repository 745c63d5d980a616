"""Why the gateway begins nothing new, for the moment or for this target: one answer for every entry.

Called by entries and exchanges before policy is asked. Judges nobody, and knows no rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from seamgate.errors import Reason, SeamgateError
from seamgate.verdict import Verdict, denial_of, deny

if TYPE_CHECKING:
    from seamgate.flow import Target
    from seamgate.seam import Seam

STOPPING: Final = deny("the gateway is stopping", reason=Reason.SHUTTING_DOWN)
_UNRECORDED: Final = deny("the audit log can't be written", reason=Reason.AUDIT_UNAVAILABLE)


def nothing_begins(seam: Seam) -> Verdict | None:
    """Return the denial of whatever is asked for now, or None if the gateway takes requests."""
    if seam.draining:
        return STOPPING
    return None if seam.journal.healthy else _UNRECORDED


def no_stream_begins(seam: Seam, target: Target) -> Verdict | None:
    """As `nothing_begins`; and the denial of an address that is the gateway's own, which a tunnel must not lead to."""
    refusal = nothing_begins(seam)
    if refusal is None and target.is_address:
        try:
            seam.own.check((target.host,), target.port)
        except SeamgateError as error:
            return denial_of(error)
    return refusal
