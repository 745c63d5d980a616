"""Records to lines and back."""

from __future__ import annotations

import json

import pytest

from seamgate.audit.line import (
    GENESIS,
    LineEncoder,
    declared_gap,
    decode_line,
    gap_of,
    hash_line,
    parse_time,
    read_link,
    relink,
    to_record,
)
from seamgate.audit.link import Link
from seamgate.audit.record import (
    AuditBytes,
    AuditGap,
    AuditGuest,
    AuditKind,
    AuditRecord,
    AuditRequest,
    AuditUpstream,
    Decision,
    GapCause,
    Outcome,
)
from seamgate.errors import AuditError, Reason
from seamgate.flow import Step

FULL = AuditRecord(
    1_800_000_000.25,
    AuditKind.REQUEST,
    id="r-1",
    guest=AuditGuest("g-1", {"team": "a"}),
    entry="proxy",
    request=AuditRequest("GET", "https", "api.example.com", 443, "/ä\n"),
    verdict=Decision.ALLOW,
    reason=Reason.ALLOWED,
    rule="llm",
    credentials=("anthropic",),
    upstream=AuditUpstream("192.0.2.1", "s-1", reused=False),
    status=200,
    bytes=AuditBytes(0, 10),
    duration_ms=1.5,
    outcome=Outcome.COMPLETE,
    steps=(Step("policy", "judge_request", 3.0, "allow"),),
    generation=2,
)


def test_a_line_begins_with_its_place_and_is_one_line() -> None:
    """Number, predecessor and time come first; no text in it can break the line."""
    line = LineEncoder().encode(FULL, 7, "ab" * 32)
    assert line.startswith(
        b'{"seq":7,"prev":"' + b"ab" * 32 + b'","time":"2027-01-15T08:00:00.250Z","schema":"seamgate.audit/1",'
        b'"kind":"request","id":"r-1"'
    )
    assert line.count(b"\n") == 1
    assert json.loads(line)["upstream"] == {"address": "192.0.2.1", "session": "s-1", "reused": False}


def test_a_line_gives_its_record_back() -> None:
    """Nothing is lost in the file."""
    assert to_record(decode_line(LineEncoder().encode(FULL, 1, GENESIS))) == FULL


@pytest.mark.parametrize(
    ("moment", "text"),
    [(0.0, "1970-01-01T00:00:00.000Z"), (1.9999, "1970-01-01T00:00:01.999Z"), (2.001, "1970-01-01T00:00:02.001Z")],
)
def test_time_is_utc_with_milliseconds(moment: float, text: str) -> None:
    """RFC 3339, rounded down, also right after a second began."""
    encoder = LineEncoder()
    encoder.encode(AuditRecord(1.5, AuditKind.REQUEST), 1, GENESIS)
    line = decode_line(encoder.encode(AuditRecord(moment, AuditKind.REQUEST), 1, GENESIS))
    assert line.time == text
    assert parse_time(text) == pytest.approx(moment, abs=0.001)


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"{}\n", b'{"seq":01,"prev":"' + b"0" * 64 + b'","time":""}\n', b'{"seq":1,"prev":"0","time":""}\n'],
)
def test_what_is_no_line_has_no_link(line: bytes) -> None:
    """A line must begin to the byte as the journal writes it."""
    assert read_link(line) is None


def test_a_link_is_what_the_line_claims_and_its_real_hash() -> None:
    """The hash covers the line feed."""
    line = LineEncoder().encode(FULL, 3, "cd" * 32)
    assert read_link(line) == Link(3, "cd" * 32, hash_line(line))
    assert read_link(line[:-1]) is None


def test_relink_changes_only_prev() -> None:
    """So that it can be told whether only `prev` was edited."""
    encoder = LineEncoder()
    assert relink(encoder.encode(FULL, 3, "cd" * 32), "ef" * 32) == encoder.encode(FULL, 3, "ef" * 32)


@pytest.mark.parametrize("line", [b"", b"{}\n", b"\xff\n", b'{"seq":1}\n'])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    """Reading garbage raises our error and no other."""
    with pytest.raises(AuditError, match="not an audit record"):
        decode_line(line)


def test_only_a_gap_that_fits_explains_a_break() -> None:
    """It must name the missing line right before it, with the hash that it continues from."""
    encoder, lost = LineEncoder(), "ab" * 32

    def declared(seq: int, prev: str, gap: AuditGap) -> bool:
        line = encoder.encode(AuditRecord(1.0, AuditKind.GAP, gap=gap), seq, prev)
        link = read_link(line)
        assert link is not None
        assert gap_of(line) == gap
        return declared_gap(line, link) is not None

    missing = AuditGap(GapCause.TAIL_MISSING, from_seq=3, to_seq=4, to_hash=lost)
    assert declared(5, lost, missing)
    assert not declared(6, lost, missing)
    assert not declared(5, "cd" * 32, missing)
    assert not declared(5, lost, AuditGap(GapCause.PRUNED, from_seq=3, to_seq=4, to_hash=lost))
    assert gap_of(encoder.encode(FULL, 1, GENESIS)) is None
    assert gap_of(b'{"kind":"gap"') is None


def test_text_that_is_not_utf8_is_replaced() -> None:
    """A lone surrogate costs its character, never the record."""
    line = LineEncoder().encode(AuditRecord(1.0, AuditKind.REQUEST, message="a\udcffb"), 1, GENESIS)
    assert decode_line(line).message == "a?b"
