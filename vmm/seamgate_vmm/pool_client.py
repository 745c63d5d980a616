"""Runs a program as a guest of a pool that another process keeps: what `seamgate run --pool` calls.

The program's standard streams and signals are this process's, as with a guest of its own; all else is the pool's. See
`pool_server.py` for the messages.
Runs on: the event loop.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seamgate_vmm.caller import Signals, Streams
from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.errors import VmmError
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.runner import GRACE_S, python_arguments
from seamgate_vmm.worker import outcome_from_json


class PoolUnreachable(VmmError):
    """No pool listens there; the message says what to do."""


class _ElsewhereGuest:
    """A guest at the other end of a channel. Implements `caller.StartedGuest`."""

    def __init__(self, channel: Channel, want: Callable[[int], None], on_started: Callable[[str], None]) -> None:
        self._channel, self._want, self._on_started = channel, want, on_started
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._loop.add_reader(channel.fileno(), self._heard)

    def signal(self, number: signal.Signals) -> None:
        """See StartedGuest."""
        self._tell({"op": "signal", "number": int(number)})

    def stop(self, reason: Reason = Reason.STOPPED, detail: str = "") -> None:
        """See StartedGuest; `reason` is the pool's to say."""
        self._tell({"op": "stop", "detail": detail})

    def close(self) -> None:
        """Hang up, which ends it if it is not over."""
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except Closed:
            pass  # the reader will see the end

    def _heard(self) -> None:
        try:
            message, _ = self._channel.receive(wait=False)
        except BlockingIOError:
            return
        except Closed:
            self._fail("the pool is gone, and the guest with it")
            return
        op = message.get("op")
        if op == "input":
            self._want(int(message["size"]))
        elif op == "started":
            self._on_started(str(message["tier"]))
        elif op == "refused":
            self._fail(str(message["error"]))
        elif op == "ended" and not self.outcome.done():
            self.outcome.set_result(outcome_from_json(message["outcome"]))

    def _fail(self, why: str) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(VmmError(why))


async def run_in_pool(
    place: Path,
    guest: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    on_started: Callable[[str], None],
    stdin: int | None = 0,
    stdout: int = 1,
    stderr: int = 2,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run a Python program in the pool that listens at `place`, as the guest of this name, and return how it ended.

    command: as typed, beginning with `python`; its Python is that of the pool's template. env: of which the pool's
    gateway leaves what a guest may have. on_started: told the tier. The rest as for `runner.run_program`.
    Raises: ProgramError; PoolUnreachable; VmmError with the pool's reason.
    """
    argv = python_arguments(command)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.connect(str(place))
    except OSError as error:
        sock.close()
        raise PoolUnreachable(
            f"no pool of guests can be reached at {place} ({error.strerror}): start a gateway whose configuration has "
            "`entries: kvm: pool:`, as the same user"
        ) from error
    channel = Channel(sock)
    with Signals(grace_s) as signals, Streams(stdin, stdout, stderr) as streams:
        feed = streams.feed
        elsewhere = _ElsewhereGuest(channel, (lambda _: None) if feed is None else feed.want, on_started)
        try:
            fds = (streams.out.write, streams.err.write, *(() if feed is None else (feed.read_end,)))
            start = {"op": "start", "guest": guest, "argv": argv, "env": dict(env), "cwd": str(cwd)}
            channel.send({**start, "terminals": streams.terminals, "stdin": feed is not None}, fds)
            signals.guest = elsewhere
            return signals.judge(await elsewhere.outcome)
        except ValueError as error:
            raise VmmError(str(error)) from error
        except Closed as error:
            raise VmmError("the pool is gone") from error
        finally:
            elsewhere.close()
