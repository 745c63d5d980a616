"""A restart without a refused connection: listeners pass from a gateway's process to the one that succeeds it.

Used by `seamgate serve`. The old process starts its own command line again and gives it the listening sockets and one
end of a channel. The successor loads what it needs, says `ready` and waits. The old one takes no connection any more
(they queue in the kernel, at the same sockets), finishes what is under way, closes the journal, and says `go`: only
then the successor opens the journal and accepts. So the chain goes on in one file that never has two writers, and a
successor that can't start changes nothing. Holds no policy, reads no byte of a guest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from seamgate.errors import ConfigError, SeamgateError

VARIABLE: Final = "SEAMGATE_SUCCEEDS"
_READY: Final = b"ready\n"
_GO: Final = b"go\n"
READY_S: Final = 120.0
"""How long a successor may take to load: a policy of 100,000 rules takes seconds."""


class Successor:
    """The process that is to take over, as the old one sees it."""

    def __init__(self, listening: Mapping[str, int]) -> None:
        """Start it.

        Args:
            listening: entry -> descriptor of its listening socket.

        Raises:
            OSError: it can't be started.
        """
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            told = {"channel": theirs.fileno(), "listening": dict(listening)}
            self.process = subprocess.Popen(  # noqa: S603 - the command that this process was started with
                [sys.executable, *sys.orig_argv[1:]],
                env={**os.environ, VARIABLE: json.dumps(told)},
                pass_fds=(theirs.fileno(), *listening.values()),
                stdin=subprocess.DEVNULL,
            )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    async def ready(self) -> bool:
        """Wait until it has loaded everything; False if it can't, or takes too long."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READY_S):
                return await loop.sock_recv(self._channel, len(_READY)) == _READY
        except (TimeoutError, OSError):
            return False

    def go(self) -> None:
        """Let it take over: nothing here listens or writes any more. One that is gone meanwhile is not our matter."""
        with self._channel, contextlib.suppress(OSError):
            self._channel.send(_GO)

    def give_up(self) -> None:
        """It is not to take over."""
        self.process.kill()
        self.process.wait()
        self._channel.close()


class Inheritance:
    """What a successor was given.

    Attributes:
        listening: entry -> its listening socket.
    """

    def __init__(self, told: str) -> None:
        """Take the descriptors over.

        Raises:
            ConfigError: what the variable says is not what a gateway says to its successor.
        """
        try:
            said = json.loads(told)
            self._channel = socket.socket(fileno=int(said["channel"]))
            self.listening = {str(entry): socket.socket(fileno=int(fd)) for entry, fd in said["listening"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise ConfigError(f"{VARIABLE} is for a gateway that succeeds another: unset it ({error})") from None
        for each in (self._channel, *self.listening.values()):
            each.set_inheritable(False)

    def await_turn(self) -> None:
        """Say that everything loads, and wait until the old process has let go of the journal.

        Raises:
            SeamgateError: it ended without that: it was stopped, and so nobody is to take over.
        """
        with self._channel:
            self._channel.sendall(_READY)
            if self._channel.recv(len(_GO)) != _GO:
                raise SeamgateError("the gateway that was to be succeeded has stopped, so this one does not start")


def inheritance() -> Inheritance | None:
    """Return what this process was given, once; None if it succeeds nobody."""
    told = os.environ.pop(VARIABLE, None)
    return None if told is None else Inheritance(told)
