"""HTTP/1.1 heads and framing as bytes: what is read, what is refused with which reason, what is written."""

from __future__ import annotations

import pytest

from seamgate.errors import GuestProtocolError, ProtocolError, Reason, UpstreamProtocolError
from seamgate.protocol.heads import CHUNKED, UNTIL_CLOSE
from seamgate.protocol.http1 import (
    MAX_FIELDS,
    REASON_PHRASES,
    parse_request_head,
    parse_response_head,
    parse_trailers,
    write_chunk,
    write_last_chunk,
    write_request_head,
    write_response_head,
)


def request(*fields: bytes, line: bytes = b"GET /x HTTP/1.1", host: bytes | None = b"Host: a.test") -> bytes:
    lines = [line, *((host,) if host is not None else ()), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def response(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([line, *fields]) + b"\r\n\r\n"


def test_a_request_head_is_split_into_what_goes_on_and_what_is_read() -> None:
    """Names become lower case, order stays, outer white space goes, hop-by-hop fields are taken out."""
    head = parse_request_head(
        request(
            b"B-Two: \t 2 \t",
            b"a-one:1",
            b"Connection: close, X-Drop",
            b"X-Drop: y",
            b"TE: trailers",
            b"Trailer: x",
            b"Keep-Alive: timeout=5",
            b"Proxy-Connection: keep-alive",
            b"Proxy-Authorization: Basic eA==",
            b"B-Two: 3",
            line=b"POST /p?q HTTP/1.1",
        )
    )
    assert (head.method, head.target, head.host, head.minor) == ("POST", "/p?q", "a.test", 1)
    assert head.headers == ((b"b-two", b"2"), (b"a-one", b"1"), (b"b-two", b"3"))
    assert head.proxy_authorization == b"Basic eA=="
    assert not head.keep_alive
    assert head.body == 0


@pytest.mark.parametrize(
    ("fields", "version", "keep_alive"),
    [
        ((), b"1.1", True),
        ((b"Connection: close",), b"1.1", False),
        ((b"Connection: Close",), b"1.1", False),
        ((b"Connection: keep-alive",), b"1.1", True),
        ((b"Connection: keep-alive, close",), b"1.1", False),
        ((b"Connection: x", b"Connection: close"), b"1.1", False),
        ((), b"1.0", False),
        ((b"Connection: keep-alive",), b"1.0", True),
        ((b"Connection: Keep-Alive",), b"1.0", True),
        ((b"Proxy-Connection: keep-alive",), b"1.0", True),
    ],
)
def test_keep_alive(fields: tuple[bytes, ...], version: bytes, keep_alive: bool) -> None:
    """HTTP/1.1 stays unless it says close; HTTP/1.0 closes unless it says keep-alive."""
    assert parse_request_head(request(*fields, line=b"GET / HTTP/" + version)).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ((), 0),
        ((b"Content-Length: 0",), 0),
        ((b"Content-Length: 12",), 12),
        ((b"Transfer-Encoding: chunked",), CHUNKED),
        ((b"Transfer-Encoding: Chunked",), CHUNKED),
    ],
)
def test_request_framing(fields: tuple[bytes, ...], body: int) -> None:
    """A request has one length, or is chunked, or has no body; it never ends with the connection."""
    assert parse_request_head(request(*fields)).body == body


