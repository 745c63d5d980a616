"""Seamgate, with all of its work switched on: interception, a policy of many rules, an injected credential, audit.

The peers inject a header and no more. The policy holds the one rule that allows the bench's requests, allow rules for
other hosts, and (one in ten) deny rules for the bench's own host, so that there is something to decide.
"""

from __future__ import annotations

import base64
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from seamgate.ca import init_ca
from seamgate_bench.ground import CREDENTIAL_HEADER, NAME, Ground
from seamgate_bench.load import Way
from seamgate_bench.peers import Running
from seamgate_bench.process import free_port, start
from seamgate_bench.versions import printed_version

COMMAND = Path(sys.executable).parent / "seamgate"
# The wheel as users get it, unpacked by `make compiled`; the editable sources beside it are plain Python.
COMPILED = Path(__file__).resolve().parents[3] / "build" / "compiled"
GUEST = "bench"
ROUTE = "bench"
"""First path segment of the base URL."""
MOST_SESSIONS = 2048
"""To the upstream, and three quarters of it for the bench's one guest: one for each of 1,500 requests at once. Envoy's
limit is lifted too, Squid and nginx have none. With the default, 256, most requests would wait in a queue."""


def policy(ground: Ground, rules: int) -> dict[str, Any]:
    """Return a policy of `rules` rules (at least one)."""
    allow = {"hosts": [NAME], "ports": [ground.upstream_port], "methods": ["GET", "POST"], "paths": ["/v1/**"]}
    bench = {"id": "bench", "allow": allow, "credential": "bench", "reason": "the bench calls its upstream"}
    others = [_other_rule(n) for n in range(1, rules)]
    half = len(others) // 2
    return {
        "seamgate": 1,
        "layer": "team",
        "owner": "bench@example.com",
        "rules": [*others[:half], bench, *others[half:]],
    }


def _other_rule(n: int) -> dict[str, Any]:
    if n % 10 == 0:
        return {
            "id": f"closed-{n}",
            "deny": {"hosts": [NAME], "paths": [f"/v1/closed-{n}/**"]},
            "reason": "a path of the bench's host that is closed",
        }
    return {
        "id": f"service-{n}",
        "allow": {"hosts": [f"service-{n}.example.com"], "methods": ["GET", "POST"], "paths": ["/v1/**"]},
        "reason": "a service that other guests call",
    }


def configuration(
    ground: Ground, room: Path, port: int, *, plain: bool = False, limits: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return seamgate.yaml, with the explicit proxy as its entry, or (plain) the base URL."""
    listen = f"127.0.0.1:{port}"
    routes = {ROUTE: f"https://{ground.authority}"}
    entry = (
        {"base_url": {"listen": listen, "guest": GUEST, "routes": routes}} if plain else {"proxy": {"listen": listen}}
    )
    return {
        "entries": entry,
        "ca": {"dir": str(room / "ca")},
        "policies": ["policy.yaml"],
        "credentials": {
            "bench": {"source": {"env": "BENCH_SECRET"}, "inject": {"header": CREDENTIAL_HEADER}, "hosts": [NAME]},
        },
        "guests": {GUEST: {"token": {"env": "BENCH_TOKEN"}}},
        "audit": {"path": str(room / "audit.jsonl")},
        "dns": {"addresses": {NAME: ["127.0.0.1"]}, "hosts_file": False},
        "upstream_tls": {"origins": [{"hosts": [NAME], "ca": str(ground.ca_cert)}]},
        "permit_addresses": ["127.0.0.1"],
        "pool": {"sessions_per_origin": MOST_SESSIONS, "sessions_to_origin": MOST_SESSIONS},
        "limits": dict(limits or {}),
    }


@dataclass(frozen=True)
class Seamgate:
    """`seamgate serve` from the environment that runs the bench; of kind p2t, its base-URL entry.

    Attributes:
        rules: of its policy.
        compiled: whether it is the wheel.
        workers: how many processes carry requests.
        limits: of its configuration.
        spread: whether it may use the core of load and upstream as well, so that workers can run side by side.
    """

    name: str = "seamgate"
    kind: str = "mitm"
    rules: int = 100
    compiled: bool = True
    limits: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    spread: bool = False

    def missing(self) -> str | None:
        """Look for the command beside the running interpreter, and for the unpacked wheel."""
        if self.compiled and not (COMPILED / "seamgate").is_dir():
            return "the wheel with the compiled hot path is not built: run `make compiled`"
        return None if COMMAND.exists() else f"there is no {COMMAND.name} command beside {Path(sys.executable).name}"

    def version(self) -> str:
        """Ask seamgate."""
        return printed_version([str(COMMAND), "--version"]) + (" (compiled)" if self.compiled else " (plain Python)")

    def launch(self, ground: Ground, room: Path) -> Running:
        """Write its two files and start it."""
        port, token = free_port(), secrets.token_hex(16)
        (room / "policy.yaml").write_text(yaml.safe_dump(policy(ground, self.rules), sort_keys=False))
        init_ca(room / "ca")
        config = room / "seamgate.yaml"
        plain = self.kind == "p2t"
        config.write_text(
            yaml.safe_dump(configuration(ground, room, port, plain=plain, limits=self.limits), sort_keys=False)
        )
        env = {"BENCH_SECRET": ground.secret, "BENCH_TOKEN": token}
        if self.compiled:
            env["PYTHONPATH"] = str(COMPILED)
        argv = [str(COMMAND), "serve", "-c", str(config), "--workers", str(self.workers)]
        cores = (ground.proxy_core, ground.load_core) if self.spread else (ground.proxy_core,)
        program = start(self.name, argv, directory=room, core=",".join(map(str, cores)), env=env)
        program.wait_for_port(port)
        ca = room / "ca" / "ca.pem"
        if plain:
            way = Way(mode="p2t", port=port, ca=ca, prefix=f"/{ROUTE}")
        else:
            basic = base64.b64encode(f"{GUEST}:{token}".encode()).decode()
            way = Way(mode="mitm", port=port, ca=ca, proxy_authorization=f"Basic {basic}")
        return Running(program, way, audit=room / "audit.jsonl")
