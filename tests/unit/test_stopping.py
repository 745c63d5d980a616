"""How a gateway lets go of its guests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from seamgate.stopping import see_off


class Late:
    """A connection that goes once it is told to."""

    def __init__(self, connections: Any) -> None:
        self._connections = connections
        self.told: list[bool] = []

    def drain(self, *, patient: bool = False) -> None:
        """Note it, and go."""
        self.told.append(patient)
        self._connections.all.discard(self)


async def test_who_was_taken_just_before_is_seen_off_too() -> None:
    """A listener that is closed has handed over what it accepted in the same turn: a turn later it is a connection."""
    connections: Any = SimpleNamespace(all=set(), awaited=False)
    late = Late(connections)
    asyncio.get_running_loop().call_soon(connections.all.add, late)
    await see_off(connections)
    assert late.told == [True]
