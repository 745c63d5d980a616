"""`seamgate serve` as a process under a test's own load: started, killed, restarted over one folder.

    async with HttpUpstream... as usual;  service = Serving(folder, upstream)
    async with service:
        answer = await service.ask("/x")

Guests come by the base URL, so that a client is a plain connection; each request carries the credential.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.cli import environment
from support.client import Answer, Client, connect
from support.lab import ALLOW_ALL, SECRET
from support.upstream import HttpUpstream

START_S = 90.0


class Serving:
    """One folder with a configuration, and the gateway that runs there.

    Attributes:
        lines: what it logged, as JSON objects, over all of its processes.
        port: of the base-URL entry.
    """

    def __init__(self, folder: Path, upstream: HttpUpstream, **settings: Any) -> None:
        self.folder = folder
        self.upstream = upstream
        self.lines: list[dict[str, Any]] = []
        self.port = 0
        self.process: asyncio.subprocess.Process
        self.pid = 0
        self._changed = asyncio.Event()
        self._readers: list[asyncio.Task[None]] = []
        (folder / "key").write_text(SECRET)
        (folder / "key").chmod(0o600)
        rule = {**ALLOW_ALL, "credential": "key"}
        (folder / "policy.yaml").write_text(json.dumps({"seamgate": 1, "rules": [rule]}))
        (folder / "seamgate.yaml").write_text(json.dumps(self._configuration(settings)))

    def _configuration(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        name = self.upstream.names[0]
        credential = {
            "source": {"file": str(self.folder / "key")}, "inject": {"header": "x-api-key"}, "hosts": [name],
            "allow_http": True,
        }  # fmt: skip
        entry = {
            "listen": "127.0.0.1:0", "guest": "g", "routes": {"api": f"http://{name}:{self.upstream.port}"},
        }  # fmt: skip
        return {
            "entries": {"base_url": entry},
            "guests": {"g": {}},
            "policies": ["policy.yaml"],
            "plugins": ["policy", "dns", {"name": "credentials", "capabilities": ["secrets"]}],
            "credentials": {"key": credential},
            "audit": {"path": str(self.journal)},
            "dns": {"addresses": {name: [self.upstream.address]}, "hosts_file": False},
            "permit_addresses": ["loopback"],
            **settings,
        }

    @property
    def journal(self) -> Path:
        """Where its audit log is."""
        return self.folder / "audit.jsonl"

    async def __aenter__(self) -> Serving:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self.pid != self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await asyncio.gather(*self._readers)

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "seamgate", "serve", "-c", str(self.folder / "seamgate.yaml"), "--log-format", "json",
            cwd=self.folder, env=environment(self.folder), stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        seen, self.pid = len(self.lines), self.process.pid
        assert self.process.stderr is not None
        self._readers.append(asyncio.ensure_future(self._read(self.process.stderr)))
        started = await self.logged("gateway", happened="start", after=seen)
        self.port = int(started["base_url"].rpartition(":")[2])

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.lines.append(json.loads(line) if line.startswith(b"{") else {"message": line.decode()})
            self._changed.set()
        self._changed.set()

    async def logged(self, event: str, *, after: int = 0, **facts: Any) -> dict[str, Any]:
        """Return the next log line of this event with these facts."""
        async with asyncio.timeout(START_S):
            while True:
                for line in self.lines[after:]:
                    if line.get("message") == event and facts.items() <= line.items():
                        return line
                assert self._readers and not all(each.done() for each in self._readers), self.lines
                self._changed.clear()
                await self._changed.wait()

    async def client(self) -> Client:
        """Open a connection."""
        return Client(await connect("127.0.0.1", self.port), "127.0.0.1")

    async def ask(self, path: str) -> Answer:
        """Send one request on a connection of its own. Raises OSError or Cut if it can't be."""
        client = await self.client()
        try:
            return await client.ask("GET", "/api" + path)
        finally:
            client.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    async def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.signal(signal.SIGTERM)
        return await self.process.wait()

    async def succeed(self) -> None:
        """SIGUSR2; return once the successor has started."""
        seen = len(self.lines)
        self.signal(signal.SIGUSR2)
        told = await self.logged("a successor takes over", after=seen)
        self.pid = int(told["pid"])
        await self.logged("gateway", happened="start", after=seen)

    async def ended(self) -> None:
        """Wait until every process that was started is gone."""
        await asyncio.gather(*self._readers)

    async def stop_successor(self) -> None:
        """SIGTERM to a process that is not our child; return once it has said that it stops."""
        seen = len(self.lines)
        self.signal(signal.SIGTERM)
        await self.logged("gateway", happened="stop", after=seen)
        await asyncio.gather(*self._readers)
