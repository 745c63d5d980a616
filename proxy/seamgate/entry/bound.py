"""Who asks, and for what: what an entry's binding makes of a request head. A value."""

from __future__ import annotations

import msgspec

from seamgate.flow import Guest, Target


class Bound(msgspec.Struct, frozen=True):
    """Who asks, and for what."""

    guest: Guest
    target: Target
    path: str
    query: str | None
