"""Audit lines as OpenTelemetry logs: OTLP 1.x in its JSON encoding, with the semantic conventions for HTTP.

An object is an `ExportLogsServiceRequest`, which is what `/v1/logs` of a collector takes, and the same as the
`LogsData` of a file, one per line. 64-bit numbers are text, as the JSON mapping of protobuf has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from seamgate import __version__
from seamgate.audit.formats import Facts, labels_of, part, sentence_of, severity_of, url_of
from seamgate.audit.line import parse_time

_SEVERITY: Final = ((9, "INFO"), (10, "INFO2"), (13, "WARN"), (17, "ERROR"))
_PLAIN: Final = ("id", "entry", "kind", "verdict", "reason", "rule", "outcome", "would_rule", "schema", "prev", "seq")
_PLAIN_NUMBERS: Final = ("generation", "duration_ms", "first_byte_ms")


def as_otlp(lines: Iterable[Facts]) -> dict[str, Any]:
    """Return the request that carries these lines; `begin` is left out."""
    records = [_record(facts) for facts in lines if facts.get("kind") != "begin"]
    resource = {"attributes": [_attribute("service.name", "seamgate"), _attribute("service.version", __version__)]}
    scope = {"name": "seamgate.audit", "version": __version__}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": records}]}]}


def _record(facts: Facts) -> dict[str, Any]:
    number, text = _SEVERITY[severity_of(facts)]
    # To the millisecond, as the line has it; a product of floats would not be.
    moment = str(round(parse_time(str(facts["time"])) * 1000) * 1_000_000)
    return {
        "timeUnixNano": moment,
        "observedTimeUnixNano": moment,
        "severityNumber": number,
        "severityText": text,
        "eventName": f"seamgate.{facts.get('kind', '')}",
        "body": {"stringValue": sentence_of(facts)},
        "attributes": [_attribute(key, value) for key, value in _facts(facts) if value not in ("", None)],
    }


def _facts(facts: Facts) -> Iterator[tuple[str, Any]]:
    request, guest, moved = part(facts, "request"), part(facts, "guest"), part(facts, "bytes")
    yield "http.request.method", request.get("method")
    yield "url.scheme", request.get("scheme")
    yield "url.full", url_of(request)
    yield "url.path", request.get("path")
    yield "url.query", request.get("query")
    yield "server.address", request.get("host")
    yield "server.port", request.get("port") or None
    yield "http.response.status_code", facts.get("status") or None
    yield "http.request.body.size", moved.get("request_body")
    yield "http.response.body.size", moved.get("response_body")
    yield "network.peer.address", part(facts, "upstream").get("address")
    yield "http.request.resend_count", part(facts, "upstream").get("attempts", 1) - 1 or None
    yield "error.type", facts.get("reason") if facts.get("reason") != "allowed" else None
    yield "seamgate.guest.id", guest.get("id")
    yield "seamgate.guest.labels", labels_of(facts) or None
    yield "seamgate.guest.isolation", guest.get("isolation")
    yield "seamgate.query_names", request.get("query_names") or None
    yield "seamgate.credentials", facts.get("credentials") or None
    for name in (*_PLAIN, *_PLAIN_NUMBERS):
        yield f"seamgate.{name}", facts.get(name)
    for name in ("gateway", "gap"):
        yield from ((f"seamgate.{name}.{key}", value) for key, value in part(facts, name).items() if key != "facts")
    yield from ((f"seamgate.gateway.{k}", v) for k, v in part(part(facts, "gateway"), "facts").items())


def _attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": _value(value)}


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {"stringValue": str(value)}
