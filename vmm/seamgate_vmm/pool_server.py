"""Lets other programs of this machine have guests in a pool: a socket where they hand a program in, and learn its end.

    server = PoolServer(pool, admit, most=256, folders=["/srv/agents"])
    server.serve(listening)       # a SEQPACKET socket, bound where only those may connect who may have guests

Messages are `channel.py`'s. From a caller: `start` (guest, argv, env, cwd, terminals, stdin; descriptors of stdout,
stderr and, if so, stdin, which are pipes), then `signal` and `stop`. To it: `started`, `input` (so many bytes are
wanted on stdin), at last `ended`, or `refused` with the reason. A caller that hangs up ends its guest. Who a guest is,
and what becomes of its streams, `admit` says. `pool_client.py` is the other end.
Runs on: the event loop.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.errors import VmmError
from seamgate_vmm.names import NameTable
from seamgate_vmm.outcome import Outcome, Reason
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import OnChange, PooledGuest
from seamgate_vmm.ring import Accept, Turn
from seamgate_vmm.template import Job
from seamgate_vmm.worker import outcome_to_json

_MOST_CALLERS_WAITING = 64
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Refused(Exception):
    """A program that was handed in is not started; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a gateway gives for one guest."""

    accept: Accept
    names: NameTable
    turn: Turn
    environment: Callable[[Mapping[str, str]], Mapping[str, str]]  # what of its caller's a guest gets
    on_change: OnChange
    begun: Callable[[PooledGuest], None]
    ended: Callable[[Outcome], None]
    own_file: tuple[Sequence[str], bytes] | None = None  # see Job


Admit = Callable[[str], Admission]
"""Says what a guest of this name gets. Raises: Refused."""


class PoolServer:
    """See the module.

    most: guests at once. folders: of the host, that guests see; a program's working directory is in one of them.
    """

    def __init__(self, pool: Pool, admit: Admit, *, most: int, folders: Sequence[Path]) -> None:
        self._pool, self._admit, self._most = pool, admit, most
        self._folders = [os.path.realpath(folder) for folder in folders]
        self._listening: socket.socket | None = None
        self._callers: set[_Caller] = set()

    def serve(self, listening: socket.socket) -> None:
        """Take callers; the socket is ours from here on."""
        self._listening = listening
        listening.setblocking(False)
        listening.listen(_MOST_CALLERS_WAITING)
        asyncio.get_running_loop().add_reader(listening.fileno(), self._on_caller)

    def stop_listening(self) -> None:
        """Take no more; guests go on."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None

    async def close(self) -> None:
        """Return when every guest's end is told: the pool is closed by then."""
        self.stop_listening()
        for caller in list(self._callers):
            await caller.close()

    def _on_caller(self) -> None:
        assert self._listening is not None
        with suppress(BlockingIOError, ConnectionError, OSError):
            sock, _ = self._listening.accept()
            sock.setblocking(False)  # a caller that reads nothing must not hold up the loop
            self._callers.add(_Caller(self, Channel(sock)))

    def forget(self, caller: "_Caller") -> None:
        """Called by a caller that is done."""
        self._callers.discard(caller)

    async def start(self, message: Mapping[str, Any], fds: Sequence[int], want: Callable[[int], None]) -> "_Started":
        """Start what was handed in. Raises: Refused."""
        name, job, has_stdin = _read_start(message, fds)
        self._check_place(job.cwd)
        if self._pool.guest_count + self._pool.hibernated_count >= self._most:
            raise Refused(f"all {self._most} places of the pool are taken: wait, or raise its `most`")
        admission = self._admit(name)
        job = Job(job.argv, dict(admission.environment(job.env)), job.cwd, job.terminals, admission.own_file)
        try:
            guest = await self._pool.start(
                job,
                accept=admission.accept,
                names=admission.names,
                turn=admission.turn,
                stdout=fds[0],
                stderr=fds[1],
                stdin=fds[2] if has_stdin else None,
                want_input=want,
                on_change=admission.on_change,
            )
        except (VmmError, OSError, ValueError) as error:
            raise Refused(f"the pool can't start it: {error}") from error
        admission.begun(guest)
        return _Started(guest, admission)

    def _check_place(self, cwd: str) -> None:
        real = os.path.realpath(cwd)
        if not any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in self._folders):
            shown = ", ".join(self._folders) or "none; name some under `entries: kvm: pool: folders:`"
            raise Refused(f"guests of this pool don't see {cwd}; the folders that they see: {shown}")

    @property
    def tier(self) -> str:
        """What holds the guests."""
        return self._pool.tier


