"""Guests of the running gateway: microVMs that wait, and a socket where this user's programs become guests.

The gateway opens one where `entries: kvm: pool:` says so and closes it before its journal. `seamgate run --pool` is the
other end of the socket. Machines and processes are `seamgate_vmm`'s; here is who a guest is (one that `guests` names,
followed over reloads), what it may see of this machine, and what is counted. The gateway's own process has no KVM.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from cryptography.hazmat.primitives.serialization import Encoding

from seamgate import launch
from seamgate.config import Config, KvmEntry, KvmPool
from seamgate.entry.ring import RingGuest
from seamgate.entry.roster import Roster
from seamgate.errors import ConfigError, PrerequisiteMissing
from seamgate.flow import Guest
from seamgate.unix_sockets import bind_unix, inode_of, remove_unix

if TYPE_CHECKING:
    from seamgate.gateway import Gateway
    from seamgate_vmm.outcome import Outcome
    from seamgate_vmm.pool import Pool
    from seamgate_vmm.pool_server import Admission, PoolServer
    from seamgate_vmm.pooled import PooledGuest

log = structlog.get_logger("seamgate.pool")

_SETTING = "entries: kvm: pool: listen:"
STATES: Final[tuple[str, ...]] = ("warm", "assigned", "idle", "parked", "hibernated")
"""As `seamgate_vmm.census` has them, for metrics of gateways that can't load it."""
SOURCES: Final[tuple[str, ...]] = ("warm", "new", "hibernated")


