"""mitmproxy: mitmdump with an addon of three lines, quiet, storing nothing that it doesn't always store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seamgate_bench import peers_venv
from seamgate_bench.ground import Ground
from seamgate_bench.load import Way
from seamgate_bench.peers import Running
from seamgate_bench.process import free_port, start
from seamgate_bench.versions import printed_version

ADDON = peers_venv.BENCH / "peers" / "mitm_addon.py"


@dataclass(frozen=True)
class Mitmproxy:
    """mitmdump in regular mode, with the CA that it makes for itself."""

    name: str = "mitmproxy"
    kind: str = "mitm"

    def missing(self) -> str | None:
        """Look into the peers' environment."""
        return peers_venv.missing("mitmdump")

    def version(self) -> str:
        """Ask mitmdump."""
        return printed_version([str(peers_venv.program("mitmdump")), "--version"])

    def launch(self, ground: Ground, room: Path) -> Running:
        """Start mitmdump."""
        port = free_port()
        options = [f"confdir={room}", f"ssl_verify_upstream_trusted_ca={ground.ca_cert}", "flow_detail=0"]
        options += ["termlog_verbosity=error"]
        argv = [str(peers_venv.program("mitmdump")), "--listen-host", "127.0.0.1", "--listen-port", str(port)]
        argv += ["--scripts", str(ADDON)]
        for option in options:
            argv += ["--set", option]
        program = start(
            self.name,
            argv,
            directory=room,
            core=ground.proxy_core,
            hosts=ground.hosts,
            env={"BENCH_SECRET": ground.secret},
        )
        program.wait_for_port(port)
        return Running(program, Way(mode="mitm", port=port, ca=room / "mitmproxy-ca-cert.pem"))
