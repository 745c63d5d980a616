"""How workers tell each other the values of credentials: each before it puts one in for the first time.

An upstream may repeat a value to a guest of any worker, also on a stream that is open while a reload binds it there, in
a worker that has not taken the reload over yet. So a worker that has a new one waits until all others look for it too,
in what comes from the same hosts: it sends `Share` to the supervisor, which has every other worker `Learn` it, and
answers `Shared` once all of them have said `Learnt`. Whoever starts later learns it before anything else. Values stay
in memory: none is logged, and no message shows one in its repr.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Final, Protocol

from seamgate.credentials.known import MOST_BINDINGS
from seamgate.credentials.sources import KEPT_VALUES
from seamgate.errors import CredentialError
from seamgate.workers.channel import Channel
from seamgate.workers.messages import Bound, FromSupervisor, Learn, Share, Shared, Values

SHARE_S: Final = 5.0
"""How long all workers together may take to learn a value; until then it is not put in."""


class Peer(Protocol):
    """What is used of `seamgate.workers.member.Member`."""

    @property
    def number(self) -> int:
        """The worker's."""
        ...

    @property
    def gone(self) -> asyncio.Event:
        """Set while there is no process."""
        ...

    def send(self, message: FromSupervisor) -> None:
        """Tell it something."""
        ...


def merged(new: Iterable[bytes], before: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return as many values as are kept, the new ones first."""
    return tuple(dict.fromkeys((*new, *before)))[:KEPT_VALUES]


class SecretExchange:
    """The supervisor's side: passes values on, and keeps them for workers that start later."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, tuple[bytes, ...]]] = {}
        self._hosts: dict[str, dict[tuple[str, ...], bool]] = {}  # the newest last
        self._numbers = itertools.count(1)
        self._waiting: dict[int, dict[Peer, asyncio.Future[None]]] = {}

    def __repr__(self) -> str:
        return f"<SecretExchange: {len(self._waiting)} under way>"

    def tell_all_to(self, member: Peer) -> None:
        """Tell a worker that starts what is known, before anything else."""
        hosts: Bound = {name: list(bindings.items()) for name, bindings in self._hosts.items()}
        for origin, values in self._kept.items():
            member.send(Learn(0, origin, values, hosts))

    async def share(self, sender: Peer, asked: Share, others: Iterable[Peer]) -> None:
        """Have all others learn what one has, and tell it once they have."""
        kept = self._kept.setdefault(sender.number, {})
        for name, values in asked.values.items():
            kept[name] = merged(values, kept.get(name, ()))
        for name, bindings in asked.hosts.items():
            self._keep(name, bindings)
        number = next(self._numbers)
        waiting = self._waiting[number] = {
            each: asyncio.get_running_loop().create_future()
            for each in others
            if each is not sender and not each.gone.is_set()
        }
        for member in waiting:
            member.send(Learn(number, sender.number, asked.values, asked.hosts))
        late: set[asyncio.Future[None]] = set()
        if waiting:
            _, late = await asyncio.wait(waiting.values(), timeout=SHARE_S)
        del self._waiting[number]
        slow = sorted(member.number for member, future in waiting.items() if future in late)
        sender.send(Shared(asked.number, f"worker {slow[0]} does not answer" if slow else ""))

    def _keep(self, name: str, bindings: Iterable[tuple[tuple[str, ...], bool]]) -> None:
        kept = self._hosts.setdefault(name, {})
        for hosts, allow_ranges in bindings:
            kept.pop(hosts, None)
            kept[hosts] = allow_ranges
        for hosts in list(kept)[:-MOST_BINDINGS]:
            del kept[hosts]

    def learnt(self, member: Peer, number: int) -> None:
        """A worker looks for what it was told."""
        self._answered(self._waiting.get(number, {}).get(member))

    def lose(self, member: Peer) -> None:
        """A worker is gone: nothing reaches a guest by it."""
        for waiting in self._waiting.values():
            self._answered(waiting.get(member))

    @staticmethod
    def _answered(future: asyncio.Future[None] | None) -> None:
        if future is not None and not future.done():
            future.set_result(None)


class SecretSharing:
    """A worker's side of telling. What it hears is `Worker`'s matter."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[str]] = {}

    async def share(self, values: Values, hosts: Bound) -> None:
        """Return once all workers look for these values, in what comes from these hosts.

        Raises:
            CredentialError: it can't be said that they do: no value may be put in.
        """
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        if self._channel.closed:
            answer.set_result(_GONE)
        self._channel.send(Share(number, values, hosts))
        try:
            problem = await answer
        finally:
            del self._asked[number]
        if problem:
            raise CredentialError(
                f"the value of {', '.join(sorted(values))} is new and not known to all workers yet, so that it could"
                f" come back unseen ({problem}): try again in a moment"
            )

    def shared(self, number: int, problem: str) -> None:
        """The supervisor answers."""
        waiting = self._asked.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(problem)

    def supervisor_gone(self) -> None:
        """Nobody answers any more."""
        for number in list(self._asked):
            self.shared(number, _GONE)


_GONE: Final = "the supervisor is gone"
