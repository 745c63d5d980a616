"""HTTP/2 field lists to heads and back, strictly (RFC 9113 section 8). Sans-I/O.

Called by `protocol.http2` with what HPACK gave. What HTTP/1.1 could read differently is refused here, for all guests
and upstreams, so that a downgrade can't smuggle: control characters, upper case, connection fields, white space
around values, more than one length, Host beside another :authority.
"""

from __future__ import annotations

import re
from typing import Final

from seamgate.errors import GuestProtocolError, PluginError, ProtocolError, Reason, UpstreamProtocolError
from seamgate.flow import Headers
from seamgate.headers import field_problem
from seamgate.protocol.heads import CHUNKED, RequestHead, ResponseHead
from seamgate.protocol.http1 import MAX_FIELDS, NEVER_TRAILER

Fields = list[tuple[bytes, bytes]]

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]{1,256}\Z")
_METHOD = re.compile(rb"[A-Z][A-Z\-]{0,23}\Z")
_PATH = re.compile(rb"[\x21-\x7e]+\Z")
_AUTHORITY = re.compile(rb"[\x21-\x7e]{1,300}\Z")
_STATUS = re.compile(rb"[1-5][0-9]{2}\Z")
_VALUE_BYTES: Final = bytes((0x09, *range(0x20, 0x7F), *range(0x80, 0x100)))
# RFC 9113 8.2.2: a message with one of these is malformed.
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings")
)
# Read here and never passed on, as in HTTP/1.1.
_READ_HERE: Final = frozenset(
    (b"host", b"content-length", b"expect", b"te", b"trailer", b"proxy-authorization", b"proxy-authenticate", b"cookie")
)
_OF_REQUESTS: Final = frozenset((b":method", b":scheme", b":authority", b":path", b":protocol"))
_OF_RESPONSES: Final = frozenset((b":status",))
_NONE: Final[frozenset[bytes]] = frozenset()

# Never in a compression table, here or at the next hop (RFC 7541 7.1.3), so that nobody guesses one by sizes.
_SECRET_NAMES: Final = frozenset((b"authorization", b"cookie", b"set-cookie", b"proxy-authorization", b"x-api-key"))
_SECRET_PARTS = re.compile(rb"key|token|secret|auth|session|passw|credential|signature")
# Not worth a place in it: another value each time.
_CHANGING: Final = frozenset(
    (b":path", b"content-length", b"date", b"etag", b"last-modified", b"age", b"request-id", b"x-request-id", b"cf-ray")
)
_unindexed: dict[bytes, bool] = {b":authority": False}
_names_seen: set[bytes] = set()
_MOST_NAMES: Final = 4096
_LONGEST_NAME: Final = 64


def _split(
    fields: Fields, pseudo: frozenset[bytes], error: type[ProtocolError]
) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]], dict[bytes, list[bytes]]]:
    """Split into pseudo fields, ordinary ones, and those that are read here.

    Raises:
        ProtocolError: of the given type.
    """
    if len(fields) > MAX_FIELDS + 4:
        reason = Reason.HEADERS_TOO_LARGE if error is GuestProtocolError else Reason.UPSTREAM_PROTOCOL
        raise error(f"there are more than {MAX_FIELDS} header fields", reason=reason)
    if b"".join([value for _, value in fields]).translate(None, _VALUE_BYTES):
        raise error("there is a control character in a header field")
    first: dict[bytes, bytes] = {}
    ordinary: list[tuple[bytes, bytes]] = []
    special: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        if name[:1] == b":":
            if ordinary or special or name not in pseudo or name in first:
                raise error("a pseudo field is unknown, repeated or out of place")  # unnamed: it may be a value
            first[name] = value
            continue
        if name not in _names_seen:
            _check_name(name, error)
        if value[:1] in (b" ", b"\t") or value[-1:] in (b" ", b"\t"):
            raise error("there is white space around a header field's value")
        if name in _READ_HERE:
            special.setdefault(name, []).append(value)
        elif name in _OF_CONNECTIONS:
            raise error(f"the field {name.decode()} is of HTTP/1.1 connections")
        else:
            ordinary.append((name, value))
    return first, ordinary, special


