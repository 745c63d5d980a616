"""What must be true after every simulation, whatever happened in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import msgspec

from seamgate.audit.journal import Journal
from seamgate.audit.reading import read_lines, verify_journal
from seamgate.audit.record import AuditRecord
from simulation.clock import CLOCK
from simulation.guests import Asked, is_denial
from simulation.servers import NAMES, SECRET
from simulation.world import Outcome

STANDING_STILL_S = 30.0
REPEATABLE = ("GET", "HEAD", "PUT")


def faults(outcome: Outcome) -> list[str]:
    """Return what is wrong, nothing if all holds."""
    return [
        *_audit(outcome),
        *_killed(outcome),
        *_upstreams(outcome),
        *_guests(outcome),
        *_durations(outcome),
        *_rest(outcome),
    ]


def _audit(outcome: Outcome) -> Iterator[str]:
    """Each request has exactly one terminal record, in memory and on the disk; the chain verifies."""
    records, seam = outcome.records, outcome.gateway.seam
    ids = Counter(record.id for record in records)
    if repeated := [each for each, count in ids.items() if count > 1]:
        yield f"more than one terminal record: {repeated}"
    if len(records) != seam.requests_total:
        yield f"{seam.requests_total} requests, {len(records)} terminal records"
    lines = [json.loads(line) for line in read_lines(outcome.journal)]
    written = Counter(line["id"] for line in lines if line["kind"] in ("request", "connect"))
    if written != ids:
        yield f"on the disk are other records than were made: {(written - ids) + (ids - written)}"
    begun = {line["id"] for line in lines if line["kind"] == "begin"}
    if begun - set(ids):
        yield f"begun and never ended: {begun - set(ids)}"
    report = verify_journal(outcome.journal)
    if report.fault is not None or report.lost:
        yield f"the journal does not verify: {report}"
    text = "".join(json.dumps(line) for line in lines)
    if SECRET in text:
        yield "a secret stands in the journal"
    told = Counter(_name(record) for record in records)
    for asked in _asked(outcome):
        if told[asked.name] > 1:
            yield f"{asked.name} has {told[asked.name]} terminal records"
        nameless = asked.status in (400, 407, 503) or asked.reason in ("secret_leaving", "guest_timeout", "bad_path")
        if asked.status and not told[asked.name] and not nameless:
            yield f"{asked.name} was answered with {asked.status} {asked.reason} and has no record"


def _killed(outcome: Outcome) -> Iterator[str]:
    """After a kill -9 the next start goes on: the chain verifies, what was begun ends once, all was written ahead."""
    for left in outcome.killed:
        config = msgspec.structs.replace(outcome.gateway.config.audit, path=str(left.journal))
        Journal(config, clock=CLOCK.unix).close()
        report = verify_journal(left.journal)
        if report.fault is not None or report.lost:
            yield f"killed, the journal does not verify: {report}"
        lines = [json.loads(line) for line in read_lines(left.journal)]
        begun = [line for line in lines if line["kind"] == "begin"]
        ended = Counter(line["id"] for line in lines if line["kind"] in ("request", "connect"))
        for line in begun:
            if ended[line["id"]] != 1:
                yield f"killed, {line['id']} was begun and has {ended[line['id']]} ends"
        names = {line["request"]["path"].rpartition("/")[2] for line in begun}
        if left.keyed - names:
            yield f"killed, these were upstream with a credential and are not on the disk: {left.keyed - names}"


def _name(record: AuditRecord) -> str:
    path = record.request.path if record.request is not None else ""
    return (path or "").rpartition("/")[2]


def _asked(outcome: Outcome) -> Iterator[Asked]:
    for guest in outcome.guests:
        yield from guest.asked


def _upstreams(outcome: Outcome) -> Iterator[str]:
    """Nothing that was denied is upstream; what is, is whole or no request; a POST is there once; nothing is reused."""
    ledger = outcome.ledger
    yield from ledger.violations
    asked = {each.name: each for each in _asked(outcome)}
    arrived = Counter(name for _, name, _ in ledger.heads)
    for name, count in arrived.items():
        each = asked.get(name)
        if each is None:
            yield f"upstream got {name!r}, which nobody asked for"
        elif each.path in ("/deny/", "/nothing/", "/%2e%2e/"):
            yield f"upstream got {each.path}{name}, which no policy allows"
        elif count > 1 and each.method not in REPEATABLE:
            yield f"upstream got {each.method} {name} {count} times"
    for name, bodies in ledger.bodies.items():
        each = asked.get(name)
        if each is not None and any(body != each.body for body in bodies):
            yield f"upstream got another body of {name} than the guest sent"
    for name, heard in ledger.heard.items():
        if heard != asked[name].said[: len(heard)]:
            yield f"{name}: upstream heard other messages than the guest said"
    if b"sgph-" in ledger.received:
        yield "upstream got a placeholder"
    for place, port in outcome.network.dialled:
        if not place.startswith(("127.0.0.1", "93.184.216.")):
            yield f"the gateway dialled {place}:{port}"
    for name in outcome.names.asked:
        if name not in NAMES and name not in ("inner.sim", "gone.sim"):
            yield f"the name server was asked for {name}"


def _guests(outcome: Outcome) -> Iterator[str]:
    """No guest takes for whole what the upstream did not say so; none sees the credential."""
    for guest in outcome.guests:
        if SECRET.encode() in guest.received:
            yield "a guest got the credential"
    for asked in _asked(outcome):
        if asked.heard != outcome.ledger.said[asked.name][: len(asked.heard)]:
            yield f"{asked.name}: the guest heard other messages than the upstream said"
        if not asked.whole or asked.method == "HEAD":
            continue
        if asked.is_call:
            yield from _call(outcome, asked)
        elif asked.reason:
            if not is_denial(asked.answer):
                yield f"{asked.name}: a denial without its body"
        elif asked.status == 200 and asked.answer not in outcome.ledger.whole[asked.name]:
            yield f"{asked.name}: the guest took {len(asked.answer)} bytes for a whole answer that no upstream gave"


def _call(outcome: Outcome, asked: Asked) -> Iterator[str]:
    """A call of gRPC that was denied says so as a status; one that was answered has the upstream's status."""
    status = dict(asked.trailers).get(b"grpc-status")
    if asked.reason and (asked.answer or status in (None, b"0")):
        yield f"{asked.name}: a call was denied for {asked.reason}, with {asked.trailers} and {len(asked.answer)} bytes"
    ledger = outcome.ledger
    if not asked.reason and asked.status == 200:
        if asked.answer not in ledger.whole[asked.name]:
            yield f"{asked.name}: the guest took {len(asked.answer)} bytes for a whole answer that no upstream gave"
        said = ledger.trailers[asked.name]
        if said and asked.trailers not in said:
            yield f"{asked.name}: the guest got the trailers {asked.trailers}, the upstream said {said}"


