"""Records to lines and back: the bytes of the journal, and the chain that links them.

A line is one JSON object and a line feed. It begins, to the byte, with `{"seq":N,"prev":"<64 hex>","time":"...",` and
`prev` is the SHA-256 of the line before, line feed included, so that `sed -n 41p audit.jsonl | sha256sum` is what line
42 says. Used by the journal, which writes lines, and by `verify`, which trusts none. No I/O.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from hashlib import sha256
from typing import Final

import msgspec

from seamgate.audit.layout import native_chain, native_lines, native_sha256_hex
from seamgate.audit.link import Link
from seamgate.audit.parts import LONGEST_MESSAGE, rounded, with_short_messages
from seamgate.audit.record import SCHEMA, AuditGap, AuditKind, AuditLine, AuditRecord, GapCause
from seamgate.audit.sealed import Entry, Sealed
from seamgate.errors import AuditError

GENESIS = "0" * 64
"""What the first line of a journal names as its predecessor."""

# A Final of the module is read at once; an imported name is looked up each time.
_SCHEMA_BYTES: Final = SCHEMA.encode()
_LONGEST: Final = LONGEST_MESSAGE
_Sealed: Final = Sealed
_START = re.compile(rb'\{"seq":([1-9][0-9]{0,18}),"prev":"([0-9a-f]{64})","time":"')
_GAP_MARK = b'"kind":"gap"'
_BREAKS = frozenset({GapCause.TAIL_MISSING, GapCause.PATH_REPLACED, GapCause.CHAIN_BROKEN})
_FACTS = AuditLine.__struct_fields__[5:]
_decoder = msgspec.json.Decoder(AuditLine)


_EMPTY: Final = sha256()
_sha256_hex: Final = native_sha256_hex()
_chain: Final = native_chain()


class LineEncoder:
    """Turns records into lines. Has no memory of the chain; the journal brings number and hash.

    Numbers with a fraction have three decimals: more is noise, and half of a line's digits.
    """

    def __init__(self) -> None:
        self._native = native_lines()
        self._encode = msgspec.json.Encoder().encode
        self._second = -1
        self._prefix = b""

    def encode(self, record: Entry, seq: int, prev: str) -> bytes:
        """Return the record's line, line feed included; messages are cut to a bounded length."""
        return chain_in_python(seq, prev, [self.tail(record)], 0)[0]

    def tail(self, record: Entry) -> bytes:
        """Return the record's line from `"time"` on: what does not depend on its place in the chain."""
        if isinstance(record, _Sealed):
            return record.tail
        if len(record.message) > _LONGEST or len(record.would_deny) > _LONGEST:
            record = with_short_messages(record)
        if self._native is not None:
            milliseconds = int(record.time * 1000)
            second = self._second_text(milliseconds // 1000)
            tail = self._native.encode(second, milliseconds % 1000, _SCHEMA_BYTES, record)
            if tail is not None:
                return tail
        return self.tail_in_python(record)

    def tail_in_python(self, record: AuditRecord) -> bytes:
        """Return the same of a record whose messages are short."""
        record = rounded(record)
        try:
            body = self._encode(record)
        except UnicodeEncodeError:
            # A lone surrogate somewhere. An audit record is never dropped for its spelling.
            body = json.dumps(msgspec.to_builtins(record), separators=(",", ":"), ensure_ascii=False).encode(
                "utf-8", "replace"
            )
        # `time` is a record's first field; in a line it is text, so the number is cut off up to its comma.
        return b'"time":"%s","schema":"%s",%s\n' % (
            self._timestamp(record.time),
            _SCHEMA_BYTES,
            body[body.index(b",") + 1 :],
        )

    def _timestamp(self, unix_time: float) -> bytes:
        milliseconds = int(unix_time * 1000)
        return b"%s.%03dZ" % (self._second_text(milliseconds // 1000), milliseconds % 1000)

    def _second_text(self, second: int) -> bytes:
        if second != self._second:
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
            self._second = second
        return self._prefix


def chain(seq: int, prev: str, tails: list[bytes], room_bytes: int) -> tuple[bytes, list[int], str]:
    """Return lines of the chain, one for each tail, as far as there is room; the first one also if there is none.

    Args:
        seq: the first one's number.
        prev: what it names as the hash of the line before.
        tails: of `LineEncoder.tail`, at least one.
        room_bytes: for all lines together.

    Returns:
        The lines, where in them each ends, and the hash of the last one.
    """
    return chain_in_python(seq, prev, tails, room_bytes) if _chain is None else _chain(seq, prev, tails, room_bytes)


def chain_in_python(seq: int, prev: str, tails: list[bytes], room_bytes: int) -> tuple[bytes, list[int], str]:
    """See `chain`."""
    lines: list[bytes] = []
    ends: list[int] = []
    end = 0
    for tail in tails:
        line = b'{"seq":%d,"prev":"%b",%b' % (seq + len(lines), prev.encode(), tail)
        end += len(line)
        if end > room_bytes and lines:
            break
        lines.append(line)
        ends.append(end)
        prev = hash_line(line)
    return b"".join(lines), ends, prev


def hash_line(line: bytes) -> str:
    """Return the SHA-256 of the line, line feed included: 64 lower-case hex digits."""
    if _sha256_hex is not None:
        return _sha256_hex(line)
    state = _EMPTY.copy()  # a copy costs half of a new one, for which OpenSSL looks the algorithm up again
    state.update(line)
    return state.hexdigest()


def read_link(line: bytes) -> Link | None:
    """Return the line's place in the chain, or None if it does not begin as the journal's lines do."""
    found = _START.match(line)
    if found is None or not line.endswith(b"}\n"):
        return None
    return Link(int(found[1]), found[2].decode(), sha256(line).hexdigest())


def relink(line: bytes, prev: str) -> bytes:
    """Return the line as it would be with this `prev`: to tell which end of a broken link was edited.

    Precondition: `read_link` accepts the line.
    """
    found = _START.match(line)
    assert found is not None
    return line[: found.start(2)] + prev.encode() + line[found.end(2) :]


def decode_line(line: bytes) -> AuditLine:
    """Return what the line says.

    Raises:
        AuditError: it is not a whole line of this schema.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AuditError(f"not an audit record of {SCHEMA}: {error}") from None


def to_record(line: AuditLine) -> AuditRecord:
    """Return the record that the line was made of (its time to the millisecond)."""
    facts = {name: getattr(line, name) for name in _FACTS}
    return AuditRecord(parse_time(line.time), AuditKind(line.kind), **facts)


def opened(record: Entry) -> AuditRecord:
    """Return the record itself, also of one that is sealed.

    Raises:
        AuditError: what was sealed is no record.
    """
    if isinstance(record, AuditRecord):
        return record
    return to_record(decode_line(b'{"seq":1,"prev":"%b",%b' % (GENESIS.encode(), record.tail)))


def declared_gap(line: bytes, link: Link) -> AuditGap | None:
    """Return the gap by which this line explains that it does not follow the line before it, if it does so.

    Such a line is the first after lines that are gone, and it continues from the hash of the last of those.
    """
    gap = gap_of(line)
    if gap is None or gap.cause not in _BREAKS or gap.to_seq != link.seq - 1 or gap.to_hash != link.prev:
        return None
    return gap


def gap_of(line: bytes) -> AuditGap | None:
    """Return what the line says about the journal itself, None if it is about something else (or unreadable)."""
    if _GAP_MARK not in line:
        return None
    try:
        return decode_line(line).gap
    except AuditError:
        return None


def parse_time(text: str) -> float:
    """Return the Unix time of an RFC 3339 timestamp; local time where it names no zone.

    Raises:
        ValueError: it is none.
    """
    return datetime.fromisoformat(text).timestamp()
