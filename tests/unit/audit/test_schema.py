"""The published schema is what the gateway writes."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.reading import read_lines
from seamgate.audit.record import (
    AuditBytes,
    AuditGateway,
    AuditGuest,
    AuditKind,
    AuditRecord,
    AuditRequest,
    AuditUpstream,
    Decision,
    Outcome,
)
from seamgate.audit.schema import line_schema, schema_text
from seamgate.errors import Reason
from seamgate.flow import Isolation, Step

PUBLISHED = Path(__file__).parents[3] / "docs" / "audit.schema.json"


def test_the_published_schema_is_up_to_date() -> None:
    """docs/audit.schema.json is generated: `python -m seamgate.audit.schema > docs/audit.schema.json`."""
    assert PUBLISHED.read_text() == schema_text()


@pytest.mark.parametrize(("keep", "expected"), [(1000, {"gateway", "begin", "request", "connect"}), (1, {"gap"})])
def test_real_lines_are_valid(tmp_path: Path, keep: int, expected: set[str]) -> None:
    """Every kind of line, full or empty, pruning included, is what the schema says."""
    path = tmp_path / "audit.jsonl"
    journal = Journal(AuditConfig(path=str(path), fsync="never", max_size_bytes=4096, keep=keep, keep_min_age_s=0))
    journal.append(AuditRecord(1.0, AuditKind.GATEWAY, gateway=AuditGateway("start", {"version": "0.1.0"})))
    for number in range(20):
        for kind in (AuditKind.BEGIN, AuditKind.REQUEST):
            journal.begin(_full(number, kind))
    for reason in Reason:
        verdict = Decision.ALLOW if reason is Reason.ALLOWED else Decision.DENY
        journal.append(AuditRecord(2.0, AuditKind.CONNECT, verdict=verdict, reason=reason))
    journal.append(AuditRecord(2.0, AuditKind.REQUEST))
    journal.close()
    validator = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))
    kinds = set()
    for line in read_lines(path):
        facts = json.loads(line)
        validator.validate(facts)
        kinds.add(facts["kind"])
    assert expected <= kinds


@pytest.mark.parametrize(
    "change", [{"seq": 0}, {"prev": "x"}, {"time": "yesterday"}, {"schema": "seamgate.audit/2"}, {"verdict": "maybe"}]
)
def test_other_lines_are_not_valid(change: dict[str, object]) -> None:
    """The schema is no blank cheque."""
    line = {
        "seq": 1, "prev": "0" * 64, "time": "2026-12-01T09:00:00.000Z", "schema": "seamgate.audit/1", "kind": "request",
    }  # fmt: skip
    validator = jsonschema.Draft202012Validator(line_schema())
    assert validator.is_valid(line)
    assert not validator.is_valid({**line, **change})


def _full(number: int, kind: AuditKind) -> AuditRecord:
    return AuditRecord(
        1_800_000_000.0 + number,
        kind,
        id=f"r-{number}",
        guest=AuditGuest("g-1", {"team": "a"}, Isolation.PROXY),
        entry="proxy",
        request=AuditRequest("GET", "https", "api.example.com", 443, "/", ("a", ""), None),
        verdict=Decision.ALLOW,
        reason=Reason.ALLOWED,
        rule="llm",
        message="fine",
        would_rule="next",
        would_deny="not yet",
        credentials=("anthropic",),
        upstream=AuditUpstream("192.0.2.1", "s-1", reused=True),
        status=200,
        bytes=AuditBytes(0, 10),
        duration_ms=1.5,
        first_byte_ms=1.0,
        outcome=Outcome.COMPLETE,
        steps=(Step("policy", "judge_request", 3.0, "allow"),),
        generation=2,
    )
