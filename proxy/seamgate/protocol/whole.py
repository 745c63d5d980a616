"""What keeps a body from being looked at as a whole: parts of it, and codings that are not `Content-Encoding`. Pure.

A value that comes in two answers, or compressed within a message, no redactor finds. So `seamgate.outgoing` does not
ask for such answers, and `seamgate.answer` refuses those that come all the same. Of a request, what searches for values
that leave sees each message decompressed (`seamgate.filters`); who would change it is not let.
"""

from __future__ import annotations

from typing import Final

from seamgate.errors import Reason
from seamgate.headers import Headers, any_named, join_header
from seamgate.protocol.coding import UndecodableError

RANGE_HEADERS: Final = (
    b"range", b"if-range", b"request-range", b"x-range", b"x-request-range", b"x-http-range", b"x-if-range",
    b"x-ms-range", b"x-ms-range-get-content-md5", b"x-ms-range-get-content-crc64", b"x-goog-range", b"x-amz-range",
)  # fmt: skip
"""By which a part is asked for. A server may always ignore them, so dropping them changes no meaning. Source: RFC 9110
14.2; Apache's httpd (Request-Range); Azure Blob (x-ms-*). What tells a part to copy (x-amz-copy-source-range) stays."""
OTHER_CODINGS: Final = (b"grpc-accept-encoding", b"connect-accept-encoding", b"a-im", b"available-dictionary")
"""By which other codings are offered: of gRPC's messages, of Connect's, deltas (RFC 3229), dictionaries (RFC 9842)."""
_CODED: Final = frozenset((b"grpc-encoding", b"connect-content-encoding", b"im"))
_OF_MESSAGES: Final = (b"grpc-encoding", b"connect-content-encoding")
BODY_CODINGS: Final = (b"content-encoding", *_OF_MESSAGES)
"""By which a body is coded, as a whole or message by message."""
_PREFIX_BYTES: Final = 5
_COMPRESSED: Final = 1
_PARTIAL: Final = 206
_PARTS: Final = (b"multipart/byteranges", b"multipart/x-byteranges")
"""The second is the older name, by which some servers still answer. Source: RFC 9110 14.6."""
_IM_USED: Final = 226
_NOT_SATISFIABLE: Final = 416


def message_coding(headers: Headers) -> bytes | None:
    """Return by what the messages of a request may be compressed one by one; None: by nothing.

    Source: gRPC's PROTOCOL-HTTP2.md (Message-Encoding); Connect's protocol (Streaming-Content-Encoding).
    """
    if not any(name in _OF_MESSAGES for name, _ in headers):
        return None
    values = [value.strip() for name in _OF_MESSAGES if (value := join_header(headers, name)) is not None]
    coded = [value for value in values if value.lower() not in (b"", b"identity")]
    return b", ".join(coded) or None


def check_not_partial(status: int, headers: Headers) -> None:
    """Refuse a part of an answer, where ranges are off.

    Raises:
        UndecodableError: it is one.
    """
    partial = status == _PARTIAL
    for name, value in headers:
        if name == b"content-type":
            partial = partial or value.lower().startswith(_PARTS)
        elif name == b"content-range" or name == b"x-content-range":
            partial = partial or status != _NOT_SATISFIABLE  # there it tells the size of the whole (RFC 9110 15.5.17)
    if partial:
        raise UndecodableError("the upstream sent a part of its answer, which was not asked for: see `allow_ranges`")


def check_coding(status: int, headers: Headers) -> None:
    """Refuse an answer in a coding that is not undone here, where someone looks at it.

    Raises:
        UndecodableError: it has one.
    """
    coded = status == _IM_USED
    if any_named(headers, _CODED):
        for name in _CODED:
            coded = coded or (join_header(headers, name) or b"").strip().lower() not in (b"", b"identity")
    if coded:
        raise UndecodableError("the upstream coded its messages, though it was not told that it may (grpc-encoding)")


class PlainMessages:
    """Looks at the flags of a row of messages of gRPC of which no header says a coding: none may be compressed.

    A byte of flags and four of the length stand before each. Source: gRPC's PROTOCOL-HTTP2.md (Compressed-Flag).
    """

    __slots__ = ("_left_bytes", "_prefix", "_reason")

    def __init__(self, reason: Reason) -> None:
        self._reason = reason
        self._prefix = b""
        self._left_bytes = 0  # of the message that is being read

    def look(self, data: bytes) -> None:
        """Look at the next piece of the body.

        Raises:
            UndecodableError: a message says that it is compressed, which gRPC calls an error.
        """
        place, size = 0, len(data)
        while place < size:
            if self._left_bytes:
                step = min(self._left_bytes, size - place)
                self._left_bytes -= step
                place += step
                continue
            if not self._prefix and data[place] & _COMPRESSED:
                raise UndecodableError("a message is compressed, and no grpc-encoding says how", reason=self._reason)
            more = data[place : place + _PREFIX_BYTES - len(self._prefix)]
            place += len(more)
            self._prefix += more
            if len(self._prefix) == _PREFIX_BYTES:
                self._left_bytes, self._prefix = int.from_bytes(self._prefix[1:], "big"), b""


def plain_messages(headers: Headers, reason: Reason) -> PlainMessages | None:
    """Return what looks at a body of gRPC, or of gRPC-Web that is not base64, whose messages may not be compressed."""
    kind = (join_header(headers, b"content-type") or b"").strip().lower()
    if not kind.startswith(b"application/grpc") or kind.startswith(b"application/grpc-web-text"):
        return None
    return PlainMessages(reason) if message_coding(headers) is None else None
