"""Control groups of version 2, by a kernel that has the memory controller there: many machines have it in version 1.

Run by run.py inside the emulated machine only, which mounts the hierarchy where systemd does. `test_confinement.py`
runs there too, with whole workers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from seamgate_vmm.confinement import WorkerGroups, join
from seamgate_vmm.guest import MIB

_ROOT = Path("/sys/fs/cgroup")


@pytest.fixture
def groups() -> Iterator[WorkerGroups]:
    """The groups of a pool, in version 2."""
    made = WorkerGroups()
    assert "memory" in (_ROOT / "cgroup.subtree_control").read_text().split()
    yield made
    made.close()


def _take(group: Path, size_bytes: int) -> int:
    """Return how a process of the group ended that took so much memory: 0, or minus the signal."""
    child = os.fork()
    if child == 0:
        try:
            join(str(group))
            kept = bytearray(size_bytes)
            kept[:: os.sysconf("SC_PAGESIZE")] = b"x" * len(kept[:: os.sysconf("SC_PAGESIZE")])
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_limit_is_the_kernels(groups: WorkerGroups) -> None:
    """Below its limit a process lives; over it the kernel ends it, and only its own group says so."""
    wide, narrow = groups.make(256 * MIB), groups.make(32 * MIB)
    assert (narrow / "memory.max").read_text() == f"{32 * MIB}\n"
    assert (narrow / "memory.oom.group").read_text() == "1\n"
    assert _take(wide, 64 * MIB) == 0 and not groups.was_out_of_memory(wide)
    assert _take(narrow, 64 * MIB) == -signal.SIGKILL
    assert groups.was_out_of_memory(narrow) and not groups.was_out_of_memory(wide)
    groups.limit(narrow, 128 * MIB)
    assert _take(narrow, 64 * MIB) == 0


def test_nothing_is_left() -> None:
    """Groups whose processes are gone are taken away with their pool."""
    groups = WorkerGroups()
    folder = groups.make(32 * MIB).parent
    groups.close()
    assert not folder.exists()


def test_a_group_of_our_own_is_shared_out(groups: WorkerGroups) -> None:
    """In a group that holds this process only, as `systemd-run --scope` makes one, it moves down, and gives limits:
    a group with processes in it may not give limits to those below."""
    scope = _ROOT / "scope"
    scope.mkdir()
    child = os.fork()
    if child == 0:
        try:
            join(str(scope))
            within = WorkerGroups()
            group = within.make(32 * MIB)
            assert group.is_relative_to(scope) and (group / "memory.max").read_text() == f"{32 * MIB}\n"
            assert _take(group, 64 * MIB) == -signal.SIGKILL and within.was_out_of_memory(group)
            within.close()
            os._exit(0)
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for folder in [*scope.glob("seamgate-*"), scope]:
        folder.rmdir()
