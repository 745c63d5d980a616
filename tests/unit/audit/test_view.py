"""Lines for people, filters, counts."""

from __future__ import annotations

from typing import Any

import click
import pytest

from seamgate.audit.view import (
    Filter,
    Tally,
    field_of,
    parse_fields,
    parse_moment,
    printable,
    printable_json,
    read_facts,
    render,
)
from seamgate.errors import AuditError

ALLOWED: dict[str, Any] = {
    "time": "2026-12-01T09:00:00.000Z", "kind": "request", "guest": {"id": "g-1"}, "verdict": "allow",
    "reason": "allowed", "rule": "llm", "status": 200, "duration_ms": 12.34, "credentials": ["a", "b"],
    "outcome": "complete",
    "request": {"method": "POST", "scheme": "https", "host": "x.example", "port": 443, "path": "/v1"},
}  # fmt: skip
DENIED: dict[str, Any] = {
    **ALLOWED, "verdict": "deny", "reason": "rule_denied", "rule": "no-hooks", "status": 403, "outcome": "denied",
}  # fmt: skip


def _text(facts: dict[str, Any]) -> str:
    return click.unstyle(render(facts))


def test_a_request_is_one_line() -> None:
    """Time, guest, verdict, method, URL, rule, status, duration."""
    assert _text(ALLOWED) == "2026-12-01T09:00:00.000Z g-1 allow POST https://x.example/v1 llm 200 12.3ms"
    assert _text(DENIED).endswith("g-1 deny  POST https://x.example/v1 rule_denied (no-hooks) 403 12.3ms")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"outcome": "truncated"}, "12.3ms truncated"),
        ({"upstream": {"attempts": 2}}, "12.3ms sent 2 times"),
        ({"would_rule": "next"}, "12.3ms would be denied by next"),
        ({"request": {}}, " - - "),
        ({"request": {"method": "SOCKET", "scheme": "netlink"}}, " SOCKET netlink "),
        ({"kind": "begin"}, " begin POST "),
        ({"request": {"method": "CONNECT", "scheme": "https", "host": "::1", "port": 443}}, "CONNECT [::1]:443 "),
        (
            {"request": {"method": "GET", "scheme": "http", "host": "h", "port": 81, "query_names": ["a", ""]}},
            "http://h:81?a=...&... ",
        ),
        ({"kind": "gap", "gap": {"cause": "torn_line", "detail": "x"}}, "Z GAP torn_line: x"),
        ({"kind": "gateway", "gateway": {"event": "start", "facts": {"v": "1"}}}, "Z GATEWAY start v=1"),
    ],
)  # fmt: skip
def test_what_is_odd_shows(changes: dict[str, Any], expected: str) -> None:
    """Cut responses, rules in audit mode, unknown parts, what was only begun, and the journal's own records."""
    assert expected in _text({**ALLOWED, **changes})


@pytest.mark.parametrize("line", [b"garbage", b"[1]", b"\xff", b'{"kind":1,"guest":[],"request":7,"gap":3}'])
def test_any_line_can_be_shown(line: bytes) -> None:
    """A line that is no record says so; none stops the reading of the others."""
    assert _text(dict(read_facts(line)))


def test_nothing_unprintable_passes() -> None:
    """Control characters, escapes and bidi overrides become escapes; other letters stay."""
    assert printable("a\x1b\u202e\x9bé") == "a\\x1b\\u202e\\x9bé"
    assert printable_json('"a\u202e\x9bé"') == '"a\\u202e\\u009bé"'


@pytest.mark.parametrize(
    ("wanted", "allowed", "denied"),
    [
        (Filter(), True, True),
        (Filter(denied=True), False, True),
        (Filter((("guest", "g-1"), ("host", "x.example"))), True, True),
        (Filter((("request.method", "GET"),)), False, False),
        (Filter((("status", "403"),)), False, True),
        (Filter((("credentials", "b"),)), True, True),
        (Filter((("credentials", "c"),)), False, False),
        (Filter((("guest.id.x", ""),)), True, True),
        (Filter(since="2026-12-01T09:00:00.000Z"), True, True),
        (Filter(until="2026-12-01T09:00:00.000Z"), False, False),
    ],
)
def test_filters(wanted: Filter, allowed: bool, denied: bool) -> None:
    """All fields must hold; a list holds what is in it; `since` is included, `until` is not."""
    assert (wanted.admits(ALLOWED), wanted.admits(DENIED)) == (allowed, denied)


def test_fields_are_found_by_path_or_short_name() -> None:
    """Text as it is, all else as JSON, what is not there as nothing."""
    assert field_of(ALLOWED, "host") == field_of(ALLOWED, "request.host") == "x.example"
    assert (field_of(ALLOWED, "status"), field_of(ALLOWED, "nothing.here")) == ("200", "")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-12-01T09:00:00Z", "2026-12-01T09:00:00.000Z"),
        ("2026-12-01T10:00:00+01:00", "2026-12-01T09:00:00.000Z"),
        ("15m", "2027-01-15T07:45:00.250Z"),
        ("2h", "2027-01-15T06:00:00.250Z"),
        ("1d", "2027-01-14T08:00:00.250Z"),
    ],
)
def test_moments(text: str, moment: str) -> None:
    """RFC 3339 with any zone, or so long ago."""
    assert parse_moment(text, 1_800_000_000.25) == moment


@pytest.mark.parametrize("text", ["yesterday", "15x", "99999999999d", ""])
def test_what_is_no_moment_is_refused(text: str) -> None:
    """The message shows what can be given."""
    with pytest.raises(AuditError, match="is not a time; give"):
        parse_moment(text, 1.0)


@pytest.mark.parametrize("text", ["verdict", "=deny"])
def test_what_is_no_field_is_refused(text: str) -> None:
    """The message shows an example."""
    with pytest.raises(AuditError, match="is not FIELD=VALUE"):
        parse_fields([text])


def test_counts() -> None:
    """What was only begun, and the journal's own records, are no requests; an allow is no reason."""
    tally = Tally()
    for facts in (ALLOWED, ALLOWED, DENIED, {**ALLOWED, "kind": "begin"}, {"kind": "gap"}):
        tally.add(facts)
    summary = tally.summary(10)
    assert summary["records"] == 5
    assert summary["verdicts"] == {"allow": 2, "deny": 1}
    assert summary["reasons"] == {"rule_denied": 1}
    assert summary["hosts"] == {"x.example": 3}
    assert tally.summary(1)["rules"] == {"llm": 2}
