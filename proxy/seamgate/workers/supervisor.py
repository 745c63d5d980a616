"""The supervisor: the gateway that `serve --workers N` runs, whose requests are carried by N workers.

It owns what there is once: the journal and its chain, the look-up of names, the listeners, the admin listener, the
reload. What workers share in memory (`seamgate.workers.memory`) it makes and, of one that died, clears. It reads no
byte of a guest.

A reload goes in two steps: all workers load the new configuration, as the supervisor has checked and read it; only when
all can does any use it. One that dies is started again with what is in force, later each time it dies early; one that
does not answer for a minute is killed, and so is one that does not take over what all others have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

import msgspec
import structlog
from prometheus_client import Metric

from seamgate.audit.journal import Journal
from seamgate.config import AdminConfig, Config
from seamgate.document import read_text
from seamgate.entry.identity import GuestConfig, TokenSource
from seamgate.errors import ConfigError, PrerequisiteMissing
from seamgate.gateway import Gateway
from seamgate.observe.metrics import WorkMetrics
from seamgate.observe.status import Status
from seamgate.observe.work import Work, add_works, metrics_of, remains, work_of
from seamgate.pipeline import Pipeline
from seamgate.reloading import ReloadReport
from seamgate.stopping import FIRST_REQUEST_S
from seamgate.tasks import spawn
from seamgate.upstream.dns_message import Outcome
from seamgate.upstream.resolver import Answer
from seamgate.workers.ledger import Ledger
from seamgate.workers.listeners import BoundListeners
from seamgate.workers.member import Member
from seamgate.workers.memory import OPEN, SharedCount, SharedMemory
from seamgate.workers.messages import (
    DNS,
    DNS_UDP,
    Abort,
    Ask,
    Audit,
    Commit,
    Committed,
    Go,
    Learnt,
    Named,
    Prepare,
    Prepared,
    Ready,
    Records,
    Report,
    Resolve,
    Setup,
    Share,
    Stop,
)
from seamgate.workers.nursery import Nursery
from seamgate.workers.secrets import SecretExchange

log = structlog.get_logger("seamgate.workers")

START_S: Final = 120.0
"""How long a worker may take to be ready: a policy of 100,000 rules takes seconds."""
PREPARE_S: Final = 120.0
COMMIT_S: Final = 20.0
REPORT_S: Final = 2.0
"""How long `/status` and `/metrics` wait for a worker; then its last numbers do."""
REPORT_EVERY_S: Final = 5.0
HUNG_S: Final = 60.0
"""After so long without an answer a worker is killed and another one started."""
STOP_S: Final = 5.0
"""How long after the grace a worker may take to be gone."""


class Supervisor(Gateway):
    """See the module. The same outside as a gateway of one process."""

    def __init__(self, config: Config, *, log_format: str = "auto", log_level: str = "info") -> None:
        """Take a configuration for more than one worker.

        Raises:
            ConfigError: a limit can't be split among so many.
        """
        self._count = config.workers
        if config.entries.pool is not None:
            raise ConfigError(
                "`entries: kvm: pool:` is for a gateway of one process: a guest's ring is read by the process that"
                " restored it, so no other worker could carry its requests, and a worker that is started again would"
                " end its guests. Take it out, say `workers: 1`, or let a second gateway have the pool"
            )
        self._check_limits(config)
        super().__init__(config)
        self._logging = log_format, log_level
        self._bound: BoundListeners
        self._memory = SharedMemory.make(config.workers, tuple(config.guests), tuple(config.credentials))
        self._ledger: Ledger
        self._nursery = Nursery(self._on_nursery_gone)
        self._members: list[Member] = []
        self._secrets = SecretExchange()
        self.on_fault: Callable[[], None] | None = None
        """Called when the gateway can't go on: whoever runs it should stop it."""
        self._past: list[Work] = []
        self._own_metrics: WorkMetrics
        self._told_problem = ""
        self._retiring = False
        self._report_at = 0.0
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self.gathered_metrics = self._gather

    @property
    def workers(self) -> list[Member]:
        """Each worker as it is now."""
        return self._members

    # -- start -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything, start the workers, and have them take connections once all are ready.

        Raises:
            SeamgateError: as `Gateway.start`, or because of a worker.
        """
        self.config = self._started_with = self._frozen(self.config)
        try:
            await super().start()
        except BaseException:
            await self._end_members()
            raise
        for member in self._members:
            member.send(Go())

    def _make_listeners(self) -> BoundListeners:
        self._bound = BoundListeners(self.connections, self._roster, self._own)
        return self._bound

    async def _get_ready(self) -> None:
        assert isinstance(self._journal, Journal)
        self._ledger = Ledger(self._journal, self._clock)
        self._own_metrics = WorkMetrics(self)
        self.connections.all_open = SharedCount(self._memory, None, OPEN)
        await self._nursery.start()
        self._members = [
            Member(number, self._nursery, self._on_message, self._on_gone) for number in range(self._count)
        ]
        problems = await asyncio.gather(*[self._start_member(member) for member in self._members])
        problem = next(filter(None, problems), "")
        if problem:
            raise ConfigError(f"a worker can't start: {problem}")

    async def _load_secrets(self, pipeline: Pipeline) -> None:
        """Run no command: the workers do, and put the values in."""

    async def _start_member(self, member: Member) -> str:
        """Start a worker with what is in force; return why it can't be used, "" if it can."""
        await member.launch([self._memory.fd, *self._bound.all_descriptors()])
        self._secrets.tell_all_to(member)
        ready = await member.ask(self._setup(member), Ready, START_S)
        if ready is None or ready.problem or member.gone.is_set():
            member.kill()
            return (ready.problem if ready is not None else "") or "it ended, or was not ready in time: see its log"
        member.state = "serving"
        member.send(Audit(self._told_problem))
        return ""

    def _setup(self, member: Member) -> Setup:
        log_format, log_level = self._logging
        return Setup(
            config=self._for_workers(self.config),
            generation=self._generation,
            worker=member.number,
            workers=self._count,
            entries={
                entry: place
                for place, entry in enumerate(self._bound.sockets, 2)
                if entry not in (DNS, DNS_UDP) or member is self._members[0]
            },
            own=sorted(self._own.places),
            memory=1,
            guests=tuple(self._started_with.guests),
            credentials=tuple(self._started_with.credentials),
            ca=self._authorities.identity if self._authorities is not None else "",
            audit_problem=self._told_problem,
            log_format=log_format,
            log_level=log_level,
        )

    @staticmethod
    def _hashed(guests: Mapping[str, GuestConfig]) -> dict[str, GuestConfig]:
        """Return the guests with digests for tokens: all processes know the same, and none but this reads a token.

        Raises:
            ConfigError: one is missing.
        """
        return {
            name: guest
            if guest.token is None
            else msgspec.structs.replace(guest, token=TokenSource(sha256=guest.token.digest(name).hex()))
            for name, guest in guests.items()
        }

    def _frozen(self, config: Config) -> Config:
        """Read policies and tokens once, so that all processes have the same, now and when one is started again."""
        texts = {name: read_text(name) for name in config.policies}
        return msgspec.structs.replace(config, policy_texts=texts, guests=self._hashed(config.guests))

    def _for_workers(self, config: Config) -> Config:
        """Return what workers get: as many as there are, whatever waits for a restart, and no admin listener."""
        return msgspec.structs.replace(config, admin=AdminConfig(), workers=self._count)

    def _check_limits(self, config: Config) -> None:
        sessions = config.pool.sessions_per_origin
        if sessions < self._count:
            raise ConfigError(
                f"pool.sessions_per_origin is {sessions}, which is less than one for each of {self._count} workers: "
                "raise it, or use fewer workers"
            )

    # -- what workers say --------------------------------------------------------------------------------------------

    def _on_message(self, member: Member, message: Any) -> None:
        if isinstance(message, Records):
            self._ledger.take(member.account, message)
        elif isinstance(message, Resolve):
            spawn(self._resolve(member, message), name=f"resolve {message.name} for a worker")
        elif isinstance(message, Share):
            spawn(self._secrets.share(member, message, self._members), name="tell workers of a value")
        elif isinstance(message, Learnt):
            self._secrets.learnt(member, message.number)

    async def _resolve(self, member: Member, asked: Resolve) -> None:
        plugins = [each.plugin for each in self.seam.pipeline.plugins]
        answer_name: Callable[[str], Awaitable[Answer]] | None = next(
            filter(None, [getattr(plugin, "answer_name", None) for plugin in plugins]), None
        )
        if answer_name is None:
            answer = Answer(asked.name, Outcome.FAILED, message=f"no plugin of the supervisor resolves {asked.name}")
        else:
            answer = await answer_name(asked.name)
        member.send(Named(asked.number, answer))

    def _on_gone(self, member: Member) -> None:
        """A worker's channel is closed: end what it had begun, forget what it held, start another one."""
        was_up, stopping = member.is_up(), self.seam.draining
        lost = self._ledger.lose(member.account)
        self._secrets.lose(member)
        self._memory.clear_worker(member.number)
        if member.work is not None:
            self._past = [add_works([remains(member.work), *self._past])]
        if was_up and not stopping:
            log.error("a worker is gone", worker=member.number, pid=member.pid, requests_lost=lost)
            self._restarts[member.number] = spawn(self._start_again(member), name=f"start worker {member.number} again")

    def _on_nursery_gone(self) -> None:
        """Whoever ended it may wait for the next one, to look into it: start none, and let the gateway stop."""
        if not self.seam.draining:
            log.error("the process that workers come from is gone, so the gateway stops")
            if self.on_fault is not None:
                self.on_fault()

    def _is_ending(self) -> bool:
        return self.seam.draining

    async def _start_again(self, member: Member) -> None:
        while not self._is_ending():
            await member.gone.wait()
            code = await member.exit_code()
            log.info("a worker is started again", worker=member.number, exit_code=code, in_s=member.pause_s)
            await asyncio.sleep(member.pause_s)
            async with self._changing:
                if self._is_ending():
                    return
                try:
                    problem = await self._start_member(member)
                except PrerequisiteMissing as error:
                    problem = error.message
                if not problem:
                    member.send(Go())
                    return
            log.error("a worker can't be started again", worker=member.number, problem=problem)

    # -- running -----------------------------------------------------------------------------------------------------

    def _watch_journal(self) -> None:
        super()._watch_journal()
        problem = "" if self._journal.healthy else self._journal.stats.error or "it is closed"
        if problem != self._told_problem:
            self._told_problem = problem
            self._tell_all(Audit(problem))

    def _tell_all(self, message: Audit | Ask | Abort | Stop) -> None:
        for member in self._members:
            if member.is_up():
                member.send(message)

    def _sweep(self) -> None:
        super()._sweep()
        now = asyncio.get_running_loop().time()
        changing = self._changing.locked()
        for member in self._members:
            if changing and member.asked_at:
                member.asked_at = now  # what it loads may take long
            if member.state == "serving" and member.asked_at and now - member.asked_at > HUNG_S:
                log.error("a worker does not answer, so it is killed", worker=member.number, pid=member.pid)
                member.kill()
        if now >= self._report_at:
            self._report_at = now + REPORT_EVERY_S
            self._ask_all(now)

    def _ask_all(self, now: float) -> None:
        for member in self._members:
            if member.state == "serving" and not member.asked_at:
                member.asked_at = now
                member.send(Ask(0))

    def idle_because(self) -> str:
        """Return why no worker carries requests, "" if one does."""
        serving = any(member.state == "serving" for member in self._members)
        return "" if serving or self.seam.draining else "no worker is there to carry requests: see the log"

    async def refresh(self) -> None:
        """Have each worker's numbers of now, or its last ones if it does not answer soon."""
        serving = [member for member in self._members if member.state == "serving"]
        await asyncio.gather(*[member.ask(Ask(0), Report, REPORT_S) for member in serving])

    def _work(self) -> Work:
        """What all processes did, those that are gone included."""
        now = [member.work for member in self._members if member.work is not None and member.is_up()]
        return add_works([work_of(self, self._own_metrics), *now, *self._past])

    def _gather(self) -> list[Metric]:
        return metrics_of(self._work().families)

    def status(self) -> Status:
        """Return what all workers are doing, together."""
        work = self._work()
        return msgspec.structs.replace(
            super().status(),
            counts=work.counts,
            reasons=work.reasons,
            plugins=work.plugins,
            workers=tuple([member.status() for member in self._members]),
        )

    # -- reload ------------------------------------------------------------------------------------------------------

    async def reload_everywhere(self) -> ReloadReport:
        """Load the configuration file again and have all workers take it over, or none.

        Raises:
            SeamgateError: it can't be used, here or in a worker; nothing has changed.
        """
        async with self._changing:
            with self._refusing():
                config = self._frozen(self._load_file())
                self._check_limits(config)
                generation = self._generation + 1
                new = await self.prepare_aside(config, generation)
                await self._prepare_all(config, generation)
            self._swap(new)
            self._own_metrics = WorkMetrics(self)
            await asyncio.to_thread(self._write_certificates)
            committed = await asyncio.gather(*[self._commit(member) for member in self._members if member.is_up()])
            ended = [each for each in committed if each is not None]
            return self._reloaded(
                sum(each.revoked_requests for each in ended), sum(each.revoked_tunnels for each in ended)
            )

    async def _prepare_all(self, config: Config, generation: int) -> None:
        """Have each worker load it, one after the other: meanwhile the others carry requests.

        Raises:
            ConfigError: one of them can't.
        """
        for member in self._members:
            if not member.is_up():
                continue
            answer = await member.ask(Prepare(self._for_workers(config), generation), Prepared, PREPARE_S)
            if answer is None and not member.is_up():
                continue  # it died; the next one starts with what is in force then
            problem = "it did not answer in time" if answer is None else answer.problem
            if problem:
                self._tell_all(Abort(generation))
                raise ConfigError(f"worker {member.number} can't take it over: {problem}")

    async def _commit(self, member: Member) -> Committed | None:
        committed = await member.ask(Commit(self._generation), Committed, COMMIT_S)
        if committed is None and member.is_up():
            log.error("a worker did not take the new policy over, so it is killed", worker=member.number)
            member.kill()
        return cast("Committed | None", committed)

    # -- stop --------------------------------------------------------------------------------------------------------

    async def retire(self, *, grace_s: float = 10.0) -> None:
        """Stop in favour of a successor that has the listeners."""
        self._retiring = True
        await self.stop(grace_s=grace_s)

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """Have all workers take no new connection and finish what is under way, then close everything."""
        self.seam.draining = True
        self._stop_listening()
        self._tell_all(Stop(grace_s, self._retiring and grace_s > 0))
        for member in self._members:
            if member.is_up():
                member.state = "stopping"
            else:
                member.kill()
        try:
            async with asyncio.timeout(grace_s + STOP_S + (FIRST_REQUEST_S if self._retiring else 0)):
                await asyncio.gather(*[member.gone.wait() for member in self._members])
        except TimeoutError:
            log.warning("workers had to be killed at stop")
            for member in self._members:
                member.kill()
        await self._end_members()
        self._tell("stop")
        self._close()

    async def _end_members(self) -> None:
        """Wait until all are gone, and their processes over."""
        for task in self._restarts.values():
            task.cancel()
        for member in self._members:
            await member.gone.wait()
            await member.exit_code()
        self._nursery.close()
        await self._nursery.ended()

    def _close(self) -> None:
        for member in self._members:
            member.kill()
        self._memory.close()
        self._nursery.close()
        super()._close()
