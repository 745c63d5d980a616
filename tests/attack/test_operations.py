"""A real gateway process: killed in the middle of load, out of descriptors. It goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections import Counter
from pathlib import Path

from seamgate.audit.reading import read_lines, verify_journal
from support.line import Cut
from support.serving import Serving
from support.upstream import HttpUpstream, echo

GUESTS = 16


async def _load(service: Serving, answered: list[str], until: asyncio.Event) -> None:
    """One guest: a request after the other until it is told to stop, or the gateway is gone."""
    client = None
    try:
        client = await service.client()
        while not until.is_set():
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
        for turn in range(2):
            async with service:
                load = [asyncio.ensure_future(_load(service, answered, asyncio.Event())) for _ in range(GUESTS)]
                before = len(answered)
                async with asyncio.timeout(20):
                    while len(answered) < before + 150:  # noqa: ASYNC110 - told by nobody
                        await asyncio.sleep(0.005)
                service.signal(signal.SIGKILL)
                assert await service.process.wait() == -signal.SIGKILL
                await asyncio.gather(*load)
            assert len(answered) >= 150 * (turn + 1)
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
    assert len(cut) <= 2 * GUESTS and all(line["reason"] == "internal_error" for line in cut)


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
            await _exhausted(pid, open_now + 4)
            answer = await early.ask("GET", "/api/during")
            assert (answer.status, answer.reason) == (503, "overloaded")
            for client in held:
                client.close()
            async with asyncio.timeout(20):
                while (await service.ask("/after")).status != 200:  # noqa: ASYNC110
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


async def _exhausted(pid: int, limit: int) -> None:
    async with asyncio.timeout(20):
        while len(os.listdir(f"/proc/{pid}/fd")) < limit:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
