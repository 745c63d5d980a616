"""Reads the server name and the protocols out of a TLS ClientHello, before any TLS is done. Sans-I/O.

Used by the server side of a stream to choose the leaf, or to refuse a name that is not the tunnel's. Whatever is not
plainly a ClientHello is refused. Source: RFC 8446 4.1.2 and 5.1, RFC 6066 3, RFC 7301 3.1.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from seamgate.errors import GuestProtocolError, Reason

MAX_HELLO_BYTES: Final = 65536
"""Larger than any real one: post-quantum key shares make some 2 KiB, padding extensions a little more."""
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_ALPN: Final = 16
# No name holds controls or spaces, and each of OpenSSL, logs and policies would read one that does in its own way.
_GRAPHIC: Final = re.compile(rb"[\x21-\x7e]+")


class ClientHello(msgspec.Struct, frozen=True):
    """What a client said at the start.

    Attributes:
        server_name: as sent (str of ASCII), None if there is none: a client that was given an address sends none.
        protocols: ALPN names in the client's order.
    """

    server_name: str | None
    protocols: tuple[bytes, ...]


def parse_client_hello(data: bytes) -> ClientHello | None:
    """Return the ClientHello at the start of what a client sent, or None if it is not all here yet.

    Raises:
        GuestProtocolError: with reason GUEST_TLS_FAILED; it is something else, or malformed.
    """
    message = _handshake_message(data)
    return None if message is None else _parse_message(message)


def _bad(why: str) -> GuestProtocolError:
    return GuestProtocolError(f"the TLS ClientHello {why}", reason=Reason.GUEST_TLS_FAILED)


def _handshake_message(data: bytes) -> bytes | None:
    """Join the handshake records until the first message is whole."""
    message = b""
    position = 0
    while True:
        header = data[position : position + 5]
        if header and header[0] != _HANDSHAKE:
            raise _bad("is missing: the tunnel carries something that is not TLS")
        if len(header) < 5:
            return None
        length = int.from_bytes(header[3:5], "big")
        if header[1] != 3 or not 0 < length <= 16384:
            raise _bad("is in a malformed record")
        message += data[position + 5 : position + 5 + length]
        position += 5 + length
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise _bad("is missing: the handshake begins with another message")
            size = int.from_bytes(message[1:4], "big")
            if size > MAX_HELLO_BYTES:
                raise _bad("is too long")
            if len(message) >= 4 + size:
                return message[4 : 4 + size]
        if position > len(data):
            return None


class _Cursor:
    """Bounds-checked reading of length-prefixed vectors."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    @property
    def empty(self) -> bool:
        return self.position >= len(self.data)

    def take(self, count: int) -> bytes:
        piece = self.data[self.position : self.position + count]
        if len(piece) != count:
            raise _bad("is cut short")
        self.position += count
        return piece

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> bytes:
        return self.take(self.number(width))


def _parse_message(body: bytes) -> ClientHello:
    cursor = _Cursor(body)
    cursor.take(2 + 32)
    cursor.vector(1)
    cursor.vector(2)
    cursor.vector(1)
    name: str | None = None
    protocols: tuple[bytes, ...] = ()
    seen: set[int] = set()
    extensions = _Cursor(b"" if cursor.empty else cursor.vector(2))
    while not extensions.empty:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind in seen:
            raise _bad("repeats an extension")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _server_name(content)
        elif kind == _ALPN:
            protocols = _protocols(content)
    return ClientHello(name, protocols)


def _server_name(content: bytes) -> str:
    entries = _Cursor(_Cursor(content).vector(2))
    kind = entries.number(1)
    value = entries.vector(2)
    if kind != 0 or not entries.empty or not _GRAPHIC.fullmatch(value):
        raise _bad("has a server name that is not one host name")
    return value.decode("ascii")


def _protocols(content: bytes) -> tuple[bytes, ...]:
    entries = _Cursor(_Cursor(content).vector(2))
    names = []
    while not entries.empty:
        names.append(entries.vector(1))
    return tuple(names)
