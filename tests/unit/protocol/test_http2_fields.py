"""Field lists: what HTTP/1.1 could read differently is refused; the rest becomes the same head as in HTTP/1.1."""

from __future__ import annotations

import pytest

from seamgate.errors import GuestProtocolError, Reason, UpstreamProtocolError
from seamgate.protocol.heads import CHUNKED
from seamgate.protocol.http2_fields import (
    Fields,
    _unindexed,
    is_unindexed,
    parse_late_fields,
    parse_request,
    parse_response,
    request_fields,
    response_fields,
)

GET: Fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"api.test"), (b":path", b"/x?y")]
OK: Fields = [(b":status", b"200")]


def changed(name: bytes, value: bytes | None) -> Fields:
    return [pair for pair in GET if pair[0] != name] + ([] if value is None else [(name, value)])


def test_a_request_becomes_the_head_that_http1_gives() -> None:
    """Pseudo fields become method, target and host; cookie crumbs are one cookie; TE and Host are read here."""
    fields = [
        *GET,
        (b"cookie", b"a=1"),
        (b"x", b"1"),
        (b"te", b"trailers"),
        (b"cookie", b"b=2"),
        (b"host", b"API.test"),
    ]
    head = parse_request(fields, ended=True)
    assert (head.method, head.target, head.host, head.body) == ("GET", "/x?y", "api.test", 0)
    assert head.headers == ((b"x", b"1"), (b"cookie", b"a=1; b=2"))
    assert head.keep_alive and head.upgrade is None and not head.expect_continue


def test_an_extended_connect_becomes_the_get_that_http1_would_have() -> None:
    """RFC 8441 5: one meaning for policy, plugins and audit, whatever version the guest speaks."""
    fields = [*changed(b":method", b"CONNECT"), (b":protocol", b"websocket"), (b"sec-websocket-version", b"13")]
    head = parse_request(fields, ended=False)
    assert (head.method, head.target, head.upgrade, head.upgrades) == ("GET", "/x?y", b"websocket", True)
    assert head.body == CHUNKED and head.headers == ((b"sec-websocket-version", b"13"),)


@pytest.mark.parametrize(
    ("more", "ended", "body"),
    [
        ([], True, 0),
        ([], False, CHUNKED),
        ([(b"content-length", b"7")], False, 7),
        ([(b"content-length", b"0")], True, 0),
        ([(b"content-length", b"0")], False, 0),
    ],
)
def test_the_body_is_known_by_length_and_end(more: Fields, ended: bool, body: int) -> None:
    """END_STREAM says that there is none; a content-length, how long it is."""
    assert parse_request([*GET, *more], ended=ended).body == body