def _check_name(name: bytes, error: type[ProtocolError]) -> None:
    if not _NAME.match(name):
        raise error("a header field's name is not a lower-case token")
    if len(_names_seen) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
        _names_seen.add(name)


def _length(special: dict[bytes, list[bytes]], error: type[ProtocolError]) -> int | None:
    values = special.get(b"content-length")
    if values is None:
        return None
    if len(values) > 1 or len(values[0]) > 15 or not values[0].isdigit():
        raise error("the content-length is not one plain number")
    return int(values[0])


def parse_request(fields: Fields, *, ended: bool, scheme: bytes = b"https") -> RequestHead:
    """Parse the fields of a request.

    Args:
        fields: as HPACK gave them.
        ended: whether no body follows.
        scheme: of the connection; another :scheme is a disagreement about the target.

    Raises:
        GuestProtocolError: they are malformed, ambiguous, or of a method that is refused.
    """
    first, ordinary, special = _split(fields, _OF_REQUESTS, GuestProtocolError)
    method, protocol = first.get(b":method", b""), first.get(b":protocol")
    if protocol is not None:
        _check_extended(method, protocol, special, ended=ended)
        method = b"GET"
    if method in (b"CONNECT", b"TRACE") or not _METHOD.match(method):
        raise GuestProtocolError("the method is not one that is forwarded", reason=Reason.METHOD_REFUSED)
    path = first.get(b":path", b"")
    if not _PATH.match(path) or not (path[:1] == b"/" or path == b"*"):
        raise GuestProtocolError("the :path is not an absolute path")
    if first.get(b":scheme") != scheme:
        raise GuestProtocolError(f"the :scheme is not {scheme.decode()}", reason=Reason.TARGET_MISMATCH)
    te = special.get(b"te")
    if te is not None and te != [b"trailers"]:
        raise GuestProtocolError("the only TE is trailers")
    proxy = special.get(b"proxy-authorization")
    return RequestHead(
        method.decode("ascii"),
        path.decode("ascii"),
        _authority(first, special),
        _with_cookie(ordinary, special.get(b"cookie")),
        _request_body(_length(special, GuestProtocolError), ended),
        True,
        b"expect" in special and _expects_continue(special[b"expect"]) and not ended,
        protocol,
        proxy[0] if proxy is not None and len(proxy) == 1 else None,
        1,
        protocol is not None,
    )


def _check_extended(method: bytes, protocol: bytes, special: dict[bytes, list[bytes]], *, ended: bool) -> None:
    """Check an extended CONNECT (RFC 8441 4): it is judged as the GET with Upgrade that HTTP/1.1 would have."""
    if method != b"CONNECT":
        raise GuestProtocolError("only CONNECT has a :protocol")
    if protocol != b"websocket":
        raise GuestProtocolError("the only :protocol is websocket", reason=Reason.UPGRADE_REFUSED)
    if ended or b"content-length" in special or b"expect" in special:
        raise GuestProtocolError("a WebSocket begins without a body and without an end")


def _authority(first: dict[bytes, bytes], special: dict[bytes, list[bytes]]) -> str:
    """The one authority, out of :authority and Host (RFC 9113 8.3.1)."""
    hosts = special.get(b"host", [])
    authority = first.get(b":authority", hosts[0] if hosts else b"")
    if not _AUTHORITY.match(authority):
        raise GuestProtocolError("the :authority is missing or malformed")
    if len(hosts) > 1 or (hosts and hosts[0].lower() != authority.lower()):
        raise GuestProtocolError("Host and :authority do not agree", reason=Reason.TARGET_MISMATCH)
    return authority.decode("ascii")


def _with_cookie(ordinary: list[tuple[bytes, bytes]], crumbs: list[bytes] | None) -> Headers:
    """Join cookie crumbs (RFC 9113 8.2.3), or policy and upstream could see different cookies."""
    if crumbs is not None:
        ordinary.append((b"cookie", b"; ".join([crumb for crumb in crumbs if crumb])))
    return tuple(ordinary)


def _request_body(length: int | None, ended: bool) -> int:
    if ended:
        if length:
            raise GuestProtocolError("the content-length promises a body, and none follows")
        return 0
    return CHUNKED if length is None else length


