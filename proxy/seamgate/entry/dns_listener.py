"""Puts a name service on one port, UDP and TCP. Called by the gateway; decides nothing."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from seamgate.entry.dns_entry import NameService
from seamgate.entry.dns_service import Datagrams, Stream

_TRIES = 16
_RECEIVE_BYTES = 1 << 20
"""Of questions that wait for their turn: a burst of a few thousand. The kernel may give less."""


class DnsListener:
    """Both sockets.

    Attributes:
        address: (address, port) of both.
        service: what answers.
    """

    def __init__(self, service: NameService) -> None:
        self.service = service
        self.address = ("", 0)
        self._server: asyncio.Server | None = None
        self._datagrams: asyncio.DatagramTransport | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen; port 0 takes one that is free for both.

        Raises:
            OSError: it can't be bound.
        """
        for left in range(_TRIES, 0, -1):
            try:
                await self._open(host, port)
            except OSError as error:
                self.close()
                if port or error.errno != errno.EADDRINUSE or left == 1:
                    raise
            else:
                return

    async def _open(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Stream(self.service), host, port)
        bound: tuple[Any, ...] = self._server.sockets[0].getsockname()
        self.address = (bound[0], bound[1])
        udp = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.setblocking(False)
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            udp.bind(self.address)
            self._datagrams, _ = await loop.create_datagram_endpoint(lambda: Datagrams(self.service), sock=udp)
        except BaseException:
            udp.close()
            raise

    def close(self) -> None:
        """Stop listening, and end what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._datagrams is not None:
            self._datagrams.close()
            self._datagrams = None
        self.service.close()
