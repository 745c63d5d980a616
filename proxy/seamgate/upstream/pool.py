"""The shared pool of upstream sessions.

Called by exchanges: `acquire` gives a warm session at once, or an awaitable of one. What may be shared is what is
equal in the whole key: origin, TLS profile (client certificate included), isolation group of the guest, policy
generation; and the session's address has to be among those that were validated for this request.
Sessions come back by themselves, see `Session.release`.

Decides first, does I/O after: taking, queueing and expiring only rearrange the lists of a bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Protocol, TypeAlias

from seamgate.errors import Reason, SeamgateError, UpstreamError, UpstreamTimeout
from seamgate.flow import Guest, Target
from seamgate.tasks import spawn
from seamgate.upstream.ahead import DoneAhead
from seamgate.upstream.pool_key import PoolConfig, PoolKey
from seamgate.upstream.pool_queue import Claim, FairQueue, Shares, Waiter
from seamgate.upstream.session import Session
from seamgate.upstream.session2 import MOST_STREAMS, Http2Session
from seamgate.upstream.session2_stream import SessionStream
from seamgate.upstream.tls import TlsProfile

_monotonic: Final = monotonic  # a Final of the module is read at once; an imported name is looked up each time

AnySession: TypeAlias = Session | Http2Session
Lent: TypeAlias = Session | SessionStream
"""What an exchange gets: a whole HTTP/1.1 session, or a stream of an HTTP/2 one."""


class SessionOpener(Protocol):
    """What the pool uses of `upstream.connect.Connector`."""

    def profile_for(self, target: Target) -> TlsProfile | None:
        """Return the TLS profile of a target."""
        ...

    async def connect(
        self,
        target: Target,
        addresses: tuple[str, ...],
        on_idle: Callable[[AnySession], None],
        on_gone: Callable[[AnySession], None],
    ) -> AnySession:
        """Open a session, of the protocol that the upstream agrees to."""
        ...


class _Bucket:
    """The sessions of one key. State: each session is in `idle`, `busy` or `shared`; `opening` counts those under way.

    `multiplexes` says whether the origin speaks HTTP/2, None until the first session was opened; `connects` whether it
    takes WebSockets there, None until its SETTINGS came. A `retired` bucket serves those who still ask for it, but
    keeps no session.
    """

    __slots__ = (
        "busy", "connects", "curious", "idle", "key", "multiplexes", "opening", "retired", "shared", "shares",
        "waiters", "yields",
    )  # fmt: skip

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.idle: list[Session] = []
        self.busy: set[Session] = set()
        self.shared: list[Http2Session] = []
        self.opening = 0
        self.retired = False
        self.yields = False
        self.waiters = FairQueue()
        self.shares = Shares()
        offers = key.profile is not None and "h2" in key.profile.alpn
        self.multiplexes: bool | None = None if offers else False
        self.connects: bool | None = None
        self.curious: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self.idle) + len(self.busy) + len(self.shared) + self.opening

    @property
    def will_tell(self) -> bool:
        """Whether it is about to be known if the origin takes WebSockets over HTTP/2."""
        settling = any(session.settling for session in self.shared)
        return self.connects is None and self.multiplexes is not False and bool(self.opening or settling)

    def told(self) -> None:
        """Something of the origin has become known, or a session that would have told is gone."""
        curious, self.curious = self.curious, []
        for future in curious:
            if not future.done():
                future.set_result(None)

    @property
    def shares_opening(self) -> bool:
        """Whether who comes now waits for a session under way, because it will, or may, carry many exchanges.

        While nothing is known of the origin, one session shows what it speaks.
        """
        if self.multiplexes is False:
            return False
        coming = self.opening + sum([session.settling for session in self.shared])
        return bool(coming) and (self.multiplexes is None or len(self.waiters) < MOST_STREAMS * coming)


def _share(config: PoolConfig, most: int) -> int:
    """How many of so many requests at once may be one guest's."""
    return most if config.isolation == "guest" else max(1, int(most * config.guest_share))


