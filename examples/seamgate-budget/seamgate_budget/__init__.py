"""A budget of requests for each guest.

    plugins:
      - builtin
      - {name: budget, options: {requests: 1000}}

Two hooks: `judge_request` denies a guest that has used its budget up, `request_done` counts what was answered. A denied
request costs nothing. The count lives as long as the configuration's generation: a reload starts it again. Several
workers would count each for itself and let through more, so it refuses to be loaded there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from seamgate import Reason, Request, SeamgateError, Verdict, deny, hookimpl


class BudgetPlugin:
    """Counts each guest's requests and denies what is beyond the budget."""

    def __init__(self, context: Any) -> None:
        """Read the options; a gateway does not start with ones that make no sense."""
        options = dict(context.options)
        self._requests = options.pop("requests", 1000)
        if options or not isinstance(self._requests, int) or self._requests < 1:
            raise SeamgateError("plugin budget: its one option is `requests`, a number above 0")
        if context.config.workers > 1:
            raise SeamgateError("plugin budget counts in one process: run the gateway with `workers: 1`")
        self._spent: Counter[str] = Counter()

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        """Deny once the budget is spent. None is "no opinion": the policy decides."""
        if self._spent[request.guest.id] < self._requests:
            return None
        return deny(
            f"guest {request.guest.id} has used its budget of {self._requests} requests",
            reason=Reason.RATE_LIMITED,
            rule="plugin:budget",
        )

    @hookimpl
    def request_done(self, record: Any) -> None:
        """Count what was allowed: this is the request's terminal record, as it stands in the journal."""
        if record.kind == "request" and record.verdict == "allow" and record.guest is not None:
            self._spent[record.guest.id] += 1
