"""Looks at a journal before it is written again: where its chain ends, and what is not as it should be.

Called by the journal at start, and whenever the file is not the one that it left. Reads only; the journal then sets
aside, truncates, and records what was found. Nothing is repaired silently: everything odd becomes an `AuditGap`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from seamgate.audit.head import HeadState, Mark
from seamgate.audit.line import GENESIS, declared_gap, decode_line, parse_time, read_link, to_record
from seamgate.audit.link import Link
from seamgate.audit.record import AuditGap, AuditKind, AuditRecord, GapCause
from seamgate.audit.segments import finished_segments
from seamgate.errors import AuditError

# A record is at most some 100 KiB (a request head has a limit); the last line of a segment is found within this.
_TAIL_BYTES = 1024 * 1024


class Findings(msgspec.Struct):
    """What was found.

    Attributes:
        end: number and hash that the next line follows, and the size of the active file up to its last whole line.
        first_seq: number of the active file's first line, 0 if it has none.
        started_at: Unix time of that line, 0.0 if it has none.
        torn: what follows the last whole line.
        broken: why the active file is not a chain, "" if it is. It must be closed as it is.
        gaps: what to record about all this.
    """

    end: Mark = Mark()
    first_seq: int = 0
    started_at: float = 0.0
    torn: bytes = b""
    broken: str = ""
    gaps: list[AuditGap] = []


class _Walk(msgspec.Struct):
    """The state of one pass over the active file. `last` begins as the newest segment's last line, if there is one."""

    last: Link | None
    size_bytes: int = 0
    first: bytes = b""
    first_seq: int = 0
    torn: bytes = b""
    broken: str = ""
    head_hash: str = ""


def examine(journal: Path, known: HeadState | None, *, head_existed: bool, running: bool) -> Findings:
    """Return where the journal ends and what is odd about it.

    Args:
        journal: the active file; it may be missing.
        known: what the head, or the running gateway, knows of its end.
        head_existed: whether there was a head file, be it damaged.
        running: whether the gateway was writing it a moment ago.

    Raises:
        OSError: it can't be read.
    """
    before = _last_of_newest_segment(journal)
    walk = _walk(journal, before, known.written.seq if known else 0)
    findings = Findings(first_seq=walk.first_seq, torn=walk.torn, broken=walk.broken)
    last = walk.last if walk.last is not None else Link(0, "", GENESIS)
    findings.end = Mark(last.seq, walk.size_bytes, last.hash)
    if walk.first:
        findings.started_at = _time_of(walk.first)
    if known is None:
        if head_existed or last.seq:
            findings.gaps.append(_head_gap(journal, damaged=head_existed))
    else:
        _compare(findings, walk, known, running=running)
    if findings.broken:
        # Whatever stands in that file, the chain goes on from the farthest point that was ever confirmed.
        gap = AuditGap(
            GapCause.CHAIN_BROKEN,
            detail=f"the active file was closed as it was: {findings.broken}; `seamgate audit verify` names the line",
            from_seq=walk.first_seq or (before.seq + 1 if before else 1),
            to_seq=findings.end.seq,
            to_hash=findings.end.hash,
        )
        findings.gaps.insert(0, gap)
    elif findings.torn:
        findings.gaps.insert(0, _torn_gap(journal, findings))
    return findings


def _compare(findings: Findings, walk: _Walk, known: HeadState, *, running: bool) -> None:
    """Hold the file's end against what is known of it."""
    written, intended, end = known.written, known.intended, findings.end
    for mark, digest in ((written, walk.head_hash), (intended, end.hash if end.seq == intended.seq else "")):
        if digest and digest != mark.hash:
            # The chain goes on from the true line, so that the false one is named for ever.
            findings.broken = findings.broken or f"line {mark.seq} is not the one that the head knows"
            findings.end = Mark(mark.seq, end.size_bytes, mark.hash)
    if end.seq < written.seq:
        if not findings.broken:
            findings.gaps.append(_missing_gap(end.seq, written, running=running))
        findings.end = Mark(written.seq, end.size_bytes, written.hash)
    elif end.seq > intended.seq and not findings.broken:
        detail = f"lines {intended.seq + 1} to {end.seq} are whole, but newer than the head knows"
        findings.gaps.append(AuditGap(GapCause.HEAD_STALE, detail=detail))


