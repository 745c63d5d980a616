"""What is done ahead of requests, counted for each guest: look-ups and sessions that a CONNECT alone asks for.

Nobody may ever use them, and a CONNECT costs a guest little: one that opens tunnels as fast as it can to names that are
slow to resolve, or to hosts that do not answer, would hold all look-ups (`dns.max_lookups`) and have a thousand
connects under way. What a guest has no room for is not done ahead; the request that follows does it. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from seamgate.tasks import spawn

MOST_AHEAD: Final = 32
"""Of one guest at once, of each kind: an agent that begins opens a few tunnels; a sixteenth of all look-ups."""


class DoneAhead:
    """How much of one kind each guest has under way. State: guests that have any, and how many."""

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._under_way.values())

    def has_room(self, guest: str) -> bool:
        """Whether this guest may have one more."""
        return self._under_way.get(guest, 0) < MOST_AHEAD

    def spawn(
        self,
        guest: str,
        work: Coroutine[Any, Any, None],
        *,
        name: str,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Do it in the background, as this guest's, until it ends.

        Args:
            guest: its id; it has room.
            work, name, on_error: as for `tasks.spawn`.
        """
        self._under_way[guest] = self._under_way.get(guest, 0) + 1
        spawn(work, name=name, on_error=on_error).add_done_callback(lambda _: self._ended(guest))

    def _ended(self, guest: str) -> None:
        left = self._under_way[guest] - 1
        if left:
            self._under_way[guest] = left
        else:
            del self._under_way[guest]
