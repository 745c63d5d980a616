"""How many connections this process can have: its limit of open files, raised as far as it is needed and permitted.

Called once by the gateway at its start. Each guest's connection may need a second one, to an upstream; a process that
has no descriptor left can't accept, dial, or rotate its journal.
"""

from __future__ import annotations

import resource
import socket
from typing import Final

import structlog

log = structlog.get_logger("seamgate.descriptors")

SPARE: Final = 256
"""For everything that is no connection: journal, listeners, libraries, certificates while they are loaded."""


def fit_connections(wanted: int) -> int:
    """Raise the soft limit of open files (RLIMIT_NOFILE) to what so many connections need, at most to the hard one.

    Only as far as that: programs that this process starts inherit it, and some walk over all descriptors there may be.

    Returns:
        `wanted`, or what fits into the limit; then the log says so, as a warning where that is less than half.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 2 * wanted + SPARE
    if soft != resource.RLIM_INFINITY and soft < need:
        raised = need if hard == resource.RLIM_INFINITY else min(need, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError):
            pass  # some systems have a lower maximum than they say
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    fitting = max(1, (soft - SPARE) // 2)
    tell = log.warning if fitting < wanted // 2 else log.info
    tell(
        "fewer connections than configured: the limit of open files is too low",
        connections=fitting,
        configured=wanted,
        open_files=soft,
        needed=need,
    )
    return fitting


def listener_at(listener: socket.socket | None, host: str, port: int) -> socket.socket | None:
    """Return a listener that was inherited if it is where the configuration says now; close it if it is not.

    Args:
        listener: of the process before this one, or None.
        host, port: of the entry; port 0: wherever it was.
    """
    if listener is not None and (listener.getsockname()[0] != host or port not in (0, listener.getsockname()[1])):
        listener.close()
        return None
    return listener
