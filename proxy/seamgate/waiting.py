"""What an exchange waits for, one thing at a time: a name, a session, a credential.

A hook and the pool may give a value at once, and then nothing here costs anything; else they give an awaitable, which
is awaited in a task with a deadline. Whatever comes too late is not lost: a session goes back to the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from seamgate.errors import Reason, SeamgateError
from seamgate.flow import Resolution, Supply
from seamgate.tasks import spawn
from seamgate.upstream.session import Session
from seamgate.upstream.session2_stream import SessionStream
from seamgate.verdict import Verdict, denial_of, deny

# What may be given at once; anything else that is not None is awaited. Structures last: to tell that something is none
# of theirs costs 500 instructions, as their metaclass has an own `__instancecheck__`.
_LENT: Final = (Session, SessionStream)
_AT_HAND: Final = (*_LENT, Resolution, Supply)


class Waiting:
    """The one thing that is waited for. State: `_turn` rises with each, so that a late one knows that it is late."""

    __slots__ = ("_guarded", "_id", "_on_failure", "_task", "_turn")

    def __init__(
        self, request_id: str, guarded: Callable[[Callable[[], None]], None], on_failure: Callable[[Verdict], None]
    ) -> None:
        self._id = request_id
        self._guarded = guarded
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._turn = 0

    def then(self, value: Any, go_on: Callable[[Any], None], timeout_s: float, reason: Reason) -> None:
        """Call `go_on` with the value, at once or when it is there; a timeout or an error is a failure."""
        if value is None or isinstance(value, _AT_HAND):
            go_on(value)
        else:
            self._turn += 1
            self._task = spawn(self._await(value, go_on, timeout_s, reason, self._turn), name=f"exchange {self._id}")

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._turn += 1
        if self._task is not None:
            # Not at once: a task that is cancelled before its first step never runs what it was given to clean up.
            asyncio.get_running_loop().call_soon(self._task.cancel)
            self._task = None

    def close(self) -> None:
        """The exchange is over. Lets go of it, or each exchange would be a cycle for the garbage collector to find."""
        self.cancel()
        self._guarded = self._on_failure = _NOTHING

    async def _await(
        self, pending: Awaitable[Any], go_on: Callable[[Any], None], timeout_s: float, reason: Reason, turn: int
    ) -> None:
        value: Any = None
        failure: Verdict | None = None
        try:
            async with asyncio.timeout(timeout_s):
                value = await pending
        except TimeoutError:
            failure = deny(f"gave up after {timeout_s:g} s", reason=reason)
        except SeamgateError as error:
            failure = denial_of(error)
        if turn != self._turn:
            if isinstance(value, _LENT):
                value.release(reusable=True)
            return
        self._task = None
        if failure is None:
            self._guarded(lambda: go_on(value))
        else:
            self._on_failure(failure)


def _nothing(_: object) -> None:
    """What is left to call after `close`."""


_NOTHING: Final[Callable[[object], None]] = _nothing
