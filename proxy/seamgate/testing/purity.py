"""Watches what a piece of code does to the outside: files, sockets, processes, sleeping. By Python's audit events.

Used by `conformance`: a judge has to be pure. The hook of `sys.addaudithook` can't be taken away again, so there is
one for the process, which does nothing while nobody watches. Says what happened, prevents nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_WATCHED = {
    "open": "opened the file {0}",
    "socket.connect": "opened a connection",
    "socket.bind": "listened on a socket",
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
    "sqlite3.connect": "opened a database",
    "urllib.Request": "asked {0}",
}
# A module that is imported at its first use is no I/O of the plugin's own doing.
_IMPORTING = (".py", ".pyc", ".so", ".pth", ".egg-link")
_watching: dict[int, list[str]] = {}
_installed = False


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching or event not in _WATCHED:
        return
    seen = _watching.get(threading.get_ident())
    if seen is None:
        return
    first = str(arguments[0]) if arguments else ""
    if event == "open" and first.endswith(_IMPORTING):
        return
    seen.append(_WATCHED[event].format(first[:120]))


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collect what this thread does to the outside, as sentences."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_on_event)
    me, sleep = threading.get_ident(), time.sleep

    def heard_sleep(seconds: float) -> None:  # an audit event of its own from Python 3.13 on only
        if threading.get_ident() == me:
            seen.append("slept")
        sleep(seconds)

    seen = _watching[me] = []
    time.sleep = heard_sleep  # type: ignore[assignment]
    try:
        yield seen
    finally:
        time.sleep = sleep
        del _watching[me]
