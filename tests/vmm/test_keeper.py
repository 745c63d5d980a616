"""A pool that keeps machines warm: as many as it was told, whatever starts and ends, and no more for long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from seamgate_vmm import keeper
from seamgate_vmm.keeper import SURPLUS_LOOKS
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job, path_of

pytestmark = pytest.mark.kvm


async def _come(pool: Pool, **counts: int) -> None:
    await _until(lambda: counts.items() <= pool.states().items())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a worker's message changes it, and tells nobody here
        await asyncio.sleep(0.01)


async def _start(pool: Pool, null: int) -> PooledGuest:
    job = Job(["-c", "import time; time.sleep(3600)"], {})
    guest = await pool.start(job, accept=lambda _: None, stdout=null, stderr=null)
    await guest.started()
    return guest


async def test_so_many_machines_wait_whatever_starts(template: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each guest gets a machine that waited, another is made for the next one; those that are left behind are given
    back once they have been too many for long."""
    monkeypatch.setattr(keeper, "TEND_S", 0.02)
    monkeypatch.setattr(keeper, "SURPLUS_LOOKS", 5)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        async with Pool(path_of(template.meta.name), keep_warm=2, guests_per_worker=2) as pool:
            await _come(pool, warm=2, assigned=0)
            guests = []
            for number in range(1, 4):
                guests.append(await _start(pool, null))
                await _come(pool, warm=2, assigned=number)
            assert pool.census.restores == {"warm": 3}
            for guest in guests:
                guest.stop()
                await guest.ended()
            await _come(pool, warm=2, assigned=0)
            assert (pool.worker_count, pool.census.ends) == (1, {"stopped": 3})
    finally:
        os.close(null)
    assert SURPLUS_LOOKS == 60


async def test_a_guest_without_a_machine_that_waits_is_counted(template: Loaded) -> None:
    """Where nothing is kept warm each machine is made for its guest; what is warm is said as it is."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        async with Pool(path_of(template.meta.name)) as pool:
            await _start(pool, null)
            assert (pool.census.restores, pool.states()["assigned"]) == ({"new": 1}, 1)
            assert await pool.warm(3) == 3
            assert pool.states()["warm"] == 3
            assert await pool.warm(2) == 3
    finally:
        os.close(null)


async def test_why_no_machine_can_be_made_is_told_once(template: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool whose nursery is gone goes on with what it has, and says why there is nothing new."""
    monkeypatch.setattr(keeper, "TEND_S", 0.02)
    problems: list[str] = []
    async with Pool(path_of(template.meta.name), keep_warm=1, guests_per_worker=1, on_problem=problems.append) as pool:
        await _come(pool, warm=1)
        os.kill(pool.nursery_pid, 9)
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            await _start(pool, null)
            await _until(lambda: bool(problems))
        finally:
            os.close(null)
    assert len(problems) == 1
