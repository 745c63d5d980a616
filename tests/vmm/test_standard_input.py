"""Standard input and signals of a guest: what is the caller's reaches the program, when it asks, and no sooner."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from seamgate.tasks import spawn
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.runner import run_program
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.standard_input import POLL_BYTES, Feed, PipeInput

_BOUND_S = 30.0


# ---- without a guest


async def _got(reader: PipeInput, feed: Feed, size: int) -> bytes:
    """Read as a worker does: ask, wait for the pipe, read again."""
    async with asyncio.timeout(_BOUND_S):
        while (data := reader.read(size)) is None:
            arrived = asyncio.Event()
            asyncio.get_running_loop().add_reader(reader.fd, arrived.set)
            await arrived.wait()
            asyncio.get_running_loop().remove_reader(reader.fd)
            reader.waiting = False
        return data


@contextmanager
def _source(kind: str, content: bytes) -> Iterator[int]:
    """A descriptor that gives this and ends."""
    if kind == "file":
        with tempfile.TemporaryFile() as f:
            f.write(content)
            f.seek(0)
            yield f.fileno()
        return
    if kind == "pipe":
        read, write = os.pipe()
    else:
        a, b = socket.socketpair()
        read, write = a.detach(), b.detach()
    os.write(write, content)
    os.close(write)
    yield read
    os.close(read)


@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
async def test_pieces_and_the_end(kind: str) -> None:
    """Files, pipes and sockets are read in pieces of what was asked for, and then are at their end for ever."""
    content = bytes(range(256)) * 40
    with _source(kind, content) as source:
        feed = Feed(source)
        reader = PipeInput(feed.read_end, feed.want)
        got = b""
        while piece := await _got(reader, feed, 1000):
            assert len(piece) <= 1000
            got += piece
        assert got == content
        assert (await _got(reader, feed, 10), reader.ready()) == (b"", True)
        feed.close()


@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
async def test_what_is_not_read_stays_with_the_caller(kind: str) -> None:
    """Nothing is taken before it is asked for, and no more than that: a shell loop keeps its other lines."""
    with _source(kind, b"one\ntwo\nthree\n") as source:
        feed = Feed(source)
        reader = PipeInput(feed.read_end, feed.want)
        assert await _got(reader, feed, 4) == b"one\n"
        feed.close()
        assert os.read(source, 100) == b"two\nthree\n"


async def test_a_poll_takes_little() -> None:
    """A program that polls is told when there is something; what is taken for that is bounded."""
    read, write = os.pipe()
    feed = Feed(read)
    reader = PipeInput(feed.read_end, feed.want)
    assert not reader.ready()
    os.write(write, b"x" * 60_000)
    async with asyncio.timeout(_BOUND_S):
        while not reader.ready():  # noqa: ASYNC110 - the other end is a pipe
            await asyncio.sleep(0)
    feed.close()
    assert len(os.read(read, 100_000)) == 60_000 - POLL_BYTES
    os.close(read)
    os.close(write)


async def test_the_callers_descriptor_keeps_its_mode() -> None:
    """Other programs share it: it is never made non-blocking, and closing leaves it open."""
    read, write = os.pipe()
    feed = Feed(read)
    feed.want(10)
    assert os.get_blocking(read)
    feed.close()
    feed.close()
    os.write(write, b"still")
    assert os.read(read, 10) == b"still"
    os.close(read)
    os.close(write)


async def test_one_question_at_a_time() -> None:
    """A guest that asks again and again before anything came makes one message, not thousands."""
    asked: list[int] = []
    read, write = os.pipe()
    reader = PipeInput(read, asked.append)
    for _ in range(1000):
        assert reader.read(7) is None
        assert not reader.ready()
    assert asked == [7]
    os.close(read)
    os.close(write)


# ---- with a guest


class Guest:
    """A guest under way, as `run_program` has it: its output, its input, and this process, which gets the signals."""

    def __init__(self, read: int, stdin: int) -> None:
        self.said = bytearray()
        self.stdin = stdin
        self._read = read

    async def until(self, text: bytes) -> None:
        """Wait until it has said this."""
        while text not in self.said:
            try:
                self.said += os.read(self._read, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.01)

    def end_input(self) -> None:
        """Close its standard input."""
        os.close(self.stdin)
        self.stdin = -1


Meanwhile = Callable[[Guest], Awaitable[None]]


async def _nothing(_: Guest) -> None:
    pass


def _run(code: str, meanwhile: Meanwhile = _nothing, *, stdin: int | None = None) -> tuple[Outcome, str]:
    """Run code in a guest, and do something once it has said "ready"."""

    async def run() -> tuple[Outcome, str]:
        read, write = os.pipe()
        os.set_blocking(read, False)
        in_read, in_write = os.pipe()
        guest = Guest(read, in_write)

        async def when_ready() -> None:
            await guest.until(b"ready")
            await meanwhile(guest)

        async with asyncio.timeout(_BOUND_S):
            ready = spawn(when_ready(), name="when ready")
            outcome = await run_program(
                ["python", "-c", code],
                accept=lambda _: None,
                template="test",
                stdin=in_read if stdin is None else stdin,
                stdout=write,
                stderr=write,
                grace_s=0.5,
            )
            await ready
        os.close(write)
        with os.fdopen(read, "rb") as rest:
            guest.said += rest.read() or b""
        os.close(in_read)
        if guest.stdin >= 0:
            guest.end_input()
        return outcome, guest.said.decode()

    return asyncio.run(run())


@pytest.mark.kvm
def test_lines_and_the_end(template: Loaded) -> None:
    """sys.stdin gives lines as they come, and its end; a thread goes on while the main thread waits for one."""
    code = """
