"""git over https through the proxy: clone, fetch and push, each as policy has it, with a login that git never holds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.git_host import GitHost
from support.lab import SECRET, Lab
from support.programs import run
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

REPOSITORY = "/team/tool.git"
SWAPPED = {"inject": None, "placeholder": "ghp_0000000000000000000000000000"}
INJECTED = {"inject": {"header": None, "basic": {"username": "ci"}}}


def rules(*services: str) -> list[dict[str, Any]]:
    """Return the rules that permit these of git's two services on the one repository."""
    common = {"hosts": ["api.test"], "ports": ["1-65535"]}
    refs = {**common, "methods": ["GET"], "paths": [f"{REPOSITORY}/info/refs"], "query": {"service": [*services]}}
    calls = {**common, "methods": ["POST"], "paths": [f"{REPOSITORY}/{service}" for service in services]}
    return [
        {"id": "refs", "allow": refs, "credential": "key"},
        {"id": "calls", "allow": calls, "credential": "key"},
    ]


class Agent:
    """git in a folder of its own, with the environment that a guest gets."""

    def __init__(self, lab: Lab, host: GitHost) -> None:
        self.lab, self.host = lab, host
        self.work = lab.folder / "work"

    async def git(self, *arguments: str) -> tuple[int, str]:
        """Run git; return (exit code, what it said)."""
        environment = {**self.lab.environment(), "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}
        code, out, err = await run("git", "-c", "user.name=a", "-c", "user.email=a@a.test", *arguments, env=environment)
        return code, (out + err).decode()

    async def told(self) -> list[str]:
        """Return what was audited since, but the connection on which git finds out how the proxy wants its login."""
        return [each for each in await self.lab.told() if each != "CONNECT - deny unauthenticated 407 denied"]

    async def commit(self, subject: str, size_bytes: int = 10) -> None:
        """Commit a file that does not compress."""
        (self.work / "data").write_bytes(random.Random(1).randbytes(size_bytes))
        for arguments in (("add", "data"), ("commit", "-qm", subject)):
            code, said = await self.git("-C", str(self.work), *arguments)
            assert code == 0, said


@asynccontextmanager
async def agent(*services: str, credential: dict[str, Any] = INJECTED) -> AsyncIterator[Agent]:
    """Start a git host, a gateway before it, and hand out who uses them."""
    host = GitHost()
    settings = {"entries": {"proxy": {"guest": ""}}, "credentials": {"key": credential}}
    try:
        async with Lab(HttpUpstream(host), rules=rules(*services), settings=settings) as lab:
            yield Agent(lab, host)
    finally:
        host.close()


async def test_clone_commit_push_and_fetch() -> None:
    """All of it works with no login in git's hands; a push beyond git's buffer goes up in chunks, and arrives whole."""
    async with agent("git-upload-pack", "git-receive-pack") as me:
        code, said = await me.git("clone", "-q", me.lab.url(REPOSITORY), str(me.work))
        assert code == 0, said
        await me.commit("large", 3 << 20)
        code, said = await me.git("-C", str(me.work), "push", "-q", "origin", "HEAD:main")
        assert (code, me.host.heads()) == (0, "large"), said
        code, said = await me.git("-C", str(me.work), "fetch", "-q", "origin", "main")
        assert code == 0, said
        again = me.lab.folder / "again"
        code, said = await me.git("clone", "-q", me.lab.url(REPOSITORY), str(again))
        assert code == 0, said
        assert (again / "data").read_bytes() == (me.work / "data").read_bytes()
        assert set(me.host.logins) == {f"ci:{SECRET}"}
        told = await me.told()
        assert set(told) == {
            f"GET {REPOSITORY}/info/refs allow allowed 200 complete",
            f"POST {REPOSITORY}/git-upload-pack allow allowed 200 complete",
            f"POST {REPOSITORY}/git-receive-pack allow allowed 200 complete",
        }


async def test_a_login_by_placeholder_is_swapped_inside_of_basic() -> None:
    """A remote with the placeholder as password works, and the value is nowhere in the guest's repository."""
    async with agent("git-upload-pack", "git-receive-pack", credential=SWAPPED) as me:
        remote = me.lab.url(REPOSITORY).replace("//", f"//ci:{SWAPPED['placeholder']}@")
        code, said = await me.git("clone", "-q", remote, str(me.work))
        assert code == 0, said
        await me.commit("small")
        code, said = await me.git("-C", str(me.work), "push", "-q", "origin", "HEAD:main")
        assert (code, me.host.heads()) == (0, "small"), said
        # git asks without a login first, and gives it when told to.
        assert set(me.host.logins) == {"", f"ci:{SECRET}"}
        assert not [path for path in me.work.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        told = await me.told()
        assert f"GET {REPOSITORY}/info/refs allow allowed 401 complete" in told
        assert told[-1] == f"POST {REPOSITORY}/git-receive-pack allow allowed 200 complete"


async def test_git_shows_why_a_push_is_denied() -> None:
    """Where only fetching is allowed, the push ends at its first request, and git prints the gateway's reason."""
    async with agent("git-upload-pack") as me:
        code, said = await me.git("clone", "-q", me.lab.url(REPOSITORY), str(me.work))
        assert code == 0, said
        await me.commit("small")
        await me.told()
        code, said = await me.git("-C", str(me.work), "push", "origin", "HEAD:main")
        assert code != 0
        assert "remote: seamgate: " in said and "no_rule_matched" in said and "remote: request id: " in said
        assert me.host.heads() == ""
        assert await me.told() == [f"GET {REPOSITORY}/info/refs deny no_rule_matched 403 denied"]


async def test_a_denied_call_and_a_denied_host() -> None:
    """A push whose announcement was allowed is stopped at the call itself; a host that no rule names at CONNECT."""
    async with agent("git-upload-pack", "git-receive-pack") as me:
        code, said = await me.git("clone", "-q", me.lab.url(REPOSITORY), str(me.work))
        assert code == 0, said
        await me.commit("small")
        await me.told()
        permitted = rules("git-upload-pack", "git-receive-pack")
        ban = {"hosts": ["**"], "paths": ["/**/git-receive-pack"]}
        me.lab.write_policy([*permitted, {"id": "no-push", "deny": ban}])
        me.lab.gateway.reload(me.lab.gateway.config)
        code, said = await me.git("-C", str(me.work), "push", "origin", "HEAD:main")
        assert code != 0 and "403" in said
        assert me.host.heads() == ""
        code, said = await me.git("ls-remote", "https://elsewhere.test/x.git")
        assert code != 0 and "403" in said
        assert await me.told() == [
            f"GET {REPOSITORY}/info/refs allow allowed 200 complete",
            f"POST {REPOSITORY}/git-receive-pack deny rule_denied 403 denied",
            "CONNECT elsewhere.test:443 deny no_rule_matched 403 denied",
        ]
