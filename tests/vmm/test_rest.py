"""Guests that stand still: parked in memory or hibernated on disk, they go on as the guests that they were."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from seamgate_vmm import template as templates
from seamgate_vmm.dormant import Dormitory
from seamgate_vmm.errors import HibernationError
from seamgate_vmm.guest import Limits
from seamgate_vmm.outcome import Reason
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest, Rest
from seamgate_vmm.ring import StreamOpen
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job

_BOUND_S = 60.0


# ---- guests in a pool


class Echo(asyncio.Protocol):
    """Answers with what it gets, and remembers how its stream ended."""

    ended: list[Exception | None] = []

    def __init__(self, opened: StreamOpen) -> None:
        self.opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        type(self).ended.append(exc)


class Talk:
    """A guest with pipes of its own: it is told lines, and says lines."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.told: list[tuple[str, Mapping[str, str]]] = []
        self._said = b""
        self._out, self._out_write = os.pipe()
        self._in_read, self._in = os.pipe()
        os.set_blocking(self._out, False)
        self.guest: PooledGuest

    async def start(self, code: str, limits: Limits | None = None) -> Talk:
        self.guest = await self.pool.start(
            Job(["-c", code], {}),
            accept=Echo,
            stdout=self._out_write,
            stderr=self._out_write,
            stdin=self._in_read,
            limits=limits,
            on_change=lambda event, facts: self.told.append((event, facts)),
        )
        for fd in (self._out_write, self._in_read):
            os.close(fd)
        return self

    def tell(self, line: str) -> None:
        os.write(self._in, line.encode() + b"\n")

    async def line(self) -> str:
        while b"\n" not in self._said:
            try:
                self._said += os.read(self._out, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.005)
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    async def ask(self, line: str) -> str:
        self.tell(line)
        return await self.line()

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)


def with_pool(loaded: Loaded, test: Callable[[Pool], Awaitable[None]], **settings: Any) -> None:
    """Run a test's coroutine with a pool."""

    async def run() -> None:
        settings.setdefault("limits", Limits(wall_s=_BOUND_S))
        async with Pool(templates.path_of("test"), **settings) as pool, asyncio.timeout(_BOUND_S):
            await test(pool)

    assert loaded.meta.name == "test"
    asyncio.run(run())


# Has something in every kind of place: heap, a thread with floating point, an open file, scratch, randomness, clocks.
_LIVING = """
import decimal, hashlib, os, random, sys, threading, time
number = int(sys.stdin.readline())
keep = [hashlib.sha256(b'%d %d' % (number, i)).hexdigest() for i in range(500)]
digest = hashlib.sha256(''.join(keep).encode()).hexdigest()
scratch = open('/tmp/mine', 'w+')
scratch.write(str(number)); scratch.flush()
hosts = open('/etc/hosts'); hosts.readline()
pi = decimal.Decimal(2).sqrt() * number
wrong = []
def count():
    x = 1.0
    while True:
        x = x * 1.5 / 1.5
        if abs(x - 1.0) > 1e-9 or decimal.Decimal(2).sqrt() * number != pi:
            wrong.append(x)
        time.sleep(0.05)
threading.Thread(target=count, daemon=True).start()
mono = time.monotonic()
first = random.random()
print('began', flush=True)
for line in sys.stdin:
    scratch.seek(0)
    assert hashlib.sha256(''.join(keep).encode()).hexdigest() == digest
    now = time.monotonic()
    assert now >= mono and not wrong
    mono = now
    print(number, scratch.read(), hosts.readline().strip(), os.getpid(), random.random() != first,
          round(time.time()), flush=True)
print('end')
"""


async def _check(talk: Talk, number: int, hosts: str) -> str:
    words = (await talk.ask("check")).rsplit(" ", 3)
    assert words[0] == f"{number} {number} {hosts}", words
    assert words[2] == "True" and abs(int(words[3]) - time.time()) < 5
    return words[1]


