"""What a gateway runs out of, told in its log: connections that are refused, descriptors that are not there.

Asked once a second by `Gateway`. Metrics count them too, but whoever reads a log looks there first. One line at most in
`QUIET_S` for each, so that a flood of connections is no flood of lines. Refuses nothing itself.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

import structlog

from seamgate.entry.connections import Connections

log = structlog.get_logger("seamgate.shortage")

QUIET_S: Final = 10.0


class Shortage:
    """Of one gateway, or of one of its workers."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._told_refused = 0
        self._refused_at = self._exhausted_at = -QUIET_S
        self._exhausted = False

    def check(self, now: float) -> None:
        """Say what is missing since the last time.

        Args:
            now: monotonic seconds.
        """
        refused = self._connections.refused_total - self._told_refused
        if refused and now - self._refused_at >= QUIET_S:
            self._refused_at, self._told_refused = now, self._connections.refused_total
            most, share = self._connections.most, self._connections.guest_share
            log.warning(
                "connections were refused", refused=refused, open=self._connections.open, limit=most, share=share
            )
        if not descriptors_left():
            if now - self._exhausted_at >= QUIET_S:
                self._exhausted_at, self._exhausted = now, True
                open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                log.error("no descriptor is left: connections are dropped and none is dialled", open_files=open_files)
        elif self._exhausted:
            self._exhausted = False
            log.info("there are descriptors again")


def descriptors_left() -> bool:
    """Whether a file could be opened: the accept of a connection fails unseen (libuv drops what it can't take)."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
