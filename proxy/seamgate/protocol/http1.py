"""HTTP/1.1 messages: strict parsing of heads, and writing them from the model. Sans-I/O.

Called by the guest's and the upstream's side of an exchange through `protocol.http1_reader`. It never repairs: what
two parsers could read differently is refused, because what policy saw has to be what upstream gets.

Why a parser of our own: the strict check of a head (which bytes, which line ends) and the split of its lines are one
pass in C (`protocol.fields`); a lenient parser behind the same check would read everything twice and could still
disagree with it. h11 is the oracle: a property test holds both to the same verdicts and bytes where h11 is as strict.

Stricter than RFC 9112 (where it says "may"): no bare LF, no obs-fold, no space before the colon, no white space or
empty line before the request line, at most one Content-Length and one Host, no Content-Length beside
Transfer-Encoding, "chunked" as the only transfer coding, no Transfer-Encoding in HTTP/1.0.
"""

from __future__ import annotations

import re
from typing import Final

from seamgate.errors import GuestProtocolError, ProtocolError, Reason, UpstreamProtocolError
from seamgate.flow import Headers
from seamgate.headers import OF_THE_GATEWAY
from seamgate.protocol.fields import MAX_FIELDS as MAX_FIELDS
from seamgate.protocol.fields import split_head, usual_request, usual_response, write_checked, write_fields
from seamgate.protocol.heads import CHUNKED, UNTIL_CLOSE, RequestHead, ResponseHead

_METHOD = re.compile(rb"[A-Z][A-Z\-]{0,23}\Z")
_COMMON: Final = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"CONNECT"))
_TARGET = re.compile(rb"[\x21-\x7e]+\Z")
_STATUS_LINE = re.compile(rb"HTTP/([0-9]\.[0-9]) ([1-9][0-9]{2})(?: .*)?\Z")

# Read here and never passed on: framing and hop-by-hop fields (RFC 9110 7.6.1), and what belongs to proxies.
_SPECIAL: Final = OF_THE_GATEWAY
# Naming one of these in Connection would let a guest take a field out of sight of whoever comes next.
_NEVER_NOMINATED: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization", b"cookie"))
# RFC 9110 6.5.1: framing, routing, modifiers and authentication may not come late.
NEVER_TRAILER: Final = _SPECIAL | {
    b"authorization", b"cookie", b"set-cookie", b"content-encoding", b"content-type", b"content-range", b"age",
    b"cache-control", b"expires", b"date", b"location", b"retry-after", b"vary", b"range", b"max-forwards",
}  # fmt: skip


def parse_request_head(head: bytes) -> RequestHead:
    """Parse a whole request head, including its empty line.

    Raises:
        GuestProtocolError: it is not well-formed, ambiguous, or of a version or method that is refused.
    """
    usual = usual_request(head)
    return parse_unusual_request_head(head) if usual is None else usual


def parse_unusual_request_head(head: bytes) -> RequestHead:
    """Do what `parse_request_head` does, step by step; the first thing that is wrong is what the error says."""
    first, headers, special = split_head(head, GuestProtocolError)
    parts = first.split(b" ")
    if len(parts) != 3 or not _TARGET.match(parts[1]) or parts[2][:5] != b"HTTP/":
        raise GuestProtocolError("the request line is malformed")
    method_bytes, target, version = parts
    if version != b"HTTP/1.1" and version != b"HTTP/1.0":
        raise GuestProtocolError(f"{version[:12].decode('latin-1')!r} is not supported", reason=Reason.VERSION_REFUSED)
    minor = 1 if version == b"HTTP/1.1" else 0
    if method_bytes not in _COMMON and (not _METHOD.match(method_bytes) or method_bytes == b"TRACE"):
        # TRACE would send the credential that we put in back to the guest (RFC 9110 9.3.8).
        raise GuestProtocolError("the method is not one that is forwarded", reason=Reason.METHOD_REFUSED)
    hosts = special.get(b"host")
    if hosts is None and minor == 1:
        raise GuestProtocolError("the Host header is missing")
    if hosts is not None and len(hosts) > 1:
        raise GuestProtocolError("there is more than one Host header")
    body = _request_framing(special, minor)
    keep_alive, headers = _connection(special, headers, minor, GuestProtocolError)
    return RequestHead(
        method_bytes.decode("ascii"),
        target.decode("ascii"),
        None if hosts is None else hosts[0].decode("latin-1"),
        headers,
        body,
        keep_alive,
        b"expect" in special and _expects_continue(special[b"expect"], minor),
        b", ".join(special[b"upgrade"]) if b"upgrade" in special else None,
        _single(special, b"proxy-authorization"),
        minor,
        b"upgrade" in special and _names_upgrade(special),
    )


