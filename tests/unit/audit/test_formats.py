"""Audit lines as OCSF, CEF and OTLP: held to the published schemas, for every kind of record that there is."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import jsonschema
import pytest
from google.protobuf.json_format import ParseDict
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from seamgate.audit.formats.cef import as_cef
from seamgate.audit.formats.ocsf import VERSION, as_ocsf
from seamgate.audit.formats.otlp import as_otlp
from seamgate.audit.line import GENESIS, LineEncoder
from seamgate.audit.record import (
    AuditBytes,
    AuditGap,
    AuditKind,
    AuditRecord,
    AuditRequest,
    AuditUpstream,
    AuditWebSocket,
    GapCause,
)
from seamgate.errors import Reason
from seamgate.testing import corpus, make_guest, make_record, make_request

_GUEST = make_guest("g-1", team="research", role="bot")
_ASKED = make_request("POST https://api.example.com:8443/v1/messages?beta=1", guest=_GUEST)
_WHOLE = make_record(
    _ASKED,
    rule="llm",
    credentials=("anthropic",),
    bytes=AuditBytes(812, 20480),
    duration_ms=812.5,
    upstream=AuditUpstream("192.0.2.7", "s-1", True, 3),
    entry="proxy",
    generation=3,
    would_rule="later",
)
_EXTRA = {
    "a whole record": _WHOLE,
    "a secret that was leaving": make_record(
        _ASKED, verdict="deny", outcome="denied", status=403, reason=Reason.SECRET_LEAVING, message="it leaves"
    ),
    "a stream": AuditRecord(
        1.0, AuditKind.CONNECT, request=AuditRequest("CONNECT", "tcp", "db.example.com", 5432), verdict=_WHOLE.verdict
    ),
    "a packet": AuditRecord(1.0, AuditKind.CONNECT, request=AuditRequest("SEND", "udp", "2001:db8::1", 53)),
    "a WebSocket": make_record(_ASKED, status=101, websocket=AuditWebSocket(3, 4, 1000)),
    "an odd method": make_record(make_request("PROPFIND https://10.0.0.1/", guest=_GUEST)),
    "a whole query": make_record(None, request=AuditRequest("GET", "http", "a.test", 80, "/", query="a=1&b=|=\\")),
    "a gap": AuditRecord(1.0, AuditKind.GAP, gap=AuditGap(GapCause.WRITE_FAILED, "the disk was full", 7, 1, 7)),
}
RECORDS = {**dict(corpus.records()), **_EXTRA}


def facts_of(record: AuditRecord) -> dict[str, Any]:
    """Return a record's line as JSON."""
    facts: dict[str, Any] = json.loads(LineEncoder().encode(record, 42, GENESIS))
    return facts


@lru_cache
def _schema(uid: int) -> dict[str, Any]:
    name = {4002: "http_activity", 4001: "network_activity", 0: "base_event"}[uid]
    profiles = ["security_control"] if uid else []
    found: dict[str, Any] = OcsfJsonSchemaEmbedded(get_ocsf_schema(VERSION)).get_class_schema(name, profiles)
    return found


@pytest.mark.parametrize("what", RECORDS)
def test_an_ocsf_event_is_of_the_published_schema(what: str) -> None:
    """Names, types, enumerations and what is required, of version 1.5.0 with the profile security_control."""
    event = as_ocsf(facts_of(RECORDS[what]))
    assert event is not None
    schema = {**_schema(event["class_uid"]), "$schema": "https://json-schema.org/draft/2020-12/schema"}
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(event)))
    assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
    assert event["metadata"]["sequence"] == 42


def test_an_ocsf_event_says_what_the_record_says() -> None:
    """Who, what, where to, by which rule, how it ended; the rest stands under unmapped."""
    event = as_ocsf(facts_of(_WHOLE))
    assert event is not None
    assert (event["class_uid"], event["activity_name"], event["action"]) == (4002, "Post", "Allowed")
    assert event["http_request"]["url"]["url_string"] == "https://api.example.com:8443/v1/messages"
    assert event["http_response"] == {"code": 200}
    assert event["dst_endpoint"] == {"hostname": "api.example.com", "port": 8443, "ip": "192.0.2.7"}
    assert (event["src_endpoint"], event["metadata"]["labels"]) == ({"name": "g-1"}, ["role=bot", "team=research"])
    assert event["traffic"] == {"bytes_out": 812, "bytes_in": 20480, "bytes": 21292}
    assert (event["firewall_rule"]["uid"], event["duration"]) == ("llm", 812)
    assert event["unmapped"]["query_names"] == ["beta"]
    assert event["unmapped"]["credentials"] == ["anthropic"]
    leaving = as_ocsf(facts_of(_EXTRA["a secret that was leaving"]))
    assert leaving is not None
    assert (leaving["severity"], leaving["is_alert"], leaving["disposition"]) == ("High", True, "Blocked")
    refused = as_ocsf(facts_of(_EXTRA["a packet"]))
    assert refused is not None
    assert (refused["class_uid"], refused["dst_endpoint"]) == (4001, {"ip": "2001:db8::1", "port": 53})