import sys, threading, time
def tick():
    for _ in range(5):
        time.sleep(0.001)
    print('ready', sys.stdin.isatty(), flush=True)
threading.Thread(target=tick).start()
for line in sys.stdin:
    print(line.strip(), flush=True)
print('end', repr(sys.stdin.read()))
"""

    async def write(guest: Guest) -> None:
        os.write(guest.stdin, b"first\n")
        await guest.until(b"first")
        os.write(guest.stdin, b"second\nthird")
        await guest.until(b"second")
        guest.end_input()

    assert template.meta.name == "test"
    outcome, text = _run(code, write)
    assert (outcome.code, text) == (0, "ready False\nfirst\nsecond\nthird\nend ''\n")


@pytest.mark.kvm
def test_much_input_in_asyncio(template: Loaded) -> None:
    """A megabyte through an event loop that polls standard input arrives whole and in order."""
    code = """
import asyncio, hashlib, sys
async def main():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print('ready', flush=True)
    data = await reader.read()
    print(len(data), hashlib.sha256(data).hexdigest())
asyncio.run(main())
"""
    data = os.urandom(1 << 20)

    def write_all(fd: int) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    async def write(guest: Guest) -> None:
        await asyncio.to_thread(write_all, guest.stdin)
        guest.end_input()

    assert template.meta.name == "test"
    outcome, text = _run(code, write)
    assert text == f"ready\n{1 << 20} {hashlib.sha256(data).hexdigest()}\n", outcome


@pytest.mark.kvm
def test_a_file_as_input(template: Loaded) -> None:
    """A file is read from where the caller stands in it, and select says that it is ready."""
    code = "import select, sys; print('ready', select.select([0], [], [])[0], sys.stdin.read())"
    with tempfile.TemporaryFile() as f:
        f.write(b"skipped, read")
        f.seek(9)
        assert template.meta.name == "test"
        outcome, text = _run(code, stdin=f.fileno())
    assert (outcome.code, text) == (0, "ready [0] read\n")


def _send(number: signal.Signals) -> Meanwhile:
    async def send(_: Guest) -> None:
        os.kill(os.getpid(), number)

    return send


_HANDLER = """
import signal, sys, time
def on_term(*_):
    print('asked to end')
    sys.exit(42)
signal.signal(signal.SIGTERM, on_term)
signal.signal(signal.SIGHUP, on_term)
print('ready', flush=True)
"""
_WAITS = {
    "sleeping": "time.sleep(60)",
    "computing": "while True: pass",
    "reading": "sys.stdin.read()",
    "in a lock": "import threading; threading.Lock().acquire() and threading.Event().wait()",
}


@pytest.mark.kvm
@pytest.mark.parametrize("name", _WAITS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_handler_runs(template: Loaded, name: str, number: signal.Signals) -> None:
    """A signal to this process runs the program's handler, whatever it is doing; it ends in its own way."""
    assert template.meta.name == "test"
    outcome, text = _run(_HANDLER + _WAITS[name], _send(number))
    assert (outcome.reason, outcome.code, text) == (Reason.EXITED, 42, "ready\nasked to end\n")


@pytest.mark.kvm
def test_without_a_handler_it_ends_as_a_process_does(template: Loaded) -> None:
    """SIGTERM without a handler: 128 + 15."""
    assert template.meta.name == "test"
    outcome, _ = _run("print('ready', flush=True)\nimport time\ntime.sleep(60)", _send(signal.SIGTERM))
    assert (outcome.reason, outcome.code) == (Reason.SIGNALLED, 143)


@pytest.mark.kvm
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_ignores_it_is_ended(template: Loaded, number: signal.Signals) -> None:
    """After the grace, or at the second Ctrl-C, the guest is ended, with a reason of its own."""
    code = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, lambda *_: print('not yet', flush=True))
print('ready', flush=True)
while True: time.sleep(1)
"""

    async def send(guest: Guest) -> None:
        os.kill(os.getpid(), number)
        if number is signal.SIGINT:
            await guest.until(b"not yet")
            os.kill(os.getpid(), number)

    assert template.meta.name == "test"
    outcome, _ = _run(code, send)
    detail = "interrupted twice" if number is signal.SIGINT else "0.5 s after SIGTERM"
    assert (outcome.reason, outcome.code, outcome.detail) == (Reason.IGNORED_STOP, 128 + number, detail)
