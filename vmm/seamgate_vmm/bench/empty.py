"""What `seamgate vm pool` measures: guests made warm, and an empty program in each. They have no network."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from seamgate_vmm.outcome import Reason
from seamgate_vmm.pool import Pool
from seamgate_vmm.template import Job


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What `vm pool` prints. Times in seconds."""

    guests: int
    right: int
    workers: int
    warm_s: float
    run_s: float

    def __str__(self) -> str:
        return (
            f"{self.guests} guests warm in {self.warm_s:.2f} s in {self.workers} workers; "
            f"{self.right} ran an empty program in {self.run_s:.2f} s"
        )


async def pool_report(template: Path, guests: int) -> PoolReport:
    """Warm guests, run an empty program in each. Raises: VmmError."""
    async with Pool(template) as pool:
        start = time.perf_counter()
        await pool.warm(guests)
        warm = time.perf_counter()
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            running = [
                await pool.start(Job(["-c", "pass"], {}), accept=lambda _: None, stdout=null, stderr=null)
                for _ in range(guests)
            ]
            outcomes = [await g.ended() for g in running]
        finally:
            os.close(null)
        right = sum(o.reason is Reason.EXITED and o.code == 0 for o in outcomes)
        return PoolReport(guests, right, pool.worker_count, warm - start, time.perf_counter() - warm)
