"""Answers the names that a guest in a namespace asks for. Policy first: a denied name is never looked up.

A name that some rule may allow is resolved as that of every other request is, through the pipeline and its cache, and
answered with the address that stands for it in the guest's namespace (`entry.netns.names`), never with a real one. A
denied name is answered NXDOMAIN or REFUSED, as configured, with the reason as extended error (RFC 8914), or with an
address at which every request is denied; and told to the audit log. So what can be smuggled out in names reaches
servers of allowed domains at most.

`DnsService` does no I/O but the pipeline's; `Datagrams` and `Stream` put it on UDP and TCP, also for the entry outside
of namespaces (`entry.dns_entry`), which gives out the addresses themselves.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

from seamgate.address import canonical_name
from seamgate.audit.record import AuditRequest
from seamgate.entry.dns_query import Query, build_answer, read_query
from seamgate.entry.netns.names import NameTable
from seamgate.entry.netns.refusals import Refusals
from seamgate.errors import Reason, SeamgateError, TargetError
from seamgate.flow import Guest, Resolution, Target
from seamgate.protocol.work import ACCEPT, NAME
from seamgate.refusing import nothing_begins
from seamgate.seam import Seam
from seamgate.tasks import spawn
from seamgate.turns import Share, Turnstile
from seamgate.upstream.dns_message import NOERROR, NXDOMAIN, REFUSED, SERVFAIL, TYPE_A, TYPE_AAAA
from seamgate.verdict import Effect, Verdict, denial_of

MOST_PENDING: Final = 256
"""Names of one guest that are being resolved."""
MOST_WAITING: Final = 256
"""Datagrams of one guest that wait for its turn; the oldest is forgotten for the next."""
MOST_STREAMS: Final = 64
STREAM_IDLE_S: Final = 30.0
DENIED_CODES: Final = {"nxdomain": NXDOMAIN, "refused": REFUSED, "explain": NOERROR}
"""Choices of the configuration. NOERROR: with an address, at which every request is denied and told why."""

# Source: RFC 8914 5.2
EDE_BLOCKED, EDE_PROHIBITED, EDE_NETWORK_ERROR = 15, 18, 23
_LOCALHOST: Final = {TYPE_A: (bytes((127, 0, 0, 1)),), TYPE_AAAA: (ipaddress.IPv6Address("::1").packed,)}

Reply = Callable[[bytes], None]


class Answers(Protocol):
    """What `Datagrams` and `Stream` put on the network."""

    streams: set[asyncio.Transport]

    @property
    def share(self) -> Share:
        """The guest's part of each turn."""
        ...

    def answer(self, message: bytes, reply: Reply, *, tcp: bool = False) -> None:
        """Answer a message, now or later; nothing is said to what is no query."""


def judge_question(seam: Seam, guest: Guest, query: Query) -> tuple[str, Verdict | None]:
    """Return the name that is asked for, canonical ("" if it is none), and the verdict on it.

    None: nobody is asked, since it is this machine's own name (RFC 6761 6.3), see `localhost_answer`.
    """
    try:
        name = canonical_name(query.name)
    except TargetError as error:
        return "", denial_of(error)
    own = name == "localhost" or name.endswith(".localhost")
    return name, None if own else judge_name(seam, guest, name)


def localhost_answer(query: Query) -> bytes:
    """Return the answer to a question for this machine's own name."""
    return build_answer(query, NOERROR, _LOCALHOST.get(query.kind, ()))


def judge_name(seam: Seam, guest: Guest, name: str) -> Verdict:
    """Return a denial if a guest may use a name (canonical) at no port at all, so that it must not be looked up."""
    refusal = nothing_begins(seam)
    if refusal is not None:
        return refusal
    judge = seam.pipeline.judge_connect
    verdict = judge(guest, Target("https", name, 443))
    if verdict.effect is Effect.DENY:
        anywhere = judge(guest, Target("https", name, 0))  # at any port; its denial would name no port
        return verdict if anywhere.effect is Effect.DENY else anywhere
    return verdict


