"""Watches what a piece of code does to the outside: files, sockets, processes, threads, the environment, sleeping.

Used by `conformance`: a judge has to be pure, and a plugin leaves alone what the whole gateway shares. Tells the deeds
of the thread that watches from those of threads that were not there before. Says what happened, prevents nothing.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

import msgspec

from seamgate.testing.events import events

_WATCHED = {
    "open": "opened the file {0}",
    "socket.connect": "opened a connection",
    "socket.bind": "listened on a socket",
    "socket.sendto": "sent a packet",
    "socket.getaddrinfo": "looked up the name {0}",
    "socket.gethostbyname": "looked up the name {0}",
    "subprocess.Popen": "ran a program ({0})",
    "os.system": "ran a shell command",
    "os.posix_spawn": "ran a program ({0})",
    "os.exec": "replaced the process",
    "os.fork": "forked",
    "os.remove": "deleted the file {0}",
    "os.rename": "renamed the file {0}",
    "os.mkdir": "made the folder {0}",
    "os.putenv": "set the environment variable {0}",
    "os.unsetenv": "took away the environment variable {0}",
    "os.chdir": "changed the working directory",
    "sqlite3.connect": "opened a database",
    "urllib.Request": "asked {0}",
}
OF_THE_PROCESS: Final = frozenset({"os.putenv", "os.unsetenv", "os.chdir"})
"""Deeds that change what all threads share."""
# A module that is imported at its first use is no I/O of the plugin's own doing.
_IMPORTING = (".py", ".pyc", ".so", ".pth", ".egg-link")


class Deed(msgspec.Struct, frozen=True):
    """One thing that was done.

    Attributes:
        event: the audit event's name.
        told: as a clause: "opened the file /etc/hosts".
        here: whether by the thread that watches.
    """

    event: str
    told: str
    here: bool


def known_threads() -> frozenset[int]:
    """Return those that are alive now: what they do is not the doing of a plugin that is made later."""
    return frozenset([each.ident for each in threading.enumerate() if each.ident is not None])


def let_others_run(known: frozenset[int], most_s: float) -> None:
    """Wait until threads that are not among these have ended, or for so long; not at all where there are none."""
    until = monotonic() + most_s
    for thread in threading.enumerate():
        if thread.ident not in known:
            thread.join(max(0.0, until - monotonic()))


@contextmanager
def watched(known: frozenset[int]) -> Iterator[list[Deed]]:
    """Collect what this thread does to the outside, and what threads do that are not among the known ones."""
    me = threading.get_ident()
    seen: list[Deed] = []

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED:
            return
        ident = threading.get_ident()
        first = _text(arguments[0]) if arguments else ""
        if (ident != me and ident in known) or (event == "open" and first.endswith(_IMPORTING)):
            return
        told = _WATCHED[event].format(first[:120])
        seen.append(Deed(event, told if ident == me else f"{told} in a thread of its own", ident == me))

    def instead(function: Callable[..., Any], event: str, told: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == me:
                seen.append(Deed(event, told, here=True))
            return function(*arguments, **named)

        return called

    # Of these there are audit events in later versions of Python only.
    sleep, start = time.sleep, threading.Thread.start
    time.sleep = instead(sleep, "time.sleep", "slept")
    threading.Thread.start = instead(start, "threading.Thread.start", "started a thread")  # type: ignore[method-assign]
    try:
        with events(heard):
            yield seen
    finally:
        time.sleep, threading.Thread.start = sleep, start  # type: ignore[method-assign]


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, bytes) else str(value)
