"""What a scan of a request finds. Values; nothing here carries what was found."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Surface(StrEnum):
    """Where in a request something was found."""

    METHOD = "method"
    HEADERS = "headers"
    PATH = "path"
    QUERY = "query"
    BODY = "body"


class Finding(msgspec.Struct, frozen=True):
    """Something found.

    Attributes:
        surface: where.
        name: the credential's name; "" for a placeholder that no credential has.
        leaking: True for a real value, False for a placeholder.
        encoded: the placeholder stands there in a spelling that is never swapped.
        header: lower-case name of the header that it stands in; b"" on other surfaces.
    """

    surface: Surface
    name: str
    leaking: bool = False
    encoded: bool = False
    header: bytes = b""