def _expects_continue(values: list[bytes]) -> bool:
    if len(values) > 1 or values[0].lower() != b"100-continue":
        raise GuestProtocolError("the Expect header is not 100-continue", reason=Reason.EXPECTATION_FAILED)
    return True


def parse_response(fields: Fields, method: str, *, ended: bool) -> ResponseHead:
    """Parse the fields of a response, also of a 1xx one.

    Args:
        fields: as HPACK gave them.
        method: of the request that it answers.
        ended: whether no body follows.

    Raises:
        UpstreamProtocolError: they are malformed or ambiguous.
    """
    first, ordinary, special = _split(fields, _OF_RESPONSES, UpstreamProtocolError)
    text = first.get(b":status", b"")
    if not _STATUS.match(text) or text == b"101":
        raise UpstreamProtocolError("the upstream's :status is missing or malformed")
    status = int(text)
    length = _length(special, UpstreamProtocolError)
    bodiless = method == "HEAD" or status < 200 or status in (204, 304)
    if ended and length and not bodiless:
        raise UpstreamProtocolError("the upstream's content-length promises a body, and none follows")
    if method == "CONNECT" and status < 300:
        length = None  # a stream, not a body: whatever it says is ignored (RFC 9110 9.3.6)
    body = 0 if bodiless or ended else CHUNKED if length is None else length
    if special.get(b"cookie") is not None:
        ordinary.append((b"cookie", b"; ".join(special[b"cookie"])))
    return ResponseHead(status, tuple(ordinary), body, True, False, 1, length)


def parse_late_fields(fields: Fields, error: type[ProtocolError]) -> Headers:
    """Parse a trailer section.

    Raises:
        ProtocolError: of the given type; it is malformed, or a field may not come late.
    """
    _, ordinary, special = _split(fields, _NONE, error)
    for name in (*special, *(name for name, _ in ordinary)):
        if name in NEVER_TRAILER:
            raise error(f"the field {name.decode()} may not be a trailer")
    return tuple(ordinary)


def is_unindexed(name: bytes) -> bool:
    """Whether a field stays out of compression tables: because its value may be secret, or is another each time."""
    known = _unindexed.get(name)
    if known is None:
        known = name in _CHANGING or name in _SECRET_NAMES or _SECRET_PARTS.search(name) is not None
        if len(_unindexed) < _MOST_NAMES and len(name) <= _LONGEST_NAME:
            _unindexed[name] = known
    return known


def request_fields(
    method: str,
    scheme: str,
    authority: str,
    target: str,
    headers: Headers,
    body: int,
    *,
    trailers: bool,
    protocol: str = "",
) -> Fields:
    """Return the fields of a request, from the model that was judged.

    Args:
        method: upper-case token.
        scheme: "https".
        authority: of the target.
        target: path and query.
        headers: end-to-end fields.
        body: length, or CHUNKED; 0 says so only for methods that expect a body (RFC 9110 8.6).
        trailers: whether to say that trailers are wanted: gRPC requires it.
        protocol: of an extended CONNECT (RFC 8441), "" for none.

    Raises:
        PluginError: a field would be read as something else. Whoever made it is checked before: this is the last wall.
    """
    problem = field_problem(headers, at_the_writer=True)
    if problem:
        raise PluginError(f"the request can't be written: {problem}")
    fields: Fields = [
        (b":method", method.encode("ascii")),
        (b":scheme", scheme.encode("ascii")),
        (b":authority", authority.encode("ascii")),
        (b":path", target.encode("ascii")),
    ]
    if protocol:
        fields.append((b":protocol", protocol.encode("ascii")))
    fields += headers
    if body > 0 or (body == 0 and method in ("POST", "PUT", "PATCH")):
        fields.append((b"content-length", b"%d" % body))
    if trailers:
        fields.append((b"te", b"trailers"))
    return fields


def response_fields(status: int, headers: Headers, body: int | None) -> Fields:
    """Return the fields of a response; body is a length, CHUNKED, or None for none."""
    fields: Fields = [(b":status", b"%d" % status), *headers]
    if body is not None and body >= 0:
        fields.append((b"content-length", b"%d" % body))
    return fields
