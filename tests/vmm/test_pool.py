"""Many guests in jailed workers: they start, end, and end badly, without their neighbours noticing."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from seamgate_vmm import _kvm, ring
from seamgate_vmm import template as templates
from seamgate_vmm.errors import ProgramError, TemplateError
from seamgate_vmm.guest import Limits
from seamgate_vmm.host import Host
from seamgate_vmm.image import Mount
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest
from seamgate_vmm.ring import StreamOpen
from seamgate_vmm.runner import explain, python_arguments, run_program
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job

pytestmark = [pytest.mark.kvm, pytest.mark.usefixtures("patient_ring")]


@pytest.fixture(autouse=True)
def _patient_greetings(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a guest may take longer to greet than a program is given that lets the server speak first."""
    monkeypatch.setattr(ring, "_GREETING_WAIT_S", 10.0)


class Responder(asyncio.Protocol):
    """Answers each request head with what the stream was opened for."""

    def __init__(self, opened: StreamOpen) -> None:
        self.opened = opened
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.seen += data
        while b"\r\n\r\n" in self.seen:
            _, _, self.seen = self.seen.partition(b"\r\n\r\n")
            body = f"{self.opened.host} {self.opened.server_name} {self.opened.tls}".encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


class Pipes:
    """A pool with an output pipe."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)

    async def start(self, code: str, limits: Limits | None = None) -> PooledGuest:
        """Start a guest that runs this code."""
        return await self.pool.start(
            Job(["-c", code], {}), accept=Responder, stdout=self.write, stderr=self.write, limits=limits
        )

    def output(self) -> bytes:
        """What the guests have written so far."""
        try:
            return os.read(self.read, 1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


def with_pool(loaded: Loaded, test: Callable[[Pipes], Awaitable[None]], mounts: Sequence[Mount] = ()) -> None:
    """Run a test's coroutine with a pool."""

    async def run() -> None:
        async with (
            Pool(templates.path_of("test"), mounts=mounts, limits=Limits(wall_s=30)) as pool,
            asyncio.timeout(50),
        ):
            pipes = Pipes(pool)
            try:
                await test(pipes)
            finally:
                pipes.close()

    assert loaded.meta.name == "test"
    asyncio.run(run())


def test_guests_run_and_call(template: Loaded) -> None:
    """Guests in one worker run at once, each with its own ring; HTTPS arrives as plaintext with the server's name."""
    code = "import urllib.request as u; print(u.urlopen('https://one.test/').read().decode())"

    async def check(p: Pipes) -> None:
        guests = [await p.start(code) for _ in range(20)]
        outcomes = [await g.ended() for g in guests]
        assert {str(o) for o in outcomes} == {"exited (exit status 0)"}
        assert p.output() == b"one.test one.test True\n" * 20
        assert p.pool.worker_count == 2
        assert p.pool.guest_count == 0

    with_pool(template, check)


def test_warm_guests_start_at_once(template: Loaded) -> None:
    """Warm machines serve guests, and are used again for the next ones."""

    async def check(p: Pipes) -> None:
        assert await p.pool.warm(4) == 4
        for _ in range(3):
            guests = [await p.start("import os; print(os.getpid())") for _ in range(4)]
            assert [(await g.ended()).reason for g in guests] == [Reason.EXITED] * 4
        pids = p.output().split()
        assert len(set(pids)) == 12
        assert p.pool.worker_count == 1

    with_pool(template, check)


def test_bad_guests_end_alone(template: Loaded) -> None:
    """A guest that spins, faults, floods or lies is ended with its reason; its neighbours in the worker finish."""
    crash = "import ctypes; ctypes.string_at(0x1000)"
    lie = "import ctypes; ctypes.c_uint32.from_address(0x40000000).value = 0x7fffff00; import time; time.sleep(20)"

    async def check(p: Pipes) -> None:
        good = [await p.start("import time; time.sleep(0.5); print('fine')") for _ in range(3)]
        spin = await p.start("while True: pass", Limits(cpu_s=0.3))
        fault = await p.start(crash)
        flood = await p.start("while True: print('x' * 1000)", Limits(output_bytes=20_000))
        liar = await p.start(lie)
        slow = await p.start("import time; time.sleep(60)", Limits(wall_s=1))
        reasons = [(await g.ended()).reason for g in (spin, fault, flood, liar, slow)]
        assert reasons == [
            Reason.CPU_LIMIT,
            Reason.FAULT,
            Reason.OUTPUT_LIMIT,
            Reason.RING_VIOLATION,
            Reason.WALL_LIMIT,
        ]
        assert [(await g.ended()).reason for g in good] == [Reason.EXITED] * 3
        assert p.output().count(b"fine") == 3

    with_pool(template, check)


