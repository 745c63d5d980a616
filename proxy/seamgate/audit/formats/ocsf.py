"""Audit lines as events of the Open Cybersecurity Schema Framework, version 1.5.0, with the profile `security_control`.

Requests and tunnels are HTTP Activity (4002); streams that pass unread, packets, sockets and names are Network Activity
(4001); what the gateway and the journal say of themselves is a Base Event (0). Tests hold each to the published schema.
"""

from __future__ import annotations

from typing import Any, Final

from seamgate import __version__
from seamgate.address import canonical_address
from seamgate.audit.formats import PRODUCT, Facts, labels_of, part, sentence_of, severity_of, url_of
from seamgate.audit.line import parse_time

VERSION: Final = "1.5.0"
_HTTP: Final = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE")
"""The methods that HTTP Activity has a number for, in its order, from 1; others are 99, Other."""
_SEVERITY: Final = ((1, "Informational"), (2, "Low"), (3, "Medium"), (4, "High"))
_CLASSES: Final = {4002: "HTTP Activity", 4001: "Network Activity", 0: "Base Event"}
_OTHER = 99
_REFUSE, _TRAFFIC = 5, 6
_UNMAPPED = ("entry", "outcome", "generation", "would_rule", "would_deny", "credentials", "steps", "websocket", "prev")


def as_ocsf(facts: Facts) -> dict[str, Any] | None:
    """Return the event of a line; None for `begin`."""
    kind = facts.get("kind")
    if kind == "begin":
        return None
    about = kind in ("request", "connect")
    class_uid = 0 if not about else 4002 if part(facts, "request").get("scheme") in ("http", "https") else 4001
    if about and not part(facts, "request").get("scheme"):
        class_uid = 4002  # refused before it was understood, at an entry that speaks HTTP
    activity, name = _activity(facts, class_uid)
    level, severity = _SEVERITY[severity_of(facts)]
    event: dict[str, Any] = {
        "activity_id": activity,
        "activity_name": name,
        "category_uid": 4 if about else 0,
        "category_name": "Network Activity" if about else "Uncategorized",
        "class_uid": class_uid,
        "class_name": _CLASSES[class_uid],
        "type_uid": class_uid * 100 + activity,
        "type_name": f"{_CLASSES[class_uid]}: {name}",
        "time": int(parse_time(str(facts["time"])) * 1000),
        "severity_id": level,
        "severity": severity,
        "message": sentence_of(facts),
        "metadata": _metadata(facts, about=about),
    }
    if about:
        event |= _decision(facts) | _endpoints(facts) | (_http(facts) if class_uid == 4002 else {})
    unmapped = {key: facts[key] for key in _UNMAPPED if facts.get(key) not in (None, "", [], {})}
    for key in ("gap", "gateway"):
        unmapped |= {key: facts[key]} if part(facts, key) else {}
    method = part(facts, "request").get("method")
    if method and method not in _HTTP:
        unmapped["method"] = method
    names = part(facts, "request").get("query_names")
    return event | {"unmapped": unmapped | ({"query_names": names} if names else {})}


def _activity(facts: Facts, class_uid: int) -> tuple[int, str]:
    method = str(part(facts, "request").get("method", ""))
    if class_uid == 4002:
        return (_HTTP.index(method) + 1, method.capitalize()) if method in _HTTP else (_OTHER, method or "Unknown")
    if class_uid == 4001:
        return (_REFUSE, "Refuse") if facts.get("verdict") == "deny" else (_TRAFFIC, "Traffic")
    event = part(facts, "gateway").get("event") or part(facts, "gap").get("cause") or facts.get("kind", "")
    return _OTHER, str(event)


def _metadata(facts: Facts, *, about: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "version": VERSION,
        "product": {"name": PRODUCT, "vendor_name": PRODUCT, "version": __version__},
        "log_name": "audit",
        "log_version": str(facts.get("schema", "")),
        "original_time": str(facts.get("time", "")),
        "sequence": int(facts.get("seq", 0)),
    }
    if about:
        metadata["profiles"] = ["security_control"]
    if facts.get("id"):
        metadata |= {"uid": str(facts["id"]), "correlation_uid": str(facts["id"])}
    labels = labels_of(facts)
    return metadata | ({"labels": labels} if labels else {})


def _decision(facts: Facts) -> dict[str, Any]:
    denied = facts.get("verdict") == "deny"
    worked = facts.get("outcome") == "complete"
    told: dict[str, Any] = {
        "action_id": 2 if denied else 1,
        "action": "Denied" if denied else "Allowed",
        "disposition_id": 2 if denied else 1,
        "disposition": "Blocked" if denied else "Allowed",
        "status_id": 1 if worked else 2,
        "status": "Success" if worked else "Failure",
        "is_alert": severity_of(facts) >= 2,
    }
    if facts.get("reason"):
        told["status_code"] = str(facts["reason"])
    if facts.get("message"):
        told["status_detail"] = str(facts["message"])
    if facts.get("rule"):
        told["firewall_rule"] = {"uid": str(facts["rule"]), "name": str(facts["rule"])}
    if isinstance(facts.get("duration_ms"), int | float):
        told["duration"] = round(facts["duration_ms"])
    return told


def _endpoints(facts: Facts) -> dict[str, Any]:
    request, guest = part(facts, "request"), part(facts, "guest")
    found: dict[str, Any] = {"src_endpoint": {"name": str(guest.get("id", "")) or "unknown"}}
    host, upstream = str(request.get("host", "")), part(facts, "upstream")
    if host:
        there: dict[str, Any] = {"ip": host} if canonical_address(host) else {"hostname": host}
        there |= {"port": request["port"]} if request.get("port") else {}
        there |= {"ip": upstream["address"]} if upstream.get("address") else {}
        found["dst_endpoint"] = there
    moved = part(facts, "bytes")
    if moved:
        sent, received = int(moved.get("request_body", 0)), int(moved.get("response_body", 0))
        found["traffic"] = {"bytes_out": sent, "bytes_in": received, "bytes": sent + received}
    return found


def _http(facts: Facts) -> dict[str, Any]:
    request = part(facts, "request")
    url: dict[str, Any] = {"url_string": url_of(request), "path": str(request.get("path", ""))}
    for name, key in (("scheme", "scheme"), ("hostname", "host"), ("port", "port"), ("query_string", "query")):
        if request.get(key):
            url[name] = request[key]
    asked: dict[str, Any] = {"url": url}
    if request.get("method") in _HTTP:
        asked["http_method"] = str(request["method"])
    if facts.get("id"):
        asked["uid"] = str(facts["id"])
    answered = {"http_response": {"code": int(facts["status"])}} if facts.get("status") else {}
    return {"http_request": asked} | answered
