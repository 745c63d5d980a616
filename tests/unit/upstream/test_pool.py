"""The session pool decides first: limits hold, no waiter is forgotten, and only what is equal in the key is shared.

Opening is in the test's hand, so every order of events can be had without a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.errors import ConnectFailed, Reason, UpstreamError
from seamgate.flow import Guest, Target
from seamgate.upstream import pool as pool_module
from seamgate.upstream.ahead import MOST_AHEAD
from support.pool import GUEST, ONE, OTHER, TARGET, TWO, Asked, got, make, turn
from support.sessions import lose


async def test_a_session_comes_back_and_is_used_again() -> None:
    """The warm session is given at once; the one used last goes first, so that the others grow old."""
    pool, opener = make()
    first, second = Asked(pool), Asked(pool)
    await turn()
    for opening in [*opener.under_way]:
        opening.finish()
    one, two = await got(first), await got(second)
    first.release()
    second.release()
    again = Asked(pool)
    assert again.session is two and two.reused
    assert Asked(pool).session is one
    assert (pool.opened_total, pool.reused_total) == (2, 2)


async def test_asking_for_a_warm_session_leaves_nothing_behind() -> None:
    """Each CONNECT asks, whatever its target: before anything is resolved there is no bucket."""
    pool, _ = make()
    assert not any(pool.has_idle(Target("https", f"a{number}.test", 443), GUEST, 1) for number in range(100))
    assert not pool._buckets and not pool._found and not pool._origins


async def test_a_sweep_takes_what_is_empty_and_looks_at_each_once() -> None:
    """Thousands of targets that were asked for, and are gone, cost one look each; what is in use stays."""
    pool, opener = make()
    kept = Asked(pool)
    await turn()
    opener.under_way[0].finish()
    await got(kept)
    for number in range(2000):
        pool._bucket(Target("https", f"a{number}.test", 443), GUEST, 1)
    looked = _Counted(pool._found)
    pool._found = looked
    pool.sweep(0.0)
    assert len(pool._buckets) == len(pool._found) == len(pool._origins) == 1
    assert looked.walks == 0 and pool._found is looked
    kept.release()


class _Counted(dict[Any, Any]):
    """A dictionary that counts how often it was walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


@pytest.mark.parametrize(
    "other",
    [
        {"target": OTHER},
        {"target": Target("http", "a.test", 443)},
        {"target": Target("https", "a.test", 8443)},
        {"guest": Guest("g", group="y")},
        {"generation": 2},
        {"addresses": (TWO,)},
    ],
)
async def test_what_differs_is_never_shared(other: dict[str, Any]) -> None:
    """Another origin, scheme, port, group, generation or validated address gets a session of its own."""
    pool, opener = make()
    first = Asked(pool)
    await turn()
    opener.under_way[0].finish()
    session = await got(first)
    first.release()
    second = Asked(pool, **other)
    await turn()
    assert second.session is None
    assert len(opener.under_way) == 1
    opener.under_way[0].finish()
    assert await got(second) is not session


@pytest.mark.parametrize(
    ("isolation", "shares"), [("group", (True, False)), ("guest", (False, False)), ("shared", (True, True))]
)
async def test_isolation(isolation: str, shares: tuple[bool, bool]) -> None:
    """By group, guests of one group share; by guest, nobody does; shared, all do."""
    pool, opener = make(isolation=isolation)
    first = Asked(pool)
    await turn()
    opener.under_way[0].finish()
    session = await got(first)
    for guest, shared in zip((Guest("h", group="x"), Guest("i", group="y")), shares, strict=True):
        if first.session is not None:
            first.release()
        assert (Asked(pool, guest=guest).session is session) is shared
        if shared:
            session.release(reusable=True)
    await turn()
    for opening in [*opener.under_way]:
        opening.finish()
    await turn()


async def test_the_limit_holds_while_connections_open() -> None:
    """With room for one, the second waits for the first, even in the moment in which the first is there."""
    pool, opener = make(sessions_per_origin=1)
    first, second = Asked(pool), Asked(pool)
    await turn()
    assert len(opener.under_way) == 1
    opener.under_way[0].finish()
    session = await got(first)
    assert opener.under_way == []
    first.release()
    assert await got(second) is session
    assert len(opener.made) == 1


async def test_a_failure_makes_room_for_the_next() -> None:
    """Who waited is served by a new connection when the one under way fails, and gets its own error or session."""
    pool, opener = make(sessions_per_origin=1)
    first, second = Asked(pool), Asked(pool)
    await turn()
    opener.under_way[0].fail(ConnectFailed("no"))
    await turn()
    assert isinstance(first.error, ConnectFailed)
    assert len(opener.under_way) == 1
    opener.under_way[0].finish()
    await got(second)


