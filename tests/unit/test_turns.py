"""A share of the loop's turns: what is counted, who waits, in which order they go on, and what later turns pay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from seamgate.turns import BUDGET, MOST_SHARES, Share, Shares, Turnstile


def _noting(told: list[str], name: str) -> Callable[[], None]:
    return lambda: told.append(name)


async def _turns() -> None:
    """Let the loop take some turns."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_takes_little_is_counted_and_costs_no_turn() -> None:
    """Up to half of a share nobody has to give it back: there is not even a loop here to ask for a turn."""
    share = Share()
    for _ in range(3):
        may = share.allowance
        assert not share.settle(may, may - BUDGET.least, lambda: None)
    assert (share.left, share.idle) == (BUDGET.units - 3 * BUDGET.least, True)


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


async def test_small_reads_use_a_turn_up_and_the_rest_wait_in_their_order() -> None:
    """However little each of a guest's connections reads: together they have no more than its share of a turn."""
    share, told = Share(), list[str]()
    each = BUDGET.units // 16

    def read(name: str) -> None:
        may = share.allowance
        if not share.settle(may, max(0, may - each), lambda: read(name)):
            told.append(name)

    for number in range(40):
        read(f"c{number}")
    turns = [list(told)]
    while len(told) < 40:
        await asyncio.sleep(0)
        turns.append(told[sum(map(len, turns)) :])
    assert told == [f"c{number}" for number in range(40)]
    assert [len(turn) for turn in turns if turn] == [16, 16, 8]


async def test_nothing_is_read_once_a_share_is_used_up() -> None:
    """Not even an ordinary request: its connection has none of this turn."""
    share = Share()
    share.spend(BUDGET.units - 1)
    assert share.allowance == BUDGET.least
    share.spend(BUDGET.least)
    assert share.allowance == 0
    await _turns()


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


class _Transport:
    """What a turnstile uses of one."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.closing = False

    def pause_reading(self) -> None:
        self.did.append("pause")

    def resume_reading(self) -> None:
        self.did.append("resume")

    def is_closing(self) -> bool:
        return self.closing

    def get_protocol(self) -> Any:
        return self

    def eof_received(self) -> bool:
        self.did.append("eof")
        return False

    def close(self) -> None:
        self.did.append("close")


async def test_a_turnstile_keeps_what_was_read_until_its_turn() -> None:
    """In one piece, with reading stopped meanwhile, and the end behind it; then it keeps nothing any more."""
    share, transport, turnstile = Share(), _Transport(), Turnstile()
    take = transport.did.append
    assert not turnstile.keeps(share, transport, b"free", lambda data: take(repr(data)))
    assert not turnstile.keeps_end()
    share.spend(BUDGET.units)
    assert turnstile.keeps(share, transport, b"one ", lambda data: take(repr(data)))
    assert turnstile.keeps(share, transport, b"two", lambda data: take(repr(data)))
    assert turnstile.keeps_end()
    assert transport.did == ["pause"]
    await _turns()
    assert transport.did == ["pause", "resume", "b'one two'", "eof", "close"]
    assert not turnstile.keeps(share, transport, b"free", lambda data: take(repr(data)))


async def test_a_turnstile_forgets_a_connection_that_is_gone() -> None:
    """Nobody is given what it had sent."""
    share, transport, turnstile = Share(), _Transport(), Turnstile()
    share.spend(BUDGET.units)
    assert turnstile.keeps(share, transport, b"x", lambda data: transport.did.append("taken"))
    transport.closing = True
    await _turns()
    assert transport.did == ["pause"]


def test_strangers_have_a_share_for_each_place_they_come_from() -> None:
    """Who has not said who it is waits behind those of the same address, and behind nobody else."""

    class At(_Transport):
        def __init__(self, peer: object) -> None:
            super().__init__()
            self.peer = peer

        def get_extra_info(self, name: str) -> object:
            return self.peer if name == "peername" else None

    shares = Shares()
    here = shares.of_stranger(At(("10.0.0.1", 1)))
    assert shares.of_stranger(At(("10.0.0.1", 2))) is here
    assert shares.of_stranger(At(("10.0.0.2", 1))) is not here
    assert shares.of_stranger(At("")) is shares.of_stranger(At(None))
    assert shares.of("10.0.0.1") is not here


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