def _durations(outcome: Outcome) -> Iterator[str]:
    """No request lasts longer than its limits permit, whoever stalls; a WebSocket lasts as long as both sides talk.

    Each way of a connection stalls once at most, and a guest pauses once in a body: so two silences in the body, two
    in the answer, and one of a guest that does not read it. What stands still with the whole loop (a slow disk, a
    plugin) is on top.
    """
    limits, pool = outcome.gateway.config.limits, outcome.gateway.config.pool
    within_s = 2 * limits.body_timeout_s + limits.resolve_timeout_s + limits.credential_timeout_s + pool.queue_timeout_s
    within_s += 2 * limits.connect_timeout_s + 2 * limits.response_timeout_s + limits.idle_timeout_s + STANDING_STILL_S
    for record in outcome.records:
        if record.kind == "request" and record.websocket is None and (record.duration_ms or 0.0) > within_s * 1000:
            yield f"{_name(record)} took {record.duration_ms} ms; its limits permit {within_s} s"


def _rest(outcome: Outcome) -> Iterator[str]:
    """Counts are zero, nothing is open, nothing runs, nothing failed unseen."""
    seam = outcome.gateway.seam
    counts = {
        "exchanges": seam.active, "tunnels": len(seam.tunnels), "connections": len(outcome.gateway.connections.all),
        "handshakes": len(outcome.gateway.connections.handshakes), "sessions": sum(seam.pool.counts),
        "held bytes": seam.held.used_bytes, "tasks": len(outcome.tasks), "descriptors": outcome.descriptors,
    }  # fmt: skip
    for what, count in counts.items():
        if count:
            yield f"{count} {what} are left: {outcome.tasks if what == 'tasks' else ''}"
    for left in outcome.network.left():
        yield f"left open: {left}"
    yield from outcome.problems
