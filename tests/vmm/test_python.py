"""CPython in a restored guest: it behaves as on Linux where it can, and says clearly where it can not."""

# ruff: noqa: E501 - programs inside are C and Python of their own

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seamgate_vmm import _kvm
from seamgate_vmm.guest import Guest, State
from seamgate_vmm.host import Host
from seamgate_vmm.image import Mount
from seamgate_vmm.outcome import Reason
from seamgate_vmm.ring import Accept
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job, rehearse, restore, view_of

from .conftest import ROOMY, Collect, Result, RunPython, drive

pytestmark = pytest.mark.kvm


def test_script_with_arguments_and_environment(run_python: RunPython, tmp_path: Path) -> None:
    """A script runs as `python script.py a b` does: argv, environment, folder, imports beside it, exit status."""
    (tmp_path / "helper.py").write_text("VALUE = 41\n")
    (tmp_path / "agent.py").write_text(
        "import os, sys, helper\nprint(__name__, sys.argv[1:], os.environ['TOKEN'], os.getcwd(), helper.VALUE + 1)\n"
        "print('oh', file=sys.stderr)\nsys.exit(3)\n"
    )
    place = str(tmp_path)
    result = run_python(
        "", argv=[f"{place}/agent.py", "a", "b c"], env={"TOKEN": "t"}, mounts=[Mount(place, place)], cwd=place
    )
    assert result.text == f"__main__ ['a', 'b c'] t {place} 42\n"
    assert result.err == b"oh\n"
    assert result.outcome.code == 3


def test_an_exception_is_told_as_usual(run_python: RunPython) -> None:
    """An uncaught exception prints its traceback, without the frames of the guest's own start, and exits with 1."""
    result = run_python("def f():\n    raise ValueError('no')\nf()")
    assert result.outcome.code == 1
    assert result.err.decode().splitlines()[-1] == "ValueError: no"
    assert b"bootstrap" not in result.err


def test_module_runs(run_python: RunPython) -> None:
    """-m MODULE runs as with python."""
    result = run_python("", argv=["-m", "json.tool", "--help"])
    assert result.outcome.code == 0
    assert "usage" in result.text


