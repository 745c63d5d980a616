"""One cache of names for all guests, with TTLs, negative answers and coalescing: what the dns plugin's hook asks.

A hit is answered at once, under a microsecond; a miss returns an awaitable, and however many wait for the same name,
one query pair goes out. Judges no address, and never serves an answer beyond its TTL unless `dns.serve_stale_s` says so
and every server fails. Called once a request, so a room of its own that can be compiled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Protocol

import msgspec

from seamgate.errors import ResolveFailed
from seamgate.flow import Resolution
from seamgate.tasks import spawn
from seamgate.upstream.dns_message import Outcome
from seamgate.upstream.resolver import Answer, DnsConfig

# A name is asked for again early if it was used since the last answer and this part of the TTL is left...
_PREFETCH_PART: Final = 0.1
# ... but not names with TTLs so short that it would only double the queries.
_PREFETCH_MIN_TTL_S: Final = 10.0
# RFC 8767 4: serve a stale answer for 30 s, then try again.
_STALE_TTL_S: Final = 30.0


class Names(Protocol):
    """What the cache asks: `Resolver`, a worker's way to the cache of all, or what a test puts in its place."""

    async def query(self, name: str) -> Answer:
        """Ask for the addresses of a canonical name."""
        ...


class _Entry:
    """One remembered answer.

    Attributes:
        expires_at: until when it is used.
        ends_at: until when its server said that it holds; earlier than expires_at if it is served stale.
        prefetch_at: from when on a use asks for it again.
        resolution: None if the answer is negative.
        used: since it was stored or last spared.
    """

    __slots__ = ("answer", "ends_at", "expires_at", "prefetch_at", "resolution", "used")

    def __init__(self, answer: Answer, now: float, ends_at: float | None = None) -> None:
        self.answer = answer
        self.expires_at = now + answer.ttl_s
        self.ends_at = self.expires_at if ends_at is None else ends_at
        self.prefetch_at = self.expires_at - answer.ttl_s * _PREFETCH_PART
        self.used = False
        positive = answer.outcome is Outcome.ADDRESSES
        self.resolution = Resolution(answer.name, answer.addresses, self.expires_at, True) if positive else None


