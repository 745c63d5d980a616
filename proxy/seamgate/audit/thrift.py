"""Keeps a guest that is denied again and again from filling the journal: beyond a rate its denials are recorded short.

Asked by the journal for each denial. Each request still has its one terminal record, with id, time, guest, host, reason
and rule; what goes is what a guest makes long: path, query, message, steps. So a flood of denials is counted exactly
and takes a tenth of the room. No I/O; time is that of the records.
"""

from __future__ import annotations

from seamgate.audit.record import AuditGuest, AuditRecord, AuditRequest

SHORT = "too many denials a minute: path and message are left out"
_WINDOW_S = 60.0


class Thrift:
    """Counts the denials of each guest in the present minute; those without a guest share one count."""

    __slots__ = ("_counts", "_most", "_until")

    def __init__(self, denials_per_minute: int) -> None:
        self._most = denials_per_minute
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def shorten(self, record: AuditRecord) -> AuditRecord:
        """Return a denial's record as it is to be kept: the same one, or a short one beyond the rate."""
        if not self._until - _WINDOW_S <= record.time < self._until:
            self._counts = {}
            self._until = record.time + _WINDOW_S
        guest = "" if record.guest is None else record.guest.id
        count = self._counts[guest] = self._counts.get(guest, 0) + 1
        return record if count <= self._most else _short(record)


def _short(record: AuditRecord) -> AuditRecord:
    request = record.request
    return AuditRecord(
        time=record.time,
        kind=record.kind,
        id=record.id,
        guest=None if record.guest is None else AuditGuest(record.guest.id),
        entry=record.entry,
        request=None if request is None else AuditRequest(request.method, request.scheme, request.host, request.port),
        verdict=record.verdict,
        reason=record.reason,
        rule=record.rule,
        message=SHORT,
        credentials=record.credentials,
        upstream=record.upstream,
        status=record.status,
        bytes=record.bytes,
        duration_ms=record.duration_ms,
        outcome=record.outcome,
        generation=record.generation,
        websocket=record.websocket,
    )
