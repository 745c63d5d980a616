"""Runs programs as guests in network namespaces under a lab's gateway, within the test's own loop.

    async with Lab(HttpUpstream(echo)) as lab:
        done = await run_guest(lab, PROBE, "udp", "9.9.9.9", "443")
        assert done.code == 0

The programs are real processes; `python` runs a piece of Python in the guest, with this checkout importable.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from seamgate.ca.environment import client_environment
from seamgate.config import NetnsEntry, parse_route
from seamgate.entry.netns.guest import ADDRESSES, OWN_HOSTS, NetnsGuest
from seamgate.flow import Guest, Isolation
from seamgate.tasks import spawn
from support.lab import Lab
from support.line import Line

GUEST = Guest("inside", {"team": "research"}, Isolation.NETNS, "team=research")
NOBODY = 65534
# What needs no root has to work without: as root, become nobody once everything is imported (an ordinary user may
# not be able to read this interpreter), and be inspectable again, as a process that never was root is.
_BECOME_NOBODY = f"""
import ctypes, os
from seamgate.entry.netns import launcher
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""
# As where nobody built the parts in C.
_WITHOUT_C = """
import sys
sys.modules["seamgate._connects"] = None
"""
_LAUNCH = """
from seamgate.entry.netns import launcher
launcher.main()
"""


class Done(msgspec.Struct):
    """How a guest ended."""

    code: int
    out: str
    err: str


class Guests:
    """Starts guests and keeps what they say.

    Args:
        lab: its gateway serves them.
        who: their identity.
        as_nobody: whether the launcher runs without root.
        without_c: whether its supervisor is all Python.
        stdin: the program's standard input, one end of a pair.
        routes: of the base-URL entry; not given: that of the first upstream, as `api`.
    """

    def __init__(
        self,
        lab: Lab,
        who: Guest = GUEST,
        *,
        entry: NetnsEntry | None = None,
        hide: Sequence[Path] = (),
        fix: Sequence[Path] = (),
        as_nobody: bool = False,
        without_c: bool = False,
        stdin: socket.socket | None = None,
        routes: Mapping[str, str] | None = None,
    ) -> None:
        self.lab = lab
        self.process: asyncio.subprocess.Process | None = None
        self.started = asyncio.Event()
        self._who = who
        self._entry = entry or NetnsEntry()
        self._hide, self._fix = hide, fix
        self._before = (_WITHOUT_C if without_c else "") + (_BECOME_NOBODY if as_nobody and os.geteuid() == 0 else "")
        self._stdin, self._given_routes = stdin, routes
        self._done = Done(-1, "", "")

    def environment(self) -> dict[str, str]:
        """Return what `seamgate run` gives to a guest."""
        host, port = ADDRESSES["proxy"]
        own = {"NO_PROXY": OWN_HOSTS, "no_proxy": OWN_HOSTS}
        basics = {"PATH": os.environ["PATH"], "HOME": str(self.lab.folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        return basics | client_environment(f"http://{host}:{port}", self.lab.gateway.ca_path) | own

    async def run(self, *command: str, environment: Mapping[str, str] | None = None) -> Done:
        """Run a program to its end."""
        guest = NetnsGuest(
            self.lab.gateway,
            self._who,
            entry=self._entry,
            routes={name: parse_route(url) for name, url in self._routes().items()},
            hide=self._hide,
            fix=self._fix,
            on_ready=self.started.set,
        )
        found = (shutil.which(command[0]) or command[0], *command[1:])
        code = await guest.run(found, self.environment() if environment is None else environment, self._runner)
        self._done.code = code
        return self._done

    def _routes(self) -> Mapping[str, str]:
        if self._given_routes is not None or not self.lab.upstreams:
            return self._given_routes or {}
        return {"api": f"{'https' if self.lab.upstreams[0].tls else 'http'}://{self.lab.authority()}"}

    async def _runner(self, command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
        if self._before:
            command = (command[0], "-c", self._before + _LAUNCH, command[-1])
        self.process = await asyncio.create_subprocess_exec(
            *command,
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=descriptors,
            stdin=asyncio.subprocess.DEVNULL if self._stdin is None else self._stdin.fileno(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await self.process.communicate()
        self._done = Done(-1, out.decode(), err.decode())
        assert self.process.returncode is not None
        return self.process.returncode


_CONNECTOR = """
import json, socket
channel = socket.socket(fileno=0)
for line in channel.makefile("rb"):
    try:
        made = socket.socket()
        made.settimeout(20)
        made.connect(tuple(json.loads(line)))
        made.settimeout(None)
        socket.send_fds(channel, [b"+"], [made.fileno()])
    except OSError:
        channel.sendall(b"-")
    made.close()
"""


class Inside:
    """Connections of a guest's, held by the test: a program in the namespace makes them, and hands them out.

    async with Inside(lab) as inside:
        line = await inside.connect("api.test", 443)
    """

    def __init__(self, lab: Lab, routes: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs = theirs
        self._guests = Guests(lab, stdin=theirs, routes=routes)
        self._run: asyncio.Task[Done]

    async def __aenter__(self) -> Inside:
        self._run = spawn(self._guests.run("/usr/bin/python3", "-c", _CONNECTOR), name="inside")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ours.close()
        done = await self._run
        self._theirs.close()
        assert (done.code, done.err) == (0, ""), done

    async def connect(self, host: str, port: int) -> Line | None:
        """Look up and connect, as any program does; None if that fails."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._ours, json.dumps([host, port]).encode() + b"\n")
        readable = asyncio.Event()
        loop.add_reader(self._ours, readable.set)
        await readable.wait()
        loop.remove_reader(self._ours)
        _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1)
        if not descriptors:
            return None
        _, line = await loop.create_connection(Line, sock=socket.socket(fileno=descriptors[0]))
        return line


async def run_guest(lab: Lab, *command: str, environment: Mapping[str, str] | None = None) -> Done:
    """Run a program as a guest to its end."""
    return await Guests(lab).run(*command, environment=environment)


async def python(lab: Lab, code: str, *arguments: str) -> Done:
    """Run Python code as a guest to its end."""
    return await run_guest(lab, sys.executable, "-c", code, *arguments)


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """Make a folder that everybody can work in. One below pytest's own is no good: each run that starts closes that."""
    with tempfile.TemporaryDirectory(prefix="seamgate-test-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


async def stop(guests: Guests) -> None:
    """Kill a launcher that a test left running."""
    if guests.process is not None and guests.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            guests.process.kill()
