"""A loopback port that leads through the gateway: for programs that know no proxy, such as h2load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.lab import TOKEN, Lab, proxy_authorization


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def bridge(lab: Lab, authority: str = "") -> AsyncIterator[int]:
    """Listen; each connection becomes a tunnel to this authority. Gives the port."""
    authority = authority or lab.authority()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*lab.gateway.addresses["proxy"])
        up_writer.write(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n".encode())
        up_writer.write(proxy_authorization(TOKEN) + b"\r\n\r\n")
        try:
            head = await up_reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            head = b""
        if not head.startswith(b"HTTP/1.1 200"):
            writer.close()
            up_writer.close()
            return
        await asyncio.gather(_pass(reader, up_writer), _pass(up_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
