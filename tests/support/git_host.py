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
        body = await talk.body()
        scheme, _, login = (talk.header("authorization") or "").partition(" ")
        self.logins.append(base64.b64decode(login).decode() if scheme == "Basic" else "")
        if self.logins[-1] != f"ci:{SECRET}":
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
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": talk.header("content-encoding") or "",
            "GIT_PROTOCOL": talk.header("git-protocol") or "",
        }
        backend = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, _ = await backend.communicate(body)
        finally:
            if backend.returncode is None:  # the test is over before git is
                backend.kill()
        head, _, answer = out.partition(b"\r\n\r\n")
        fields = [line.partition(":")[::2] for line in head.decode().splitlines()]
        status = next((int(value.split()[0]) for name, value in fields if name.lower() == "status"), 200)
        await talk.respond(status, answer, [(n, v.strip()) for n, v in fields if n.lower() != "status"])


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True, timeout=100)
