"""Budgets: floods are refused, what a long life or much traffic needs is not."""

from __future__ import annotations

import pytest

from seamgate.protocol import http2_guard
from seamgate.protocol.http2_frames import ConnectionFault
from seamgate.protocol.http2_guard import Budget, Guard, check_block


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_budget_refills_with_time() -> None:
    """A burst is permitted, more of it is not, a slow stream for ever is."""
    clock = Clock()
    budget = Budget("x", 10, 2.0, clock)
    for _ in range(10):
        budget.spend()
    with pytest.raises(ConnectionFault):
        budget.spend()
    budget = Budget("x", 10, 2.0, clock)
    for _ in range(10_000):
        clock.now += 0.5
        budget.spend()


def test_what_was_sent_pays_for_windows() -> None:
    """A guest that downloads much may open windows often; one that opens them by single bytes may not."""
    guard = Guard(Clock())
    for _ in range(20_000):
        guard.sent(16384)
        guard.windows.spend(4)
    with pytest.raises(ConnectionFault):
        for _ in range(20_000):
            guard.sent(1)
            guard.windows.spend()


def test_answers_may_not_wait_without_end() -> None:
    """Who asks for acknowledgements has to read them."""
    guard = Guard(Clock())
    with pytest.raises(ConnectionFault):
        for _ in range(http2_guard.ANSWERS_WAITING + 1):
            guard.answer()


def test_a_field_block_is_bounded_before_its_end() -> None:
    """CVE-2024-27316: neither frames nor bytes without end."""
    check_block(http2_guard.BLOCK_FRAMES, http2_guard.BLOCK_BYTES)
    for frames, size in ((http2_guard.BLOCK_FRAMES + 1, 0), (2, http2_guard.BLOCK_BYTES + 1)):
        with pytest.raises(ConnectionFault):
            check_block(frames, size)
