"""One exchange under every order of events: one terminal record, one end for the guest, no session lost.

Guest, pool's opener, name server, source of credentials and journal are in the test's hand; everything between them is
the real one. No sockets, no clock.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from seamgate import (
    Direction,
    Effect,
    Guest,
    Reason,
    Request,
    Resolution,
    Supply,
    Target,
    Verdict,
    allow,
    deny,
    hookimpl,
)
from seamgate.audit.record import AuditKind, AuditRecord, Decision, Outcome
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import AuditError, ConnectFailed, CredentialError, ResolveFailed, UpstreamError
from seamgate.exchange import Exchange
from seamgate.flow import BodyState
from seamgate.headers import Headers
from seamgate.limits import LimitsConfig
from seamgate.pipeline import Pipeline
from seamgate.protocol.heads import CHUNKED
from seamgate.registry import register
from seamgate.seam import Seam
from seamgate.sides import GuestSide
from seamgate.turns import Share
from seamgate.upstream.addresses import PUBLIC_ONLY
from seamgate.upstream.destination import OwnAddresses
from seamgate.upstream.pool import SessionPool
from seamgate.upstream.pool_key import PoolConfig
from support.sessions import HeldOpener, lose

GUEST = Guest("g", group="x")
TARGET = Target("https", "a.example", 443)
ADDRESS = "93.184.216.34"
SECRET = b"sk-0123456789abcdef"
FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine"


class Plugin:
    """Judges as it is told, and answers names and credentials when the test says so."""

    def __init__(self, *, slow: bool, credential: bool, needs_body: bool, denies: bool, inspects: bool) -> None:
        self.slow, self.credential, self.needs_body, self.denies = slow, credential, needs_body, denies
        self.inspects = inspects
        self.waiting: list[asyncio.Future[Any]] = []

    @hookimpl
    def judge_request(self, request: Request) -> Verdict:
        if self.denies:
            return deny("no")
        if self.needs_body and request.body_state is BodyState.PENDING:
            return Verdict(Effect.DEFER, Reason.ALLOWED)
        return Verdict(Effect.ALLOW, Reason.ALLOWED, "r", credentials=("key",)) if self.credential else allow("r")

    def _later(self, value: Any) -> Any:
        if not self.slow:
            return value
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return self._wait(future, value)

    async def _wait(self, future: asyncio.Future[Any], value: Any) -> Any:
        await future
        return value

    @hookimpl
    def resolve_name(self, name: str) -> Any:
        return self._later(Resolution(name, (ADDRESS,), 0.0))

    @hookimpl
    def supply_credential(self, credential: str) -> Any:
        return self._later(Supply(credential, set_headers=((b"x-api-key", SECRET),), secrets=(SECRET,)))

    @hookimpl
    def open_inspector(self, direction: Direction) -> Any:
        return Passes() if self.inspects else None


class Passes:
    """An inspector that holds back until the stream pauses or ends."""

    def __init__(self) -> None:
        self.held = b""

    def head(self, headers: Headers) -> Headers:
        return headers

    def feed(self, data: bytes) -> bytes:
        self.held += data
        return b""

    def flush(self) -> bytes:
        held, self.held = self.held, b""
        return held

    def finish(self) -> bytes:
        return self.flush()


class Records:
    """A journal in memory that fails when it is told to."""

    def __init__(self) -> None:
        self.all: list[AuditRecord] = []
        self.healthy = True

    def begin_all(self, records: list[AuditRecord]) -> None:
        if not self.healthy:
            raise AuditError("full")
        self.all += records

    def append(self, record: AuditRecord) -> None:
        self.all.append(record)


class GuestEnd(GuestSide):
    """The guest's side: notes what it is told, and that nothing comes after the end."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.body = b""
        self.ended = 0

    def _tell(self, what: str) -> None:
        assert not self.ended, f"{what} after the end"
        self.told.append(what)

    @property
    def share(self) -> Share:
        return Share()

    def send_continue(self) -> None:
        self._tell("continue")

    def send_informational(self, status: int, headers: Headers) -> None:
        self._tell(f"informational {status}")

    def send_head(self, status: int, headers: Headers, body: int | None) -> None:
        assert SECRET not in b"".join(value for _, value in headers)
        self._tell(f"head {status}")

    def send_data(self, data: bytes) -> None:
        self._tell("data")
        self.body += data

    def send_end(self, trailers: Headers) -> None:
        self._tell("end")

    def send_denial(self, verdict: Verdict, request_id: str) -> None:
        self._tell(f"denial {verdict.reason}")

    def abort(self) -> None:
        self._tell("abort")

    def flush(self) -> None: ...

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def finished(self) -> None:
        self.ended += 1


