"""The opening handshake: what a guest may ask, what goes upstream, which answers are accepted."""

from __future__ import annotations

import pytest

from seamgate.errors import GuestProtocolError, Reason, UpstreamProtocolError
from seamgate.protocol.heads import RequestHead, ResponseHead
from seamgate.protocol.http1 import parse_request_head, parse_response_head
from seamgate.protocol.websocket import Deflate
from seamgate.protocol.websocket_handshake import (
    Agreed,
    accept_of,
    asks,
    check_accept,
    new_key,
    parse_extended_offer,
    parse_offer,
    request_headers,
    response_headers,
)

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
DEFLATE = b"permessage-deflate; server_no_context_takeover; client_no_context_takeover"


def head(*changes: bytes, line: bytes = b"GET /chat HTTP/1.1") -> RequestHead:
    """Parse an opening handshake in which fields are replaced (or taken away by an empty value)."""
    fields = {
        b"host": b"ws.test",
        b"connection": b"keep-alive, Upgrade",
        b"upgrade": b"WebSocket",
        b"sec-websocket-key": KEY,
        b"sec-websocket-version": b"13",
    }
    for change in changes:
        name, _, value = change.partition(b": ")
        fields[name] = value
    lines = [line, *(name + b": " + value for name, value in fields.items() if value)]
    return parse_request_head(b"\r\n".join(lines) + b"\r\n\r\n")


def answer(*fields: bytes, status: bytes = b"101") -> ResponseHead:
    return parse_response_head(b"\r\n".join((b"HTTP/1.1 %b X" % status, *fields)) + b"\r\n\r\n", "GET")


