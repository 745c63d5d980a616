"""Enforces the policies: the plugin behind `judge_connect` and `judge_request`.

What judges, and counts against rate limits, is `seamgate.policy.judging`. Reads the policy files once, at construction;
a reload makes a new plugin. Judging does no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from seamgate import Guest, Request, Target, Verdict, hookimpl
from seamgate.collector import without_collector
from seamgate.errors import ConfigError
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.files import read_policies
from seamgate.policy.judging import Judge
from seamgate.policy.model import Policy, Rule
from seamgate.policy.rates import RateCounter, Rates
from seamgate.registry import PluginContext


class _Ready(NamedTuple):
    """Policies, ready to judge, and the names of credentials and inspectors in them, each with a rule that has it."""

    evaluator: Evaluator
    credentials: dict[str, Rule]
    inspectors: dict[str, Rule]


def _ready(evaluator: Evaluator) -> _Ready:
    rules = evaluator.rules.values()
    return _Ready(
        evaluator,
        {name: rule for rule in rules for name in rule.credentials or ()},
        {name: rule for rule in rules for name in rule.inspect or ()},
    )


class PolicyPlugin:
    """Policy enforcement for one generation of the configuration.

    Attributes:
        evaluator: what judges; `policy explain` looks into it.
        direct_hooks: see `seamgate.hookspecs.direct_hooks`.
    """

    def __init__(self, context: PluginContext) -> None:
        """Load the policies that the configuration names.

        Raises:
            ConfigError: one can't be read or used, two contradict each other, or an option is given.
        """
        if context.options:
            raise ConfigError("the plugin policy has no options: the policies stand under the key policies")
        ready = context.aside if isinstance(context.aside, _Ready) else self.load_aside(context)
        rates = None if context.shared is None else context.shared.rates()
        self._start(ready, context.clock, rates)

    @staticmethod
    def load_aside(context: PluginContext) -> _Ready:
        """Read and index the policies: what takes seconds where there are 100,000 rules, and can be done in a thread.

        Raises:
            ConfigError: one can't be read or used, or two contradict each other.
        """
        with without_collector():
            policies = read_policies(context.config.policies, context.config.policy_texts)
            return _ready(Evaluator(policies, generation=context.generation))

    @classmethod
    def from_policies(
        cls, policies: Iterable[Policy], *, generation: int = 1, clock: Callable[[], float] = time.time
    ) -> PolicyPlugin:
        """Build one of loaded policies: for `policy test`, embedding and tests.

        Args:
            policies: of all layers, in any order.
            generation: their number.
            clock: Unix seconds.

        Raises:
            ConfigError: two of them contradict each other.
        """
        return cls.from_evaluator(Evaluator(tuple(policies), generation=generation), clock=clock)

    @classmethod
    def from_evaluator(cls, evaluator: Evaluator, *, clock: Callable[[], float] = time.time) -> PolicyPlugin:
        """Build one around policies that are indexed already, with counters of its own."""
        plugin = cls.__new__(cls)
        plugin._start(_ready(evaluator), clock)
        return plugin

    def _start(self, ready: _Ready, clock: Callable[[], float], rates: Rates | None = None) -> None:
        self._ready = ready
        self.evaluator = ready.evaluator
        self._judge = Judge(ready.evaluator, clock, RateCounter() if rates is None else rates)
        self.direct_hooks: Mapping[str, Callable[..., Any]] = {"judge_request": self._judge.judge_request}

    def go_on_from(self, before: PolicyPlugin) -> None:
        """Go on with what the plugin of the generation before counted: rules that are the same, with the same limit."""
        self._judge.rates = before._judge.rates

    @property
    def wanted_credentials(self) -> dict[str, Rule]:
        """Names of credentials that rules select, each with one of those rules; the registry checks them."""
        return self._ready.credentials

    @property
    def wanted_inspectors(self) -> dict[str, Rule]:
        """Names of inspectors that rules ask for, each with one of those rules; the registry checks them."""
        return self._ready.inspectors

    @hookimpl
    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        """Defer a tunnel if any of its requests may be allowed, else deny it."""
        return self._judge.judge_connect(guest, target)

    @hookimpl
    def judge_request(self, request: Request) -> Verdict:
        """Judge a request with what is known of it, and count it once it is allowed."""
        return self._judge.judge_request(request)
