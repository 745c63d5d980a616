"""A journal line's place in the chain. A value."""

from __future__ import annotations

import msgspec


class Link(msgspec.Struct, frozen=True):
    """One line's place in the chain, as the line itself claims it, and its real hash."""

    seq: int
    prev: str
    hash: str
