"""`seamgate run --isolation kvm` at a terminal and in a pipe: it behaves as the program would without it."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cli import COMMAND_S, Running, environment
from support.kvm import need_kvm


class Terminal:
    """A terminal that a program was started at."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self.ours, self.process, self.said = ours, process, b""

    def until(self, text: bytes) -> None:
        """Wait until it shows this."""
        end = time.monotonic() + COMMAND_S
        while text not in self.said:
            assert select.select([self.ours], [], [], end - time.monotonic())[0], self.said
            self.said += os.read(self.ours, 65536)

    def type(self, keys: bytes) -> None:
        """As a person does."""
        os.write(self.ours, keys)


@contextmanager
def _terminal(home: Path, code: str) -> Iterator[Terminal]:
    ours, theirs = os.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "seamgate", "run", "--isolation", "kvm", "--", sys.executable, "-c", code],
        cwd=home,
        env=environment(home, None),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait(timeout=60)
        os.close(ours)


def test_a_conversation_and_ctrl_c(tmp_path: Path) -> None:
    """input() asks and gets an answer, prints show at once, Ctrl-C is a KeyboardInterrupt, Ctrl-D the end."""
    need_kvm()
    code = """
import sys
print('terminals', sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())
try:
    print('hello', input('who? '))
    while True: pass
except KeyboardInterrupt:
    print('interrupted')
print('rest', sys.stdin.read().split())
sys.exit(7)
"""
    with _terminal(tmp_path, code) as terminal:
        terminal.until(b"who? ")
        assert b"terminals True True True" in terminal.said
        terminal.type(b"world\n")
        terminal.until(b"hello world")
        terminal.type(b"\x03")
        terminal.until(b"interrupted")
        terminal.type(b"a b\n\x04")
        terminal.until(b"rest ['a', 'b']")
        assert terminal.process.wait(COMMAND_S) == 7


def test_a_pipe_and_what_is_left_in_it(tmp_path: Path) -> None:
    """In a shell's loop each run takes its own line and leaves the rest, as a program without a guest that reads
    unbuffered does."""
    need_kvm()
    code = "import os; print('got', os.read(0, 4))"
    command = f"'{sys.executable}' -m seamgate run --isolation kvm -- '{sys.executable}' -c \"{code}\""
    done = subprocess.run(
        ["sh", "-c", f"{command}; {command}; echo left; cat"],
        input=b"one\ntwo\nthree\n",
        capture_output=True,
        cwd=tmp_path,
        env=environment(tmp_path, None),
        timeout=COMMAND_S,
        check=True,
    )
    assert done.stdout == b"got b'one\\n'\ngot b'two\\n'\nleft\nthree\n", done


def test_sigterm_is_the_programs(tmp_path: Path) -> None:
    """SIGTERM to `seamgate run` runs the program's handler, and its exit code is the run's."""
    need_kvm()
    code = (
        "import signal, sys, threading\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        "print('ready', file=sys.stderr, flush=True)\n"
        "threading.Event().wait()"
    )
    with Running("run", "--isolation", "kvm", "--", sys.executable, "-c", code, home=tmp_path) as program:
        program.wait_for("ready")
        program.process.send_signal(signal.SIGTERM)
        assert program.ended() == 42
