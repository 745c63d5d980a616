"""The opening handshake of WebSocket, both sides: what a guest asks for, what is asked upstream, what comes back.

Called by the guest's connection (`parse_offer`) and by `seamgate.websocket_exchange`. Each side has a handshake of its
own: the key, the version and the extensions never pass through; subprotocols do, checked. Over HTTP/2 (RFC 8441) there
is no key, no Upgrade, and 200 for 101; all else is the same. Sans-I/O.

The one extension is permessage-deflate, agreed to with each side by itself, always without context takeover of what we
send, so that no compressor is kept. Others are not passed on. Source: RFC 6455 4, RFC 7692 7.1, RFC 8441 5.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from seamgate.errors import GuestProtocolError, Reason, UpstreamProtocolError
from seamgate.headers import Headers
from seamgate.protocol.heads import RequestHead, ResponseHead
from seamgate.protocol.websocket import Deflate

WEBSOCKET: Final = "websocket"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DEFLATE: Final = "permessage-deflate"
_OFFER: Final = b"permessage-deflate; server_no_context_takeover; client_no_context_takeover"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}\Z")
_PARAMETER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)(?:=(?:\"([0-9A-Za-z]+)\"|([0-9A-Za-z]+)))?\Z")
_MOST_EXTENSIONS: Final = 16
_PREFIX: Final = b"sec-websocket-"
_PROTOCOL: Final = b"sec-websocket-protocol"
_EXTENSIONS: Final = b"sec-websocket-extensions"
# What belongs to one connection's handshake; subprotocols are written anew.
_OWN: Final = frozenset((b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-accept", _EXTENSIONS))


class Offer(msgspec.Struct, frozen=True):
    """What a guest asks for.

    Attributes:
        key: Sec-WebSocket-Key as sent; b"" over HTTP/2, which has none.
        protocols: subprotocols in the guest's order.
        deflate: what to agree to towards the guest if compression is wanted, else None.
    """

    key: bytes
    protocols: tuple[str, ...]
    deflate: Deflate | None


def asks(head: RequestHead) -> bool:
    """Whether the request wants to become a WebSocket, well-formed or not."""
    return head.upgrade is not None and head.upgrade.lower() == b"websocket"


def parse_offer(head: RequestHead) -> Offer:
    """Read what a guest asks for over HTTP/1.1.

    Raises:
        GuestProtocolError: it is no well-formed opening handshake, or of another version.
    """
    if head.method != "GET" or head.minor != 1 or head.body or head.expect_continue:
        raise GuestProtocolError("a WebSocket begins with a GET of HTTP/1.1 without body")
    if not head.upgrades:
        raise GuestProtocolError("the header Connection does not name Upgrade", reason=Reason.UPGRADE_REFUSED)
    _check_version(head.headers)
    key = _one(head.headers, b"sec-websocket-key")
    if not _is_key(key):
        raise GuestProtocolError("the header Sec-WebSocket-Key is not 16 bytes in base64")
    return Offer(key, _protocols(head.headers), _guest_deflate(head.headers))


def parse_extended_offer(head: RequestHead) -> Offer:
    """Read what a guest asks for by an extended CONNECT, whose form `protocol.http2_fields` has checked.

    Raises:
        GuestProtocolError: it is no well-formed opening handshake, or of another version.
    """
    _check_version(head.headers)
    return Offer(b"", _protocols(head.headers), _guest_deflate(head.headers))


def _check_version(headers: Headers) -> None:
    if _one(headers, b"sec-websocket-version") != b"13":
        raise GuestProtocolError("the WebSocket version is not 13", reason=Reason.UPGRADE_REFUSED)


def _one(headers: Headers, name: bytes) -> bytes:
    values = [value for key, value in headers if key == name]
    if len(values) != 1:
        raise GuestProtocolError(f"there is not exactly one {name.decode()}")
    return values[0]


def _is_key(key: bytes) -> bool:
    try:
        return len(key) == 24 and len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False


def _protocols(headers: Headers) -> tuple[str, ...]:
    names = [
        name.strip(" \t") for key, value in headers if key == _PROTOCOL for name in value.decode("latin-1").split(",")
    ]
    if len(set(names)) != len(names) or not all(map(_TOKEN.match, names)):
        raise GuestProtocolError("the header Sec-WebSocket-Protocol is not a list of different tokens")
    return tuple(names)


def _extensions(headers: Headers) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield (name, parameters) of each extension. Raises ValueError: malformed, or a parameter is there twice."""
    texts = [item for key, value in headers if key == _EXTENSIONS for item in value.decode("latin-1").split(",")]
    if len(texts) > _MOST_EXTENSIONS:
        raise ValueError
    for text in texts:
        name, *rest = [part.strip(" \t") for part in text.split(";")]
        if not _TOKEN.match(name):
            raise ValueError
        parameters: dict[str, str | None] = {}
        for part in rest:
            found = _PARAMETER.match(part)
            if found is None or found[1] in parameters:
                raise ValueError
            parameters[found[1]] = found[2] or found[3]
        yield name, parameters


def _guest_deflate(headers: Headers) -> Deflate | None:
    """Return what to agree to of the guest's first offer that can be had (RFC 7692 5.1)."""
    try:
        offers = list(_extensions(headers))
    except ValueError:
        raise GuestProtocolError("the header Sec-WebSocket-Extensions is malformed") from None
    for name, parameters in offers:
        if name == _DEFLATE and (deflate := _agree(parameters)) is not None:
            return deflate
    return None


