"""The ClientHello: read out of real ones, in any pieces; everything else is refused."""

from __future__ import annotations

import ssl

import pytest

from seamgate.errors import GuestProtocolError, Reason
from seamgate.protocol.client_hello import ClientHello, parse_client_hello


def real_hello(name: str | None, *protocols: str) -> bytes:
    """Return what OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols([*protocols])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def server_name(name: bytes, kind: int = 0) -> bytes:
    entry = bytes([kind]) + len(name).to_bytes(2, "big") + name
    return extension(0, len(entry).to_bytes(2, "big") + entry)


def hello(*extensions: bytes, record: bytes = b"\x16\x03\x01", message: int = 1) -> bytes:
    """Return a made ClientHello in one record."""
    block = b"".join(extensions)
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00" + len(block).to_bytes(2, "big") + block
    whole = bytes([message]) + len(body).to_bytes(3, "big") + body
    return record + len(whole).to_bytes(2, "big") + whole


def test_a_real_one_is_read() -> None:
    """Server name and protocols of OpenSSL's own ClientHello."""
    assert parse_client_hello(real_hello("api.test", "h2", "http/1.1")) == ClientHello("api.test", (b"h2", b"http/1.1"))
    assert parse_client_hello(real_hello(None)) == ClientHello(None, ())


def test_any_prefix_waits() -> None:
    """Every prefix of a real one needs more; no prefix is misread."""
    data = real_hello("api.test", "http/1.1")
    assert all(parse_client_hello(data[:size]) is None for size in range(len(data)))
    assert parse_client_hello(data + b"more") == parse_client_hello(data)


def test_it_may_be_split_over_records() -> None:
    """A ClientHello in many small records is the same ClientHello."""
    data = real_hello("api.test")
    message = data[5:]
    pieces = [message[place : place + 7] for place in range(0, len(message), 7)]
    split = b"".join(data[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)
    assert parse_client_hello(split) == parse_client_hello(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x03\x01",
        b"\x15\x03\x01\x00\x02\x01\x00",
        hello(message=2),
        hello(record=b"\x16\x02\x00"),
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01" + bytes(5),
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        hello(server_name(b"a.test"), server_name(b"b.test")),
        hello(server_name(b"")),
        hello(server_name(b"a.test\0.b.test")),
        hello(server_name(b"a.test\r\nx")),
        hello(server_name(b" a.test")),
        hello(server_name(b"a.test", kind=1)),
        hello(server_name("\u00e4.test".encode())),
        hello(extension(0, b"\x00\x0c" + (b"\x00\x00\x03a.b" * 2))),
        hello(extension(0, b"\x00\x09\x00\x00\x20a.b")),
        hello(extension(16, b"\x00\x03\x05h2")),
    ],
)
def test_whatever_is_not_plainly_one_is_refused(data: bytes) -> None:
    """Another protocol, another message, a malformed vector, two names: refused with one reason."""
    with pytest.raises(GuestProtocolError) as caught:
        parse_client_hello(data)
    assert caught.value.reason is Reason.GUEST_TLS_FAILED


def test_a_hello_without_extensions_is_one() -> None:
    """Old clients send none."""
    assert parse_client_hello(hello()) == ClientHello(None, ())
