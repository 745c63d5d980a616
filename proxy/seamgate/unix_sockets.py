"""Listening sockets in the file system that only this user and root can open: of the admin listener, of the pool."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Final

from seamgate.errors import PrerequisiteMissing

_MODE: Final = 0o600
_LONGEST_PATH: Final = 107
"""Source: unix(7), sun_path with its final zero."""


def bind_unix(path: Path, setting: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a bound socket at this path, in place of one that a gateway before left behind.

    Args:
        path: absolute.
        setting: where the path is from, for messages.
        kind: SOCK_STREAM or SOCK_SEQPACKET.

    Raises:
        PrerequisiteMissing: something else is there, or somebody listens.
        OSError: it can't be bound.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise PrerequisiteMissing(f"the path {path} is too long for a socket: {_LONGEST_PATH} bytes at most")
    _remove_stale(path, setting, kind)
    listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listening.bind(os.fspath(path))
        # Before it listens: until then nobody can connect, whatever the umask was.
        os.chmod(path, _MODE)
    except BaseException:
        listening.close()
        raise
    return listening


def _remove_stale(path: Path, setting: str, kind: socket.SocketKind) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise PrerequisiteMissing(f"{path} is there and is no socket: name another path under `{setting}`")
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            pass  # of another kind, or full: somebody has it
    raise PrerequisiteMissing(f"somebody listens on {path}: is another gateway running?")


def inode_of(path: str) -> tuple[int, int] | None:
    """Return what tells a socket's file from one that takes its place; None: there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def remove_unix(path: str, inode: tuple[int, int]) -> None:
    """Take a socket's file away if it is still that one."""
    if inode_of(path) == inode:
        with contextlib.suppress(OSError):
            os.unlink(path)
