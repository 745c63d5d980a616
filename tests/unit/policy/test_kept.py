"""What is kept for guests: each drives out its own, what is asked for stays, and there is a limit for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamgate.flow import Guest
from seamgate.policy.kept import Kept

GUESTS = [Guest(str(number)) for number in range(6)]
MOST = 32


def ask(kept: Kept, guest: Guest, key: int) -> bool:
    """Ask as the evaluator does; return whether it was kept."""
    found = kept.get(guest, key)
    if found is None:
        kept.put(guest, key, (guest, key))
    else:
        assert found == (guest, key)
    return found is not None


@given(st.lists(st.tuples(st.sampled_from(GUESTS), st.integers(0, 40)), max_size=400))
def test_it_answers_with_what_was_put_and_never_holds_more(asked: list[tuple[Guest, int]]) -> None:
    """Whoever asks for whatever: nobody is given another's, and both generations together stay within the limit."""
    kept = Kept(MOST)
    for guest, key in asked:
        ask(kept, guest, key)
        assert ask(kept, guest, key)
        assert len(kept) <= MOST
        assert len(kept) == sum(len(mine) for each in (kept._young, kept._old) for mine in each.values())


def test_a_flood_drives_out_its_own() -> None:
    """The oldest first; another's entry stays though it is not asked for."""
    kept = Kept(MOST)
    ask(kept, GUESTS[0], 0)
    for key in range(1000):
        assert not ask(kept, GUESTS[1], key)
    assert [key for key in range(1000) if kept.get(GUESTS[1], key)] == [996, 997, 998, 999]
    assert ask(kept, GUESTS[0], 0)


def test_what_is_asked_for_outlives_floods_of_all_others() -> None:
    """It is asked for once in a generation of theirs, of 16; what nobody asks for goes, and so do guests."""
    kept = Kept(MOST)
    ask(kept, GUESTS[0], 0)
    ask(kept, GUESTS[0], 1)
    for key in range(1000):
        ask(kept, GUESTS[1 + key % 5], key)
        if key % 8 == 0:
            assert ask(kept, GUESTS[0], 0)
    assert not ask(kept, GUESTS[0], 1)
    kept.clear()
    assert len(kept) == 0 and not ask(kept, GUESTS[0], 0)
