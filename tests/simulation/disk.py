"""The disk under the journal: full for a while, or slow, or cutting a write short. Everything else writes as ever."""

from __future__ import annotations

import errno
import os
import random
from typing import Any

from simulation.clock import CLOCK

_WRITE, _WRITEV = os.write, os.writev


class Disk:
    """Stands between the gateway and the system calls that write the journal, while one simulation runs.

    Attributes:
        full: whether writes fail, after the part of one that still fitted.
        slow_s: what a write takes; the loop stands still meanwhile.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.full = False
        self.slow_s = 0.0

    def __enter__(self) -> Disk:
        os.write, os.writev = self._write, self._writev
        return self

    def __exit__(self, *_: object) -> None:
        os.write, os.writev = _WRITE, _WRITEV

    def _write(self, fd: int, data: Any) -> int:
        if not (self.full or self.slow_s) or ".jsonl" not in os.readlink(f"/proc/self/fd/{fd}"):
            return _WRITE(fd, data)
        CLOCK.advance(self.slow_s)
        if not self.full:
            return _WRITE(fd, data)
        fits = self._rng.choice((0, 0, 1, 100))
        if fits:
            return _WRITE(fd, bytes(data)[:fits])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _writev(self, fd: int, pieces: Any) -> int:
        return self._write(fd, b"".join(pieces))
