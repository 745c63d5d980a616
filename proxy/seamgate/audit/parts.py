"""The parts of an audit record, made of what the gateway knows: who asked, for what, cut to a bounded size. Pure.

Called by the exchange and the entries for each record, so compiled; the shapes are in `seamgate.audit.record`. What a
guest can make long is cut here, and what may hold a secret is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec

from seamgate.audit.record import AuditGuest, AuditRecord, AuditRequest
from seamgate.errors import Reason
from seamgate.flow import Guest, Request, Target

# A query's names come from the guest: enough for people, too little to carry a file out through the log.
_MOST_QUERY_NAMES: Final = 32
_LONGEST_QUERY_NAME: Final = 64
# What a guest can make long is cut, with its length and a hash to tell the same from another: a flood of long paths
# must not push other guests' records out.
_LONGEST_PATH: Final = 2048
_LONGEST_QUERY: Final = 8192
LONGEST_MESSAGE: Final = 1024
_SECRET_LEAVING: Final = Reason.SECRET_LEAVING  # asked of each request: a look-up in the class is slow
_Request: Final = AuditRequest
WITHHELD: Final = "[withheld]"
"""Stands for a text that holds, or may hold, a credential's real value."""


@lru_cache(maxsize=4096)
def guest_part(guest: Guest) -> AuditGuest:
    """Return the guest's part of a record; made once per guest."""
    return AuditGuest(guest.id, guest.labels, guest.isolation)


def request_part(request: Request, query_mode: str = "names", reason: Reason | None = None) -> AuditRequest:
    """Return the request's part of a record, with as much of the query as `AuditConfig.query` allows.

    Of a request that is refused because a credential's real value stands in it, neither path nor query is kept.
    """
    target = request.target
    if reason is _SECRET_LEAVING:
        return _Request(request.method, target.scheme, target.host, target.port, WITHHELD)
    method, path, query = request.method, request.path, request.query
    if len(path) > _LONGEST_PATH:
        path = cut_text(path, _LONGEST_PATH)
    if not query or query_mode == "none":
        return _Request(method, target.scheme, target.host, target.port, path)
    if query_mode == "full":
        return _Request(method, target.scheme, target.host, target.port, path, (), cut_text(query, _LONGEST_QUERY))
    return _Request(method, target.scheme, target.host, target.port, path, query_names(query))


def cut_text(text: str, longest: int) -> str:
    """Return the text; if it is too long its beginning, and how long all of it was and its SHA-256."""
    if len(text) <= longest:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[:longest]} [cut: {len(text)} characters, sha256 {digest}]"


def with_short_messages(record: AuditRecord) -> AuditRecord:
    """Return the record with its messages cut; the same one where they are short."""
    if len(record.message) <= LONGEST_MESSAGE and len(record.would_deny) <= LONGEST_MESSAGE:
        return record
    message, would_deny = cut_text(record.message, LONGEST_MESSAGE), cut_text(record.would_deny, LONGEST_MESSAGE)
    return msgspec.structs.replace(record, message=message, would_deny=would_deny)


def without_secrets(record: AuditRecord, shows: Callable[[str], bool]) -> AuditRecord:
    """Return the record without any text of a guest in which a credential's real value stands; the same if none does.

    Args:
        record: of what was denied: what was allowed had been searched before.
        shows: whether a value stands in a text. Asked once where none does.
    """
    asked = record.request
    texts = [record.message, record.would_deny]
    if asked is not None:
        texts += (asked.method, asked.host, asked.path, asked.query or "", *asked.query_names)
    if not shows("\0".join(texts)):
        return record
    if asked is not None:
        names = tuple([WITHHELD if shows(name) else name for name in asked.query_names])
        query = WITHHELD if asked.query and shows(asked.query) else asked.query
        method, host, path = [WITHHELD if shows(text) else text for text in (asked.method, asked.host, asked.path)]
        asked = AuditRequest(method, asked.scheme, host, asked.port, path, names, query)
    message, would_deny = [WITHHELD if shows(text) else text for text in (record.message, record.would_deny)]
    return msgspec.structs.replace(record, request=asked, message=message, would_deny=would_deny)


def refused_part(method: str, target: Target | None) -> AuditRequest:
    """Return the request's part of a record about what never became a request.

    Never its path: no plugin has looked whether a credential's real value stands in it.

    Args:
        method: as sent; "" if the head could not be parsed.
        target: where it asked to go; None where nothing says it.
    """
    if target is None:
        return AuditRequest(method=method)
    return AuditRequest(method, target.scheme, target.host, target.port)


def rounded(record: AuditRecord) -> AuditRecord:
    """Return the record with its times cut to three decimals."""
    return msgspec.structs.replace(
        record,
        duration_ms=_rounded(record.duration_ms),
        first_byte_ms=_rounded(record.first_byte_ms),
        steps=tuple([msgspec.structs.replace(step, duration_us=round(step.duration_us, 3)) for step in record.steps]),
    )


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def connect_part(target: Target) -> AuditRequest:
    """Return the request's part of a record about a tunnel to this target."""
    return AuditRequest("CONNECT", target.scheme, target.host, target.port)


def query_names(query: str) -> tuple[str, ...]:
    """Return the parameters' names, without their values, as sent; at most 32, at most 64 characters of each.

    A part without "=" may be a bare token, so it counts as a value without a name: "".
    """
    parts = query.split("&", _MOST_QUERY_NAMES)[:_MOST_QUERY_NAMES]
    return tuple([part.partition("=")[0][:_LONGEST_QUERY_NAME] if "=" in part else "" for part in parts])
