"""Builders of what hooks are given: guests, targets, requests, responses, records, a plugin's context.

Called by plugin authors' tests and by the rest of the kit. URLs are parsed as the gateway parses them, so that what a
test builds is what a plugin meets. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from seamgate.audit.parts import guest_part, request_part
from seamgate.audit.record import AuditKind, AuditRecord, Decision, Outcome
from seamgate.config import Config
from seamgate.errors import Reason
from seamgate.flow import BodyState, Guest, Headers, Request, Response, Target
from seamgate.policy.testing import Case, Expectation, build_request
from seamgate.registry import PluginContext

GivenHeaders: TypeAlias = Mapping[str, str | list[str]] | Headers
"""Headers as a test writes them: a mapping of text, or the pairs of bytes as they are."""
AT = 1_790_000_000.0
"""Unix time at which everything happens unless a test says otherwise: 2026-09-21T13:33:20Z."""


def make_guest(name: str = "test", /, **labels: str) -> Guest:
    """Return a guest with these labels."""
    return Guest(name, labels)


def make_headers(given: GivenHeaders = ()) -> Headers:
    """Return headers as hooks see them: pairs of bytes, names in lower case."""
    if not isinstance(given, Mapping):
        return tuple((name.lower(), value) for name, value in given)
    return tuple(
        (name.lower().encode("ascii"), value.encode("latin-1"))
        for name, values in given.items()
        for value in ([values] if isinstance(values, str) else values)
    )


def make_request(
    line: str,
    *,
    guest: Guest | None = None,
    headers: GivenHeaders = (),
    body: bytes | str | None = None,
    json: Any = msgspec.UNSET,
    at: float = AT,
    request_id: str = "test-1",
) -> Request:
    """Build a whole request.

    Args:
        line: `METHOD URL`; `wss://` and `ws://` ask to become a WebSocket.
        guest: who asks; None: a guest without labels.
        headers: text by name, or pairs of bytes.
        body: as it is; None: there is none.
        json: the body, as JSON; declared as such unless `headers` say otherwise.
        at: Unix seconds.
        request_id: its id.

    Raises:
        TargetError: the gateway would refuse it.
    """
    method, _, url = line.partition(" ")
    pairs = make_headers(headers)
    if json is not msgspec.UNSET:
        body = msgspec.json.encode(json)
        if all(name != b"content-type" for name, _ in pairs):
            pairs = (*pairs, (b"content-type", b"application/json"))
    data = body.encode() if isinstance(body, str) else body
    case = Case("", guest or make_guest(), method, url, pairs, data, Expectation(), 1, at, 0)
    request = build_request(case, request_id)
    if data is None:
        return request
    return msgspec.structs.replace(request, body=data, body_state=BodyState.COMPLETE)


def make_response(status: int = 200, headers: GivenHeaders = ()) -> Response:
    """Build the head of a response."""
    return Response(status, make_headers(headers))


def make_target(url: str) -> Target:
    """Return the target of a URL; `tcp://host:port` for a stream that passes unread.

    Raises:
        TargetError: the gateway would refuse it.
    """
    return make_request(f"{'CONNECT' if url.startswith('tcp://') else 'GET'} {url}").target


def make_record(
    request: Request | None = None,
    /,
    *,
    verdict: Decision | str | None = Decision.ALLOW,
    reason: Reason = Reason.ALLOWED,
    status: int = 200,
    outcome: Outcome | str = Outcome.COMPLETE,
    **facts: Any,
) -> AuditRecord:
    """Build a terminal audit record, as `request_done` and `export_audit` get it.

    Args:
        request: what it is about; None: a refusal before anything of it was known.
        verdict, reason, status, outcome: as in `AuditRecord`.
        facts: further fields of `AuditRecord`.
    """
    known: dict[str, Any] = {"time": AT, "kind": AuditKind.REQUEST}
    if request is not None:
        known |= {"id": request.id, "guest": guest_part(request.guest), "request": request_part(request)}
    return AuditRecord(
        verdict=None if verdict is None else Decision(verdict),
        reason=reason,
        status=status,
        outcome=Outcome(outcome),
        **{**known, **facts},
    )


def make_context(
    name: str = "test",
    *,
    options: Mapping[str, Any] | None = None,
    config: Config | None = None,
    generation: int = 1,
    clock: Callable[[], float] = time.time,
    capabilities: Iterable[str] = (),
) -> PluginContext:
    """Return what a gateway constructs a plugin with."""
    return PluginContext(name, options or {}, config or Config(), generation, clock, frozenset(capabilities))
