"""Audit lines for people, filters over them, and counts of them. Used by `seamgate audit`. No I/O.

Works on what a line says, not on `AuditLine`: a journal may hold fields of a newer gateway. Everything that a guest had
a hand in is made printable first, so that a log never writes to somebody's terminal.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import click
import msgspec

from seamgate.audit.fields import SHORT, check_field
from seamgate.audit.line import parse_time
from seamgate.errors import AuditError

Facts: TypeAlias = Mapping[str, Any]
"""A line's JSON object."""

_AGO = re.compile(r"([0-9]+)([smhd])\Z")
_AGO_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COLOURS = {"allow": "green", "deny": "red"}
_OWN_KINDS = ("gateway", "gap")


def read_facts(line: bytes) -> Facts:
    """Return what a line says; a line that can't be read says so itself."""
    try:
        facts = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        facts = None
    return facts if isinstance(facts, dict) else {"kind": "unreadable", "message": "not a record: run audit verify"}


def field_of(facts: Facts, name: str) -> str:
    """Return the field of this name (dotted, or one of the short names) as text, "" if it is not there."""
    return _text_of(_value_of(facts, name))


def _value_of(facts: Facts, name: str) -> Any:
    value: Any = facts
    for part in SHORT.get(name, name).split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Filter(msgspec.Struct, frozen=True):
    """What to show.

    Attributes:
        fields: (name, value) pairs that must all hold; a list holds a value if it is in it.
        denied: only what was refused.
        since: the earliest time, RFC 3339 as in lines, "" for any.
        until: the time before which it must be, "" for any.
    """

    fields: tuple[tuple[str, str], ...] = ()
    denied: bool = False
    since: str = ""
    until: str = ""

    def admits(self, facts: Facts) -> bool:
        """Return whether to show this line."""
        moment = str(facts.get("time", ""))
        if self.denied and facts.get("verdict") != "deny":
            return False
        if (self.since and moment < self.since) or (self.until and moment >= self.until):
            return False
        return all(_holds(facts, name, value) for name, value in self.fields)


def _holds(facts: Facts, name: str, value: str) -> bool:
    whole = _value_of(facts, name)
    return value in whole if isinstance(whole, list) else _text_of(whole) == value


