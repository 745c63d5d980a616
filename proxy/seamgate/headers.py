"""Header lists: tuples of (name, value), both bytes, names lower-case, order kept. Pure.

A room of its own below the nouns, so that it can be compiled.
"""

from __future__ import annotations

from typing import TypeAlias

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""(name, value) pairs: bytes, names lower-case, order of arrival kept."""


def find_header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of the header with this lower-case name, or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def apply_amendment(headers: Headers, set_headers: Headers, remove_headers: tuple[bytes, ...]) -> Headers:
    """Return the headers with those removed or replaced; replaced ones move to the end."""
    if len(set_headers) == 1 and not remove_headers:
        name = set_headers[0][0]
        return (*[pair for pair in headers if pair[0] != name], set_headers[0])
    gone = {name for name, _ in set_headers}
    gone.update(remove_headers)
    return (*[pair for pair in headers if pair[0] not in gone], *set_headers)
def join_header(headers: Headers, name: bytes) -> bytes | None:
    """Return all values of the header with this lower-case name, as the one list that they are (RFC 9110 5.3)."""
    values = [value for key, value in headers if key == name]
    return b", ".join(values) if values else None


