"""The numbers of `seamgate vm bench`: start, memory, latency and throughput of many guests at once.

The upstream is a stand-in inside this process that answers every request at the ring, so that guests, rings and workers
are measured, not a network. Memory is physical memory with the kernel's share, from the memory controller where a group
can be made, else from what the machine says is available. Every guest's result is checked.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Reason
from seamgate_vmm.pool import Pool, PooledGuest
from seamgate_vmm.template import Job

_BODY = b'{"choices": [{"message": {"content": "' + b"x" * 400 + b'"}}]}'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_PROGRAM = """
import http.client, json, sys, time
time.sleep(max(0.0, float(sys.argv[3]) - time.time()))
c = http.client.HTTPSConnection('llm.test')
calls = int(sys.argv[1])
total = 0
for i in range(1 + calls):
    c.request('POST', '/v1/chat/completions', body=json.dumps({'model': 'm', 'n': i}))
    total += len(json.loads(c.getresponse().read())['choices'][0]['message']['content'])
if total != 400 * (1 + calls):
    sys.exit(3)
import os
os.write(1, b'done')
time.sleep(float(sys.argv[2]))
"""
_PACED = 40
# Source: issue 3: published figures of the design's ancestor, measured on 128 vCPUs.
_PUBLISHED = {"warm": 0.42, "agents_per_gib": 10.8, "idle_mb": 3.0, "first_p50": 44.0, "first_p99": 105.0}
_GIB = 1 << 30


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0..1) of the values lie; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class _StandIn(asyncio.Protocol):
    """Answers every request that ends with the body it announces; the first one not before the meter says `go`."""

    def __init__(self, meter: "_Meter", dispatched: float) -> None:
        self._meter = meter
        self._dispatched = dispatched
        self._seen = b""
        self._first = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer when a request is whole."""
        self._seen += data
        head, found, rest = self._seen.partition(b"\r\n\r\n")
        if not found:
            return
        headers = (h.partition(b":") for h in head.split(b"\r\n"))
        length = next((int(v) for k, _, v in headers if k.lower() == b"content-length"), 0)
        if len(rest) < length:
            return
        self._seen = rest[length:]
        if self._first:
            self._first = False
            self._meter.arrived((time.perf_counter() - self._dispatched) * 1e3, self._answer)
        else:
            self._meter.calls += 1
            self._answer()

    def _answer(self) -> None:
        self._transport.write(_ANSWER)

    def eof_received(self) -> bool:
        """Close with the guest."""
        return False


class _Meter:
    """Counts, and holds first answers back until every guest has made its first call."""

    def __init__(self, expected: int) -> None:
        self.first_call_ms: list[float] = []
        self.calls = 0
        self._expected = expected
        self._held: list[Callable[[], None]] = []
        self.all_arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrived(self, after_ms: float, answer: Callable[[], None]) -> None:
        """A guest has made its first call."""
        self.first_call_ms.append(after_ms)
        self._held.append(answer)
        if len(self.first_call_ms) == self._expected and not self.all_arrived.done():
            self.all_arrived.set_result(None)

    def go(self) -> None:
        """Answer all first calls."""
        for answer in self._held:
            answer()
        self._held.clear()