class SessionPool:
    """All buckets of one gateway."""

    def __init__(self, opener: SessionOpener, config: PoolConfig, *, response_timeout_s: float) -> None:
        self._opener = opener
        self._config = config
        # What each request asks for, without a look into the configuration.
        self._isolation = config.isolation
        self._max_age_s = config.max_age_s
        self._queue_timeout_s = config.queue_timeout_s
        self._share_of_sessions = _share(config, config.sessions_per_origin)
        self._share_of_streams = _share(config, config.sessions_per_origin * MOST_STREAMS)
        self._response_timeout_s = response_timeout_s
        self._buckets: dict[PoolKey, _Bucket] = {}
        self._found: dict[tuple[Target, str, int], _Bucket] = {}  # the same buckets, by what each request asks with
        self._origins: dict[Target, list[_Bucket]] = {}  # in the order of their turns
        self._closed = False
        self._ahead = DoneAhead()
        self.opened_total = 0
        self.reused_total = 0

    def __repr__(self) -> str:
        busy, idle, waiting = self.counts
        return f"<SessionPool {busy} busy, {idle} idle, {waiting} waiting in {len(self._buckets)} buckets>"

    @property
    def counts(self) -> tuple[int, int, int]:
        """(busy sessions, idle sessions, waiting requests) over all buckets."""
        buckets = self._buckets.values()
        carrying = sum(bool(session.lent) for bucket in buckets for session in bucket.shared)
        return (
            sum(len(bucket.busy) for bucket in buckets) + carrying,
            sum(len(bucket.idle) + len(bucket.shared) for bucket in buckets) - carrying,
            sum(len(bucket.waiters) + bucket.shares.waiting for bucket in buckets),
        )

    # -- taking ------------------------------------------------------------------------------------------------------

    def acquire(
        self, target: Target, addresses: tuple[str, ...], guest: Guest, generation: int, *, fresh: bool = False
    ) -> Lent | Awaitable[Lent]:
        """Give a session to one of these addresses, or a stream of one: warm at once, or an awaitable of it.

        Args:
            target, addresses, guest, generation: what the session has to fit.
            fresh: whether the idle ones are not to be trusted, because one of them was found closed.

        Raises (from the awaitable):
            UpstreamError: none could be opened, or none became free in time (UPSTREAM_BUSY).
        """
        bucket = self._bucket(target, guest, generation)
        patience_s = self._queue_timeout_s
        if not bucket.shares.enter(guest.id, self._share_of(bucket)):
            return self._take_turn(bucket, addresses, guest.id, patience_s, fresh=fresh)
        found = self._acquire(bucket, addresses, guest.id, patience_s, fresh=fresh)
        if isinstance(found, Session | SessionStream):
            found.claim = Claim(bucket.shares, guest.id)
            return found
        return self._claimed(found, bucket, guest.id)

    def _acquire(
        self, bucket: _Bucket, addresses: tuple[str, ...], guest: str, patience_s: float, *, fresh: bool
    ) -> Lent | Awaitable[Lent]:
        session = None if fresh else self._take(bucket, addresses)
        if session is not None:
            self.reused_total += 1
            return session
        if bucket.shares_opening:
            return self._wait(bucket, addresses, guest, patience_s)
        if self._has_room(bucket) or self._evict(bucket):
            bucket.opening += 1
            return self._open(bucket, addresses)
        return self._wait(bucket, addresses, guest, patience_s)

    def _share_of(self, bucket: _Bucket) -> int:
        """How many requests of one guest may have, or wait for, a session of this bucket."""
        return self._share_of_streams if bucket.multiplexes else self._share_of_sessions

    async def _take_turn(
        self, bucket: _Bucket, addresses: tuple[str, ...], guest: str, patience_s: float, *, fresh: bool
    ) -> Lent:
        """Wait until one of the guest's own requests is done, then take its place."""
        since = _monotonic()
        future = bucket.shares.wait(guest)
        message = f"this guest has its share of the sessions to {bucket.key.target.authority} in use"
        timer = asyncio.get_running_loop().call_later(patience_s, bucket.shares.refuse, guest, future, message)
        try:
            await future
        except asyncio.CancelledError:
            bucket.shares.give_up(guest, future)
            raise
        finally:
            timer.cancel()
        left_s = max(0.0, patience_s - (_monotonic() - since))
        return await self._claimed(self._acquire(bucket, addresses, guest, left_s, fresh=fresh), bucket, guest)

    async def _claimed(self, found: Lent | Awaitable[Lent], bucket: _Bucket, guest: str) -> Lent:
        """Hand out a session that ends its guest's claim when it comes back; nobody's claim outlives a failure."""
        try:
            lent = found if isinstance(found, Session | SessionStream) else await found
        except BaseException:
            bucket.shares.leave(guest)
            raise
        lent.claim = Claim(bucket.shares, guest)
        return lent

    def acquire_tunnel(
        self, target: Target, addresses: tuple[str, ...], guest: Guest, generation: int, *, fresh: bool = False
    ) -> Lent | Awaitable[Lent | None] | None:
        """Give a stream for a WebSocket (RFC 8441), or an awaitable of it; None where the upstream does not take that.

        Only where sessions are opened ahead of requests is one opened to find out: it serves who comes next. Else,
        without one that has shown it, the answer is None. Arguments and errors as with `acquire`. What is lent may in
        rare cases be a session that does not take it either: ask `connects`.
        """
        bucket = self._bucket(target, guest, generation)
        if self._config.preconnect and bucket.connects is None and bucket.multiplexes is not False:
            # The request may have come before the connection that its CONNECT, or its entry, asked for in advance.
            self.preconnect(target, addresses, guest, generation)
        if bucket.will_tell:
            return self._tunnel_late(bucket, target, addresses, guest, generation)
        if not bucket.connects or bucket.multiplexes is False:
            return None
        return self.acquire(target, addresses, guest, generation, fresh=fresh)

    async def _tunnel_late(
        self, bucket: _Bucket, target: Target, addresses: tuple[str, ...], guest: Guest, generation: int
    ) -> Lent | None:
        while bucket.will_tell:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            bucket.curious.append(future)
            await future
        if not bucket.connects or bucket.multiplexes is False:
            return None
        found = self.acquire(target, addresses, guest, generation)
        return found if isinstance(found, Session | SessionStream) else await found

    def preconnect(self, target: Target, addresses: tuple[str, ...], guest: Guest, generation: int) -> None:
        """Open a session in the background if none is idle: a request is likely to follow.

        Not where the guest has `MOST_AHEAD` of these under way.
        """
        if self._closed:
            return
        bucket = self._bucket(target, guest, generation)
        if bucket.idle or bucket.shared or bucket.opening or not self._has_room(bucket):
            return
        if self._ahead.has_room(guest.id):
            bucket.opening += 1
            self._ahead.spawn(guest.id, self._open_idle(bucket, addresses), name=f"preconnect {target.authority}")

    @property
    def queue_timeout_s(self) -> float:
        """How long a request waits for a session of a full bucket."""
        return self._queue_timeout_s

    @property
    def preconnects(self) -> bool:
        """Whether sessions are opened ahead of requests."""
        return self._config.preconnect

    def has_idle(self, target: Target, guest: Guest, generation: int) -> bool:
        """Whether a warm session is there, or under way."""
        bucket = self._found.get((target, self._group(guest), generation))
        return bucket is not None and bool(bucket.idle or bucket.shared or bucket.opening)

    def _bucket(self, target: Target, guest: Guest, generation: int) -> _Bucket:
        group = self._group(guest)
        bucket = self._found.get((target, group, generation))
        if bucket is None:
            key = PoolKey(target, self._opener.profile_for(target), group, generation)
            bucket = self._buckets[key] = self._found[(target, group, generation)] = _Bucket(key)
            bucket.retired = self._closed
            self._origins.setdefault(target, []).append(bucket)
        return bucket

    def _group(self, guest: Guest) -> str:
        isolation = self._isolation
        return guest.id if isolation == "guest" else guest.group if isolation == "group" else ""

    def _take(self, bucket: _Bucket, addresses: tuple[str, ...]) -> Lent | None:
        """Take the idle session that was used last, so that the others can grow old; or a stream of a shared one."""
        oldest = _monotonic() - self._max_age_s
        for shared in bucket.shared:
            if shared.usable and shared.room > 0 and shared.opened_at >= oldest and shared.address in addresses:
                return shared.lend()
        for place in range(len(bucket.idle) - 1, -1, -1):
            session = bucket.idle[place]
            if not session.usable or session.opened_at < oldest:
                del bucket.idle[place]
                session.close()
            elif session.address in addresses:
                del bucket.idle[place]
                bucket.busy.add(session)
                return session
        return None

    def _has_room(self, bucket: _Bucket) -> bool:
        """Whether a further session may be opened: of this bucket, and to its origin at all."""
        if len(bucket) >= self._config.sessions_per_origin:
            return False
        return sum([len(each) for each in self._siblings(bucket)]) < self._config.sessions_to_origin

    def _siblings(self, bucket: _Bucket) -> list[_Bucket]:
        """Return the buckets of the same origin, this one included, whoever's turn it is first."""
        return self._origins.get(bucket.key.target) or [bucket]

    def _evict(self, bucket: _Bucket) -> bool:
        """Make room by closing an idle session: one that none of the validated addresses fits, or another group's."""
        if len(bucket) >= self._config.sessions_per_origin:
            return self._close_idle(bucket)
        return any(self._close_idle(each) for each in list(self._siblings(bucket))) and self._has_room(bucket)

    def _close_idle(self, bucket: _Bucket) -> bool:
        if bucket.idle:
            bucket.idle.pop(0).close()
            return True
        for shared in bucket.shared:
            if not shared.lent:
                shared.close()
                return True
        return False

    def _yields(self, bucket: _Bucket) -> bool:
        """Whether a session that is free is to be closed, since its origin has no more and others wait for one.

        Those of its own bucket and the others take turns.
        """
        siblings = self._siblings(bucket)
        if len(siblings) == 1:
            return False
        limit = self._config.sessions_per_origin
        starved = any(len(each) < limit and each.waiters.first() for each in siblings if each is not bucket)
        if not starved or sum([len(each) for each in siblings]) < self._config.sessions_to_origin:
            return False
        bucket.yields = not bucket.yields or bucket.waiters.first() is None
        if bucket.yields:
            siblings.remove(bucket)
            siblings.append(bucket)
        return bucket.yields

    async def _open(self, bucket: _Bucket, addresses: tuple[str, ...]) -> Lent:
        try:
            session = await self._opener.connect(
                bucket.key.target,
                addresses,
                lambda session: self._returned(bucket, session),
                lambda session: self._gone(bucket, session),
            )
        except BaseException as error:
            bucket.opening -= 1
            bucket.told()
            self._failed(bucket, addresses, error)
            self._wake_all(bucket)
            raise
        # The place passes from `opening` to `busy` in one step, or a waiter would take it for free.
        bucket.opening -= 1
        self.opened_total += 1
        bucket.multiplexes = isinstance(session, Http2Session)
        bucket.shares.widen(self._share_of(bucket))
        bucket.told()
        if not session.usable:
            session.close()
            raise UpstreamError("the upstream closed as soon as it was connected", reason=Reason.UPSTREAM_CLOSED)
        if isinstance(session, Http2Session):
            bucket.shared.append(session)
            stream = session.lend()
            self._share(bucket, session)
            return stream
        bucket.busy.add(session)
        self._wake(bucket)  # who hoped for streams of it
        return session

    def _failed(self, bucket: _Bucket, addresses: tuple[str, ...], error: BaseException) -> None:
        """Who waited for a session that can't be opened, and has no other to wait for, hears the same at once."""
        if bucket.multiplexes is False or len(bucket) or not isinstance(error, SeamgateError):
            return
        for waiter in [each for each in bucket.waiters if each.addresses == addresses]:
            bucket.waiters.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(type(error)(error.message, reason=error.reason))

    async def _open_idle(self, bucket: _Bucket, addresses: tuple[str, ...]) -> None:
        try:
            session = await self._open(bucket, addresses)
        except SeamgateError:
            return  # the request that follows will meet the same error, and report it
        if isinstance(session, SessionStream):
            session.release(reusable=True)
            return
        if session.usable:
            session.waited = True
            self._returned(bucket, session)
        else:
            bucket.busy.discard(session)

    async def _wait(self, bucket: _Bucket, addresses: tuple[str, ...], guest: str, patience_s: float) -> Lent:
        """Queue for a session of a full bucket, or for a stream of one under way."""
        session = self._take(bucket, addresses)
        if session is not None:
            return session  # it came free between the call and this, the first turn of whoever waits
        if self._has_room(bucket) and not bucket.shares_opening:
            bucket.opening += 1
            return await self._open(bucket, addresses)
        future: asyncio.Future[Lent] = asyncio.get_running_loop().create_future()
        waiter = Waiter(guest, addresses, future)
        bucket.waiters.add(waiter)
        try:
            async with asyncio.timeout(patience_s):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release(reusable=True)  # it came at the very moment at which we gave up
            if isinstance(error, TimeoutError):
                message = f"all sessions to {bucket.key.target.authority} are in use"
                raise UpstreamError(message, reason=Reason.UPSTREAM_BUSY) from None
            raise
        finally:
            bucket.waiters.remove(waiter)

    # -- coming back -------------------------------------------------------------------------------------------------

    def _returned(self, bucket: _Bucket, session: AnySession) -> None:
        """A session is free: the first waiter that may use its address gets it, else it stays idle."""
        if isinstance(session, Http2Session):
            self._share(bucket, session)
            return
        yields = self._yields(bucket)
        bucket.busy.discard(session)
        if bucket.retired or yields:
            session.close()
            return
        waiter = bucket.waiters.first(session.address)
        if waiter is not None:
            bucket.waiters.take(waiter)
            bucket.busy.add(session)
            waiter.future.set_result(session)
        elif bucket.waiters.first() is not None:
            session.close()  # it fits nobody who waits: make room for one that does
        else:
            bucket.idle.append(session)

    def _share(self, bucket: _Bucket, session: Http2Session) -> None:
        """A shared session has room: waiters that may use its address get streams of it."""
        if session.connects is not None and bucket.connects is not session.connects:
            bucket.connects = session.connects
            bucket.told()
        old = _monotonic() - session.opened_at > self._config.max_age_s
        if bucket.retired or old:
            if not session.lent:
                session.close()
            return
        while (waiter := bucket.waiters.first(session.address)) is not None:
            if session.room <= 0 or not session.usable:
                self._wake(bucket)
                return
            bucket.waiters.take(waiter)
            waiter.future.set_result(session.lend())
        if session.lent:
            return
        if (bucket.waiters.first() is not None and not bucket.opening) or self._yields(bucket):
            session.close()  # it fits nobody who waits: make room for one that does

    def _gone(self, bucket: _Bucket, session: AnySession) -> None:
        """A session was closed: there may be room for a waiter."""
        if isinstance(session, Http2Session):
            if session in bucket.shared:
                bucket.shared.remove(session)
            bucket.told()
        else:
            bucket.busy.discard(session)
            if session in bucket.idle:
                bucket.idle.remove(session)
        self._wake_all(bucket)

    def _wake_all(self, bucket: _Bucket) -> None:
        """There may be room at this bucket's origin: its buckets take turns."""
        siblings = self._siblings(bucket)
        for each in list(siblings):
            if each.waiters:
                siblings.remove(each)
                siblings.append(each)
                self._wake(each)

    def _wake(self, bucket: _Bucket) -> None:
        """Open sessions for waiters as far as there is room, and no more than they need."""
        while bucket.waiters and self._has_room(bucket) and not bucket.shares_opening:
            waiter = bucket.waiters.first()
            if waiter is None:
                return
            bucket.waiters.take(waiter)
            bucket.opening += 1
            name = f"connect {bucket.key.target.authority}"
            spawn(self._open_for(bucket, waiter.addresses, waiter.future), name=name)

    async def _open_for(self, bucket: _Bucket, addresses: tuple[str, ...], future: asyncio.Future[Lent]) -> None:
        try:
            session = await self._open(bucket, addresses)
        except SeamgateError as error:
            if not future.done():
                future.set_exception(error)
            return
        if future.done():
            session.release(reusable=True)
        else:
            future.set_result(session)

    # -- housekeeping ------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Close what is idle for too long, end what waits too long for its upstream.

        Called every second, with `monotonic()`.
        """
        for key, bucket in list(self._buckets.items()):
            for session in [each for each in bucket.idle if now - each.active_at > self._config.idle_timeout_s]:
                session.close()
            for session in [each for each in bucket.busy if now - each.active_at > self._response_timeout_s]:
                if session.exchange is not None and not session.reading_paused:
                    session.timed_out(UpstreamTimeout(f"silent for {self._response_timeout_s:g} s"))
            for shared in list(bucket.shared):
                shared.sweep(now, self._response_timeout_s, self._config.ping_s)
                old = now - shared.opened_at > self._config.max_age_s
                if not shared.lent and (old or now - shared.active_at > self._config.idle_timeout_s):
                    shared.close()
            if not len(bucket) and not bucket.waiters and not bucket.shares:
                del self._buckets[key]
                self._origins[key.target].remove(bucket)
                if not self._origins[key.target]:
                    del self._origins[key.target]
                del self._found[key.target, key.group, key.generation]

    def retire(self, generation: int) -> None:
        """A new policy was loaded: idle sessions of older generations are closed, busy ones when they come back."""
        for key, bucket in list(self._buckets.items()):
            if key.generation < generation:
                bucket.retired = True
                for session in list(bucket.idle):
                    session.close()
                for shared in [each for each in bucket.shared if not each.lent]:
                    shared.close()

    def close(self) -> None:
        """Close everything; what is opened later, by whoever was about to, is kept no longer than it is used."""
        self._closed = True
        for bucket in list(self._buckets.values()):
            bucket.retired = True
            for session in [*bucket.idle, *bucket.busy]:
                session.close()
            for shared in list(bucket.shared):
                shared.close()
        self._buckets.clear()
        self._origins.clear()
        self._found.clear()
