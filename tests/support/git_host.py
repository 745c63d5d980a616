"""A git host for client tests: `git http-backend`, git's own server, as CGI program behind an `HttpUpstream`."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support.lab import SECRET
from support.upstream import Talk


class GitHost:
    """An app that serves bare repositories to whoever logs in as `ci` with the secret, to fetch and to push.

    Attributes:
        folder: holds the repositories, as `team/tool.git`.
        logins: what came in Authorization, decoded; "" where nothing came.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="git-host-"))
        self.logins: list[str] = []
        repository = self.folder / "team" / "tool.git"
        _git("init", "-q", "--bare", "-b", "main", str(repository))
        _git("-C", str(repository), "config", "http.receivepack", "true")

    def close(self) -> None:
        """Remove the repositories."""
        shutil.rmtree(self.folder)

    def heads(self) -> str:
        """Return what main is at, by subject; "" if nothing was pushed."""
        place = str(self.folder / "team" / "tool.git")
        done = subprocess.run(
            ["git", "-C", place, "log", "-1", "--format=%s", "main", "--"],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        return done.stdout.strip()

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        scheme, _, login = (talk.header("authorization") or "").partition(" ")
        self.logins.append(base64.b64decode(login).decode() if scheme == "Basic" else "")
        if self.logins[-1] != f"ci:{SECRET}":
            await talk.body()
            await talk.respond(401, b"log in", [("www-authenticate", 'Basic realm="git"')])
            return
        path, _, query = talk.target.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "ci",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": talk.method,
            "CONTENT_TYPE": talk.header("content-type") or "",
            "HTTP_CONTENT_ENCODING": talk.header("content-encoding") or "",
            "GIT_PROTOCOL": talk.header("git-protocol") or "",
        }
        if (length := talk.header("content-length")) is not None:
            environment["CONTENT_LENGTH"] = length
        backend = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        feeding = asyncio.ensure_future(_feed(talk, backend))
        try:
            await _answer(talk, backend)
            await feeding
            await backend.wait()
        finally:
            feeding.cancel()
            if backend.returncode is None:  # the test is over before git is
                backend.kill()


async def _feed(talk: Talk, backend: asyncio.subprocess.Process) -> None:
    """Hand the request's body over as it comes: packs are larger than memory."""
    assert backend.stdin is not None
    while (piece := await talk.piece()) is not None:
        backend.stdin.write(piece)
        await backend.stdin.drain()
    backend.stdin.close()


async def _answer(talk: Talk, backend: asyncio.subprocess.Process) -> None:
    """Pass on what the program says: a head as CGI has it (RFC 3875 6), then the body."""
    out = backend.stdout
    assert out is not None
    head = await out.readuntil(b"\r\n\r\n")
    fields = [line.partition(":")[::2] for line in head.decode().splitlines() if line]
    status = next((int(value.split()[0]) for name, value in fields if name.lower() == "status"), 200)
    await talk.begin(status, [(n, v.strip()) for n, v in fields if n.lower() != "status"])
    while piece := await out.read(1 << 16):
        await talk.data(piece)
    await talk.finish()


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True, timeout=100)
