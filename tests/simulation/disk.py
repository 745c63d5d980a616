"""The disk under the journal: full for a while, or slow, or cutting a write short. Everything else writes as ever."""

from __future__ import annotations

import errno
import os
import random
from typing import Any

from seamgate import shortage
from simulation.clock import CLOCK

_WRITE, _WRITEV, _OPEN = os.write, os.writev, os.open
_LEFT = shortage.descriptors_left


class Disk:
    """Stands between the gateway and the system calls that write the journal, while one simulation runs.

    Attributes:
        full: whether writes fail, after the part of one that still fitted.
        slow_s: what a write takes; the loop stands still meanwhile.
        exhausted: whether no file of the journal can be opened, for want of descriptors.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.full = False
        self.slow_s = 0.0
        self.exhausted = False

    def recover(self) -> None:
        """All is well again."""
        self.full, self.slow_s, self.exhausted = False, 0.0, False

    def __enter__(self) -> Disk:
        os.write, os.writev, os.open = self._write, self._writev, self._open
        shortage.descriptors_left = lambda: not self.exhausted
        return self

    def __exit__(self, *_: object) -> None:
        os.write, os.writev, os.open = _WRITE, _WRITEV, _OPEN
        shortage.descriptors_left = _LEFT

    def _open(self, path: Any, *how: Any, **more: Any) -> int:
        if self.exhausted and ".jsonl" in os.fspath(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return _OPEN(path, *how, **more)

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