class GuestPool:
    """See the module.

    Args:
        gateway: started but for this.
        roster: its guests.
        entry: with a pool.

    Attributes:
        path: of its socket.
    """

    def __init__(self, gateway: Gateway, roster: Roster, entry: KvmEntry) -> None:
        assert entry.pool is not None
        self._gateway, self._roster, self._entry = gateway, roster, entry
        self._config: KvmPool = entry.pool
        self.path = Path(self._config.listen.removeprefix("unix:"))
        self._folders = [Path(folder) for folder in self._config.folders]
        self._hidden = frozenset(self._secrets(gateway.config))
        self._inode: tuple[int, int] | None = None
        self._pool: Pool | None = None
        self._server: PoolServer | None = None
        self._held: dict[int, _Held] = {}

    # -- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Restore the template, have machines made warm, and take programs.

        Raises:
            PrerequisiteMissing: this machine has no KVM, or the socket can't be had.
            ConfigError: a folder is not there, or the template can't be used or made.
        """
        for folder in self._folders:
            if not folder.is_dir():
                raise ConfigError(f"entries: kvm: pool: folders: {folder} is no folder")
        try:
            from seamgate_vmm.errors import KvmUnusable, TemplateError, VmmError
        except ImportError as error:
            raise PrerequisiteMissing("the C parts of microVMs are not built for this machine: `make build`") from error
        try:
            await self._open()
        except KvmUnusable as error:
            raise PrerequisiteMissing(f"entries: kvm: pool: {error}") from error
        except TemplateError as error:
            raise ConfigError(f"entries: kvm: pool: template: {error}") from error
        except VmmError as error:
            raise PrerequisiteMissing(f"entries: kvm: pool: {error}") from error

    async def _open(self) -> None:
        from seamgate_vmm.pool_server import PoolServer
        from seamgate_vmm.runner import ensure_template

        template = await asyncio.to_thread(ensure_template, self._config.template)
        pool = self._make_pool(template)
        try:
            await pool.open()
            listening = self._bind()
        except BaseException:
            await pool.close()
            raise
        self._pool = pool
        self._server = PoolServer(pool, self._admit, most=self._config.most, folders=self._folders)
        self._server.serve(listening)
        log.info("guests can be handed in", socket=str(self.path), tier=pool.tier, warm=self._config.warm)

    def _make_pool(self, template: Path) -> Pool:
        from seamgate_vmm.idle import IdlePolicy
        from seamgate_vmm.image import Mount
        from seamgate_vmm.pool import Pool

        idle = self._entry.idle
        mounts = [Mount(str(folder), str(folder)) for folder in self._folders]
        if not self._gateway.config.ca.each_guest:  # else each gets its own when it comes (`_own_ca`)
            mounts += [Mount(place, str(self._gateway.ca_path)) for place in launch.TRUSTED_IN_MICROVM]
        return Pool(
            template,
            mounts=mounts,
            hide=sorted(self._hidden),
            idle=IdlePolicy(idle.trim_s, idle.park_s, idle.hibernate_s),
            keep_warm=self._config.warm,
            on_problem=lambda problem: log.error("no machine can be made warm", problem=problem),
        )

    def _bind(self) -> socket.socket:
        try:
            listening = bind_unix(self.path, _SETTING, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise PrerequisiteMissing(
                f"the pool can't have the socket {self.path}: {error.strerror or error}; choose another place"
            ) from error
        self._inode = inode_of(str(self.path))
        return listening

    def stop_listening(self) -> None:
        """Take no more programs; guests go on."""
        if self._server is not None:
            self._server.stop_listening()
        if self._inode is not None:
            remove_unix(str(self.path), self._inode)
            self._inode = None

    async def close(self) -> None:
        """End all guests, each with its record, and whoever waits for one is told."""
        self.stop_listening()
        if self._pool is not None and self._server is not None:
            await self._pool.close()
            await self._server.close()

    # -- guests ------------------------------------------------------------------------------------------------------

    def _admit(self, name: str) -> Admission:
        """Return what a guest of this name gets. Raises: seamgate_vmm.pool_server.Refused."""
        from seamgate_vmm.names import NameTable
        from seamgate_vmm.pool_server import Admission, Refused

        guest = self._roster.hosted(name)
        if guest is None:
            known = ", ".join(self._roster.names) or "none"
            raise Refused(f"{name!r} is none of the guests that the gateway's configuration names: {known}")
        held = _Held(name, RingGuest(self._gateway, guest, self._entry))
        ring = held.ring

        def begun(pooled: PooledGuest) -> None:
            held.pooled = pooled
            self._held[pooled.number] = held

        def ended(outcome: Outcome) -> None:
            if held.pooled is not None:
                self._held.pop(held.pooled.number, None)
            ring.ended(outcome)

        names, own = NameTable(ring.judge_name), self._own_ca(guest)
        return Admission(ring.accept, names, ring.turn, self._environment, ring.changed, begun, ended, own)

    def _own_ca(self, guest: Guest) -> tuple[Sequence[str], bytes] | None:
        """Return where a guest that has a CA of its own finds it, and what it finds; None: it is in all of them."""
        if not self._gateway.config.ca.each_guest:
            return None
        certificate = self._gateway.authorities.of(guest).certificate
        return launch.TRUSTED_IN_MICROVM, certificate.public_bytes(Encoding.PEM)

    def _environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        return launch.microvm_environment(self._gateway.config, environ)

    # -- reload ------------------------------------------------------------------------------------------------------

    def _secrets(self, config: Config) -> list[Path]:
        return launch.secret_files(config, self._gateway.journal_path)

    def check(self, config: Config) -> None:
        """Refuse a configuration whose secrets guests could read: what is hidden from them is so from their start.

        Raises:
            ConfigError: with the file.
        """
        shown = [folder.resolve() for folder in self._folders]
        for path in self._secrets(config):
            if path not in self._hidden and any(_leads_into(path, folder) for folder in shown):
                raise ConfigError(
                    f"guests of the running pool could read {path}: put it outside of `entries: kvm: pool: folders:`, "
                    "or restart the gateway"
                )

    def follow(self) -> None:
        """A reload has changed who the guests are: those that are no more end, the others go on as what they are."""
        for held in list(self._held.values()):
            guest = self._roster.hosted(held.name)
            if guest is not None:
                held.ring.is_now(guest)
            elif held.pooled is not None:
                held.pooled.stop(detail="a reload took its guest away")

    # -- counts ------------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, int]:
        """Return how many guests and waiting machines there are, by STATES."""
        return dict.fromkeys(STATES, 0) if self._pool is None else self._pool.states()

    def restores(self) -> Mapping[str, int]:
        """Return how many guests were restored, by SOURCES."""
        return {} if self._pool is None else self._pool.census.restores

    def ends(self) -> Mapping[str, int]:
        """Return how many guests ended, by reason."""
        return {} if self._pool is None else self._pool.census.ends


class _Held:
    """A guest that runs, or is about to."""

    def __init__(self, name: str, ring: RingGuest) -> None:
        self.name, self.ring = name, ring
        self.pooled: PooledGuest | None = None


def _leads_into(path: Path, folder: Path) -> bool:
    """Return whether a name is in a folder, as it is written or by what its links mean."""
    return path.is_relative_to(folder) or path.resolve().is_relative_to(folder)
