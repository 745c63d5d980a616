"""SOCKS 5 as it is read: whole or in pieces, strictly, canonical."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.errors import Reason
from seamgate.protocol.socks5 import (
    LOGIN,
    NO_LOGIN,
    Demand,
    Event,
    Login,
    Methods,
    Reply,
    SocksError,
    SocksReader,
    choice,
    login_answer,
    reply,
)

GREETING = b"\x05\x02\x00\x02"
LOGGING_IN = b"\x01\x01u\x05token"


def request(kind: int, address: bytes, port: int = 443, command: int = 1) -> bytes:
    """Return a request."""
    return bytes((5, command, 0, kind)) + address + port.to_bytes(2)


def named(name: str | bytes, port: int = 443) -> bytes:
    """Return a request for a name."""
    raw = name.encode() if isinstance(name, str) else name
    return request(3, bytes((len(raw),)) + raw, port)


def demand(data: bytes) -> Demand:
    """Read one request."""
    reader = SocksReader()
    reader.feed(GREETING)
    reader.next_event()
    reader.expect(NO_LOGIN)
    reader.feed(data)
    event = reader.next_event()
    assert isinstance(event, Demand)
    return event


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_dialogue_is_read_in_any_pieces(step: int) -> None:
    """Greeting, login, request; what comes beyond is kept apart."""
    reader = SocksReader()
    events: list[Event] = []
    data = GREETING + LOGGING_IN + named("API.test") + b"early"
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        while len(events) < 3 and (event := reader.next_event()) is not None:
            events.append(event)
            if isinstance(event, Methods):
                reader.expect(LOGIN)
    assert events == [Methods(frozenset({0, 2})), Login(b"u", b"token"), Demand("api.test", 443, False)]
    assert reader.take_rest() == b"early"


@pytest.mark.parametrize(
    ("data", "host", "is_address"),
    [
        (request(1, bytes((1, 2, 3, 4))), "1.2.3.4", True),
        (request(4, bytes(15) + b"\1"), "::1", True),
        (request(4, bytes(10) + b"\xff\xff\x0a\0\0\1"), "::ffff:10.0.0.1", True),
        (named("a.test."), "a.test", False),
        (named("1.2.3.4"), "1.2.3.4", True),
        (named("2606:4700:0::1"), "2606:4700::1", True),
        (named("bücher.example"), "xn--bcher-kva.example", False),
    ],
)
def test_a_host_is_canonical(data: bytes, host: str, is_address: bool) -> None:
    """However it was written, there is one spelling of it."""
    assert demand(data) == Demand(host, 443, is_address)


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (named("0x7f.1"), Reply.FAILURE, Reason.BAD_TARGET),
        (named("2130706433"), Reply.FAILURE, Reason.BAD_TARGET),
        (named(""), Reply.FAILURE, Reason.BAD_TARGET),
        (named("a b"), Reply.FAILURE, Reason.BAD_TARGET),
        (named("a.test\0.evil.test"), Reply.FAILURE, Reason.BAD_TARGET),
        (named(b"\xff\xfe"), Reply.FAILURE, Reason.BAD_TARGET),
        (named("a.test", 0), Reply.FAILURE, Reason.BAD_TARGET),
        (request(2, b"\0\0\0\0"), Reply.ADDRESS_UNSUPPORTED, Reason.BAD_TARGET),
        (request(1, b"\1\2\3\4", command=2), Reply.COMMAND_UNSUPPORTED, Reason.METHOD_REFUSED),
        (request(1, b"\1\2\3\4", command=3), Reply.COMMAND_UNSUPPORTED, Reason.METHOD_REFUSED),
        (b"\4\1\0\1" + bytes(6), Reply.FAILURE, Reason.BAD_REQUEST),
    ],
)
def test_what_is_odd_is_refused_with_its_code(data: bytes, code: Reply, reason: Reason) -> None:
    """Odd names, listening, UDP: the client is told in its protocol."""
    with pytest.raises(SocksError) as caught:
        demand(data)
    assert (caught.value.reply, caught.value.reason) == (reply(code), reason)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x04\x01\x01\xbb\1\2\3\4\0", b"\x16\x03\x01"])
def test_another_protocol_is_no_socks_5(data: bytes) -> None:
    """HTTP, SOCKS 4 and TLS are told apart by their first byte; nothing is said to them."""
    reader = SocksReader()
    reader.feed(data)
    with pytest.raises(SocksError) as caught:
        reader.next_event()
    assert caught.value.reply == b""


def test_answers_are_as_the_rfc_has_them() -> None:
    """RFC 1928 3 and 6, RFC 1929 2."""
    assert choice(2) == b"\5\2"
    assert (login_answer(True), login_answer(False)) == (b"\1\0", b"\1\1")
    assert reply(Reply.NOT_ALLOWED) == b"\5\2\0\1\0\0\0\0\0\0"


def test_a_login_shows_no_password() -> None:
    """Not in a repr, so not in a log."""
    assert repr(Login(b"u", b"secret")) == "<Login b'u'>"


@given(st.lists(st.binary(max_size=40), max_size=8), st.sampled_from([NO_LOGIN, LOGIN]))
def test_any_bytes_are_read_or_refused(pieces: list[bytes], method: int) -> None:
    """Garbage ends in our error, or waits for more; nothing else comes out."""
    reader = SocksReader()
    reader.feed(b"\5\1\0")
    reader.next_event()
    reader.expect(method)
    try:
        for piece in pieces:
            reader.feed(piece)
            reader.next_event()
    except SocksError as error:
        assert error.message
