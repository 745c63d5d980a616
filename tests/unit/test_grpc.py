"""Denials of gRPC: every reason has a status, and the message survives its encoding."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest

from seamgate.errors import Reason
from seamgate.grpc import grpc_denial, grpc_message, grpc_status, is_grpc
from seamgate.verdict import deny


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.NO_RULE_MATCHED, 7),
        (Reason.RULE_DENIED, 7),
        (Reason.REVOKED, 7),
        (Reason.SECRET_LEAVING, 7),
        (Reason.RESPONSE_DENIED, 7),
        (Reason.UNAUTHENTICATED, 16),
        (Reason.RATE_LIMITED, 8),
        (Reason.BODY_TOO_LARGE, 8),
        (Reason.HEADERS_TOO_LARGE, 8),
        (Reason.UPSTREAM_TIMEOUT, 4),
        (Reason.GUEST_TIMEOUT, 4),
        (Reason.CONNECT_FAILED, 14),
        (Reason.UPSTREAM_CLOSED, 14),
        (Reason.SHUTTING_DOWN, 14),
        (Reason.AUDIT_UNAVAILABLE, 14),
        (Reason.UPSTREAM_PROTOCOL, 13),
        (Reason.INTERNAL_ERROR, 13),
        (Reason.BAD_PATH, 3),
        (Reason.METHOD_REFUSED, 12),
        (Reason.GUEST_GONE, 1),
    ],
)
def test_each_reason_has_the_status_that_says_it(reason: Reason, code: int) -> None:
    """A client can tell a denial of the policy from a limit, a timeout and a fault."""
    assert grpc_status(reason) == code


@pytest.mark.parametrize("reason", [each for each in Reason if each is not Reason.ALLOWED])
def test_no_reason_is_told_as_success(reason: Reason) -> None:
    """A denial is never status 0 and never an unknown one."""
    assert 0 < grpc_status(reason) <= 16 and grpc_status(reason) != 2


@pytest.mark.parametrize("text", ["plain", "100 %", "né 日本", "line\nbreak\r", "\x00\x7f", ""])
def test_a_message_is_percent_encoded(text: str) -> None:
    """Only printable ASCII stands in the header, and decoding gives the text back."""
    encoded = grpc_message(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote_to_bytes(encoded) == text.encode()


def test_a_denial_names_reason_rule_and_request() -> None:
    """Status, message and the gateway's own headers are in the one head; no header has a control character."""
    headers = dict(grpc_denial(deny("no\nrule", reason=Reason.NO_RULE_MATCHED, rule="r-1"), "id-1"))
    assert headers[b"grpc-status"] == b"7"
    assert headers[b"grpc-message"] == b"seamgate: no%0Arule [no_rule_matched] request id-1"
    assert headers[b"content-type"] == b"application/grpc"
    assert headers[b"x-seamgate-reason"] == b"no_rule_matched" and headers[b"x-request-id"] == b"id-1"
    assert headers[b"x-seamgate-rule"] == b"r-1"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=x", True),
        (b"application/grpc-web", False),
        (b"application/json", False),
    ],
)
def test_grpc_is_known_by_its_content_type(value: bytes, expected: bool) -> None:
    """gRPC-Web is another protocol, over any HTTP version, with its trailers in the body."""
    assert is_grpc(((b"content-type", value),)) is expected
