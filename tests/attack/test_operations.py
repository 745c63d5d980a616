"""A real gateway process: killed in the middle of load, out of descriptors. It goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
from collections import Counter
from pathlib import Path

import pytest

from seamgate.audit.reading import read_lines, verify_journal
from support.client import Answer, Client
from support.line import Cut
from support.serving import Serving
from support.upstream import HttpUpstream, Talk, echo

GUESTS = 16
CROWD = 10_000
PAUSE_S = 0.01
"""Between two requests of a guest that is to be served during a restart: a successor needs the processor to load."""
ASYNC_TEST_LIMIT_S = 200.0
"""Starts of whole processes take long on a machine that is busy with others."""
pytestmark = pytest.mark.timeout(220)


async def _load(service: Serving, answered: list[str]) -> None:
    """One guest: a request after the other until the gateway is gone."""
    client = None
    try:
        client = await service.client()
        while True:
            answer = await client.ask("GET", f"/api/{len(answered)}")
            if not answer.whole:
                return
            assert answer.status == 200
            answered.append(answer.json["target"])
    except (Cut, OSError):
        return
    finally:
        if client is not None:
            client.close()


async def test_kill_9_in_the_middle_of_load(tmp_path: Path) -> None:
    """What was answered is on record, each begun request has its one end, the chain verifies; the next goes on."""
    upstream = HttpUpstream(echo, tls=False)
    await upstream.start()
    service = Serving(tmp_path, upstream)
    answered: list[str] = []
    try:
        async with service:
            load = [asyncio.ensure_future(_load(service, answered)) for _ in range(GUESTS)]
            async with asyncio.timeout(60):
                while len(answered) < 200:  # noqa: ASYNC110 - told by nobody
                    await asyncio.sleep(0.005)
            service.signal(signal.SIGKILL)
            assert await service.process.wait() == -signal.SIGKILL
            await asyncio.gather(*load)
        async with service:
            assert (await service.ask("/after")).status == 200
            assert await service.stop() == 0
    finally:
        await upstream.stop()
    report = verify_journal(service.journal)
    assert report.fault is None and not report.lost, report
    lines = [json.loads(line) for line in read_lines(service.journal)]
    begun = Counter(line["id"] for line in lines if line["kind"] == "begin")
    ended = Counter(line["id"] for line in lines if line["kind"] == "request")
    assert begun == ended and set(ended.values()) == {1}
    assert len(begun) >= len(answered) + 1, "something was answered that is not on record"
    cut = [line for line in lines if line["kind"] == "request" and line["outcome"] == "aborted"]
    assert len(cut) <= GUESTS and all(line["reason"] == "internal_error" for line in cut)


async def test_a_gateway_without_descriptors_recovers(tmp_path: Path) -> None:
    """With every descriptor in use it neither dies nor spins: who is connected hears why, and room is used again."""
    upstream = HttpUpstream(echo, tls=False)
    await upstream.start()
    service = Serving(tmp_path, upstream)
    try:
        async with service:
            early = await service.client()
            pid = service.process.pid
            open_now = len(os.listdir(f"/proc/{pid}/fd"))
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now + 4, hard))
            held = [await service.client() for _ in range(40)]
            await _opened(pid, open_now + 4)
            await service.logged("no descriptor is left: connections are dropped and none is dialled")
            answer = await early.ask("GET", "/api/during")
            assert (answer.status, answer.reason) == (503, "overloaded")
            for client in held:
                client.close()
            async with asyncio.timeout(60):
                while not await _answers(service, "/after"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert _seconds(pid) < 20, "it kept the processor busy"
            early.close()
            assert await service.stop() == 0
    finally:
        await upstream.stop()
    assert verify_journal(service.journal).fault is None
    told = [(line["request"]["path"], line["reason"]) for line in map(json.loads, read_lines(service.journal))
            if line["kind"] == "request"]  # fmt: skip
    assert ("/during", "overloaded") in told and ("/after", "allowed") in told


async def test_ten_thousand_connections(tmp_path: Path) -> None:
    """Idle ones, and slow ones in the middle of a head, leave the others their service; gone, they leave nothing.

    As many as the hard limit of descriptors permits: a gateway takes two for each connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    crowd = min(CROWD, (hard - 1000) // 200 * 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, crowd + 1000), hard))
    upstream = HttpUpstream(echo, tls=False)
    await upstream.start()
    limits = {"connections": crowd + 100, "guest_connections": crowd + 100}
    service = Serving(tmp_path, upstream, limits=limits)
    held: list[socket.socket] = []
    try:
        async with service:
            early = await service.client()
            assert (await early.ask("GET", "/api/0")).status == 200
            open_before = len(os.listdir(f"/proc/{service.pid}/fd"))
            while len(held) < crowd:
                held += await asyncio.gather(*[_silent(service.port, slow=each % 4 == 0) for each in range(100)])
                assert (await early.ask("GET", f"/api/{len(held)}")).status == 200
            await _opened(service.pid, open_before + crowd)
            assert (await service.ask("/late")).status == 200
            _close(held)
            async with asyncio.timeout(60):
                while len(os.listdir(f"/proc/{service.pid}/fd")) > open_before:  # noqa: ASYNC110 - told by nobody
                    await asyncio.sleep(0.05)
            assert (await early.ask("GET", "/api/after")).status == 200
            early.close()
            assert await service.stop() == 0
    finally:
        _close(held)
        await upstream.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert verify_journal(service.journal).fault is None
    lines = [json.loads(line) for line in read_lines(service.journal)]
    served = [line["request"]["path"] for line in lines if line["kind"] == "request" and line["reason"] == "allowed"]
    assert len(served) == crowd // 100 + 3


async def _silent(port: int, *, slow: bool) -> socket.socket:
    """Open a connection that says nothing, or begins to."""
    found = socket.socket()
    found.setblocking(False)
    await asyncio.get_running_loop().sock_connect(found, ("127.0.0.1", port))
    if slow:
        await asyncio.get_running_loop().sock_sendall(found, b"GET /api/slow HTTP/1.1\r\nhost: ")
    return found


def _close(lines: list[socket.socket]) -> None:
    for each in lines:
        each.close()


async def _opened(pid: int, wanted: int) -> None:
    async with asyncio.timeout(60):
        while len(os.listdir(f"/proc/{pid}/fd")) < wanted:  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.05)


