"""skopeo logs in to, pushes to and pulls from a registry of images: tokens of a service, for a login it never holds."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.image_registry import ImageRegistry, TokenService, write_image
from support.lab import SECRET, Lab
from support.programs import run
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

PLACEHOLDER = "sgph-key"
SETTINGS = {
    "entries": {"proxy": {"guest": ""}},
    "credentials": {"key": {"inject": None, "hosts": ["tokens.test"]}},
}
LAYER = b"0123456789abcdef" * 65_536


def rules(*methods: str) -> list[dict[str, Any]]:
    """Return rules that permit tokens with the login, and these methods at the registry without."""
    ports = {"ports": ["1-65535"]}
    tokens = {"hosts": ["tokens.test"], "methods": ["GET"], "paths": ["/token"], **ports}
    images = {"hosts": ["images.test"], "methods": [*methods], "paths": ["/v2/", "/v2/team/tool/**"], **ports}
    return [{"id": "tokens", "allow": tokens, "credential": "key"}, {"id": "images", "allow": images}]


class Agent:
    """skopeo in a folder of its own, with the environment that a guest gets."""

    def __init__(self, lab: Lab, registry: ImageRegistry, tokens: TokenService) -> None:
        self.lab, self.registry, self.tokens = lab, registry, tokens
        self.logins = lab.folder / "logins.json"
        self.place = f"{lab.authority(0)}/team/tool"

    async def skopeo(self, *arguments: str, stdin: bytes | None = None) -> tuple[int, str]:
        """Run skopeo; return (exit code, what it said)."""
        environment = {**self.lab.environment(), "REGISTRY_AUTH_FILE": str(self.logins), "TMPDIR": str(self.lab.folder)}
        code, out, err = await run("skopeo", "--insecure-policy", *arguments, env=environment, stdin=stdin)
        return code, (out + err).decode()

    async def login(self, password: str = PLACEHOLDER) -> tuple[int, str]:
        """Log in as `docker login` does."""
        where = self.lab.authority(0)
        return await self.skopeo("login", "-u", "ci", "--password-stdin", where, stdin=password.encode())

    async def told(self) -> list[str]:
        """Return what was audited since, but the connections on which it finds out how the proxy wants its login."""
        return [each for each in await self.lab.told() if each != "CONNECT - deny unauthenticated 407 denied"]


@asynccontextmanager
async def agent(*methods: str) -> AsyncIterator[Agent]:
    """Start a registry, its token service and a gateway before both, and hand out who uses them."""
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    tokens = TokenService()
    registry = ImageRegistry(tokens)
    upstreams = HttpUpstream(registry, "images.test"), HttpUpstream(tokens, "tokens.test")
    async with Lab(*upstreams, rules=rules(*methods), settings=SETTINGS) as lab:
        registry.realm = lab.url("/token", 1)
        yield Agent(lab, registry, tokens)


def _layer(folder: Path) -> bytes:
    """Return the largest blob of an image that was pulled into a folder."""
    return max((path for path in folder.iterdir()), key=lambda path: path.stat().st_size).read_bytes()


async def test_login_push_and_pull_by_tokens() -> None:
    """The login's password is a placeholder, swapped at the token service alone; the registry sees tokens of it."""
    async with agent("GET", "HEAD", "POST", "PATCH", "PUT") as me:
        code, said = await me.login()
        assert code == 0 and "Login Succeeded" in said, said
        write_image(me.lab.folder / "image", LAYER)
        code, said = await me.skopeo("copy", f"oci:{me.lab.folder / 'image'}:v1", f"docker://{me.place}:v1")
        assert code == 0, said
        assert set(me.registry.manifests) == {"v1"}
        assert len(me.registry.blobs) == 2  # the layer, which skopeo compressed, and the image's configuration
        pulled = me.lab.folder / "pulled"
        code, said = await me.skopeo("copy", f"docker://{me.place}:v1", f"dir:{pulled}")
        assert code == 0, said
        assert _layer(pulled) in me.registry.blobs.values()
        assert {each.partition(" ")[0] for each in me.tokens.logins} == {"Basic"}
        assert SECRET not in me.logins.read_text()
        told = await me.told()
        assert {each.partition(" ")[0] for each in told} >= {"GET", "HEAD", "POST", "PATCH", "PUT"}
        assert [each for each in told if " allow allowed " not in each] == []
        records = [each for each in me.lab.records if each.request is not None and each.request.host == "images.test"]
        assert {each.credentials for each in records} == {()}
        with_login = [each for each in me.lab.records if each.request is not None and each.request.path == "/token"]
        assert {each.credentials for each in with_login} == {("key",)}


async def test_a_push_is_denied_where_only_pulls_are_allowed() -> None:
    """skopeo gets its token, and is stopped at the upload, which the record names; nothing is in the registry."""
    async with agent("GET", "HEAD") as me:
        assert (await me.login())[0] == 0
        write_image(me.lab.folder / "image", LAYER)
        code, said = await me.skopeo("copy", f"oci:{me.lab.folder / 'image'}:v1", f"docker://{me.place}:v1")
        assert code != 0 and "403" in said, said
        assert me.registry.blobs == {} and me.registry.manifests == {}
        denied = [each for each in await me.told() if " deny " in each]
        assert denied and set(denied) == {"POST /v2/team/tool/blobs/uploads/ deny no_rule_matched 403 denied"}


async def test_a_wrong_login_gets_no_token() -> None:
    """The service's 401 comes back as it is: the gateway puts nothing in where no placeholder stands."""
    async with agent("GET", "HEAD") as me:
        code, said = await me.login("guessed")
        assert code != 0 and "invalid username/password" in said, said
        assert me.tokens.tokens == {}
        assert all(SECRET not in each for each in me.tokens.logins)
        await me.told()