def test_environment_of_the_host_stays_outside(run_python: RunPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest sees what it was given and nothing of the host's environment."""
    monkeypatch.setenv("SECRET_OF_HOST", "x")
    result = run_python("import os; print(sorted(os.environ))", env={"A": "1"})
    assert "SECRET" not in result.text
    assert "'A'" in result.text
    assert "SEAMGATE_IMPORTS" not in result.text


_THREADS = """
import threading, queue, time
q, out = queue.Queue(), []
def work():
    while (x := q.get()) is not None:
        out.append(x * x)
        time.sleep(0.001)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[q.put(i) for i in range(40)]
[q.put(None) for _ in threads]
[t.join() for t in threads]
print(sum(out), threading.Event().wait(0.01))
stop, counts = False, [0, 0]
def spin(i):
    while not stop:
        counts[i] += 1
pair = [threading.Thread(target=spin, args=(i,)) for i in (0, 1)]
[t.start() for t in pair]
time.sleep(0.2)
stop = True
[t.join() for t in pair]
print(all(c > 1000 for c in counts))
"""


def test_threads_share_the_processor(run_python: RunPython) -> None:
    """Threads, queues, events and sleeping work, and threads that never make a call are preempted for each other."""
    assert run_python(_THREADS).text == "20540 False\nTrue\n"


_WAITING = """
import asyncio, os, select, socket, threading, time, signal
async def main():
    loop = asyncio.get_running_loop()
    return await asyncio.gather(loop.run_in_executor(None, lambda: sum(range(1000))), asyncio.sleep(0.01, 'slept'))
print(asyncio.run(main()))
r, w = os.pipe()
threading.Timer(0.01, os.write, (w, b'x')).start()
print(select.select([r], [], [], 5)[0] == [r], os.read(r, 9))
p = select.poll(); p.register(r, select.POLLIN)
print(p.poll(1))
os.close(w)
print(p.poll(1000)[0][1] & select.POLLHUP != 0, os.read(r, 9))
a, b = socket.socketpair()
a.sendall(b'y' * 10)
a.shutdown(socket.SHUT_WR)
print(b.recv(99), b.recv(99))
e = os.eventfd(3)
ep = select.epoll()
ep.register(e, select.EPOLLIN | select.EPOLLET)
print(len(ep.poll(1)), len(ep.poll(0)), os.eventfd_read(e))
os.eventfd_write(e, 1)
print(len(ep.poll(1)))
r, w = os.pipe2(os.O_NONBLOCK)
try:
    os.read(r, 1)
except BlockingIOError:
    print('would block')
total = 0
try:
    while True:
        total += os.write(w, b'z' * 1000)
except BlockingIOError:
    print(total > 4096)
signal.signal(signal.SIGALRM, lambda *_: print('alarm'))
signal.setitimer(signal.ITIMER_REAL, 0.01)
start = time.monotonic()
time.sleep(0.05)
print(0.05 <= time.monotonic() - start < 2)
"""


def test_waiting_and_signals(run_python: RunPython) -> None:
    """asyncio, select, poll, edge-triggered epoll, pipes, socket pairs, event counters and alarms behave as on Linux."""
    lines = run_python(_WAITING).text.splitlines()
    assert lines == [
        "[499500, 'slept']", "True b'x'", "[]", "True b''", "b'yyyyyyyyyy' b''", "1 0 3", "1", "would block", "True",
        "alarm", "True",
    ]  # fmt: skip


_REFUSED = """
import os, socket, subprocess
for name, call in {
    'subprocess': lambda: subprocess.run(['ls']), 'fork': os.fork, 'bind': lambda: socket.socket().bind(('', 80)),
    'raw': lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW), 'netlink': lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    'unix': lambda: socket.socket(socket.AF_UNIX).connect('/run/docker.sock'),
    'tcp': lambda: socket.create_connection(('192.0.2.1', 80), 1),
}.items():
    try:
        call()
        print(name, 'was allowed')
    except OSError as error:
        print(name, error.errno, error.strerror)
"""


def test_what_guests_cannot_do_says_so(run_python: RunPython) -> None:
    """Processes, listening, raw sockets and other families fail with an OSError whose text names what was asked."""
    lines = run_python(_REFUSED).text.splitlines()
    assert lines[0].startswith("subprocess 38 processes are not supported")
    assert lines[1].startswith("fork 38")
    assert lines[2].startswith("bind 95 bind is not supported")
    assert [line.split()[:2] for line in lines[3:]] == [["raw", "95"], ["netlink", "97"], ["unix", "2"], ["tcp", "101"]]


def test_files(run_python: RunPython) -> None:
    """Scratch files, temporary files, sqlite and directory listings work; the view outside is as it should be."""
    code = """
import os, sqlite3, tempfile, pathlib, shutil
with tempfile.TemporaryDirectory() as d:
    p = pathlib.Path(d, 'a.txt'); p.write_text('hello'); p.open('a').write('!')
    os.rename(p, p.with_name('b.txt')); print(os.listdir(d), p.with_name('b.txt').read_text())
    c = sqlite3.connect(d + '/x.db'); c.execute('create table t (a)'); c.executemany('insert into t values (?)', [(i,) for i in range(100)]); c.commit()
    print(c.execute('select sum(a) from t').fetchone()); c.close()
    os.makedirs(d + '/k/l'); shutil.rmtree(d + '/k')
print(os.path.exists('/root'), os.path.exists('/proc/1'), sorted(os.listdir('/run')))
"""
    result = run_python(code)
    assert result.text.splitlines()[:2] == ["['b.txt'] hello!", "(4950,)"], result.err
    assert "/proc" not in result.text.splitlines()[2]


_OWN = """
import os, random, secrets, ssl, tempfile, uuid
print(random.random(), random.Random().random(), uuid.uuid4(), uuid.uuid1(), ssl.RAND_bytes(8).hex(), os.urandom(8).hex(),
      secrets.token_hex(8), next(tempfile._get_candidate_names()), os.getpid(), sep='|')
"""


def test_64_clones_are_pairwise_different(host: Host, template: Loaded) -> None:
    """No two of 64 restored guests share a random number, an OpenSSL byte, a uuid, a temporary name or a pid."""
    view, rows = view_of(template.meta.roots), []
    warm = rehearse(host, template, view)
    for _ in range(64):
        console = Collect()
        warm = restore(host, template, Job(["-c", _OWN], {}), view, console, ROOMY, reuse=warm)
        assert drive(warm).code == 0, console.streams[2]
        rows.append(bytes(console.streams[1]).decode().strip().split("|"))
    warm.close()
    for column in zip(*rows, strict=True):
        assert len(set(column)) == 64


def test_clocks(run_python: RunPython) -> None:
    """A guest's wall clock is the host's; its monotonic clock goes on from the template's without a jump."""
    before = time.time()
    first, second, wall = map(
        float,
        run_python(
            "import time; a = time.monotonic(); time.sleep(0.02); print(a, time.monotonic(), time.time())"
        ).text.split(),
    )
    assert before - 0.05 <= wall <= time.time() + 0.05
    assert 0.02 <= second - first < 5
    assert first < 300


def test_nothing_before_the_confirmation(host: Host, template: Loaded) -> None:
    """A restored guest that does anything visible before it has confirmed its randomness is ended."""
    guest = restore(host, template, Job(["-c", "print(1)"], {}), view_of(template.meta.roots), Collect(), ROOMY)
    guest.expect_note(b"something else", 10)
    assert drive(guest).reason is Reason.NOT_RESEEDED
    guest.close()


def test_ctrl_c_reaches_the_program(host: Host, template: Loaded) -> None:
    """An interrupt becomes KeyboardInterrupt, in a program that sleeps and in one that computes."""
    for code in ("import time; time.sleep(60)", "while True: pass"):
        console = Collect()
        guest = restore(host, template, Job(["-c", code], {}), view_of(template.meta.roots), console, ROOMY)
        for _ in range(200):
            if guest.step(20_000) is State.WAITING:
                break
            if guest.machine.cpu_ns > 5e7 and "while" in code:
                break
        guest.signal(signal.SIGINT)
        outcome = drive(guest)
        guest.close()
        assert outcome.code == 130
        assert b"KeyboardInterrupt" in console.streams[2]


def test_a_reset_leaks_no_byte(host: Host, template: Loaded) -> None:
    """After one guest filled memory with a mark, not a byte of it is in the machine that the next one gets."""
    view, mark = view_of(template.meta.roots), b"\xc5\x3a\x9e\x71LEAK"
    code = f"""
m = bytes({list(mark)})
keep = [bytearray(m * 1000) for _ in range(2000)]
small = [m + bytes([i & 255]) for i in range(50000)]
import threading
def f():
    local = [m * 10 for _ in range(1000)]
[t.start() or t.join() for t in [threading.Thread(target=f) for _ in range(3)]]
import os
os.environ['X'] = 'LEAK' * 100
"""
    for warm in (False, True):
        guest = rehearse(host, template, view) if warm else None
        first = restore(host, template, Job(["-c", code], {}), view, Collect(), ROOMY, reuse=guest)
        assert drive(first).code == 0
        assert _count(first, mark) > 1000
        second = restore(host, template, Job(["-c", "pass"], {}), view, Collect(), ROOMY, reuse=first)
        assert _count(second, mark) == 0
        fresh = restore(host, template, Job(["-c", "pass"], {}), view, Collect(), ROOMY)
        assert _differences(second, fresh) == []
        assert drive(second).code == 0
        second.close()
        fresh.close()


def _count(guest: Guest, mark: bytes) -> int:
    machine = guest.machine
    return sum(
        machine.read(at, min(1 << 20, machine.end - at), True).count(mark) for at in range(0, machine.end, 1 << 20)
    )


def _differences(a: Guest, b: Guest) -> list[int]:
    """Pages that differ between two guests that have not run yet, but for the parameters and their own job."""
    first, second = a.machine, b.machine
    pages = range(0, second.end, 4096)
    out = [at for at in pages if first.read(at, 4096, True) != second.read(at, 4096, True)]
    return [at for at in out if at not in (_kvm.GA_PARAMS, _kvm.GA_CONTROL) and not _holds_job(first, at)]


def _holds_job(machine: _kvm.Machine, at: int) -> bool:
    page = machine.read(at, 4096, True)
    return b"PYTHONDONTWRITEBYTECODE" in page or b"-c\x00pass" in page


def test_memory_comes_back(run_python: RunPython) -> None:
    """A guest may use memory beyond its template's, up to its limit; over it there is a MemoryError, not an end."""
    code = """
x = bytearray(100 << 20); x[::4096] = b'1' * len(x[::4096]); del x
y = bytearray(100 << 20); print(any(y[::4096]))
try:
    z = bytearray(400 << 20)
except MemoryError:
    print('too much')
"""
    assert run_python(code).text == "False\ntoo much\n"


def test_float_state_is_kept_across_threads(run_python: RunPython) -> None:
    """Floating point is right in threads that interrupt each other all the time."""
    code = """
import threading, math
def f(seed, out):
    x = seed
    for _ in range(60000):
        x = math.sin(x) * 1.5 + math.sqrt(abs(x)) + seed
    out.append(x)
alone = []
for s in (0.1, 0.2, 0.3): f(s, alone)
together = {}
def g(s):
    out = []; f(s, out); together[s] = out[0]
threads = [threading.Thread(target=g, args=(s,)) for s in (0.1, 0.2, 0.3)]
[t.start() for t in threads]; [t.join() for t in threads]
print([together[s] for s in (0.1, 0.2, 0.3)] == alone)
"""
    assert run_python(code).text == "True\n"


def test_refused_sockets_are_named(run_with_ring: Callable[[str, Accept], Result]) -> None:
    """A raw socket, a family that is not there and a datagram other than a name's question are OSErrors that name what is
    missing and what has it; the host is told of the calls."""
    code = (
        "import socket\n"
        "def attempt(*arguments, to=None):\n"
        "    try:\n"
        "        with socket.socket(*arguments) as s:\n"
        "            s.sendto(b'x', to)\n"
        "    except OSError as error:\n"
        "        print(error)\n"
        "attempt(socket.AF_INET, socket.SOCK_RAW, 1)\n"
        "attempt(socket.AF_PACKET, socket.SOCK_DGRAM)\n"
        "attempt(socket.AF_INET, socket.SOCK_DGRAM, to=('192.0.2.1', 123))\n"
    )
    result = run_with_ring(code, lambda _: None)
    raw, family, datagram = result.text.splitlines()
    assert "raw sockets are not supported in a guest; seamgate run --isolation netns has it" in raw
    assert "this family of sockets is not supported in a guest" in family
    assert "datagrams are not supported in a guest, but for names (port 53)" in datagram
    assert {"socket", "sendto"} <= set(result.outcome.unsupported)
