"""Which CA signs for which guest: everybody's, or one of its own, limited to what its policy could let it reach.

One `Authorities` per gateway. Whoever terminates a guest's TLS asks it for that guest's CA: the guest is always known
by then (from CONNECT, a login, its namespace or its ring). One that is not configured gets none, so its TLS fails. A
reload prepares (makes the CA of a guest that is new, and what those need whose policy changed), which may fail and
changes nothing for anybody, and takes over, which can't fail. Reads and writes the CA's folder; never policy files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from seamgate.ca.leaf import CertificateAuthority, LeafCache, LeafForbidden, load_authority
from seamgate.ca.store import (
    NO_HOST,
    CaFiles,
    CaMaterial,
    ca_directory,
    files_of,
    fingerprint,
    init_ca,
    is_ca_there,
    load_ca,
    permitted_names,
    remove_ca,
    renew_ca,
    write_certificate,
)
from seamgate.config import BUILTIN_PLUGINS, Config
from seamgate.errors import ConfigError
from seamgate.flow import Guest
from seamgate.policy.closed import closed_hosts
from seamgate.policy.model import Policy

_AT_ONCE: Final = 8
_BUILTIN: Final = frozenset(plugin.name for plugin in BUILTIN_PLUGINS)
_Limits = tuple[str, ...] | None


def signing_limits(
    config: Config, policies: Iterable[Policy], guests: Mapping[str, Mapping[str, str]]
) -> dict[str, _Limits]:
    """Return for each guest the domains that its CA may sign for: they and what is below them hold all it may reach.

    Args:
        config: says which plugins there are: one that is not built in may allow what no policy does.
        policies: all that are in force.
        guests: name -> labels.

    Returns:
        None for a guest whose list is open; never an empty list, which would be no limit.
    """
    if not {plugin.name for plugin in config.plugins} <= _BUILTIN:
        return dict.fromkeys(guests)
    policies, known = tuple(policies), dict[tuple[tuple[str, str], ...], _Limits]()
    limits = {}
    for name, labels in guests.items():
        key = tuple(sorted(labels.items()))
        if key not in known:
            domains = closed_hosts(policies, labels)
            known[key] = None if domains is None else domains or (NO_HOST,)
        limits[name] = known[key]
    return limits


class NewAuthorities(msgspec.Struct, frozen=True, eq=False):
    """What `Authorities.take` puts in force, and the certificates that are to be written then."""

    by_guest: dict[str, CertificateAuthority]
    unwritten: list[CaMaterial]


class Authorities:
    """See the module.

    Args:
        config: its section `ca` holds until the next start.
        makes: whether this process makes CAs that are missing and writes certificates: one of a gateway does.

    Raises:
        ConfigError: the CA that all guests share is missing or can't be used.
    """

    def __init__(self, config: Config, *, makes: bool = True) -> None:
        self._config = config.ca
        self._directory: Path = ca_directory(config.ca, config.base)
        self._makes = makes
        self._cache = LeafCache(config.ca.leaf_cache)
        self._by_guest: dict[str, CertificateAuthority] = {}
        self._unwritten: list[CaMaterial] = []
        self._removed: list[str] = []
        self._shared = None if config.ca.each_guest else load_authority(config.ca, base=config.base)

    def __repr__(self) -> str:
        return f"<Authorities {self._shared if self._shared is not None else ', '.join(self._by_guest)}>"

    @property
    def shared(self) -> CertificateAuthority:
        """The CA that all guests trust, where they have none of their own."""
        assert self._shared is not None
        return self._shared

    @property
    def expires_at(self) -> float | None:
        """Unix time until which all of them sign; None: there is none."""
        return min((each.certificate.not_valid_after_utc.timestamp() for each in self._all()), default=None)

    @property
    def identity(self) -> str:
        """What is the same in two processes whose guests trust the same."""
        if self._shared is not None:
            return fingerprint(self._shared.certificate)
        keys = [f"{name}={each.key_id}" for name, each in sorted(self._by_guest.items())]
        return hashlib.sha256("\n".join(keys).encode()).hexdigest()

    def _all(self) -> list[CertificateAuthority]:
        return [*self._by_guest.values()] if self._shared is None else [self._shared]

    def of(self, guest: Guest) -> CertificateAuthority:
        """Return the CA that this guest trusts.

        Raises:
            LeafForbidden: it has none, and guests here share none.
        """
        found = self._shared if self._shared is not None else self._by_guest.get(guest.id)
        if found is None:
            raise LeafForbidden(f"the guest {guest.id!r} has no CA, and `ca.each_guest` lets it share none")
        return found

    def prepare(self, config: Config, policies: Iterable[Policy]) -> NewAuthorities:
        """Return the CAs for a configuration's guests. Those that go on with the same limits are the same objects.

        Args:
            config: the new one.
            policies: that it loads.

        Raises:
            ConfigError: one can't be made, read or trusted.
        """
        if self._shared is not None:
            return NewAuthorities({}, [])
        by_guest: dict[str, CertificateAuthority] = {}
        unwritten: list[CaMaterial] = []
        wanted = signing_limits(config, policies, {name: guest.labels for name, guest in config.guests.items()})
        new = [name for name in wanted if name not in self._by_guest]
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # what takes long is the disk, in making them
            materials = dict(zip(new, pool.map(lambda name: self._material(name, wanted[name]), new), strict=True))
        for name, limits in wanted.items():
            known = self._by_guest.get(name)
            material = materials[name] if known is None else known.material
            if _limits(material) != limits:
                material, known = renew_ca(material, limits or ()), None
                unwritten.append(material)
            if known is None:
                known = CertificateAuthority(material, leaf_hours=self._config.leaf_hours, leaf_cache=self._cache)
            by_guest[name] = known
        return NewAuthorities(by_guest, unwritten)

    def _material(self, guest: str, limits: _Limits) -> CaMaterial:
        try:
            if self._makes and not is_ca_there(files_of(self._directory, guest)):
                return init_ca(self._directory, guest=guest, names=limits or ())
            return load_ca(self._directory, guest=guest)
        except ConfigError as error:
            raise ConfigError(f"guests: the CA of {guest!r}: {error.message}") from None

    def take(self, new: NewAuthorities) -> None:
        """Put what was prepared in force."""
        self._removed = [name for name in (*self._removed, *self._by_guest) if name not in new.by_guest]
        self._by_guest = new.by_guest
        self._cache.replace(new.by_guest.values())
        in_force = {id(each.material) for each in new.by_guest.values()}
        self._unwritten = [each for each in (*self._unwritten, *new.unwritten) if id(each) in in_force]

    def write(self) -> None:
        """Write the certificates of CAs whose limits changed, for those who hand them out; delete CAs of guests that a
        reload took away, so that nobody has their keys. For a thread: it waits.

        Raises:
            ConfigError: one can't be written or deleted: then the next call tries again, and guests go on with the one
                they have.
        """
        while self._makes and self._removed:
            remove_ca(files_of(self._directory, self._removed[0]))
            self._removed.pop(0)
        while self._makes and self._unwritten:
            write_certificate(self._unwritten[0])
            self._unwritten.pop(0)


def check_authorities(config: Config) -> None:
    """Load what there is of the CAs that a start needs; make nothing.

    Raises:
        ConfigError: one is missing that is not made by itself, or can't be used.
    """
    if not config.ca.each_guest:
        load_authority(config.ca, base=config.base)
        return
    directory = ca_directory(config.ca, config.base)
    for guest in config.guests:
        files = files_of(directory, guest)
        if is_ca_there(files):
            load_ca(directory, guest=guest)
        else:
            _check_makeable(files)


def _check_makeable(files: CaFiles) -> None:
    """Raise ConfigError unless a start could make a CA there."""
    folder = files.directory.absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"the CA of the guest {files.guest!r} can't be made: {folder} is no folder that can be written to; give it"
            " to the gateway's user, or name another `ca: dir:`"
        )


def _limits(material: CaMaterial) -> _Limits:
    names = permitted_names(material.certificate)
    return None if names is None else tuple(sorted(names))