def test_stop_and_interrupt(template: Loaded) -> None:
    """The owner can end a guest whatever it does, or send it a Ctrl-C."""

    async def check(p: Pipes) -> None:
        spin = await p.start("while True: pass")
        await spin.started()
        spin.stop(detail="enough")
        outcome = await spin.ended()
        assert (outcome.reason, outcome.detail) == (Reason.STOPPED, "enough")
        sleeper = await p.start("print('in', flush=True)\nimport time\ntime.sleep(60)")
        while b"in" not in p.output():  # noqa: ASYNC110 - the other end of the pipe is a guest
            await asyncio.sleep(0.01)
        sleeper.signal(signal.SIGINT)
        assert (await sleeper.ended()).code == 130

    with_pool(template, check)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(x) for x in text.split()]


def test_a_dead_worker_takes_only_its_own(template: Loaded) -> None:
    """A worker that is killed ends its guests with that reason; the other workers' guests and new ones run."""

    async def check(p: Pipes) -> None:
        p.pool._per_worker = 2
        guests = [await p.start("import time; time.sleep(1)") for _ in range(4)]
        for g in guests:
            await g.started()
        first = min(_children(p.pool.nursery_pid))
        os.kill(first, signal.SIGKILL)
        reasons = [(await g.ended()).reason for g in guests]
        assert reasons == [Reason.WORKER_DIED] * 2 + [Reason.EXITED] * 2
        assert (await (await p.start("pass")).ended()).natural

    with_pool(template, check)


def test_nothing_is_left_behind(template: Loaded) -> None:
    """After a pool there is no process, no scratch folder and no descriptor of it."""
    before = set(os.listdir("/proc/self/fd"))
    places: list[Path] = []

    async def check(p: Pipes) -> None:
        assert p.pool._scratch_root is not None
        places.append(p.pool._scratch_root)
        guest = await p.start("open('/tmp/x', 'w').write('y'); import time; time.sleep(60)")
        await guest.started()
        places.append(Path(f"/proc/{p.pool.nursery_pid}"))

    with_pool(template, check)
    assert not any(place.exists() for place in places)
    assert len(set(os.listdir("/proc/self/fd"))) <= len(before) + 1


def test_scratch_is_private(template: Loaded) -> None:
    """One guest's scratch folder is not another's, and empty at the start also where a machine is used again."""
    code = "import os; print(os.listdir('/tmp')); open('/tmp/mine', 'w').write('x')"

    async def check(p: Pipes) -> None:
        for _ in range(3):
            assert (await (await p.start(code)).ended()).natural
        assert p.output() == b"[]\n[]\n[]\n"

    with_pool(template, check)


_DEEP = """
import os
place = '/tmp/chain'
os.mkdir(place)
for _ in range(10):
    os.makedirs('/tmp/next' + '/d' * 200)
    os.rename(place, '/tmp/next' + '/d' * 200 + '/below')
    os.rename('/tmp/next', place)
open('/tmp/file', 'w').close()
try:
    os.stat(place + '/d' * 260)
except OSError as error:
    print(error.errno)
"""


def test_a_scratch_folder_of_any_depth_is_deleted(template: Loaded) -> None:
    """Moved into each other, folders lie deeper than any path reaches: they go as others do; no neighbour notices."""
    places: list[Path] = []

    async def check(p: Pipes) -> None:
        assert p.pool._scratch_root is not None
        places.append(p.pool._scratch_root)
        neighbour = await p.start("import sys; sys.stdin.read(); import time; time.sleep(1); print('fine')")
        deep = await p.start(_DEEP)
        assert str(await deep.ended()) == "exited (exit status 0)"
        assert str(await neighbour.ended()) == "exited (exit status 0)"
        assert sorted(p.output().split()) == [b"%d" % errno.ENAMETOOLONG, b"fine"]
        left = await p.start(_DEEP + "import time; time.sleep(60)")
        await left.started()

    with_pool(template, check)
    assert not any(places[0].parent.glob(f"{places[0].name}*"))


def test_nobody_reading_does_not_hang_the_rest(template: Loaded) -> None:
    """A guest whose output nobody takes waits; the others go on, and it can be stopped."""

    async def check(p: Pipes) -> None:
        stuck = await p.start("while True: print('x' * 4000)")
        await stuck.started()
        for _ in range(3):
            other = await p.pool.start(Job(["-c", "pass"], {}), accept=Responder, stdout=_null(), stderr=_null())
            assert (await other.ended()).natural
        stuck.stop()
        assert (await stuck.ended()).reason is Reason.STOPPED

    with_pool(template, check)