# Of the extension dictionary of "Implementing ArcSight Common Event Format", revision 25 (2017).
_CEF_KEYS = set(
    "act app c6a3 c6a3Label cat cn1 cn1Label cn2 cn2Label cn3 cn3Label cs1 cs1Label cs2 cs2Label cs3 cs3Label cs4 "
    "cs4Label cs5 cs5Label cs6 cs6Label dhost dpt dst externalId in msg out outcome reason request requestMethod rt "
    "suser".split()
)


def parse_cef(text: str) -> tuple[list[str], dict[str, str]]:
    """Read an event back as a SIEM does: header fields, and the extension by key, each once."""
    fields = re.split(r"(?<!\\)(?:\\\\)*\|", text, maxsplit=7)
    found: dict[str, str] = {}
    for match in re.finditer(r"(\w+)=((?:[^=\\]|\\.)*?)(?= \w+=|$)", fields[7]):
        assert match[1] not in found
        value = re.sub(r"\\(.)", lambda each: {"n": "\n", "r": "\r"}.get(each[1], each[1]), match[2])
        found[match[1]] = value
    return fields[:7], found


@pytest.mark.parametrize("what", RECORDS)
def test_a_cef_event_has_seven_fields_and_known_keys(what: str) -> None:
    """One line, printable, each key of the dictionary and once, each custom field after its label."""
    text = as_cef(facts_of(RECORDS[what]))
    assert text is not None
    assert text.isprintable()
    header, extension = parse_cef(text)
    assert header[:3] == ["CEF:0", "Seamgate", "Seamgate"]
    assert header[6] in {"1", "4", "6", "9"}
    assert set(extension) <= _CEF_KEYS
    assert {f"{key}Label" for key in extension if re.fullmatch(r"c[ns6]a?\d", key)} <= set(extension)
    assert all(len(value) <= 4000 for value in extension.values())


def test_a_cef_event_says_what_the_record_says() -> None:
    """And what a guest wrote can't break out of its field."""
    text = as_cef(facts_of(_WHOLE))
    assert text is not None
    header, extension = parse_cef(text)
    assert header[4:7] == ["allowed", "POST https://api.example.com:8443/v1/messages allowed", "1"]
    wanted = {"act": "allow", "suser": "g-1", "dst": "192.0.2.7", "dpt": "8443", "cs1": "llm", "cs1Label": "rule"}
    assert wanted.items() <= extension.items()
    assert (extension["in"], extension["out"], extension["cn1"]) == ("20480", "812", "200")
    odd = AuditRequest("GET", "https", "a.test", 443, "/x|y=z\\", query="a=b\ncs1=forged")
    forged = as_cef(facts_of(make_record(None, request=odd, rule="r|=\\")))
    assert forged is not None
    header, extension = parse_cef(forged)
    assert extension["request"] == "https://a.test/x|y=z\\?a=b\ncs1=forged"
    assert extension["cs1"] == "r|=\\"
    assert "\n" not in forged


@pytest.mark.parametrize("what", RECORDS)
def test_an_otlp_request_is_of_the_published_schema(what: str) -> None:
    """It parses, without unknown fields, as the message that a collector takes, and means the same."""
    message = ParseDict(json.loads(json.dumps(as_otlp([facts_of(RECORDS[what])]))), ExportLogsServiceRequest())
    (resource,) = message.resource_logs
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "seamgate"
    (record,) = resource.scope_logs[0].log_records
    assert record.time_unix_nano == round(RECORDS[what].time * 1000) * 1_000_000
    assert record.body.string_value
    keys = [each.key for each in record.attributes]
    assert len(keys) == len(set(keys))
    assert {each.key: each.value.int_value for each in record.attributes}["seamgate.seq"] == 42


def test_an_otlp_record_says_what_the_record_says() -> None:
    """By the semantic conventions for HTTP, and `seamgate.*` for the rest."""
    message = ParseDict(as_otlp([facts_of(_WHOLE), facts_of(_EXTRA["a gap"])]), ExportLogsServiceRequest())
    first, second = message.resource_logs[0].scope_logs[0].log_records
    said = {each.key: each.value for each in first.attributes}
    assert said["http.request.method"].string_value == "POST"
    assert said["http.response.status_code"].int_value == 200
    assert said["http.request.resend_count"].int_value == 2
    assert said["url.full"].string_value == "https://api.example.com:8443/v1/messages"
    assert said["seamgate.rule"].string_value == "llm"
    assert [each.string_value for each in said["seamgate.guest.labels"].array_value.values] == [
        "role=bot",
        "team=research",
    ]
    assert (first.severity_text, second.severity_text) == ("INFO", "ERROR")
    assert {each.key: each.value.int_value for each in second.attributes}["seamgate.gap.lost"] == 7


def test_what_only_began_is_left_out() -> None:
    """Its terminal record says the same, and how it ended."""
    began = facts_of(AuditRecord(1.0, AuditKind.BEGIN, id="x"))
    assert as_ocsf(began) is None
    assert as_cef(began) is None
    assert as_otlp([began])["resourceLogs"][0]["scopeLogs"][0]["logRecords"] == []