@dataclass(frozen=True, slots=True)
class _Started:
    guest: PooledGuest
    admission: Admission


class _Caller:
    """One connection: a program from its being handed in to its end."""

    def __init__(self, server: PoolServer, channel: Channel) -> None:
        self._server, self._channel = server, channel
        self._started: _Started | None = None
        self._work: asyncio.Task[None] | None = None
        self._open = True
        asyncio.get_running_loop().add_reader(channel.fileno(), self._on_message)

    async def close(self) -> None:
        """Wait for its guest's end, if it has one, and hang up."""
        if self._work is not None:
            await self._work
        self._hang_up()

    def _on_message(self) -> None:
        try:
            message, fds = self._channel.receive(wait=False)
        except BlockingIOError:
            return
        except (Closed, ValueError):
            self._gone()
            return
        if self._work is None and message.get("op") == "start":
            self._work = asyncio.ensure_future(self._run(message, fds))
            return
        for fd in fds:
            os.close(fd)
        if self._started is not None:
            self._order(self._started.guest, message)

    def _order(self, guest: PooledGuest, message: Mapping[str, Any]) -> None:
        if message.get("op") == "signal" and message.get("number") in _SIGNALS:
            with suppress(VmmError):  # hibernated because its owner wanted so: nobody here does
                guest.signal(signal.Signals(message["number"]))
        elif message.get("op") == "stop":
            guest.stop(Reason.IGNORED_STOP, str(message.get("detail", ""))[:200])

    async def _run(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        try:
            self._started = started = await self._server.start(
                message, fds, lambda size: self._tell({"op": "input", "size": size})
            )
        except (Refused, ValueError) as error:  # a NUL in a path, a text that is no file name's, an answer too long
            self._tell({"op": "refused", "error": str(error)[:1000]})
            self._hang_up()
            return
        finally:
            for fd in fds:
                os.close(fd)
        if not self._open:
            self._gone()
        await started.guest.started()
        self._tell({"op": "started", "tier": self._server.tier})
        outcome = await started.guest.ended()
        started.admission.ended(outcome)
        self._tell({"op": "ended", "outcome": outcome_to_json(outcome)})
        self._hang_up()

    def _gone(self) -> None:
        """Nobody waits for the end any more: a program without its caller ends, as one whose terminal is gone."""
        self._hang_up()
        if self._started is not None:
            self._started.guest.stop(detail="whoever started it is gone")

    def _tell(self, message: dict[str, Any]) -> None:
        if self._open:
            try:
                self._channel.send(message)
            except (Closed, OSError):  # full: it reads nothing, and so is told nothing more
                self._gone()

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
        if self._work is None or self._work.done() or self._work is asyncio.current_task():
            self._server.forget(self)


def _read_start(message: Mapping[str, Any], fds: Sequence[int]) -> tuple[str, Job, bool]:
    """Return what a `start` says: guest, job, whether there is a stdin. Raises: Refused."""
    argv, env, terminals = message.get("argv"), message.get("env"), message.get("terminals")
    name, cwd, has_stdin = message.get("guest"), message.get("cwd"), bool(message.get("stdin"))
    right = (
        isinstance(name, str)
        and isinstance(cwd, str)
        and isinstance(argv, list)
        and all(isinstance(each, str) for each in argv)
        and isinstance(env, dict)
        and all(isinstance(each, str) for each in env.values())
        and isinstance(terminals, list)
        and all(each in (0, 1, 2) for each in terminals)
        and len(fds) == 2 + has_stdin
    )
    if not right:
        raise Refused("what was handed in is not understood: are both ends of the same version?")
    return str(name), Job(list(argv or ()), dict(env or {}), str(cwd), list(terminals or ())), has_stdin