def test_host_stands_in_for_authority() -> None:
    """RFC 9113 8.3.1: a request that was HTTP/1.1 once."""
    assert parse_request([*changed(b":authority", None), (b"host", b"a.test")], ended=True).host == "a.test"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (changed(b":method", None), Reason.METHOD_REFUSED),
        (changed(b":method", b"get"), Reason.METHOD_REFUSED),
        (changed(b":method", b"CONNECT"), Reason.METHOD_REFUSED),
        (changed(b":method", b"TRACE"), Reason.METHOD_REFUSED),
        (changed(b":method", b"GET /x HTTP/1.1"), Reason.METHOD_REFUSED),
        (changed(b":path", None), Reason.BAD_REQUEST),
        (changed(b":path", b""), Reason.BAD_REQUEST),
        (changed(b":path", b"x"), Reason.BAD_REQUEST),
        (changed(b":path", b"https://other.test/"), Reason.BAD_REQUEST),
        (changed(b":path", b"/x HTTP/1.1"), Reason.BAD_REQUEST),
        (changed(b":path", b"/x\r\nevil: 1"), Reason.BAD_REQUEST),
        (changed(b":path", b"/\x7f"), Reason.BAD_REQUEST),
        (changed(b":scheme", None), Reason.TARGET_MISMATCH),
        (changed(b":scheme", b"http"), Reason.TARGET_MISMATCH),
        (changed(b":authority", None), Reason.BAD_REQUEST),
        (changed(b":authority", b""), Reason.BAD_REQUEST),
        (changed(b":authority", b"a b"), Reason.BAD_REQUEST),
        ([*GET, (b":path", b"/z")], Reason.BAD_REQUEST),
        ([*GET, (b":status", b"200")], Reason.BAD_REQUEST),
        ([*GET, (b":protocol", b"websocket")], Reason.BAD_REQUEST),
        ([*changed(b":method", b"CONNECT"), (b":protocol", b"websocket")], Reason.BAD_REQUEST),
        ([*changed(b":method", b"CONNECT"), (b":protocol", b"connect-udp")], Reason.UPGRADE_REFUSED),
        ([(b"x", b"1"), *GET], Reason.BAD_REQUEST),
        ([*GET, (b"host", b"other.test")], Reason.TARGET_MISMATCH),
        ([*GET, (b"host", b"api.test"), (b"host", b"api.test")], Reason.TARGET_MISMATCH),
        ([*GET, (b"X", b"1")], Reason.BAD_REQUEST),
        ([*GET, (b"", b"1")], Reason.BAD_REQUEST),
        ([*GET, (b"a b", b"1")], Reason.BAD_REQUEST),
        ([*GET, (b"a:b", b"1")], Reason.BAD_REQUEST),
        ([*GET, (b"a\r\nb", b"1")], Reason.BAD_REQUEST),
        ([*GET, (b"a", b"1\r\nb: 2")], Reason.BAD_REQUEST),
        ([*GET, (b"a", b"1\x00")], Reason.BAD_REQUEST),
        ([*GET, (b"a", b" 1")], Reason.BAD_REQUEST),
        ([*GET, (b"a", b"1\t")], Reason.BAD_REQUEST),
        ([*GET, (b"connection", b"close")], Reason.BAD_REQUEST),
        ([*GET, (b"keep-alive", b"1")], Reason.BAD_REQUEST),
        ([*GET, (b"proxy-connection", b"close")], Reason.BAD_REQUEST),
        ([*GET, (b"transfer-encoding", b"chunked")], Reason.BAD_REQUEST),
        ([*GET, (b"upgrade", b"websocket")], Reason.BAD_REQUEST),
        ([*GET, (b"http2-settings", b"AAMAAABk")], Reason.BAD_REQUEST),
        ([*GET, (b"te", b"gzip")], Reason.BAD_REQUEST),
        ([*GET, (b"te", b"trailers"), (b"te", b"trailers")], Reason.BAD_REQUEST),
        ([*GET, (b"content-length", b"1")], Reason.BAD_REQUEST),
        ([*GET, (b"content-length", b"+0")], Reason.BAD_REQUEST),
        ([*GET, (b"content-length", b"0"), (b"content-length", b"0")], Reason.BAD_REQUEST),
        ([*GET, (b"expect", b"202-fine")], Reason.EXPECTATION_FAILED),
        ([*GET, *[(b"x", b"1")] * 200], Reason.HEADERS_TOO_LARGE),
    ],
)
def test_malformed_requests_are_refused(fields: Fields, reason: Reason) -> None:
    """RFC 9113 8.1 to 8.3, and whatever a downgrade to HTTP/1.1 could turn into another message."""
    with pytest.raises(GuestProtocolError) as caught:
        parse_request(fields, ended=True)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("status", "more", "method", "ended", "body"),
    [
        (b"200", [], "GET", False, CHUNKED),
        (b"200", [], "GET", True, 0),
        (b"200", [(b"content-length", b"5")], "GET", False, 5),
        (b"200", [(b"content-length", b"5")], "HEAD", True, 0),
        (b"304", [(b"content-length", b"5")], "GET", True, 0),
        (b"103", [], "GET", False, 0),
        (b"200", [(b"content-length", b"5")], "CONNECT", False, CHUNKED),
        (b"403", [(b"content-length", b"5")], "CONNECT", False, 5),
    ],
)
def test_a_response_has_the_body_that_its_request_permits(
    status: bytes, more: Fields, method: str, ended: bool, body: int
) -> None:
    """HEAD, 304 and 1xx have none, and a CONNECT that succeeds has a stream, whatever the content-length says."""
    assert parse_response([(b":status", status), *more], method, ended=ended).body == body


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b":status", b"99")],
        [(b":status", b"+20")],
        [(b":status", b"600")],
        [(b":status", b"101")],
        [*OK, *OK],
        [*OK, (b":path", b"/")],
        [*OK, (b"transfer-encoding", b"chunked")],
        [*OK, (b"content-length", b"3")],
        [*OK, (b"content-length", b"x")],
        [*OK, (b"a", b"\n")],
        [*OK, (b"A", b"1")],
    ],
)
def test_malformed_responses_are_refused(fields: Fields) -> None:
    """As for requests."""
    with pytest.raises(UpstreamProtocolError):
        parse_response(fields, "GET", ended=True)


@pytest.mark.parametrize("name", [b":status", b"content-length", b"authorization", b"host", b"connection", b"te"])
def test_trailers_carry_nothing_that_has_to_come_early(name: bytes) -> None:
    """RFC 9110 6.5.1, and no pseudo field."""
    assert parse_late_fields([(b"grpc-status", b"0")], GuestProtocolError) == ((b"grpc-status", b"0"),)
    with pytest.raises(GuestProtocolError):
        parse_late_fields([(name, b"1")], GuestProtocolError)


def test_what_may_be_secret_never_enters_a_compression_table() -> None:
    """RFC 7541 7.1.3."""
    for name in (b"authorization", b"cookie", b"x-api-key", b"x-goog-api-key", b"x-amz-security-token", b"set-cookie"):
        assert is_unindexed(name)
    for name in (b":method", b":authority", b"accept", b"user-agent", b"content-type", b":status"):
        assert not is_unindexed(name)


def test_long_names_are_not_kept() -> None:
    """Whether a name is one of a secret is remembered for those that occur, which nobody makes as long as a head."""
    for size in range(1000, 1010):
        assert not is_unindexed(b"x" * size)
        assert is_unindexed(b"x" * size + b"-token")
    assert max(map(len, _unindexed)) <= 64


def test_fields_are_written_from_the_model() -> None:
    """Pseudo fields first; a length where it is known; `te: trailers` where it is asked for."""
    fields = request_fields("POST", "https", "a.test", "/x", ((b"a", b"1"),), 0, trailers=True)
    assert fields == [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", b"a.test"),
        (b":path", b"/x"),
        (b"a", b"1"),
        (b"content-length", b"0"),
        (b"te", b"trailers"),
    ]
    assert request_fields("GET", "https", "a.test", "/", (), 0, trailers=False)[4:] == []
    extended = request_fields(
        "CONNECT", "https", "a.test", "/", ((b"a", b"1"),), -1, trailers=False, protocol="websocket"
    )
    assert extended[0] == (b":method", b"CONNECT")
    assert extended[4:] == [(b":protocol", b"websocket"), (b"a", b"1")]
    assert response_fields(200, ((b"a", b"1"),), 5) == [(b":status", b"200"), (b"a", b"1"), (b"content-length", b"5")]
    assert response_fields(200, (), CHUNKED) == response_fields(200, (), None) == [(b":status", b"200")]
