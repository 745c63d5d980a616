"""A worker: a gateway without journal, resolver and admin listener of its own, which does what the supervisor says.

Forked by the nursery (`seamgate.workers.nursery`) with its end of the channel and other descriptors; everything else
comes in the first message. It takes connections from listeners that it inherits, and ends when the supervisor says so
or is gone: then no request can be recorded, so none is carried. Signals are the supervisor's business: a terminal and
systemd send theirs to all processes of the gateway, and here they do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

import msgspec
import structlog
import uvloop

from seamgate import launch
from seamgate.config import Config
from seamgate.credentials.probing import Probes
from seamgate.entry.listeners import Listeners
from seamgate.errors import ConfigError, SeamgateError
from seamgate.gateway import Gateway
from seamgate.observe.logging import configure_logging
from seamgate.observe.metrics import WorkMetrics
from seamgate.observe.work import work_of
from seamgate.pipeline import Pipeline
from seamgate.registry import newest
from seamgate.reloading import Prepared as PreparedConfig
from seamgate.revocation import search_anew
from seamgate.seam import Seam
from seamgate.signing import Authorities
from seamgate.tasks import spawn
from seamgate.upstream.connect import Connector
from seamgate.watching import FileWatch
from seamgate.workers.channel import Channel
from seamgate.workers.listeners import InheritedListeners
from seamgate.workers.memory import OPEN, STRANGERS, SharedCount, SharedHeldBytes, SharedMemory
from seamgate.workers.messages import (
    Abort,
    Acknowledge,
    Ask,
    Audit,
    Commit,
    Committed,
    Go,
    Learn,
    Learnt,
    Named,
    Prepare,
    Prepared,
    Ready,
    Report,
    Setup,
    Shared,
    Stop,
)
from seamgate.workers.names import SharedWork
from seamgate.workers.recorder import Recorder

log = structlog.get_logger("seamgate.workers")


LAST_WORDS_S: Final = 5.0
"""How long a worker that ends waits for the supervisor to take what it still has to say."""


def share_of(total: int, worker: int, workers: int) -> int:
    """Return a worker's part of a number that is split evenly: all parts together are the number."""
    return total // workers + (worker < total % workers)


