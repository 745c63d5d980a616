"""Starts and ends the programs of a run: pinned, with a private /etc/hosts, and never outliving the run.

Every program is started as a child with its own log file, and only what was started here is ever ended, by its
process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seamgate_bench import procfs

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
LOG_TAIL = 600
SYSTEM_PATH = os.pathsep.join(["/usr/local/sbin", "/usr/sbin", "/sbin", os.environ.get("PATH", os.defpath)])
"""Debian keeps nginx and squid in sbin, which an ordinary user's PATH leaves out."""


class PeerFailed(Exception):
    """A program did not start, or did not do what was asked of it; the message says which and why."""


def find_program(name: str) -> str | None:
    """Return the path of an installed program, or None."""
    return shutil.which(name, path=SYSTEM_PATH)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Program:
    """A started program and where it logs."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """The process id: that of the program itself, the wrappers have been replaced by it."""
        return self.popen.pid

    def log_tail(self) -> str:
        """Return the end of what the program printed."""
        return self.log.read_text(errors="replace")[-LOG_TAIL:].strip()

    def wait_for_port(self, port: int) -> None:
        """Wait until the program accepts connections.

        Raises:
            PeerFailed: it ended, or did not listen in time.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.popen.poll() is not None:
                raise PeerFailed(f"{self.name} ended with code {self.popen.returncode}: {self.log_tail()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise PeerFailed(f"{self.name} did not listen on port {port} in {START_TIMEOUT_S:.0f} s: {self.log_tail()}")

    def stop(self) -> None:
        """End the program and its descendants: asked first, killed where that is not heeded."""
        descendants = procfs.tree(self.pid)[1:]
        self.popen.terminate()
        try:
            self.popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        for pid in descendants:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def start(
    name: str,
    argv: Sequence[str],
    *,
    directory: Path,
    core: int | str,
    hosts: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Program:
    """Start a program on one core, or on those of a list for taskset(1), in `directory`, logging to `directory`/log.

    Args:
        hosts: a file that this program, and no other, sees as /etc/hosts (a private mount namespace; needs root).
        env: variables on top of a minimal environment.
    """
    wrapped = ["taskset", "-c", str(core), "setpriv", "--pdeathsig", "TERM", *argv]
    if hosts is not None:
        mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
        wrapped = ["unshare", "--mount", "sh", "-c", mount, str(hosts), *wrapped]
    log = directory / "log"
    with log.open("ab") as output:
        popen = subprocess.Popen(
            wrapped,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": SYSTEM_PATH, "HOME": str(directory), "LANG": "C.UTF-8", **(env or {})},
            start_new_session=True,
        )
    return Program(name, popen, log)


def can_mount() -> bool:
    """Say whether `hosts` can be used here: a private mount namespace can be made."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
