"""What a name of a file in the configuration means: one absolute place without `..`, the same for all who use it.

Whoever opens a file, whoever hides it from guests and whoever mounts it for them compares names: there must be one.
Links stay in the name, and are followed at each use, so that what is rotated behind one is found. Only those before a
`..` are followed here: as for the kernel, it is the folder above that which the link leads to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from seamgate.config import ConfigFile, Entries
    from seamgate.upstream.parent import UpstreamProxyConfig
    from seamgate.upstream.tls import OriginTls, UpstreamTlsConfig

_UNIX = "unix:"
FILE_OPTION = "_file"
"""How options of plugins end that name a file with a secret."""


def anchored(name: str | Path, base: Path = Path()) -> str:
    """Return the place that a name means: from `base`, which is the configuration's folder, with `~` for a home."""
    place = "/"
    for part in os.path.join(os.getcwd(), base, os.path.expanduser(name)).split("/"):
        if part == "..":
            place = os.path.dirname(_real(place))
        elif part not in ("", "."):
            place = os.path.join(place, part)
    return place


def _real(place: str) -> str:
    try:
        return os.path.realpath(place)
    except ValueError:  # a NUL in it: whoever opens it says so
        return place


def _if_given(name: str, base: Path) -> str:
    return anchored(name, base) if name else name


def anchor(written: ConfigFile, base: Path) -> ConfigFile:
    """Return the file with every name of a file as the place that it means."""
    replace = msgspec.structs.replace
    admin, tls, parent = written.admin, written.upstream_tls, written.upstream_proxy
    return replace(
        written,
        entries=_entries(written.entries, base),
        policies=tuple(anchored(name, base) for name in written.policies),
        credentials={
            name: replace(each, source=_source(each.source, base)) for name, each in written.credentials.items()
        },
        guests={
            name: each if each.token is None else replace(each, token=_source(each.token, base))
            for name, each in written.guests.items()
        },
        plugins=tuple(
            each if isinstance(each, str) else replace(each, options=_options(each.options, base))
            for each in written.plugins
        ),
        ca=replace(written.ca, dir=_if_given(written.ca.dir, base)),
        audit=replace(written.audit, path=_if_given(written.audit.path, base)),
        admin=replace(admin, listen=_listen(admin.listen, base)),
        upstream_tls=_tls(tls, base),
        upstream_proxy=None if parent is None else _parent(parent, base),
    )


def _listen(place: str, base: Path) -> str:
    return _UNIX + anchored(place.removeprefix(_UNIX), base) if place.startswith(_UNIX) else place


def _entries(entries: Entries, base: Path) -> Entries:
    if entries.kvm is None or entries.kvm.pool is None:
        return entries
    pool, replace = entries.kvm.pool, msgspec.structs.replace
    folders = tuple(anchored(folder, base) for folder in pool.folders)
    pool = replace(pool, listen=_listen(pool.listen, base), folders=folders)
    return replace(entries, kvm=replace(entries.kvm, pool=pool))


def _source(source: Any, base: Path) -> Any:
    """Anchor the file of a `CredentialSource` or `TokenSource`, if it is one."""
    return source if source.file is None else msgspec.structs.replace(source, file=anchored(source.file, base))


def _options(options: Mapping[str, Any], base: Path) -> dict[str, Any]:
    return {
        name: anchored(value, base) if name.endswith(FILE_OPTION) and isinstance(value, str) and value else value
        for name, value in options.items()
    }


def _tls(tls: UpstreamTlsConfig, base: Path) -> UpstreamTlsConfig:
    store = tls.trust_store
    return msgspec.structs.replace(
        tls,
        trust_store=store if store == "system" else _if_given(store, base),
        origins=tuple(_origin(each, base) for each in tls.origins),
    )


def _origin(origin: OriginTls, base: Path) -> OriginTls:
    own, replace = origin.client_certificate, msgspec.structs.replace
    if own is not None:
        own = replace(own, certificate=_if_given(own.certificate, base), key=_if_given(own.key, base))
    return replace(origin, ca=_if_given(origin.ca, base), client_certificate=own)


def _parent(parent: UpstreamProxyConfig, base: Path) -> UpstreamProxyConfig:
    login, replace = parent.login, msgspec.structs.replace
    if login is not None:
        login = replace(login, password=_source(login.password, base))
    return replace(parent, ca=_if_given(parent.ca, base), login=login)
