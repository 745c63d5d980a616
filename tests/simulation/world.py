"""One simulation: a gateway as it ships between guests, upstreams, a name server and a disk that all may fail.

`simulate(seed)` builds it by the dice of that seed, lets everything run until it is quiet, stops the gateway, and
has the referee look (`simulation.referee`). Only the network, the clock and the disk are not real.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from seamgate import Request, hookimpl
from seamgate.audit.record import AuditRecord
from seamgate.config import Config
from seamgate.errors import SeamgateError
from seamgate.gateway import Gateway
from seamgate.hookspecs import Inspector
from seamgate.pipeline import Pipeline
from seamgate.registry import load_plugins, register
from simulation.chance import CHANCE, Ordered
from simulation.clock import CLOCK
from simulation.disk import Disk
from simulation.guests import Guest
from simulation.loop import VirtualLoop
from simulation.network import Network
from simulation.servers import Ledger, NameServer, Upstreams
from simulation.shared import Folder

LONGEST_S = 20_000.0
"""Virtual seconds after which something hangs: the longest of all time limits is 60 s."""
GUESTS = (1, 1, 1, 2, 2, 3, 5)
"""How many there are: mostly few, since what one of them does amiss needs no others, and some faults need a crowd."""
SECURED_PART = 0.4
"""Of the schedules, with TLS on the guests' side, which costs more than all the rest."""


class Same:
    """An inspector that changes nothing, and fails now and then."""

    def __init__(self, rng: random.Random, failing: float) -> None:
        self._rng, self._failing = rng, failing

    def head(self, headers: Any) -> Any:
        """As it is."""
        return headers

    def feed(self, data: bytes) -> bytes:
        """As it is."""
        if self._rng.random() < self._failing:
            raise RuntimeError("an inspector's fault")
        return data

    def flush(self) -> bytes:
        """Nothing is held."""
        return b""

    def finish(self) -> bytes:
        """Nothing is left."""
        return b""


class Chaos:
    """A plugin that fails, overruns and hangs; and the observer of all records."""

    def __init__(self, rng: random.Random, failing: float) -> None:
        self._rng, self._failing = rng, failing
        self.records: list[AuditRecord] = []

    def _bad(self) -> bool:
        return self._rng.random() < self._failing

    @hookimpl
    def judge_request(self, request: Request) -> None:
        """Nothing, an error, or too late."""
        if self._bad():
            raise RuntimeError("a judge's fault")
        if self._bad():
            CLOCK.advance(1.0)

    @hookimpl
    def open_inspector(self, request: Request) -> Inspector | None:
        """One that may fail, for either direction."""
        return Same(self._rng, self._failing) if self._rng.random() < 0.2 else None

    @hookimpl
    async def resolve_name(self, name: str) -> None:
        """No answer, after a while or never."""
        await asyncio.sleep(1000.0 if self._bad() else 0.0)

    @hookimpl
    def request_done(self, record: AuditRecord) -> None:
        """Note it; a failure of an observer changes nothing."""
        self.records.append(record)
        if self._bad():
            raise RuntimeError("an observer's fault")


class SimulatedGateway(Gateway):
    """The gateway, with a plugin that no entry point offers."""

    chaos: Chaos
    folder: Folder

    def _make_pipeline(self, config: Config, generation: int, aside: Mapping[str, object] | None = None) -> Pipeline:
        ready = self.folder.aside(config, generation)
        plugins = (*load_plugins(config, generation, self._clock, aside=ready), register("chaos", self.chaos))
        return Pipeline(plugins, generation=generation, budget_s=config.limits.plugin_budget_s)


class Killed(msgspec.Struct):
    """What a kill -9 at some moment leaves: the journal as it is then, and who had come upstream with a credential."""

    journal: Path
    keyed: frozenset[str]


class Outcome(msgspec.Struct):
    """What the referee looks at."""

    seed: int
    gateway: SimulatedGateway
    records: list[AuditRecord]
    guests: list[Guest]
    ledger: Ledger
    names: NameServer
    network: Network
    problems: list[str]
    journal: Path
    tasks: list[str]
    descriptors: int
    journal_closed: bool
    killed: list[Killed]


def simulate(seed: int, folder: Folder) -> Outcome:
    """Run one seed.

    Raises:
        Stuck, TimeoutError: something waits for ever.
    """
    rng = random.Random(seed)
    random.seed(seed)
    CLOCK.restart()
    CHANCE.restart(seed)
    before = len(os.listdir("/proc/self/fd"))
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        outcome = loop.run_until_complete(_limited(seed, rng, loop, folder))
        # What is on its way when everybody has left arrives, or does not.
        loop.run_until_complete(asyncio.sleep(1000.0))
        outcome.tasks = [task.get_name() for task in asyncio.all_tasks(loop)]
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
    outcome.descriptors = len(os.listdir("/proc/self/fd")) - before
    outcome.problems = loop.problems
    return outcome


