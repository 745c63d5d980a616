"""Messages between the pool and its workers: JSON objects with descriptors beside them, over a local packet socket.

A message is a dict with `op`. Both ends are this package; still, a worker runs hostile guests, so that what it sends is
checked where it is used, and its size is bounded here.
"""

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

_MAX_MESSAGE = 160_000  # under the default send buffer, so that a packet always fits
_MAX_FDS = 8


class Closed(Exception):
    """The other end is gone."""


class Channel:
    """One end of a packet socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    @classmethod
    def pair(cls) -> "tuple[Channel, Channel]":
        """Return both ends of a new channel."""
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(a), cls(b)

    def fileno(self) -> int:
        """Return the descriptor, for a poller."""
        return self.sock.fileno()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message. Raises: Closed; ValueError if it is too long."""
        data = json.dumps(message).encode("utf-8", "surrogatepass")
        if len(data) > _MAX_MESSAGE:
            raise ValueError(f"a message of {len(data)} bytes; arguments and environment are too long")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def receive(self, *, wait: bool = True) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and its descriptors.

        Raises: Closed; BlockingIOError if there is none and not `wait`.
        """
        how = socket.MSG_CMSG_CLOEXEC if wait else socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(_MAX_MESSAGE + 1, socket.CMSG_SPACE(4 * _MAX_FDS), how)
        except ConnectionResetError as error:
            raise Closed from error
        fds = array.array("i")
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
        try:
            message = json.loads(data) if data and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) else None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            for fd in fds:
                os.close(fd)
            raise Closed
        return message, list(fds)

    def close(self) -> None:
        """Close this end."""
        self.sock.close()
