"""What every exchange needs and none owns: the present pipeline, the session pool, the journal, the limits.

One per gateway. Entries hand it to each connection; a reload swaps `pipeline` and raises the generation, and what is
under way is judged again (`seamgate.revocation`). Decides nothing by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from seamgate.audit.parts import without_secrets
from seamgate.audit.record import AuditKind, AuditRecord, Decision
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import AuditError, Reason, SeamgateError
from seamgate.flow import Guest, Request, Resolution, Target
from seamgate.limits import LimitsConfig
from seamgate.pipeline import Pipeline
from seamgate.turns import Shares
from seamgate.upload import HeldBytes
from seamgate.upstream.addresses import AddressPermit
from seamgate.upstream.ahead import DoneAhead
from seamgate.upstream.connect import Connector
from seamgate.upstream.destination import OwnAddresses, check_destination
from seamgate.upstream.parent import VIA_PROXY
from seamgate.upstream.pool import SessionPool
from seamgate.verdict import Verdict

SESSION_CLOSED: Final = "session_closed"
"""Why a request was sent again: the upstream closed the idle session that it was sent on, without any answer."""
NOT_PROCESSED: Final = "not_processed"
"""Why a request was sent again: the upstream says that it did not look at it (RFC 9113 8.7)."""
_HEX: Final = tuple([f"{number:03x}" for number in range(4096)])


class Recorder(Protocol):
    """What exchanges use of the journal (`seamgate.audit.journal.Journal`)."""

    @property
    def healthy(self) -> bool:
        """Whether the last write succeeded."""
        ...

    def begin_all(self, records: list[AuditRecord]) -> None:
        """Write ahead. Raises AuditError."""

    def append(self, record: AuditRecord) -> None:
        """Keep a terminal record until it is written."""


_MOST_AHEAD: Final = 64
_MOST_TURNS: Final = 4
"""How many records, and for how many turns of the loop, a worker gathers before it asks for them to be written."""

IsBound: TypeAlias = Callable[[str, Request], bool]
"""Whether the credential of this name is configured now, and may go with this request."""


GoOn: TypeAlias = Callable[[SeamgateError | None], None]
"""Called once a record is in the journal, or with the error why it is not."""


class UnderWay(Protocol):
    """What a new policy may end: an exchange, a tunnel."""

    def judge_again(self, is_bound: IsBound) -> bool:
        """Judge by the seam's present pipeline; end at once if it denies. Return whether that was so."""
        ...


class ExchangeUnderWay(UnderWay, Protocol):
    """An exchange that has begun and not ended."""

    def refuse(self, verdict: Verdict) -> None:
        """End it, with its terminal record."""

    def look_anew(self) -> bool:
        """Search the rest of its bodies for what is looked for now; return whether it ended because that can't be."""
        ...


Ahead: TypeAlias = tuple[AuditRecord, UnderWay, GoOn]
"""A record that is written ahead, of which exchange, and what waits for it."""


