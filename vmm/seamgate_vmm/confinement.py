"""What a pool gives its workers to keep them small: a user id that owns nothing, and a group with a memory limit.

Both need rights that a pool may not have. Without them workers run under its own id, and only the limits that each
worker keeps for its guests hold: `missing` says so, for `seamgate doctor`. Used by `pool.py`; a worker joins its group
in `nursery.py`, before it gives up paths.
"""

import errno
import itertools
import os
import secrets
from contextlib import suppress
from pathlib import Path

from seamgate_vmm.guest import MIB, Limits

# Source: systemd's UIDS-GIDS.md: used for nothing. Then, where a container maps only the low ids: dynamic users.
_UIDS = ((1_879_048_192, 268_304_384), (61_184, 4_336))
_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_WORKER_BYTES = 128 * MIB  # the worker itself
_MACHINE_BYTES = 16 * MIB  # beside a guest's memory: what KVM keeps, page tables, its ring, its files' cache
_pools = itertools.count(1)


def worker_uid() -> int | None:
    """Return a user id for the workers of a pool, one that owns nothing; None if this process may not change ids."""
    if os.geteuid() != 0:
        return None
    ranges = []
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = (int(word) for word in line.split())
        ranges.append((first, count))
    for base, size in _UIDS:
        uid = base + secrets.randbelow(size)
        if any(first <= uid < first + count for first, count in ranges):
            return uid
    return None


def worker_memory_bytes(guests: int, limits: Limits) -> int:
    """Return what a worker of so many guests may use in all."""
    return _WORKER_BYTES + guests * (limits.memory_bytes + _MACHINE_BYTES)


class NoGroups(Exception):
    """No control group can be made here; the message says why, and what to do."""


class WorkerGroups:
    """The control groups of one pool's workers. Raises: NoGroups."""

    def __init__(self, v1: Path = _V1, v2: Path = _V2, own: str = "/proc/self/cgroup") -> None:
        paths = _own_groups(Path(own).read_text(encoding="ascii"))
        name = f"seamgate-{os.getpid()}-{next(_pools)}"
        controllers = v2 / paths.get("", "").lstrip("/") / "cgroup.controllers"
        self._moved_from: Path | None = None
        if "memory" in _read(controllers).split():
            self._is_v1, base = False, controllers.parent
        elif "memory" in paths and v1.is_dir():
            base = v1 / paths["memory"].lstrip("/")
            self._is_v1, base = True, base if base.is_dir() else v1  # a container sees its own group as the root
        else:
            raise NoGroups("the kernel's memory controller is not there: mount cgroup v2")
        self._folder = base / name
        try:
            if not self._is_v1:
                self._delegate(base)
            self._folder.mkdir()
            if not self._is_v1:
                _write(self._folder / "cgroup.subtree_control", "+memory")
        except OSError as error:
            self.close()
            raise NoGroups(
                f"no group can be made in {base} ({error.strerror}): run it as root, or by "
                "`systemd-run --user --scope -p Delegate=yes`"
            ) from error
        self._numbers = itertools.count(1)

    def _delegate(self, base: Path) -> None:
        """Let groups below have limits. A group that has processes may not; if that is only us, we move down."""
        try:
            _write(base / "cgroup.subtree_control", "+memory")
        except OSError as error:
            if error.errno != errno.EBUSY or _read(base / "cgroup.procs").split() != [str(os.getpid())]:
                raise
            ours = base / f"seamgate-{os.getpid()}-gateway"
            ours.mkdir(exist_ok=True)
            _write(ours / "cgroup.procs", "0")
            _write(base / "cgroup.subtree_control", "+memory")

    def make(self, limit_bytes: int) -> Path:
        """Return a new group for a worker. Raises: OSError."""
        group = self._folder / f"worker-{next(self._numbers)}"
        group.mkdir()
        self.limit(group, limit_bytes)
        if not self._is_v1:
            for setting, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with suppress(FileNotFoundError):  # no swap, or an older kernel
                    _write(group / setting, value)
        return group

    def limit(self, group: Path, limit_bytes: int) -> None:
        """Set what a worker may use. Raises: OSError."""
        _write(group / ("memory.limit_in_bytes" if self._is_v1 else "memory.max"), str(limit_bytes))

    def was_out_of_memory(self, group: Path) -> bool:
        """Return whether the kernel ended a process of the group for want of memory."""
        events = _read(group / ("memory.oom_control" if self._is_v1 else "memory.events"))
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in events.splitlines())

    def remove(self, group: Path) -> None:
        """Take a group away, if its processes are gone; `close` tries again."""
        with suppress(OSError):
            group.rmdir()

    def close(self) -> None:
        """Take all of them away; their processes are gone."""
        with suppress(OSError):
            for group in self._folder.iterdir():
                if group.is_dir():
                    self.remove(group)
            self._folder.rmdir()


def _own_groups(text: str) -> dict[str, str]:
    """Return controller -> path of this process; "" is cgroup v2. Source: cgroups(7), /proc/[pid]/cgroup."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def join(group: str) -> None:
    """Move this process into a group. Raises: OSError."""
    _write(Path(group) / "cgroup.procs", "0")


def missing() -> list[str]:
    """Return what workers would not have here, each with what to do; empty: they have all."""
    found = []
    if os.geteuid() == 0 and worker_uid() is None:
        found.append("no user id of their own: this user namespace maps none that is free")
    try:
        WorkerGroups().close()
    except NoGroups as error:
        found.append(f"no memory limit of their own: {error}")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _write(path: Path, value: str) -> None:
    with path.open("r+", encoding="ascii") as file:  # never made: a name that a kernel does not know is an error
        file.write(value)
