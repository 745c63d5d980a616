"""The demo's DNS server: answers for a few names, keeps a book of everything that it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from dnslib import QTYPE, RCODE, RR, A, DNSError, DNSRecord


class NameServer(asyncio.DatagramProtocol):
    """A DNS server over UDP.

    Attributes:
        asked: the names of all queries, canonical, in order.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.asked: list[str] = []
        self._addresses = addresses
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self) -> str:
        """Listen on a free loopback port; return address:port."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        host, port = transport.get_extra_info("sockname")
        return f"{host}:{port}"

    def stop(self) -> None:
        """Stop listening."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is no subclass of it

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer a query; what is none is dropped."""
        try:
            query = DNSRecord.parse(data)
        except DNSError:
            return
        name = str(query.q.qname).rstrip(".").lower()
        self.asked.append(name)
        reply = query.reply()
        if name not in self._addresses:
            reply.header.rcode = RCODE.NXDOMAIN
        elif query.q.qtype == QTYPE.A:
            reply.add_answer(RR(query.q.qname, QTYPE.A, ttl=60, rdata=A(self._addresses[name])))
        assert self._transport is not None
        self._transport.sendto(reply.pack(), addr)