async def test_a_waiter_for_another_address_is_not_starved() -> None:
    """An idle session that fits nobody who waits makes room for one that does."""
    pool, opener = make(sessions_per_origin=1)
    first = Asked(pool, addresses=(ONE,))
    await turn()
    opener.under_way[0].finish()
    await got(first)
    second = Asked(pool, addresses=(TWO,))
    await turn()
    first.release()
    await turn()
    assert [opening.addresses for opening in opener.under_way] == [(TWO,)]
    opener.under_way[0].finish()
    assert (await got(second)).address == TWO


async def test_one_who_gives_up_before_it_began_leaves_no_trace() -> None:
    """An exchange that ends in the same turn in which it asked takes no place for ever."""
    pool, opener = make(sessions_per_origin=1)
    asked = Asked(pool)
    asked.leave()
    await turn()
    second = Asked(pool)
    await turn()
    assert len(opener.under_way) == 1
    opener.under_way[0].finish()
    await got(second)


async def test_one_who_gives_up_while_opening_leaves_no_trace() -> None:
    """The place of a connection that is given up is free again, and its waiter is served."""
    pool, opener = make(sessions_per_origin=1)
    asked, second = Asked(pool), Asked(pool)
    await turn()
    asked.leave()
    await turn()
    assert len(opener.under_way) == 1
    opener.under_way[0].finish()
    await got(second)
    assert asked.session is None


async def test_a_session_that_comes_as_its_waiter_leaves_is_not_lost() -> None:
    """Given to a waiter that is cancelled in that very turn, it goes to the next."""
    pool, opener = make(sessions_per_origin=1)
    first, second, third = Asked(pool), Asked(pool), Asked(pool)
    await turn()
    opener.under_way[0].finish()
    session = await got(first)
    first.release()
    assert second.task is not None
    second.task.cancel()
    assert await got(third) is session


async def test_a_session_that_is_dead_before_it_is_given_is_an_error() -> None:
    """An upstream that closes at once gives nobody a session on which an answer would be waited for."""
    pool, opener = make()
    opener.dies_at_once = True
    asked = Asked(pool)
    await turn()
    opener.under_way[0].finish()
    await turn()
    assert isinstance(asked.error, UpstreamError)
    assert asked.error.reason is Reason.UPSTREAM_CLOSED
    assert pool.counts == (0, 0, 0)


async def test_a_full_origin_refuses_after_its_time() -> None:
    """Waiting ends with `upstream_busy`, and the waiter is out of the queue."""
    pool, opener = make(sessions_per_origin=1, queue_timeout_s=0.01)
    first, second = Asked(pool), Asked(pool)
    await turn()
    opener.under_way[0].finish()
    await got(first)
    assert second.task is not None
    await second.task
    assert isinstance(second.error, UpstreamError)
    assert second.error.reason is Reason.UPSTREAM_BUSY
    assert pool.counts == (1, 0, 0)


