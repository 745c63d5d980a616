"""A throw-away gateway and server on loopback, for `seamgate doctor --clients` to send real clients through.

The gateway signs with the CA that is examined; the server behind it notes which client's request reached it. Each
client has a token of its own, so that what the gateway refused can be told apart. Nothing listens beyond loopback, and
everything is gone when the stage is left; the machine's own policies, credentials and journal are not touched.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from seamgate.audit.reading import read_lines
from seamgate.ca.environment import client_environment
from seamgate.ca.leaf import CertificateAuthority
from seamgate.ca.store import CaFiles, init_ca
from seamgate.config import Config, parse_config
from seamgate.gateway import Gateway
from seamgate.tasks import spawn

OPEN, SHUT = "open", "token"
"""Guests of the listener that asks for no login, and prefix of those that show one."""
_LONGEST_HEAD_BYTES = 65536
_ANSWER = b"trusted"


class ClientStage:
    """Everything that runs. `async with ClientStage(folder, ca, host, names) as stage: ...`

    Args:
        folder: empty; for configuration and journals.
        ca: folder of the CA that clients are to trust.
        host: the name that clients ask for; the CA may sign for it.
        names: of the clients.
    """

    def __init__(self, folder: Path, ca: Path, host: str, names: tuple[str, ...]) -> None:
        self.ca = CaFiles(ca)
        self.host = host
        self._folder = folder
        self._no_roots = folder / "no-roots"
        self._tokens = {name: secrets.token_hex(16) for name in names}
        self._reached: set[str] = set()
        self._nonce = secrets.token_hex(8)
        self._server: asyncio.Server | None = None
        self._gateways: list[Gateway] = []
        self.port = 0

    async def __aenter__(self) -> ClientStage:
        self._no_roots.mkdir()
        authority = CertificateAuthority(init_ca(self._folder / "upstream-ca"))
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, ssl=authority.leaf_context(self.host), limit=_LONGEST_HEAD_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]
        try:
            for guest in ("", OPEN):
                gateway = Gateway(self._config(guest))
                await gateway.start()
                self._gateways.append(gateway)
        except BaseException:
            await self._take_down()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._take_down()

    async def _take_down(self) -> None:
        for gateway in self._gateways:
            await gateway.stop(grace_s=0.1)
        if self._server is not None:
            self._server.close()

    def _config(self, guest: str) -> Config:
        """Return the configuration of one of the two gateways: with a login, or for the one guest `guest`."""
        allow = {"hosts": [self.host], "ports": [self.port]}
        (self._folder / "policy.json").write_text(json.dumps({"seamgate": 1, "rules": [{"id": "all", "allow": allow}]}))
        guests = {
            f"{SHUT}-{name}": {"token": {"sha256": hashlib.sha256(token.encode()).hexdigest()}}
            for name, token in self._tokens.items()
        }
        settings = {
            "entries": {"proxy": {"listen": "127.0.0.1:0", "guest": guest}},
            "policies": ["policy.json"],
            "guests": {**guests, OPEN: {}},
            "ca": {"dir": str(self.ca.directory.absolute())},
            "audit": {"path": f"audit-{guest or SHUT}.jsonl"},
            "dns": {"addresses": {self.host: ["127.0.0.1"]}, "hosts_file": False, "servers": ["127.0.0.1:9"]},
            "permit_addresses": ["loopback"],
            "upstream_tls": {"origins": [{"hosts": [self.host], "ca": "upstream-ca/ca.pem", "roots": "only"}]},
            "limits": {"connections": 256, "plugin_budget_s": 2.0},
        }
        return parse_config(json.dumps(settings), "doctor", base=self._folder)

    # -- for a client ------------------------------------------------------------------------------------------------

    def url(self, tag: str) -> str:
        """Return what a client is to ask for; the tag says afterwards that it did."""
        return f"https://{self.host}:{self.port}/{self._nonce}/{tag}"

    def reached(self, tag: str) -> bool:
        """Whether a request for that URL, or one below it, came through to the server."""
        return tag in self._reached

    def proxy(self, name: str, *, login: bool) -> str:
        """Return the proxy's URL for a client."""
        host, port = self._gateways[0 if login else 1].addresses["proxy"]
        return f"http://{name}:{self._tokens[name]}@{host}:{port}" if login else f"http://{host}:{port}"

    def environment(self, name: str, ca: CaFiles, environ: Mapping[str, str], *, login: bool = True) -> dict[str, str]:
        """Return the environment of a client: what `seamgate run` and `ca env` set, over the present one."""
        return {
            **environ,
            **client_environment(self.proxy(name, login=login), ca.certificate.absolute(), self._no_roots),
        }

    def reasons(self, name: str) -> tuple[str, ...]:
        """Return the reasons of what the gateway with logins noted about a client; empty if it never came."""
        for gateway in self._gateways:
            gateway._flush()
        lines = [json.loads(line) for line in read_lines(self._gateways[0].journal_path)]
        mine = [line for line in lines if (line.get("guest") or {}).get("id") == f"{SHUT}-{name}"]
        return tuple([str(line.get("reason", "")) for line in mine])

    # -- the server --------------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        spawn(self._serve(reader, writer), name="doctor's server")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; the gateway wrote it, so there is nothing odd in it."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode("ascii", "replace")
            nonce, _, rest = path.strip("/").partition("/")
            if nonce == self._nonce:
                self._reached.add(rest.partition("?")[0].partition("/")[0])
            size = str(len(_ANSWER)).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: " + size + b"\r\n\r\n" + _ANSWER)
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # the gateway hung up, which is its right
        finally:
            writer.close()


def present_environment() -> dict[str, str]:
    """Return this process's environment without what an outer gateway may have put into it for Java."""
    return {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