@pytest.mark.kvm
@pytest.mark.timeout(240)
def test_64_guests_hibernate_and_go_on(template: Loaded) -> None:
    """64 guests go to disk and come back, in other workers and machines, each as itself: memory, threads, files,
    clocks, process number; the machines that they leave serve others meanwhile."""

    async def check(pool: Pool) -> None:
        talks = [await Talk(pool).start(_LIVING) for _ in range(64)]
        for number, talk in enumerate(talks):
            talk.tell(str(number))
        for talk in talks:
            assert await talk.line() == "began"
        pids = [await _check(talk, number, "::1 localhost") for number, talk in enumerate(talks)]
        assert len(set(pids)) == 64
        sizes = [await pool.hibernate(talk.guest) for talk in talks]
        assert (pool.guest_count, pool.hibernated_count) == (0, 64)
        assert max(sizes) < 2 << 20
        other = await Talk(pool).start("print('other')")
        assert (await other.line(), (await other.guest.ended()).code) == ("other", 0)
        other.close()
        for number in random.sample(range(64), 64):
            await pool.resume(talks[number].guest)
        assert [await _check(talk, number, "") for number, talk in enumerate(talks)] == pids
        for talk in talks:
            talk.close()
            assert (await talk.guest.ended()).reason is Reason.EXITED
            assert [event for event, _ in talk.told] == ["guest_hibernate", "guest_resume"]

    with_pool(template, check, limits=Limits(wall_s=200))


@pytest.mark.kvm
def test_a_parked_guest_is_not_scheduled_and_goes_on(template: Loaded) -> None:
    """A parked guest computes nothing, keeps its streams, takes signals when it goes on, and can be hibernated."""
    code = """
import socket, sys
s = socket.create_connection(('echo.test', 7))
s.sendall(b'one'); assert s.recv(3) == b'one'
print('began', flush=True)
for line in sys.stdin:
    s.sendall(line.encode())
    print(s.recv(100).decode().strip(), flush=True)
"""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start(code)
        assert await talk.line() == "began"
        for word in ("two", "three"):
            await pool.park(talk.guest)
            assert talk.guest.rest is Rest.PARKED
            talk.tell(word)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await talk.line()
            await pool.resume(talk.guest)
            assert await talk.line() == word
        await pool.park(talk.guest)
        await pool.hibernate(talk.guest)
        await pool.resume(talk.guest)
        talk.tell("four")
        assert "ConnectionResetError" in await _last_line(talk)
        assert (await talk.guest.ended()).code == 1
        assert [(event, facts.get("from")) for event, facts in talk.told] == [
            ("guest_park", None),
            ("guest_resume", "parked"),
            ("guest_park", None),
            ("guest_resume", "parked"),
            ("guest_park", None),
            ("guest_hibernate", None),
            ("guest_resume", "hibernated"),
        ]
        talk.close()

    Echo.ended.clear()
    with_pool(template, check)
    assert len(Echo.ended) == 1


# `jmp` to itself: the shim is never called.
_JUMPS = """
import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(bytes.fromhex('ebfe'))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
"""


async def _last_line(talk: Talk) -> str:
    line = ""
    while "Error" not in line:
        line = await talk.line()
    return line


@pytest.mark.kvm
def test_streams_end_visibly_and_new_ones_work(template: Loaded) -> None:
    """Hibernation ends open streams on both sides first; after it the guest connects again, by the name it knew."""
    code = """
import socket, sys
def connect():
    s = socket.create_connection(('echo.test', 7))
    s.sendall(b'hello'); assert s.recv(5) == b'hello'
    return s
s = connect()
print('began', flush=True)
sys.stdin.readline()
try:
    s.sendall(b'more'); print('sent', s.recv(10), flush=True)
except ConnectionResetError:
    print('reset', flush=True)
s = connect()
print('again', flush=True)
"""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start(code)
        assert await talk.line() == "began"
        assert talk.guest.server.stream_count == 1
        await pool.hibernate(talk.guest)
        assert len(Echo.ended) == 1
        await pool.resume(talk.guest)
        assert [await talk.ask("go"), await talk.line()] == ["reset", "again"]
        assert (await talk.guest.ended()).code == 0
        talk.close()

    Echo.ended.clear()
    with_pool(template, check)