async def _limited(seed: int, rng: random.Random, loop: VirtualLoop, folder: Folder) -> Outcome:
    async with asyncio.timeout(LONGEST_S):
        return await _run(seed, rng, loop, folder)


async def _run(seed: int, rng: random.Random, loop: VirtualLoop, folder: Folder) -> Outcome:
    calm = rng.random() < 0.2
    roughness, failing = (0.0, 0.0) if calm else (rng.random() * 0.3, rng.choice((0.0, 0.005, 0.02, 0.1)))
    network = loop.network = Network(loop, rng, roughness)
    network.hidden.add(("93.184.216.9", 80))
    ledger = Ledger()
    upstreams = Upstreams(network, rng, ledger, lying=0.0 if calm else rng.random() * 0.5)
    names = NameServer(network, rng, failing)
    journal = folder.journal()
    gateway = SimulatedGateway(folder.config(rng, journal, 1), clock=CLOCK.unix)
    gateway.folder = folder
    gateway.chaos = Chaos(rng, failing)
    killer = _Killer(rng, ledger, journal)
    with Disk(rng) as disk:
        await gateway.start()
        _in_order(gateway)
        places = {**gateway.addresses, "contexts": folder.contexts, "secured": rng.random() < SECURED_PART}
        guests = [Guest(number, network, rng, places, ledger) for number in range(rng.choice(GUESTS))]
        tasks = [loop.create_task(guest.run(), name=f"guest {number}") for number, guest in enumerate(guests)]
        if not calm:
            tasks.append(loop.create_task(_weather(rng, disk, network), name="disk"))
            tasks.append(loop.create_task(_outages(rng, names), name="names"))
            tasks.append(loop.create_task(killer.strike_later(), name="kill"))
            tasks.append(loop.create_task(_reloads(rng, gateway, folder, journal), name="reloads"))
        await asyncio.gather(*tasks)
        closed = await _stopped(gateway, rng)
    await upstreams.stop()
    return Outcome(
        seed, gateway, gateway.chaos.records, guests, ledger, names, network, [], journal, [], 0, closed, killer.killed
    )  # fmt: skip


def _in_order(gateway: Any) -> None:
    for holder, name in ((gateway.connections, "all"), (gateway.seam, "under_way"), (gateway.seam, "tunnels")):
        assert not getattr(holder, name)
        setattr(holder, name, Ordered())


async def _stopped(gateway: Gateway, rng: random.Random) -> bool:
    """Stop, at once or after all has become quiet."""
    await asyncio.sleep(rng.choice((0.0, 0.0, 0.0, 200.0)))
    await gateway.stop(grace_s=rng.choice((0.0, 10.0)))
    return True


async def _weather(rng: random.Random, disk: Disk, network: Network) -> None:
    for _ in range(rng.randint(0, 3)):
        await asyncio.sleep(rng.choice((0.01, 0.5, 5.0)))
        disk.full, disk.slow_s = rng.random() < 0.5, rng.choice((0.0, 0.001, 0.7))
        disk.exhausted = network.exhausted = rng.random() < 0.3
        await asyncio.sleep(rng.choice((0.01, 2.0)))
        disk.recover()
        network.exhausted = False


async def _outages(rng: random.Random, names: NameServer) -> None:
    for _ in range(rng.choice((0, 0, 1, 2))):
        await asyncio.sleep(rng.choice((0.001, 0.3, 3.0)))
        if rng.random() < 0.5:
            names.move()
            continue
        names.die()
        await asyncio.sleep(rng.choice((0.1, 10.0)))
        names.revive()


class _Killer:
    """Takes a picture of what a kill -9 would leave; the gateway itself goes on."""

    def __init__(self, rng: random.Random, ledger: Ledger, journal: Path) -> None:
        self._rng, self._ledger, self._journal = rng, ledger, journal
        self.killed: list[Killed] = []
        self._most = rng.choice((0, 1, 2))
        ledger.on_keyed = self.strike

    def strike(self) -> None:
        """A credential has just arrived upstream: the worst moment; or any other one."""
        number = len(self.killed)
        if number >= self._most or self._rng.random() < 0.3:
            return
        left = self._journal.parent / f"killed-{number}"
        left.mkdir()
        for file in self._journal.parent.iterdir():
            if file.is_file():
                shutil.copyfile(file, left / file.name)
                (left / file.name).chmod(0o600)
        self.killed.append(Killed(left / self._journal.name, frozenset(self._ledger.keyed)))

    async def strike_later(self) -> None:
        """At a moment that nothing announces."""
        await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0, 4.0)) * self._rng.random())
        self.strike()


async def _reloads(rng: random.Random, gateway: Gateway, folder: Folder, journal: Path) -> None:
    for number in range(rng.randint(0, 3)):
        await asyncio.sleep(rng.choice((0.001, 0.05, 2.0)))
        try:
            gateway.reload(folder.config(rng, journal, number, broken=rng.random() < 0.2))
        except SeamgateError:
            pass  # the old one stays in force
