"""Standard input of guests: taken from the caller when the guest asks for it, in bounded pieces, and no sooner.

    caller's descriptor ──> Feed (gateway) ──pipe──> PipeInput (worker) ──> guest

What a program does not read stays with the caller, as without a guest: a shell loop keeps its other lines, a program in
the background does not stop at a terminal that it never reads. `runner.py` makes the Feed, `worker.py` the PipeInput.
"""

import asyncio
import fcntl
import os
import select
import stat
from collections.abc import Callable

# A program that polls, which says nothing of how much it will read, may have this much taken that it never reads.
POLL_BYTES = 4096
_MOST_BYTES = 65536  # a pipe's usual room; a user with many pipes gets less


class PipeInput:
    """A guest's end, in its worker: a pipe, and a way to ask for more. Implements `guest.Input`.

    want: told how many bytes the guest would read when the pipe is empty; once until something came.
    """

    def __init__(self, fd: int, want: Callable[[int], None]) -> None:
        self.fd = fd
        self.waiting = False  # the guest found nothing: tell it when that changes
        self._want = want
        os.set_blocking(fd, False)

    def read(self, size: int) -> bytes | None:
        """See guest.Input."""
        try:
            return os.read(self.fd, size)
        except BlockingIOError:
            self._ask(size)
            return None

    def ready(self) -> bool:
        """See guest.Input."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if poll.poll(0):
            return True
        self._ask(POLL_BYTES)
        return False

    def _ask(self, size: int) -> None:
        if not self.waiting:
            self.waiting = True
            self._want(size)


class Feed:
    """The caller's end: moves what was asked for from a descriptor to the guest's pipe.

    source: borrowed; it may be a file, a pipe, a socket or a terminal. What it shares with other processes (its mode,
    and the position behind what was read) is left as reading would leave it.
    Runs on: the event loop.
    """

    def __init__(self, source: int) -> None:
        self.is_terminal = os.isatty(source)
        self.read_end, self._write_end = os.pipe()
        self._room = min(_MOST_BYTES, fcntl.fcntl(self._write_end, fcntl.F_GETPIPE_SZ))
        self._own = _unblocked(source)
        self._source = source if self._own < 0 else self._own
        self._can_wait = _can_wait(self._source)
        self._loop = asyncio.get_running_loop()
        self._size = 0  # asked for and not delivered; the pipe is empty meanwhile

    def want(self, size: int) -> None:
        """Deliver up to so many bytes once there are some, or the end."""
        asked, self._size = self._size, max(1, min(size, self._room))
        if asked or self._write_end < 0:
            return
        if self._can_wait:
            self._loop.add_reader(self._source, self._move)
        else:
            self._move()

    def _move(self) -> None:
        try:
            data = os.read(self._source, self._size)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # what can't be read (a directory, a terminal that is gone) is at its end
        self._idle()
        if not data:
            os.close(self._write_end)
            self._write_end = -1
            return
        try:
            os.write(self._write_end, data)  # has room: nothing is asked for before the pipe was empty
        except BrokenPipeError:
            pass  # the guest is gone

    def _idle(self) -> None:
        if self._size and self._can_wait:
            self._loop.remove_reader(self._source)
        self._size = 0

    def close(self) -> None:
        """Take no more. May be called twice."""
        self._idle()
        for fd in (self.read_end, self._write_end, self._own):
            if fd >= 0:
                os.close(fd)
        self.read_end = self._write_end = self._own = -1


def _unblocked(source: int) -> int:
    """Return a description of our own of a pipe or terminal, so that a read never waits even if another process took
    the bytes; -1 for what has a position of its own to share, or can't be opened again."""
    mode = os.fstat(source).st_mode
    if not (stat.S_ISFIFO(mode) or os.isatty(source)):
        return -1
    try:
        return os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return -1


def _can_wait(fd: int) -> bool:
    """Return whether a poller takes this descriptor; files are always ready."""
    with select.epoll() as poll:
        try:
            poll.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
    return True
