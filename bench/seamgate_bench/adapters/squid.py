"""Squid with OpenSSL and ssl-bump: a domain list, and the header by request_header_add.

`squid` bumps after a peek at the ClientHello, as its documentation recommends (the leaf then mimics the upstream's
certificate). `squid-first` bumps at once, from the name in CONNECT alone: cheaper for new connections, the same
afterwards. `squid-log` also writes Squid's access log, which the others leave out.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from seamgate_bench.ground import CREDENTIAL_HEADER, NAME, Ground
from seamgate_bench.load import Way
from seamgate_bench.peers import Running
from seamgate_bench.process import PeerFailed, find_program, free_port, start
from seamgate_bench.versions import printed_version

CERTGEN = Path("/usr/lib/squid/security_file_certgen")
USER = "proxy"
"""Squid gives up root, for this user of Debian's."""


def _config(ground: Ground, room: Path, port: int, client_first: bool, access_log: bool) -> str:
    bump = "ssl_bump bump all" if client_first else "ssl_bump peek step1\nssl_bump bump all"
    return f"""
http_port 127.0.0.1:{port} ssl-bump tls-cert={ground.ca_cert} tls-key={room}/ca.key generate-host-certificates=on
sslcrtd_program {CERTGEN} -s {room}/ssl_db -M 4MB
sslcrtd_children 2 startup=1 idle=1
tls_outgoing_options cafile={ground.ca_cert}
acl step1 at_step SslBump1
{bump}
acl allowed dstdomain "{room}/domains"
http_access allow allowed
http_access deny all
request_header_add {CREDENTIAL_HEADER} "{ground.secret}" all
hosts_file {ground.hosts}
dns_nameservers 127.0.0.1
cache deny all
cache_mem 0
access_log {f"stdio:{room}/access.log" if access_log else "none"}
cache_log {room}/cache.log
pid_filename {room}/squid.pid
coredump_dir {room}
pinger_enable off
max_filedescriptors 16384
client_idle_pconn_timeout 1 hour
server_idle_pconn_timeout 1 hour
client_lifetime 1 day
shutdown_lifetime 1 second
visible_hostname bench
cache_effective_user {USER}
"""


@dataclass(frozen=True)
class Squid:
    """One Squid process and its certificate helper."""

    name: str = "squid"
    kind: str = "mitm"
    domains: int = 100
    client_first: bool = False
    access_log: bool = False

    def missing(self) -> str | None:
        """Look for Debian's squid-openssl; Debian's plain squid can't intercept."""
        if os.geteuid() != 0:
            return "squid needs root here, to become its own user"
        if find_program("squid") and CERTGEN.exists():
            return None
        return "squid-openssl is not installed: run bench/install-peers.sh"

    def version(self) -> str:
        """Ask squid."""
        return printed_version([find_program("squid") or "squid", "-v"])

    def launch(self, ground: Ground, room: Path) -> Running:
        """Make its certificate database and start it in the foreground."""
        port = free_port()
        shutil.copy(ground.ca_key, room / "ca.key")
        names = [NAME, *(f"service-{n}.example" for n in range(1, self.domains))]
        (room / "domains").write_text("\n".join(names) + "\n")
        made = subprocess.run(
            [str(CERTGEN), "-c", "-s", str(room / "ssl_db"), "-M", "4MB"], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise PeerFailed(f"squid's certificate database: {made.stderr.strip()}")
        config = room / "squid.conf"
        config.write_text(_config(ground, room, port, self.client_first, self.access_log))
        self._hand_over(room)
        service = "bench" + "".join(c for c in room.name if c.isalnum())
        argv = [find_program("squid") or "squid", "-N", "-n", service, "-f", str(config)]
        program = start(self.name, argv, directory=room, core=ground.proxy_core)
        program.wait_for_port(port)
        return Running(program, Way(mode="mitm", port=port, ca=ground.ca_cert))

    @staticmethod
    def _hand_over(room: Path) -> None:
        user = pwd.getpwnam(USER)
        for path in [room, *room.rglob("*")]:
            os.chown(path, user.pw_uid, user.pw_gid)
