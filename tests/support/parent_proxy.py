"""A company's proxy, as far as a gateway sees it: CONNECT, a login, TLS to itself, names that only it knows."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from seamgate.tasks import spawn
from support.certificates import server_context


class ParentProxy:
    """The proxy; `async with ParentProxy(...) as parent`.

    Args:
        names: what it resolves; other hosts must be addresses.
        login: "user:password" that it wants; "" for none.
        tls: whether it is reached by TLS, as proxy.test.
        refuses: the status that it answers every CONNECT with; 0: it opens tunnels.

    Attributes:
        asked: the authorities that it was asked for, in order.
        logins: what came in Proxy-Authorization, decoded.
        heads: what came, whole.
    """

    def __init__(
        self, names: Mapping[str, str] | None = None, *, login: str = "", tls: bool = False, refuses: int = 0
    ) -> None:
        self.asked: list[str] = []
        self.logins: list[str] = []
        self.heads: list[bytes] = []
        self.refuses = refuses
        self.answer = b"HTTP/1.1 200 Connection established\r\n\r\n"
        self.port = 0
        self._names = names or {}
        self._login = login
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """As `upstream_proxy.url` names it."""
        return f"{'https' if self._tls else 'http'}://proxy.test:{self.port}"

    async def __aenter__(self) -> ParentProxy:
        context = server_context("proxy.test") if self._tls else None
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop, and cut every tunnel."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        spawn(self._serve(reader, writer), name="parent proxy", on_error=lambda _: None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            lines = head.decode("ascii").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            method, authority, _ = lines[0].split(" ")
            assert (method, fields["host"]) == ("CONNECT", authority)
            self.asked.append(authority)
            scheme, _, login = fields.get("proxy-authorization", "").partition(" ")
            self.logins.append(base64.b64decode(login).decode() if scheme == "Basic" else "")
            await self._tunnel(authority, reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    async def _tunnel(self, authority: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = authority.rpartition(":")
        if self._login and self.logins[-1] != self._login:
            writer.write(b"HTTP/1.1 407 Login\r\nproxy-authenticate: Basic\r\ncontent-length: 0\r\n\r\n")
            return
        if self.refuses:
            writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % self.refuses)
            return
        try:
            address = self._names.get(host, host.strip("[]"))
            far_reader, far_writer = await asyncio.open_connection(address, int(port))
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
            return
        self._writers.add(far_writer)
        writer.write(self.answer)
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            far_writer.close()
            self._writers.discard(far_writer)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    target: Any = writer
    if target.can_write_eof():
        target.write_eof()
    else:
        target.close()
