"""Fields of HTTP/1.1 messages: a head split into its lines and fields, and fields written as lines. Sans-I/O.

Called by `protocol.http1`. What is plainly right is split in C where that is built (`seamgate._native.Fields`); all
else, and everything where it is not built, by the Python here, which says what is wrong. A property test holds both to
the same answers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from seamgate.errors import GuestProtocolError, PluginError, ProtocolError, Reason
from seamgate.headers import OF_THE_GATEWAY, WRITTEN_HERE, Headers, field_problem
from seamgate.protocol.heads import RequestHead, ResponseHead

if TYPE_CHECKING:
    from seamgate._native import Fields

Special: TypeAlias = dict[bytes, list[bytes]]
"""Fields that are read here and never passed on: name in lower case -> values in order."""

MAX_FIELDS: Final = 128
"""Fields in one head. Apache allows 100, Node 2,000 (by bytes), nginx bounds bytes only; agents send about 20."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}\Z")
# What may stand in a head at all: HTAB, visible ASCII, space, obs-text, and the CR and LF of line ends.
_HEAD_BYTES: Final = bytes((0x09, 0x0A, 0x0D, *range(0x20, 0x7F), *range(0x80, 0x100)))
# Names that most heads have: the C part makes no new object for them.
_COMMON: Final = (
    b"accept", b"accept-encoding", b"accept-language", b"accept-ranges", b"access-control-allow-origin", b"age",
    b"alt-svc", b"anthropic-version", b"authorization", b"cache-control", b"content-encoding", b"content-language",
    b"content-type", b"cookie", b"date", b"etag", b"expires", b"if-modified-since", b"if-none-match", b"last-modified",
    b"link", b"location", b"pragma", b"range", b"referer", b"referrer-policy", b"retry-after", b"server", b"set-cookie",
    b"strict-transport-security", b"user-agent", b"vary", b"via", b"www-authenticate", b"x-api-key",
    b"x-content-type-options", b"x-frame-options", b"x-request-id",
)  # fmt: skip


def _native() -> Fields | None:
    try:
        from seamgate._native import Fields as fields
    except ImportError:  # the sources, where nobody ran `make build`
        return None
    return fields(
        special=OF_THE_GATEWAY,
        written=WRITTEN_HERE,
        common=_COMMON,
        most=MAX_FIELDS,
        request=RequestHead,
        response=ResponseHead,
    )


_fields: Final = _native()


def usual_request(head: bytes) -> RequestHead | None:
    """Read a whole request head in one pass, as `parse_request_head` would; None if it is unusual, or not right."""
    return None if _fields is None else _fields.request(head)


def usual_response(head: bytes, method: str) -> ResponseHead | None:
    """Read a whole response head in one pass, as `parse_response_head` would; None if it is unusual, or not right."""
    return None if _fields is None else _fields.response(head, method)


def split_head(head: bytes, error: type[ProtocolError]) -> tuple[bytes, Headers, Special]:
    """Split a head, its empty line included, into its first line, the fields that go on, and those that are read here.

    Raises:
        ProtocolError: of the given type; it is not well-formed.
    """
    if _fields is not None:
        found = _fields.split(head)
        if found is not None:
            return found
    return split_head_in_python(head, error)


def split_head_in_python(head: bytes, error: type[ProtocolError]) -> tuple[bytes, Headers, Special]:
    """Do what `split_head` does, step by step; the first thing that is wrong is what the error says."""
    lines = _lines(head, error)
    if len(lines) - 1 > MAX_FIELDS:
        reason = Reason.HEADERS_TOO_LARGE if error is GuestProtocolError else Reason.UPSTREAM_PROTOCOL
        raise error(f"there are more than {MAX_FIELDS} header fields", reason=reason)
    ordinary: list[tuple[bytes, bytes]] = []
    special: Special = {}
    for line in lines[1:]:
        name, value = _field(line, error)
        if name in OF_THE_GATEWAY:
            special.setdefault(name, []).append(value)
        else:
            ordinary.append((name, value))
    return lines[0], tuple(ordinary), special


def _lines(head: bytes, error: type[ProtocolError]) -> list[bytes]:
    """Split a head into lines, refusing each byte and each line end that the strict grammar does not have."""
    lines = head[:-4].split(b"\r\n")
    ends = len(lines) + 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends:
        raise error("there is a bare CR or LF")
    if head.translate(None, _HEAD_BYTES):
        raise error("there is a control character")
    return lines


def _field(line: bytes, error: type[ProtocolError]) -> tuple[bytes, bytes]:
    """Split a header line into its name in lower case and its value without outer white space."""
    raw, colon, value = line.partition(b":")
    if not colon or not _TOKEN.match(raw):
        folded = line[:1] in (b" ", b"\t")
        raise error("a header line is folded" if folded else "a header line has no valid name before a colon")
    return raw.lower(), value.strip(b" \t")


def write_checked(first: bytes, headers: Headers, last: bytes) -> bytes:
    """Join first, the fields as lines, and last; nothing is written that could be read as something else.

    Raises:
        PluginError: a field may not be written. Whoever made it is checked before: this is the last wall.
    """
    if _fields is not None:
        written = _fields.write(first, headers, last, True)
        if written is not None:
            return written
    problem = field_problem(headers, at_the_writer=True)
    if problem:
        raise PluginError(f"the request can't be written: {problem}")
    return _write(first, headers, last)


def write_fields(first: bytes, headers: Headers, last: bytes) -> bytes:
    """Join first, the fields as lines, and last, for fields that were checked."""
    if _fields is not None:
        written = _fields.write(first, headers, last, False)
        if written is not None:
            return written
    return _write(first, headers, last)


def _write(first: bytes, headers: Headers, last: bytes) -> bytes:
    return b"".join([first, *[b"%b: %b\r\n" % pair for pair in headers], last])
