"""What a worker has when a guest runs in it: another user id, no privileges but to read, no secrets, no network, a
limit of memory; and what `seamgate doctor` says where it can't have all of that."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seamgate_vmm import _kvm, confinement
from seamgate_vmm import template as templates
from seamgate_vmm.confinement import NoGroups, WorkerGroups, worker_memory_bytes, worker_uid
from seamgate_vmm.guest import MIB, Limits
from seamgate_vmm.outcome import Reason
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job

_BOUND_S = 50.0
_READ_ONLY = 1 << 2  # CAP_DAC_READ_SEARCH


class Worker:
    """A worker of a pool, as the kernel sees it."""

    def __init__(self, pool: Pool) -> None:
        nursery = pool.nursery_pid
        text = Path(f"/proc/{nursery}/task/{nursery}/children").read_text(encoding="ascii")
        self.pid = int(text.split()[0])
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        self.status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}

    def environment(self) -> bytes:
        return Path(f"/proc/{self.pid}/environ").read_bytes()

    def unix_sockets(self) -> str:
        return Path(f"/proc/{self.pid}/net/unix").read_text(encoding="ascii")

    def descriptors(self) -> list[str]:
        folder = Path(f"/proc/{self.pid}/fd")
        return [os.readlink(folder / name) for name in os.listdir(folder)]


def with_guest(loaded: Loaded, code: str, check: Callable[[Pool, PooledGuest], Awaitable[None]]) -> None:
    """Run a check beside a guest."""

    async def run() -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            async with Pool(templates.path_of("test"), limits=Limits(wall_s=_BOUND_S)) as pool:
                async with asyncio.timeout(_BOUND_S):
                    job = Job(["-c", code], {})
                    guest = await pool.start(job, accept=lambda _: None, stdout=null, stderr=null)
                    await guest.started()
                    await check(pool, guest)
        finally:
            os.close(null)

    assert loaded.meta.name == "test"
    asyncio.run(run())


@pytest.mark.kvm
def test_a_worker_is_nobody(template: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ids own nothing (where the pool is root's), it has no privilege but to read files, and can't get any."""

    async def check(pool: Pool, _: PooledGuest) -> None:
        worker = Worker(pool)
        if os.geteuid() == 0:
            (uid,) = set(worker.status["Uid"])
            assert int(uid) >= 61_184 and set(worker.status["Gid"]) == {uid} and not worker.status["Groups"]
            assert [int(worker.status[kind][0], 16) for kind in ("CapPrm", "CapEff")] == [_READ_ONLY] * 2
        else:
            assert int(worker.status["CapEff"][0], 16) == 0
        assert [int(worker.status[kind][0], 16) for kind in ("CapInh", "CapAmb")] == [0, 0]
        assert os.geteuid() != 0 or int(worker.status["CapBnd"][0], 16) == 0
        assert worker.status["NoNewPrivs"] == ["1"] and worker.status["Seccomp"] == ["2"]

    with_guest(template, "import time; time.sleep(60)", check)


@pytest.mark.kvm
def test_a_worker_has_no_secret_and_no_network(template: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the gateway's environment but where programs and temporary files are; of sockets only the one to its
    pool, which leads nowhere else."""
    monkeypatch.setenv("API_KEY", "the-secret-value")
    listener = socket.create_server(("127.0.0.1", 0))
    secret = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(secret, True)

    async def check(pool: Pool, _: PooledGuest) -> None:
        worker = Worker(pool)
        names = {line.partition(b"=")[0].decode() for line in worker.environment().split(b"\0") if line}
        assert names <= {"PATH", "LANG", "LC_ALL", "HOME", "LD_LIBRARY_PATH", "TMPDIR"}
        assert b"the-secret-value" not in worker.environment()
        opened = worker.descriptors()
        assert sum(each.startswith("socket:") for each in opened) == 1
        assert not [each for each in opened if each.endswith(".py")]
        unix = worker.unix_sockets()
        (channel,) = (each for each in opened if each.startswith("socket:"))
        assert channel.removeprefix("socket:[").removesuffix("]") in unix

    with_guest(template, "import time; time.sleep(60)", check)
    listener.close()
    os.close(secret)


@pytest.mark.kvm
def test_workers_can_signal_nobody(template: Loaded, tmp_path: Path) -> None:
    """In the jail a thread may signal its own process, as the timer of its slices needs, and no other one."""
    from seamgate_vmm.image import View
    from seamgate_vmm.nursery import enter_jail

    assert template.meta.name == "test"
    victim, child = os.getpid(), os.fork()
    if child == 0:
        try:
            import ctypes

            call = ctypes.CDLL(None).syscall
            enter_jail(View([], {}), tmp_path, worker_uid())
            call(234, os.getpid(), os.getpid(), 0)  # tgkill of itself: allowed
            call(234, victim, victim, 0)
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS


def _groups() -> WorkerGroups | None:
    try:
        return WorkerGroups()
    except NoGroups:
        return None


@pytest.mark.kvm
def test_a_worker_that_takes_too_much_is_ended(template: Loaded) -> None:
    """Its group's limit is what its guests may use in all; over it the kernel ends the worker, and the pool says why.
    Where no group can be made, the doctor names it."""
    groups = _groups()
    if groups is None:
        assert any("no memory limit" in each for each in confinement.missing())
        return
    groups.close()

    async def check(pool: Pool, guest: PooledGuest) -> None:
        worker = pool._workers[0]
        assert worker.group is not None and pool._groups is not None
        limit = next(each for name in ("memory.max", "memory.limit_in_bytes") if (each := worker.group / name).exists())
        assert int(limit.read_text()) == worker_memory_bytes(16, Limits())
        assert str(Worker(pool).pid) in (worker.group / "cgroup.procs").read_text().split()
        pool._groups.limit(worker.group, 96 * MIB)
        outcome = await guest.ended()
        assert outcome.reason is Reason.WORKER_DIED
        assert outcome.detail == "its worker process was out of the memory that it may use"
        folders.append(worker.group.parent)

    folders: list[Path] = []
    code = "import time\nkeep = []\nwhile True:\n    keep.append(bytearray(1 << 20)); time.sleep(0.01)"
    with_guest(template, code, check)
    assert not folders[0].exists()


def test_where_there_is_no_group(tmp_path: Path) -> None:
    """Without the controller, or without the right to make a group, the message says what to do."""
    own = tmp_path / "cgroup"
    own.write_text("0::/user.slice\n")
    with pytest.raises(NoGroups, match="mount cgroup v2"):
        WorkerGroups(tmp_path / "v1", tmp_path, str(own))
    (tmp_path / "user.slice").mkdir()
    (tmp_path / "user.slice" / "cgroup.controllers").write_text("cpu memory pids\n")
    with pytest.raises(NoGroups, match="systemd-run --user --scope -p Delegate=yes"):
        WorkerGroups(tmp_path / "v1", tmp_path, str(own))
    assert not [each for each in (tmp_path / "user.slice").iterdir() if each.is_dir()]


def test_the_limit_counts_every_guest() -> None:
    """A worker may use what its guests may, and a little for each and for itself."""
    assert worker_memory_bytes(16, Limits(memory_bytes=100 * MIB)) == (128 + 16 * 116) * MIB


def test_becoming_nobody_needs_a_known_id() -> None:
    """An id that this system can't have is an error, and nothing has changed."""
    child = os.fork()
    if child == 0:
        try:
            _kvm.become(0xFFFFFFFF)
        except OSError:
            os._exit(13)
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