GOOD = (b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-accept: " + accept_of(KEY))


def test_the_accept_is_that_of_the_rfc() -> None:
    """RFC 6455 1.3 has an example."""
    assert accept_of(KEY) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("connection", [b"Upgrade", b"upgrade", b"keep-alive, Upgrade", b"UPGRADE , keep-alive"])
@pytest.mark.parametrize("upgrade", [b"websocket", b"WebSocket"])
def test_an_opening_handshake_is_read(connection: bytes, upgrade: bytes) -> None:
    """Case and company of the tokens don't matter."""
    asked = head(b"connection: " + connection, b"upgrade: " + upgrade, b"sec-websocket-protocol: chat, x.v2")
    assert asks(asked)
    offer = parse_offer(asked)
    assert (offer.key, offer.protocols, offer.deflate) == (KEY, ("chat", "x.v2"), None)


BAD = {
    "no key": ((b"sec-websocket-key: ",), Reason.BAD_REQUEST),
    "a short key": ((b"sec-websocket-key: abcd",), Reason.BAD_REQUEST),
    "a key that is not base64": ((b"sec-websocket-key: " + b"!" * 24,), Reason.BAD_REQUEST),
    "two keys": ((b"sec-websocket-key: " + KEY + b"\r\nsec-websocket-key: " + KEY,), Reason.BAD_REQUEST),
    "no version": ((b"sec-websocket-version: ",), Reason.BAD_REQUEST),
    "another version": ((b"sec-websocket-version: 8",), Reason.UPGRADE_REFUSED),
    "Connection does not say so": ((b"connection: keep-alive",), Reason.UPGRADE_REFUSED),
    "no Connection": ((b"connection: ",), Reason.UPGRADE_REFUSED),
    "a body": ((b"content-length: 3",), Reason.BAD_REQUEST),
    "chunks": ((b"transfer-encoding: chunked",), Reason.BAD_REQUEST),
    "an expectation": ((b"expect: 100-continue",), Reason.BAD_REQUEST),
    "a protocol twice": ((b"sec-websocket-protocol: a, a",), Reason.BAD_REQUEST),
    "an empty protocol": ((b"sec-websocket-protocol: a,,b",), Reason.BAD_REQUEST),
    "a broken extension": ((b"sec-websocket-extensions: a; b=c d",), Reason.BAD_REQUEST),
    "a parameter twice": ((b"sec-websocket-extensions: a; b; b",), Reason.BAD_REQUEST),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_opening_handshake_is_refused(case: str) -> None:
    """Nothing is repaired, and another version is told apart from a malformed request."""
    changes, reason = BAD[case]
    with pytest.raises(GuestProtocolError) as refused:
        parse_offer(head(*changes))
    assert refused.value.reason is reason


@pytest.mark.parametrize("line", [b"POST /chat HTTP/1.1", b"GET /chat HTTP/1.0"])
def test_only_a_get_of_http_1_1_begins_one(line: bytes) -> None:
    """RFC 6455 4.1."""
    with pytest.raises(GuestProtocolError):
        parse_offer(head(line=line))


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket, h2c", b"TLS/1.0"])
def test_other_upgrades_are_no_websocket(upgrade: bytes) -> None:
    """What is not exactly a WebSocket is not taken for one."""
    assert not asks(head(b"upgrade: " + upgrade))


EXTENSIONS = {
    b"permessage-deflate": Deflate(),
    b"permessage-deflate; client_max_window_bits": Deflate(),
    b'permessage-deflate; server_max_window_bits="10"; client_max_window_bits=9': Deflate(window_bits=10),
    b"x-unknown, permessage-deflate; server_no_context_takeover": Deflate(),
    b"permessage-deflate; server_max_window_bits=8, permessage-deflate": Deflate(),
    b"permessage-deflate; server_max_window_bits=16": None,
    b"permessage-deflate; server_max_window_bits": None,
    b"permessage-deflate; server_no_context_takeover=1": None,
    b"permessage-deflate; other": None,
    b"x-webkit-deflate-frame": None,
}


@pytest.mark.parametrize("text", EXTENSIONS)
def test_the_first_offer_of_compression_that_can_be_had_is_taken(text: bytes) -> None:
    """An offer with a parameter that is unknown or can't be met is declined (RFC 7692 7)."""
    assert parse_offer(head(b"sec-websocket-extensions: " + text)).deflate == EXTENSIONS[text]


def test_the_request_upstream_has_a_handshake_of_its_own() -> None:
    """Key, version and extensions of the guest stay behind; subprotocols and other fields go on."""
    asked = head(b"sec-websocket-extensions: x-own", b"sec-websocket-protocol: chat", b"origin: https://a.test")
    key = new_key()
    sent = request_headers(asked.headers, key, compress=True)
    assert KEY not in [value for _, value in sent] and key != new_key()
    assert sorted(sent) == [
        (b"connection", b"Upgrade"),
        (b"origin", b"https://a.test"),
        (b"sec-websocket-extensions", DEFLATE),
        (b"sec-websocket-key", key),
        (b"sec-websocket-protocol", b"chat"),
        (b"sec-websocket-version", b"13"),
        (b"upgrade", b"websocket"),
    ]
    assert b"sec-websocket-extensions" not in dict(request_headers(asked.headers, key, compress=False))


def test_a_good_answer_is_accepted() -> None:
    """With subprotocol and compression as offered."""
    sent = ((b"sec-websocket-protocol", b"chat, x.v2"),)
    full = answer(*GOOD, b"sec-websocket-protocol: x.v2", b"sec-websocket-extensions: permessage-deflate")
    assert check_accept(full, KEY, sent, compress=True) == Agreed(1, Deflate(takeover=True))
    assert check_accept(answer(*GOOD), KEY, sent, compress=True) == Agreed(None, None)
    narrow = answer(*GOOD, b"sec-websocket-extensions: " + DEFLATE + b"; server_max_window_bits=8")
    assert check_accept(narrow, KEY, (), compress=True) == Agreed(None, Deflate())


BAD_ANSWERS = {
    "no upgrade": (GOOD[0], GOOD[2]),
    "another upgrade": (GOOD[0], b"upgrade: h2c", GOOD[2]),
    "no connection": GOOD[1:],
    "no accept": GOOD[:2],
    "another accept": (*GOOD[:2], b"sec-websocket-accept: " + accept_of(b"x")),
    "two accepts": (*GOOD, GOOD[2]),
    "a protocol that was not offered": (*GOOD, b"sec-websocket-protocol: other"),
    "two protocols": (*GOOD, b"sec-websocket-protocol: chat, x.v2"),
    "another extension": (*GOOD, b"sec-websocket-extensions: x-own"),
    "two extensions": (*GOOD, b"sec-websocket-extensions: permessage-deflate, permessage-deflate"),
    "an unknown parameter": (*GOOD, b"sec-websocket-extensions: permessage-deflate; other"),
    "a demand that was not invited": (
        *GOOD, b"sec-websocket-extensions: permessage-deflate; client_max_window_bits=10",
    ),
    "a window that is none": (*GOOD, b"sec-websocket-extensions: permessage-deflate; server_max_window_bits=16"),
    "a broken extension": (*GOOD, b"sec-websocket-extensions: ;"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_an_answer_that_is_not_to_what_was_asked_is_refused(case: str) -> None:
    """The upstream is held to the key, the protocols and the extensions that it was offered."""
    sent = ((b"sec-websocket-protocol", b"chat, x.v2"),)
    with pytest.raises(UpstreamProtocolError):
        check_accept(answer(*BAD_ANSWERS[case]), KEY, sent, compress=True)


def test_compression_that_was_not_offered_is_refused() -> None:
    """A guest that wants none makes a gateway that offers none."""
    with pytest.raises(UpstreamProtocolError):
        check_accept(answer(*GOOD, b"sec-websocket-extensions: permessage-deflate"), KEY, (), compress=False)


def test_the_guest_gets_an_answer_to_its_own_handshake() -> None:
    """Its own key, its own spelling of the subprotocol, its own compression."""
    offer = parse_offer(
        head(
            b"sec-websocket-protocol: sgph-key, chat",
            b"sec-websocket-extensions: permessage-deflate; server_max_window_bits=12",
        )
    )
    upstream = ((b"sec-websocket-accept", b"theirs"), (b"sec-websocket-protocol", b"real"), (b"date", b"now"))
    assert dict(response_headers(upstream, offer, Agreed(0, None), compress=True)) == {
        b"connection": b"Upgrade",
        b"upgrade": b"websocket",
        b"sec-websocket-accept": accept_of(KEY),
        b"sec-websocket-protocol": b"sgph-key",
        b"sec-websocket-extensions": DEFLATE + b"; server_max_window_bits=12",
        b"date": b"now",
    }
    plain = dict(response_headers((), offer, Agreed(None, None), compress=False))
    assert b"sec-websocket-extensions" not in plain and b"sec-websocket-protocol" not in plain


def test_over_http2_there_is_no_key_and_no_upgrade() -> None:
    """RFC 8441 5: either side may be HTTP/2; what belongs to HTTP/1.1's handshake is neither asked for nor written."""
    asked = head(b"sec-websocket-protocol: v1", b"sec-websocket-extensions: permessage-deflate")
    offer = parse_extended_offer(asked)
    assert offer.key == b"" and offer.protocols == ("v1",) and offer.deflate is not None
    sent = request_headers(asked.headers, b"", compress=True)
    assert {name for name, _ in sent} == {
        b"sec-websocket-version", b"sec-websocket-protocol", b"sec-websocket-extensions",
    }  # fmt: skip
    accepted = ResponseHead(200, ((b"sec-websocket-protocol", b"v1"),), -1, True, False, 1)
    agreed = check_accept(accepted, b"", sent, compress=True)
    assert agreed == Agreed(0, None)
    got = response_headers(accepted.headers, offer, agreed, compress=False)
    assert got == ((b"sec-websocket-protocol", b"v1"),)