class WorkerGateway(Gateway):
    """The gateway of one worker."""

    def __init__(self, setup: Setup, channel: Channel, descriptors: Sequence[int], heard: Sequence[Learn] = ()) -> None:
        self._inherited: InheritedListeners
        self._setup, self._descriptors = setup, descriptors
        super().__init__(setup.config)
        self._heard = heard
        self._learns = False
        self._memory = SharedMemory(descriptors[setup.memory], setup.workers, setup.guests, setup.credentials)
        self._tag = f"{setup.worker:x}"
        self._generation = setup.generation
        self.recorder = Recorder(channel, setup.config.audit.file, setup.audit_problem)
        self.shared = self._shared = SharedWork(channel, self._memory)
        connections = self.connections
        connections.all_open = SharedCount(self._memory, setup.worker, OPEN)
        connections.all_strangers = SharedCount(self._memory, setup.worker, STRANGERS)
        connections.share = max(1, share_of(connections.most, setup.worker, setup.workers))
        for address, port in setup.own:
            self._own.add(address, port)

    async def start(self) -> None:
        """Get ready, without taking connections yet.

        Raises:
            SeamgateError: as `Gateway.start`; or the CA is not the one that the supervisor has.
        """
        await super().start()
        found = self._authorities.identity if self._authorities is not None else ""
        if found != self._setup.ca:
            raise ConfigError("the CA is not the one that the gateway started with: restart the gateway to change it")

    async def _load_secrets(self, pipeline: Pipeline) -> None:
        """Know what others put in, before anything of our own is put in."""
        if not self._learns:
            self._learns = True
            for each in self._heard:
                self.learn(each)
        await super()._load_secrets(pipeline)

    def learn(self, message: Learn) -> None:
        """Look for values that another worker puts in; what comes before there is a pipeline waits in `heard`."""
        if not self._learns:
            return
        for each in newest(self._left, self.seam.pipeline.plugins):  # one that was taken away may come back
            learn_values = getattr(each.plugin, "learn_values", None)
            if learn_values is not None and "secrets" in each.capabilities:
                learn_values(message.origin, message.values, message.hosts)
        search_anew(self.seam)

    async def take_connections(self) -> None:
        """Begin."""
        await self._inherited.take_connections()

    def swap(self, new: PreparedConfig) -> tuple[int, int]:
        """Put a new generation in force; return how many requests and tunnels it ended."""
        self._swap(new)
        ended = self._end_forbidden(new)
        return ended.exchanges, ended.tunnels

    # -- what a worker does otherwise --------------------------------------------------------------------------------

    def _make_listeners(self) -> Listeners:
        sockets = {entry: self._descriptors[place] for entry, place in self._setup.entries.items()}
        self._inherited = InheritedListeners(self.connections, self._roster, self._own, sockets)
        return self._inherited

    def _make_authorities(self, config: Config) -> Authorities:
        return Authorities(config, makes=False)

    def _open_journal(self, config: Config) -> Recorder:
        return self.recorder

    def _make_pipeline(self, config: Config, generation: int, aside: Mapping[str, object] | None = None) -> Pipeline:
        pipeline = super()._make_pipeline(config, generation, aside)
        pipeline.probes = Probes(self.shared.findings)
        return pipeline

    def _make_seam(self, config: Config, pipeline: Pipeline, connector: Connector) -> Seam:
        setup = self._setup
        sessions = share_of(config.pool.sessions_per_origin, setup.worker, setup.workers)
        pool = msgspec.structs.replace(config.pool, sessions_per_origin=sessions)
        seam = super()._make_seam(msgspec.structs.replace(config, pool=pool), pipeline, connector)
        seam.begin_later = self.recorder.begin_later
        seam.held.shared = SharedHeldBytes(self._memory, setup.worker, config.limits.held_bytes)
        return seam

    def _watch_files(self) -> FileWatch | None:
        return None

    def _tell(self, event: Any) -> None:
        """Say it in the log only: the supervisor records what the gateway does."""
        log.info("worker", happened=event, generation=self._generation)

    def _sweep(self) -> None:
        super()._sweep()
        self.recorder.check(monotonic())


