"""Rate limits: never more than the limit in any window, once per request, in bounded memory."""

from __future__ import annotations

import random

from seamgate.policy.rates import EXACT, SWEEP_AT, RateCounter, wait_text
from seamgate.policy.selection import Rate

TWO = Rate("r", 2, 60.0)


def test_the_window_slides() -> None:
    """A place becomes free exactly when the request that took it is a window old."""
    counter = RateCounter()
    assert counter.admit("g", "1", [TWO], 0.0) is None
    assert counter.admit("g", "2", [TWO], 30.0) is None
    assert counter.admit("g", "3", [TWO], 59.0) == (TWO, 1.0)
    assert counter.admit("g", "4", [TWO], 60.0) is None
    assert counter.admit("g", "5", [TWO], 61.0) == (TWO, 29.0)


def test_guests_and_rules_have_windows_of_their_own() -> None:
    """One guest's haste is not another's, nor one rule's another's."""
    counter, other = RateCounter(), Rate("s", 1, 60.0)
    assert counter.admit("a", "1", [Rate("r", 1, 60.0)], 0.0) is None
    assert counter.admit("b", "2", [Rate("r", 1, 60.0)], 0.0) is None
    assert counter.admit("a", "3", [other], 0.0) is None
    assert counter.admit("a", "4", [other], 0.0) is not None


def test_a_request_counts_once_however_often_it_is_judged() -> None:
    """Head, body and amendment are one request; a rule that comes in later counts it too, once."""
    counter = RateCounter()
    for _ in range(5):
        assert counter.admit("g", "1", [TWO], 0.0) is None
    assert counter.admit("g", "2", [TWO], 0.0) is None
    assert counter.admit("g", "2", [TWO], 0.0) is None
    assert counter.admit("g", "3", [TWO], 0.0) is not None


def test_a_refused_request_counts_nowhere() -> None:
    """With two limits, the one that has room is not used up by refusals of the other."""
    counter, wide, narrow = RateCounter(), Rate("wide", 3, 60.0), Rate("narrow", 1, 60.0)
    assert counter.admit("g", "1", [wide, narrow], 0.0) is None
    for number in range(10):
        assert counter.admit("g", f"x{number}", [wide, narrow], 1.0) == (narrow, 59.0)
    assert counter.admit("g", "2", [wide], 2.0) is None
    assert counter.admit("g", "3", [wide], 2.0) is None
    assert counter.admit("g", "4", [wide], 2.0) is not None


def test_no_window_ever_holds_more_than_the_limit() -> None:
    """Also beyond what is remembered one by one, and with little lost to that."""
    rate, counter, source = Rate("r", 1000, 60.0), RateCounter(), random.Random(7)
    now, admitted = 0.0, []
    for number in range(8000):
        now += source.random() * 0.03
        if counter.admit("g", str(number), [rate], now) is None:
            admitted.append(now)
    for index, at in enumerate(admitted):
        if index >= 1000:
            assert at - admitted[index - 1000] >= 60.0
    assert len(admitted) >= 0.97 * 1000 * (now / 60.0)


def test_a_window_remembers_a_bounded_number_of_times() -> None:
    """A limit of a million a day costs no more memory than one of a hundred."""
    rate, counter = Rate("r", 1_000_000, 86400.0), RateCounter()
    for number in range(20_000):
        counter.admit("g", str(number), [rate], number * 4.0)
    assert len(counter._windows["g", rate].entries) <= 2 * EXACT + 2


def test_windows_of_guests_that_are_gone_are_dropped() -> None:
    """Counters do not grow with the number of guests that ever were."""
    counter = RateCounter()
    for number in range(SWEEP_AT + 10):
        counter.admit(f"g{number}", str(number), [TWO], float(number))
    assert len(counter._windows) < 100


def test_a_clock_that_goes_back_admits_no_more() -> None:
    """Time standing still or going back never frees a place."""
    counter = RateCounter()
    assert counter.admit("g", "1", [TWO], 100.0) is None
    assert counter.admit("g", "2", [TWO], 50.0) is None
    assert counter.admit("g", "3", [TWO], 10.0) is not None


def test_waits_are_rounded_up() -> None:
    """Who waits as long as was said is not refused again."""
    assert [wait_text(each) for each in (0.0, 0.2, 59.1, 119.9, 121.0)] == ["1 s", "1 s", "60 s", "2 min", "3 min"]