class Restless:
    """A guest that asks all the time over one connection, opens another when it is told to, and counts.

    A request on a connection that the gateway closed just then, since it had been idle for long, is sent once more on
    another one, as RFC 9112 9.3.1 has clients do; anything else that goes wrong is a failure.
    """

    def __init__(self, service: Serving) -> None:
        self.service = service
        self.answered = self.repeated = 0
        self.stopped = False
        self._client: Client | None = None
        self._dropped = False

    async def run(self) -> None:
        """Ask until told to stop."""
        try:
            while not self.stopped:
                await self._ask()
        finally:
            self._hang_up()

    async def _ask(self) -> None:
        self._client = self._client or await self.service.client()
        answer = Answer()
        with contextlib.suppress(Cut, OSError):
            answer = await self._client.ask("GET", f"/api/{self.answered}")
        if answer.whole:
            assert answer.status == 200, answer
            self.answered += 1
            self._dropped = False
            await asyncio.sleep(PAUSE_S)
        else:
            assert not self._dropped, "a request was dropped twice"
            self.repeated, self._dropped = self.repeated + 1, True
        if not answer.whole or answer.header(b"connection") == b"close":
            self._hang_up()

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_restart_under_load_drops_no_request(workers: int, tmp_path: Path) -> None:
    """With workers or without: each request is answered, the stream goes on to its end, and one chain has it all."""
    go_on = asyncio.Event()

    async def app(talk: Talk) -> None:
        if talk.target != "/stream":
            await echo(talk)
            return
        await talk.begin(200)
        await talk.data(b"first ")
        await go_on.wait()
        await talk.data(b"last")
        await talk.finish()

    upstream = HttpUpstream(app, tls=False)
    await upstream.start()
    service = Serving(tmp_path, upstream, workers=workers)
    guests = [Restless(service) for _ in range(4)]
    load: list[asyncio.Task[None]] = []
    try:
        async with service:
            load = [asyncio.ensure_future(guest.run()) for guest in guests]
            streaming = await service.client()
            await streaming.send(streaming.request("GET", "/api/stream"))
            await streaming.line.seen(b"first ")
            restart = asyncio.ensure_future(service.succeed())
            await service.logged("a successor takes over")
            go_on.set()
            assert (await streaming.answer()).body == b"first last"
            streaming.close()
            await restart
            assert await service.process.wait() == 0
            before = sum(guest.answered for guest in guests)
            async with asyncio.timeout(60):
                while sum(guest.answered for guest in guests) < before + 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for guest in guests:
                guest.stopped = True
            await asyncio.gather(*load)
            await service.stop_successor()
    finally:
        for each in load:
            each.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        await upstream.stop()
    report = verify_journal(service.journal)
    assert report.fault is None and not report.lost, report
    lines = [json.loads(line) for line in read_lines(service.journal)]
    happened = [line["gateway"]["event"] for line in lines if line["kind"] == "gateway"]
    assert happened == ["start", "stop"] * 2
    # One number, one policy: the successor goes on where the first one stopped.
    assert [line["generation"] for line in lines if line["kind"] == "gateway"] == [1, 1, 2, 2]
    assert {line.get("generation", 0) for line in lines if line["kind"] == "request"} - {0} == {1, 2}
    complete = sum(line["kind"] == "request" and line["outcome"] == "complete" for line in lines)
    assert complete == sum(guest.answered for guest in guests) + 1
    assert sum(guest.repeated for guest in guests) <= len(guests)


async def test_a_successor_that_can_not_start_changes_nothing(tmp_path: Path) -> None:
    """The old process goes on, and says so; it can still be asked again."""
    upstream = HttpUpstream(echo, tls=False)
    await upstream.start()
    service = Serving(tmp_path, upstream)
    try:
        async with service:
            (tmp_path / "policy.yaml").write_text("rulez: []")
            service.signal(signal.SIGUSR2)
            await service.logged("the successor can't start: this process goes on, see the log")
            assert (await service.ask("/x")).status == 200
            seen = len(service.lines)
            service.signal(signal.SIGUSR2)
            await service.logged("a successor loads", after=seen)
            assert await service.stop() == 0
            await service.ended()
    finally:
        await upstream.stop()
    assert verify_journal(service.journal).fault is None
    lines = map(json.loads, read_lines(service.journal))
    happened = [line["gateway"]["event"] for line in lines if line["kind"] == "gateway"]
    assert happened == ["start", "stop"], "a gateway that was stopped was succeeded"


async def _answers(service: Serving, path: str) -> bool:
    """Return whether a request is answered; a connection may be dropped while there is still no room for it."""
    with contextlib.suppress(Cut, OSError):
        return (await service.ask(path)).status == 200
    return False


def _seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
