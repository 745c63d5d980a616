"""Builds `bench/load.c` and drives it: ready, go, done, end. The C file tells the protocol."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamgate_bench.ground import BODIES, CREDENTIAL_HEADER, Ground
from seamgate_bench.process import PeerFailed, find_program

SOURCE = Path(__file__).parents[1] / "load.c"
BUILD_HINT = "gcc and OpenSSL's headers are needed (run bench/install-peers.sh)"
SETUP_TIMEOUT_S = 120.0
"""Opening 1,500 connections through mitmproxy takes half a minute."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the load generator reaches the upstream through one peer."""

    mode: str
    """mitm, tun, t2t or p2t, as load.c has them."""
    port: int
    """Where the peer listens on 127.0.0.1."""
    ca: Path
    """What the client trusts: the peer's CA where it intercepts."""
    prefix: str = ""
    """Goes before the path: a base URL's first segment, or `http://name:port` for absolute form."""
    proxy_authorization: str | None = None
    holds_credential: bool = False
    """Without a proxy, the client has to send the credential itself."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What to ask for."""

    path: str
    connections: int
    seconds: float
    new_connection: bool = False
    rehearse: int = 2
    """Unmeasured requests a connection, all at once, before the measured part: pools grow in these."""


def build(directory: Path) -> Path:
    """Compile the load generator into `directory`, and return it.

    Raises:
        PeerFailed: there is no compiler, or no OpenSSL to compile against.
    """
    compiler = find_program("cc")
    if compiler is None:
        raise PeerFailed(f"no C compiler: {BUILD_HINT}")
    program = directory / "load"
    argv = [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-o", str(program), str(SOURCE), "-lssl", "-lcrypto"]
    built = subprocess.run(argv, capture_output=True, text=True, check=False)
    if built.returncode:
        raise PeerFailed(f"load.c does not compile; {BUILD_HINT}: {built.stderr[:400]}")
    return program


def arguments(ground: Ground, way: Way, demand: Demand) -> list[str]:
    """Return load's command line."""
    argv = ["--mode", way.mode, "--address", f"127.0.0.1:{way.port}", "--authority", ground.authority]
    argv += ["--ca", str(way.ca), "--target", way.prefix + demand.path, "--body-bytes", str(BODIES[demand.path])]
    argv += ["--connections", str(demand.connections), "--seconds", str(demand.seconds)]
    argv += ["--rehearse", str(demand.rehearse), "--timeout", str(SETUP_TIMEOUT_S)]
    if demand.new_connection:
        argv += ["--new-connection"]
    if way.proxy_authorization is not None:
        argv += ["--proxy-authorization", way.proxy_authorization]
    if way.holds_credential:
        argv += ["--header", f"{CREDENTIAL_HEADER}: {ground.secret}"]
    return argv


class Load:
    """One run of the load generator, as a context manager: it is gone afterwards, whatever happened."""

    def __init__(self, program: Path, ground: Ground, way: Way, demand: Demand) -> None:
        argv: Sequence[str] = [
            *("taskset", "-c", str(ground.load_core), "setpriv", "--pdeathsig", "KILL"),
            *(str(program), *arguments(ground, way, demand)),
        ]
        self._demand = demand
        self._popen = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections in order (end of its input), or kill it where it doesn't end."""
        try:
            self._popen.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.communicate()

    def ready(self) -> dict[str, Any]:
        """Wait until all connections are open and warm."""
        return self._event("ready", SETUP_TIMEOUT_S + 10)

    def run(self) -> dict[str, Any]:
        """Run the measured part, and return what it counted.

        Raises:
            PeerFailed: an answer was not a 200 of the right length, a connection broke, or time ran out.
        """
        assert self._popen.stdin is not None
        self._popen.stdin.write(b"go\n")
        self._popen.stdin.flush()
        done = self._event("done", self._demand.seconds + SETUP_TIMEOUT_S + 10)
        if done["errors"]:
            raise PeerFailed(
                f"{done['errors']} of {done['requests']} requests failed, the first: {done['first_error']}"
            )
        if not done["requests"]:
            raise PeerFailed("no request was answered")
        return done

    def _event(self, name: str, timeout_s: float) -> dict[str, Any]:
        assert self._popen.stdout is not None
        deadline = time.monotonic() + timeout_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise PeerFailed(f"the load generator was not {name} in {timeout_s:.0f} s")
                part = os.read(self._popen.stdout.fileno(), 65536)
                if not part:
                    raise PeerFailed(self._complaint())
                line += part
        event: dict[str, Any] = json.loads(line)
        if event["event"] != name:
            raise PeerFailed(f"the load generator said {event}, not {name}")
        return event

    def _complaint(self) -> str:
        assert self._popen.stderr is not None
        return self._popen.stderr.read().decode(errors="replace").strip() or "the load generator ended without a word"
