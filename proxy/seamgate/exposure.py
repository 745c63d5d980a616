"""Finds set-ups that work and are not safe: anybody may pose as a guest, or write what the gateway obeys.

Called by `serve --check`, by a start, which logs what is found, and by `doctor -c`. Reads modes of files, nothing else.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from seamgate.config import Config, split_listen
from seamgate.policy.lint import Finding

_READABLE = stat.S_IRGRP | stat.S_IROTH
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def find_exposure(config: Config) -> Iterator[Finding]:
    """Return a warning for each thing that lets more people in than it says."""
    for code, message in (*_open_entries(config), *_wide_credentials(config), *_open_files(config)):
        yield Finding(code, "warning", message, config.source, 0)


def _open_entries(config: Config) -> Iterator[tuple[str, str]]:
    """Entries where nobody shows a token, though not only this machine reaches them."""
    for name in ("proxy", "base_url", "socks5", "dns"):
        entry = getattr(config.entries, name)
        if entry is not None and entry.guest and not _is_local(split_listen(entry.listen)[0]):
            message = (
                f"entries.{name} listens on {entry.listen}, and whoever reaches it is the guest {entry.guest!r},"
                " without a token: listen on a loopback address, or give guests tokens and leave `guest` out"
            )
            yield "open-entry", message


def _is_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _wide_credentials(config: Config) -> Iterator[tuple[str, str]]:
    for name, credential in config.credentials.items():
        if "**" in credential.hosts:
            message = f"credentials.{name} is bound to every host, a guest's own too: name the hosts that it is for"
            yield "wide-credential", message


def _open_files(config: Config) -> Iterator[tuple[str, str]]:
    """Files that decide and that others may write, and tokens that others may read."""
    for path in (config.source, *config.policies):
        if path and _mode(path) & _WRITABLE:
            yield "open-file", f"other users can write {path}, and so decide what is allowed: chmod go-w it"
    for name, guest in config.guests.items():
        if guest.token is not None and guest.token.file is not None:
            path = str(Path(guest.token.file).expanduser())
            if _mode(path) & (_READABLE | _WRITABLE):
                yield "open-token", f"other users can read {path}, the token of the guest {name!r}: chmod 600 it"


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0  # reading it will say why