def parse_response_head(head: bytes, method: str) -> ResponseHead:
    """Parse a whole response head, including its empty line.

    Args:
        head: bytes up to and including the empty line.
        method: of the request that it answers; it decides whether there is a body.

    Raises:
        UpstreamProtocolError: it is not well-formed or ambiguous.
    """
    usual = usual_response(head, method)
    return parse_unusual_response_head(head, method) if usual is None else usual


def parse_unusual_response_head(head: bytes, method: str) -> ResponseHead:
    """Do what `parse_response_head` does, step by step; the first thing that is wrong is what the error says."""
    first, headers, special = split_head(head, UpstreamProtocolError)
    match = _STATUS_LINE.match(first)
    if match is None:
        raise UpstreamProtocolError("the upstream's status line is malformed")
    version, status_bytes = match.groups()
    if version not in (b"1.1", b"1.0"):
        raise UpstreamProtocolError(f"the upstream answers in HTTP/{version.decode()}")
    minor = 1 if version == b"1.1" else 0
    status = int(status_bytes)
    if status > 599:
        raise UpstreamProtocolError(f"the upstream answers with status {status}")
    body, declared = _response_framing(special, status, method, minor)
    keep_alive, headers = _connection(special, headers, minor, UpstreamProtocolError)
    bound = status == 401 and any(
        name == b"www-authenticate" and value[:9].lower().startswith((b"negotiate", b"ntlm")) for name, value in headers
    )
    keep_alive = keep_alive and body != UNTIL_CLOSE
    if status == 101 and b"upgrade" in special:
        upgrade, upgrades = b", ".join(special[b"upgrade"]), _names_upgrade(special)
        return ResponseHead(status, headers, body, keep_alive, bound, minor, declared, upgrade, upgrades)
    return ResponseHead(status, headers, body, keep_alive, bound, minor, declared)


def parse_trailers(block: bytes, error: type[ProtocolError]) -> Headers:
    """Parse a trailer section including its empty line.

    Raises:
        ProtocolError: of the given type; it is malformed, or a field may not come late.
    """
    _, fields, special = split_head(b"\r\n" + block, error)
    for name in (*special, *(name for name, _ in fields)):
        if name in NEVER_TRAILER:
            raise error(f"the field {name.decode()} may not be a trailer")
    return fields


def _single(special: dict[bytes, list[bytes]], name: bytes) -> bytes | None:
    values = special.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise GuestProtocolError(f"there is more than one {name.decode()} header")
    return values[0]


def _content_length(values: list[bytes], error: type[ProtocolError]) -> int:
    if len(values) > 1 or len(values[0]) > 15 or not values[0].isdigit():
        raise error("the Content-Length is not one plain number")
    return int(values[0])


def _is_chunked(special: dict[bytes, list[bytes]], minor: int, error: type[ProtocolError]) -> bool:
    codings = special.get(b"transfer-encoding")
    if codings is None:
        return False
    if len(codings) > 1 or codings[0].lower() != b"chunked":
        raise error("the only Transfer-Encoding is chunked")
    if minor == 0 or b"content-length" in special:
        raise error("Transfer-Encoding beside Content-Length, or in HTTP/1.0")
    return True


def _request_framing(special: dict[bytes, list[bytes]], minor: int) -> int:
    """RFC 9112 6.3 for requests."""
    if _is_chunked(special, minor, GuestProtocolError):
        return CHUNKED
    lengths = special.get(b"content-length")
    return 0 if lengths is None else _content_length(lengths, GuestProtocolError)


def _response_framing(
    special: dict[bytes, list[bytes]], status: int, method: str, minor: int
) -> tuple[int, int | None]:
    """RFC 9112 6.3 for responses: (framing, declared length). Checked even where there can be no body."""
    chunked = _is_chunked(special, minor, UpstreamProtocolError)
    lengths = special.get(b"content-length")
    length = None if lengths is None else _content_length(lengths, UpstreamProtocolError)
    if method == "HEAD" or status < 200 or status in (204, 304):
        return 0, length
    if chunked:
        return CHUNKED, None
    return UNTIL_CLOSE if length is None else length, length


def _connection(
    special: dict[bytes, list[bytes]], headers: Headers, minor: int, error: type[ProtocolError]
) -> tuple[bool, Headers]:
    """Read Connection (RFC 9110 7.6.1): keep-alive or not, and the headers without those that it names."""
    values = special.get(b"connection") or special.get(b"proxy-connection")
    if values is None:
        return minor == 1, headers
    if len(values) == 1 and values[0] in (b"keep-alive", b"Keep-Alive"):
        return True, headers
    tokens = {token.strip(b" \t").lower() for value in values for token in value.split(b",")}
    if tokens & _NEVER_NOMINATED:
        raise error("Connection names a field that must not be dropped")
    keep_alive = b"close" not in tokens and (minor == 1 or b"keep-alive" in tokens)
    dropped = tokens - {b"close", b"keep-alive", b""}
    return keep_alive, tuple(pair for pair in headers if pair[0] not in dropped) if dropped else headers