class Schedule:
    """An exchange, and the events that may happen to it."""

    def __init__(self, method: str, body: int, **plugin: bool) -> None:
        self.plugin = Plugin(**plugin)
        self.opener = HeldOpener()
        self.records = Records()
        self.guest = GuestEnd()
        self.left = 3 if body else 0
        self.gone = False
        config = PoolConfig(sessions_per_origin=2)
        self.pool = SessionPool(self.opener, config, response_timeout_s=900.0)
        self.seam = Seam(
            pipeline=Pipeline([register("plugin", self.plugin, {"secrets"})]), pool=self.pool, journal=self.records,
            limits=LimitsConfig(judged_body_bytes=100), permit=PUBLIC_ONLY, own=OwnAddresses(()),
            placeholders=PlaceholderIndex({}),
        )  # fmt: skip
        request = Request("r1", GUEST, TARGET, method, "/x", body_state=BodyState.PENDING if body else BodyState.ABSENT)
        self.exchange = Exchange(self.seam, self.guest, request, entry="proxy", body=body, expects_continue=False)
        self.seam.requests_total = 0

    def on_body(self) -> None:
        if self.left and not self.gone:
            self.left -= 1
            self.exchange.on_body(b"abcd")
            if not self.left:
                self.exchange.on_body_end(())
            self.exchange.flush_upstream()

    def on_answer(self) -> None:
        for session in self.opener.open:
            if session.exchange is not None:
                session.data_received(FINE[-2:] if session.answered else FINE)

    def on_half(self) -> None:
        for session in self.opener.open:
            if session.exchange is not None:
                session.data_received(FINE[:-2] if not session.answered else FINE[-2:])

    def on_garbage(self) -> None:
        for session in self.opener.open:
            session.data_received(b"garbage\r\n\r\n")

    def on_lost(self) -> None:
        for session in self.opener.open:
            lose(session)

    def on_open(self) -> None:
        for opening in [*self.opener.under_way]:
            opening.finish()

    def on_refused(self) -> None:
        for opening in [*self.opener.under_way]:
            opening.fail(ConnectFailed("no"))

    def on_value(self) -> None:
        for future in self.plugin.waiting:
            if not future.done():
                future.set_result(None)

    def on_error(self) -> None:
        for future in self.plugin.waiting:
            if not future.done():
                future.set_exception(CredentialError("no") if self.opener.made else ResolveFailed("no"))

    def on_disk(self) -> None:
        self.records.healthy = not self.records.healthy

    def on_gone(self) -> None:
        if not self.gone:
            self.gone = True
            self.exchange.on_guest_gone()

    def on_stop(self) -> None:
        self.exchange.fail(UpstreamError("stopped", reason=Reason.UPSTREAM_TIMEOUT))

    def check(self) -> None:
        terminal = [record for record in self.records.all if record.kind is AuditKind.REQUEST]
        assert len(terminal) == self.guest.ended == int(self.exchange.done)
        assert self.seam.active == int(not self.exchange.done)
        assert SECRET not in self.guest.body
        if self.exchange.done:
            assert self.pool.counts[0] == 0, "a session is still lent"

    def check_end(self) -> None:
        *before, record = self.records.all
        assert record.kind is AuditKind.REQUEST, "written ahead after the end"
        assert all(each.kind is AuditKind.BEGIN for each in before)
        sent = any(session.exchanges for _, session in self.opener.made)
        if sent and self.plugin.credential:
            assert before, "a credential left without a record"
        last = self.guest.told[-1] if self.guest.told else ""
        if record.outcome is Outcome.COMPLETE:
            assert last == "end" and record.verdict is Decision.ALLOW
            assert self.guest.body in (b"fine", b"figa")  # garbage within a body is a body
        elif record.outcome is Outcome.TRUNCATED:
            assert last == "abort"
        elif record.outcome is Outcome.ABORTED:
            assert self.gone
        else:
            assert last == f"denial {record.reason}"
        assert not (self.plugin.denies and self.opener.made)


EVENTS = st.sampled_from([name.removeprefix("on_") for name in vars(Schedule) if name.startswith("on_")])
# Between two events of a batch pass a few steps of the loop, so that they meet what is half done.
BATCHES = st.lists(st.lists(st.tuples(EVENTS, st.integers(0, 5)), min_size=1, max_size=3), max_size=12)
FLAGS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("slow", "credential", "needs_body", "inspects")} | {"denies": st.just(False)}
)


async def turn() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@given(method=st.sampled_from(["GET", "POST"]), body=st.sampled_from([0, 12, CHUNKED]), flags=FLAGS, batches=BATCHES)
def test_any_order_of_events(
    method: str, body: int, flags: dict[str, bool], batches: list[list[tuple[str, int]]]
) -> None:
    """Whatever comes in whatever order, the exchange ends once and whole."""

    async def scenario() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        schedule = Schedule(method, body, **flags)
        schedule.exchange.start()
        for batch in batches:
            for event, steps in batch:
                getattr(schedule, f"on_{event}")()
                for _ in range(steps):
                    await asyncio.sleep(0)
            await turn()
            schedule.check()
        schedule.records.healthy = True
        for _ in range(20):
            for event in ("value", "open", "body", "answer"):
                getattr(schedule, f"on_{event}")()
                await turn()
            if schedule.exchange.done:
                break
        assert schedule.exchange.done, schedule.exchange
        schedule.check()
        schedule.check_end()
        schedule.pool.close()
        await turn()
        assert schedule.opener.open == []
        assert failures == []

    asyncio.run(scenario())


async def test_a_denied_request_touches_nothing() -> None:
    """No name is asked for, nothing is opened."""
    schedule = Schedule("GET", 0, slow=True, credential=True, needs_body=False, denies=True, inspects=False)
    schedule.exchange.start()
    await turn()
    assert schedule.guest.told == ["denial rule_denied"]
    assert schedule.plugin.waiting == []
    schedule.check_end()
