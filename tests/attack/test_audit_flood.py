"""AuditLoss: a guest that is denied again and again pushes no other guest's records out of the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.reading import read_lines, verify_journal
from seamgate.audit.record import AuditGuest, AuditKind, AuditRecord, Decision
from seamgate.audit.segments import finished_segments
from seamgate.errors import Reason
from support.lab import ALLOW_ALL, Lab
from support.upstream import HttpUpstream, echo

SHORT_ONLY = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "paths": ["/short"]}}


@contextmanager
def _capture_logs() -> Iterator[list[MutableMapping[str, Any]]]:
    before, capture = structlog.get_config(), LogCapture()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        yield capture.entries
    finally:
        structlog.configure(**before)


def _denial(number: int, guest: str, time: float) -> AuditRecord:
    return AuditRecord(
        time,
        AuditKind.REQUEST,
        id=f"{guest}-{number}",
        guest=AuditGuest(guest),
        verdict=Decision.DENY,
        reason=Reason.RULE_DENIED,
        message="x" * 60_000,
    )


def _ids(path: Path) -> list[str]:
    return [json.loads(line).get("id", "") for line in read_lines(path)]


async def test_long_paths_are_cut_in_the_journal() -> None:
    """The longest path that is taken makes a record of a few KiB, from which the same path can still be told."""
    path = "/" + "a" * 8_000
    async with Lab(HttpUpstream(echo), rules=[SHORT_ONLY]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", path)).status == 403
        client.close()
        await lab.until(lambda: len(lab.records) == 1)
        await lab.gateway.stop(grace_s=1.0)
        (line,) = [each for each in read_lines(lab.gateway.journal_path) if b'"kind":"request"' in each]
        assert len(line) < 6_000
        kept = json.loads(line)["request"]["path"]
        assert kept.startswith(path[:2048] + " [cut: 8001 characters")
        assert sha256(path.encode()).hexdigest() in kept
        lab._claimed += 1


def test_a_flood_of_denials_deletes_nothing_that_is_young(tmp_path: Path) -> None:
    """`keep` alone would have deleted it; the log warns, the chain is whole, each denial has its record."""
    path, now = tmp_path / "audit.jsonl", [1_800_000_000.0]
    config = AuditConfig(path=str(path), fsync="never", max_size_bytes=4096, keep=2, denials_per_minute=5)
    with _capture_logs() as logged:
        journal = Journal(config, clock=lambda: now[0])
        journal.append(_denial(0, "victim", now[0]))
        for number in range(200):
            now[0] += 0.01
            journal.append(_denial(number, "flood", now[0]))
            journal.flush()
        assert len(finished_segments(path)) > 2
        assert {each["log_level"] for each in logged} == {"warning"}
        assert _ids(path) == ["victim-0", *(f"flood-{number}" for number in range(200))]
        assert max(map(len, read_lines(path))) < 2_000
        now[0] += 90_000  # a day later they may go
        for number in range(200, 220):
            journal.append(_denial(number, "flood", now[0]))
            journal.flush()
        journal.close()
    assert "victim-0" not in _ids(path)
    report = verify_journal(path)
    assert report.fault is None and not report.losses


@pytest.mark.parametrize("guest", ["flood", None])
def test_many_denials_take_little_room(tmp_path: Path, guest: str | None) -> None:
    """Also those of nobody: each has its one record, and beyond the rate it is a short one."""
    path = tmp_path / "audit.jsonl"
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    for number in range(2_000):
        record = _denial(number, "flood", 1_800_000_000.0)
        journal.append(record if guest else AuditRecord(record.time, record.kind, id=record.id, verdict=Decision.DENY))
    journal.close()
    assert len(_ids(path)) == 2_000
    assert path.stat().st_size < 2_000 * 400 + 600 * 1_500
