"""What a worker shares with the others by asking the supervisor, and by memory: names, rates, findings, new
values of credentials. For plugins.

`SharedWork` is what plugins get as `PluginContext.shared`. Names are asked of the supervisor, whose cache is that of
all workers; the plugin `dns` remembers each answer for the time that is left of it, so a warm name costs no message.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from seamgate.registry import Hosts
from seamgate.upstream.dns_message import Outcome
from seamgate.upstream.resolver import Answer
from seamgate.workers.channel import Channel
from seamgate.workers.findings import FindingsTable, SharedFindings
from seamgate.workers.memory import SharedMemory
from seamgate.workers.messages import Resolve
from seamgate.workers.rates import SharedRates
from seamgate.workers.secrets import SecretSharing


class SharedWork:
    """See the module. Implements `seamgate.registry.SharedState`."""

    def __init__(self, channel: Channel, memory: SharedMemory) -> None:
        self._channel = channel
        self._rates = SharedRates(memory.windows)
        self._findings = FindingsTable(memory)
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self.secrets = SecretSharing(channel)

    def rates(self) -> SharedRates:
        """Return what counts requests for all workers."""
        return self._rates

    def findings(self, kind: str, key: str) -> SharedFindings | None:
        """Return what a guest, or about a credential, was found out, counted by all workers."""
        return self._findings.get(kind, key)

    async def share_secrets(self, values: Mapping[str, tuple[bytes, ...]], hosts: Hosts) -> None:
        """Return once all workers look for these values; see `SecretSharing.share`."""
        await self.secrets.share(dict(values), {name: list(bindings) for name, bindings in hosts.items()})

    async def query(self, name: str) -> Answer:
        """Ask the supervisor for a canonical name. Raises nothing but a cancellation."""
        if self._channel.closed:
            return _gone(name)
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Resolve(number, name))
        try:
            found = await answer
        finally:
            del self._asked[number]
        return found if found.name else _gone(name)

    def named(self, number: int, answer: Answer) -> None:
        """The supervisor answers."""
        waiting = self._asked.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def supervisor_gone(self) -> None:
        """Nobody answers any more."""
        for number in list(self._asked):
            self.named(number, _gone(""))
        self.secrets.supervisor_gone()


def _gone(name: str) -> Answer:
    message = f"{name} could not be resolved: the supervisor is gone"
    return Answer(name, Outcome.FAILED, message=message)
