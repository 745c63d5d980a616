"""What all peers of a run share: directory, cores, CA, and the upstream (nginx with TLS) that checks the credential.

The upstream answers 200 only to a request that carries the credential, 403 to any other: a peer whose injection does
not work shows as failed, not as fast.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from seamgate_bench.process import PeerFailed, Program, find_program, free_port, start

NAME = "bench.test"
"""The upstream's name: under a reserved top-level domain, so it can't be anybody's. Source: RFC 6761 6.2."""
CREDENTIAL_HEADER = "x-api-key"
SMALL_BYTES = 200
BIG_BYTES = 22 * 1024
STREAM_BYTES = 8 * 1024 * 1024
BODIES = {"/v1/small": SMALL_BYTES, "/v1/big": BIG_BYTES, "/v1/stream": STREAM_BYTES}


@dataclass(frozen=True, slots=True)
class Ground:
    """The shared facts of a run."""

    directory: Path
    proxy_core: int
    load_core: int
    secret: str
    ca_cert: Path
    ca_key: Path
    leaf: Path
    """Certificate and key of NAME, signed by the CA: for the upstream, and for peers that can't mint one."""
    upstream_port: int
    status_port: int
    hosts: Path

    @property
    def authority(self) -> str:
        """The upstream as clients name it."""
        return f"{NAME}:{self.upstream_port}"

    def room(self, name: str) -> Path:
        """Return a directory for one program, made if need be; others may read it, as Squid becomes its own user."""
        path = self.directory / name
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
        return path


def choose_cores() -> tuple[int, int]:
    """Return (proxy's core, core of load and upstream).

    Raises:
        PeerFailed: this machine offers fewer than two.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise PeerFailed("two cores are needed: one for the proxy, one for the load generator and the upstream")
    return cores[0], cores[1]


@contextmanager
def prepared(parent: Path | None = None) -> Iterator[Ground]:
    """Make the ground of a run, start the upstream on it, and take all of it away at the end."""
    with tempfile.TemporaryDirectory(prefix="seamgate-bench-", dir=parent) as name:
        directory = Path(name)
        directory.chmod(0o755)
        ground = _lay(directory)
        upstream = _start_upstream(ground)
        try:
            yield ground
        finally:
            upstream.stop()


def _lay(directory: Path) -> Ground:
    proxy_core, load_core = choose_cores()
    ca = trustme.CA(organization_name="Seamgate bench")
    ground = Ground(
        directory=directory,
        proxy_core=proxy_core,
        load_core=load_core,
        secret=f"bench-{secrets.token_hex(24)}",
        ca_cert=directory / "ca.pem",
        ca_key=directory / "ca.key",
        leaf=directory / "leaf.pem",
        upstream_port=free_port(),
        status_port=free_port(),
        hosts=directory / "hosts",
    )
    ca.cert_pem.write_to_path(str(ground.ca_cert))
    ca.private_key_pem.write_to_path(str(ground.ca_key))
    ca.issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(str(ground.leaf))
    ground.hosts.write_text(f"127.0.0.1 localhost {NAME}\n")
    ground.hosts.chmod(0o644)
    return ground


def make_body(size_bytes: int) -> bytes:
    """Return a JSON document of exactly `size_bytes` that looks like an answer of an LLM API."""
    head, tail = b'{"id":"msg_bench","type":"message","role":"assistant","content":[{"type":"text","text":"', b'"}]}\n'
    words = b"The quick brown fox jumps over the lazy dog, and the gateway watches it go. "
    room = size_bytes - len(head) - len(tail)
    body = head + (words * (room // len(words) + 1))[:room] + tail
    json.loads(body)
    return body


def nginx_user() -> str:
    """Return nginx's `user` line: workers stay root where the master is, so that they can read the run's directory."""
    return "user root;" if os.geteuid() == 0 else ""


NGINX_TEMPORARY = "".join(
    f"    {kind}_temp_path tmp-{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)
"""Debian's nginx has absolute defaults for these under /var/lib: each instance here keeps its own."""


def _upstream_config(ground: Ground, root: Path) -> str:
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
    default_type application/json;
    open_file_cache max=16 inactive=1h;
    open_file_cache_valid 1h;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    server_tokens off;
    server {{
        listen 127.0.0.1:{ground.upstream_port} ssl backlog=4096;
        server_name {NAME};
        ssl_certificate {ground.leaf};
        ssl_certificate_key {ground.leaf};
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:bench:4m;
        root {root};
        if ($http_{CREDENTIAL_HEADER.replace("-", "_")} != "{ground.secret}") {{ return 403 "no credential\\n"; }}
    }}
    server {{
        listen 127.0.0.1:{ground.status_port};
        location = /status {{ stub_status; }}
    }}
}}
"""


def _start_upstream(ground: Ground) -> Program:
    nginx = find_program("nginx")
    if nginx is None:
        raise PeerFailed("nginx is the upstream, and it is not installed: run bench/install-peers.sh")
    room = ground.room("upstream")
    for path, size in BODIES.items():
        file = room / "www" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(make_body(size))
    config = room / "nginx.conf"
    config.write_text(_upstream_config(ground, room / "www"))
    argv = [nginx, "-p", str(room), "-c", str(config), "-e", "error.log"]
    program = start("upstream", argv, directory=room, core=ground.load_core)
    program.wait_for_port(ground.upstream_port)
    return program


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """The upstream's own counters."""

    accepted: int
    active: int


def parse_stub_status(text: str) -> UpstreamStatus:
    """Read nginx's stub_status page.

    Raises:
        ValueError: it is not one.
    """
    active = re.search(r"Active connections: (\d+)", text)
    counters = re.search(r"^ (\d+) (\d+) (\d+) $", text, re.MULTILINE)
    if not active or not counters:
        raise ValueError(f"not a stub_status page: {text[:100]!r}")
    return UpstreamStatus(accepted=int(counters[1]), active=int(active[1]))


def upstream_status(ground: Ground) -> UpstreamStatus:
    """Return the upstream's counters now. A look is itself a connection: `active` leaves it out, `accepted` has it."""
    connection = http.client.HTTPConnection("127.0.0.1", ground.status_port, timeout=10)
    try:
        connection.request("GET", "/status")
        status = parse_stub_status(connection.getresponse().read().decode())
    finally:
        connection.close()
    return UpstreamStatus(status.accepted, status.active - 1)


def connects_between(before: UpstreamStatus, after: UpstreamStatus) -> int:
    """Return how many connections the upstream accepted between two looks, without the second look's own."""
    return after.accepted - before.accepted - 1