class _Memory:
    """Physical memory, the kernel's share counted, of the processes that enter."""

    def __init__(self) -> None:
        self.method = "MemAvailable"
        self._group: Path | None = None
        for root, usage in (("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current")):
            group = Path(root) / f"seamgate-bench-{os.getpid()}"
            with suppress(OSError):
                group.mkdir()
                if (group / usage).exists():
                    self._group, self._usage, self.method = group, group / usage, "memory controller"
                    break
                group.rmdir()
        self._base = 0

    def enter(self, pid: int) -> None:
        """Count this process and its children from now on."""
        if self._group is not None:
            (self._group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        self._base = self._now()

    def _now(self) -> int:
        if self._group is not None:
            return int(self._usage.read_text(encoding="ascii"))
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return -int(line.split()[1]) * 1024
        return 0

    def used(self) -> int:
        """Return the bytes since `enter`."""
        return max(0, self._now() - self._base)

    async def close(self) -> None:
        """Take the group away, once its processes are gone."""
        for _ in range(100):
            if self._group is None:
                return
            try:
                self._group.rmdir()
                return
            except OSError:
                await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What `vm pool` prints."""

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
    """Warm guests, run an empty program in each."""
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


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What `vm bench` prints. Times in the unit of their name."""

    guests: int
    right: int
    tier: str
    workers: int
    make_warm_s: float
    warm_start_s: float
    all_called_s: float
    paced_first_call_ms: list[float]
    burst_first_call_ms: list[float]
    calls: int
    calls_s: float
    cpu_ms_per_guest: float
    memory_method: str
    idle_bytes_per_guest: int
    loaded_bytes_per_guest: int
    name_queries: int
    name_hit_rate: float
    bytes_in_per_s: float
    bytes_out_per_s: float

    def __str__(self) -> str:
        per_gib = _GIB / self.loaded_bytes_per_guest if self.loaded_bytes_per_guest else 0.0
        paced, burst = self.paced_first_call_ms, self.burst_first_call_ms
        rows = [
            ("guests, all right", f"{self.right} of {self.guests}", ""),
            ("machines made warm", f"{self.make_warm_s:.2f} s", ""),
            ("warm start: all confirmed", f"{self.warm_start_s:.2f} s", f"{_PUBLISHED['warm']} s"),
            ("first calls of all, at once", f"{self.all_called_s:.2f} s", ""),
            ("agents per GiB under load", f"{per_gib:.0f}", f"{_PUBLISHED['agents_per_gib']}"),
            ("warm idle machine", f"{self.idle_bytes_per_guest / 1e6:.2f} MB", f"{_PUBLISHED['idle_mb']} MB"),
            ("names: queries, known", f"{self.name_queries}, {self.name_hit_rate:.0%}", ""),
            (
                "dispatch to first call p50/p99",
                f"{percentile(paced, 0.5):.1f}/{percentile(paced, 0.99):.1f} ms",
                f"{_PUBLISHED['first_p50']:.0f}/{_PUBLISHED['first_p99']:.0f} ms",
            ),
            ("  the same in that crowd", f"{percentile(burst, 0.5):.0f}/{percentile(burst, 0.99):.0f} ms", ""),
            ("calls a second", f"{self.calls / self.calls_s:.0f}" if self.calls_s else "-", ""),
            ("throughput out, in", f"{self.bytes_in_per_s / 1e6:.2f}, {self.bytes_out_per_s / 1e6:.2f} MB/s", ""),
            ("CPU per guest", f"{self.cpu_ms_per_guest:.1f} ms", ""),
        ]
        text = [f"{'':34}{'here (' + self.tier + ')':>20}{'published':>14}"]
        text += [f"{name:34}{here:>20}{there:>14}" for name, here, there in rows]
        text += ["", f"memory by {self.memory_method}; first calls, one guest at a time:", *histogram_text(paced)]
        text += ["first calls, all guests at once:", *histogram_text(burst)]
        return "\n".join(text)


async def run_bench(template: Path, guests: int, calls: int) -> BenchReport:
    """Make guests warm, start them one by one and then all at once, let each make its calls, and measure."""
    memory = _Memory()
    async with Pool(template) as pool:
        memory.enter(pool.nursery_pid)
        begin = time.perf_counter()
        await pool.warm(guests)
        warm_s = time.perf_counter() - begin
        idle = memory.used()
        reader, writer = os.pipe()
        try:
            paced = await _one_by_one(pool, min(_PACED, guests), writer, reader)
            crowd = _Crowd(pool, guests, calls, reader, writer)
            await crowd.run()
            loaded, workers, tier = memory.used(), pool.worker_count, pool.tier
            moved_in = sum(g.server.bytes_in for g in crowd.running)
            moved_out = sum(g.server.bytes_out for g in crowd.running)
            outcomes = [await g.ended() for g in crowd.running]
        finally:
            os.close(reader)
            os.close(writer)
    await memory.close()
    queries, hits = sum(t.queries for t in crowd.tables), sum(t.hits for t in crowd.tables)
    right = sum(o.reason is Reason.EXITED and o.code == 0 for o in outcomes)
    return BenchReport(
        guests, right, tier, workers, warm_s, crowd.started_s, crowd.called_s, paced,
        [round(v, 2) for v in crowd.meter.first_call_ms], crowd.meter.calls, crowd.calls_s,
        sum(o.cpu_s for o in outcomes) / guests * 1e3, memory.method, idle // guests, loaded // guests, queries,
        hits / queries if queries else 0.0, moved_in / crowd.calls_s, moved_out / crowd.calls_s,
    )  # fmt: skip


async def _start(
    pool: Pool, meter: _Meter, calls: int, linger_s: float, writer: int, after_s: float = 0.0
) -> tuple[PooledGuest, NameTable]:
    """Start a guest that makes its first call `after_s` from now; the meter counts from then."""
    table, dispatched = NameTable(), time.perf_counter() + after_s
    guest = await pool.start(
        Job(["-c", _PROGRAM, str(calls), f"{linger_s:g}", f"{time.time() + after_s:.6f}"], {}),
        accept=lambda _: _StandIn(meter, dispatched),
        names=table,
        stdout=writer,
        stderr=writer,
    )
    return guest, table


async def _one_by_one(pool: Pool, count: int, writer: int, reader: int) -> list[float]:
    """Return how long each of some guests took from dispatch to its first call, with nothing else going on."""
    times = []
    for _ in range(count):
        meter = _Meter(1)
        guest, _ = await _start(pool, meter, 0, 0, writer)
        async with asyncio.timeout(60):
            await meter.all_arrived
            meter.go()
            await guest.ended()
        times += meter.first_call_ms
        os.read(reader, 100)
    return [round(v, 2) for v in times]


class _Crowd:
    """All guests at once: started, held at their first call, let go, and measured while they are all there."""

    def __init__(self, pool: Pool, guests: int, calls: int, reader: int, writer: int) -> None:
        self._pool, self._guests, self._calls = pool, guests, calls
        self._reader, self._writer = reader, writer
        self.meter = _Meter(guests)
        self.running: list[PooledGuest] = []
        self.tables: list[NameTable] = []
        self.started_s = self.called_s = self.calls_s = 0.0

    async def run(self) -> None:
        """Return when every guest has made its calls and still lives."""
        loop, done = asyncio.get_running_loop(), _Counter(self._reader, self._guests)
        begin = time.perf_counter()
        hold_s = 1.0 + self._guests / 150  # nobody calls before all are up
        for _ in range(self._guests):
            after_s = max(0.0, begin + hold_s - time.perf_counter())
            guest, table = await _start(self._pool, self.meter, self._calls, 2.0, self._writer, after_s)
            self.running.append(guest)
            self.tables.append(table)
            await asyncio.sleep(0)
        loop.add_reader(self._reader, done.read)
        try:
            async with asyncio.timeout(60 + self._guests / 5):
                for guest in self.running:
                    await guest.started()
                self.started_s = time.perf_counter() - begin
                await self.meter.all_arrived
                called = time.perf_counter()
                self.called_s = called - begin - hold_s
                self.meter.go()
                await done.all
                self.calls_s = time.perf_counter() - called
        finally:
            loop.remove_reader(self._reader)


class _Counter:
    """Sees when every guest has written `done`."""

    def __init__(self, fd: int, guests: int) -> None:
        self._fd = fd
        self._left = guests * len(b"done")
        self.all: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def read(self) -> None:
        """Take what has come."""
        self._left -= len(os.read(self._fd, 1 << 16))
        if self._left <= 0 and not self.all.done():
            self.all.set_result(None)


def _bins(values: Sequence[float]) -> list[tuple[float, float, int]]:
    edges = [0.0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, float("inf")]
    return [(a, b, sum(a <= v < b for v in values)) for a, b in pairwise(edges)]


def histogram_text(values: Sequence[float]) -> list[str]:
    """Return the lines of a histogram of milliseconds."""
    most = max((n for _, _, n in _bins(values)), default=0) or 1
    lines = []
    for low, high, n in _bins(values):
        if n:
            label = f"{low:g} - {high:g} ms" if high != float("inf") else f"over {low:g} ms"
            lines.append(f"  {label:>16} {n:6} {'#' * max(1, round(40 * n / most))}")
    return lines


def histogram_svg(values: Sequence[float]) -> str:
    """Return the same histogram as an SVG image."""
    bins = [b for b in _bins(values) if b[2]]
    most = max((n for _, _, n in bins), default=1)
    rows = []
    for index, (low, high, n) in enumerate(bins):
        y, width = 30 + index * 24, round(300 * n / most)
        label = f"{low:g}-{high:g} ms" if high != float("inf") else f"over {low:g} ms"
        rows.append(
            f'<text x="100" y="{y + 14}" text-anchor="end">{label}</text>'
            f'<rect x="110" y="{y}" width="{width}" height="18" fill="#3b6ea5"/>'
            f'<text x="{116 + width}" y="{y + 14}">{n}</text>'
        )
    height = 40 + 24 * len(bins)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="480" height="{height}" '
        'font-family="sans-serif" font-size="12">'
        f'<text x="10" y="18">Dispatch to first call, {len(values)} guests</text>{"".join(rows)}</svg>\n'
    )
