"""SSRF at the running gateway: what leads to a special address or to itself is denied, audited, never dialled."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fake_dns import FakeDns, addresses, says
from seamgate.ca import init_ca
from seamgate.config import parse_config
from seamgate.gateway import Gateway

POLICY = """
seamgate: 1
layer: org
owner: tests@seamgate.example
rules:
  - id: everything-below-example
    allow:
      hosts: ["**.example", localhost, "*.localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"]
      schemes: [http, https]
      ports: ["1-65535"]
    reason: the policy permits the names; the addresses are what is tried
"""

CONFIG = """
entries:
  proxy: {{listen: "127.0.0.1:0", guest: tester}}
guests:
  tester: {{}}
policies: [policy.yaml]
ca: {{dir: ca}}
audit: {{path: audit.jsonl}}
dns: {{servers: ["{server}"], hosts_file: false, families: both, timeout_s: 5, deadline_s: 10, attempts: 1}}
"""


class Attack:
    """A running gateway, the name server of the attacker, and the raw answers to raw requests."""

    def __init__(self, gateway: Gateway, dns: FakeDns, folder: Path) -> None:
        self.gateway = gateway
        self.dns = dns
        self._folder = folder

    async def raw(self, head: str) -> tuple[int, str]:
        """Send one request, return (status, whole answer)."""
        reader, writer = await asyncio.open_connection(*self.gateway.addresses["proxy"])
        writer.write(head.encode("latin-1"))
        answer = b""
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
            answer += await reader.read(4096)
        except asyncio.IncompleteReadError as exc:
            answer = exc.partial
        finally:
            writer.close()
        return int(answer.split(b" ", 2)[1]), answer.decode("latin-1")

    async def get(self, authority: str) -> tuple[int, str]:
        """Ask for a page through the proxy."""
        return await self.raw(f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n")

    def audited(self) -> list[dict[str, Any]]:
        """Return the terminal records of the journal so far."""
        records = [json.loads(line) for line in (self._folder / "audit.jsonl").read_text().splitlines()]
        return [record for record in records if record["kind"] in ("exchange", "connect", "request", "refusal")]


def run(
    folder: Path, scenario: Callable[[Attack], Awaitable[None]], expected: list[str], *, verdict: str = "deny"
) -> None:
    """Run a scenario; afterwards the journal holds exactly these reasons, each with this verdict."""

    async def main() -> Attack:
        async with asyncio.timeout(20), FakeDns() as dns:
            init_ca(folder / "ca")
            (folder / "policy.yaml").write_text(POLICY)
            config = parse_config(CONFIG.format(server=dns.server), "seamgate.yaml", base=folder)
            async with Gateway(config) as gateway:
                attack = Attack(gateway, dns, folder)
                await scenario(attack)
            return attack

    records = asyncio.run(main()).audited()
    assert [record["reason"] for record in records] == expected
    assert {record["verdict"] for record in records} == {verdict}


class Trap:
    """A listener on loopback that must never be reached."""

    def __enter__(self) -> Trap:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        with pytest.raises(BlockingIOError):
            self._socket.accept()
        self._socket.close()


@pytest.mark.parametrize(
    "found", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::ffff:7f00:1"], ["64:ff9b::7f00:1"]]
)
def test_names_that_lead_to_loopback(found: list[str], tmp_path: Path) -> None:
    """An allowed name with a loopback address, alone, mixed or embedded: 403, audited, the port never reached."""

    async def scenario(attack: Attack) -> None:
        attack.dns.host("trap.example", *found)
        with Trap() as trap:
            status, answer = await attack.get(f"trap.example:{trap.port}")
        assert status == 403
        assert "address_forbidden" in answer

    run(tmp_path, scenario, ["address_forbidden"])


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "app.localhost"])
def test_literals_and_localhost(host: str, tmp_path: Path) -> None:
    """Loopback by its own names is refused even where a rule allows the host, without asking a name server."""

    async def scenario(attack: Attack) -> None:
        with Trap() as trap:
            status, _ = await attack.get(f"{host}:{trap.port}")
        assert status == 403
        assert attack.dns.queries == []

    run(tmp_path, scenario, ["address_forbidden"])


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f000001", "2130706433", "0177.0.0.1", "[::1%25lo]", "127.0.0.1.", "a.example.1"]
)
def test_odd_spellings(host: str, tmp_path: Path) -> None:
    """Odd spellings of addresses are malformed targets: 400, audited, never looked up."""

    async def scenario(attack: Attack) -> None:
        status, _ = await attack.get(host)
        assert status == 400
        assert attack.dns.queries == []

    run(tmp_path, scenario, ["bad_target"])


@pytest.mark.parametrize("found", ["127.0.0.1", "::ffff:7f00:1", "0.0.0.0"])
def test_names_that_lead_to_the_gateway(found: str, tmp_path: Path) -> None:
    """A name that leads to the gateway's own entry is refused as such, so there is no loop."""

    async def scenario(attack: Attack) -> None:
        attack.dns.host("loop.example", found)
        _, port = attack.gateway.addresses["proxy"]
        status, answer = await attack.get(f"loop.example:{port}")
        assert status == 403
        assert "own_address" in answer

    run(tmp_path, scenario, ["own_address"])


def test_tunnel_to_the_gateway(tmp_path: Path) -> None:
    """CONNECT to the gateway's own address is refused before a tunnel is there."""

    async def scenario(attack: Attack) -> None:
        address, port = attack.gateway.addresses["proxy"]
        status, _ = await attack.raw(f"CONNECT {address}:{port} HTTP/1.1\r\nHost: {address}:{port}\r\n\r\n")
        assert status == 403

    run(tmp_path, scenario, ["own_address"])


def test_denied_names_are_never_looked_up(tmp_path: Path) -> None:
    """What policy does not allow costs no query: a name in a query would carry data out."""

    async def scenario(attack: Attack) -> None:
        status, _ = await attack.get("c2VjcmV0.evil.test")
        assert status == 403
        assert attack.dns.queries == []

    run(tmp_path, scenario, ["no_rule_matched"])


def test_rebinding(tmp_path: Path) -> None:
    """A name that changes to loopback with TTL 0 is refused at the request that meets the change."""

    async def scenario(attack: Attack) -> None:
        attack.dns.tell("rebind.example", "AAAA", says())
        attack.dns.tell(
            "rebind.example",
            "A",
            addresses("rebind.example", "10.0.0.1", ttl=0),
            addresses("rebind.example", "127.0.0.1", ttl=0),
        )
        with Trap() as trap:
            for _ in range(2):
                assert (await attack.get(f"rebind.example:{trap.port}"))[0] == 403

    run(tmp_path, scenario, ["address_forbidden", "address_forbidden"])


def test_dead_name_servers(tmp_path: Path) -> None:
    """SERVFAIL everywhere ends as a named failure of a request that policy allowed, not as a guess."""

    async def scenario(attack: Attack) -> None:
        for kind in ("A", "AAAA"):
            attack.dns.tell("down.example", kind, says(code="SERVFAIL"))
        status, answer = await attack.get("down.example")
        assert status == 502
        assert "resolve_failed" in answer

    run(tmp_path, scenario, ["resolve_failed"], verdict="allow")
