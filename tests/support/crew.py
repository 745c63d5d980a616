"""A gateway of several processes in a test: the supervisor runs in the test's loop, its workers are real processes.

    async with Crew(HttpUpstream(echo)) as crew:
        clients = await crew.spread()     # one client for each worker
        assert (await clients[1].ask("GET", "/api/x")).status == 200

When it ends without an error, the journal has to verify, with at most one terminal record of each request, and one of
each that was begun; nothing secret may stand in it, and no worker may be left.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seamgate.config import parse_config
from seamgate.workers.member import Member
from seamgate.workers.supervisor import Supervisor
from support.client import Client
from support.lab import SECRET, Lab
from support.upstream import RawUpstream


class Crew(Lab):
    """See the module; the arguments are those of `Lab`, and how many workers there are."""

    def __init__(self, *upstreams: RawUpstream, workers: int = 2, **more: Any) -> None:
        super().__init__(*upstreams, **more)
        self.supervisor: Supervisor
        self._count = workers

    async def _start_gateway(self) -> None:
        self.write_settings()
        config = parse_config(json.dumps(self.settings()), "seamgate.yaml", base=self.folder)
        self.supervisor = self.gateway = Supervisor(config, log_level="error")  # type: ignore[assignment]
        self.supervisor.reload_path = self.folder / "seamgate.yaml"
        await self.supervisor.start()

    def write_settings(self) -> None:
        """Write the configuration file."""
        (self.folder / "seamgate.yaml").write_text(json.dumps(self.settings()))

    def settings(self) -> dict[str, Any]:
        """Return the configuration as it is written."""
        return {**super().settings(), "workers": self._count}

    @property
    def members(self) -> list[Member]:
        """The workers."""
        return self.supervisor.workers

    async def settled(self) -> None:
        """Close every connection of a guest."""
        for line in self._lines:
            await line.end()

    def _check(self) -> None:
        assert self.failures == []
        assert all(member.state == "gone" for member in self.members)
        lines = self.lines()
        ended = collections.Counter(line["id"] for line in lines if line["kind"] in ("request", "connect"))
        assert set(ended.values()) <= {1}, ended.most_common(3)
        assert {line["id"] for line in lines if line["kind"] == "begin"} <= ended.keys()
        self._verify()
        assert SECRET.encode() not in self.gateway.journal_path.read_bytes()

    # -- clients -----------------------------------------------------------------------------------------------------

    async def spread(self, number: int = 1, *, prefix: str = "") -> list[Client]:
        """Return clients of the base-URL entry, so many of each worker, worker by worker.

        Whoever is free takes the next connection; so connect until each has enough. `prefix` has the token, where the
        entry asks for one.
        """
        found: dict[int, list[Client]] = {member.number: [] for member in self.members}
        while any(len(clients) < number for clients in found.values()):
            clients = [await self.base() for _ in range(4)]
            for client in clients:
                answer = await client.ask("GET", f"{prefix}/nowhere")
                assert answer.status == 400, answer
                worker = worker_of(answer.header(b"x-request-id"))
                if len(found[worker]) < number:
                    found[worker].append(client)
                else:
                    client.close()
        return [client for clients in found.values() for client in clients]

    # -- workers -----------------------------------------------------------------------------------------------------

    async def kill(self, number: int) -> None:
        """Kill a worker as the kernel would, and wait until the supervisor has seen it."""
        member = self.members[number]
        pid = member.pid
        os.kill(pid, signal.SIGKILL)
        await self.until_soon(lambda: member.pid != pid)

    async def serving(self) -> None:
        """Wait until all workers carry requests."""
        await self.until_soon(lambda: all(member.state == "serving" for member in self.members))

    async def until_soon(self, condition: Callable[[], bool]) -> None:
        """Wait for something that another process does: seconds, on a busy machine."""
        for _ in range(5_000):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"never came: {self.members}, {self.terminal()[-3:]}")

    def terminal(self) -> list[dict[str, Any]]:
        """Return the terminal records that are on the disk."""
        return [line for line in self.lines() if line["kind"] in ("request", "connect")]

    async def recorded(self, number: int) -> list[dict[str, Any]]:
        """Wait for so many terminal records, and return them."""
        await self.until_soon(lambda: len(self.terminal()) >= number)
        return self.terminal()


def worker_of(request_id: bytes | None) -> int:
    """Return which worker made a request's id: its second part is four hex digits, and the worker's number."""
    assert request_id is not None
    return int(request_id.decode().split("-")[1][4:], 16)


def open_descriptors(pid: int) -> int:
    """Return how many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
