"""One guest in a network namespace, from the gateway's side: starts the launcher, serves the sockets that it opens.

Called by `seamgate run --isolation netns`. Everything that the guest can reach is served here with the classes of the
other entries: explicit proxy, base URL, redirected connections, names; and what it can't reach is told to the audit
log. The guest's identity is the namespace: it shows no token.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from seamgate.ca.store import CaFiles
from seamgate.config import NetnsEntry
from seamgate.entry.binding import ProxyBinding, RouteBinding
from seamgate.entry.dns_service import DENIED_CODES, Datagrams, DnsService, Stream
from seamgate.entry.http1_guest import Http1Guest
from seamgate.entry.identity import Identities
from seamgate.entry.netns import control
from seamgate.entry.netns.covers import plan
from seamgate.entry.netns.layout import BASE_URL_PORT, LOOPBACK, PROXY_PORT
from seamgate.entry.netns.names import NameTable
from seamgate.entry.netns.refusals import PacketLog, Refusals, judge_report
from seamgate.entry.netns.transparent import RedirectedStream
from seamgate.entry.opaque import OpaqueStreams
from seamgate.entry.tunnel import ConnectHandler
from seamgate.errors import PrerequisiteMissing, SeamgateError
from seamgate.flow import Guest, Isolation, Target
from seamgate.gateway import Gateway
from seamgate.tasks import spawn

log = structlog.get_logger("seamgate.netns")

ENTRY: Final = "netns"
ADDRESSES: Final = {"proxy": (LOOPBACK, PROXY_PORT), "base_url": (LOOPBACK, BASE_URL_PORT)}
"""Where the entries are, as the guest sees them."""
OWN_HOSTS: Final = "localhost,127.0.0.1,::1"
"""For NO_PROXY: what a guest runs for itself is inside its namespace, and nobody else's."""
_LAUNCHER = "seamgate.entry.netns.launcher"
# What Python itself needs to be found again; nothing else of the gateway's environment goes along.
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")


def _needed(command: Sequence[str], environment: Mapping[str, str]) -> list[Path]:
    """Return what a program works with, as far as that is known: its folders, itself, and files that it is told."""
    named = [Path(each).absolute() for each in command if "\0" not in each and os.path.isfile(each)]
    homes = [Path(environment[name]) for name in ("HOME", "TMPDIR") if environment.get(name, "").startswith("/")]
    return [Path.cwd(), *homes, *named]


Runner = Callable[[Sequence[str], Mapping[str, str], Sequence[int]], Awaitable[int]]
"""Runs a program with an environment and these descriptors, and returns its exit code."""