MALFORMED = {
    "no host": (request(host=None), Reason.BAD_REQUEST),
    "two hosts": (request(b"Host: a.test"), Reason.BAD_REQUEST),
    "two parts": (request(line=b"GET /"), Reason.BAD_REQUEST),
    "four parts": (request(line=b"GET / / HTTP/1.1"), Reason.BAD_REQUEST),
    "two spaces": (request(line=b"GET  / HTTP/1.1"), Reason.BAD_REQUEST),
    "tab": (request(line=b"GET\t/ HTTP/1.1"), Reason.BAD_REQUEST),
    "space at the start": (request(line=b" GET / HTTP/1.1"), Reason.BAD_REQUEST),
    "empty line first": (b"\r\n" + request(), Reason.BAD_REQUEST),
    "non-ASCII target": (request(line=b"GET /\xff HTTP/1.1"), Reason.BAD_REQUEST),
    "http/0.9": (request(line=b"GET /"), Reason.BAD_REQUEST),
    "http/2": (request(line=b"GET / HTTP/2.0"), Reason.VERSION_REFUSED),
    "http/1.2": (request(line=b"GET / HTTP/1.2"), Reason.VERSION_REFUSED),
    "http/1.10": (request(line=b"GET / HTTP/1.10"), Reason.VERSION_REFUSED),
    "lower-case http": (request(line=b"GET / http/1.1"), Reason.BAD_REQUEST),
    "lower-case method": (request(line=b"get / HTTP/1.1"), Reason.METHOD_REFUSED),
    "TRACE": (request(line=b"TRACE / HTTP/1.1"), Reason.METHOD_REFUSED),
    "long method": (request(line=b"A" * 25 + b" / HTTP/1.1"), Reason.METHOD_REFUSED),
    "h2 preface": (b"PRI * HTTP/2.0\r\n\r\n", Reason.VERSION_REFUSED),
    "bare LF": (request(b"a: 1\nb: 2"), Reason.BAD_REQUEST),
    "bare CR": (request(b"a: 1\rb: 2"), Reason.BAD_REQUEST),
    "CR at the end of a value": (request(b"a: 1\r"), Reason.BAD_REQUEST),
    "NUL": (request(b"a: \x00"), Reason.BAD_REQUEST),
    "control character": (request(b"a: \x0b"), Reason.BAD_REQUEST),
    "DEL": (request(b"a: \x7f"), Reason.BAD_REQUEST),
    "obs-fold": (request(b"a: 1", b" 2"), Reason.BAD_REQUEST),
    "obs-fold with tab": (request(b"a: 1", b"\t2"), Reason.BAD_REQUEST),
    "space before colon": (request(b"a : 1"), Reason.BAD_REQUEST),
    "tab before colon": (request(b"a\t: 1"), Reason.BAD_REQUEST),
    "no name": (request(b": 1"), Reason.BAD_REQUEST),
    "no colon": (request(b"a 1"), Reason.BAD_REQUEST),
    "name with a quote": (request(b'a"b: 1'), Reason.BAD_REQUEST),
    "non-ASCII name": (request(b"\xe4: 1"), Reason.BAD_REQUEST),
    "two lengths": (request(b"Content-Length: 1", b"Content-Length: 2"), Reason.BAD_REQUEST),
    "two equal lengths": (request(b"Content-Length: 1", b"Content-Length: 1"), Reason.BAD_REQUEST),
    "list of lengths": (request(b"Content-Length: 1, 1"), Reason.BAD_REQUEST),
    "signed length": (request(b"Content-Length: +1"), Reason.BAD_REQUEST),
    "negative length": (request(b"Content-Length: -1"), Reason.BAD_REQUEST),
    "hex length": (request(b"Content-Length: 0x1"), Reason.BAD_REQUEST),
    "length with underscore": (request(b"Content-Length: 1_0"), Reason.BAD_REQUEST),
    "empty length": (request(b"Content-Length:"), Reason.BAD_REQUEST),
    "arabic digits": (request("Content-Length: \u0661".encode()), Reason.BAD_REQUEST),
    "huge length": (request(b"Content-Length: 9999999999999999"), Reason.BAD_REQUEST),
    "length and chunked": (request(b"Content-Length: 1", b"Transfer-Encoding: chunked"), Reason.BAD_REQUEST),
    "other coding": (request(b"Transfer-Encoding: gzip"), Reason.BAD_REQUEST),
    "coding list": (request(b"Transfer-Encoding: gzip, chunked"), Reason.BAD_REQUEST),
    "chunked twice": (request(b"Transfer-Encoding: chunked, chunked"), Reason.BAD_REQUEST),
    "chunked in two fields": (
        request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        Reason.BAD_REQUEST,
    ),
    "identity": (request(b"Transfer-Encoding: chunked, identity"), Reason.BAD_REQUEST),
    "xchunked": (request(b"Transfer-Encoding: xchunked"), Reason.BAD_REQUEST),
    "quoted chunked": (request(b'Transfer-Encoding: "chunked"'), Reason.BAD_REQUEST),
    "vertical tab before chunked": (request(b"Transfer-Encoding: \x0bchunked"), Reason.BAD_REQUEST),
    "chunked in 1.0": (request(b"Transfer-Encoding: chunked", line=b"GET / HTTP/1.0"), Reason.BAD_REQUEST),
    "host nominated": (request(b"Connection: host"), Reason.BAD_REQUEST),
    "length nominated": (request(b"Content-Length: 1", b"Connection: content-length"), Reason.BAD_REQUEST),
    "authorization nominated": (request(b"Connection: close, Authorization"), Reason.BAD_REQUEST),
    "two proxy logins": (request(b"Proxy-Authorization: a", b"Proxy-Authorization: b"), Reason.BAD_REQUEST),
    "other expectation": (request(b"Expect: 200-ok"), Reason.EXPECTATION_FAILED),
    "two expectations": (request(b"Expect: 100-continue", b"Expect: 100-continue"), Reason.EXPECTATION_FAILED),
    "too many fields": (request(*[b"a: 1"] * MAX_FIELDS), Reason.HEADERS_TOO_LARGE),
    "long name": (request(b"a" * 257 + b": 1"), Reason.BAD_REQUEST),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_two_parsers_could_read_differently_is_refused(case: str) -> None:
    """Each deviation from the strict grammar is refused with its reason, never repaired."""
    head, reason = MALFORMED[case]
    with pytest.raises(GuestProtocolError) as caught:
        parse_request_head(head)
    assert caught.value.reason is reason


@pytest.mark.parametrize("method", ["GET", "PROPFIND", "M-SEARCH", "VERSION-CONTROL"])
def test_any_upper_case_method_is_read(method: str) -> None:
    """Methods are open-ended; policy decides about them."""
    assert parse_request_head(request(line=f"{method} / HTTP/1.1".encode())).method == method


def test_expect_is_read_in_1_1_only() -> None:
    """100-continue is for HTTP/1.1; an HTTP/1.0 guest would not know the answer (RFC 9110 10.1.1)."""
    assert parse_request_head(request(b"Expect: 100-Continue")).expect_continue
    assert not parse_request_head(request(b"Expect: 100-continue", line=b"PUT / HTTP/1.0")).expect_continue


def test_upgrade_is_seen_and_not_passed_on() -> None:
    """An upgrade stands in its own place; its fields never reach the upstream."""
    head = parse_request_head(request(b"Upgrade: websocket", b"Connection: Upgrade", b"HTTP2-Settings: x"))
    assert head.upgrade == b"websocket"
    assert head.headers == ()


@pytest.mark.parametrize(
    ("status", "fields", "method", "body"),
    [
        (200, (), "GET", UNTIL_CLOSE),
        (200, (b"Content-Length: 3",), "GET", 3),
        (200, (b"Transfer-Encoding: chunked",), "GET", CHUNKED),
        (200, (b"Content-Length: 3",), "HEAD", 0),
        (200, (b"Transfer-Encoding: chunked",), "HEAD", 0),
        (204, (), "GET", 0),
        (304, (b"Content-Length: 3",), "GET", 0),
        (100, (), "GET", 0),
    ],
)
def test_response_framing(status: int, fields: tuple[bytes, ...], method: str, body: int) -> None:
    """RFC 9112 6.3: HEAD, 1xx, 204 and 304 have no body whatever they say; else length, chunks, or the end."""
    head = parse_response_head(response(*fields, line=b"HTTP/1.1 %d X" % status), method)
    assert head.body == body


def test_head_keeps_the_length_that_was_declared() -> None:
    """HEAD tells the length that GET would have."""
    assert parse_response_head(response(b"Content-Length: 3"), "HEAD").declared == 3


@pytest.mark.parametrize(
    "head",
    [
        response(line=b"HTTP/1.1 99 X"),
        response(line=b"HTTP/1.1 600 X"),
        response(line=b"HTTP/1.1 2000 X"),
        response(line=b"HTTP/1.1  200 X"),
        response(line=b"HTTP/1.1 +20 X"),
        response(line=b"HTTP/1.2 200 X"),
        response(line=b"HTTP/2.0 200 X"),
        response(line=b"http/1.1 200 X"),
        response(line=b"HTTP/1.1 200\tX"),
        response(line=b"ICY 200 OK"),
        response(line=b"<html>"),
        response(b"Content-Length: 1", b"Content-Length: 1"),
        response(b"Content-Length: 1", b"Transfer-Encoding: chunked"),
        response(b"Transfer-Encoding: gzip"),
        response(b"Transfer-Encoding: chunked", line=b"HTTP/1.0 200 OK"),
        response(b"a: 1\n b"),
        response(b"a : 1"),
        response(b"Connection: content-length", b"Content-Length: 1"),
        response(*[b"a: 1"] * (MAX_FIELDS + 1)),
    ],
)
def test_odd_responses_are_refused(head: bytes) -> None:
    """An upstream's ambiguities are as good as an attack: refused as `upstream_protocol`, also for HEAD."""
    for method in ("GET", "HEAD"):
        with pytest.raises(UpstreamProtocolError) as caught:
            parse_response_head(head, method)
        assert caught.value.reason is Reason.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("scheme", [b"Negotiate", b"NTLM", b"ntlm abc"])
def test_connection_bound_authentication_is_seen(scheme: bytes) -> None:
    """NTLM and Negotiate tie an identity to a connection, which then must not be shared."""
    head = response(b"WWW-Authenticate: " + scheme, b"Content-Length: 0", line=b"HTTP/1.1 401 X")
    assert parse_response_head(head, "GET").connection_bound


def test_trailers() -> None:
    """Trailers are fields; framing, routing, authentication and modifiers may not come late (RFC 9110 6.5.1)."""
    assert parse_trailers(b"X-Sum: 1\r\n\r\n", ProtocolError) == ((b"x-sum", b"1"),)
    for name in (b"content-length", b"Transfer-Encoding", b"host", b"Authorization", b"set-cookie", b"te", b"trailer"):
        with pytest.raises(GuestProtocolError):
            parse_trailers(name + b": 1\r\n\r\n", GuestProtocolError)
    with pytest.raises(GuestProtocolError):
        parse_trailers(b"a: 1\nb: 2\r\n\r\n", GuestProtocolError)


def test_written_requests() -> None:
    """A request is written from the model: Host first, one framing field, a length of 0 where one is expected."""
    assert write_request_head("GET", "/x", "a.test", ((b"a", b"1"),), 0) == (
        b"GET /x HTTP/1.1\r\nhost: a.test\r\na: 1\r\n\r\n"
    )
    assert write_request_head("POST", "/", "a.test", (), 0).endswith(b"content-length: 0\r\n\r\n")
    assert write_request_head("DELETE", "/", "a.test", (), 5).endswith(b"content-length: 5\r\n\r\n")
    assert write_request_head("PUT", "/", "a.test", (), CHUNKED).endswith(b"transfer-encoding: chunked\r\n\r\n")


def test_written_responses() -> None:
    """A response has our phrase, one framing field or none, and says what a guest of its version needs to hear."""
    write = write_response_head
    assert write(200, (), 3, keep_alive=True) == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"
    assert write(204, (), None, keep_alive=True) == b"HTTP/1.1 204 No Content\r\n\r\n"
    assert write(200, (), CHUNKED, keep_alive=False) == (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    assert write(200, (), 0, keep_alive=True, minor=0).endswith(b"content-length: 0\r\nconnection: keep-alive\r\n\r\n")
    assert write(200, (), UNTIL_CLOSE, keep_alive=False, minor=0) == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
    assert write(299, (), 0, keep_alive=True).startswith(b"HTTP/1.1 299 \r\n")


def test_every_reason_of_ours_has_a_phrase() -> None:
    """The statuses of denials are known by name, apart from 499, which is only ever recorded."""
    assert {reason.status for reason in Reason} - REASON_PHRASES.keys() <= {499}


def test_chunks() -> None:
    """Sizes are hex; the end carries the trailers."""
    assert write_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert write_last_chunk(()) == b"0\r\n\r\n"
    assert write_last_chunk(((b"a", b"1"),)) == b"0\r\na: 1\r\n\r\n"