def _missing_gap(last_seq: int, written: Mark, *, running: bool) -> AuditGap:
    missing = written.seq - last_seq
    how = "the file was moved, replaced or cut while the gateway wrote it" if running else "the file ends too early"
    return AuditGap(
        GapCause.PATH_REPLACED if running else GapCause.TAIL_MISSING,
        detail=f"{how}: lines {last_seq + 1} to {written.seq} are missing",
        lost=missing,
        from_seq=last_seq + 1,
        to_seq=written.seq,
        to_hash=written.hash,
    )


def _head_gap(journal: Path, *, damaged: bool) -> AuditGap:
    what = "is damaged" if damaged else "is missing"
    return AuditGap(
        GapCause.HEAD_MISSING, detail=f"{journal.name}.head {what}: whether lines were cut off the end can't be told"
    )


def _torn_gap(journal: Path, findings: Findings) -> AuditGap:
    digest = sha256(findings.torn).hexdigest()
    return AuditGap(
        GapCause.TORN_LINE,
        detail="a write was cut off; what it left was never confirmed and is set aside",
        aside=f"{journal.name}.torn-{findings.end.seq + 1:016d}-{digest[:8]}",
        aside_bytes=len(findings.torn),
        aside_hash=digest,
    )


def _walk(journal: Path, before: Link | None, head_seq: int) -> _Walk:
    walk = _Walk(before)
    if before is not None and before.seq == head_seq:
        walk.head_hash = before.hash
    for line in _lines_of(journal):
        if not line.endswith(b"\n"):
            walk.torn = line
            return walk
        link = read_link(line)
        walk.broken = walk.broken or _break(line, link, walk)
        if link is None or walk.broken:
            # The rest is passed over only for its size: the file is closed as a whole.
            walk.size_bytes += len(line)
            continue
        if not walk.size_bytes:
            walk.first, walk.first_seq = line, link.seq
        walk.size_bytes += len(line)
        walk.last = link
        if link.seq == head_seq:
            walk.head_hash = link.hash
    return walk


def _break(line: bytes, link: Link | None, walk: _Walk) -> str:
    """Return why the line does not follow, "" if it does."""
    if link is None:
        return "it holds a line that is no record"
    # Where older segments were moved away there is nothing to hold the first line against; `verify` judges that.
    if walk.last is None or (link.seq == walk.last.seq + 1 and link.prev == walk.last.hash):
        return ""
    gap = declared_gap(line, link)
    if gap is not None and gap.from_seq <= walk.last.seq + 1 < link.seq:
        return ""
    return f"line {link.seq} does not follow the line before it"


def _lines_of(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        return


def _last_of_newest_segment(journal: Path) -> Link | None:
    segments = finished_segments(journal)
    if not segments:
        return None
    with segments[-1].open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().splitlines(keepends=True)
    return next((link for line in reversed(lines) if (link := read_link(line)) is not None), None)


def began_at(segment: Path) -> float:
    """Return the Unix time of a segment's first record; that of its last change if it has none that can be read."""
    with segment.open("rb") as file:
        return _time_of(file.readline()) or os.fstat(file.fileno()).st_mtime


def _time_of(line: bytes) -> float:
    try:
        return parse_time(decode_line(line).time)
    except (AuditError, ValueError):
        return 0.0


def unfinished_requests(journal: Path) -> list[AuditRecord]:
    """Return the records that were begun and have no terminal one, in the active file and the segment before it.

    Raises:
        OSError: a file can't be read.
    """
    begun: dict[str, AuditRecord] = {}
    for path in [*finished_segments(journal)[-1:], journal]:
        for line in _lines_of(path):
            _follow_request(line, begun)
    return list(begun.values())


def _follow_request(line: bytes, begun: dict[str, AuditRecord]) -> None:
    if not begun and b'"kind":"begin"' not in line:
        return
    try:
        facts = decode_line(line)
        if facts.kind is AuditKind.BEGIN:
            begun[facts.id] = to_record(facts)
        else:
            begun.pop(facts.id, None)
    except (AuditError, ValueError):
        return