class Worker:
    """The life of the process: messages of the supervisor in, what they ask for done."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Take the descriptors that the process has inherited; the first is its end of the channel."""
        self._descriptors = descriptors
        self._channel: Channel
        self._gateway: WorkerGateway | None = None
        self._starting: WorkerGateway | None = None
        self._heard: list[Learn] = []  # until it has started
        self._metrics: WorkMetrics
        self._prepared: PreparedConfig | None = None
        self._wanted = 0  # the generation that is to be prepared
        self._stopping: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Run until the supervisor says otherwise, or is gone."""
        end = socket.socket(fileno=self._descriptors[0])
        self._channel = await Channel.open(end, self._on_message, self._on_closed, from_worker=False)
        await self._over.wait()
        while self._stopping is not None and not self._stopping.done():
            await asyncio.wait((self._stopping,))
        self._channel.close()
        with contextlib.suppress(TimeoutError):  # the last records are on their way
            async with asyncio.timeout(LAST_WORDS_S):
                await self._closed.wait()

    def _on_message(self, message: Any) -> None:
        gateway = self._gateway
        if isinstance(message, Setup):
            spawn(self._set_up(message), name="set up", on_error=self._on_fault)
        elif isinstance(message, Learn):
            self._learn(message)
        elif isinstance(message, Shared):
            if self._starting is not None:
                self._starting.shared.secrets.shared(message.number, message.problem)
        elif gateway is None:
            self._over.set()  # before it is set up, whatever else is said is that there is no need for it
        elif isinstance(message, Acknowledge):
            gateway.recorder.acknowledged(message.number, message.problem)
        elif isinstance(message, Named):
            gateway.shared.named(message.number, message.answer)
        elif isinstance(message, Ask):
            self._channel.send(Report(message.number, work_of(gateway, self._metrics)))
        elif isinstance(message, Audit):
            gateway.recorder.told(message.problem)
        elif isinstance(message, Go):
            spawn(gateway.take_connections(), name="take connections")
        elif isinstance(message, Stop):
            self._stop(gateway, message.grace_s, retiring=message.retiring)
        else:
            self._follow(gateway, message)

    def _learn(self, message: Learn) -> None:
        if self._gateway is None:
            self._heard.append(message)
        if self._starting is not None:
            self._starting.learn(message)
        if message.number:
            self._channel.send(Learnt(message.number))

    async def _set_up(self, setup: Setup) -> None:
        configure_logging(setup.log_format, setup.log_level, worker=setup.worker)  # type: ignore[arg-type]
        self._starting = gateway = WorkerGateway(setup, self._channel, self._descriptors, self._heard)
        try:
            await gateway.start()
        except SeamgateError as error:
            self._channel.send(Ready(error.message))
            self._over.set()
            return
        self._metrics = WorkMetrics(gateway)
        self._gateway = gateway
        launch.settle_memory()
        self._channel.send(Ready())

    def _on_fault(self, error: BaseException) -> None:
        """What nobody foresaw: the supervisor sees that this process ends, and starts another one."""
        log.error("a fault of the gateway", exc_info=error)
        self._over.set()

    def _follow(self, gateway: WorkerGateway, message: Prepare | Commit | Abort) -> None:
        """One step of a reload."""
        if isinstance(message, Prepare):
            self._prepared, self._wanted = None, message.generation
            spawn(self._prepare(gateway, message), name="prepare a reload", on_error=self._on_fault)
        elif isinstance(message, Commit) and self._prepared is not None:
            requests, tunnels = gateway.swap(self._prepared)
            self._metrics = WorkMetrics(gateway)
            self._channel.send(Committed(message.generation, requests, tunnels))
            self._prepared = None
        else:
            self._prepared, self._wanted = None, 0

    async def _prepare(self, gateway: WorkerGateway, message: Prepare) -> None:
        """Load what the supervisor has read, and keep it unless it was called off meanwhile."""
        problem = ""
        try:
            prepared = await gateway.prepare_aside(message.config, message.generation)
            if self._wanted == message.generation:
                self._prepared = prepared
        except SeamgateError as error:
            problem = error.message
        self._channel.send(Prepared(message.generation, problem))

    def _stop(self, gateway: WorkerGateway, grace_s: float, *, retiring: bool = False) -> None:
        before, self._stopping = self._stopping, None
        if before is not None:
            before.cancel()
        self._stopping = spawn(self._end(gateway, before, grace_s, retiring), name="stop")
        self._over.set()

    async def _end(
        self, gateway: WorkerGateway, before: asyncio.Task[None] | None, grace_s: float, retiring: bool
    ) -> None:
        if before is not None:
            await asyncio.wait((before,))
        await (gateway.retire if retiring else gateway.stop)(grace_s=grace_s)

    def _on_closed(self) -> None:
        """The supervisor is gone, or does not want us any more, or we have told it all."""
        self._closed.set()
        gateway = self._gateway
        if gateway is not None and not (self._stopping is not None and self._stopping.done()):
            log.error("the supervisor is gone: nothing can be recorded, so nothing is carried any more")
            gateway.recorder.supervisor_gone()
            gateway.shared.supervisor_gone()
            self._stop(gateway, 0.0)
        self._over.set()


def main(descriptors: Sequence[int]) -> None:
    """Run one worker with the descriptors that it has inherited."""
    with contextlib.suppress(asyncio.CancelledError):
        uvloop.run(Worker(descriptors).run())
