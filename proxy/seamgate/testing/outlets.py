"""Keeps what leaves this process by ways that a plugin has of its own: sockets, programs, files, names that are asked.

Used by `checks_secrets`: where a plugin mails, posts or stores what it was shown, that stands here, before TLS makes it
unreadable. What a plugin writes through an event loop of its own in C, or by its own native code, is not seen.
"""

from __future__ import annotations

import functools
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from seamgate.testing.events import events

_MOST_BYTES: Final = 8 * 1024 * 1024
"""So much is kept: the requests of a check are small, and so is what a plugin could tell of them."""
_TELLING: Final = {
    "subprocess.Popen": "the arguments of a program that it ran",
    "os.system": "a shell command that it ran",
    "os.exec": "the arguments of a program that it ran",
    "os.posix_spawn": "the arguments of a program that it ran",
    "os.putenv": "the environment",
    "os.mkdir": "the name of a folder that it made",
    "os.rename": "the name of a file that it renamed",
    "os.symlink": "a link that it made",
    "socket.getaddrinfo": "a name that it looked up",
    "socket.gethostbyname": "a name that it looked up",
    "sqlite3.connect": "the name of a database that it opened",
    "syslog.syslog": "the system's log",
    "urllib.Request": "a request that it made",
}
# How Python code writes to a connection: to the system, or to TLS.
_SENDING: Final = (
    (socket.socket, ("send", "sendall", "sendto", "sendmsg")),
    (ssl.SSLSocket, ("send", "sendall", "write")),
    (ssl.SSLObject, ("write",)),
)


class Outlets:
    """What left. State: `_written` are the files that were opened for writing."""

    def __init__(self) -> None:
        self._told: list[tuple[str, bytes]] = []
        self._kept_bytes = 0
        self._written: set[str] = set()

    def all(self) -> Iterator[tuple[str, bytes]]:
        """Yield (where, what), files as they are now."""
        yield from self._told
        for name in sorted(self._written):
            path = Path(name)
            if path.is_file():
                yield "a file that it wrote", path.read_bytes()[:_MOST_BYTES]

    def keep(self, where: str, what: bytes) -> None:
        """Keep what leaves there, up to a limit."""
        if self._kept_bytes < _MOST_BYTES:
            self._kept_bytes += len(what)
            self._told.append((where, what))

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Keep what an audit event says."""
        where = _TELLING.get(event)
        if where is not None:
            self.keep(where, _bytes(arguments))
        elif event == "open" and isinstance(arguments[0], str | bytes) and isinstance(arguments[2], int):
            self.keep("the name of a file that it opened", os.fsencode(arguments[0]))
            if arguments[2] & (os.O_WRONLY | os.O_RDWR):
                self._written.add(os.fsdecode(arguments[0]))


@contextmanager
def outlets() -> Iterator[Outlets]:
    """Keep what leaves this process meanwhile, by all threads."""
    found = Outlets()
    before: list[tuple[type, str, Any]] = []
    for kind, names in _SENDING:
        for name in names:
            before.append((kind, name, vars(kind).get(name)))
            setattr(kind, name, _heard(getattr(kind, name), found))
    try:
        with events(found.on_event):
            yield found
    finally:
        for kind, name, own in reversed(before):
            delattr(kind, name) if own is None else setattr(kind, name, own)


def _heard(function: Callable[..., Any], found: Outlets) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(self: Any, data: Any, *more: Any, **named: Any) -> Any:
        found.keep("what it sent over a connection", _bytes(data))
        return function(self, data, *more, **named)

    return called


def _bytes(value: object) -> bytes:
    """Return everything that stands in a value, one after the other: arguments of calls, buffers, texts."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return b"\n".join([_bytes(each) for pair in value.items() for each in pair])
    if isinstance(value, tuple | list):
        return b"\n".join([_bytes(each) for each in value])
    return str(value).encode("utf-8", "surrogateescape")
