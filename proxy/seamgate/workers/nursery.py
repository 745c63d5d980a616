"""Where workers come from: a process that has loaded everything and forks one whenever the supervisor asks.

Started by the supervisor, once, as `python -m seamgate.workers.nursery FD`. Workers are not forked by the supervisor
itself, which has threads and an event loop that a fork would copy half of; nor is each a fresh interpreter, which other
processes of the same user, a guest in the isolation `proxy` among them, could look into until it has forbidden that
(prctl(2)): a fork inherits that it is forbidden. So a guest that kills a worker gains nothing. Besides, a worker is
there in milliseconds and shares the pages of what was loaded.

Over the socket (SOCK_SEQPACKET) come descriptors, one request each; back go `Born` and `Died`. It ends when the
supervisor does. It reads nothing else, and carries no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from seamgate import launch
from seamgate.errors import PrerequisiteMissing

MOST_DESCRIPTORS: Final = 16
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MODULE: Final = "seamgate.workers.nursery"
_MESSAGE_BYTES: Final = 256


class Born(msgspec.Struct, frozen=True, tag=True):
    """A worker was forked. They are born in the order in which they were asked for."""

    pid: int


class Unborn(msgspec.Struct, frozen=True, tag=True):
    """No worker could be forked, because of an error of the system."""

    error: str


class Died(msgspec.Struct, frozen=True, tag=True):
    """A worker is over; `code` as `subprocess` has it: below 0 for a signal."""

    pid: int
    code: int


Told: TypeAlias = Born | Unborn | Died
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Told)


class Nursery:
    """The supervisor's end. State: `_asked` waits for its `Born`, in order; `_alive` has a future for each worker."""

    def __init__(self, on_gone: Callable[[], None]) -> None:
        """Take what is called when the process is gone without having been told to."""
        self._on_gone = on_gone
        self._end: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._asked: list[asyncio.Future[int]] = []
        self._alive: dict[int, asyncio.Future[int | None]] = {}

    async def start(self) -> None:
        """Start the process.

        Raises:
            PrerequisiteMissing: there is no room for another one.
        """
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        try:
            # -P: the folder that the gateway happens to be started in holds nothing of ours.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", _MODULE, str(its.fileno()),
                stdin=subprocess.DEVNULL, pass_fds=(its.fileno(),), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            mine.close()
            raise PrerequisiteMissing(f"no process can be started for workers: {error.strerror}") from error
        finally:
            its.close()
        self._end = mine
        asyncio.get_running_loop().add_reader(mine.fileno(), self._read)

    async def bear(self, descriptors: Sequence[int]) -> int:
        """Have a worker forked that has copies of these descriptors, in this order; return its process.

        Raises:
            PrerequisiteMissing: there is no room for another process, or the nursery is gone.
        """
        if self._end is None:
            raise PrerequisiteMissing("the process that workers come from is gone")
        born = asyncio.get_running_loop().create_future()
        self._asked.append(born)
        try:
            socket.send_fds(self._end, [b"w"], list(descriptors))
        except OSError as error:
            self._asked.remove(born)
            raise PrerequisiteMissing(f"a worker can't be started: {error.strerror}") from error
        return int(await born)

    async def exit_code(self, pid: int) -> int | None:
        """Wait for a worker's end and return how it was; None if nobody knows."""
        ended = self._alive.get(pid)
        if ended is None:
            return None
        code = await asyncio.shield(ended)
        self._alive.pop(pid, None)
        return code

    def close(self) -> None:
        """Let it go: it ends by itself."""
        if self._end is not None:
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            self._end.close()
            self._end = None
        for born in self._asked:
            if not born.done():
                born.set_exception(PrerequisiteMissing("the process that workers come from is gone"))
        self._asked = []
        for ended in self._alive.values():
            if not ended.done():
                ended.set_result(None)

    async def ended(self) -> None:
        """Wait until its process is over."""
        if self._process is not None:
            await self._process.wait()

    def _read(self) -> None:
        while self._end is not None:
            try:
                data = self._end.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._take(_decoder.decode(data))
            else:
                self.close()
                self._on_gone()

    def _take(self, told: Told) -> None:
        if isinstance(told, Died):
            ended = self._alive.get(told.pid)
            if ended is not None and not ended.done():
                ended.set_result(told.code)
            return
        born = self._asked.pop(0)
        if isinstance(told, Unborn):
            born.set_exception(PrerequisiteMissing(f"a worker can't be started: {told.error}"))
        elif not born.done():
            self._alive[told.pid] = asyncio.get_running_loop().create_future()
            born.set_result(told.pid)


# -- the process -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Fork workers until the supervisor is gone. The only argument is the descriptor of our end."""
    launch.forbid_inspection()
    for number in _SIGNALS:
        signal.signal(number, _leave_it)  # not SIG_IGN, which the commands of credentials would inherit
    from seamgate.workers import worker  # after inspection is forbidden: it takes a second

    end = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()  # or each worker's collector would copy all pages
    descriptors: list[int] = []
    with contextlib.suppress(BrokenPipeError):  # the supervisor is gone
        descriptors = _serve(end)
    if descriptors:
        end.close()
        worker.main(descriptors)


def _serve(end: socket.socket) -> list[int]:
    """Fork for each request. Return in each worker, with what it inherits; in the nursery, nothing, at the end."""
    wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, _leave_it)
    while True:
        readable, _, _ = select.select([end.fileno(), wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            _reap(end)
        if end.fileno() not in readable:
            continue
        data, descriptors, _, _ = socket.recv_fds(end, 1, MOST_DESCRIPTORS)
        if not data:
            return []
        try:
            pid = os.fork()
        except OSError as error:
            end.send(_encode(Unborn(error.strerror or "no process")))
        else:
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(wake)
                os.close(woken)
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
                return descriptors
            end.send(_encode(Born(pid)))
        for descriptor in descriptors:
            os.close(descriptor)


def _reap(end: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            end.send(_encode(Died(pid, os.waitstatus_to_exitcode(status))))


def _leave_it(*_: object) -> None:
    """The supervisor got this signal too, or should have."""


if __name__ == "__main__":
    main()
