"""git with a pack that is larger than what the gateway may hold: pushed and cloned, its memory in bounds."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from pathlib import Path

import pytest

from support.gateway_process import GatewayProcess
from support.git_host import GitHost
from support.lab import SECRET
from support.programs import run
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

PACK_MIB = 1024 if os.environ.get("SEAMGATE_TEST_FULL") else 64
GIT_LIMIT_S = 30.0 + PACK_MIB
PSS_MIB = 32
"""What a pack on its way may add to what the gateway has at rest; half of the smaller one."""
_SAMPLE_S = 0.05
# What does not compress is not tried to, by neither side: this is about the way between them.
_PLAIN = (
    "-c",
    "core.compression=0",
    "-c",
    "core.bigFileThreshold=1m",
    "-c",
    "user.name=a",
    "-c",
    "user.email=a@a.test",
)


class _Agent:
    """git behind the gateway, which is looked at while git works. State: `grown_mib` is the most that it grew by."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.at_rest_mib = gateway.pss_mib()
        self.grown_mib = 0.0

    async def git(self, *arguments: str) -> None:
        """Run git to its end."""
        environment = {**self.gateway.environment(), "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}
        work = asyncio.ensure_future(run("git", *_PLAIN, *arguments, env=environment, limit_s=GIT_LIMIT_S))
        while not work.done():
            await asyncio.wait([work], timeout=_SAMPLE_S)
            self.grown_mib = max(self.grown_mib, self.gateway.pss_mib() - self.at_rest_mib)
        code, out, err = await work
        assert code == 0, (out + err).decode()


def _write_random(path: Path) -> str:
    """Write a file of `PACK_MIB` that does not compress; return its SHA-256."""
    draw, digest = random.Random(1), hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(PACK_MIB):
            block = draw.randbytes(1 << 20)
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.timeout(60 + 4 * GIT_LIMIT_S)
async def test_a_pack_beyond_memory_is_pushed_and_cloned(tmp_path: Path) -> None:
    """It arrives whole, both ways, through redaction and the search for secrets, in 32 MiB of the gateway's memory."""
    host = GitHost()
    upstream = HttpUpstream(host)
    await upstream.start()
    name, source = upstream.names[0], {"file": str(tmp_path / "key")}
    key = {"source": source, "inject": {"basic": {"username": "ci"}}, "hosts": [name]}
    try:
        async with GatewayProcess(tmp_path, upstream, credential=True, credentials={"key": key}) as gateway:
            me, work, again = _Agent(gateway), tmp_path / "work", tmp_path / "again"
            url = f"https://{name}:{upstream.port}/team/tool.git"
            await me.git("clone", "-q", url, str(work))
            written = await asyncio.to_thread(_write_random, work / "data")
            await me.git("-C", str(work), "add", "data")
            await me.git("-C", str(work), "commit", "-qm", "large")
            await me.git("-C", str(work), "push", "-q", "origin", "HEAD:main")
            assert host.heads() == "large"
            await me.git("clone", "-q", url, str(again))
            assert await asyncio.to_thread(_digest, again / "data") == written
            assert set(host.logins) == {f"ci:{SECRET}"}
            assert me.grown_mib < PSS_MIB, f"{me.grown_mib:.1f} MiB over {me.at_rest_mib:.1f}"
    finally:
        await upstream.stop()
        host.close()
