"""The name service of the entry `dns`: for guests on this machine that are in no namespace, over UDP and TCP.

As for guests in namespaces policy comes first, and a denied name is never looked up; but these guests get the addresses
themselves. A and AAAA come from the cache that every request uses. Other types, and what a client that validates DNSSEC
asks, go to the system's resolver and come back as they are. Every name is told to the audit log, alike ones within ten
seconds together. Who asks is what the configuration says of the listener.

`NameService` does no I/O but the pipeline's and the forwarder's; `entry.dns_service` puts it on the network.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from seamgate.audit.record import AuditRequest
from seamgate.entry.dns_query import (
    LARGEST_BYTES,
    SMALLEST_BYTES,
    Query,
    build_answer,
    fit_datagram,
    forwarded_query,
    read_query,
)
from seamgate.entry.dns_service import (
    EDE_BLOCKED,
    EDE_NETWORK_ERROR,
    EDE_PROHIBITED,
    MOST_PENDING,
    Reply,
    close_awaitable,
    judge_question,
    localhost_answer,
)
from seamgate.entry.netns.refusals import Refusals
from seamgate.errors import Blame, Reason, ResolveFailed, SeamgateError
from seamgate.flow import Guest, Resolution
from seamgate.pipeline import Pipeline
from seamgate.seam import Seam
from seamgate.tasks import spawn
from seamgate.turns import Share
from seamgate.upstream.destination import check_addresses
from seamgate.upstream.dns_message import (
    NOERROR,
    NOTIMP,
    NXDOMAIN,
    REFUSED,
    SERVFAIL,
    TYPE_A,
    TYPE_AAAA,
    MalformedAnswer,
)
from seamgate.upstream.forwarder import Forwarder, answered_addresses
from seamgate.verdict import Effect, Verdict, denial_of, deny

REMEMBERED_S: Final = 1.0
"""How long an answer serves the same bytes again without being worked out; never longer than its TTL, or its policy."""
MOST_REMEMBERED: Final = 4096
RESULTS: Final = ("answered", "repeated", "forwarded", "denied", "limited", "failed", "malformed")
"""What becomes of a question; `repeated` is one whose answer was worked out within the last second."""
_META_TYPES: Final = frozenset({41, *range(249, 255)})
"""OPT, TKEY, TSIG, IXFR, AXFR, MAILB, MAILA: no data of a name. Source: IANA, DNS parameters."""

_Remembered = tuple[float, bytes, AuditRequest, Verdict]


class Bucket:
    """Lets through so many a second, and as many at once after a pause."""

    def __init__(self, per_s: int, clock: Callable[[], float] = monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left = float(per_s)
        self._at = clock()

    def take(self) -> bool:
        """Count one; False if it is one too many."""
        if self._left < 1:
            now = self._clock()
            self._left = min(float(self._per_s), self._left + (now - self._at) * self._per_s)
            self._at = now
            if self._left < 1:
                return False
        self._left -= 1
        return True


_LIMITS = (Reason.RATE_LIMITED, Reason.PLUGIN_TIME_SPENT)
"""What a guest has used up, and has again after a while."""


class NameService:
    """Answers whoever asks at one listener.

    Args:
        seam: the gateway's.
        guest: who asks.
        forwarder: where to ask what is not cached.
        denied: the code for names that policy denies.
        queries_per_s: further ones are refused.

    Attributes:
        forwarder: replaced when a reload brings other servers.
        counts: questions by what became of them, each once.
    """

    def __init__(self, seam: Seam, guest: Guest, forwarder: Forwarder, *, denied: int, queries_per_s: int) -> None:
        self.streams: set[asyncio.Transport] = set()
        self.forwarder = forwarder
        self.counts = dict.fromkeys(RESULTS, 0)
        self._seam = seam
        self._guest = guest
        self._denied = denied
        self._told = Refusals(seam, guest, "dns")
        self._bucket = Bucket(queries_per_s)
        self._pending = 0
        self._remembered: dict[bytes, _Remembered] = {}
        self._remembered_of: Pipeline | None = None

    @property
    def share(self) -> Share:
        """The guest's part of each turn."""
        return self._seam.shares.of(self._guest.id)

    @property
    def guest(self) -> Guest | None:
        """Who asks."""
        return self._guest

    @guest.setter
    def guest(self, guest: Guest | None) -> None:
        assert guest is not None
        self._guest = self._told.guest = guest

    def close(self) -> None:
        """End the streams, and tell what was only counted so far."""
        for stream in list(self.streams):
            stream.abort()
        self._told.flush()

    def answer(self, message: bytes, reply: Reply, *, tcp: bool = False) -> None:
        """Answer a message, now or later; nothing is said to what is no query."""
        known = self._remembered.get(message[2:]) if len(message) >= 12 else None
        if known is not None and self._holds(known, tcp=tcp) and self._bucket.take():
            _, answer, what, denial = known
            self.counts["repeated"] += 1
            self._told.refuse(what, denial)
            reply(message[:2] + answer)
            return
        query = read_query(message)
        if query is None:
            return
        if not self._bucket.take():
            limit = deny("more names are asked for than this listener allows", reason=Reason.RATE_LIMITED)
            self._refuse(query, "", limit, reply)
            return
        if query.code != NOERROR:
            self.counts["malformed"] += 1
            reply(build_answer(query, query.code))
            return
        name, verdict = judge_question(self._seam, self._guest, query)
        repeated = b"" if tcp or not name else message
        if verdict is None:
            reply(localhost_answer(query))
        elif verdict.effect is Effect.DENY:
            self._refuse(query, name, verdict, reply, repeated)
        else:
            self._allowed(query, name, verdict, reply, repeated, tcp=tcp)

    def _holds(self, known: _Remembered, *, tcp: bool) -> bool:
        """Whether a remembered answer may be given: nothing of what it was made of has changed."""
        seam = self._seam
        fresh = seam.pipeline is self._remembered_of and monotonic() < known[0]
        return fresh and not seam.draining and seam.journal.healthy and not (tcp and is_cut(known[1]))

    # -- what policy allows ------------------------------------------------------------------------------------------

    def _allowed(self, query: Query, name: str, verdict: Verdict, reply: Reply, message: bytes, *, tcp: bool) -> None:
        found: Resolution | Awaitable[Resolution | None] | None
        if query.kind in _META_TYPES:
            reply(build_answer(query, NOTIMP))
            return
        cached = query.kind in (TYPE_A, TYPE_AAAA) and not query.asks_dnssec
        if not cached and not self.forwarder.is_local(name):
            self._later(query, name, reply, self._forward(query, name, verdict, reply, tcp=tcp))
            return
        if query.kind not in (TYPE_A, TYPE_AAAA):
            self._told.refuse(_asked(name), verdict)
            reply(build_answer(query))
            return
        try:
            found = self._seam.pipeline.resolve_name(name, [])
            if not inspect.isawaitable(found):
                self._found(query, name, verdict, reply, found, message, tcp=tcp)
                return
        except SeamgateError as failure:
            self._failed(query, name, failure, reply)
            return
        self._later(query, name, reply, self._resolved(query, name, verdict, reply, found, tcp=tcp))

    def _later(self, query: Query, name: str, reply: Reply, work: Awaitable[None]) -> None:
        """Do what takes time, for so many at once."""
        if self._pending >= MOST_PENDING:
            close_awaitable(work)
            error = SeamgateError("too many names are being resolved", reason=Reason.OVERLOADED)
            self._failed(query, name, error, reply)
            return
        self._pending += 1
        spawn(self._bounded(query, name, reply, work), name=f"answer {name}")

    async def _bounded(self, query: Query, name: str, reply: Reply, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._seam.limits.resolve_timeout_s):
                await work
        except TimeoutError:
            self._failed(query, name, ResolveFailed(f"{name} was not resolved in time"), reply)
        except SeamgateError as error:
            self._failed(query, name, error, reply)
        finally:
            self._pending -= 1

    async def _resolved(
        self,
        query: Query,
        name: str,
        verdict: Verdict,
        reply: Reply,
        pending: Awaitable[Resolution | None],
        *,
        tcp: bool,
    ) -> None:
        self._found(query, name, verdict, reply, await pending, b"", tcp=tcp)

    def _found(
        self,
        query: Query,
        name: str,
        verdict: Verdict,
        reply: Reply,
        found: Resolution | None,
        message: bytes,
        *,
        tcp: bool,
    ) -> None:
        """Give out the addresses of the family that was asked for, each of which could be dialled."""
        if found is None:
            raise SeamgateError("no plugin resolves names", reason=Reason.RESOLVE_FAILED)
        check_addresses(found.addresses, self._seam.permit, name=name)
        width = 4 if query.kind == TYPE_A else 16
        packed = [ipaddress.ip_address(address).packed for address in found.addresses]
        left_s = found.expires_at - monotonic()
        answer = build_answer(
            query, NOERROR, [each for each in packed if len(each) == width], ttl_s=max(0, int(left_s))
        )
        if not tcp:
            answer = fit_datagram(query, answer)
        what = _asked(name)
        self.counts["answered"] += 1
        self._told.refuse(what, verdict)
        if message:
            self._remember(message, answer, left_s, what, verdict)
        reply(answer)

    def _remember(self, message: bytes, answer: bytes, left_s: float, what: AuditRequest, verdict: Verdict) -> None:
        if len(message) > SMALLEST_BYTES:
            return  # a query and padding; what else a guest writes behind it is not worth the memory
        if self._seam.pipeline is not self._remembered_of or len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
            self._remembered_of = self._seam.pipeline
        # Without the id, which is the client's each time.
        self._remembered[message[2:]] = (monotonic() + min(REMEMBERED_S, left_s), answer[2:], what, verdict)

    async def _forward(self, query: Query, name: str, verdict: Verdict, reply: Reply, *, tcp: bool) -> None:
        size_bytes = LARGEST_BYTES if tcp else query.size_bytes
        answer = await self.forwarder.forward(lambda identity: forwarded_query(query, identity, size_bytes), tcp=tcp)
        if query.kind in (TYPE_A, TYPE_AAAA):
            self._check(answer, query.kind, name)
        self.counts["forwarded"] += 1
        self._told.refuse(_asked(name), verdict)
        reply(query.id.to_bytes(2) + answer[2:])

    def _check(self, answer: bytes, kind: int, name: str) -> None:
        """Hold addresses that were signed to the same as all others."""
        try:
            addresses = answered_addresses(answer, kind)
        except MalformedAnswer as error:
            raise ResolveFailed(error.message) from None
        if addresses:
            check_addresses(addresses, self._seam.permit, name=name)

    # -- what it does not, and what fails ----------------------------------------------------------------------------

    def _refuse(self, query: Query, name: str, verdict: Verdict, reply: Reply, message: bytes = b"") -> None:
        what = _asked(name)
        self._told.refuse(what, verdict)
        # What is no decision of the policy says nothing about the name.
        limited = verdict.reason in _LIMITS
        passes = limited or verdict.reason.blame is not Blame.GUEST
        self.counts["limited" if limited else "denied"] += 1
        ede = EDE_PROHIBITED if passes else EDE_BLOCKED
        answer = build_answer(query, REFUSED if passes else self._denied, ede=ede, text=verdict.message)
        if message and not passes:
            self._remember(message, answer, REMEMBERED_S, what, verdict)
        reply(answer)

    def _failed(self, query: Query, name: str, error: SeamgateError, reply: Reply) -> None:
        if error.reason is Reason.ADDRESS_FORBIDDEN:
            self._refuse(query, name, denial_of(error), reply)
            return
        self.counts["failed"] += 1
        self._told.refuse(_asked(name), denial_of(error))
        exists = error.exists if isinstance(error, ResolveFailed) else None
        if exists is None:
            reply(build_answer(query, SERVFAIL, ede=EDE_NETWORK_ERROR, text=error.message))
        else:
            reply(build_answer(query, NOERROR if exists else NXDOMAIN))


def is_cut(answer: bytes) -> bool:
    """Whether an answer without its id says that there is more over TCP."""
    return bool(answer[0] & 0x02)


def _asked(name: str) -> AuditRequest:
    return AuditRequest(method="RESOLVE", scheme="dns", host=name, port=53)
