"""Runs the real `seamgate` command as a process, with a home folder of its own, for the tests of the command line."""

from __future__ import annotations

import atexit
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

COMMAND_S = 100.0
_OWN_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "SEAMGATE_AUDIT", "SEAMGATE_CONFIG", "XDG_DATA_HOME", "XDG_STATE_HOME")

# Templates of microVMs take seconds to make and hold nothing of a user: one folder for a whole run of tests.
TEMPLATES = tempfile.mkdtemp(prefix="seamgate-templates-")
atexit.register(shutil.rmtree, TEMPLATES, ignore_errors=True)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which nothing of the developer's own configuration counts."""
    kept = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    return kept | {"HOME": str(home), "SEAMGATE_TEMPLATES": TEMPLATES, **(more or {})}


def seamgate(
    *arguments: str, home: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `seamgate` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "seamgate", *arguments],
        cwd=cwd or home,
        env=environment(home, env),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


POLICY = "seamgate: 1\nrules:\n  - {id: one, allow: {hosts: [a.example]}}\n"


def make_folder(folder: Path) -> Path:
    """Put a configuration on free ports, a CA, a token and a policy into a folder, and return it."""
    assert seamgate("init", home=folder).returncode == 0
    config = (folder / "seamgate.yaml").read_text().replace("127.0.0.1:8080", "127.0.0.1:0")
    (folder / "seamgate.yaml").write_text(config)
    (folder / "policy.yaml").write_text(POLICY)
    return folder


def proxy_port(line: str) -> int:
    """Return where the proxy listens, by the log line of the start."""
    return int(json.loads(line)["proxy"].rpartition(":")[2])


def denied_by(folder: Path, port: int, url: str) -> str:
    """Ask the proxy for a URL as the agent of such a folder; return the message that it answers with."""
    token = (folder / "agent.token").read_text().strip()
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "60", "-x", f"http://agent:{token}@127.0.0.1:{port}", url],
        capture_output=True, text=True, timeout=COMMAND_S, check=False, env=environment(folder),
    )  # fmt: skip
    return str(json.loads(done.stdout)["error"]["message"])


class Running:
    """A `seamgate` that goes on: `with Running(...) as gateway`. Its log lines can be waited for."""

    def __init__(self, *arguments: str, home: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seamgate", *arguments],
            cwd=cwd or home,
            env=environment(home, env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._queue.put(line)
        self._queue.put(None)

    def wait_for(self, text: str) -> str:
        """Return the next log line that holds the text."""
        while True:
            line = self._queue.get(timeout=COMMAND_S)
            if line is None:
                raise AssertionError(f"it ended without saying {text!r}; it said {self.lines}")
            self.lines.append(line)
            if text in line:
                return line

    def wait_to_end(self) -> None:
        """Read all that it, and the processes that it started, still say."""
        while (line := self._queue.get(timeout=COMMAND_S)) is not None:
            self.lines.append(line)

    def ended(self) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(timeout=COMMAND_S)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=COMMAND_S)
        self._reader.join(timeout=COMMAND_S)
        assert not self._reader.is_alive(), f"what {self.process.args!r} started still holds its output"
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
