"""The conformance suite: what every plugin has to keep, as checks that any test runner can run.

    import pytest
    from seamgate.testing import conformance

    @pytest.mark.parametrize("check", conformance(TicketPlugin, requests=[...]), ids=str)
    def test_conformance(check):
        check()

Called by plugin authors' tests, by `seamgate plugins check`, and for the built-in plugins by our own. Each check makes
its own plugin, offline, in a loop of its own; it raises `ConformanceError`, an AssertionError, and passes silently.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from seamgate.config import Config
from seamgate.errors import SeamgateError
from seamgate.flow import Request
from seamgate.testing import checks_inspecting, checks_judging, checks_outside, checks_patterns, checks_secrets
from seamgate.testing.subject import ConformanceError, Subject, listening_to_logs

BUDGET_S = 0.02
"""What one call may take: a twelfth of what the gateway grants (0.25 s), so that a slower machine is no denial."""

_Rule = Callable[[Subject], "Awaitable[None] | None"]
RULES: tuple[_Rule, ...] = (
    checks_judging.is_vouched_for,
    checks_judging.refuses_unknown_options,
    checks_judging.starts_again,
    checks_judging.withstands_the_field,
    checks_judging.withstands_records,
    checks_outside.judges_without_io,
    checks_outside.leaves_the_process_alone,
    checks_judging.judges_alike,
    checks_judging.changes_nothing,
    checks_judging.keeps_its_budget,
    checks_patterns.matches_in_time,
    checks_judging.tells_why,
    checks_judging.amends_what_it_allows,
    checks_inspecting.inspects_alike,
    checks_inspecting.inspects_apart,
    checks_inspecting.takes_heads_and_trailers,
    checks_secrets.sees_no_secret,
    checks_secrets.tells_no_secret,
)


class Check(msgspec.Struct, frozen=True):
    """One rule put to one plugin. Call it; `str()` of it is the rule's name.

    Attributes:
        name: of the rule.
        rule: what it says, in a sentence.
        subject: the plugin.
    """

    name: str
    rule: str
    subject: Subject

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Run the check. Not from within a running loop: it has its own.

        Raises:
            ConformanceError: the plugin breaks the rule.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        check = next(each for each in RULES if each.__name__ == self.name)
        with listening_to_logs():
            try:
                pending = check(self.subject)
                if inspect.isawaitable(pending):
                    await pending
            except ConformanceError as error:
                raise ConformanceError(f"{self.name}: {error}\n  rule: {self.rule}") from error.__cause__
            except SeamgateError as error:
                raise ConformanceError(f"{self.name}: the plugin can't be made: {error.message}") from error


def conformance(
    make: Any,
    *,
    name: str = "plugin",
    options: Mapping[str, Any] | None = None,
    config: Config | None = None,
    capabilities: Iterable[str] = (),
    requests: Iterable[Request] = (),
    inspect_names: Iterable[str] = (),
    secrets: Iterable[str] = (),
    budget_s: float = BUDGET_S,
) -> list[Check]:
    """Return the checks of a plugin, one for each rule.

    Args:
        make: the plugin's class, a function from context to plugin, or a module with hooks.
        name: its name in the configuration.
        options: its options.
        config: the rest of the configuration, for a plugin that reads it.
        capabilities: what it is granted.
        requests: requests that it has something to say to, beside those of the suite. The more of its code these
            reach, the more the checks are worth.
        inspect_names: what a rule's `inspect` asks it for; plus its own `inspector_names`.
        secrets: values that it knows and must not tell.
        budget_s: wall time that one call of a hook may take.
    """
    subject = Subject(
        make=make,
        name=name,
        options=options or {},
        config=config or Config(),
        capabilities=frozenset(capabilities),
        requests=tuple(requests),
        inspect=tuple(inspect_names),
        secrets=tuple(secrets),
        budget_s=budget_s,
    )
    return [Check(rule.__name__, " ".join((rule.__doc__ or "").split()), subject) for rule in RULES]
