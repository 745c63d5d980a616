"""nginx as a reverse proxy: the floor. It judges nothing, knows one upstream, and is told its certificate.

`nginx` terminates the client's TLS (t2t), `nginx-plain` takes plaintext (p2t) as Seamgate's base-URL entry does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seamgate_bench.ground import CREDENTIAL_HEADER, NAME, NGINX_TEMPORARY, Ground, nginx_user
from seamgate_bench.load import Way
from seamgate_bench.peers import Running
from seamgate_bench.process import find_program, free_port, start
from seamgate_bench.versions import printed_version


def _config(ground: Ground, port: int, tls: bool) -> str:
    certificate = f"ssl_certificate {ground.leaf}; ssl_certificate_key {ground.leaf};" if tls else ""
    return f"""
daemon off;
{nginx_user()}
worker_processes 1;
worker_rlimit_nofile 16384;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 8192; }}
http {{
{NGINX_TEMPORARY}
    access_log off;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    upstream bench {{
        server 127.0.0.1:{ground.upstream_port};
        keepalive 2048;
        keepalive_requests 1000000000;
        keepalive_timeout 1h;
    }}
    server {{
        listen 127.0.0.1:{port} {"ssl" if tls else ""} backlog=4096;
        server_name {NAME};
        ssl_protocols TLSv1.2 TLSv1.3;
        {certificate}
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $http_host;
        proxy_set_header {CREDENTIAL_HEADER} "{ground.secret}";
        proxy_ssl_protocols TLSv1.2 TLSv1.3;
        proxy_ssl_server_name on;
        proxy_ssl_name {NAME};
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate {ground.ca_cert};
        proxy_buffers 8 16k;
        location / {{ proxy_pass https://bench; }}
    }}
}}
"""


@dataclass(frozen=True)
class Nginx:
    """One nginx worker."""

    name: str = "nginx"
    kind: str = "t2t"

    def missing(self) -> str | None:
        """Look for Debian's nginx."""
        return None if find_program("nginx") else "nginx is not installed: run bench/install-peers.sh"

    def version(self) -> str:
        """Ask nginx."""
        return printed_version([find_program("nginx") or "nginx", "-v"])

    def launch(self, ground: Ground, room: Path) -> Running:
        """Start it with its master and one worker."""
        port = free_port()
        config = room / "nginx.conf"
        config.write_text(_config(ground, port, tls=self.kind == "t2t"))
        argv = [find_program("nginx") or "nginx", "-p", str(room), "-c", str(config), "-e", "error.log"]
        program = start(self.name, argv, directory=room, core=ground.proxy_core)
        program.wait_for_port(port)
        return Running(program, Way(mode=self.kind, port=port, ca=ground.ca_cert))
