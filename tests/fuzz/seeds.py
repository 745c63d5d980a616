"""Where each search begins: a few small inputs that reach far into what is fuzzed."""

from __future__ import annotations

from fuzz.vmm_targets import HIBERNATED_SEEDS, TEMPLATE_SEEDS
from seamgate.upstream.dns_message import build_query
from support.http2 import Peer, get

QUERY = build_query("api.example", 1, 0x1234)
_REQUEST = b"POST /a?b HTTP/1.1\r\nhost: a.example\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n"
_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 204 No Content\r\n\r\n"
_POLICY = b"seamgate: 1\nrules:\n  - id: a\n    allow: {hosts: [a.example], methods: [GET], paths: ['/v1/**']}\n"
_HELLO = bytes.fromhex("16030100400100003c0303" + "11" * 32 + "000002130101000011" + "0000000d000b0000086e2e6578616d70")
SEEDS: dict[str, list[bytes]] = {
    "http1_requests": [_REQUEST, _REQUEST.replace(b"transfer-encoding: chunked", b"content-length: 0") + _REQUEST],
    "http1_responses": [_RESPONSE, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"],
    "http2_guests": [
        Peer().headers(1, get(), ended=True),
        b"\0\0\4\3\0\0\0\0\1\0\0\0\0",
        b"\0\0\6\4\0\0\0\0\0\0\4\0\1\0\0",
    ],
    "http2_upstreams": [
        b"\0\0\0\4\0\0\0\0\0\0\0\1\1\5\0\0\0\1\x88",
        b"\0\0\3\0\1\0\0\0\1abc",
        b"\0\0\x08\7\0\0\0\0\0" + b"\0" * 8,
    ],
    "websocket": [b"\x81\x82\1\2\3\4ij", b"\x01\1a\x80\1b", b"\xc1\x07\xaa\x56\x4a\x4c\x4a\x06\x00", b"\x88\2\3\xe8"],
    "socks5": [
        b"\5\2\0\2\1\1u\1p\5\1\0\3\tapi.a.org\1\xbb",
        b"\5\1\0\5\1\0\1\1\2\3\4\0\x50",
        b"\5\1\0\5\1\0\4" + b"\1" * 18,
    ],
    "client_hello": [_HELLO, b"\x16\3\1\0\4\1\0\0\0"],
    "dns_answers": [
        QUERY[2:],
        b"\x81\x80" + QUERY[4:6] + b"\0\1\0\0\0\0" + QUERY[12:] + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\1\2\3\4",
    ],
    "dns_queries": [QUERY],
    "targets": [b"api.example", b"/v1/%7Ea/b", b"1.2.3.4", b"::1", "bücher.example".encode(), b"a=b&c"],
    "leaves": [b"api.example", b"1.2.3.4", b"::1", b"a" * 63 + b".example"],
    "policies": [_POLICY, b"seamgate_test: 1\npolicy: [a]\ncases: []\n", b"entries: {}\nguests: {g: {}}\n"],
    "journals": [b"", b"\0\0x", b"\1\x80\0", b"!{}"],
    "codings": [
        b"\0\x1f\x8b\x08\0\0\0\0\0\0\3KLJ\6\0\xc2A$5\3\0\0\0",
        b"\2\x0b\1\x80abc\3",
        b"\3(\xb5/\xfd\4\0\x19\0\0abc",
    ],
    "requests_searched": [b"sgph-key", b"sk-live/9f+7c", b"c2dwaC1rZXk=", b"%73gph-key", b"s\\u0067ph-other"],
    "redaction": [b"a sk-live/9f+7c b", b"Z2hwX0FCQ0RFRkdI", b"sk-live%2F9f%2B7c", b"ghp_ABCDE\nFGH"],
    "templates": [*TEMPLATE_SEEDS],
    "hibernated": [*HIBERNATED_SEEDS],
}
