"""What workers count together: each its own part, all held to one limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seamgate.workers.memory import HELD, OPEN, SharedCount, SharedHeldBytes, SharedMemory


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    """Memory for three workers and two guests."""
    made = SharedMemory.make(3, ["a", "b"])
    yield made
    made.close()


def test_connections_are_admitted_up_to_the_limit_of_all(memory: SharedMemory) -> None:
    """One worker's connections leave less for another; what it gives back, another may have."""
    one, other, view = SharedCount(memory, 0, OPEN), SharedCount(memory, 2, OPEN), SharedCount(memory, None, OPEN)
    assert [one.admit(here, 3) for here in range(2)] == [True, True]
    assert other.admit(0, 3)
    assert not other.admit(1, 3)
    assert not one.admit(2, 3)
    assert (one.elsewhere, other.elsewhere, view.elsewhere) == (1, 2, 3)
    one.tell(1)
    assert other.admit(1, 3)
    assert view.elsewhere == 3


def test_held_bytes_are_one_budget(memory: SharedMemory) -> None:
    """No guest gets more than half of it over all workers, and all guests no more than all of it."""
    one, other = SharedHeldBytes(memory, 0, 100), SharedHeldBytes(memory, 1, 100)
    assert one.take("a", 30)
    assert not other.take("a", 21)
    assert other.take("a", 20)
    assert one.take("b", 50)
    assert not other.take("b", 1)
    assert not other.take("stranger", 1)
    one.give_back("b", 50)
    assert other.take("stranger", 50)
    assert memory.total(HELD) == 100


def test_a_dead_worker_has_nothing(memory: SharedMemory) -> None:
    """What it held is free again, and no other worker's part is touched."""
    one, other = SharedHeldBytes(memory, 0, 100), SharedHeldBytes(memory, 1, 100)
    assert one.take("a", 40)
    assert other.take("b", 30)
    memory.clear_worker(0)
    assert memory.total(HELD) == 30
    assert other.take("a", 50)


def test_nobody_gives_back_more_than_it_has(memory: SharedMemory) -> None:
    """A part never falls below nothing, or it would count as all there is."""
    one = SharedHeldBytes(memory, 0, 100)
    one.give_back("a", 10)
    assert memory.total(HELD) == 0
