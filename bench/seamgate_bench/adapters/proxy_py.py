"""proxy.py with TLS interception and a plugin that sets the header; one worker, one acceptor, errors logged only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seamgate_bench import peers_venv
from seamgate_bench.ground import Ground
from seamgate_bench.load import Way
from seamgate_bench.peers import Running
from seamgate_bench.process import free_port, start
from seamgate_bench.versions import printed_version


@dataclass(frozen=True)
class ProxyPy:
    """proxy.py, with the run's CA and an EC key for its leaves."""

    name: str = "proxy.py"
    kind: str = "mitm"

    def missing(self) -> str | None:
        """Look into the peers' environment."""
        return peers_venv.missing("proxy")

    def version(self) -> str:
        """Ask proxy.py."""
        return printed_version([str(peers_venv.program("proxy")), "--version"])

    def launch(self, ground: Ground, room: Path) -> Running:
        """Start proxy.py."""
        port = free_port()
        certificates = room / "certificates"
        certificates.mkdir(exist_ok=True)
        argv = [str(peers_venv.program("proxy")), "--hostname", "127.0.0.1", "--port", str(port)]
        argv += ["--num-workers", "1", "--num-acceptors", "1", "--backlog", "4096", "--timeout", "3600"]
        argv += ["--log-level", "ERROR", "--data-dir", str(room), "--plugins", "proxy_py_plugin.InjectCredential"]
        argv += ["--ca-cert-file", str(ground.ca_cert), "--ca-key-file", str(ground.ca_key)]
        argv += ["--ca-signing-key-file", str(ground.ca_key), "--ca-cert-dir", str(certificates)]
        argv += ["--ca-file", str(ground.ca_cert)]
        program = start(
            self.name,
            argv,
            directory=room,
            core=ground.proxy_core,
            hosts=ground.hosts,
            env={"BENCH_SECRET": ground.secret, "PYTHONPATH": str(peers_venv.BENCH / "peers")},
        )
        program.wait_for_port(port)
        return Running(program, Way(mode="mitm", port=port, ca=ground.ca_cert))
