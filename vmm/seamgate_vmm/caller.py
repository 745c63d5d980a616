"""What a program in a guest shares with whoever started it: standard streams, and signals. Used where the caller is.

Runs on: the event loop of the caller's process.
"""

import asyncio
import os
import signal
from dataclasses import replace
from typing import Protocol

from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.standard_input import Feed

_RELAY_BYTES = 1 << 16


class StartedGuest(Protocol):
    """What signals are for: a guest of this process's pool, or of another one's."""

    def signal(self, number: signal.Signals) -> None:
        """Send it SIGINT, SIGTERM or SIGHUP."""
        ...

    def stop(self, reason: Reason = ..., detail: str = ...) -> None:
        """End it, whatever it does."""
        ...


class _Relay:
    """Carries what a guest writes to a descriptor of the caller, without making that one non-blocking."""

    def __init__(self, target: int) -> None:
        self._read, self.write = os.pipe()
        self._target = target
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._move)

    def _move(self) -> bool:
        try:
            data = os.read(self._read, _RELAY_BYTES)
        except BlockingIOError:
            return False
        while data:
            try:
                data = data[os.write(self._target, data) :]
            except BrokenPipeError:
                return True  # the reader is gone; the program is not held up
            except BlockingIOError:
                os.set_blocking(self._target, True)
        return True

    def finish(self) -> None:
        """Carry what is left and close."""
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self.write)
        while True:
            try:
                data = os.read(self._read, _RELAY_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            os.write(self._target, data)
        os.close(self._read)


class Streams:
    """The standard descriptors of a guest, as long as it runs."""

    def __init__(self, stdin: int | None, stdout: int, stderr: int) -> None:
        self.terminals = [fd for fd, target in enumerate((stdin, stdout, stderr)) if _is_terminal(target)]
        self.out, self.err = _Relay(stdout), _Relay(stderr)
        self.feed = None if stdin is None or not _is_open(stdin) else Feed(stdin)

    def __enter__(self) -> "Streams":
        return self

    def __exit__(self, *_: object) -> None:
        if self.feed is not None:
            self.feed.close()
        self.out.finish()
        self.err.finish()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _is_terminal(fd: int | None) -> bool:
    return fd is not None and os.isatty(fd)


class Signals:
    """While inside, signals that ask this process to end ask the guest, which may end in its own way.

    A second SIGINT, or no end within the grace after a SIGTERM or SIGHUP, ends it. Before there is a guest they cancel
    the present task.
    """

    def __init__(self, grace_s: float) -> None:
        self.number: signal.Signals | None = None
        self.guest: StartedGuest | None = None
        self._grace_s = grace_s
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            try:
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            except (ValueError, RuntimeError):
                break  # not the main thread: the caller handles signals
            self._handled.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        again, self.number = self.number is signal.SIGINT is number, number
        if self.guest is None:
            if self._task is not None:
                self._task.cancel()
        elif again:
            self._stop("interrupted twice")
        else:
            self.guest.signal(number)
            if number is not signal.SIGINT and self._timer is None:
                detail = f"{self._grace_s:g} s after {number.name}"
                self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._stop, detail)

    def _stop(self, detail: str) -> None:
        if self.guest is not None:
            self.guest.stop(Reason.IGNORED_STOP, detail)

    def before_it_began(self) -> Outcome | None:
        """Return the outcome of a guest that never began, if that is why the task was cancelled."""
        if self.number is None or self.guest is not None or self._task is None:
            return None
        self._task.uncancel()
        return Outcome(Reason.STOPPED, 128 + self.number, f"by {self.number.name}")

    def judge(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the exit status that a shell gives to what it had to kill."""
        if outcome.reason is Reason.IGNORED_STOP and self.number is not None:
            return replace(outcome, code=128 + self.number)
        return outcome