@pytest.mark.kvm
@pytest.mark.parametrize("code", ["x = 1.0\nwhile True: x = x * 1.1 / 1.1", _JUMPS])
def test_a_busy_guest_stands_still(template: Loaded, code: str) -> None:
    """One that computes without ever making a call, in Python or in machine code, has no say in it."""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start(f"print('began', flush=True)\n{code}")
        assert await talk.line() == "began"
        for rest in (pool.park, pool.hibernate):
            await rest(talk.guest)
            await pool.resume(talk.guest)
        talk.guest.stop()
        assert (await talk.guest.ended()).reason is Reason.STOPPED
        talk.close()

    with_pool(template, check)


@pytest.mark.kvm
def test_one_that_waits_for_its_reader_goes_on(template: Loaded) -> None:
    """A guest whose output nobody takes is in the middle of a request: refused in time, and nothing of it is lost."""
    code = "print('began', flush=True)\nfor n in range(100_000): print(n)\nprint('end')"

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start(code)
        assert await talk.line() == "began"
        with pytest.raises(HibernationError, match="did not stand still"):
            await pool.hibernate(talk.guest)
        assert talk.guest.rest is Rest.RUNNING
        for number in range(100_000):
            assert await talk.line() == str(number)
        assert await talk.line() == "end"
        assert (await talk.guest.ended()).code == 0
        talk.close()

    with_pool(template, check)


@pytest.mark.kvm
def test_a_caller_that_gives_up_leaves_it_running(template: Loaded) -> None:
    """However soon parking or hibernating is cancelled, the guest answers afterwards, and can be parked again."""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start(_LIVING)
        talk.tell("3")
        assert await talk.line() == "began"
        ways: list[Callable[[PooledGuest], Awaitable[object]]] = [pool.park, pool.hibernate]
        for turn, rest in enumerate(ways * 6):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await rest(talk.guest)
            assert talk.guest.rest is Rest.RUNNING
            await _check(talk, 3, "" if turn else "::1 localhost")
        await pool.park(talk.guest)
        await pool.resume(talk.guest)
        await _check(talk, 3, "")
        talk.close()

    with_pool(template, check)


@pytest.mark.kvm
def test_a_damaged_file_is_refused(template: Loaded) -> None:
    """Any change of the file, another guest's file, or an older one of the same guest: refused, with the reason; the
    guest stays hibernated, and goes on from the right one."""

    async def check(pool: Pool) -> None:
        one, two = [await Talk(pool).start(_LIVING) for _ in range(2)]
        for number, talk in enumerate((one, two)):
            talk.tell(str(number))
            assert await talk.line() == "began"
            await pool.hibernate(talk.guest)
        assert pool._dormitory is not None
        path, other = pool._dormitory.path(one.guest.number), pool._dormitory.path(two.guest.number)
        whole = path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
        damaged = [whole[:-1], whole + b"x", b"", whole[:10], other.read_bytes()]
        for _ in range(20):
            at = random.randrange(len(whole))
            damaged.append(whole[:at] + bytes([whole[at] ^ 1 << random.randrange(8)]) + whole[at + 1 :])
        for bad in damaged:
            path.write_bytes(bad)
            with pytest.raises(HibernationError, match="its file"):
                await pool.resume(one.guest)
            assert one.guest.rest is Rest.HIBERNATED
        path.write_bytes(whole)
        await pool.resume(one.guest)
        assert not path.exists()
        await _check(one, 0, "::1 localhost")
        await pool.hibernate(one.guest)
        path.write_bytes(whole)  # what it was before: it would use its randomness twice
        with pytest.raises(HibernationError, match="damaged, cut short, of another guest"):
            await pool.resume(one.guest)
        two.guest.stop()
        assert (await two.guest.ended()).reason is Reason.STOPPED
        assert not other.exists()
        for talk in (one, two):
            talk.close()

    with_pool(template, check)


@pytest.mark.kvm
def test_a_full_disk_keeps_the_guest(template: Loaded, tmp_path: Path) -> None:
    """Where its file can't be written the guest goes on; hibernating it is refused with the reason."""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start(_LIVING)
        talk.tell("5")
        assert await talk.line() == "began"
        await pool.park(talk.guest)
        await pool.resume(talk.guest)
        pool._dormitory = Dormitory(tmp_path)
        pool._dormitory.path(talk.guest.number).mkdir()
        with pytest.raises(HibernationError, match="can't be written"):
            await pool.hibernate(talk.guest)
        assert talk.guest.rest is Rest.RUNNING
        await _check(talk, 5, "::1 localhost")
        talk.close()

    with_pool(template, check)


