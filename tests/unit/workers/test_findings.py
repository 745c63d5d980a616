"""What guests found out about secrets is counted by all workers together, as one process counts it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamgate.credentials.probing import Findings, OwnFindings
from seamgate.workers.findings import MOST_TEXTS, FindingsTable
from seamgate.workers.memory import HELD, OPEN, SPARE_PLACES, SharedMemory

GUESTS, CREDENTIALS = ("a", "b"), ("a", "key")


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    """Memory of two workers."""
    made = SharedMemory.make(2, GUESTS, CREDENTIALS)
    yield made
    made.close()


def place(memory: SharedMemory, kind: str = "guest", key: str = "a") -> Findings:
    """Return a place as a process that maps the memory for itself sees it."""
    found = FindingsTable(SharedMemory(memory.fd, 2, GUESTS, CREDENTIALS)).get(kind, key)
    assert found is not None
    return found


def test_what_one_worker_held_tells_nothing_new_in_another(memory: SharedMemory) -> None:
    """One text is new once, the count is one, and whoever is ended is so in all of them."""
    one, other = place(memory), place(memory)
    assert (one.add(b"sk-l", counts=True), other.add(b"sk-l", counts=True)) == (True, False)
    assert other.add(b"sk-li", counts=True)
    assert (one.holds, other.holds, one.spent) == (2, 2, False)
    other.end()
    assert one.spent
    one.take_back([b"sk-l"])
    assert (other.holds, other.add(b"sk-l", counts=True), other.add(b"sk-li", counts=True)) == (1, True, False)


def test_places_are_apart(memory: SharedMemory) -> None:
    """A guest and a credential of the same name, two guests, and the other parts of the memory."""
    places = [("guest", "a"), ("guest", "b"), ("secret", "a"), ("secret", "key")]
    for number, at in enumerate(places):
        for text in range(number + 1):
            place(memory, *at).add(b"%d" % text, counts=True)
    assert [place(memory, *at).holds for at in places] == [1, 2, 3, 4]
    assert [memory.total(column) for column in (OPEN, HELD)] == [0, 0]
    assert [place(memory, *at).holds for at in (("guest", "key"), ("secret", "b"))] == [0, 0]


@pytest.mark.parametrize("kind", ["guest", "secret"])
def test_what_a_reload_added_counts_together_too(memory: SharedMemory, kind: str) -> None:
    """Whichever worker asks first, in whatever order; a guest and a credential of one name are two."""
    place(memory, kind, "others").add(b"sk-x", counts=True)
    one, other = place(memory, kind, "new"), place(memory, kind, "new")
    assert (one.add(b"sk-l", counts=True), other.add(b"sk-l", counts=True)) == (True, False)
    assert other.add(b"sk-li", counts=True)
    other.end()
    assert (one.holds, one.spent) == (2, True)
    twin = place(memory, "secret" if kind == "guest" else "guest", "new")
    assert (twin.holds, twin.spent, place(memory, kind, "others").holds) == (0, False, 1)
    assert [place(memory, kind, key).holds for key in GUESTS] == [0, 0]


def test_more_names_than_there_is_room_for_are_counted_by_each_worker(memory: SharedMemory) -> None:
    """Those that have a place keep it; the next one is told that there is none."""
    table = FindingsTable(memory)
    first = table.get("guest", "new-0")
    assert first is not None
    first.add(b"sk-l", counts=True)
    assert all(table.get("guest", f"new-{number}") for number in range(SPARE_PLACES))
    assert table.get("guest", "one-more") is None
    assert place(memory, "guest", "new-0").holds == 1
    assert place(memory, "guest", "a").add(b"sk-l", counts=True)


def test_a_full_place_counts_too_much_rather_than_too_little(memory: SharedMemory) -> None:
    """What is not kept is new each time."""
    found = place(memory)
    for number in range(MOST_TEXTS):
        assert found.add(b"%d" % number, counts=False)
    assert not found.add(b"0", counts=True)
    assert [found.add(b"more", counts=True) for _ in range(2)] == [True, True]
    assert found.holds == 2


def test_no_text_stands_in_the_memory(memory: SharedMemory) -> None:
    """Beginnings of secrets are kept as hashes, by a key that no other gateway has."""
    place(memory).add(b"sk-live-4f9a7c1b", counts=True)
    size = os.fstat(memory.fd).st_size
    assert b"sk-live" not in os.pread(memory.fd, 2 << 20, size - (2 << 20))
    other = SharedMemory.make(2, GUESTS, CREDENTIALS)
    assert other.findings_key != memory.findings_key != bytes(16)
    other.close()


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from([b"a", b"b", b"c", b"d"]), st.booleans()), max_size=30)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_it_counts_as_one_process_does(steps: list[tuple[bool, bytes, bool]]) -> None:
    """Whatever is added and taken back, by whichever worker."""
    memory = SharedMemory.make(2, GUESTS)
    own, workers = OwnFindings(), [place_of(memory), place_of(memory)]
    for number, (taken_back, text, counts) in enumerate(steps):
        shared = workers[number % 2]
        if taken_back and own.holds:
            own.take_back([text])
            shared.take_back([text])
        else:
            assert own.add(text, counts=counts) == shared.add(text, counts=counts)
        assert own.holds == shared.holds
    memory.close()


def place_of(memory: SharedMemory) -> Findings:
    """Return the place of a guest."""
    found = FindingsTable(memory).get("guest", "a")
    assert found is not None
    return found