class DnsCache:
    """Answers by name, bounded, with the queries under way. Runs on: the event loop's thread, without awaits inside."""

    def __init__(self, config: DnsConfig, names: Names, clock: Callable[[], float] = monotonic) -> None:
        self._config = config
        self._names = names
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self.hits = 0
        self.misses = 0
        self.coalesced = 0
        self.negative = 0
        self.stale = 0
        self.prefetched = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pending(self) -> int:
        """Look-ups under way."""
        return len(self._pending)

    def get(self, name: str) -> Resolution | Awaitable[Resolution]:
        """Return the addresses of a canonical name, at once or as an awaitable.

        Raises:
            ResolveFailed: it is known to have none.
        """
        entry = self._entries.get(name)
        if entry is not None:
            now = self._clock()
            if now < entry.expires_at:
                entry.used = True
                if entry.resolution is None:
                    self.negative += 1
                    raise _failure(entry.answer)
                self.hits += 1
                if now >= entry.prefetch_at:
                    self._prefetch(name, entry)
                return entry.resolution
        future = self._pending.get(name)
        if future is not None:
            self.coalesced += 1
            return self._wait(future)
        self.misses += 1
        return self._wait(self._ask(name))

    async def answer(self, name: str) -> Answer:
        """Return what is known of a canonical name, asking if need be, with the time that is left of it.

        For another process that has a cache of its own; counted as `get` is. Raises nothing.
        """
        try:
            found = self.get(name)
            resolution = found if isinstance(found, Resolution) else await found
        except ResolveFailed as error:
            entry, now = self._entries.get(name), self._clock()
            if entry is None or now >= entry.expires_at or entry.resolution is not None:
                return Answer(name, Outcome.FAILED, message=error.message)
            return msgspec.structs.replace(entry.answer, ttl_s=entry.expires_at - now)
        left_s = max(0.0, resolution.expires_at - self._clock())
        return Answer(name, Outcome.ADDRESSES, resolution.addresses, left_s)

    def forget(self, name: str | None = None) -> None:
        """Drop what is remembered of this name, or of all. Look-ups under way go on."""
        if name is None:
            self._entries.clear()
        else:
            self._entries.pop(name, None)

    async def _wait(self, future: asyncio.Future[Answer]) -> Resolution:
        """Wait for a shared query; shielded, so that a waiter that goes away takes nobody with it."""
        answer = await asyncio.shield(future)
        if answer.outcome is not Outcome.ADDRESSES:
            raise _failure(answer)
        return Resolution(answer.name, answer.addresses, self._clock() + answer.ttl_s)

    def _ask(self, name: str) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if len(self._pending) >= self._config.max_lookups:
            self.refused += 1
            message = f"{name} could not be resolved: {self._config.max_lookups} look-ups are under way already"
            future.set_result(Answer(name, Outcome.FAILED, message=message))
            return future
        self._pending[name] = future
        spawn(self._fill(name, future), name=f"resolve {name}")
        return future

    async def _fill(self, name: str, future: asyncio.Future[Answer]) -> None:
        """Ask, remember, tell the waiters; whatever happens, nobody is left waiting."""
        answer = Answer(name, Outcome.FAILED, message=f"{name} could not be resolved: the look-up was given up")
        try:
            answer = self._remember(await self._names.query(name))
        finally:
            del self._pending[name]
            if not future.done():
                future.set_result(answer)

    def _remember(self, answer: Answer) -> Answer:
        """Store an answer and return what to use: a stale one while all servers fail, if the configuration says so."""
        now = self._clock()
        old = self._entries.pop(answer.name, None)
        entry = _Entry(answer, now)
        if answer.outcome is Outcome.FAILED and old is not None and old.resolution is not None:
            if now < old.expires_at:  # a prefetch failed: the old answer still holds, till its end
                entry = old
            elif now < old.ends_at + self._config.serve_stale_s:
                self.stale += 1
                ttl_s = min(_STALE_TTL_S, old.ends_at + self._config.serve_stale_s - now)
                entry = _Entry(msgspec.structs.replace(old.answer, ttl_s=ttl_s), now, old.ends_at)
        if entry.answer.ttl_s > 0:
            self._entries[answer.name] = entry
            self._bound(now)
        return entry.answer

    def _bound(self, now: float) -> None:
        """Make room: the oldest goes, but one that was used since gets a second turn (CLOCK)."""
        while len(self._entries) > self._config.cache_size:
            name, entry = next(iter(self._entries.items()))
            del self._entries[name]
            if entry.used and now < entry.expires_at:
                entry.used = False
                self._entries[name] = entry

    def _prefetch(self, name: str, entry: _Entry) -> None:
        """Ask again while the answer still holds, so that nobody waits when it ends. Once per answer."""
        entry.prefetch_at = entry.expires_at
        worthwhile = self._config.prefetch and entry.answer.ttl_s >= _PREFETCH_MIN_TTL_S
        if worthwhile and name not in self._pending and len(self._pending) < self._config.max_lookups:
            self.prefetched += 1
            self._ask(name)


def _failure(answer: Answer) -> ResolveFailed:
    """Return the error of an answer without addresses."""
    known = {Outcome.NO_SUCH_NAME: False, Outcome.NO_ADDRESS: True}
    return ResolveFailed(answer.message, exists=known.get(answer.outcome))


class Current:
    """The cache that a generation asks: its own, until it goes on with that of the generation before."""

    __slots__ = ("cache",)

    def __init__(self, cache: DnsCache) -> None:
        self.cache = cache

    def get(self, name: str) -> Resolution | Awaitable[Resolution]:
        """See `DnsCache.get`."""
        return self.cache.get(name)
