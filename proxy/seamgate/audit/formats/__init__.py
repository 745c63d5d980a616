"""Audit lines in the words of others: OCSF, CEF, OTLP. Used by `seamgate audit export` and by the plugin `otlp`.

Each works on what a line says (its JSON object), so that lines of a newer gateway are exported too. `begin` is left
out: its terminal record says the same and how it ended. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Facts: TypeAlias = Mapping[str, Any]
"""A line's JSON object."""

PRODUCT = "Seamgate"


def part(facts: Facts, name: str) -> Facts:
    """Return an object in a line; an empty one where it has none."""
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


def authority_of(request: Facts) -> str:
    """Return host and port, the port only where it is not the scheme's default; "" if there is no host."""
    host, port = str(request.get("host", "")), request.get("port", 0)
    shown = f"[{host}]" if ":" in host else host
    default = {"https": 443, "http": 80}.get(str(request.get("scheme", "")))
    return shown if not host or port in (0, default) else f"{shown}:{port}"


def url_of(request: Facts) -> str:
    """Return the URL as far as it was recorded; "" if there is no host."""
    authority = authority_of(request)
    if not authority:
        return ""
    query = f"?{request['query']}" if isinstance(request.get("query"), str) else ""
    return f"{request.get('scheme', '')}://{authority}{request.get('path', '')}{query}"


def sentence_of(facts: Facts) -> str:
    """Return what happened, in a sentence."""
    gap, gateway = part(facts, "gap"), part(facts, "gateway")
    if gap:
        return f"audit log: {gap.get('cause', '')}: {gap.get('detail', '')}"
    if gateway:
        return f"gateway: {gateway.get('event', '')}"
    request = part(facts, "request")
    asked = f"{request.get('method', '') or 'a request'} {url_of(request)}".rstrip()
    said = {"allow": "allowed", "deny": "denied"}.get(str(facts.get("verdict", "")), str(facts.get("outcome", "")))
    why = f": {facts['message']}" if facts.get("message") else f" ({facts.get('reason', '')})"
    return f"{asked} {said}{why if said == 'denied' else ''}".strip()


_WARNINGS = frozenset(
    ("placeholder_misplaced", "plugin_time_spent", "revoked", "plugin_failed", "audit_unavailable", "internal_error")
)


def severity_of(facts: Facts) -> int:
    """Return how grave it is: 0 nothing, 1 worth a look (denied, failed), 2 a warning, 3 an alarm.

    2: a placeholder where it does not belong, a guest that keeps plugins busy, a reload that ended something, a gap in
    the log. 3: a real value of a
    credential was about to leave, a guest guesses at them, or records are lost.
    """
    reason, gap = facts.get("reason"), part(facts, "gap")
    if reason in ("secret_leaving", "secret_probed") or gap.get("lost"):
        return 3
    if gap or reason in _WARNINGS:
        return 2
    return 1 if facts.get("verdict") == "deny" or facts.get("outcome") in ("failed", "truncated") else 0


def labels_of(facts: Facts) -> list[str]:
    """Return the guest's labels as `name=value`."""
    labels = part(facts, "guest").get("labels")
    return [f"{name}={value}" for name, value in sorted(labels.items())] if isinstance(labels, dict) else []
