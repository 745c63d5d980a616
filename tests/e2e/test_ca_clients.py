"""Real clients accept the gateway's leaves with what `client_environment` tells them, and refuse without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from seamgate.ca import CaConfig, client_environment, init_ca, load_authority
from seamgate.ca.store import CaFiles

pytestmark = pytest.mark.clients

COMMANDS = {
    "curl": ["curl", "-sS", "--fail", "{url}"],
    "urllib": [sys.executable, "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read())", "{url}"],
    "requests": [sys.executable, "-c", "import sys, requests; print(requests.get(sys.argv[1]).text)", "{url}"],
    "httpx": [sys.executable, "-c", "import sys, httpx; print(httpx.get(sys.argv[1]).text)", "{url}"],
    "openssl": ["openssl", "s_client", "-verify_return_error", "-verify_hostname", "localhost", "-CAfile", "{ca}",
                "-connect", "localhost:{port}"],
    "git": ["git", "ls-remote", "{url}/repository"],
    "node": ["node", "-e", "require('https').get(process.argv[1], r => r.pipe(process.stdout))", "{url}"],
    "java": ["java", "{folder}/Get.java", "{url}"],
}  # fmt: skip
# What shows that the handshake went well: the body, or what git and openssl say after it.
PROOF = {"git": "not found", "openssl": "Verify return code: 0"}
JAVA = """
import java.net.*;
public class Get {
    public static void main(String[] a) throws Exception {
        System.out.println(new String(new URL(a[0]).openStream().readAllBytes()));
    }
}
"""


class Handler(BaseHTTPRequestHandler):
    """Answers every path with one word, and git's first question with "not found"."""

    def do_GET(self) -> None:
        body = b"trusted"
        self.send_response(404 if "info/refs" in self.path else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class QuietServer(ThreadingHTTPServer):
    """A server that is not surprised by clients that refuse its certificate."""

    def handle_error(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA and a Java program."""
    folder = tmp_path_factory.mktemp("clients")
    init_ca(folder / "ca")
    (folder / "Get.java").write_text(JAVA)
    return folder


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """A TLS server with a leaf for localhost."""
    server = QuietServer(("127.0.0.1", 0), Handler)
    context = load_authority(CaConfig(dir=str(folder / "ca"))).leaf_context("localhost")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join(timeout=60)


def run_client(client: str, folder: Path, port: int, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one client with this environment and no other hint, proxies off."""
    if shutil.which(COMMANDS[client][0]) is None:
        pytest.skip(f"{client} is not installed")
    values = {"url": f"https://localhost:{port}", "port": port, "ca": folder / "ca" / "ca.pem", "folder": folder}
    command = [part.format(**values) for part in COMMANDS[client]]
    base = {name: os.environ[name] for name in ("PATH", "LANG", "JAVA_HOME") if name in os.environ}
    return subprocess.run(
        command,
        env={**base, "HOME": str(folder), "GIT_TERMINAL_PROMPT": "0", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("client", COMMANDS)
def test_clients_trust_what_they_are_told_to(client: str, folder: Path, port: int) -> None:
    """With the variables of `client_environment` the client completes its handshake with a leaf."""
    result = run_client(
        client, folder, port, client_environment("", folder / "ca" / "ca.pem", CaFiles(folder / "ca").make_no_roots())
    )
    said = result.stdout + result.stderr
    assert PROOF.get(client, "trusted") in said, said


@pytest.mark.parametrize("client", [client for client in COMMANDS if client not in ("openssl", "java")])
def test_clients_refuse_without(client: str, folder: Path, port: int) -> None:
    """Without them it refuses, so that the test above proves something."""
    result = run_client(client, folder, port, {})
    assert result.returncode != 0
    assert "certificate" in (result.stdout + result.stderr).lower()