class NetnsGuest:
    """See the module.

    Args:
        gateway: started; its configuration names no entry of its own.
        guest: who it is.
        entry: what the configuration says about this isolation.
        routes: of the base-URL entry, by name.
        hide: files that the guest must not read, although it runs as the same user, nor what takes their place.
        fix: files that it must not write.
        on_ready: called when the namespace is there and the program is about to start.
    """

    def __init__(
        self,
        gateway: Gateway,
        guest: Guest,
        *,
        entry: NetnsEntry,
        routes: Mapping[str, Target],
        hide: Sequence[Path] = (),
        fix: Sequence[Path] = (),
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._gateway = gateway
        self._guest = guest
        self._routes = routes
        self._hide, self._fix = hide, fix
        self._on_ready = on_ready
        self._names = NameTable()
        seam = gateway.seam
        self._refusals = Refusals(seam, guest, ENTRY)
        self._may_share = entry.processes == "shared"
        self._dns = DnsService(seam, guest, self._names, self._refusals, DENIED_CODES[entry.denied_names])
        self._redirected = OpaqueStreams(seam, gateway.authorities, gateway.connections, ENTRY)
        self._closers: list[Callable[[], None]] = []
        self._channel: socket.socket | None = None
        self._reader: control.Reader | None = None
        self._error: Exception | None = None
        self._begun = False

    async def run(self, command: Sequence[str], environment: Mapping[str, str], runner: Runner) -> int:
        """Run a program as the guest and return its exit code.

        Raises:
            PrerequisiteMissing: this machine does not permit it; the message says which part.
            ConfigError: a file can't be kept from the program.
            SeamgateError: the launcher failed.
            OSError: the launcher could not be started.
        """
        files = CaFiles(self._gateway.ca_path.parent)
        bundle = files.bundle
        covers = plan(
            self._hide,
            fix=self._fix,
            show=(files.certificate, bundle, files.java_store),
            needed=_needed(command, environment),
        )
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel, self._reader = ours, control.Reader(ours)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._listen)
        order = control.encode(
            {
                "command": [*command],
                "environment": {**environment},
                "covers": msgspec.to_builtins(covers),
                "trust": str(bundle if bundle.exists() else self._gateway.ca_path),
                "parent": os.getpid(),
                "may_share": self._may_share,
            }
        )
        spawn(self._send(order), name="order a guest", on_error=self._fail)
        program = (sys.executable, "-P", "-s", "-m", _LAUNCHER, str(theirs.fileno()))
        kept = {name: os.environ[name] for name in _PYTHON_VARIABLES if name in os.environ}
        try:
            code = await runner(program, kept, (theirs.fileno(),))
            self._listen()
        finally:
            theirs.close()
            self._close()
        if self._error is None and not self._begun:
            self._error = SeamgateError(f"the launcher of the guest ended with code {code} before the program began")
        if self._error is not None:
            raise self._error
        return code

    async def _send(self, order: bytes) -> None:
        if self._channel is not None:
            await asyncio.get_running_loop().sock_sendall(self._channel, order)

    # -- what the launcher says --------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take the messages that are there."""
        while self._reader is not None:
            try:
                read = self._reader.read()
            except BlockingIOError:
                return
            except (OSError, ValueError) as error:
                self._fail(error)
                return
            if read is None:
                self._hang_up()
                return
            self._take(*read)

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "ready" in message:
            names: list[str] = message["ready"]
            sockets = {name: socket.socket(fileno=each) for name, each in zip(names, descriptors, strict=True)}
            if not message["processes"]:
                log.warning("the guest sees other processes: a /proc of its own is not permitted here")
            spawn(self._serve(sockets), name="serve a namespace", on_error=self._fail)
        elif "refused" in message:
            self._refusals.refuse(*judge_report(message["refused"]))
        elif "pairs_only" in message:
            log.warning("the guest has no unix sockets but pairs", why=message["pairs_only"])
        elif "error" in message:
            self._error = PrerequisiteMissing(f"{message['error']}; `seamgate doctor` says what to do")

    async def _serve(self, sockets: dict[str, socket.socket]) -> None:
        """Serve everything, then let the guest begin."""
        gateway, guest, loop = self._gateway, self._guest, asyncio.get_running_loop()
        proxy = ProxyBinding(ENTRY, Identities({}, Isolation.NETNS), guest)
        on_connect = ConnectHandler(gateway.seam, gateway.authorities, gateway.connections, proxy)
        await gateway.listeners.serve(
            sockets["proxy"], lambda: Http1Guest(gateway.seam, proxy, gateway.connections, on_connect)
        )
        routes = RouteBinding(ENTRY, self._routes, Identities({}, Isolation.NETNS), guest)
        if self._routes:
            await gateway.listeners.serve(
                sockets["base_url"], lambda: Http1Guest(gateway.seam, routes, gateway.connections)
            )
        else:
            sockets["base_url"].close()
        for name in ("transparent", "transparent6"):
            if name in sockets:
                await self._accept(sockets[name], self._redirect)
        self._closers.append(self._redirected.close)
        await self._accept(sockets["dns_tcp"], lambda: Stream(self._dns))
        datagrams, _ = await loop.create_datagram_endpoint(lambda: Datagrams(self._dns), sock=sockets["dns"])
        self._closers += [datagrams.close, self._dns.close]
        self._closers.append(PacketLog(sockets["refused"], self._refusals, self._names.name_of).close)
        if self._on_ready is not None:
            self._on_ready()
        self._begun = True
        await self._send(control.encode({"go": True}))

    def _redirect(self) -> RedirectedStream:
        return RedirectedStream(self._redirected, self._guest, self._names, self._refusals)

    async def _accept(self, listener: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        server = await asyncio.get_running_loop().create_server(factory, sock=listener)
        self._closers.append(server.close)

    # -- end ---------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Something of ours went wrong: without us the launcher does not let the guest begin."""
        if self._error is None and isinstance(error, Exception):
            self._error = error
        self._hang_up()

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            channel.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _close(self) -> None:
        self._hang_up()
        for close in self._closers:
            close()
        self._closers = []
        self._refusals.flush()
