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
        await self.attach(*bind_both(host, port))

    async def attach(self, tcp: socket.socket, udp: socket.socket) -> None:
        """Answer what comes to two sockets that are bound already; they are ours from here on."""
        loop = asyncio.get_running_loop()
        bound: tuple[Any, ...] = tcp.getsockname()
        self.address = (bound[0], bound[1])
        try:
            self._server = await loop.create_server(lambda: Stream(self.service), sock=tcp)
            self._datagrams, _ = await loop.create_datagram_endpoint(lambda: Datagrams(self.service), sock=udp)
        except BaseException:
            tcp.close()
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


def bind_both(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return a TCP socket that listens and a UDP socket, on one port; 0 takes one that is free for both.

    Raises:
        OSError: it can't be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    left = _TRIES
    while True:
        left -= 1
        tcp = socket.create_server((host, port), family=family)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setblocking(False)
            udp.setblocking(False)
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            udp.bind(tcp.getsockname())
        except OSError as error:
            tcp.close()
            udp.close()
            if port or error.errno != errno.EADDRINUSE or not left:
                raise
        else:
            return tcp, udp
