"""`seamgate.audit.thrift`: whose denials are recorded short, and what is left in such a record."""

from __future__ import annotations

from seamgate.audit.record import AuditGuest, AuditKind, AuditRecord, AuditRequest, Decision, Outcome
from seamgate.audit.thrift import SHORT, Thrift
from seamgate.errors import Reason
from seamgate.flow import Step


def denial(guest: str | None, time: float = 1000.0) -> AuditRecord:
    return AuditRecord(
        time,
        AuditKind.REQUEST,
        id="r1",
        guest=None if guest is None else AuditGuest(guest, {"team": "x"}),
        entry="proxy",
        request=AuditRequest("GET", "https", "a.test", 443, "/long", ("q",)),
        verdict=Decision.DENY,
        reason=Reason.RULE_DENIED,
        rule="no",
        message="why",
        status=403,
        outcome=Outcome.DENIED,
        steps=(Step("policy", "judge_request", 1.0, "deny"),),
    )


def test_each_guest_has_its_own_count_in_each_minute() -> None:
    """What one does shortens nobody else's records, and a minute later all are full again."""
    thrift = Thrift(2)
    for guest in ("a", "b", None):
        record = denial(guest)
        assert [thrift.shorten(record) is record for _ in range(4)] == [True, True, False, False]
    later = denial("a", 1060.0)
    assert thrift.shorten(later) is later
    earlier = denial("a", 10.0)  # the clock was set back
    assert thrift.shorten(earlier) is earlier


def test_a_short_record_tells_who_where_and_why() -> None:
    """Only what a guest makes long is gone."""
    assert Thrift(0).shorten(denial("a")) == AuditRecord(
        1000.0,
        AuditKind.REQUEST,
        id="r1",
        guest=AuditGuest("a"),
        entry="proxy",
        request=AuditRequest("GET", "https", "a.test", 443),
        verdict=Decision.DENY,
        reason=Reason.RULE_DENIED,
        rule="no",
        message=SHORT,
        status=403,
        outcome=Outcome.DENIED,
    )
