"""What slow calls of plugins cost the gateway on behalf of each guest, and when that was too much.

A plugin runs where all guests' requests do, so a guest whose requests keep one busy (a body that an expression chokes
on, again and again) makes everybody wait, though each call for itself is denied when it overruns. So calls that take a
tenth of the budget or more are put on the account of the guest whose request it was. Time goes out of an account as it
passes, a tenth of it; a guest whose account is full is refused before any plugin is asked, until it is not.

What is put there is processor time, at most what this thread had since the last such call: a machine that is busy
elsewhere makes calls slow too, and no guest pays for that. A call that overran counts with its budget at least: it may
have waited instead, for a disk or a lock, which holds up everybody just as well.

One per gateway process, handed from one generation's pipeline to the next. Called by the pipeline and the filters, for
slow calls only; a guest without any costs a truth test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

import structlog

from seamgate.errors import PluginError, Reason
from seamgate.verdict import Effect, Verdict

log = structlog.get_logger("seamgate.pipeline")

SLOW_PART: Final = 0.1
"""Calls that take this part of the budget (25 ms of 250) are slow: 100 times what the built-in plugins take."""
RETURN_RATE: Final = 0.1
"""So much of each second goes out of an account: a guest that does not stop has a tenth of a processor for it."""
LONGEST_REFUSAL_S: Final = 300.0
"""However long one call took: a machine that stood still is nobody's fault for longer than that."""


class PluginTime:
    """The accounts of all guests, by their ids. See the module.

    Args:
        most_s: what an account holds.
        clock: monotonic seconds.
        processor: seconds of processor time of this thread.

    Attributes:
        accounts: of guests on whose account there was anything lately: seconds, and when that was so. Without any,
            nobody need be asked for.
    """

    def __init__(
        self,
        most_s: float,
        *,
        clock: Callable[[], float] = monotonic,
        processor: Callable[[], float] = thread_time,
    ) -> None:
        self.most_s = most_s
        self._clock = clock
        self._processor = processor
        self._counted_s = processor()
        self.accounts: dict[str, tuple[float, float]] = {}
        self._refused: set[str] = set()

    def charge(self, guest: str, spent_s: float, budget_s: float) -> None:
        """Put a slow call on a guest's account.

        Args:
            guest: its id.
            spent_s: wall time that the call took.
            budget_s: that it may take.
        """
        processor_s = self._processor()
        used_s, self._counted_s = processor_s - self._counted_s, processor_s
        cost_s = max(min(spent_s, used_s), budget_s if spent_s > budget_s else 0.0)
        highest_s = self.most_s + LONGEST_REFUSAL_S * RETURN_RATE
        self.accounts[guest] = min(self._on_account(guest) + cost_s, highest_s), self._clock()
        if guest not in self._refused and self._on_account(guest) >= self.most_s:
            self._refused.add(guest)
            log.warning(
                "a guest keeps plugins busy: it is refused for a while", guest=guest, wait_s=self._wait_s(guest)
            )

    def refusal(self, guest: str) -> Verdict | None:
        """Return why nothing is done for this guest now, or None."""
        if guest not in self.accounts:
            return None
        if self._on_account(guest) < self.most_s:
            self._refused.discard(guest)
            if not self._on_account(guest):
                del self.accounts[guest]
            return None
        wait_s = self._wait_s(guest)
        message = f"requests of this guest kept plugins of the gateway busy for too long: try again in {wait_s} s"
        return Verdict(Effect.DENY, Reason.PLUGIN_TIME_SPENT, "", message, retry_after_s=wait_s)

    def _on_account(self, guest: str) -> float:
        seconds, at = self.accounts.get(guest, (0.0, 0.0))
        return max(0.0, seconds - (self._clock() - at) * RETURN_RATE) if seconds else 0.0

    def _wait_s(self, guest: str) -> int:
        return max(1, math.ceil((self._on_account(guest) - self.most_s) / RETURN_RATE))

    def of(self, guest: str) -> Toll:
        """Return the account of a guest, for what reads its bodies."""
        return Toll(self, guest)


class Toll:
    """The account of one guest."""

    __slots__ = ("_guest", "_time")

    def __init__(self, time: PluginTime, guest: str) -> None:
        self._time = time
        self._guest = guest

    def charge(self, spent_s: float, budget_s: float) -> None:
        """Put a slow call on it; one that did not overrun may still have been one too many.

        Raises:
            PluginError: with PLUGIN_TIME_SPENT: the account is full.
        """
        self._time.charge(self._guest, spent_s, budget_s)
        refusal = self._time.refusal(self._guest)
        if refusal is not None and spent_s <= budget_s:
            raise PluginError(refusal.message, reason=Reason.PLUGIN_TIME_SPENT)
