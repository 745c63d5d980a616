"""Runs agents by the hundred against whatever judges their streams, and takes the times and sizes.

    measured = await measure(template, guests, calls, seam, progress)

Four parts, in this order: machines are made warm; some agents are dispatched one by one; all are dispatched at once
and then sleep (the warm start, and what an idle guest costs); all make their calls at the same time (the load).
Each agent checks each answer, and the host counts whose reports came. Called by the command line of the gateway.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seamgate_vmm.bench.memory import PhysicalMemory
from seamgate_vmm.greeting import StreamOpen
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Outcome
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest
from seamgate_vmm.ring import Accept
from seamgate_vmm.template import Job

PACED = 40
"""How many agents are dispatched one by one."""
_STARTS_PER_S = 150.0  # nobody calls before all are up: that long, generously
_GUEST_DEADLINE_S = 60.0
_SAMPLE_S = 0.1
# An agent as people write them: the standard library's HTTPS client, JSON, one conversation over one connection.
AGENT = """
import http.client, json, os, sys, time
number, port, calls, begin = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
time.sleep(max(0.0, begin - time.time()))
connection = http.client.HTTPSConnection('api.llm.test', port)
headers = {'content-type': 'application/json', 'x-api-key': os.environ['LLM_API_KEY']}
first = 0.0
for call in range(calls):
    model = f'bench-{number}-{call}'
    body = {'model': model, 'max_tokens': 100, 'messages': [{'role': 'user', 'content': 'Say it. ' * 20}]}
    connection.request('POST', '/v1/messages', body=json.dumps(body), headers=headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200 or answer['model'] != model or not answer['content'][0]['text']:
        sys.exit(f'{response.status}: {answer}')
    first = first or time.time()
os.write(1, json.dumps([int(number), first]).encode() + b'\\n')
time.sleep(3600)
"""


@dataclass(frozen=True, slots=True)
class SeamGuest:
    """What the gateway's side gives for one guest."""

    accept: Accept
    names: NameTable
    ended: Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Seam:
    """The gateway's side: `guest` makes one, `port` is where the upstream listens, `key` what agents show as theirs."""

    guest: Callable[[str], SeamGuest]
    port: int
    key: str


Progress = Callable[[str, int, int], None]
"""(what is going on, how much of it is done, of how much)"""


@dataclass(slots=True)
class Measured:
    """Times and sizes. Those of dispatch are in milliseconds; a call is there when the gateway has its first bytes."""

    guests: int
    right: int = 0
    tier: str = ""
    workers: int = 0
    memory_method: str = ""
    make_warm_s: float = 0.0
    warm_start_s: float = 0.0
    paced_call_ms: list[float] = field(default_factory=list)
    paced_answer_ms: list[float] = field(default_factory=list)
    crowd_call_ms: list[float] = field(default_factory=list)
    crowd_answer_ms: list[float] = field(default_factory=list)
    warm_bytes: int = 0  # per machine, not yet assigned
    idle_bytes: int = 0  # per guest that runs and waits
    loaded_bytes: int = 0  # per guest, the most that was seen while all made their calls
    calls: int = 0
    calls_s: float = 0.0
    bytes_in: int = 0  # from guests, while all made their calls
    bytes_out: int = 0
    names_asked: int = 0
    cpu_ms_per_guest: float = 0.0
    gateway_cpu_ms_per_call: float = 0.0
    wrong: list[str] = field(default_factory=list)  # why guests were not right, the first few


class _Agent:
    """One dispatched agent."""

    def __init__(self, number: int, begin: float) -> None:
        self.number = number
        self.begin = begin  # wall clock, seconds
        self.called = 0.0
        self.guest: PooledGuest
        self.seam: SeamGuest
        self.ending: asyncio.Future[Outcome]

    def accept(self, opened: StreamOpen) -> asyncio.BaseProtocol | None:
        """Note the first call."""
        self.called = self.called or time.time()
        return self.seam.accept(opened)

    @property
    def call_ms(self) -> float:
        """Dispatch to first call."""
        return round((self.called - self.begin) * 1e3, 2)


class _Reports:
    """What agents write when they are done: (number, wall clock of the first answer); all else is their trouble."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.first_answer: dict[int, float] = {}
        self.trouble: list[str] = []
        self._rest = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.reader, self._read)

    def close(self) -> None:
        """Close both ends."""
        asyncio.get_running_loop().remove_reader(self.reader)
        os.close(self.reader)
        os.close(self.writer)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self.reader, 1 << 16)).split(b"\n")
        for line in lines:
            try:
                number, first = json.loads(line)
                self.first_answer[int(number)] = float(first)
            except (ValueError, TypeError):
                self.trouble.append(line.decode("utf-8", "replace"))
        self._changed.set()

    async def wait_for(self, agents: Sequence["_Agent"]) -> None:
        """Return when each of them has reported, or ended without."""
        while any(a.number not in self.first_answer and not a.ending.done() for a in agents):
            self._changed.clear()
            try:
                async with asyncio.timeout(_SAMPLE_S):
                    await self._changed.wait()
            except TimeoutError:
                pass


class _Run:
    """One measurement."""

    def __init__(self, pool: Pool, seam: Seam, reports: _Reports) -> None:
        self._pool, self._seam, self._reports = pool, seam, reports
        self.agents: list[_Agent] = []

    async def dispatch(self, calls: int, begin: float) -> _Agent:
        """Start one agent, which makes its calls from `begin` (wall clock) on."""
        agent = _Agent(len(self.agents), begin)
        agent.seam = self._seam.guest(f"agent-{agent.number}")
        arguments = [str(agent.number), str(self._seam.port), str(calls), f"{begin:.6f}"]
        agent.guest = await self._pool.start(
            Job(["-c", AGENT, *arguments], {"LLM_API_KEY": self._seam.key}),
            accept=agent.accept,
            names=agent.seam.names,
            stdout=self._reports.writer,
            stderr=self._reports.writer,
        )
        self.agents.append(agent)
        agent.ending = asyncio.ensure_future(agent.guest.ended())
        return agent

    async def end(self, agents: list[_Agent]) -> list[Outcome]:
        """End agents, tell the gateway, return how they ended."""
        for agent in agents:
            agent.guest.stop()
        outcomes = []
        for agent in agents:
            outcomes.append(await agent.ending)
            agent.seam.ended(outcomes[-1])
        return outcomes

    async def one_by_one(self, count: int, measured: Measured, progress: Progress) -> None:
        """Dispatch some with nothing else going on."""
        for done in range(count):
            progress("agents one by one", done, count)
            agent = await self.dispatch(1, time.time())
            async with asyncio.timeout(_GUEST_DEADLINE_S):
                await self._reports.wait_for([agent])
            await self.end([agent])
            first = self._reports.first_answer.pop(agent.number, 0.0)
            if first:
                measured.paced_call_ms.append(agent.call_ms)
                measured.paced_answer_ms.append(round((first - agent.begin) * 1e3, 2))
        progress("agents one by one", count, count)

    async def crowd(
        self, count: int, calls: int, measured: Measured, memory: PhysicalMemory, progress: Progress, idle_s: float
    ) -> None:
        """Dispatch all; when all are up, let them make their calls at once."""
        begin, start = time.time() + 1.0 + idle_s + count / _STARTS_PER_S, time.perf_counter()
        crowd = []
        for _ in range(count):
            crowd.append(await self.dispatch(calls, begin))
            await asyncio.sleep(0)
        for done, agent in enumerate(crowd):
            progress("agents up", done, count)
            await agent.guest.started()
        progress("agents up", count, count)
        measured.warm_start_s = time.perf_counter() - start
        await asyncio.sleep(max(0.0, begin - time.time() - 0.5))
        measured.idle_bytes = memory.used() // count
        await self._load(crowd, begin, measured, memory, progress)
        self._judge(crowd, await self.end(crowd), calls, measured)

    async def _load(
        self, crowd: list[_Agent], begin: float, measured: Measured, memory: PhysicalMemory, progress: Progress
    ) -> None:
        """Measure from `begin` until all have made their calls."""
        count = len(crowd)
        await asyncio.sleep(max(0.0, begin - time.time()))
        servers = [agent.guest.server for agent in crowd]
        moved = sum(s.bytes_in for s in servers), sum(s.bytes_out for s in servers)
        cpu, start, most = time.process_time(), time.perf_counter(), 0
        waiting = asyncio.ensure_future(self._reports.wait_for(crowd))
        until = start + _GUEST_DEADLINE_S + count / 5
        while not waiting.done() and time.perf_counter() < until:
            await asyncio.wait([waiting], timeout=_SAMPLE_S)
            most = max(most, memory.used())
            progress("calls of all agents at once", len(self._reports.first_answer), count)
        waiting.cancel()
        measured.calls_s = time.perf_counter() - start
        measured.gateway_cpu_ms_per_call = time.process_time() - cpu  # divided below, once the calls are counted
        measured.loaded_bytes = most // count
        measured.bytes_in = sum(s.bytes_in for s in servers) - moved[0]
        measured.bytes_out = sum(s.bytes_out for s in servers) - moved[1]

    def _judge(self, crowd: list[_Agent], outcomes: list[Outcome], calls: int, measured: Measured) -> None:
        first = self._reports.first_answer
        for agent, outcome in zip(crowd, outcomes, strict=True):
            if agent.number in first:
                measured.crowd_call_ms.append(agent.call_ms)
                measured.crowd_answer_ms.append(round((first[agent.number] - agent.begin) * 1e3, 2))
            elif len(measured.wrong) < 5:
                measured.wrong.append(f"agent {agent.number}: {outcome}")
        measured.wrong += self._reports.trouble[:10]
        measured.right = len(measured.crowd_call_ms)
        measured.calls = measured.right * calls
        measured.gateway_cpu_ms_per_call *= 1e3 / max(1, measured.calls)
        measured.names_asked = sum(agent.seam.names.queries for agent in self.agents)
        measured.cpu_ms_per_guest = sum(o.cpu_s for o in outcomes) / len(crowd) * 1e3


async def measure(
    template: Path, guests: int, calls: int, seam: Seam, progress: Progress, idle_s: float = 0.0
) -> Measured:
    """See the module. guests: how many at once. calls: HTTPS calls of each. idle_s: how long all wait, once up,
    before they call: after 15 s a guest gives back what it has not changed, after 30 s what KVM holds for it.

    Raises: VmmError if machines cannot be made; TimeoutError if an agent that is alone does not report.
    """
    measured = Measured(guests)
    with PhysicalMemory() as memory:
        measured.memory_method = memory.method
        async with Pool(template) as pool:
            reports = _Reports()
            try:
                start = time.perf_counter()
                progress("machines made warm", 0, guests)
                await pool.warm(guests)
                progress("machines made warm", guests, guests)
                measured.make_warm_s = time.perf_counter() - start
                measured.warm_bytes = memory.used() // guests
                run = _Run(pool, seam, reports)
                await run.one_by_one(min(PACED, guests), measured, progress)
                await run.crowd(guests, calls, measured, memory, progress, idle_s)
                measured.workers, measured.tier = pool.worker_count, pool.tier
            finally:
                reports.close()
    return measured
