"""What a head or an end of a message says, as frozen values. Sans-I/O.

Made by `protocol.http1` and `protocol.http1_reader`, read by the sides of an exchange. A room of its own, because the
parsers are compiled for speed and these structures are compiled already (msgspec).
"""

from __future__ import annotations

from typing import Final

import msgspec

from seamgate.flow import Headers

CHUNKED: Final = -1
"""Framing: the body is chunked."""
UNTIL_CLOSE: Final = -2
"""Framing: the body ends with the connection (responses only)."""


class RequestHead(msgspec.Struct, frozen=True):
    """A request's head as parsed: nothing is judged yet.

    Attributes:
        method: token of upper-case letters.
        target: the request-target as sent, str of visible ASCII.
        host: the one Host value as sent, or None.
        headers: end-to-end fields, in order.
        body: length in bytes, or CHUNKED.
        keep_alive: whether the guest wants to go on with this connection.
        expect_continue: whether it waits for 100 before it sends the body.
        upgrade: the Upgrade value, or None.
        proxy_authorization: the Proxy-Authorization value, or None.
        minor: 0 or 1, of HTTP/1.x.
        upgrades: whether Connection names Upgrade, as it has to for the upgrade to be meant.
    """

    method: str
    target: str
    host: str | None
    headers: Headers
    body: int
    keep_alive: bool
    expect_continue: bool
    upgrade: bytes | None
    proxy_authorization: bytes | None
    minor: int
    upgrades: bool = False


class ResponseHead(msgspec.Struct, frozen=True):
    """A response's head as parsed.

    Attributes:
        status: 100 to 999.
        headers: end-to-end fields, in order.
        body: length in bytes, CHUNKED or UNTIL_CLOSE.
        keep_alive: whether the upstream goes on with this connection.
        connection_bound: whether it asks for authentication that ties identity to the connection (NTLM, Negotiate).
        minor: 0 or 1.
        declared: the Content-Length as sent, also where there is no body (HEAD), or None.
        upgrade: the Upgrade value of a 101, or None.
        upgrades: whether its Connection names Upgrade.
    """

    status: int
    headers: Headers
    body: int
    keep_alive: bool
    connection_bound: bool
    minor: int
    declared: int | None = None
    upgrade: bytes | None = None
    upgrades: bool = False


class Trailers(msgspec.Struct, frozen=True):
    """The end of a message, with its trailer fields (mostly none)."""

    headers: Headers = ()
