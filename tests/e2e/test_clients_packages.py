"""pip and npm install from private registries through the proxy: logins by placeholder, one version held back."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest

from support.lab import SECRET, Lab
from support.programs import run
from support.registries import NpmRegistry, PythonIndex
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

SETTINGS = {"entries": {"proxy": {"guest": ""}}, "credentials": {"key": {"inject": None}}}
PLACEHOLDER = "sgph-key"


def readable(*paths: str) -> list[dict[str, Any]]:
    """Return a rule that permits to read these paths, with the registry's login."""
    allow = {"hosts": ["api.test"], "ports": ["1-65535"], "methods": ["GET"], "paths": [*paths]}
    return [{"id": "packages", "allow": allow, "credential": "key"}]


async def pip(lab: Lab, *arguments: str) -> tuple[int, str]:
    """Run `pip install` from the index; return (exit code, what it said)."""
    environment = {
        **lab.environment(),
        "PIP_INDEX_URL": lab.url("/simple/").replace("//", f"//ci:{PLACEHOLDER}@"),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_RETRIES": "1",  # none, and pip would not say what failed
    }
    command = (sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", str(lab.folder / "site"))
    code, out, err = await run(*command, *arguments, env=environment)
    return code, (out + err).decode()


async def test_pip_installs_what_policy_lets_through() -> None:
    """The index and the file of one version are fetched with the login swapped in, checked and installed."""
    rules = readable("/simple/tool/", "/files/tool-1.0-*")
    async with Lab(HttpUpstream(PythonIndex("tool")), rules=rules, settings=SETTINGS) as lab:
        code, said = await pip(lab, "tool==1.0")
        assert code == 0, said
        assert (lab.folder / "site" / "tool.py").read_text() == "VERSION = '1.0'\n"
        assert SECRET not in said
        await lab.audited(
            "GET /simple/tool/ allow allowed 200 complete",
            "GET /files/tool-1.0-py3-none-any.whl allow allowed 200 complete",
        )


async def test_pip_shows_why_it_is_denied() -> None:
    """A version that is held back, and an index at a host that no rule names: pip prints the gateway's reason."""
    rules = readable("/simple/tool/", "/files/tool-1.0-*")
    async with Lab(HttpUpstream(PythonIndex("tool")), rules=rules, settings=SETTINGS) as lab:
        code, said = await pip(lab, "tool")
        assert code == 1 and "403 Client Error: Forbidden (seamgate: no_rule_matched) for url" in said
        code, said = await pip(lab, "-i", "https://elsewhere.test/simple/", "tool")
        assert code == 1 and "Tunnel connection failed: 403 Forbidden (seamgate: no_rule_matched)" in said
        assert not (lab.folder / "site").exists()
        await lab.audited(
            "GET /simple/tool/ allow allowed 200 complete",
            "GET /files/tool-2.0-py3-none-any.whl deny no_rule_matched 403 denied",
            *["CONNECT elsewhere.test:443 deny no_rule_matched 403 denied"] * 2,
        )


async def npm(lab: Lab, *packages: str) -> tuple[int, str]:
    """Run `npm install` from the registry; return (exit code, what it said)."""
    folder = lab.folder / "app"
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": "app", "version": "1.0.0"}))
    origin = lab.url("/")
    (folder / ".npmrc").write_text(f"registry={origin}\n{origin.removeprefix('https:')}:_authToken={PLACEHOLDER}\n")
    options = ("--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=0")
    command = ("npm", "install", "--prefix", str(folder), *options, *packages)
    code, out, err = await run(*command, env={**lab.environment(), "npm_config_userconfig": str(folder / ".npmrc")})
    return code, (out + err).decode()


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm_installs_and_shows_why_it_is_denied() -> None:
    """One package is fetched with the token swapped in, checked and installed; of another npm prints the reason."""
    registry = NpmRegistry("tool", "other")
    rules = readable("/tool", "/tool/-/*", "/other")
    async with Lab(HttpUpstream(registry), rules=rules, settings=SETTINGS) as lab:
        registry.origin = lab.url("")
        code, said = await npm(lab, "tool")
        assert code == 0, said
        assert (lab.folder / "app/node_modules/tool/index.js").read_text() == 'module.exports = "1.0.0";\n'
        assert PLACEHOLDER not in (lab.folder / "app/package-lock.json").read_text()
        code, said = await npm(lab, "other")
        assert code != 0 and "403 Forbidden (seamgate: no_rule_matched) - GET" in said, said
        assert not (lab.folder / "app/node_modules/other").exists()
        await lab.audited(
            "GET /tool allow allowed 200 complete",
            "GET /tool/-/tool-1.0.0.tgz allow allowed 200 complete",
            "GET /other allow allowed 200 complete",
            "GET /other/-/other-1.0.0.tgz deny no_rule_matched 403 denied",
        )
