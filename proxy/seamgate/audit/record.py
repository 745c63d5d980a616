"""The audit record: what is kept of every request, and of every refusal, in one versioned shape.

Built by the exchange and the entries, written by `seamgate.audit.journal`, read by plugins (`request_done`, `denied`,
`export_audit`) and by `seamgate audit`. Refusals before a target is known leave parts out, but have the same shape.
There is no field for a header value or a body, so that none can get in. No I/O, no clock: the caller gives the time.

The order of the fields is the order in a line; docs/audit.schema.json is generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from seamgate.errors import Reason
from seamgate.flow import Isolation, Step

SCHEMA = "seamgate.audit/1"
"""Name and version of the shape. Fields may be added to a version; one that changes its meaning makes a new one."""

SchemaName: TypeAlias = Literal["seamgate.audit/1"]


class AuditKind(StrEnum):
    """What a record is about."""

    REQUEST = "request"
    """A request ended: the one terminal record that it has."""
    CONNECT = "connect"
    """A tunnel was refused or ended."""
    BEGIN = "begin"
    """A request that carries a credential is about to leave: written ahead, before any byte does."""
    GATEWAY = "gateway"
    """The gateway started, stopped or loaded another policy."""
    GAP = "gap"
    """The journal tells about itself: what is missing, set aside or deleted, and why."""


class Decision(StrEnum):
    """What was decided, whatever became of it after."""

    ALLOW = "allow"
    DENY = "deny"


class Outcome(StrEnum):
    """How an exchange ended."""

    COMPLETE = "complete"
    """The response reached the guest, whole."""
    DENIED = "denied"
    """It was refused; `reason` says why."""
    TRUNCATED = "truncated"
    """The response began and was cut."""
    ABORTED = "aborted"
    """The guest, or the gateway's end, broke it off."""
    FAILED = "failed"
    """It was allowed but could not be done."""


class GapCause(StrEnum):
    """Why the journal speaks of itself. Those of `LOSSES` mean that records are gone, or may be."""

    TORN_LINE = "torn_line"
    """A crash cut the last write. What it left was never confirmed; it was set aside."""
    TAIL_MISSING = "tail_missing"
    """The file ended before the line that the head names."""
    CHAIN_BROKEN = "chain_broken"
    """The active file did not verify at start; it was closed as a segment, as it was."""
    HEAD_MISSING = "head_missing"
    """The head file was gone or damaged, so that a cut tail could not have been seen."""
    HEAD_STALE = "head_stale"
    """The file went on after what the head knows, as after a crash of the machine."""
    PATH_REPLACED = "path_replaced"
    """The file was moved, replaced or deleted while the gateway wrote it."""
    WRITE_FAILED = "write_failed"
    """Writing failed for a while; `lost` records did not fit into memory."""
    PRUNED = "pruned"
    """Segments beyond `keep` are deleted."""


LOSSES = frozenset(
    {GapCause.TAIL_MISSING, GapCause.CHAIN_BROKEN, GapCause.PATH_REPLACED, GapCause.WRITE_FAILED, GapCause.HEAD_MISSING}
)


class AuditGuest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asked. See `seamgate.flow.Guest`."""

    id: str
    labels: Mapping[str, str] = {}
    isolation: Isolation | None = None


class AuditRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked for, as far as it was understood.

    Attributes:
        method: as sent; "" if the head could not be parsed.
        scheme: "http" or "https"; the protocol or family of what is no request (`SEND`, `SOCKET`, `RESOLVE`).
        host: canonical; "" if there is none that can be trusted.
        port: 0 if unknown.
        path: canonical, without query; beyond 2,048 characters cut, followed by its length and SHA-256.
        query_names: the names in the query, in order, "" for a part that has no "=" (it may be a value).
        query: the query as sent, cut as a path beyond 8,192 characters; only if the configuration says `query: full`.
    """

    method: str = ""
    scheme: str = ""
    host: str = ""
    port: int = 0
    path: str = ""
    query_names: tuple[str, ...] = ()
    query: str | None = None


