"""What `seamgate vm pool --rest` measures: guests that stand still in memory, then on disk, and go on. No network."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from seamgate_vmm.bench.histogram import percentile
from seamgate_vmm.bench.memory import PhysicalMemory
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest
from seamgate_vmm.template import Job

# Holds something that must come back, and answers each line with a digest of it.
_PROGRAM = """
import hashlib, sys
keep = [hashlib.sha256(b'%d' % n + sys.argv[1].encode()).hexdigest() for n in range(2000)]
for line in sys.stdin:
    print(hashlib.sha256(''.join(keep).encode()).hexdigest(), flush=True)
"""
_ANSWER_S = 60.0
_STILL_BYTES, _STILL_S = 1 << 20, 0.5


@dataclass(frozen=True, slots=True)
class RestReport:
    """What `vm pool --rest` prints. Bytes are for each guest, times the median in milliseconds."""

    guests: int
    right: int
    method: str
    running_bytes: float
    parked_bytes: float
    hibernated_bytes: float
    file_bytes: float
    park_ms: float
    unpark_ms: float
    hibernate_ms: float
    resume_ms: float

    def __str__(self) -> str:
        rows = (
            ("running", self.running_bytes, ""),
            ("parked", self.parked_bytes, f"in {self.park_ms:.1f} ms, back in {self.unpark_ms:.1f} ms"),
            ("hibernated", self.hibernated_bytes, f"in {self.hibernate_ms:.1f} ms, back in {self.resume_ms:.1f} ms"),
        )
        lines = [f"{self.right} of {self.guests} guests answered as before, after each stage ({self.method})"]
        lines += [f"  {name:12}{size / 1e6:8.2f} MB a guest  {how}" for name, size, how in rows]
        return "\n".join([*lines, f"  on disk     {self.file_bytes / 1e6:8.2f} MB a guest, sealed"])


class _Agent:
    """A guest and the pipes to it."""

    def __init__(self) -> None:
        self.guest: PooledGuest
        self._in_read, self._in = os.pipe()
        self._out, self._out_write = os.pipe()
        self._first = b""

    async def start(self, pool: Pool, number: int) -> None:
        """Start it."""
        job = Job(["-c", _PROGRAM, str(number)], {})
        out = self._out_write
        self.guest = await pool.start(job, accept=lambda _: None, stdin=self._in_read, stdout=out, stderr=out)
        os.close(self._in_read)
        os.close(self._out_write)

    async def is_right(self) -> bool:
        """Ask it, and return whether it answers as the first time."""
        os.write(self._in, b"?\n")
        async with asyncio.timeout(_ANSWER_S):
            answer = await asyncio.to_thread(os.read, self._out, 4096)
        self._first = self._first or answer
        return len(answer) == 65 and answer == self._first

    def close(self) -> None:
        """Close the pipes; that ends the program."""
        os.close(self._in)
        os.close(self._out)


async def _each(agents: list[_Agent], do: Callable[[PooledGuest], Awaitable[object]]) -> float:
    """Do something with each guest in turn; return the median time."""
    took = []
    for agent in agents:
        start = time.perf_counter()
        await do(agent.guest)
        took.append((time.perf_counter() - start) * 1e3)
    return percentile(took, 0.5)


async def _settled(memory: PhysicalMemory) -> int:
    """Return what is used once processes that were told to end have given back what they had."""
    before, now = -1, memory.used()
    while abs(now - before) > _STILL_BYTES:
        await asyncio.sleep(_STILL_S)
        before, now = now, memory.used()
    return now


async def rest_report(template: Path, guests: int) -> RestReport:
    """Start guests, park, hibernate and resume them, and ask each in between. Raises: VmmError."""
    with PhysicalMemory() as memory:
        async with Pool(template) as pool:
            agents = [_Agent() for _ in range(guests)]
            right = [True] * guests

            async def ask() -> None:
                for number, agent in enumerate(agents):
                    right[number] &= await agent.is_right()

            base = memory.used()
            for number, agent in enumerate(agents):
                await agent.start(pool, number)
            await ask()
            running = memory.used() - base
            park_ms = await _each(agents, pool.park)
            parked = memory.used() - base
            unpark_ms = await _each(agents, pool.resume)
            await ask()
            files: list[int] = []

            async def hibernate(guest: PooledGuest) -> None:
                files.append(await pool.hibernate(guest))

            hibernate_ms = await _each(agents, hibernate)
            await pool.trim()
            hibernated = await _settled(memory) - base
            resume_ms = await _each(agents, pool.resume)
            await ask()
            for agent in agents:
                agent.close()
            for agent in agents:
                await agent.guest.ended()
    return RestReport(
        guests,
        sum(right),
        memory.method,
        running / guests,
        parked / guests,
        hibernated / guests,
        sum(files) / guests,
        park_ms,
        unpark_ms,
        hibernate_ms,
        resume_ms,
    )
