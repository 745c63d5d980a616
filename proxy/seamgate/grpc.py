"""What a gRPC guest is told when it is refused: a status of its own protocol, in a response without a body. Pure.

Called by the HTTP/2 guest's side for requests whose content type is gRPC's. Everything else about gRPC is HTTP/2:
the path `/package.Service/Method` is what policies match on, messages are bodies, the status comes in trailers.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md (Trailers-Only, Percent-Encoded) and
statuscodes.md beside it.
"""

from __future__ import annotations

from typing import Final

from seamgate.denial import denial_headers
from seamgate.errors import Reason
from seamgate.flow import Headers
from seamgate.verdict import Verdict

CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16

# By HTTP status where that says it; by reason where it does not.
_BY_STATUS: Final = {
    400: INVALID_ARGUMENT,
    403: PERMISSION_DENIED,
    407: UNAUTHENTICATED,
    408: DEADLINE_EXCEEDED,
    413: RESOURCE_EXHAUSTED,
    415: INVALID_ARGUMENT,
    417: INVALID_ARGUMENT,
    421: INVALID_ARGUMENT,
    429: RESOURCE_EXHAUSTED,
    431: RESOURCE_EXHAUSTED,
    499: CANCELLED,
    500: INTERNAL,
    501: UNIMPLEMENTED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: DEADLINE_EXCEEDED,
    505: UNIMPLEMENTED,
}
_BY_REASON: Final = {
    Reason.RESPONSE_DENIED: PERMISSION_DENIED,
    Reason.UPSTREAM_PROTOCOL: INTERNAL,
    Reason.RESPONSE_UNDECODABLE: INTERNAL,
}
# RFC 3986 would allow more; the gRPC specification says exactly these: 0x20 to 0x7e without "%".
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {0x25}


def is_grpc(headers: Headers) -> bool:
    """Whether a request is gRPC's, by its content type."""
    return any(
        name == b"content-type" and (value == b"application/grpc" or value[:17] in _SUBTYPES) for name, value in headers
    )


_SUBTYPES: Final = (b"application/grpc+", b"application/grpc;")


def grpc_status(reason: Reason) -> int:
    """Return the status code that says this reason."""
    code = _BY_REASON.get(reason)
    return _BY_STATUS.get(reason.status, INTERNAL) if code is None else code


def grpc_message(text: str) -> bytes:
    """Return a text as grpc-message carries it: UTF-8, percent-encoded."""
    return b"".join([b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in text.encode("utf-8", "replace")])


def grpc_denial(verdict: Verdict, request_id: str) -> Headers:
    """Return the headers of a denial; the response has status 200 and ends with them."""
    reason = verdict.reason
    message = f"seamgate: {verdict.message or reason.text} [{reason.value}] request {request_id}"
    kept = tuple([pair for pair in denial_headers(verdict) if pair[0] not in _OF_HTTP])
    return (
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"%d" % grpc_status(reason)),
        (b"grpc-message", grpc_message(message)),
        (b"x-request-id", request_id.encode("ascii")),
        *kept,
    )


_OF_HTTP: Final = frozenset((b"content-type", b"cache-control", b"retry-after", b"x-should-retry"))
