"""Judges each request by the policies and counts it once it is allowed: what the policy plugin's hooks do.

The verdicts are those of `seamgate.policy.evaluation`; what is added here is memory: rate limits are counted per guest
and rule, once per request however often its phases are judged. Called once a request, so a room of its own that can be
compiled. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from seamgate.errors import Reason
from seamgate.flow import Guest, Request, Target
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.rates import Rates, wait_text
from seamgate.verdict import Effect, Verdict


class Judge:
    """One generation's evaluator, with its clock (Unix seconds) and what counts requests against rate limits."""

    __slots__ = ("_clock", "evaluator", "rates")

    def __init__(self, evaluator: Evaluator, clock: Callable[[], float], rates: Rates) -> None:
        self.evaluator = evaluator
        self.rates = rates
        self._clock = clock

    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        """Defer a tunnel if any of its requests may be allowed, else deny it."""
        return self.evaluator.judge_connect(guest, target, self._clock())

    def judge_request(self, request: Request) -> Verdict:
        """Judge a request with what is known of it, and count it once it is allowed."""
        now = self._clock()
        decision = self.evaluator.decide(request, now)
        if not decision.rates:
            return decision.verdict
        full = self.rates.admit(request.guest.id, request.id, decision.rates, now)
        if full is None:
            return decision.verdict
        rate, wait_s = full
        message = (
            f"Rule {rate.rule} allows {rate.count} requests in {rate.window_s:g} s; try again in {wait_text(wait_s)}."
        )
        return Verdict(Effect.DENY, Reason.RATE_LIMITED, rate.rule, message, retry_after_s=max(1, math.ceil(wait_s)))
