"""Sets the demo's stage: a folder with a configuration like anybody's, the servers, the gateway, the agent's process.

Called by `story`. Everything listens on loopback, everything lies in one folder, and leaving the stage takes it down.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import sysconfig
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from seamgate import launch
from seamgate.ca.leaf import CertificateAuthority
from seamgate.ca.store import init_ca
from seamgate.config import parse_config
from seamgate.demo.names import NameServer
from seamgate.demo.upstream import Upstream
from seamgate.document import read_text
from seamgate.errors import ConfigError, SeamgateError
from seamgate.gateway import Gateway
from seamgate.policy.loader import parse_policy

KEY_VARIABLE = "LLM_API_KEY"
LABELS = {"team": "research"}
NAMES = {
    "api.llm.test": "127.0.0.1",
    "telemetry.llm.test": "127.0.0.1",
    # What a hijacked or careless DNS answers: the address of the cloud's metadata service.
    "docs.llm.test": "169.254.169.254",
}
_AGENT_S = 30.0
_LINE_BYTES = 1 << 20
_CONFIG = """\
# What `seamgate demo` runs with. A real one looks the same: see docs/configuration.md.
entries:
  proxy: {{listen: 127.0.0.1:0}}
policies: [demo.yaml]
guests:
  agent: {{token: {{env: SEAMGATE_DEMO_TOKEN}}, labels: {{team: research}}}}
credentials:
  llm:
    source: {{env: LLM_API_KEY}}
    inject: {{header: x-api-key}}
    hosts: [api.llm.test]
ca: {{dir: ca}}
audit: {{path: audit.jsonl}}
dns: {{servers: ["{dns}"], hosts_file: false, families: ipv4}}
upstream_tls:
  origins: [{{hosts: ["*.llm.test"], ca: upstream-ca/ca.pem, roots: only}}]
"""


class Stage:
    """Everything that runs. `async with Stage(folder, policy) as stage: ...`

    Attributes:
        folder: holds configuration, policy, CAs and journal.
        key: the real key, fresh.
        environment: the agent's.
        output: everything that the agent wrote, as it came.
    """

    def __init__(self, folder: Path, policy: Path | None = None) -> None:
        self.folder = folder
        self.key = f"sk-demo-{secrets.token_hex(16)}"
        self.environment: dict[str, str] = {}
        self.output = bytearray()
        self.names = NameServer(NAMES)
        self.upstream: Upstream
        self.gateway: Gateway
        self._policy = policy
        self._key_before = os.environ.get(KEY_VARIABLE)

    async def __aenter__(self) -> Stage:
        try:
            await self._set_up()
        except BaseException:
            await self._take_down()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.gateway.stop(grace_s=1.0)
        await self._take_down()

    async def _set_up(self) -> None:
        init_ca(self.folder / "ca")
        authority = CertificateAuthority(init_ca(self.folder / "upstream-ca"))
        self.upstream = Upstream(authority, self.key)
        await self.upstream.start()
        text = _CONFIG.format(dns=await self.names.start())
        (self.folder / "seamgate.yaml").write_text(text, encoding="utf-8")
        source = self._policy if self._policy is not None else shipped_policy("demo.yaml")
        policy = read_text(source)
        parse_policy(policy, str(source))  # an error is to name the file that was given, not our copy
        (self.folder / "demo.yaml").write_text(policy, encoding="utf-8")
        config = parse_config(text, str(self.folder / "seamgate.yaml"), base=self.folder)
        token = launch.new_token()
        journal = self.folder / "audit.jsonl"
        self.gateway = Gateway(launch.private_config(config, token=token, labels=LABELS, audit_path=journal))
        os.environ[KEY_VARIABLE] = self.key  # the credential's source is the gateway's environment
        await self.gateway.start()
        self.environment = launch.guest_environment(
            config, self.gateway.addresses, self.gateway.ca_path, token, os.environ
        )

    async def _take_down(self) -> None:
        if self._key_before is None:
            os.environ.pop(KEY_VARIABLE, None)
        else:
            os.environ[KEY_VARIABLE] = self._key_before
        self.names.stop()
        if hasattr(self, "upstream"):
            self.upstream.stop()

    async def agent(self) -> AsyncGenerator[dict[str, Any]]:
        """Run the agent; yield its reports as they come.

        Raises:
            DemoFailed: it did not end well, or not in time.
        """
        script = Path(__file__).with_name("agent.py")
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(script),
            str(self.upstream.port),
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_LINE_BYTES,
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(_AGENT_S):
                async for line in child.stdout:
                    self.output += line
                    yield _report(line)
                code = await child.wait()
        except TimeoutError:
            raise DemoFailed(f"the agent was not done after {_AGENT_S:g} s") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if code != 0:
            raise DemoFailed(f"the agent ended with exit code {code}")


class DemoFailed(SeamgateError):
    """The demo could not be played to its end."""


def _report(line: bytes) -> dict[str, Any]:
    try:
        report = json.loads(line)
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise DemoFailed(f"the agent said what no report is: {line[:200].decode('utf-8', 'replace').strip()}")
    return report


def shipped_policy(name: str) -> Path:
    """Return a policy that ships with Seamgate: of the checkout, or where the wheel installed it.

    Raises:
        ConfigError: it is not there.
    """
    checkout = Path(__file__).resolve().parents[3] / "policies" / name
    installed = Path(sysconfig.get_path("data")) / "share" / "seamgate" / "policies" / name
    for path in (checkout, installed):
        if path.is_file():
            return path
    raise ConfigError(f"the policy {name} that ships with Seamgate is missing; install Seamgate again")
