"""Clients of other runtimes through the proxy: a Go program, Java's HttpClient, node's https and undici's fetch.

Each asks for JSON, uploads, reads an event stream event by event, and meets a denial, as Python's clients do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.api import EVENTS, Api
from support.lab import Lab
from support.programs import run
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

RULES: list[dict[str, Any]] = [
    {
        "id": "api",
        "allow": {"hosts": ["api.test"], "ports": ["1-65535"], "paths": ["/json", "/upload", "/events", "/ack/*"]},
        "credential": "key",
    }
]
WITH_TOKEN = {"entries": {"proxy": {"guest": ""}}}
DEBIAN_MODULES = "/usr/share/nodejs"
PROGRAMS = Path(__file__).parent / "programs"


def needs(program: str) -> None:
    """Skip where a program is not there."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


async def client_is_served(settings: dict[str, Any], *command: str, **environment: str) -> None:
    """Run a client that prints what it saw; hold it and the gateway to it."""
    async with Lab(HttpUpstream(Api()), rules=RULES, settings=settings) as lab:
        given = {**lab.environment(), "BASE": lab.url(""), **environment}
        code, out, err = await run(*command, env=given)
        assert code == 0, err.decode()[-3000:]
        said = json.loads(out)
        assert said["json"] == {"ok": True, "has_key": True}
        assert said["upload"] == {"size": 100000}
        assert said["events"] == [f"data: {number} [redacted:key]" for number in range(EVENTS)]
        status, message = said["denied"]
        assert status == 403
        assert "no_rule_matched" in message
        assert "403" in said["elsewhere"], said["elsewhere"]
        assert sorted(await lab.told()) == sorted(
            (
                "GET /json allow allowed 200 complete",
                "POST /upload allow allowed 201 complete",
                *(f"GET /ack/{number} allow allowed 204 complete" for number in range(EVENTS)),
                "GET /events allow allowed 200 complete",
                "GET /denied deny no_rule_matched 403 denied",
                "CONNECT elsewhere.test:443 deny no_rule_matched 403 denied",
            )
        )


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go client, built once."""
    needs("go")
    folder = tmp_path_factory.mktemp("go")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GOCACHE": str(folder / "cache"), "GOFLAGS": ""}
    command = ["go", "build", "-o", str(folder / "client"), str(PROGRAMS / "client.go")]
    subprocess.run(command, env={**environment, "GO111MODULE": "off"}, check=True, capture_output=True, timeout=55)
    return folder / "client"


async def test_go(go_client: Path) -> None:
    """net/http with its defaults: proxy and roots from the environment, the token shown at CONNECT."""
    await client_is_served(WITH_TOKEN, str(go_client))


async def test_java() -> None:
    """java.net.http.HttpClient with its defaults; a listener of its own, since Java takes no login from a variable."""
    needs("java")
    await client_is_served({}, "java", str(PROGRAMS / "Client.java"))


async def test_node_https() -> None:
    """node's https over a tunnel of its own, as the usual proxy agents make it."""
    needs("node")
    await client_is_served(WITH_TOKEN, "node", str(PROGRAMS / "client.mjs"), "https")


async def test_undici_fetch() -> None:
    """undici's fetch, which node's is, with its pool of connections, over such tunnels."""
    needs("node")
    if not os.path.isdir(f"{DEBIAN_MODULES}/undici"):  # noqa: ASYNC240
        pytest.skip("node-undici is not installed")
    await client_is_served(WITH_TOKEN, "node", str(PROGRAMS / "client.mjs"), "undici", NODE_PATH=DEBIAN_MODULES)