class DnsService:
    """Answers one guest.

    Args:
        seam: the gateway's.
        guest: who asks.
        names: which address stands for which name.
        refusals: tells what was refused.
        denied: the code for names that policy denies, of DENIED_CODES.
    """

    def __init__(self, seam: Seam, guest: Guest, names: NameTable, refusals: Refusals, denied: int = NXDOMAIN) -> None:
        self.streams: set[asyncio.Transport] = set()
        self._seam = seam
        self._guest = guest
        self._names = names
        self._refusals = refusals
        self._denied = denied
        self._pending = 0

    @property
    def share(self) -> Share:
        """The guest's part of each turn."""
        return self._seam.shares.of(self._guest.id)

    def close(self) -> None:
        """End the streams of a guest that has ended."""
        for stream in list(self.streams):
            stream.abort()

    def answer(self, message: bytes, reply: Reply, *, tcp: bool = False) -> None:
        """Answer a message, now or once the name is resolved; nothing is said to what is no query."""
        query = read_query(message)
        if query is None:
            return
        if query.code != NOERROR:
            reply(build_answer(query, query.code))
            return
        name, verdict = judge_question(self._seam, self._guest, query)
        if verdict is None:
            reply(localhost_answer(query))
        elif verdict.effect is Effect.DENY:
            self._refuse(query, name, verdict, reply)
        elif query.kind == TYPE_A:
            self._resolve(query, name, reply)
        else:
            reply(build_answer(query))  # the name is there, but not with this type: guests connect over IPv4

    def _refuse(self, query: Query, name: str, verdict: Verdict, reply: Reply) -> None:
        self._refusals.refuse(AuditRequest(method="RESOLVE", scheme="dns", host=name, port=53), verdict)
        explaining = self._denied == NOERROR and name and query.kind == TYPE_A
        address = self._names.address_of(name) if explaining else None
        data = () if address is None else (ipaddress.IPv4Address(address).packed,)
        reply(build_answer(query, self._denied, data, ede=EDE_BLOCKED, text=verdict.message))

    def _resolve(self, query: Query, name: str, reply: Reply) -> None:
        if self._seam.by_proxy(Target("https", name, 443)):  # nobody here can resolve it, nor needs to
            self._found(query, name, Resolution(name, (), 0.0), reply)
            return
        try:
            found = self._seam.pipeline.resolve_name(name, [])
        except SeamgateError as failure:
            self._failed(query, name, failure, reply)
            return
        if not inspect.isawaitable(found):
            self._found(query, name, found, reply)
        elif self._pending >= MOST_PENDING:
            close_awaitable(found)
            error = SeamgateError("too many names are being resolved", reason=Reason.OVERLOADED)
            self._failed(query, name, error, reply)
        else:
            self._pending += 1
            spawn(self._await(query, name, found, reply), name=f"answer {name}")

    async def _await(self, query: Query, name: str, pending: Awaitable[Resolution | None], reply: Reply) -> None:
        try:
            async with asyncio.timeout(self._seam.limits.resolve_timeout_s):
                found = await pending
        except TimeoutError:
            late = SeamgateError(f"{name} was not resolved in time", reason=Reason.RESOLVE_FAILED)
            self._failed(query, name, late, reply)
        except SeamgateError as error:
            self._failed(query, name, error, reply)
        else:
            self._found(query, name, found, reply)
        finally:
            self._pending -= 1

    def _found(self, query: Query, name: str, found: Resolution | None, reply: Reply) -> None:
        address = None if found is None else self._names.address_of(name)
        if address is None:
            message = "no plugin resolves names" if found is None else "this guest has asked for too many names"
            self._failed(query, name, SeamgateError(message, reason=Reason.OVERLOADED), reply)
        else:
            reply(build_answer(query, NOERROR, (ipaddress.IPv4Address(address).packed,)))

    def _failed(self, query: Query, name: str, error: SeamgateError, reply: Reply) -> None:
        self._refusals.refuse(AuditRequest(method="RESOLVE", scheme="dns", host=name, port=53), denial_of(error))
        reply(build_answer(query, SERVFAIL, ede=EDE_NETWORK_ERROR, text=error.message))


def close_awaitable(pending: Awaitable[Any]) -> None:
    """Let go of an awaitable that nobody will await."""
    if inspect.iscoroutine(pending):
        pending.close()


class Datagrams(asyncio.DatagramProtocol):
    """The service on UDP. What is asked while it is others' turn waits; of more than that, the client asks again."""

    def __init__(self, service: Answers) -> None:
        self._service = service
        self._waiting: deque[tuple[bytes, tuple[str | Any, int]]] = deque(maxlen=MOST_WAITING)
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast("asyncio.DatagramTransport", transport)  # uvloop's has the shape, not the class

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """A query."""
        share = self._service.share
        if share.left > 0 and not self._waiting:
            share.spend(NAME)
            self._service.answer(data, lambda answer: self._send(answer, addr))
            return
        if not self._waiting:
            share.wait(self._answer_on)
        self._waiting.append((data, addr))

    def _answer_on(self) -> None:
        """A later turn: those that wait, and then those that come."""
        waiting, self._waiting = self._waiting, deque(maxlen=MOST_WAITING)
        for data, addr in waiting:
            self.datagram_received(data, addr)

    def _send(self, answer: bytes, addr: tuple[str | Any, int]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(answer, addr)

    def error_received(self, exc: Exception) -> None:
        """Whoever asked is gone; that is theirs to know."""


class Stream(asyncio.Protocol):
    """The service on TCP: each message after its length in two bytes (RFC 7766 8)."""

    def __init__(self, service: Answers) -> None:
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._turnstile = Turnstile()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._service.streams.add(self._transport)
        self._service.share.spend(ACCEPT)
        if len(self._service.streams) > MOST_STREAMS:
            self._transport.abort()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """A piece of queries."""
        self._data += data
        share = self._service.share
        while len(self._data) >= 2 and len(self._data) >= (end := 2 + int.from_bytes(self._data[:2])):
            if self._transport is None or self._turnstile.keeps(share, self._transport, b"", self.data_received):
                return
            share.spend(NAME)
            message, self._data = self._data[2:end], self._data[end:]
            self._service.answer(message, self._send, tcp=True)
        self._wait()

    def eof_received(self) -> bool:
        """The client asks no more; what waits is answered first."""
        return self._turnstile.keeps_end()

    def pause_writing(self) -> None:
        """The client reads no answers: read no questions of it."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(STREAM_IDLE_S, self._transport.abort)

    def _send(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(len(answer).to_bytes(2) + answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._service.streams.discard(self._transport)
            self._transport = None