def _names_upgrade(special: dict[bytes, list[bytes]]) -> bool:
    """Whether Connection has the token "upgrade" (RFC 9110 7.8)."""
    tokens = b",".join(special.get(b"connection", ())).lower().split(b",")
    return b"upgrade" in [token.strip(b" \t") for token in tokens]


def _expects_continue(values: list[bytes], minor: int) -> bool:
    if len(values) > 1 or values[0].lower() != b"100-continue":
        raise GuestProtocolError("the Expect header is not 100-continue", reason=Reason.EXPECTATION_FAILED)
    return minor == 1


def write_request_head(method: str, target: str, authority: str, headers: Headers, body: int) -> bytes:
    """Write a request head.

    Args:
        method: upper-case token.
        target: origin-form, canonical path and query.
        authority: for Host.
        headers: end-to-end fields.
        body: length, or CHUNKED; 0 writes a Content-Length only for methods that expect one (RFC 9110 8.6).

    Raises:
        PluginError: a field would be read as something else. Whoever made it is checked before: this is the last wall.
    """
    first = f"{method} {target} HTTP/1.1\r\nhost: {authority}\r\n".encode("ascii")
    if body == CHUNKED:
        last = b"transfer-encoding: chunked\r\n\r\n"
    elif body or method in ("POST", "PUT", "PATCH"):
        last = b"content-length: %d\r\n\r\n" % body
    else:
        last = b"\r\n"
    return write_checked(first, headers, last)


def write_response_head(
    status: int, headers: Headers, body: int | None, *, keep_alive: bool, minor: int = 1, remark: bytes = b""
) -> bytes:
    """Write a response head.

    Args:
        status: 100 to 599.
        headers: end-to-end fields.
        body: length, CHUNKED, UNTIL_CLOSE, or None where there is no body and no framing field (1xx, 204, 304, HEAD).
        keep_alive: whether the guest may go on with this connection.
        minor: of the guest's HTTP/1.x: HTTP/1.0 needs keep-alive to be said.
        remark: stands after the reason phrase, in brackets; visible ASCII.
    """
    phrase = REASON_PHRASES.get(status, b"")
    first = b"HTTP/1.1 %d %b\r\n" % (status, b"%b (%b)" % (phrase, remark) if remark else phrase)
    last = b"\r\n"
    if not keep_alive:
        last = b"connection: close\r\n\r\n"
    elif minor == 0:
        last = b"connection: keep-alive\r\n\r\n"
    if body is not None and body != UNTIL_CLOSE:
        framing = b"transfer-encoding: chunked\r\n" if body == CHUNKED else b"content-length: %d\r\n" % body
        last = framing + last
    return write_fields(first, headers, last)


def write_chunk(data: bytes) -> bytes:
    """Write one chunk; the data must not be empty, or it would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def write_last_chunk(trailers: Headers) -> bytes:
    """Write the end of a chunked body."""
    if not trailers:
        return b"0\r\n\r\n"
    return b"".join([b"0\r\n", *(b"%b: %b\r\n" % pair for pair in trailers), b"\r\n"])


REASON_PHRASES: Final = {
    100: b"Continue", 103: b"Early Hints", 200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content",
    206: b"Partial Content", 301: b"Moved Permanently", 302: b"Found", 303: b"See Other", 304: b"Not Modified",
    307: b"Temporary Redirect", 308: b"Permanent Redirect", 400: b"Bad Request", 401: b"Unauthorized",
    403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed", 407: b"Proxy Authentication Required",
    408: b"Request Timeout", 409: b"Conflict", 410: b"Gone", 411: b"Length Required", 413: b"Content Too Large",
    414: b"URI Too Long", 415: b"Unsupported Media Type", 416: b"Range Not Satisfiable",
    417: b"Expectation Failed", 421: b"Misdirected Request", 422: b"Unprocessable Content", 425: b"Too Early",
    426: b"Upgrade Required", 429: b"Too Many Requests", 431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway", 503: b"Service Unavailable",
    504: b"Gateway Timeout", 505: b"HTTP Version Not Supported",
}  # fmt: skip
"""Phrases of RFC 9110 15. The upstream's own phrase is never relayed: it is free text that nobody judges."""
