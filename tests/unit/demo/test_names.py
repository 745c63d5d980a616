"""The demo's DNS server: it answers what it was given and keeps a book."""

from __future__ import annotations

import asyncio

from dnslib import RCODE, DNSRecord

from seamgate.demo.names import NameServer


class _Transport(asyncio.DatagramTransport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def sendto(self, data: object, addr: object = None) -> None:
        assert isinstance(data, bytes | bytearray)
        self.sent.append(bytes(data))


def _ask(server: NameServer, name: str, kind: str = "A") -> DNSRecord:
    transport = _Transport()
    server.connection_made(transport)
    server.datagram_received(DNSRecord.question(name, kind).pack(), ("127.0.0.1", 1))
    return DNSRecord.parse(transport.sent[0])


def test_it_answers_and_keeps_a_book() -> None:
    """Known names have their address, others do not exist, and each query is written down."""
    server = NameServer({"a.test": "127.0.0.1"})
    assert [str(record.rdata) for record in _ask(server, "A.test").rr] == ["127.0.0.1"]
    assert _ask(server, "a.test", "AAAA").rr == []
    assert _ask(server, "b.test").header.rcode == RCODE.NXDOMAIN
    assert server.asked == ["a.test", "a.test", "b.test"]


def test_what_is_no_query_is_dropped() -> None:
    """It never answers garbage."""
    server = NameServer({})
    transport = _Transport()
    server.connection_made(transport)
    server.datagram_received(b"\x00", ("127.0.0.1", 1))
    assert transport.sent == []
    assert server.asked == []
