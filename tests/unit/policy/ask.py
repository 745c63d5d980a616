"""Shorthand for the tests of policy: load rules, build requests, judge."""

from __future__ import annotations

import textwrap
from typing import Any

import msgspec

from seamgate.address import parse_authority
from seamgate.flow import BodyState, Guest, Request
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.loader import parse_policy
from seamgate.policy.model import Policy
from seamgate.verdict import Verdict

NOW = 1_796_115_600.0  # 2026-12-01T09:00:00Z
GUEST = Guest("g", {"team": "research"})


def load(rules: str, *, layer: str = "team", mode: str = "enforce", source: str = "p.yaml") -> Policy:
    """Load the rules (an indented YAML list) as a file of this layer."""
    text = textwrap.indent(textwrap.dedent(rules).strip("\n"), "  ")
    return parse_policy(f"seamgate: 1\nlayer: {layer}\nmode: {mode}\nrules:\n{text}\n", source)


def request(
    line: str,
    *,
    guest: Guest = GUEST,
    headers: dict[str, str] | None = None,
    body: bytes | str | None = None,
    state: BodyState | None = None,
) -> Request:
    """Build a request from `METHOD URL`. A body is declared as JSON, unless a content-type is given: "" for none."""
    method, _, url = line.partition(" ")
    scheme, _, rest = url.partition("://")
    rest, mark, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    raw = body.encode() if isinstance(body, str) else body
    given = state or (BodyState.ABSENT if raw is None else BodyState.COMPLETE)
    wanted = {"content-type": "application/json", **(headers or {})} if raw is not None else headers or {}
    pairs = tuple((name.encode(), value.encode()) for name, value in wanted.items() if value)
    upgrade = "websocket" if scheme in ("ws", "wss") else ""
    target = parse_authority(authority, {"ws": "http", "wss": "https"}.get(scheme, scheme))
    asked = Request("r", guest, target, method, f"/{path}", query if mark else None, pairs, raw, given)
    return msgspec.structs.replace(asked, upgrade=upgrade)


def judge(policies: Policy | list[Policy], line: str, *, now: float = NOW, **details: Any) -> Verdict:
    """Judge `METHOD URL` by the policies."""
    loaded = policies if isinstance(policies, list) else [policies]
    return Evaluator(loaded).judge_request(request(line, **details), now)
