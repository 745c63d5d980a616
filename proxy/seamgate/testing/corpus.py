"""What the field has met, as values: requests, tunnels, records, responses and bodies that a plugin has to withstand.

Used by `conformance`. Each request passed the gateway's readers, so a plugin can meet it in a running gateway; what
they refuse never gets to a plugin and is not here. Names are for the message of a check that fails. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from seamgate.audit.record import AuditBytes, AuditGateway, AuditKind, AuditRecord, AuditRequest
from seamgate.errors import Reason
from seamgate.flow import BodyState, Guest, Isolation, Request, Response, Step, Target
from seamgate.testing.building import AT, make_record, make_request, make_response, make_target

HOST = "api.example.com"
_ODD = b"caf\xe9 \xff\x80 na\xefve/1.0"
_USUAL = (
    "user-agent", "accept", "accept-language", "authorization", "content-type", "cookie", "from", "if-none-match",
    "origin", "referer", "x-forwarded-for", "x-request-id",
)  # fmt: skip
"""Headers that every client sends and every plugin reads: their values are bytes (RFC 9110 5.5, obs-text)."""
_USUAL_OF_ANSWERS = (
    "cache-control", "content-disposition", "content-type", "etag", "link", "location", "server", "set-cookie",
    "www-authenticate",
)  # fmt: skip
_JSON = {"content-type": "application/json"}
_MIB = 1024 * 1024


def requests() -> Iterator[tuple[str, Request]]:
    """Yield (what is odd about it, request)."""
    yield from _lines()
    yield from _heads()
    yield from _bodies()
    yield from _guests()


def _lines() -> Iterator[tuple[str, Request]]:
    at = f"https://{HOST}"
    yield "a plain GET", make_request(f"GET {at}/")
    yield "HEAD", make_request(f"HEAD {at}/v1")
    yield "a method of WebDAV", make_request(f"PROPFIND {at}/")
    yield "a method with a hyphen", make_request(f"M-SEARCH {at}/")
    yield "OPTIONS *", msgspec.structs.replace(make_request(f"OPTIONS {at}/"), path="*")
    yield "plain http", make_request(f"GET http://{HOST}/")
    yield "an odd port", make_request(f"GET https://{HOST}:65535/")
    yield "an IPv4 address", make_request("GET https://192.0.2.7/")
    yield "an IPv6 address", make_request("GET https://[2001:db8::1]:8443/")
    yield "an internationalised host", make_request("GET https://xn--bcher-kva.example/")
    yield "the longest host", make_request(f"GET https://{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 56}.test/")
    yield "a slash in an escape", make_request(f"GET {at}/repos/a%2Fb/c")
    yield "escapes of UTF-8", make_request(f"GET {at}/%E2%82%AC/%F0%9F%98%80")
    yield "a full-width slash", make_request(f"GET {at}/x%EF%BC%8Fadmin")
    yield "an escaped percent sign", make_request(f"GET {at}/100%25")
    yield "escaped markup", make_request(f"GET {at}/%3Cscript%3E%22%27")
    yield "a path of 8 KiB", make_request(f"GET {at}/{'x' * 8191}")
    yield "a path of 256 segments", make_request(f"GET {at}{'/a' * 256}")
    yield "an empty query", make_request(f"GET {at}/?")
    yield "a query without names", make_request(f"GET {at}/?a&&=&=b&%00&%")
    yield "a repeated name in the query", make_request(f"GET {at}/?a=1&a=2&A=3&a[]=4")
    yield "a query of 16 KiB", make_request(f"GET {at}/?{'q=1&' * 4096}")
    yield "bytes that are not UTF-8 in the query", make_request(f"GET {at}/?q=%FF%FE%C3%28")
    yield "a WebSocket", make_request(f"GET wss://{HOST}/realtime")


def _heads() -> Iterator[tuple[str, Request]]:
    line = f"GET https://{HOST}/v1"
    yield "a header of Latin-1 bytes", make_request(line, headers=((b"x-name", b"caf\xe9\xff\x80"),))
    yield "a header of UTF-8 bytes", make_request(line, headers=((b"x-name", "\u20ac\U0001f600".encode()),))
    for name in _USUAL:
        yield (
            f"a {name} of bytes that are not UTF-8",
            make_request(line, headers=((name.encode(), _ODD),)),
        )
    yield "an empty header", make_request(line, headers=((b"x-empty", b""), (b"authorization", b"")))
    yield "a header with a tab", make_request(line, headers=((b"x-tab", b"a\tb"),))
    yield "a repeated header", make_request(line, headers=((b"x-a", b"1"), (b"x-a", b"2"), (b"x_a", b"3")))
    yield "odd characters in a name", make_request(line, headers=((b"!#$%&'*+-.^_`|~", b"x"),))
    yield "a header of 60 KiB", make_request(line, headers=((b"cookie", b"c" * 61_440),))
    yield "250 headers", make_request(line, headers=tuple((b"x-%d" % n, b"v" * 64) for n in range(250)))
    yield (
        "every kind of authorization",
        make_request(
            line,
            headers=(
                (b"authorization", b"Basic !!!not base64!!!"),
                (b"authorization", b"Basic Og=="),
                (b"authorization", b"Basic dXNlcjpwYXNzd29yZC0wMTIzNDU2Nzg5"),
                (b"authorization", b"Bearer"),
                (b"authorization", b'Digest username="x\\"y", response="'),
            ),
        ),
    )
    yield "a method in a header", make_request(line, headers={"x-http-method-override": "DELETE, PUT"})
    yield "several forwarded hosts", make_request(line, headers={"x-forwarded-host": ["a.test", "b.test"]})


def _bodies() -> Iterator[tuple[str, Request]]:
    post = f"POST https://{HOST}/v1/messages"
    yield "no body where one belongs", make_request(post)
    yield "an empty body", make_request(post, body=b"", headers=_JSON)
    yield "JSON", make_request(post, json={"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    yield "JSON that is no object", make_request(post, json=[1, None, "x"])
    yield "JSON that is cut", make_request(post, body=b'{"model": "m', headers=_JSON)
    yield "JSON with a name twice", make_request(post, body=b'{"a":1,"a":2}', headers=_JSON)
    yield "JSON with odd numbers", make_request(post, body=b'{"a":NaN,"b":1e999,"c":%d}' % 10**400, headers=_JSON)
    yield "JSON with lone surrogates", make_request(post, body=b'{"a":"\\ud800","b":"\\u0000"}', headers=_JSON)
    yield "JSON nested 5,000 deep", make_request(post, body=b"[" * 5000 + b"]" * 5000, headers=_JSON)
    yield "JSON in UTF-16", make_request(post, body='{"a":1}'.encode("utf-16"), headers=_JSON)
    yield "JSON after a byte order mark", make_request(post, body=b'\xef\xbb\xbf{"a":1}', headers=_JSON)
    yield "bytes that are not UTF-8", make_request(post, body=b"\xff\xfe\x00\xc3\x28", headers=_JSON)
    yield "a body without a type", make_request(post, body=b"\x00\x01\x02")
    yield "a type that is nonsense", make_request(post, body=b"x", headers={"content-type": ';;="charset'})
    yield "two types", make_request(post, body=b"{}", headers={"content-type": ["application/json", "text/plain"]})
    yield (
        "a form",
        make_request(post, body=b"a=1&a=%zz&=&&b", headers={"content-type": "application/x-www-form-urlencoded"}),
    )
    yield "a body of 2 MiB", make_request(post, body=b'{"a":"' + b"x" * (2 * _MIB) + b'"}', headers=_JSON)
    for state in (BodyState.PENDING, BodyState.OVERSIZE, BodyState.UNDECODABLE):
        late = make_request(post, headers=_JSON)
        yield f"a body that is {state}", msgspec.structs.replace(late, body_state=state)
    trailing = make_request(post, body=b"x", headers=_JSON)
    late_fields = ((b"x-checksum", b"\xff"), (b"authorization", b"Bearer late"))
    yield "trailers", msgspec.structs.replace(trailing, headers=(*trailing.headers, *late_fields))


def _guests() -> Iterator[tuple[str, Request]]:
    line = f"GET https://{HOST}/"
    yield "a guest without a name", make_request(line, guest=Guest(""))
    yield "a guest with odd labels", make_request(line, guest=Guest("g", {"team": "", "": "x", "\u20ac": "a b\n"}))
    for isolation in Isolation:
        yield f"a guest by {isolation}", make_request(line, guest=Guest("g", {}, isolation, "group"))


def tunnels() -> Iterator[tuple[str, Guest, Target]]:
    """Yield (what is odd about it, guest, target) for `judge_connect`."""
    guest = Guest("g", {"team": "research"})
    yield "a tunnel", guest, make_target(f"https://{HOST}")
    yield "a tunnel to a name at any port", guest, Target("https", HOST, 0)
    yield "a stream that passes unread", guest, make_target(f"tcp://{HOST}:5432")
    yield "a tunnel to an IPv6 address", guest, make_target("https://[2001:db8::1]:8443")
    yield "a tunnel of a guest without labels", Guest(""), make_target("https://192.0.2.7")


def responses() -> Iterator[tuple[str, Response]]:
    """Yield (what is odd about it, head of a response)."""
    yield "a plain answer", make_response(200, {"content-type": "application/json"})
    yield "an answer without headers", make_response(204)
    yield "a status that nobody knows", make_response(599)
    yield "a redirect to nowhere", make_response(302, {"location": "//[::1"})
    yield "a type that is nonsense", make_response(200, {"content-type": ";;charset"})
    yield "bytes that are not text", make_response(200, ((b"x-a", b"\xff\x80"), (b"set-cookie", b"")))
    for name in _USUAL_OF_ANSWERS:
        yield f"a {name} of bytes that are not UTF-8", make_response(200, ((name.encode(), _ODD),))
    yield "300 headers", make_response(200, tuple((b"x-%d" % n, b"v" * 100) for n in range(300)))
    yield "an event stream", make_response(200, {"content-type": "text/event-stream"})


def records() -> Iterator[tuple[str, AuditRecord]]:
    """Yield (what is odd about it, record) for `request_done`, `denied` and `export_audit`."""
    whole = make_request(f"GET https://{HOST}/v1?a=1")
    yield "a request that was answered", make_record(whole, bytes=AuditBytes(0, 10), duration_ms=1.5, rule="r")
    yield "a denial", _denial(whole, Reason.NO_RULE_MATCHED, message="No rule allows it.")
    yield "a refusal before anything was known", _denial(None, Reason.BAD_REQUEST)
    asked = AuditRequest("GET", "http", HOST, 80, "/")
    yield "a refusal without a guest", _denial(None, Reason.UNAUTHENTICATED, entry="proxy", request=asked)
    yield "a request that was cut", make_record(whole, outcome="truncated", reason=Reason.UPSTREAM_CLOSED)
    yield "a request without a status", make_record(whole, outcome="aborted", reason=Reason.GUEST_GONE, status=0)
    yield "a long message", _denial(whole, Reason.RULE_DENIED, message="\u20ac" * 4096)
    yield "many steps", make_record(whole, steps=tuple(Step(f"p{n}", "judge_request", 0.1, "none") for n in range(200)))
    tunnel = AuditRequest("CONNECT", "https", HOST, 443)
    yield "a tunnel", AuditRecord(AT, AuditKind.CONNECT, verdict=None, request=tunnel)
    yield "the gateway's start", AuditRecord(AT, AuditKind.GATEWAY, gateway=AuditGateway("start", {"version": "1"}))


def _denial(request: Request | None, reason: Reason, /, **facts: Any) -> AuditRecord:
    return make_record(request, verdict="deny", outcome="denied", status=403, reason=reason, **facts)


def bodies() -> Iterator[tuple[str, str, bytes]]:
    """Yield (what is odd about it, media type, body) for inspectors."""
    yield "nothing", "text/plain", b""
    yield "one byte", "text/plain", b"x"
    yield "text", "text/plain", b"The quick brown fox jumps over the lazy dog.\n"
    yield "text in UTF-8", "text/plain", "na\u00efve caf\u00e9 \u20ac \U0001f600 \u2028 end".encode()
    yield "bytes that are not UTF-8", "text/plain", bytes(range(256))
    yield "a cut character at the end", "text/plain", "caf\u00e9".encode()[:-1]
    yield "JSON", "application/json", b'{"a":"\\u0041\\n","b":[1,2.5,null],"c":{"d":""}}'
    yield "events", "text/event-stream", b'event: delta\ndata: {"text":"he"}\n\ndata: [DONE]\r\n\r\n: ping\n\n'
    yield "markup", "text/html", b"<html><script>alert('x')</script><p>&lt;&#x41;"
    yield "line ends of every kind", "text/plain", b"a\nb\r\nc\rd\n\n"
    yield "what looks like keys", "text/plain", b"AKIAIOSFODNN7EXAMPLE ghp_" + b"a1B2" * 9 + b" sk-" + b"x9Y8" * 10
    yield "nothing but zeros", "application/octet-stream", bytes(1000)
    yield "200 KiB", "text/plain", b"0123456789abcdef" * 12_800
