"""The gateway: everything wired together, listening. The one place that knows all the rooms.

Called by `seamgate serve`, `seamgate run`, `seamgate demo` and by tests. Start: configuration, plugins, journal, pool,
entries; whatever is missing stops the start with a named error. Stop: no new request, those under way may finish, then
everything is closed and the journal says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog
from prometheus_client import Metric

from seamgate.audit.journal import Journal
from seamgate.audit.journal_state import JournalStats
from seamgate.audit.line import opened
from seamgate.audit.sealed import Entry
from seamgate.config import Config, Entries, load_config, split_admin
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.sources import secret_variables
from seamgate.descriptors import fit_connections
from seamgate.entry.connections import Connections
from seamgate.entry.guest_pool import GuestPool
from seamgate.entry.listeners import Listeners
from seamgate.entry.roster import Roster
from seamgate.errors import ConfigError, Reason, SeamgateError
from seamgate.observe.admin import AdminServer
from seamgate.observe.readiness import loaded_policies
from seamgate.observe.status import Status, status_of
from seamgate.pipeline import Pipeline
from seamgate.recording import AuditLog
from seamgate.registry import LoadedPlugin, SharedState, go_on, load_aside, load_plugins, load_values, newest
from seamgate.reloading import Prepared, ReloadCounts, ReloadReport, waiting_sections
from seamgate.revocation import Revoked, bound_by, revoke
from seamgate.seam import Seam
from seamgate.shortage import Shortage
from seamgate.signing import Authorities, NewAuthorities
from seamgate.stopping import end_all, let_finish, see_off
from seamgate.tasks import spawn
from seamgate.telling import gateway_record, tell_journal, tell_reloaded
from seamgate.upstream.addresses import compile_permit
from seamgate.upstream.connect import Connector
from seamgate.upstream.destination import OwnAddresses
from seamgate.upstream.forwarder import Forwarder
from seamgate.upstream.parent import Parent
from seamgate.upstream.pool import SessionPool
from seamgate.upstream.tls import UpstreamTls
from seamgate.watching import FileWatch, watched_files

log = structlog.get_logger("seamgate.gateway")

FLUSH_AFTER_S = 0.02
"""How long terminal records may wait in memory for company; a write-ahead record takes them along at once."""
SWEEP_EVERY_S = 1.0


class Gateway:
    """One running gateway. `async with Gateway(config) as gateway: ...`"""

    def __init__(
        self, config: Config, *, clock: Callable[[], float] = time.time, facts: Mapping[str, str] | None = None
    ) -> None:
        """Wire nothing yet; `facts` are what else the audit log should know of the start."""
        self.config = config
        self._facts = facts or {}
        self.seam: Seam
        self.connections = Connections(config.limits.connections, config.limits.guest_connections)
        self._shortage = Shortage(self.connections)
        self._tag = ""
        self._shared: SharedState | None = None
        self._clock = clock
        self._generation = 1
        self._left: tuple[LoadedPlugin, ...] = ()  # the newest of each name before those in force
        self._journal: AuditLog
        self._authorities: Authorities | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._flusher: asyncio.TimerHandle | None = None
        self._journal_was_healthy = True
        self._own = OwnAddresses(())
        self.guest_pool: GuestPool | None = None
        """The guests of the gateway itself, where there are some."""
        self._connector: Connector
        self._admin: AdminServer | None = None
        self._started_with = config
        self._roster = Roster(config.guests)
        self.listeners = self._make_listeners()
        self.started_at = 0.0
        self.reloads = ReloadCounts()
        self.reload_path: Path | None = None
        """The file that `reload_everywhere` loads; None: this gateway was not made of a file."""
        self._watch: FileWatch | None = None
        self.fixed_workers: int | None = None
        """How many workers the command line says, whatever the file says."""
        self._changing = asyncio.Lock()
        """Held during a reload; with workers also while one of them starts, so that each has what is in force."""
        self.gathered_metrics: Callable[[], list[Metric]] | None = None
        """Where the requests are other processes' work: the sums of what they count."""

    def _make_listeners(self) -> Listeners:
        return Listeners(self.connections, self._roster, self._own)

    def __repr__(self) -> str:
        return f"<Gateway {self.addresses} generation {self._generation}>"

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Entry -> address and port as bound."""
        return self.listeners.addresses

    @property
    def journal_path(self) -> Path:
        """Where the audit log is."""
        return self._journal.path

    @property
    def journal_stats(self) -> JournalStats:
        """What the audit log did so far."""
        return self._journal.stats

    @property
    def admin_address(self) -> str:
        """Where the admin listener is: `http://address:port`, `unix:/path`, or "" for nowhere."""
        return self._admin.address if self._admin is not None else ""

    @property
    def ca_expires_at(self) -> float | None:
        """Unix time until which the CA signs, or all those of guests do; None if no entry needs one."""
        return None if self._authorities is None else self._authorities.expires_at

    @property
    def ca_path(self) -> Path:
        """The CA certificate that guests have to trust, where they have none of their own."""
        return self.authorities.shared.files.certificate

    @property
    def authorities(self) -> Authorities:
        """What signs the certificates that guests see."""
        assert self._authorities is not None
        return self._authorities

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def go_on_after(self, generation: int) -> None:
        """Number what is loaded at the start as the one after this: a number means one thing in a whole journal."""
        self._generation = generation + 1

    # -- start -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything and listen.

        Raises:
            ConfigError: the configuration, a policy or the CA can't be used.
            PluginRejected: a plugin can't be vouched for.
            AuditError: the journal can't be opened.
            PrerequisiteMissing: a port can't be bound.
        """
        config = self.config
        self.connections.most = fit_connections(config.limits.connections)
        self._authorities = self._make_authorities(config) if config.entries.terminate else None
        pipeline = self._make_pipeline(config, self._generation)
        if self._authorities is not None:
            self._authorities.take(self._authorities.prepare(config, loaded_policies(pipeline)))
            self._authorities.write()
        tls = UpstreamTls(config.upstream_tls, base=config.base, alpn=config.http2.upstream_alpn)
        timeout_s = config.limits.connect_timeout_s
        self._connector = connector = Connector(tls, timeout_s=timeout_s, parent=self._make_parent(config))
        self._journal = self._open_journal(config)
        self.started_at = self.reloads.last_at = self._clock()
        self.seam = self._make_seam(config, pipeline, connector)
        try:
            await self.listeners.open(config, self.seam, self._authorities)
            if config.admin.listen:
                await self._listen_admin(config.admin.listen)
            await self._get_ready()
            await self._open_pool(config.entries)
        except BaseException:
            self._close()
            raise
        self._watch = self._watch_files()
        self._tell("start")
        self._sweep()

    def _make_authorities(self, config: Config) -> Authorities:
        return Authorities(config)

    def _open_journal(self, config: Config) -> AuditLog:
        return Journal(config.audit, clock=self._clock, on_pending=self._flush_soon, on_written=self._export_audit)

    def _make_seam(self, config: Config, pipeline: Pipeline, connector: Connector) -> Seam:
        seam = Seam(
            pipeline=pipeline,
            pool=SessionPool(connector, config.pool, response_timeout_s=config.limits.response_timeout_s),
            journal=self._journal,
            limits=config.limits,
            permit=compile_permit(config.permit_addresses),
            own=self._own,
            placeholders=PlaceholderIndex(config.credentials),
            query_mode=config.audit.query,
            clock=self._clock,
            tag=self._tag,
        )
        seam.guest_alpn = config.http2.guest_alpn
        seam.connector = connector
        connector.budget = seam.held
        return seam

    async def _get_ready(self) -> None:
        """Whatever else has to be there before the gateway says that it has started."""
        await self._load_secrets(self.seam.pipeline)

    async def _load_secrets(self, pipeline: Pipeline) -> None:
        """Have values of credentials at hand before a request could meet one that is not known."""
        now = self.seam.pipeline
        await load_values(pipeline.plugins, () if pipeline is now else newest(self._left, now.plugins))

    def _make_parent(self, config: Config) -> Parent | None:
        if config.upstream_proxy is None:
            return None
        return Parent(
            config.upstream_proxy,
            base=config.base,
            resolve=lambda name: self.seam.pipeline.resolve_name(name, []),
            refuse_own=self._own.check,
            secret_variables=secret_variables(config.credentials, config.guests, config.upstream_proxy),
        )

    def _make_pipeline(self, config: Config, generation: int, aside: Mapping[str, object] | None = None) -> Pipeline:
        plugins = load_plugins(config, generation, self._clock, self._shared, aside)
        budget_s, guest_plugin_s = config.limits.plugin_budget_s, config.limits.guest_plugin_s
        return Pipeline(plugins, generation=generation, budget_s=budget_s, guest_plugin_s=guest_plugin_s)

    async def _open_pool(self, entries: Entries) -> None:
        if entries.kvm is not None and entries.kvm.pool is not None:
            pool = GuestPool(self, self._roster, entries.kvm)
            await pool.open()
            self.guest_pool = pool

    async def _listen_admin(self, listen: str) -> None:
        self._admin = AdminServer(self, split_admin(listen))
        bound = await self._admin.start()
        if bound is not None:
            self._own.add(*bound)

    # -- running -----------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self._flush)

    def _flush(self) -> None:
        self._flusher = None
        self._journal.flush()
        self._watch_journal()

    def _watch_journal(self) -> None:
        """Say loudly that the audit log can't be written, so that everything is denied, and that it can be again."""
        healthy = self._journal.healthy
        if healthy is self._journal_was_healthy:
            return
        self._journal_was_healthy = healthy
        tell_journal(self._journal)

    def _sweep(self) -> None:
        """Once a second: whatever has been silent for too long."""
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_EVERY_S, self._sweep)
        now = time.monotonic()
        self.connections.sweep(now)
        self._shortage.check(now)
        self.seam.pool.sweep(now)
        if not self._journal.healthy:
            self._journal.flush()
        self._watch_journal()
        if self._watch is not None and self._watch.changed():
            self._follow_files()

    def _follow_files(self) -> None:
        """The files that make up the configuration have changed."""

        async def follow() -> None:
            with contextlib.suppress(SeamgateError):  # it has been told
                await self.reload_everywhere()

        spawn(follow(), name="reload")

    def _watch_files(self) -> FileWatch | None:
        if self.config.reload != "watch" or self.reload_path is None:
            return None
        paths = watched_files(self.reload_path, self.config)
        # The one that took note of the files before they were read misses nothing that was written meanwhile.
        return self._watch if self._watch is not None and self._watch.paths == paths else FileWatch(paths)

    def _export_audit(self, records: list[Entry]) -> None:
        """Hand written records to the exporters of the present generation."""
        if self.seam.pipeline.exports:
            self.seam.pipeline.export_audit([opened(record) for record in records])

    async def reload_everywhere(self) -> ReloadReport:
        """Load the configuration file again and take it over, in all processes of this gateway; or change nothing.

        Requests are carried meanwhile. Either way, it says what it did.

        Raises:
            SeamgateError: it can't be used; nothing has changed.
        """
        async with self._changing:
            with self._refusing():
                new = await self.prepare_aside(self._load_file(), self._generation + 1)
                report = self.take_over(new)
            await asyncio.to_thread(self._write_certificates)
            return report

    def _write_certificates(self) -> None:
        """Have those who hand out guests' CAs find what is in force now."""
        try:
            if self._authorities is not None:
                self._authorities.write()
        except ConfigError as error:
            log.error("a guest's CA can't be written or deleted; the next reload tries again", problem=error.message)

    def idle_because(self) -> str:
        """Return why no process of this gateway carries requests, "" if one does."""
        return ""

    def status(self) -> Status:
        """Return what this gateway is doing."""
        return status_of(self)

    async def refresh(self) -> None:
        """Have the numbers of all processes of this gateway at hand, for who asks how it does."""

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Tell of what keeps a new configuration from being used."""
        try:
            yield
        except SeamgateError as error:
            self.reloads.refuse(error.message)
            log.error("reload refused: the old configuration stays in force", problem=error.message)
            raise

    def _load_file(self) -> Config:
        if self._watch is not None:
            self._watch.take()
        if self.reload_path is None:
            raise ConfigError("this gateway was not started from a configuration file, so there is none to reload")
        config = load_config(self.reload_path)
        return config if self.fixed_workers is None else msgspec.structs.replace(config, workers=self.fixed_workers)

    def reload(self, config: Config) -> ReloadReport:
        """Take over a new configuration as far as that goes (`seamgate.reloading`), and end what it forbids.

        Raises:
            SeamgateError: the new one can't be used; nothing has changed.
        """
        report = self.take_over(self.prepare(config, self._generation + 1))
        self._write_certificates()
        return report

    async def prepare_aside(self, config: Config, generation: int) -> Prepared:
        """Like `prepare`, with what takes long in a thread, so that requests go on being carried.

        Raises:
            SeamgateError: it can't be used, or the gateway stops meanwhile.
        """
        aside = await asyncio.to_thread(load_aside, config, generation, self._clock)
        self._refuse_if_stopping()
        prepared = self._prepare(config, generation, aside)
        await self._load_secrets(prepared.pipeline)
        authorities = await asyncio.to_thread(self._prepare_authorities, prepared)
        self._refuse_if_stopping()
        return msgspec.structs.replace(prepared, authorities=authorities)

    def _refuse_if_stopping(self) -> None:
        if self.seam.draining or self.seam.retiring:
            raise SeamgateError("the gateway is stopping", reason=Reason.SHUTTING_DOWN)

    def prepare(self, config: Config, generation: int) -> Prepared:
        """Load all that a new configuration needs; nothing changes yet.

        Raises:
            SeamgateError: it can't be used.
        """
        prepared = self._prepare(config, generation)
        return msgspec.structs.replace(prepared, authorities=self._prepare_authorities(prepared))

    def _prepare_authorities(self, prepared: Prepared) -> NewAuthorities | None:
        if self._authorities is None:
            return None
        return self._authorities.prepare(prepared.config, loaded_policies(prepared.pipeline))

    def _prepare(self, config: Config, generation: int, aside: Mapping[str, object] | None = None) -> Prepared:
        """Return what `prepare` does but the CAs; with what `load_aside` returned, if it ran."""
        if self.guest_pool is not None:
            self.guest_pool.check(config)
        return Prepared(
            config,
            self._make_pipeline(config, generation, aside),
            PlaceholderIndex(config.credentials),
            compile_permit(config.permit_addresses),
            UpstreamTls(config.upstream_tls, base=config.base, alpn=config.http2.upstream_alpn),
            bound_by(config.credentials),
            Forwarder(config.dns),
            self._make_parent(config),
            self._roster.prepare(config.guests),
            None,
        )

    def take_over(self, new: Prepared) -> ReloadReport:
        """Put in force what was prepared, and end what it forbids. Nothing here fails."""
        self._swap(new)
        ended = self._end_forbidden(new)
        return self._reloaded(ended.exchanges, ended.tunnels)

    def _end_forbidden(self, new: Prepared) -> Revoked:
        """End what is under way and no longer allowed, and the connections of guests that are no more."""
        ended = revoke(self.seam, new.is_bound)
        self.connections.see_off({guest.id for guest in self.seam.pipeline.departed})
        return ended

    def _swap(self, new: Prepared) -> None:
        seam, config, pipeline = self.seam, new.config, new.pipeline
        pipeline.go_on_counting(seam.pipeline)
        self._left = newest(self._left, seam.pipeline.plugins)
        go_on(self._left, pipeline.plugins)
        pipeline.see_off((*seam.pipeline.departed, *self._roster.take(new.guests)))
        if self.guest_pool is not None:
            self.guest_pool.follow()
        self._generation = pipeline.generation
        seam.pipeline, seam.placeholders, seam.permit = pipeline, new.placeholders, new.permit
        seam.guest_alpn = config.http2.guest_alpn
        if self._authorities is not None and new.authorities is not None:
            self._authorities.take(new.authorities)
        self._connector.replace(new.tls, new.parent)
        self.listeners.follow(new.forwarder)
        self.config = config
        self._watch = self._watch_files()
        seam.pool.retire(pipeline.generation)
        self._tell("reload")

    def _reloaded(self, revoked_requests: int, revoked_tunnels: int) -> ReloadReport:
        waiting = waiting_sections(self._started_with, self.config)
        report = ReloadReport(self._generation, waiting, revoked_requests, revoked_tunnels)
        self.reloads.count(report, self._clock())
        if self._admin is not None:
            self._admin.renew()
        tell_reloaded(report, self.config)
        return report

    def _tell(self, event: Any) -> None:
        """Write a record about the gateway itself."""
        facts = self._facts if event == "start" else {}
        self._journal.append(gateway_record(event, self.config, self.seam.pipeline, self._clock(), facts))
        self._journal.flush()
        log.info("gateway", happened=event, generation=self._generation, **self._entry_facts())

    def _entry_facts(self) -> dict[str, str]:
        facts = {entry: f"{host}:{port}" for entry, (host, port) in self.addresses.items()}
        if self.guest_pool is not None:
            facts["kvm"] = f"unix:{self.guest_pool.path}"
        return facts if self._admin is None else {**facts, "admin": self._admin.address}

    # -- stop --------------------------------------------------------------------------------------------------------

    async def retire(self, *, grace_s: float = 10.0) -> None:
        """Stop in favour of a successor that has the listeners: who asks now is answered, and told to come again.

        Nobody is told that the gateway is stopping before the grace is over: there is one that goes on.
        """
        self.seam.retiring = True
        self._stop_listening()
        await see_off(self.connections)
        await let_finish(self.seam, self.connections, grace_s)
        self.seam.draining = True
        await self._end()

    def _stop_listening(self) -> None:
        self.listeners.stop_listening()
        if self.guest_pool is not None:
            self.guest_pool.stop_listening()

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """Take no new connection, let requests under way finish for a while, then close everything."""
        self.seam.draining = True
        self._stop_listening()
        await let_finish(self.seam, self.connections, grace_s)
        await self._end()

    async def _end(self) -> None:
        """Close what is left."""
        if self.guest_pool is not None:
            await self.guest_pool.close()
        self.listeners.close()
        await end_all(self.connections)
        self._tell("stop")
        self._close()

    def _close(self) -> None:
        self._stop_listening()
        self.listeners.close()
        if self._admin is not None:
            self._admin.close()
        for timer in (self._sweeper, self._flusher):
            if timer is not None:
                timer.cancel()
        self.connections.close()
        self.seam.pool.close()
        self._journal.close()
