"""Header lists: tuples of (name, value), both bytes, names lower-case, order kept. Pure.

A room of its own below the nouns, so that it can be compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""(name, value) pairs: bytes, names lower-case, order of arrival kept."""
Amend: TypeAlias = Callable[[Headers, Headers, tuple[bytes, ...]], Headers]
AnyNamed: TypeAlias = Callable[[Headers, frozenset[bytes]], bool]

OF_THE_GATEWAY: Final = frozenset(
    (
        b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"proxy-connection",
        b"proxy-authorization", b"proxy-authenticate", b"te", b"trailer", b"upgrade", b"expect", b"http2-settings",
    )
)  # fmt: skip
"""Framing, routing and hop-by-hop fields (RFC 9110 7.6.1), and what belongs to proxies: read from each message, never
in a header list, written by the gateway alone."""
WRITTEN_HERE: Final = frozenset((b"connection", b"upgrade", b"expect"))
"""Those that the gateway itself adds at the end: Expect, and Connection and Upgrade of a WebSocket."""
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]{1,256}\Z")
_VALUE_BYTES: Final = bytes((0x09, *range(0x20, 0x7F), *range(0x80, 0x100)))
_MOST_NAMES: Final = 4096
_good_names: set[bytes] = set()


def _native() -> tuple[Amend, AnyNamed] | tuple[None, None]:
    try:
        from seamgate._native import amend, any_named
    except ImportError:  # the sources, where nobody ran `make build`
        return None, None
    return amend, any_named


_both: Final = _native()
_amend: Final = _both[0]
_any_named: Final = _both[1]
_MOST_FIELDS: Final = 1024


def is_unseen(name: str) -> bool:
    """Whether policy and plugins never see a header of this name (lower case): it is one of `OF_THE_GATEWAY`."""
    return name.encode("utf-8", "surrogateescape") in OF_THE_GATEWAY


def field_problem(headers: Headers, *, at_the_writer: bool = False) -> str:
    """Say what is wrong with a list of fields that a plugin made or changed; "" if nothing is.

    A name is a token in lower case (RFC 9110 5.6.2, RFC 9113 8.2.1) and none of `OF_THE_GATEWAY`; a value holds no
    control character but HTAB. Anything else would be read by the next hop as other fields, another body or another
    host than those that were judged.

    Args:
        headers: to check.
        at_the_writer: let pass what the gateway itself adds at the end: Expect, and Connection and Upgrade of a
            WebSocket.
    """
    for name, _ in headers:
        if name not in _good_names:
            if not _NAME.match(name):
                return "a field's name is not a token in lower case"
            if name in OF_THE_GATEWAY:
                if at_the_writer and name in WRITTEN_HERE:
                    continue
                return f"the field {name.decode()} is the gateway's own"
            if len(_good_names) < _MOST_NAMES and len(name) <= 64:
                _good_names.add(name)
    if b"".join([value for _, value in headers]).translate(None, _VALUE_BYTES):
        return "a field's value holds a line break or another control character"
    return ""


def find_header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of the header with this lower-case name, or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def any_named(headers: Headers, names: frozenset[bytes]) -> bool:
    """Return whether the name of any header is one of these."""
    if not headers:
        return False
    return any_named_in_python(headers, names) if _any_named is None else _any_named(headers, names)


def any_named_in_python(headers: Headers, names: frozenset[bytes]) -> bool:
    """Do what `any_named` does."""
    return any(name in names for name, _ in headers)


def join_header(headers: Headers, name: bytes) -> bytes | None:
    """Return all values of the header with this lower-case name, as the one list that they are (RFC 9110 5.3)."""
    values = [value for key, value in headers if key == name]
    return b", ".join(values) if values else None


def apply_amendment(headers: Headers, set_headers: Headers, remove_headers: tuple[bytes, ...]) -> Headers:
    """Return the headers with those removed or replaced; replaced ones move to the end."""
    if _amend is not None and len(headers) <= _MOST_FIELDS:
        return _amend(headers, set_headers, remove_headers)
    return amend_in_python(headers, set_headers, remove_headers)


def amend_in_python(headers: Headers, set_headers: Headers, remove_headers: tuple[bytes, ...]) -> Headers:
    """Do what `apply_amendment` does."""
    gone = {name for name, _ in set_headers}
    gone.update(remove_headers)
    return (*[pair for pair in headers if pair[0] not in gone], *set_headers)
