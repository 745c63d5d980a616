"""The shape of a record, and what of a request gets into it."""

from __future__ import annotations

import msgspec
import pytest

from seamgate.audit.parts import connect_part, guest_part, query_names, request_part
from seamgate.audit.record import AuditFacts, AuditGuest, AuditKind, AuditLine, AuditRecord, AuditRequest
from seamgate.flow import Guest, Isolation, Request, Target

TARGET = Target("https", "api.example.com", 443)


def _request(query: str | None) -> Request:
    return Request("r-1", Guest("g-1"), TARGET, "GET", "/v1", query, headers=((b"authorization", b"Bearer s3cret"),))


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("key=s3cret&q=1", ("key", "q")),
        ("s3cret", ("",)),
        ("a=1&s3cret&b", ("a", "", "")),
        ("a=b=c", ("a",)),
        ("=x", ("",)),
        ("&", ("", "")),
    ],
)
def test_of_a_query_only_the_names_are_kept(query: str, names: tuple[str, ...]) -> None:
    """Values never; a part without "=" may be a value, so it has no name."""
    assert query_names(query) == names


def test_query_names_are_bounded() -> None:
    """The log is no way out for a file split over names."""
    names = query_names("&".join(f"{'n' * 500}{number}=1" for number in range(500)))
    assert len(names) == 32
    assert max(map(len, names)) == 64


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("names", AuditRequest("GET", "https", "api.example.com", 443, "/v1", ("k",))),
        ("full", AuditRequest("GET", "https", "api.example.com", 443, "/v1", (), "k=s3cret")),
        ("none", AuditRequest("GET", "https", "api.example.com", 443, "/v1")),
    ],
)
def test_the_query_is_kept_as_configured(mode: str, expected: AuditRequest) -> None:
    """`audit: query:` decides between names, all and nothing."""
    assert request_part(_request("k=s3cret"), mode) == expected


def test_no_header_value_gets_into_a_record() -> None:
    """There is no field that could hold one."""
    record = AuditRecord(1.0, AuditKind.REQUEST, request=request_part(_request(None)))
    assert b"s3cret" not in msgspec.json.encode(record)
    assert "headers" not in AuditRequest.__struct_fields__
    assert not {"headers", "body"} & set(AuditRecord.__struct_fields__)


def test_a_guest_is_told_by_id_labels_and_isolation() -> None:
    """What policies match on is what the log says; the part is made once per guest."""
    guest = Guest("g-1", {"team": "research"}, Isolation.KVM)
    assert guest_part(guest) == AuditGuest("g-1", {"team": "research"}, Isolation.KVM)
    assert guest_part(guest) is guest_part(guest)


def test_a_tunnel_has_method_connect() -> None:
    """A CONNECT has a target and no path."""
    assert connect_part(TARGET) == AuditRequest("CONNECT", "https", "api.example.com", 443)


def test_an_empty_record_is_small() -> None:
    """A refusal before anything is known has the same shape, with the unknown parts left out."""
    assert msgspec.json.encode(AuditRecord(1.0, AuditKind.REQUEST)) == b'{"time":1.0,"kind":"request"}'


def test_records_and_lines_share_their_facts() -> None:
    """A line is a record plus its place: nothing is lost or renamed between them."""
    facts = AuditFacts.__struct_fields__
    assert AuditRecord.__struct_fields__ == ("time", "kind", *facts)
    assert AuditLine.__struct_fields__ == ("seq", "prev", "time", "schema", "kind", *facts)
