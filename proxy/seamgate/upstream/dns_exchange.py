"""One DNS query to one server, over UDP or TCP, and the message that answers it.

Called by the resolver, by the forwarder of the entry `dns`, and by `seamgate doctor`. Who forges an answer from off the
path has to guess what is only in the query (RFC 5452 9.2): each query over UDP has a socket of its own, whose port the
kernel draws at random, and an id that the caller draws; the socket is connected, so that the kernel drops what comes
from elsewhere. A socket that is kept would be cheaper by some system calls, and its port could be found by probing.
Reads no answer beyond whether it is this query's, knows no time limit, and asks nobody again.
"""

from __future__ import annotations

import asyncio
import socket

from seamgate.upstream.dns_message import MalformedAnswer, answers_query

Server = tuple[str, int]
"""(canonical address, port)."""

_DATAGRAM_BYTES = 4096
"""More than our queries permit (`UDP_SIZE_BYTES`), and what servers that don't care send at most."""


async def exchange_udp(server: Server, query: bytes) -> bytes:
    """Send one query over UDP from a fresh port, return the message that answers it.

    Raises:
        OSError: the server can't be reached.
    """
    loop = asyncio.get_running_loop()
    # Not asyncio's datagram transport, which costs more than all the rest of a look-up.
    with socket.socket(_family(server), socket.SOCK_DGRAM) as connection:
        connection.setblocking(False)
        connection.connect(server)
        connection.send(query)
        answer: asyncio.Future[bytes] = loop.create_future()
        descriptor = connection.fileno()
        loop.add_reader(descriptor, _take, connection, query, answer)
        try:
            return await answer
        finally:
            loop.remove_reader(descriptor)


def _family(server: Server) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in server[0] else socket.AF_INET


def _take(connection: socket.socket, query: bytes, answer: asyncio.Future[bytes]) -> None:
    """Take what came if it is the answer; anything else may be forged, and the wait goes on."""
    if answer.done():
        return
    try:
        message = connection.recv(_DATAGRAM_BYTES)
    except BlockingIOError:
        return  # what woke us had a wrong checksum
    except OSError as error:  # ICMP says that nobody listens there
        answer.set_exception(error)
        return
    if answers_query(message, query):
        answer.set_result(message)


async def exchange_tcp(server: Server, query: bytes) -> bytes:
    """Send one query over TCP (RFC 7766), return the message that answers it.

    Raises:
        OSError: the server can't be reached, or closed too early.
        MalformedAnswer: what it sent is not an answer to the query.
    """
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(len(query).to_bytes(2, "big") + query)
        size = int.from_bytes(await reader.readexactly(2), "big")
        message = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise ConnectionResetError(0, "the server closed before its answer was complete") from None
    finally:
        writer.transport.abort()
    if not answers_query(message, query):
        raise MalformedAnswer("the DNS server answered something else over TCP")
    return message