@pytest.mark.kvm
def test_what_it_left_behind_is_nobodys(template: Loaded) -> None:
    """The machine of a hibernated guest serves the next one without a byte of it; neither its file nor what a worker
    makes of it names what it held."""
    mark = os.urandom(16).hex()
    keeps = f"import sys\nkeep = ['{mark}' * 50 for _ in range(1000)]\nprint('began', flush=True)\nsys.stdin.readline()"
    # Neither the pattern nor a match is in memory as what it looks for.
    seeks = """
import ctypes, re, sys
size = 0x4000000 - 0x200000
memory = memoryview((ctypes.c_char * size).from_address(0x200000)).cast('B')
pattern = b''.join(b'[%c]' % c for c in bytes.fromhex(sys.stdin.readline())) * 3
print(sum(1 for _ in re.finditer(pattern, memory)), flush=True)
"""

    async def check(pool: Pool) -> None:
        await pool.warm(1)
        talk = await Talk(pool).start(keeps)
        assert await talk.line() == "began"
        await pool.hibernate(talk.guest)
        assert pool._dormitory is not None
        sealed = pool._dormitory.path(talk.guest.number).read_bytes()
        assert mark.encode() not in sealed and b"HIBR" not in sealed
        nosy = await Talk(pool).start(seeks)
        assert await nosy.ask(mark.encode().hex()) == "0"
        await pool.resume(talk.guest)
        talk.tell("end")
        assert (await talk.guest.ended()).code == 0
        finds = await Talk(pool).start(f"keep = '{mark}' * 50\n{seeks}")
        assert int(await finds.ask(mark.encode().hex())) > 0  # it does find what is there
        for each in (talk, nosy, finds):
            each.close()

    with_pool(template, check)


@pytest.mark.kvm
def test_open_files_that_changed(template: Loaded, tmp_path: Path) -> None:
    """A file that was replaced meanwhile gives ESTALE, never another file's bytes; one without a name keeps its guest
    from being hibernated."""
    from seamgate_vmm.image import Mount

    (tmp_path / "data").write_text("old\nlines\n")
    code = """
import sys
data = open('/data/data', buffering=1)
import os
first = os.read(data.fileno(), 4)
print('began', flush=True)
sys.stdin.readline()
try:
    print(os.read(data.fileno(), 4), flush=True)
except OSError as error:
    print(error.strerror, flush=True)
os.close(data.fileno())
nameless = open('/tmp/x', 'w'); os.unlink('/tmp/x')
print('nameless', flush=True)
sys.stdin.readline()
"""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start(code)
        assert await talk.line() == "began"
        await pool.hibernate(talk.guest)
        (tmp_path / "new").write_text("new\nlines\n")
        (tmp_path / "new").rename(tmp_path / "data")
        await pool.resume(talk.guest)
        assert await talk.ask("go") == "Stale file handle"
        assert await talk.line() == "nameless"
        with pytest.raises(HibernationError, match="/tmp/x open, which was deleted"):
            await pool.hibernate(talk.guest)
        talk.tell("end")
        assert (await talk.guest.ended()).code == 0
        talk.close()

    with_pool(template, check, mounts=[Mount("/data", str(tmp_path))])


@pytest.mark.kvm
def test_only_what_makes_sense_is_done(template: Loaded) -> None:
    """Parking twice, resuming what runs, anything with a guest that is over: refused. Limits of time do not run on."""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start("import sys\nprint('began', flush=True)\nsys.stdin.readline()", Limits(wall_s=3))
        assert await talk.line() == "began"
        with pytest.raises(HibernationError, match="is running"):
            await pool.resume(talk.guest)
        await pool.park(talk.guest)
        with pytest.raises(HibernationError, match="is parked"):
            await pool.park(talk.guest)
        await pool.hibernate(talk.guest)
        with pytest.raises(HibernationError, match="resume it first"):
            talk.guest.signal(signal.SIGTERM)
        await pool.resume(talk.guest)
        talk.tell("end")
        assert (await talk.guest.ended()).code == 0
        with pytest.raises(HibernationError, match="is over"):
            await pool.hibernate(talk.guest)
        talk.close()

    with_pool(template, check)
