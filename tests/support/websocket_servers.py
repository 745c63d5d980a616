"""Real WebSocket servers on loopback for a `Lab`: the packages `websockets` and `aiohttp`, with TLS.

Both serve the same paths: /echo says back what it hears; /early says "welcome" before it hears anything, then echoes;
/identify wants {"token": SECRET} first and repeats it; /bye closes with 4001.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import websockets
from aiohttp import WSMsgType, web
from websockets.asyncio.server import ServerConnection, serve

from support.certificates import server_context
from support.lab import SECRET
from support.upstream import RawUpstream, silent


class WebsocketsServer(RawUpstream):
    """A server of the package `websockets`."""

    def __init__(self) -> None:
        super().__init__(silent)
        self.codes: list[int | None] = []
        self._running: Any = None

    async def start(self) -> None:
        """Listen."""
        context = server_context(*self.names)
        self._running = await serve(self._talk, self.address, 0, ssl=context, select_subprotocol=_choose)
        self.port = self._running.sockets[0].getsockname()[1]

    async def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        path = connection.request.path
        try:
            if path == "/bye":
                await connection.close(4001, "done")
            if path == "/early":
                await connection.send("welcome")
            if path == "/identify":
                await connection.send(answer_to(await connection.recv()))
            async for message in connection:
                await connection.send(message)
        except websockets.ConnectionClosed:
            pass
        self.codes.append(connection.close_code)

    async def stop(self) -> None:
        """Close everything."""
        self._running.close()
        await self._running.wait_closed()


def _choose(_: ServerConnection, offered: Sequence[websockets.Subprotocol]) -> websockets.Subprotocol | None:
    return next((each for each in offered if each == "v2"), None)


class AiohttpServer(RawUpstream):
    """A server of the package `aiohttp`."""

    def __init__(self) -> None:
        super().__init__(silent)
        self.codes: list[int | None] = []
        self._runner: web.AppRunner

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/{path}", self._talk)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.address, 0, ssl_context=server_context(*self.names))
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _talk(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=["v2"], compress=True)
        await socket.prepare(request)
        if request.path == "/bye":
            await socket.close(code=4001, message=b"done")
        if request.path == "/early":
            await socket.send_str("welcome")
        if request.path == "/identify":
            await socket.send_str(answer_to(await socket.receive_str()))
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        self.codes.append(socket.close_code)
        return socket

    async def stop(self) -> None:
        """Close everything."""
        await self._runner.cleanup()
        await asyncio.sleep(0)


def answer_to(text: str | bytes) -> str:
    """Return what is said to who identifies itself."""
    token = json.loads(text)["token"]
    return f"welcome {token}" if token == SECRET else "who are you"
