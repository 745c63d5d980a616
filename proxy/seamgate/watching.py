"""Notices that files changed: for `reload: watch`, off by default, looked at once a second by the gateway.

By polling, because a handful of `stat` calls costs nothing and sees what inotify does not: files that are replaced, are
behind a symbolic link (as Kubernetes mounts them) or lie on a network. A change counts once it has been still for a
whole look, so that a file is not read while it is being written. Reads no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from seamgate.config import Config
from seamgate.places import anchored

Fingerprint: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]
"""Of each file: device, inode, size, time of its last change; None if it is not there."""


class FileWatch:
    """Some files, and how they were when they were last taken into account."""

    _taken: Fingerprint
    _last: Fingerprint

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = tuple(paths)
        self.take()

    def __repr__(self) -> str:
        return f"<FileWatch {', '.join(Path(path).name for path in self.paths)}>"

    def changed(self) -> bool:
        """Return whether the files differ from when this last said so, and have been still since the call before."""
        now = self._look()
        still, self._last = now == self._last, now
        if not still or now == self._taken:
            return False
        self._taken = now
        return True

    def take(self) -> None:
        """The files are about to be read: what they are now is taken into account, what comes after is a change."""
        self._taken = self._last = self._look()

    def _look(self) -> Fingerprint:
        return tuple([_fingerprint(path) for path in self.paths])


def watched_files(source: Path, config: Config) -> tuple[str, ...]:
    """Return what a reload of this configuration reads: itself, policies, guests' tokens, certificates for upstreams.

    Not the files of credentials, which are read again by themselves.
    """
    tokens = [guest.token.file for guest in config.guests.values() if guest.token is not None]
    return (str(source), *config.policies, *filter(None, tokens), *_certificates(config))


def _certificates(config: Config) -> Iterator[str]:
    tls = config.upstream_tls
    names = [tls.trust_store if tls.trust_store != "system" else ""]
    names += [config.upstream_proxy.ca] if config.upstream_proxy is not None else []
    for origin in tls.origins:
        own = origin.client_certificate
        names += [origin.ca, *((own.certificate, own.key) if own is not None else ())]
    yield from (anchored(name, config.base) for name in names if name)


def _fingerprint(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