async def test_a_closed_idle_session_is_not_given() -> None:
    """Once the upstream closed it, or it spoke without being asked, a session is gone from the pool."""
    pool, opener = make()
    for spoil in (lose, lambda session: session.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")):
        asked = Asked(pool)
        await turn()
        opener.under_way[0].finish()
        session = await got(asked)
        asked.release()
        spoil(session)
        assert pool.counts == (0, 0, 0)


async def test_a_session_with_unsent_bytes_is_not_pooled() -> None:
    """A request that the upstream has not read would stand before the next one."""
    pool, opener = make()
    asked = Asked(pool)
    await turn()
    opener.under_way[0].finish()
    session = await got(asked)
    transport: Any = session.transport
    transport.buffered = 1
    asked.release()
    await turn()
    assert pool.counts == (0, 0, 0)


async def test_old_sessions_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its greatest age a session is closed instead of given; idle ones are swept, silent ones end."""
    now = 1000.0
    monkeypatch.setattr(pool_module, "_monotonic", lambda: now)
    monkeypatch.setattr("seamgate.upstream.session._monotonic", lambda: now)
    pool, opener = make(max_age_s=60, idle_timeout_s=50)
    asked = Asked(pool)
    await turn()
    opener.under_way[0].finish()
    session = await got(asked)
    asked.release()
    now += 49
    pool.sweep(now)
    assert Asked(pool).session is session
    session.release(reusable=True)
    now += 12
    again = Asked(pool)
    await turn()
    assert again.session is None and not session.usable
    opener.under_way[0].finish()
    await got(again)
    again.release()
    now += 51
    pool.sweep(now)
    assert pool.counts == (0, 0, 0)
    assert opener.open == []


async def test_retire_closes_what_an_old_policy_opened() -> None:
    """Idle sessions of older generations close at once, lent ones when they come back, new ones stay."""
    pool, opener = make()
    old_idle, old_busy, new = Asked(pool), Asked(pool), Asked(pool, generation=2)
    await turn()
    for opening in [*opener.under_way]:
        opening.finish()
    await got(old_idle), await got(old_busy), await got(new)
    old_idle.release()
    new.release()
    pool.retire(2)
    assert pool.counts == (1, 1, 0)
    late = Asked(pool, generation=1)
    await turn()
    old_busy.release()
    await turn()
    opener.under_way[0].finish()
    await got(late)
    late.release()
    await turn()
    assert len(opener.open) == 1
    pool.close()
    await turn()
    assert opener.open == []


async def test_preconnect_opens_one_and_only_where_none_is() -> None:
    """A warm session waits for the request that follows; a failure is nobody's error."""
    pool, opener = make()
    for _ in range(3):
        pool.preconnect(TARGET, (ONE,), GUEST, 1)
    await turn()
    assert len(opener.under_way) == 1
    opener.under_way[0].finish()
    await turn()
    pool.preconnect(TARGET, (ONE,), GUEST, 1)
    await turn()
    assert opener.under_way == []
    assert Asked(pool).session is not None
    pool.preconnect(OTHER, (ONE,), GUEST, 1)
    await turn()
    opener.under_way[0].fail(ConnectFailed("no"))
    await turn()
    assert pool.counts == (1, 0, 0)


async def test_one_guest_has_few_sessions_opened_ahead() -> None:
    """What a guest has no room for is not opened; another one has its own room, and what ended or failed makes room."""
    pool, opener = make()
    for number in range(MOST_AHEAD + 10):
        pool.preconnect(Target("https", f"n{number}.test", 443), (ONE,), GUEST, 1)
    await turn()
    assert len(opener.under_way) == MOST_AHEAD
    pool.preconnect(OTHER, (ONE,), Guest("other", group="x"), 1)
    await turn()
    assert [each.target for each in opener.under_way[MOST_AHEAD:]] == [OTHER]
    opener.under_way[1].finish()
    opener.under_way[0].fail(ConnectFailed("no"))
    await turn()
    for number in range(MOST_AHEAD, MOST_AHEAD + 10):
        pool.preconnect(Target("https", f"n{number}.test", 443), (ONE,), GUEST, 1)
    await turn()
    assert len(opener.under_way) == MOST_AHEAD + 1
    refused = Target("https", f"n{MOST_AHEAD + 9}.test", 443)
    assert not pool.has_idle(refused, GUEST, 1)
    asked = Asked(pool, refused)
    await turn()
    opener.under_way[-1].finish()
    await got(asked)
    for opening in [*opener.under_way]:
        opening.finish()
    await turn()


# -- any order of events -----------------------------------------------------------------------------------------------

KEYS = st.tuples(st.sampled_from([TARGET, OTHER]), st.sampled_from(["x", "y"]), st.sampled_from([1, 2]))
ADDRESSES = st.sampled_from([(ONE,), (TWO,), (ONE, TWO)])
NUMBER = st.integers(0, 30)
EVENTS = st.one_of(
    st.tuples(st.just("ask"), KEYS, ADDRESSES),
    st.tuples(st.just("ask"), st.just((TARGET, "x", 1)), ADDRESSES),
    st.tuples(st.just("ask and leave"), st.just((TARGET, "x", 1)), ADDRESSES),
    st.tuples(
        st.sampled_from(["open", "open", "fail", "release", "discard", "lose", "leave", "open and leave"]), NUMBER
    ),
    st.tuples(st.just("retire")),
    st.tuples(st.just("preconnect"), KEYS, ADDRESSES),
)
LIMIT = 2
GUESTS = {group: Guest(f"g{group}", group=group) for group in ("x", "y")}


class Simulation:
    """Plays events against a pool and holds it to its rules after each."""

    def __init__(self, share: float, most: int) -> None:
        self.pool, self.opener = make(sessions_per_origin=LIMIT, guest_share=share, sessions_to_origin=most)
        self.most = most
        self.asked: list[Asked] = []
        self.share = max(1, int(LIMIT * share))

    async def play(self, event: tuple[Any, ...]) -> None:
        kind, *rest = event
        getattr(self, kind.replace(" ", "_"))(*rest)
        await turn()
        self.check()

    def ask(self, key: tuple[Target, str, int], addresses: tuple[str, ...]) -> None:
        target, group, generation = key
        guest = Guest(f"g{group}{len(self.asked) % 3}", group=group)
        self.asked.append(Asked(self.pool, target, addresses, guest, generation))

    def ask_and_leave(self, key: tuple[Target, str, int], addresses: tuple[str, ...]) -> None:
        self.ask(key, addresses)
        asked = self.asked[-1]
        asked.release() if asked.session is not None else asked.leave()

    def open(self, number: int) -> None:
        if self.opener.under_way:
            opening = self.opener.under_way[number % len(self.opener.under_way)]
            opening.finish(opening.addresses[number % len(opening.addresses)])

    def open_and_leave(self, number: int) -> None:
        self.open(number)
        self.leave(number)

    def fail(self, number: int) -> None:
        if self.opener.under_way:
            self.opener.under_way[number % len(self.opener.under_way)].fail(ConnectFailed("no"))

    def holders(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.session is not None]

    def release(self, number: int) -> None:
        if holders := self.holders():
            holders[number % len(holders)].release()

    def discard(self, number: int) -> None:
        if holders := self.holders():
            holders[number % len(holders)].release(reusable=False)

    def lose(self, number: int) -> None:
        if sessions := self.opener.open:
            session = sessions[number % len(sessions)]
            lose(session)
            for asked in self.holders():
                if asked.session is session:
                    asked.release(reusable=False)

    def leave(self, number: int) -> None:
        waiting = [asked for asked in self.asked if not asked.over]
        if waiting:
            waiting[number % len(waiting)].leave()

    def retire(self) -> None:
        self.pool.retire(2)

    def preconnect(self, key: tuple[Target, str, int], addresses: tuple[str, ...]) -> None:
        target, group, generation = key
        self.pool.preconnect(target, addresses, GUESTS[group], generation)

    def check(self) -> None:
        held = [asked.session for asked in self.holders()]
        assert len(held) == len({id(session) for session in held}), "lent twice"
        for asked in self.holders():
            assert asked.session is not None and asked.session.address in asked.addresses, "an address not validated"
        for bucket in self.pool._buckets.values():
            assert len(bucket) <= LIMIT, "more than the limit by its own count"
        mine = [target for target, session in self.opener.made if session in self.opener.open]
        for target in (TARGET, OTHER):
            under_way = [opening for opening in self.opener.under_way if opening.target == target]
            assert mine.count(target) + len(under_way) <= self.most, "more than the limit of the origin"
        for bucket in self.pool._buckets.values():
            counts = bucket.shares._held
            assert all(0 < count <= self.share for count in counts.values()), "more than a guest's share"
            for name, gate in bucket.shares._gates.items():
                assert counts.get(name) == self.share or all(each.done() for each in gate), "held back below its share"
            waiting = [waiter for waiter in bucket.waiters if not waiter.future.done()]
            siblings = [each for each in self.pool._buckets.values() if each.key.target == bucket.key.target]
            if waiting:
                full = sum(len(each) for each in siblings) == self.most
                assert full or len(bucket) == LIMIT, "somebody waits though there is room"
                idle = any(each.idle for each in siblings)
                assert len(bucket) == LIMIT or not idle, "somebody waits beside an idle session"
                assert not bucket.idle, "somebody waits beside an idle session"

    async def finish(self) -> None:
        """Everything opens and everything comes back: then nobody may be left."""
        for _ in range(200):
            if all(asked.over for asked in self.asked) and not self.opener.under_way:
                break
            self.open(0)
            self.release(0)
            await turn()
        assert all(asked.over for asked in self.asked), "a waiter was forgotten"
        for asked in self.holders():
            asked.release()
        await turn()
        assert self.pool.counts[0] == 0 and self.pool.counts[2] == 0
        assert not any(bucket.shares or bucket.shares.waiting for bucket in self.pool._buckets.values()), (
            "a claim stays"
        )
        self.pool.close()
        await turn()
        assert self.opener.open == [], "a session is open that the pool does not know"


@given(events=st.lists(EVENTS, max_size=25), share=st.sampled_from([0.5, 1.0]), most=st.sampled_from([1, 3, 8]))
def test_any_order_of_events(events: list[tuple[Any, ...]], share: float, most: int) -> None:
    """Whatever happens in whatever order: limits and shares hold, keys and addresses are kept apart, all are served."""

    async def scenario() -> None:
        simulation = Simulation(share, most)
        for event in events:
            await simulation.play(event)
        await simulation.finish()

    asyncio.run(scenario())