class AuditUpstream(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where it went: the validated address that was dialled, and which session carried it.

    Attributes:
        address: the validated one.
        session: the last that it was given.
        reused: whether that session had carried others before.
        attempts: how often the request was sent; left out where that is once. See docs/protocols.md, sending again.
    """

    address: str
    session: str
    reused: bool
    attempts: int = 1


class AuditBytes(msgspec.Struct, frozen=True):
    """Body bytes on the side of the guest, without framing."""

    request_body: int
    response_body: int


class AuditWebSocket(msgspec.Struct, frozen=True):
    """What went through a WebSocket; `bytes` of the record counts what the messages held.

    Attributes:
        from_guest, from_upstream: whole messages that were passed on.
        code: of the Close that ended it, whoever sent it; 1005 if that had none, 0 if there was no Close.
    """

    from_guest: int
    from_upstream: int
    code: int


class AuditGateway(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the gateway did: "start", "stop" or "reload", and facts worth keeping (version, plugins, policy files).

    "guest_end": a guest in a microVM is over; the facts say how (reason, exit status, detail). "guest_park",
    "guest_hibernate", "guest_resume": it stands still in memory, or on disk, or goes on; the facts say from what, and
    how many bytes are kept.
    """

    event: Literal["start", "stop", "reload", "guest_end", "guest_park", "guest_hibernate", "guest_resume"]
    facts: Mapping[str, str] = {}


class AuditGap(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the journal says about itself.

    Attributes:
        cause: why.
        detail: a sentence for people.
        lost: how many records are known to be lost.
        from_seq: first sequence number that is not there (any more), 0 where none is missing.
        to_seq: the last such number.
        to_hash: hash of the line `to_seq`, so that the chain can be checked from there on.
        aside: name of the file, beside the journal, that holds what was set aside.
        aside_bytes: its size.
        aside_hash: its SHA-256.
    """

    cause: GapCause
    detail: str = ""
    lost: int = 0
    from_seq: int = 0
    to_seq: int = 0
    to_hash: str = ""
    aside: str = ""
    aside_bytes: int = 0
    aside_hash: str = ""


class AuditFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All that a record and a line have in common. A part that is unknown or empty is left out.

    Attributes:
        id: the request's id, the same in the denial that the guest got.
        guest: None where the guest is not known (a bad token).
        entry: the entry's name in the configuration.
        request: None for kinds that are not about one.
        verdict: what was decided.
        reason: the stable code.
        rule: id of the rule that decided.
        message: the sentence that the guest got, cut at 1,024 characters. No secret.
        would_rule: id of a rule in audit mode that would have denied.
        would_deny: its message.
        credentials: names of the credentials that were put in.
        upstream: None if nothing was dialled.
        status: of the response that the guest got, 0 if none.
        bytes: body bytes.
        duration_ms: from the request's head to its end.
        first_byte_ms: from the request's head to the first byte of the response.
        outcome: how it ended; None in records that are not terminal.
        steps: the plugins that were called: [plugin, hook, duration_us, outcome].
        generation: number of the policy that judged.
        gateway: for kind `gateway`.
        gap: for kind `gap`.
        websocket: where the request became one.
    """

    id: str = ""
    guest: AuditGuest | None = None
    entry: str = ""
    request: AuditRequest | None = None
    verdict: Decision | None = None
    reason: Reason | None = None
    rule: str = ""
    message: str = ""
    would_rule: str = ""
    would_deny: str = ""
    credentials: tuple[str, ...] = ()
    upstream: AuditUpstream | None = None
    status: int = 0
    bytes: AuditBytes | None = None
    duration_ms: float | None = None
    first_byte_ms: float | None = None
    outcome: Outcome | None = None
    steps: tuple[Step, ...] = ()
    generation: int = 0
    gateway: AuditGateway | None = None
    gap: AuditGap | None = None
    websocket: AuditWebSocket | None = None


class AuditRecord(AuditFacts, frozen=True, omit_defaults=True):
    """One record, before the journal gives it its place in the chain.

    Attributes:
        time: Unix time in seconds at which it was made; milliseconds are kept.
        kind: what it is about.
    """

    time: float
    kind: AuditKind


class AuditLine(AuditFacts, frozen=True, omit_defaults=True):
    """A record as it stands in the journal. Readers ignore fields that they don't know.

    Attributes:
        seq: position in the journal, from 1, over all segments.
        prev: SHA-256 of the line before, its line feed included: 64 lower-case hex digits; zeros for the first.
        time: RFC 3339, UTC, with milliseconds.
        schema: `seamgate.audit/1`.
        kind: what it is about.
    """

    seq: int
    prev: str
    time: str
    schema: SchemaName
    kind: AuditKind
