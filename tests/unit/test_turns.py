"""A share of the loop's turns: what is counted, who waits, in which order they go on, and what later turns pay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from seamgate.turns import BUDGET, MOST_SHARES, Share, Shares


def _noting(told: list[str], name: str) -> Callable[[], None]:
    return lambda: told.append(name)


async def _turns() -> None:
    """Let the loop take some turns."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_takes_little_is_nobodys_turn() -> None:
    """An ordinary request is neither counted nor held up: there is not even a loop here to ask for a turn."""
    share = Share()
    may = share.allowance
    assert not share.settle(may, may - BUDGET.least, lambda: None)
    assert (share.left, share.idle) == (BUDGET.units, True)


async def test_who_is_behind_goes_on_in_later_turns_in_order() -> None:
    """One connection after the other, each when its turn comes, and none within the turn that it used up."""
    share, told = Share(), list[str]()
    for name in ("a", "b"):
        may = share.allowance
        assert share.settle(may, may - BUDGET.units, _noting(told, name))
    assert told == []
    await _turns()
    assert told == ["a", "b"]


async def test_one_uses_the_turn_up_and_the_next_waits() -> None:
    """What the first does with the turn leaves nothing for the second, which has the one after it."""
    share, told = Share(), list[str]()

    def first() -> None:
        told.append("first")
        share.spend(BUDGET.units)

    share.wait(first)
    share.wait(_noting(told, "second"))
    while len(told) < 2:
        seen = len(told)
        await asyncio.sleep(0)
        assert len(told) - seen < 2
    assert told == ["first", "second"]


async def test_more_than_a_turn_is_paid_by_later_ones() -> None:
    """What took ten turns at once leaves ten to all others before the guest has one again."""
    share, told = Share(), list[str]()
    share.spend(BUDGET.units * 10)
    share.wait(_noting(told, "paid"))
    for _ in range(9):
        await asyncio.sleep(0)
        assert told == []
    await _turns()
    assert (told, share.left) == (["paid"], BUDGET.units)


async def test_a_busy_guest_takes_nothing_from_another() -> None:
    """Each has a share of its own; what one owes holds nobody else up."""
    shares = Shares()
    busy, other = shares.of("busy"), shares.of("other")
    busy.spend(BUDGET.units * 100)
    assert other.allowance == BUDGET.units
    assert shares.of("busy") is busy


async def test_shares_that_nobody_uses_make_room() -> None:
    """However many guests come and go, no more are kept; one that owes something is not forgotten."""
    shares = Shares()
    busy = shares.of("busy")
    busy.spend(BUDGET.units * 2)
    for number in range(MOST_SHARES * 2):
        shares.of(f"g{number}")
    assert shares.of("busy") is busy
    assert len(shares._shares) <= MOST_SHARES


async def test_one_that_fails_in_its_turn_costs_nobody_else_theirs() -> None:
    """The loop reports it; those behind it still go on."""
    share, told, reported = Share(), list[str](), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fails() -> None:
        raise ValueError("a fault")

    share.wait(fails)
    share.wait(_noting(told, "behind it"))
    await _turns()
    assert told == ["behind it"]
    loop.set_exception_handler(None)
    assert len(reported) == 1
