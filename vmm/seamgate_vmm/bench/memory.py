"""Physical memory of guests and what serves them, the kernel's share counted. Used by the bench only.

A sum over processes misses what KVM keeps for a machine, which is most of an idle one (research: PSS shows an eighth).
So the memory controller counts where a group can be made; else the machine's own MemAvailable does, and says so.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_ROOTS = (("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current"))
_EMPTY_WAIT_S = 10.0
_POLL_S = 0.02


class PhysicalMemory:
    """Counts what this process and those that it starts take from now on. Use it as a context manager.

    Attributes:
        method: how it counts, for the report.
    """

    def __init__(self) -> None:
        self.method = "MemAvailable of the whole machine: other programs disturb it"
        self._group: Path | None = None
        self._usage = Path()
        self._home = Path()
        self._base = 0

    def __enter__(self) -> "PhysicalMemory":
        for root, usage in _ROOTS:
            group = Path(root) / f"seamgate-bench-{os.getpid()}"
            with suppress(OSError):
                group.mkdir()
                self._usage, self._home = group / usage, Path(root) / _group_of_this_process(root)
                if self._usage.exists() and _move(group):
                    self._group, self.method = group, "the kernel's memory controller"
                    break
                group.rmdir()
        self._base = self._now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Move back, and take the group away once its processes are gone."""
        if self._group is None:
            return
        _move(self._home)
        until = time.monotonic() + _EMPTY_WAIT_S
        while time.monotonic() < until:
            with suppress(OSError):
                self._group.rmdir()
                return
            time.sleep(_POLL_S)

    def _now(self) -> int:
        if self._group is not None:
            return int(self._usage.read_text(encoding="ascii"))
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return -int(line.split()[1]) * 1024
        return 0

    def used(self) -> int:
        """Return the bytes since the beginning; never below 0."""
        return max(0, self._now() - self._base)


def _group_of_this_process(root: str) -> str:
    """Return this process's group under a controller's root, without leading slash. Source: cgroups(7)."""
    wanted = "memory" if root.endswith("memory") else ""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(","):
            return path.lstrip("/")
    return ""


def _move(group: Path) -> bool:
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    except OSError:
        return False
    return True
