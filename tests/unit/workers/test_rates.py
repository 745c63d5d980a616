"""Rate limits of several processes: the same answers as one counter gives, and never one more, whoever asks or dies."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.policy.rates import RateCounter
from seamgate.policy.selection import Rate
from seamgate.workers.memory import GROUP_SLOTS, SLOT_PAIRS, SharedMemory, WindowTable
from seamgate.workers.rates import SharedRates, _place

TWO = Rate("r", 2, 60.0)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    """Memory for two workers."""
    made = SharedMemory.make(2, [])
    yield made
    made.close()


@pytest.fixture
def table(memory: SharedMemory) -> WindowTable:
    """Its windows of the first generation."""
    return memory.windows


def test_what_one_counts_the_other_has_counted(table: WindowTable) -> None:
    """Two views of one memory are one counter."""
    one, other = SharedRates(table), SharedRates(table)
    assert one.admit("g", "1", [TWO], 0.0) is None
    assert other.admit("g", "2", [TWO], 30.0) is None
    assert one.admit("g", "3", [TWO], 59.0) == (TWO, 1.0)
    assert other.admit("g", "4", [TWO], 60.0) is None
    assert one.admit("g", "5", [TWO], 61.0) == (TWO, 29.0)
    assert one.admit("h", "6", [TWO], 61.0) is None


_RATES = [Rate("a", 1, 10.0), Rate("b", 3, 7.0), Rate("c", 200, 60.0), Rate("d", 140, 5.0)]
_STEP = st.tuples(
    st.sampled_from([0.0, 0.01, 0.3, 2.0, 11.0]),
    st.sampled_from(["g", "h"]),
    st.integers(0, 40),
    st.lists(st.sampled_from(_RATES), min_size=1, max_size=3, unique=True),
    st.integers(1, 60),
)


@given(st.lists(_STEP, max_size=30))
def test_it_admits_what_one_counter_admits(steps: list[tuple[float, str, int, list[Rate], int]]) -> None:
    """Any order of guests, rules, pauses and repeated requests gives the answers of the counter of one process."""
    memory = SharedMemory.make(1, [])
    counter, shared, now, number = RateCounter(), SharedRates(memory.windows), 1e9, 0
    for pause, guest, again, rates, times in steps:
        now += pause
        for _ in range(times):
            number += 1
            now += 0.001
            request = f"{number - again}" if again < 3 else f"{number}"
            expected = counter.admit(guest, request, rates, now)
            found = shared.admit(guest, request, rates, now)
            assert (found is None) == (expected is None)
            if expected is not None and found is not None:
                assert found[0] == expected[0]
                assert found[1] == pytest.approx(expected[1])
    memory.close()


def test_no_window_ever_holds_more_than_the_limit(table: WindowTable) -> None:
    """Also beyond what is remembered one by one; a window never needs more room than it has."""
    rate, source, now, admitted = Rate("r", 1000, 60.0), random.Random(7), 0.0, []
    shared = SharedRates(table)
    for number in range(8000):
        now += source.random() * 0.03
        if shared.admit("g", str(number), [rate], now) is None:
            admitted.append(now)
    for start in admitted:
        assert sum(start <= time < start + 60.0 for time in admitted) <= 1000
    assert len(admitted) > 1900
    assert SLOT_PAIRS > 2 * 128 + 1


def test_what_is_counted_is_of_a_rule_with_its_limit(memory: SharedMemory) -> None:
    """The same rule goes on counting over a reload; with another limit it begins anew."""
    shared, rate, other = SharedRates(memory.windows), Rate("r", 1, 60.0), Rate("r", 1, 30.0)
    assert shared.admit("g", "1", [rate], 0.0) is None
    assert shared.admit("g", "2", [other], 1.0) is None
    assert shared.admit("g", "3", [rate], 2.0) == (rate, 58.0)
    assert shared.admit("g", "1", [rate], 3.0) is None  # counted already


def test_a_full_group_admits_nothing_new_until_a_window_ends(table: WindowTable) -> None:
    """More windows than there is room for do not lift a limit; those that are over make room."""
    rate = Rate("r", 1, 60.0)
    group = _place("g", rate)[0]
    mates = [name for name in (f"g{n}" for n in range(200_000)) if _place(name, rate)[0] == group]
    shared = SharedRates(table)
    assert len(mates) > GROUP_SLOTS
    for number, guest in enumerate(mates[:GROUP_SLOTS]):
        assert shared.admit(guest, str(number), [rate], 100.0 + number / 2) is None
    assert shared.admit("g", "x", [rate], 159.0) == (rate, 60.0)
    assert shared.admit("g", "x", [rate], 160.0) is None
    assert shared.admit(mates[1], "y", [rate], 160.2) is not None


_WORKER = """
import os, sys
from seamgate.policy.selection import Rate
from seamgate.workers.memory import SharedMemory
from seamgate.workers.rates import SharedRates

fd, name, times = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
shared = SharedRates(SharedMemory(fd, 2, []).windows)
rates = [Rate("many", 5000, 1e6), Rate("few", 3000, 1e6)]
os.write(1, b"r")
os.read(0, 1)
admitted = sum(shared.admit("g", f"{name}-{n}", rates, 1e9 + n * 1e-6) is None for n in range(times))
print(admitted)
"""


def _start(memory: SharedMemory, name: str, times: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(memory.fd), name, str(times)],
        pass_fds=[memory.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(1) == b"r"
    return process


def test_processes_count_to_the_limit_and_not_further(memory: SharedMemory) -> None:
    """Two processes that ask as fast as they can are admitted exactly as often as the limit says."""
    processes = [_start(memory, name, 2500) for name in ("a", "b")]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"g")
        process.stdin.flush()
    counts = [int(process.communicate(timeout=100)[0]) for process in processes]
    assert sum(counts) == 3000, counts
    assert all(0 < count <= 2500 for count in counts)


def test_a_process_that_is_killed_holds_no_lock(memory: SharedMemory) -> None:
    """Whatever it was doing, the others go on, and the limit holds."""
    killed = _start(memory, "a", 1_000_000_000)
    assert killed.stdin is not None
    killed.stdin.write(b"g")
    killed.stdin.flush()
    shared = SharedRates(memory.windows)
    few = Rate("few", 3000, 1e6)
    for number in range(200):
        shared.admit("g", f"b-{number}", [few], 1e9)
    killed.kill()
    killed.communicate(timeout=100)
    for number in range(200, 3300):
        shared.admit("g", f"b-{number}", [few], 1e9 + 1)
    assert shared.admit("g", "last", [few], 1e9 + 1) is not None
