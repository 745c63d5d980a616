"""Real servers that are programs, as upstreams: nginx and node, with HTTP/2 over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import socket
import tempfile
from pathlib import Path

from support.certificates import upstream_ca
from support.upstream import RawUpstream, silent


def free_port() -> int:
    """Return a port that is free now, and that the system gives to nobody who leaves the choice to it."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class ProgramUpstream(RawUpstream):
    """A server program with a certificate of the test's CA, in a folder of its own."""

    def __init__(self, *names: str) -> None:
        super().__init__(silent, *names)
        self.folder = Path(tempfile.mkdtemp(prefix="server-"))
        self._process: asyncio.subprocess.Process | None = None

    def command(self) -> list[str]:
        """Write what the program needs and return how it is started."""
        raise NotImplementedError

    async def start(self) -> None:
        certificate = upstream_ca().issue_cert(*self.names)
        (self.folder / "cert.pem").write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
        certificate.private_key_pem.write_to_path(self.folder / "key.pem")
        self.port = free_port()
        command = self.command()
        program = shutil.which(command[0])
        assert program is not None, f"{command[0]} is not installed: this test needs it"
        self._process = await asyncio.create_subprocess_exec(
            program, *command[1:], cwd=self.folder, stdin=asyncio.subprocess.DEVNULL
        )
        for _ in range(2000):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                assert self._process.returncode is None, f"{command[0]} ended at once"
                await asyncio.sleep(0.005)
            else:
                writer.close()
                return
        raise AssertionError(f"{command[0]} does not listen")

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Nginx(ProgramUpstream):
    """nginx; each connection takes `requests` requests, then GOAWAY.

    Attributes:
        log: a line a request: protocol, status, connection, path.
    """

    def __init__(self, *names: str, requests: int = 1000) -> None:
        super().__init__(*names)
        self._requests = requests

    @property
    def log(self) -> list[str]:
        return (self.folder / "access.log").read_text().splitlines()

    def command(self) -> list[str]:
        (self.folder / "www").mkdir()
        (self.folder / "www/small").write_bytes(b"small\n")
        (self.folder / "www/large").write_bytes(bytes(range(256)) * 8192)
        user = "user root;" if os.geteuid() == 0 else ""  # its workers have to read the folder
        (self.folder / "nginx.conf").write_text(f"""
{user} daemon off; pid nginx.pid; error_log error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  log_format short '$server_protocol $status $connection $request_uri';
  access_log access.log short;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  keepalive_requests {self._requests};
  server {{
    listen 127.0.0.1:{self.port} ssl http2;
    ssl_certificate cert.pem; ssl_certificate_key key.pem;
    root www;
    location /moved {{ return 302 /small; }}
  }}
}}
""")
        return ["nginx", "-p", str(self.folder), "-c", "nginx.conf", "-e", "error.log"]


class Node(ProgramUpstream):
    """node's http2 server: echoes bodies, with trailers."""

    def command(self) -> list[str]:
        (self.folder / "server.js").write_text("""
const http2 = require('node:http2'), fs = require('node:fs');
const server = http2.createSecureServer({cert: fs.readFileSync('cert.pem'), key: fs.readFileSync('key.pem')});
server.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  stream.additionalHeaders({':status': 103, link: '</x>'});
  stream.respond({':status': 200, 'x-path': headers[':path']}, {waitForTrailers: true});
  stream.on('wantTrailers', () => stream.sendTrailers({'x-late': '1'}));
  stream.pipe(stream);
});
server.listen(Number(process.argv[2]), '127.0.0.1');
""")
        return ["node", "server.js", str(self.port)]
