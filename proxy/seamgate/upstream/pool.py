"""The shared pool of upstream sessions.

Called by exchanges: `acquire` gives a warm session at once, or an awaitable of one. What may be shared is what is
equal in the whole key: origin, TLS profile (client certificate included), isolation group of the guest, policy
generation; and the session's address has to be among those that were validated for this request (DESIGN 1.7).
Sessions come back by themselves, see `Session.release`.

Decides first, does I/O after: taking, queueing and expiring only rearrange the lists of a bucket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from seamgate.errors import Reason, SeamgateError, UpstreamError, UpstreamTimeout
from seamgate.flow import Guest, Target
from seamgate.tasks import spawn
from seamgate.upstream.pool_key import PoolConfig, PoolKey
from seamgate.upstream.session import Session
from seamgate.upstream.tls import TlsProfile


class SessionOpener(Protocol):
    """What the pool uses of `upstream.connect.Connector`."""

    def profile_for(self, target: Target) -> TlsProfile | None:
        """Return the TLS profile of a target."""
        ...

    async def connect(
        self,
        target: Target,
        addresses: tuple[str, ...],
        on_idle: Callable[[Session], None],
        on_gone: Callable[[Session], None],
    ) -> Session:
        """Open a session."""
        ...


class _Bucket:
    """The sessions of one key. State: each session is in `idle` or `busy`; `opening` counts those under way.

    A `retired` one serves those who still ask for it, but keeps no session.
    """

    __slots__ = ("busy", "idle", "key", "opening", "retired", "waiters")

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.idle: list[Session] = []
        self.busy: set[Session] = set()
        self.opening = 0
        self.retired = False
        self.waiters: deque[tuple[tuple[str, ...], asyncio.Future[Session]]] = deque()

    def __len__(self) -> int:
        return len(self.idle) + len(self.busy) + self.opening


class SessionPool:
    """All buckets of one gateway."""

    def __init__(self, opener: SessionOpener, config: PoolConfig, *, response_timeout_s: float) -> None:
        self._opener = opener
        self._config = config
        self._response_timeout_s = response_timeout_s
        self._buckets: dict[PoolKey, _Bucket] = {}
        self._keys: dict[tuple[Target, str, int], PoolKey] = {}
        self.opened_total = 0
        self.reused_total = 0

    def __repr__(self) -> str:
        idle = sum(len(bucket.idle) for bucket in self._buckets.values())
        busy = sum(len(bucket.busy) for bucket in self._buckets.values())
        waiting = sum(len(bucket.waiters) for bucket in self._buckets.values())
        return f"<SessionPool {busy} busy, {idle} idle, {waiting} waiting in {len(self._buckets)} buckets>"

    @property
    def counts(self) -> tuple[int, int, int]:
        """(busy, idle, waiting) over all buckets."""
        buckets = self._buckets.values()
        return (
            sum(len(bucket.busy) for bucket in buckets),
            sum(len(bucket.idle) for bucket in buckets),
            sum(len(bucket.waiters) for bucket in buckets),
        )

    # -- taking ------------------------------------------------------------------------------------------------------

    def acquire(
        self, target: Target, addresses: tuple[str, ...], guest: Guest, generation: int, *, fresh: bool = False
    ) -> Session | Awaitable[Session]:
        """Give a session to one of these addresses: a warm one at once, or an awaitable of one.

        Args:
            target, addresses, guest, generation: what the session has to fit.
            fresh: whether the idle ones are not to be trusted, because one of them was found closed.

        Raises (from the awaitable):
            UpstreamError: none could be opened, or none became free in time (UPSTREAM_BUSY).
        """
        bucket = self._bucket(target, guest, generation)
        session = None if fresh else self._take(bucket, addresses)
        if session is not None:
            self.reused_total += 1
            return session
        if len(bucket) < self._config.sessions_per_origin or self._evict(bucket):
            bucket.opening += 1
            return self._open(bucket, addresses)
        return self._wait(bucket, addresses)

    def preconnect(self, target: Target, addresses: tuple[str, ...], guest: Guest, generation: int) -> None:
        """Open a session in the background if none is idle: a request is likely to follow."""
        bucket = self._bucket(target, guest, generation)
        if bucket.idle or bucket.opening or len(bucket) >= self._config.sessions_per_origin:
            return
        bucket.opening += 1
        spawn(self._open_idle(bucket, addresses), name=f"preconnect {target.authority}")

    @property
    def preconnects(self) -> bool:
        """Whether sessions are opened ahead of requests."""
        return self._config.preconnect

    def has_idle(self, target: Target, guest: Guest, generation: int) -> bool:
        """Whether a warm session is there, or under way."""
        bucket = self._bucket(target, guest, generation)
        return bool(bucket.idle or bucket.opening)

    def _bucket(self, target: Target, guest: Guest, generation: int) -> _Bucket:
        group = self._group(guest)
        key = self._keys.get((target, group, generation))
        if key is None:
            key = PoolKey(target, self._opener.profile_for(target), group, generation)
            self._keys[(target, group, generation)] = key
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(key)
        return bucket

    def _group(self, guest: Guest) -> str:
        isolation = self._config.isolation
        return guest.id if isolation == "guest" else guest.group if isolation == "group" else ""

    def _take(self, bucket: _Bucket, addresses: tuple[str, ...]) -> Session | None:
        """Take the idle session that was used last, so that the others can grow old."""
        oldest = monotonic() - self._config.max_age_s
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

    def _evict(self, bucket: _Bucket) -> bool:
        """Make room in a full bucket by closing an idle session that none of the validated addresses fits."""
        if not bucket.idle:
            return False
        bucket.idle.pop(0).close()
        return True

    async def _open(self, bucket: _Bucket, addresses: tuple[str, ...]) -> Session:
        try:
            session = await self._opener.connect(
                bucket.key.target,
                addresses,
                lambda session: self._returned(bucket, session),
                lambda session: self._gone(bucket, session),
            )
        except BaseException:
            bucket.opening -= 1
            self._wake(bucket)
            raise
        # The place passes from `opening` to `busy` in one step, or a waiter would take it for free.
        bucket.opening -= 1
        self.opened_total += 1
        if not session.usable:
            session.discard()
            raise UpstreamError("the upstream closed as soon as it was connected", reason=Reason.UPSTREAM_CLOSED)
        bucket.busy.add(session)
        return session

    async def _open_idle(self, bucket: _Bucket, addresses: tuple[str, ...]) -> None:
        try:
            session = await self._open(bucket, addresses)
        except SeamgateError:
            return  # the request that follows will meet the same error, and report it
        bucket.busy.discard(session)
        if session.usable:
            session.waited = True
            self._returned(bucket, session)

    async def _wait(self, bucket: _Bucket, addresses: tuple[str, ...]) -> Session:
        """Queue for a session of a full bucket."""
        future: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        entry = (addresses, future)
        bucket.waiters.append(entry)
        try:
            async with asyncio.timeout(self._config.queue_timeout_s):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release(reusable=True)  # it came at the very moment at which we gave up
            if isinstance(error, TimeoutError):
                message = f"all {self._config.sessions_per_origin} sessions to {bucket.key.target.authority} are in use"
                raise UpstreamError(message, reason=Reason.UPSTREAM_BUSY) from None
            raise
        finally:
            if entry in bucket.waiters:
                bucket.waiters.remove(entry)

    # -- coming back -------------------------------------------------------------------------------------------------

    def _returned(self, bucket: _Bucket, session: Session) -> None:
        """A session is free: the first waiter that may use its address gets it, else it stays idle."""
        bucket.busy.discard(session)
        if bucket.retired:
            session.close()
            return
        for place, (addresses, future) in enumerate(bucket.waiters):
            if session.address in addresses and not future.done():
                del bucket.waiters[place]
                bucket.busy.add(session)
                future.set_result(session)
                return
        if any(not future.done() for _, future in bucket.waiters):
            session.close()  # it fits nobody who waits: make room for one that does
        else:
            bucket.idle.append(session)

    def _gone(self, bucket: _Bucket, session: Session) -> None:
        """A session was closed: there may be room for a waiter."""
        bucket.busy.discard(session)
        if session in bucket.idle:
            bucket.idle.remove(session)
        self._wake(bucket)

    def _wake(self, bucket: _Bucket) -> None:
        """Open a session for the first waiter if there is room."""
        while bucket.waiters and len(bucket) < self._config.sessions_per_origin:
            addresses, future = bucket.waiters.popleft()
            if not future.done():
                bucket.opening += 1
                spawn(self._open_for(bucket, addresses, future), name=f"connect {bucket.key.target.authority}")
                return

    async def _open_for(self, bucket: _Bucket, addresses: tuple[str, ...], future: asyncio.Future[Session]) -> None:
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

    def sweep(self) -> None:
        """Close what is idle for too long, end what waits too long for its upstream. Called every second."""
        now = monotonic()
        for key, bucket in list(self._buckets.items()):
            for session in [each for each in bucket.idle if now - each.active_at > self._config.idle_timeout_s]:
                session.close()
            for session in [each for each in bucket.busy if now - each.active_at > self._response_timeout_s]:
                if session.exchange is not None and not session.reading_paused:
                    session.timed_out(UpstreamTimeout(f"silent for {self._response_timeout_s:g} s"))
            if not len(bucket) and not bucket.waiters:
                del self._buckets[key]
                self._keys = {each: kept for each, kept in self._keys.items() if kept is not key}

    def retire(self, generation: int) -> None:
        """A new policy was loaded: idle sessions of older generations are closed, busy ones when they come back."""
        for key, bucket in list(self._buckets.items()):
            if key.generation < generation:
                bucket.retired = True
                for session in list(bucket.idle):
                    session.close()

    def close(self) -> None:
        """Close everything."""
        for bucket in list(self._buckets.values()):
            bucket.retired = True
            for session in [*bucket.idle, *bucket.busy]:
                session.close()
        self._buckets.clear()
        self._keys.clear()