def _agree(parameters: dict[str, str | None]) -> Deflate | None:
    bits = 15
    for name, value in parameters.items():
        if name in ("server_no_context_takeover", "client_no_context_takeover"):
            if value is not None:
                return None
        elif name == "server_max_window_bits":
            if value not in _WINDOW_BITS or value == "8":  # zlib has no raw window of 8 bits
                return None
            bits = int(value)
        elif name != "client_max_window_bits" or (value is not None and value not in _WINDOW_BITS):
            return None
    return Deflate(window_bits=bits)


_WINDOW_BITS: Final = frozenset(str(bits) for bits in range(8, 16))


def new_key() -> bytes:
    """Return a fresh Sec-WebSocket-Key."""
    return base64.b64encode(os.urandom(16))


def accept_of(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept that answers a key (RFC 6455 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def request_headers(headers: Headers, key: bytes, *, compress: bool) -> Headers:
    """Return the headers of the request that goes upstream.

    Args:
        headers: the judged ones, with credentials in place; subprotocols stay as they are there.
        key: of this side; b"" where it is HTTP/2.
        compress: whether to offer permessage-deflate.
    """
    extra = [(b"sec-websocket-version", b"13")]
    if key:
        extra += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket"), (b"sec-websocket-key", key)]
    if compress:
        extra.append((_EXTENSIONS, _OFFER))
    return (*(pair for pair in headers if pair[0] not in _OWN), *extra)


class Agreed(msgspec.Struct, frozen=True):
    """What the upstream agreed to.

    Attributes:
        protocol: place of the subprotocol among those that were offered, None for none.
        deflate: of that side, None for no compression.
    """

    protocol: int | None
    deflate: Deflate | None


def check_accept(head: ResponseHead, key: bytes, sent: Headers, *, compress: bool) -> Agreed:
    """Check an upstream's 101, or its 2xx to an extended CONNECT.

    Args:
        head: its head.
        key: as sent; b"" over HTTP/2.
        sent: the headers of the request as they left.
        compress: whether permessage-deflate was offered.

    Raises:
        UpstreamProtocolError: it does not answer what was asked.
    """
    if key:
        _check_switch(head, key)
    return Agreed(_agreed_protocol(head, sent), _agreed_deflate(head, compress=compress))


def _check_switch(head: ResponseHead, key: bytes) -> None:
    if not head.upgrades or (head.upgrade or b"").lower() != b"websocket":
        raise UpstreamProtocolError("the upstream switches to another protocol than WebSocket")
    accepts = [value for name, value in head.headers if name == b"sec-websocket-accept"]
    if accepts != [accept_of(key)]:
        raise UpstreamProtocolError("the upstream's Sec-WebSocket-Accept is not that of the key")


def _agreed_protocol(head: ResponseHead, sent: Headers) -> int | None:
    chosen = [value for name, value in head.headers if name == _PROTOCOL]
    if not chosen:
        return None
    offered = [name.strip(b" \t") for key, value in sent if key == _PROTOCOL for name in value.split(b",")]
    if len(chosen) > 1 or chosen[0] not in offered:
        raise UpstreamProtocolError("the upstream chose a subprotocol that was not offered")
    return offered.index(chosen[0])


def _agreed_deflate(head: ResponseHead, *, compress: bool) -> Deflate | None:
    try:
        agreed = list(_extensions(head.headers))
    except ValueError:
        raise UpstreamProtocolError("the upstream's Sec-WebSocket-Extensions is malformed") from None
    if not agreed:
        return None
    parameters = agreed[0][1]
    fits = compress and len(agreed) == 1 and agreed[0][0] == _DEFLATE
    for name, value in parameters.items():
        if name == "server_max_window_bits":
            fits = fits and value in _WINDOW_BITS
        else:  # client_max_window_bits was not offered, so it can't be demanded
            fits = fits and value is None and name in ("server_no_context_takeover", "client_no_context_takeover")
    if not fits:
        raise UpstreamProtocolError("the upstream uses an extension that was not offered")
    return Deflate(takeover="server_no_context_takeover" not in parameters)


def response_headers(headers: Headers, offer: Offer, agreed: Agreed, *, compress: bool) -> Headers:
    """Return the headers of the 101, or over HTTP/2 the 200, that the guest gets.

    Args:
        headers: the upstream's, inspected.
        offer: what the guest asked for.
        agreed: what the upstream agreed to.
        compress: whether to agree to compression with the guest.
    """
    extra: list[tuple[bytes, bytes]] = []
    if offer.key:
        accept = (b"sec-websocket-accept", accept_of(offer.key))
        extra += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket"), accept]
    if agreed.protocol is not None:
        extra.append((_PROTOCOL, offer.protocols[agreed.protocol].encode("latin-1")))
    if compress and offer.deflate is not None:
        bits = offer.deflate.window_bits
        narrow = b"" if bits == 15 else b"; server_max_window_bits=%d" % bits
        extra.append((_EXTENSIONS, _OFFER + narrow))
    return (*(pair for pair in headers if not pair[0].startswith(_PREFIX)), *extra)