_nulls: list[int] = []


def _null() -> int:
    if not _nulls:
        _nulls.append(os.open(os.devnull, os.O_WRONLY))
    return _nulls[0]


def test_a_missing_template_is_told() -> None:
    """A pool of a template that is not there, or damaged, does not open, and says why."""

    async def run() -> None:
        with pytest.raises(TemplateError, match="No such file"):
            await Pool(Path("/nowhere/x.sgt")).open()

    asyncio.run(run())


_JAILED: dict[str, tuple[Callable[[], object], bool]] = {
    "socket": (lambda: socket.socket(), False),
    "fork": (os.fork, False),
    "exec": (lambda: os.execv("/bin/true", ["true"]), False),
    "executable memory": (lambda: __import__("mmap").mmap(-1, 4096, prot=7), False),
    "ptrace": (lambda: __import__("ctypes").CDLL(None).ptrace(0, 0, 0, 0), False),
    "reading elsewhere": (lambda: open("/etc/passwd").close(), False),
    "writing elsewhere": (lambda: open("/tmp/seamgate-jail-test", "w").close(), False),
    "reading the view": (lambda: os.listdir("/usr/lib"), True),
}


@pytest.mark.parametrize("name", _JAILED)
def test_the_jail(host: Host, tmp_path: Path, name: str) -> None:
    """In a worker's jail there is no socket, process, program or path but the view's; what is needed works."""
    from seamgate_vmm.image import View
    from seamgate_vmm.nursery import enter_jail

    assert host.kvm >= 0
    call, allowed = _JAILED[name]
    child = os.fork()
    if child == 0:
        try:
            enter_jail(View([Mount("/usr/lib", "/usr/lib")], {}), tmp_path)
            call()
            os._exit(0)
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS
    refused = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 13
    assert (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0) if allowed else (killed or refused)


def test_run_program(template: Loaded, tmp_path: Path) -> None:
    """One call runs a program in its folder, with its network, and returns how it ended."""
    (tmp_path / "agent.py").write_text(
        "import sys, urllib.request, os\n"
        "print(urllib.request.urlopen('https://api.test/').read().decode(), sys.argv[1:])\n"
        "print(os.environ['KEY'], os.getcwd() == os.path.dirname(os.path.abspath(__file__)))\nsys.exit(4)\n"
    )
    read, write = os.pipe()

    async def run() -> Outcome:
        return await run_program(
            ["python3", "agent.py", "a"],
            accept=Responder,
            template="test",
            folder=tmp_path,
            env={"KEY": "k"},
            stdout=write,
            stderr=write,
        )

    outcome = asyncio.run(run())
    os.close(write)
    assert os.read(read, 10_000) == b"api.test api.test True ['a']\nk True\n"
    os.close(read)
    assert (outcome.reason, outcome.code) == (Reason.EXITED, 4)


def test_only_python_runs() -> None:
    """What is no Python program is refused before anything is started, with what to do."""
    assert python_arguments(["python", "-c", "x"]) == ["-c", "x"]
    assert python_arguments(["/usr/bin/python3.11", "a.py"]) == ["a.py"]
    assert python_arguments(["agent.py", "x"]) == ["agent.py", "x"]
    for bad in (["bash"], [], ["pythonista"], ["node", "x.js"]):
        with pytest.raises(ProgramError, match="begin with `python`"):
            python_arguments(bad)


def test_explanations_name_what_was_refused() -> None:
    """After a guest a person reads which calls it asked for in vain, and why it ended if it did not end by itself."""
    outcome = Outcome(Reason.FAULT, 70, "bad address 0x0", {"vfork": 1})
    assert explain(outcome) == [
        "seamgate: the guest asked for `vfork`, which microVMs do not have: use --isolation netns where it matters",
        "seamgate: the guest ended: fault (exit status 70): bad address 0x0",
    ]
    assert explain(replace(outcome, reason=Reason.EXITED, unsupported={})) == []


def test_the_control_page_is_not_trusted(template: Loaded) -> None:
    """A guest that overwrites what it tells the host of itself changes nothing but reports."""
    code = "import ctypes; ctypes.memset(0xc0000 + 232, 0xff, 2048); print('on')"

    async def check(p: Pipes) -> None:
        assert (await (await p.start(code)).ended()).natural
        assert p.output() == b"on\n"

    with_pool(template, check)
    assert _kvm.GA_CONTROL == 0xC0000