class Tally:
    """What the terminal records of one kind came to. Read by metrics."""

    __slots__ = ("count", "duration_ms", "request_bytes", "response_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.duration_ms = 0.0
        self.request_bytes = 0
        self.response_bytes = 0


class Seam:
    """The shared machinery of one gateway.

    Attributes:
        guest_alpn: what guests are offered within TLS, in order of preference.
        held: what is in memory of requests' bodies, and how much may be.
        shares: of each guest in what one turn of the loop does.
        lookups_ahead: of names, for tunnels on which nothing was asked yet.
        begin_later: where the journal is another process's (`seamgate.workers`): writes ahead, and calls each `GoOn`
            when that is acknowledged. None: the journal's `begin_all` does it at once.
        draining: whether the gateway stops: what is asked now is refused.
        retiring: whether it does so for a successor: what is asked on connections that it took is still answered.
        under_way: the exchanges that have begun and not ended.
        tunnels: those that are open.
        connector: opens what no pool shares: sessions that become WebSockets, streams that pass unread.
        repeated: how often a request was sent again, by why.
        tallies: of the terminal records, by (entry, kind, verdict, reason).
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        pool: SessionPool,
        journal: Recorder,
        limits: LimitsConfig,
        permit: AddressPermit,
        own: OwnAddresses,
        placeholders: PlaceholderIndex,
        query_mode: str = "names",
        clock: Callable[[], float] = time.time,
        tag: str = "",
    ) -> None:
        self.pipeline = pipeline
        self.pool = pool
        self.journal = journal
        self.limits = limits
        # What each request asks for, without a look into the configuration.
        self.request_body_bytes = limits.request_body_bytes
        self.resolve_timeout_s = limits.resolve_timeout_s
        self.session_patience_s = pool.queue_timeout_s + limits.connect_timeout_s * 2
        self.plugin_budget_s = limits.plugin_budget_s
        self.permit = permit
        self.own = own
        self.placeholders = placeholders
        self.query_mode = query_mode
        self.clock = clock
        self.guest_alpn: tuple[str, ...] = ("h2", "http/1.1")
        self.connector: Connector | None = None
        self.draining = self.retiring = False
        self.held = HeldBytes(limits.held_bytes)
        self.shares = Shares()
        self.lookups_ahead = DoneAhead()
        self.requests_total = 0
        self.denied_total = 0
        self.repeated = {SESSION_CLOSED: 0, NOT_PROCESSED: 0}
        self.under_way: set[ExchangeUnderWay] = set()
        self.tunnels: set[UnderWay] = set()
        self.tallies: defaultdict[tuple[str, AuditKind, Decision | None, Reason | None], Tally] = defaultdict(Tally)
        self._last_tally: tuple[str, AuditKind, Decision | None, Reason | None, Tally] | None = None
        self._quiet: asyncio.Event | None = None
        self.begin_later: Callable[[list[Ahead]], None] | None = None
        self._ahead: list[Ahead] = []
        self._turns = self._known = 0  # for how long what is ahead was gathered, and how much it was a turn ago
        self._numbers = itertools.count()
        self._tag = os.urandom(2).hex() + tag
        self._id_from = self._id_until = 0.0
        self._id_prefix = ""

    def by_proxy(self, target: Target) -> bool:
        """Whether the upstream proxy turns the target's name into an address, so that nobody here can check it."""
        connector = self.connector
        return connector is not None and connector.parent is not None and connector.parent.resolves(target)

    def known_address(self, target: Target) -> Resolution | None:
        """Return what stands for a target's address without any look-up: itself, or the upstream proxy; None: ask."""
        if target.is_address:
            return Resolution(target.host, (target.host,), 0.0)
        return Resolution(target.host, (VIA_PROXY,), 0.0) if self.by_proxy(target) else None

    def check(self, addresses: tuple[str, ...], target: Target, permit: AddressPermit) -> tuple[str, ...]:
        """Return the addresses of a target if all of them may be dialled, or are the upstream proxy's to find.

        Raises:
            AddressForbidden: one may not, or is the gateway itself.
            ResolveFailed: there is none.
        """
        if addresses == (VIA_PROXY,) and self.by_proxy(target):
            return addresses
        return check_destination(addresses, target.port, permit, self.own, name=target.host)

    def new_id(self, now: float | None = None) -> str:
        """Return a request id: sorts by time, unique over gateways for all practical purposes.

        Args:
            now: the clock's time in Unix seconds, where the caller has just asked it.
        """
        if now is None:
            now = self.clock()
        if not self._id_from <= now < self._id_until:
            self._begin_ids(int(now * 1000))
        number = next(self._numbers)
        return self._id_prefix + _HEX[number >> 12 & 0xFFF] + _HEX[number & 0xFFF]

    def _begin_ids(self, millisecond: int) -> None:
        """Begin the ids of this millisecond."""
        self._id_from, self._id_until = millisecond / 1000, (millisecond + 1) / 1000
        self._id_prefix = f"{millisecond:011x}-{self._tag}-"

    @property
    def active(self) -> int:
        """How many exchanges are under way."""
        return len(self.under_way)

    def ended(self, exchange: ExchangeUnderWay) -> None:
        """An exchange is over."""
        self.under_way.discard(exchange)
        if not self.under_way and self._quiet is not None:
            self._quiet.set()

    async def quiet(self) -> None:
        """Return once no exchange is under way."""
        if self.under_way:
            self._quiet = asyncio.Event()
            await self._quiet.wait()

    def write_ahead(self, record: AuditRecord, exchange: UnderWay, go_on: GoOn) -> None:
        """Call `go_on` once the record is in the journal, or with the error why it is not; not if it ends before.

        Requests of one turn of the loop share one write: with many guests that is most of the price of a write.
        """
        self._ahead.append((record, exchange, go_on))
        if len(self._ahead) == 1:
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        if self.begin_later is not None and self._gathers():
            asyncio.get_running_loop().call_soon(self._commit)
            return
        self._turns = self._known = 0
        # One that ended meanwhile has its terminal record: a beginning after it would look like another request.
        ahead = [each for each in self._ahead if each[1] in self.under_way]
        self._ahead = []
        if not ahead:
            return
        if self.begin_later is not None:
            self.begin_later(ahead)
            return
        error: SeamgateError | None = None
        try:
            self.journal.begin_all([record for record, _, _ in ahead])
        except AuditError as failure:
            error = failure
        for _, _, go_on in ahead:
            go_on(error)

    def _gathers(self) -> bool:
        """Whether what is written ahead waits another turn, since a message to another process costs much.

        It does once, and as long as each turn brings more: a worker that has nothing else to do looks once more whether
        there is something to read, and one that is busy asks for all that it has read.
        """
        known, self._known = self._known, len(self._ahead)
        self._turns += 1
        return known < self._known < _MOST_AHEAD and self._turns < _MOST_TURNS

    def record(self, record: AuditRecord, *, denied: bool) -> None:
        """Keep a terminal record and tell the observers. Of what was denied no text shows a credential's real value."""
        if denied and self.pipeline.knows_secrets:
            record = without_secrets(record, self.pipeline.shows_secret)
        self.journal.append(record)
        tally = self._tally_of(record.entry, record.kind, record.verdict, record.reason)
        tally.count += 1
        duration_ms, size = record.duration_ms, record.bytes
        if duration_ms is not None:
            tally.duration_ms += duration_ms
        if size is not None:
            tally.request_bytes += size.request_body
            tally.response_bytes += size.response_body
        if self.pipeline.observes:
            self.pipeline.request_done(record, denied=denied)

    def _tally_of(self, entry: str, kind: AuditKind, verdict: Decision | None, reason: Reason | None) -> Tally:
        """Return the tally of such records; mostly the same as for the record before, without a look-up.

        A hash of a member of an enumeration is a call of a function in Python.
        """
        last = self._last_tally
        if last is None or last[3] is not reason or last[2] is not verdict or last[1] is not kind or last[0] != entry:
            last = self._last_tally = (entry, kind, verdict, reason, self.tallies[entry, kind, verdict, reason])
        return last[4]

    def opened(self, guest: Guest, target: Target, address: str) -> None:
        """A session was opened on behalf of this guest."""
        self.pipeline.connected(guest, target, address)
