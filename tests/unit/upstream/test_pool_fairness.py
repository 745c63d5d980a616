"""Guests beside each other in the session pool: turns and shares, with connections in the test's hand."""

from __future__ import annotations

import asyncio

import pytest

from seamgate.errors import ConnectFailed, Reason, UpstreamError
from seamgate.flow import Guest
from seamgate.upstream.pool_queue import FairQueue, Shares, Waiter
from support.pool import ONE, TWO, Asked, got, make, turn

FLOOD, QUIET, THIRD = (Guest(name, group="x") for name in ("flood", "quiet", "third"))


async def test_guests_take_turns() -> None:
    """Who asked a hundred times before the others gets one in turn, not a hundred; each guest's own in order."""
    pool, opener = make(sessions_per_origin=1)
    first = Asked(pool, guest=FLOOD)
    await turn()
    opener.under_way[0].finish()
    await got(first)
    flood = [Asked(pool, guest=FLOOD) for _ in range(100)]
    await turn()
    quiet, third = [Asked(pool, guest=QUIET) for _ in range(2)], [Asked(pool, guest=THIRD)]
    await turn()
    served, holder = [], first
    for _ in range(6):
        holder.release()
        await turn()
        (holder,) = [each for each in (*flood, *quiet, *third) if each.session is not None]
        served.append(holder)
    assert served == [quiet[0], third[0], flood[0], quiet[1], flood[1], flood[2]]
    for each in flood:
        if not each.over:
            each.leave()
    await turn()


async def test_the_queue_goes_round() -> None:
    """By guests, then by arrival; who can't use the address, or gave up, is passed over and loses no turn."""
    queue, loop = FairQueue(), asyncio.get_running_loop()

    def add(guest: str, address: str = ONE) -> Waiter:
        waiter = Waiter(guest, (address,), loop.create_future())
        queue.add(waiter)
        return waiter

    first, second, other = add("flood"), add("flood"), add("flood", TWO)
    quiet, third = add("quiet"), add("third", TWO)
    assert list(queue) == [first, second, other, quiet, third]
    order = []
    for address in (ONE, ONE, TWO, ONE, TWO, ONE):
        waiter = queue.first(address)
        order.append(waiter)
        if waiter is not None:
            queue.take(waiter)
    assert order == [first, quiet, third, second, other, None]
    gone = add("flood")
    gone.future.cancel()
    assert queue.first() is None and len(queue) == 1
    queue.remove(gone)
    queue.remove(gone)
    assert len(queue) == 0 and list(queue) == []


async def test_one_guest_never_has_everything() -> None:
    """Of four sessions a flood gets three, with hundreds of requests waiting; the next guest is served at once."""
    pool, opener = make(sessions_per_origin=4, guest_share=0.75)
    flood = [Asked(pool, guest=FLOOD) for _ in range(300)]
    await turn()
    assert len(opener.under_way) == 3
    for opening in [*opener.under_way]:
        opening.finish()
    await turn()
    assert pool.counts == (3, 0, 297)
    quiet = Asked(pool, guest=QUIET)
    await turn()
    opener.under_way[0].finish()
    await got(quiet)
    flood[0].release()
    await turn()
    assert [each.session is not None for each in flood[:5]] == [False, True, True, True, False]
    quiet.release()
    await turn()
    assert pool.counts == (3, 1, 296)
    for each in flood:
        if not each.over:
            each.leave()
    await turn()
    assert pool.counts == (3, 1, 0)


async def test_a_share_ends_with_its_time() -> None:
    """Who waits behind its own requests waits no longer than any other, and then hears that it is its own share."""
    pool, opener = make(sessions_per_origin=2, guest_share=0.5, queue_timeout_s=0.01)
    first, second = Asked(pool, guest=FLOOD), Asked(pool, guest=FLOOD)
    await turn()
    opener.under_way[0].finish()
    await got(first)
    assert second.task is not None
    await second.task
    assert isinstance(second.error, UpstreamError)
    assert (second.error.reason, "share" in second.error.message) == (Reason.UPSTREAM_BUSY, True)
    first.release()
    await turn()
    assert Asked(pool, guest=FLOOD).session is not None


async def test_a_failed_connection_gives_the_share_back() -> None:
    """As often as it fails, the next request of the guest may try."""
    pool, opener = make(sessions_per_origin=2, guest_share=0.5)
    asked = [Asked(pool, guest=FLOOD) for _ in range(3)]
    for each in asked:
        await turn()
        assert len(opener.under_way) == 1
        opener.under_way[0].fail(ConnectFailed("no"))
        await turn()
        assert isinstance(each.error, ConnectFailed)


async def test_a_guest_that_shares_with_nobody_has_all() -> None:
    """With isolation by guest there is nobody to leave something for."""
    pool, opener = make(sessions_per_origin=4, guest_share=0.5, isolation="guest")
    for _ in range(4):
        Asked(pool, guest=FLOOD)
    await turn()
    assert len(opener.under_way) == 4
    for opening in [*opener.under_way]:
        opening.finish()
    await turn()


async def test_groups_share_what_an_origin_takes() -> None:
    """Two groups, one session: whoever has it gives it up in turn, though its own group has more to ask."""
    pool, opener = make(sessions_per_origin=2, sessions_to_origin=1)
    flood = [Asked(pool, guest=Guest(f"f{number}", group="many")) for number in range(50)]
    await turn()
    opener.under_way[0].finish()
    await got(flood[0])
    few = [Asked(pool, guest=Guest("q", group="few")) for _ in range(2)]
    await turn()
    served, holder = [], flood[0]
    for _ in range(6):
        holder.release()
        await turn()
        for opening in [*opener.under_way]:
            opening.finish()
        await turn()
        assert len(opener.open) == 1
        (holder,) = [each for each in (*flood, *few) if each.session is not None]
        served.append(holder)
    assert [each in few for each in served[:4]].count(True) == 2
    assert sum(each in flood for each in served) == 4
    for each in flood:
        if not each.over:
            each.leave()
    await turn()


async def test_an_idle_session_of_another_group_makes_room() -> None:
    """What one group keeps warm does not keep another one out."""
    pool, opener = make(sessions_to_origin=1)
    first = Asked(pool, guest=Guest("a", group="one"))
    await turn()
    opener.under_way[0].finish()
    await got(first)
    first.release()
    second = Asked(pool, guest=Guest("b", group="two"))
    await turn()
    opener.under_way[0].finish()
    await got(second)
    await turn()
    assert len(opener.open) == 1


async def test_who_is_refused_or_let_through_is_counted_once() -> None:
    """Also if its request is taken back, or its time is over, at the very moment."""
    shares = Shares()
    assert shares.enter("a", 1)
    late = shares.wait("a")
    shares.refuse("a", late, "too late")
    shares.give_up("a", late)
    assert not shares.enter("a", 1) and shares.waiting == 0
    with pytest.raises(UpstreamError, match="too late"):
        await late
    early = shares.wait("a")
    shares.leave("a")
    shares.refuse("a", early, "too late")
    await early
    assert not shares.enter("a", 1)
    shares.give_up("a", early)
    assert not shares
