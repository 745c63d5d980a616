"""Finds placeholders in bytes and swaps them for values, in plain text and inside HTTP Basic.

Built once from the configuration; used by the plugin for judging and injecting, and by the exchange for the last
check that none is left. Placeholders are not secret. Where one placeholder begins with another ("sgph-git" and
"sgph-github"), the longest counts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from seamgate.credentials.config import (
    DEFAULT_PLACEHOLDER_PREFIX,
    CredentialConfig,
    default_placeholder,
    shown_placeholder,
)
from seamgate.credentials.needles import Needles
from seamgate.flow import Headers

UNKNOWN = ""
"""Name given for a text that has the form of a default placeholder but belongs to no credential."""

_BASIC = re.compile(rb"(?i)\A(basic) +([A-Za-z0-9+/_-]+)=*\Z")


class PlaceholderIndex:
    """All placeholders of a configuration."""

    __slots__ = ("_any", "_any_or_basic", "_in_names", "_lower", "_owners", "_pattern", "texts")

    def __init__(self, credentials: Mapping[str, CredentialConfig]) -> None:
        self._owners: dict[bytes, str] = {}
        for name, config in credentials.items():
            self._owners[default_placeholder(name).encode("ascii")] = name
            self._owners[shown_placeholder(name, config).encode("ascii")] = name
        self.texts = tuple(sorted(self._owners, key=lambda text: (-len(text), text)))
        self._lower = {text.lower(): self._owners[text] for text in self.texts}
        default = DEFAULT_PLACEHOLDER_PREFIX.encode("ascii")
        quick = (default, *(text for text in self.texts if not text.startswith(default)))
        self._any = Needles(quick)
        self._any_or_basic = Needles(quick, (b"basic ",))
        # The bare prefix last: what only looks like a placeholder is one that nobody will swap.
        self._pattern = re.compile(b"|".join([*map(re.escape, self.texts), re.escape(default)]))
        self._in_names = re.compile(b"|".join([*map(re.escape, map(bytes.lower, self.texts)), re.escape(default)]))

    def owner(self, text: bytes) -> str:
        """Return the name of the credential with this placeholder, or `UNKNOWN`."""
        return self._owners.get(text, UNKNOWN)

    def names_in(self, data: bytes) -> list[str]:
        """Return the credentials whose placeholders stand in the data, in order; `UNKNOWN` for an unowned one."""
        return [self.owner(found) for found in self._pattern.findall(data)]

    def names_in_name(self, name: bytes) -> list[str]:
        """Like `names_in`, for what is compared in lower case and given so: a field's name, a method."""
        return [self._lower.get(found, UNKNOWN) for found in self._in_names.findall(name)]

    def names_in_value(self, value: bytes) -> list[str]:
        """Like `names_in`, for a header value: also inside Basic."""
        inside = decode_basic(value)
        return self.names_in(value) if inside is None else self.names_in(value) + self.names_in(inside)

    def swap(self, data: bytes, name: str, value: bytes) -> bytes:
        """Return the data with the placeholders of this credential replaced by the value, all others as they are."""
        return self._pattern.sub(lambda found: value if self.owner(found[0]) == name else found[0], data)

    def swap_value(self, header_value: bytes, name: str, value: bytes) -> bytes:
        """Like `swap`, for a header value: inside Basic too, which is then encoded anew."""
        inside = decode_basic(header_value)
        if inside is not None and name in self.names_in(inside):
            return b"Basic " + base64.b64encode(self.swap(inside, name, value))
        return self.swap(header_value, name, value)

    def left_over_in_trailers(self, trailers: Headers) -> str | None:
        """Like `left_over`, for what no search has seen: in the names of fields, too."""
        for name, _ in trailers:
            names = self.names_in_name(name)
            if names:
                return names[0]
        return self.left_over(trailers)

    def left_over(self, headers: Headers, query: str | None = None) -> str | None:
        """Return the name of a credential whose placeholder stands in what is about to leave, else None.

        For the last hop, after every supply: a placeholder that is still there belongs to a credential that the
        verdict did not select. The name is `UNKNOWN` ("") for a placeholder that no credential has.
        """
        if self.may_hold(headers, None):
            for _, value in headers:
                names = self.names_in_value(value)
                if names:
                    return names[0]
        raw = query.encode("ascii", "replace") if query else b""
        return self.names_in(raw)[0] if raw and self._any.found(raw) else None

    def may_hold(self, headers: Headers, query: str | None) -> bool:
        """Return False only if no placeholder stands in the headers and the query: a quick test first."""
        if self._any_or_basic.found_in(headers, False):
            return True
        return query is not None and self._any.found(query.encode("ascii", "replace"))


def decode_basic(value: bytes) -> bytes | None:
    """Return what a Basic header value holds (user-id:password), or None if it is not Basic or not base64.

    Source: RFC 7617 2; both base64 alphabets and missing padding are read, as lenient origins do.
    """
    if value[:6].lower() != b"basic ":
        return None
    match = _BASIC.match(value)
    if match is None:
        return None
    encoded = match[2].replace(b"-", b"+").replace(b"_", b"/")
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4))
    except binascii.Error:
        return None
