"""A gateway as a process of its own, so that its memory can be measured."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from seamgate.ca.environment import client_environment
from seamgate.ca.store import init_ca
from support.certificates import write_upstream_ca
from support.lab import ALLOW_ALL, SECRET, WITH_KEY
from support.upstream import RawUpstream

_PROGRAM = """
import asyncio, json, sys, uvloop
from pathlib import Path
from seamgate.config import load_config
from seamgate.gateway import Gateway

async def main():
    async with Gateway(load_config(sys.argv[1])) as gateway:
        print(json.dumps(gateway.addresses), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

uvloop.run(main())
"""


class GatewayProcess:
    """`async with GatewayProcess(folder, upstream) as gateway`: runs until the block ends."""

    def __init__(self, folder: Path, upstream: RawUpstream, *, credential: bool, **settings: Any) -> None:
        self.folder = folder
        self.upstream = upstream
        self.addresses: dict[str, tuple[str, int]] = {}
        self._credential = credential
        self._settings = settings
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> GatewayProcess:
        name = self.upstream.names[0]
        init_ca(self.folder / "ca")
        key = self.folder / "key"
        key.write_text(SECRET)
        key.chmod(0o600)
        rule = WITH_KEY if self._credential else ALLOW_ALL
        (self.folder / "policy.yaml").write_text(json.dumps({"seamgate": 1, "rules": [rule]}))
        inject = {"source": {"file": str(key)}, "inject": {"header": "x-api-key"}, "hosts": [name]}
        config = {
            "entries": {"proxy": {"listen": "127.0.0.1:0", "guest": "g"}},
            "guests": {"g": {}},
            "ca": {"dir": str(self.folder / "ca")},
            "policies": ["policy.yaml"],
            "plugins": ["policy", "dns", {"name": "credentials", "capabilities": ["secrets"]}],
            "credentials": {"key": inject} if self._credential else {},
            "audit": {"path": "audit.jsonl"},
            "dns": {"addresses": {name: [self.upstream.address]}, "hosts_file": False},
            "permit_addresses": ["loopback"],
            "upstream_tls": {"origins": [{"hosts": [name], "ca": write_upstream_ca(self.folder).name}]},
            **self._settings,
        }
        (self.folder / "seamgate.yaml").write_text(json.dumps(config))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PROGRAM, str(self.folder / "seamgate.yaml"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        while not (line := await self._process.stdout.readline()).startswith(b'{"'):
            assert line, "the gateway did not start"
        self.addresses = {entry: tuple(place) for entry, place in json.loads(line).items()}
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    def rss_mib(self) -> float:
        """Return its resident memory."""
        return self._status("VmRSS")

    def peak_rss_mib(self) -> float:
        """Return the most that was ever resident."""
        return self._status("VmHWM")

    def pss_mib(self) -> float:
        """Return its proportional memory: pages that it shares count by part."""
        text = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        return int(text.split("Pss:")[1].split()[0]) / 1024

    def environment(self) -> dict[str, str]:
        """Return the variables that a real client gets."""
        host, port = self.addresses["proxy"]
        variables = client_environment(f"http://{host}:{port}", self.folder / "ca" / "ca.pem")
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8", **variables}

    def _status(self, name: str) -> float:
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.split(f"{name}:")[1].split()[0]) / 1024

    async def curl(self, *arguments: str, big_bytes: int) -> tuple[int, str]:
        """Run curl through it; `-T -` uploads so many zeros."""
        host, port = self.addresses["proxy"]
        url = f"https://{self.upstream.names[0]}:{self.upstream.port}/big"
        command = [
            "curl",
            "-sS",
            "--http1.1",
            "-x",
            f"http://{host}:{port}",
            "--cacert",
            str(self.folder / "ca/ca.pem"),
        ]
        upload = "-T" in arguments
        feed = f"head -c {big_bytes} /dev/zero | " if upload else ""
        quoted = " ".join(f"'{each}'" for each in [*command, *arguments, url])
        process = await asyncio.create_subprocess_shell(feed + quoted, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()