def parse_fields(pairs: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return FIELD=VALUE texts as pairs.

    Raises:
        AuditError: one has no "=", or no record has such a field or value.
    """
    parsed = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise AuditError(f"{pair!r} is not FIELD=VALUE; for example verdict=deny or request.host=api.github.com")
        check_field(name, value)
        parsed.append((name, value))
    return tuple(parsed)


def parse_moment(text: str, now: float) -> str:
    """Return a time as lines have it. Takes RFC 3339 (local where it names no zone), a date, or "15m", "2h", "7d" ago.

    Raises:
        AuditError: it is none of these.
    """
    ago = _AGO.match(text)
    try:
        moment = now - int(ago[1]) * _AGO_S[ago[2]] if ago else parse_time(text)
        if moment < 0:
            raise ValueError("before 1970")
    except (ValueError, OverflowError):
        raise AuditError(f"{text!r} is not a time; give 2026-12-01T09:00:00Z, 2026-12-01, or 15m, 2h, 7d") from None
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment * 1000) % 1000:03d}Z"


def printable(text: str) -> str:
    r"""Return the text with everything that a terminal might obey, or that hides, as \x escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_json(text: str) -> str:
    """Return the JSON text with characters that a terminal might obey, or that hide, as JSON escapes."""
    if text.isascii():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def render(facts: Facts) -> str:
    """Return one line for people: time, guest, verdict, method, URL, rule or reason, status, duration. Styled."""
    kind = str(facts.get("kind", ""))
    moment = click.style(printable(str(facts.get("time", ""))), dim=True)
    if kind in _OWN_KINDS or kind == "unreadable":
        return f"{moment} {click.style(kind.upper(), fg='yellow', bold=True)} {printable(_about_itself(facts))}"
    verdict = str(facts.get("verdict", "") or "-")
    shown = "begin" if kind == "begin" else verdict
    parts = [
        moment,
        printable(field_of(facts, "guest")) or "-",
        click.style(f"{printable(shown):5}", fg=_COLOURS.get(verdict), bold=verdict == "deny"),
        printable(field_of(facts, "method")) or "-",
        printable(_url(facts)),
        click.style(printable(_why(facts)), fg="cyan" if verdict == "allow" else "red"),
        printable(field_of(facts, "status")) or "-",
        _duration(facts),
    ]
    return " ".join(part for part in parts if part) + _remark(facts)


def _about_itself(facts: Facts) -> str:
    gap, gateway = facts.get("gap"), facts.get("gateway")
    if isinstance(gap, dict):
        return f"{gap.get('cause', '')}: {gap.get('detail', '')}"
    if isinstance(gateway, dict):
        known = gateway.get("facts")
        told = " ".join(f"{key}={value}" for key, value in known.items()) if isinstance(known, dict) else ""
        return f"{gateway.get('event', '')} {told}".rstrip()
    return str(facts.get("message", ""))


def _url(facts: Facts) -> str:
    request = facts.get("request")
    if not isinstance(request, dict):
        return "-"
    if not request.get("host"):
        return str(request.get("scheme") or "-")  # of SOCKET: the family, which is all that there is
    host, port, scheme = str(request["host"]), request.get("port", 0), request.get("scheme", "")
    host = f"[{host}]" if ":" in host else host
    place = host if port in (0, {"https": 443, "http": 80}.get(str(scheme))) else f"{host}:{port}"
    if field_of(facts, "method") == "CONNECT":
        return f"{host}:{port}"
    query = request.get("query")
    names = request.get("query_names")
    if query is None and isinstance(names, list) and names:
        query = "&".join(f"{name}=..." if name else "..." for name in names)
    return f"{scheme}://{place}{request.get('path', '')}{'' if query is None else f'?{query}'}"


def _why(facts: Facts) -> str:
    rule, reason = field_of(facts, "rule"), field_of(facts, "reason")
    if facts.get("verdict") == "allow":
        return rule or reason or "-"
    return f"{reason} ({rule})" if rule else reason or "-"


def _duration(facts: Facts) -> str:
    duration = facts.get("duration_ms")
    return f"{duration:.1f}ms" if isinstance(duration, int | float) else ""


def _remark(facts: Facts) -> str:
    remarks = []
    outcome = facts.get("outcome")
    if outcome not in (None, "complete", "denied"):
        remarks.append(click.style(printable(str(outcome)), fg="yellow"))
    if (times := _value_of(facts, "upstream.attempts")) is not None:
        remarks.append(click.style(printable(f"sent {times} times"), fg="yellow"))
    if facts.get("would_rule"):
        remarks.append(click.style(printable(f"would be denied by {facts['would_rule']}"), fg="yellow"))
    return f" {' '.join(remarks)}" if remarks else ""


class Tally:
    """Counts of a journal's lines."""

    def __init__(self) -> None:
        self.records = 0
        self.kinds: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.hosts: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.guests: Counter[str] = Counter()
        self.denied_hosts: Counter[str] = Counter()
        self.denied_guests: Counter[str] = Counter()
        self.minutes: Counter[str] = Counter()
        self.first = ""
        self.last = ""

    def add(self, facts: Facts) -> None:
        """Count one line. What was only begun is not counted twice."""
        self.records += 1
        moment = str(facts.get("time", ""))
        self.first = self.first or moment
        self.last = moment
        kind = str(facts.get("kind", ""))
        self.kinds[kind] += 1
        if kind == "begin" or kind in _OWN_KINDS:
            return
        for counter, name in (
            (self.verdicts, "verdict"), (self.outcomes, "outcome"), (self.hosts, "host"), (self.rules, "rule"),
            (self.guests, "guest"),
        ):  # fmt: skip
            value = field_of(facts, name)
            if value:
                counter[value] += 1
        if facts.get("reason") not in (None, "allowed"):
            self.reasons[field_of(facts, "reason")] += 1
        self.minutes[moment[:16]] += 1
        if facts.get("verdict") == "deny":
            for counter, name in ((self.denied_hosts, "host"), (self.denied_guests, "guest")):
                value = field_of(facts, name)
                if value:
                    counter[value] += 1

    def summary(self, top: int) -> dict[str, Any]:
        """Return all counts, the most frequent first, at most `top` of each."""
        return {
            "records": self.records,
            "first": self.first,
            "last": self.last,
            "kinds": dict(self.kinds.most_common(top)),
            "verdicts": dict(self.verdicts.most_common(top)),
            "outcomes": dict(self.outcomes.most_common(top)),
            "reasons": dict(self.reasons.most_common(top)),
            "rules": dict(self.rules.most_common(top)),
            "hosts": dict(self.hosts.most_common(top)),
            "guests": dict(self.guests.most_common(top)),
            "denied_hosts": dict(self.denied_hosts.most_common(top)),
            "denied_guests": dict(self.denied_guests.most_common(top)),
            "rates": self._rates(),
        }

    def _rates(self) -> dict[str, Any]:
        """Requests a minute over the whole span, in the busiest minute, and the share that was denied."""
        total = sum(self.minutes.values())
        denied = self.verdicts.get("deny", 0)
        peak = max(self.minutes.items(), key=lambda each: (each[1], each[0]), default=("", 0))
        return {
            "requests": total,
            "per_minute": round(total / self._span_minutes(), 2),
            "busiest_minute": peak[0] and f"{peak[0]}Z",
            "in_busiest_minute": peak[1],
            "denied_percent": round(100 * denied / total, 1) if total else 0.0,
        }

    def _span_minutes(self) -> float:
        """From the first record to the last, at least a minute."""
        try:
            return max(1.0, (parse_time(self.last) - parse_time(self.first)) / 60)
        except ValueError:
            return 1.0
