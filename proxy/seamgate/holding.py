"""What one stream has in memory because one side takes no more, counted in the budget of `limits.held_bytes`.

Owned by the streams of HTTP/2 and by WebSockets, which say how much it is whenever that changes. What a stream passes
on at once is never counted.
"""

from __future__ import annotations

from seamgate.errors import Reason, SeamgateError
from seamgate.upload import HeldBytes


class Holding:
    """One stream's part. State: `size_bytes` is counted now."""

    __slots__ = ("_budget", "_guest", "size_bytes")

    def __init__(self, budget: HeldBytes, guest: str) -> None:
        self._budget = budget
        self._guest = guest
        self.size_bytes = 0

    def say(self, size_bytes: int) -> None:
        """It is so much now.

        Raises:
            SeamgateError: OVERLOADED: the gateway, or this guest, holds as much as it may. What was counted stays so.
        """
        more = size_bytes - self.size_bytes
        if more > 0 and not self._budget.take(self._guest, more):
            message = "the gateway holds as much of streams as it may (limits.held_bytes): try again in a moment"
            raise SeamgateError(message, reason=Reason.OVERLOADED)
        if more < 0:
            self._budget.give_back(self._guest, -more)
        self.size_bytes = size_bytes

    def close(self) -> None:
        """It is over: nothing of it is in memory any more."""
        if self.size_bytes:
            self._budget.give_back(self._guest, self.size_bytes)
            self.size_bytes = 0
