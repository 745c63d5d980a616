"""A scripted DNS server on loopback, UDP and TCP on one port: what a resolver may meet, said by dnslib on the wire.

Each question (name, type) has a list of turns; each query takes the next one, the last one stays. A turn makes the
datagrams to send: none at all (silence), one, or several. What has no turn gets NXDOMAIN with a SOA record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from dnslib import QTYPE, RCODE, RR, DNSRecord

Turn = Callable[[DNSRecord], list[bytes]]
SOA = "example. {ttl} IN SOA ns.example. admin.example. 1 2 3 4 {minimum}"


def says(*zone_lines: str, code: str = "NOERROR", truncated: bool = False, authority: str = "") -> Turn:
    """Make a turn that answers with these records, as in a zone file."""

    def turn(query: DNSRecord) -> list[bytes]:
        reply = query.reply()
        reply.header.rcode = getattr(RCODE, code)
        reply.header.tc = int(truncated)
        for line in zone_lines:
            reply.add_answer(*RR.fromZone(line))
        if authority:
            reply.add_auth(*RR.fromZone(authority))
        return [bytes(reply.pack())]

    return turn


def addresses(name: str, *texts: str, ttl: int = 60) -> Turn:
    """Make a turn that answers with these addresses, A and AAAA by their looks."""
    return says(*(f"{name}. {ttl} IN {'AAAA' if ':' in text else 'A'} {text}" for text in texts))


def no_such_name(ttl: int = 30, minimum: int = 30) -> Turn:
    """Make a turn that says NXDOMAIN, with a SOA record that tells for how long."""
    return says(code="NXDOMAIN", authority=SOA.format(ttl=ttl, minimum=minimum))


def no_address(ttl: int = 30, minimum: int = 30) -> Turn:
    """Make a turn that says that the name exists, but not with this type."""
    return says(authority=SOA.format(ttl=ttl, minimum=minimum))


def silence(_: DNSRecord) -> list[bytes]:
    """Answer nothing."""
    return []


class FakeDns:
    """The server; `async with FakeDns() as dns`. `script` is what it says, `queries` what it was asked."""

    def __init__(self) -> None:
        self.script: dict[tuple[str, str], list[Turn]] = {}
        self.tcp_script: dict[tuple[str, str], list[Turn]] = {}
        self.queries: list[tuple[str, str]] = []
        self.tcp_queries: list[tuple[str, str]] = []
        self.ids: list[int] = []
        self.ports: list[int] = []
        self.had_edns: list[bool] = []
        self.sizes: list[int] = []
        self.hold: asyncio.Event | None = None
        self.port = 0
        self.asked = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, name: str, record_type: str, *turns: Turn) -> None:
        """Script the turns of one question, over UDP and, unless it has a script of its own, over TCP."""
        self.script[name, record_type] = list(turns)

    def host(self, name: str, *texts: str, ttl: int = 60) -> None:
        """Give a name these addresses."""
        for record_type in ("A", "AAAA"):
            mine = [text for text in texts if (":" in text) == (record_type == "AAAA")]
            self.tell(name, record_type, addresses(name, *mine, ttl=ttl) if mine else no_address())

    async def __aenter__(self) -> FakeDns:
        loop = asyncio.get_running_loop()
        self._tcp = await asyncio.start_server(self._serve_tcp, "127.0.0.1", 0)
        self.port = self._tcp.sockets[0].getsockname()[1]
        self._udp, _ = await loop.create_datagram_endpoint(lambda: _Udp(self), local_addr=("127.0.0.1", self.port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._udp.close()
        self._tcp.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def server(self) -> str:
        """As `dns.servers` names it."""
        return f"127.0.0.1:{self.port}"

    def answer(self, data: bytes, script: dict[tuple[str, str], list[Turn]]) -> list[bytes]:
        """Take the next turn of what is asked."""
        query = DNSRecord.parse(data)
        question = _question(query)
        turns = script.get(question) or self.script.get(question) or [no_such_name()]
        turn = turns.pop(0) if len(turns) > 1 else turns[0]
        return turn(query)

    def note(self, data: bytes, port: int) -> None:
        """Remember what was asked, and from where."""
        query = DNSRecord.parse(data)
        self.queries.append(_question(query))
        self.ids.append(query.header.id)
        self.ports.append(port)
        self.sizes.append(len(data))
        self.had_edns.append(any(record.rtype == QTYPE.OPT for record in query.ar))
        self.asked.set()

    def later(self, work: Callable[[], None]) -> None:
        """Do this once nothing holds the server back."""

        async def wait() -> None:
            assert self.hold is not None
            await self.hold.wait()
            work()

        task = asyncio.ensure_future(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int.from_bytes(await reader.readexactly(2), "big")
            data = await reader.readexactly(size)
            self.tcp_queries.append(_question(DNSRecord.parse(data)))
            for message in self.answer(data, self.tcp_script):
                writer.write(len(message).to_bytes(2, "big") + message)
            await writer.drain()
        finally:
            writer.close()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, dns: FakeDns) -> None:
        self._dns = dns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._dns.note(data, addr[1])
        if self._dns.hold is None:
            self._send(self._dns.answer(data, self._dns.script), addr)
        else:
            self._dns.later(lambda: self._send(self._dns.answer(data, self._dns.script), addr))

    def _send(self, messages: Iterable[bytes], addr: tuple[str | Any, int]) -> None:
        for message in messages:
            self._transport.sendto(message, addr)


def _question(query: DNSRecord) -> tuple[str, str]:
    return str(query.q.qname).rstrip("."), str(QTYPE[query.q.qtype])
