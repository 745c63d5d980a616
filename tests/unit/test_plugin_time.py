"""What slow calls of plugins cost on behalf of each guest: counted, given back, refused beyond it. Fake clocks."""

from __future__ import annotations

import pytest

from seamgate.errors import PluginError, Reason
from seamgate.plugin_time import LONGEST_REFUSAL_S, RETURN_RATE, PluginTime

BUDGET_S = 0.25


class Machine:
    """A wall clock and a processor clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.used = 5.0
        self.time = PluginTime(2.0, clock=lambda: self.now, processor=lambda: self.used)

    def call(self, guest: str, spent_s: float, used_s: float | None = None) -> None:
        """Have a call take so long, on the wall and of the processor."""
        self.now += spent_s
        self.used += spent_s if used_s is None else used_s
        self.time.charge(guest, spent_s, BUDGET_S)

    def refused(self, guest: str) -> bool:
        """Whether the guest is refused now."""
        return self.time.refusal(guest) is not None


def test_an_accident_is_none_and_the_ninth_in_a_row_is() -> None:
    """Eight overruns fit, as time is given back; then the guest is refused, with how long, and no other one."""
    machine = Machine()
    for _ in range(8):
        assert not machine.refused("bad")
        machine.call("bad", 0.26)
    machine.call("bad", 0.26)
    refusal = machine.time.refusal("bad")
    assert refusal is not None and refusal.reason is Reason.PLUGIN_TIME_SPENT
    assert refusal.retry_after_s == 2 and "try again in 2 s" in refusal.message
    assert not machine.refused("good")


def test_a_guest_that_goes_on_has_a_tenth() -> None:
    """Over an hour of asking at every chance, calls that overrun get a tenth of the time and what an account holds."""
    machine = Machine()
    spent = 0.0
    start = machine.now
    while machine.now < start + 3600:
        if machine.refused("bad"):
            machine.now += 0.1
        else:
            machine.call("bad", 0.3)
            spent += 0.3
    assert 0.09 * 3600 < spent < 0.1 * 3600 + 2.0 + 0.6


def test_calls_below_the_budget_count_too() -> None:
    """One that takes a fifth of the budget each time holds up everybody as well."""
    machine = Machine()
    count = 0
    while not machine.refused("bad"):
        machine.call("bad", 0.05)
        count += 1
    assert 40 < count < 50


def test_a_machine_that_is_busy_elsewhere_is_no_guests_fault() -> None:
    """Calls that wait for a processor cost what they had of it, together at most what this thread had."""
    machine = Machine()
    for _ in range(10_000):
        machine.call("good", 0.2, used_s=0.002)
    assert not machine.refused("good")


def test_a_call_that_overran_costs_its_budget_without_a_processor_too() -> None:
    """One that waits for a disk holds up everybody as long."""
    machine = Machine()
    for _ in range(9):
        machine.call("bad", 0.3, used_s=0.0)
    assert machine.refused("bad")


def test_one_endless_call_is_forgiven_in_time() -> None:
    """The longest refusal is as documented."""
    machine = Machine()
    machine.call("unlucky", 90_000.0)
    refusal = machine.time.refusal("unlucky")
    assert refusal is not None and refusal.retry_after_s == LONGEST_REFUSAL_S
    machine.now += LONGEST_REFUSAL_S + 0.01
    assert not machine.refused("unlucky")
    machine.now += 2.0 / RETURN_RATE
    assert not machine.refused("unlucky")
    assert not machine.time.accounts


def test_a_stream_is_ended_by_the_call_that_was_too_much() -> None:
    """A body's slow piece raises once the account is full; one that overran is denied as that, by who calls."""
    machine = Machine()
    toll = machine.time.of("bad")
    for _ in range(19):
        machine.used += 0.1
        toll.charge(0.1, BUDGET_S)
    machine.used += 0.3
    toll.charge(0.3, BUDGET_S)
    machine.used += 0.1
    with pytest.raises(PluginError, match="try again in") as caught:
        toll.charge(0.1, BUDGET_S)
    assert caught.value.reason is Reason.PLUGIN_TIME_SPENT
