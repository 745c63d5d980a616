"""The pipeline: order, names and clocks of each call, and every failure closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from seamgate import (
    Amendment,
    Direction,
    Guest,
    Reason,
    Request,
    Resolution,
    ResolveFailed,
    Response,
    Supply,
    Target,
    Verdict,
    allow,
    deny,
    hookimpl,
)
from seamgate.errors import PluginError
from seamgate.flow import Step
from seamgate.pipeline import Pipeline
from seamgate.registry import register
from seamgate.testing.listening import Listener
from seamgate.verdict import Effect

GUEST = Guest("g")
TARGET = Target("https", "a.test", 443)
REQUEST = Request("r1", GUEST, TARGET, "GET", "/x", headers=((b"a", b"1"),))


class Judge:
    """Says what it was made with."""

    def __init__(self, verdict: Any) -> None:
        self.verdict = verdict

    @hookimpl
    def judge_request(self, request: Request) -> Any:
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def pipeline(*plugins: object, budget_s: float = 1.0, secrets: bool = False) -> Pipeline:
    capabilities = {"secrets"} if secrets else set()
    loaded = [register(f"p{place}", plugin, capabilities) for place, plugin in enumerate(plugins)]
    return Pipeline(loaded, budget_s=budget_s)


def test_every_judge_is_asked_and_the_fold_decides() -> None:
    """A denial does not silence those after it: the audit has a step of each, with name, time and outcome."""
    steps: list[Step] = []
    later = Verdict(Effect.DEFER, Reason.ALLOWED)
    verdict = pipeline(Judge(allow("a")), Judge(deny("no")), Judge(later), Judge(None)).judge_request(REQUEST, steps)
    assert verdict.message == "no"
    assert [(step.plugin, step.hook, step.outcome) for step in steps] == [
        ("p0", "judge_request", "allow"), ("p1", "judge_request", "deny"), ("p2", "judge_request", "defer"),
        ("p3", "judge_request", "none"),
    ]  # fmt: skip
    assert all(step.duration_us > 0 for step in steps)


def test_nobody_allows_nothing() -> None:
    """No plugin, or none with an opinion: denied."""
    assert not pipeline(Judge(None)).judge_request(REQUEST).allowed
    assert not Pipeline([]).judge_request(REQUEST).allowed


@pytest.mark.parametrize("bad", [RuntimeError("x"), True, "allow", {"effect": 2}, 2])
@pytest.mark.parametrize("place", [0, 1])
def test_a_judge_that_fails_denies(bad: Any, place: int) -> None:
    """An exception or a wrong type denies with `plugin_failed`, whatever the others say, and is counted."""
    judges = [Judge(allow("a")), Judge(allow("b"))]
    judges[place] = Judge(bad)
    made = pipeline(*judges)
    assert made.judge_request(REQUEST).reason is Reason.PLUGIN_FAILED
    assert [stats.failures for stats in made.stats] == [int(place == 0), int(place == 1)]


def test_a_judge_that_takes_too_long_denies() -> None:
    """Its verdict counts for nothing then."""
    made = pipeline(Judge(allow("a")), budget_s=1e-9)
    assert made.judge_request(REQUEST).reason is Reason.PLUGIN_OVERRUN
    assert made.stats[0].overruns == 1


def test_what_was_admitted_once_is_not_denied_for_a_late_answer() -> None:
    """The overrun is counted, the answer counts as it is: an allow allows, a denial denies, no opinion is none."""
    for answer, effect in ((allow("a"), Effect.ALLOW), (deny("no"), Effect.DENY), (None, Effect.DENY)):
        made = pipeline(Judge(answer), budget_s=1e-9)
        verdict = made.judge_request(REQUEST, late_denies=False)
        assert (verdict.effect, verdict.reason is Reason.PLUGIN_OVERRUN) == (effect, False)
        assert made.stats[0].overruns == 1
    assert pipeline(Judge(RuntimeError("x"))).judge_request(REQUEST, late_denies=False).reason is Reason.PLUGIN_FAILED


def test_a_subset_of_arguments_by_name() -> None:
    """A plugin takes what it wants, in any order."""

    class Plugin:
        @hookimpl
        def judge_connect(self, target: Target, guest: Guest) -> Verdict:
            return deny(f"{guest.id} {target.host}")

        @hookimpl
        def judge_response(self, response: Response) -> Verdict | None:
            return deny("bad") if response.status == 500 else None

    made = pipeline(Plugin())
    assert made.judge_connect(GUEST, TARGET).message == "g a.test"
    refused = made.judge_response(REQUEST, Response(500), [])
    assert refused is not None and refused.message == "bad"
    assert made.judge_response(REQUEST, Response(200), []) is None


def test_a_direct_hook_is_called_in_place_of_the_method() -> None:
    """With the arguments that the method takes, in its order, by the pipeline and by who listens for the suite."""

    class Direct:
        def __init__(self) -> None:
            self.direct_hooks = {"judge_connect": self._judge}

        def _judge(self, target: Target, guest: Guest) -> Verdict:
            assert (type(target), type(guest)) == (Target, Guest)
            return allow("direct")

        @hookimpl
        def judge_connect(self, target: Target, guest: Guest) -> Verdict:
            raise AssertionError("the method is called")

    loaded, listener = register("direct", Direct()), Listener()
    for each in (loaded, listener.listen(loaded)):
        assert Pipeline([each]).judge_connect(GUEST, TARGET).rule == "direct"
    assert listener.heard[0].given == {"target": TARGET, "guest": GUEST}


def test_amendments_add_up_in_order() -> None:
    """Each plugin sees what the one before it made; the request itself never changes."""

    class Sets:
        def __init__(self, value: bytes) -> None:
            self.value = value

        @hookimpl
        def amend_request(self, request: Request) -> Amendment:
            seen = request.header(b"x") or b""
            return Amendment(set_headers=((b"x", seen + self.value),), remove_headers=(b"a",))

    made = pipeline(Sets(b"1"), Sets(b"2"))
    assert made.amends
    amended = made.amend_request(REQUEST, [])
    assert amended.headers == ((b"x", b"12"),)
    assert REQUEST.headers == ((b"a", b"1"),)
    assert not pipeline(Judge(None)).amends


class Resolves:
    """Answers at once, later, or not."""

    def __init__(self, *addresses: str, late: bool = False, error: Exception | None = None) -> None:
        self.addresses, self.late, self.error = addresses, late, error
        self.asked = 0

    @hookimpl
    def resolve_name(self, name: str) -> Resolution | Awaitable[Resolution | None] | None:
        self.asked += 1
        return self._later(name) if self.late else self._now(name)

    def _now(self, name: str) -> Resolution | None:
        if self.error is not None:
            raise self.error
        return Resolution(name, self.addresses, 0.0) if self.addresses else None

    async def _later(self, name: str) -> Resolution | None:
        await asyncio.sleep(0)
        return self._now(name)


async def _value(found: Any) -> Any:
    return await found if isinstance(found, Awaitable) else found


@pytest.mark.parametrize("late", [(False, False), (True, False), (False, True), (True, True)])
async def test_the_first_answer_wins(late: tuple[bool, bool]) -> None:
    """At once or awaited: nothing is asked of those after it; None passes on."""
    nobody, first, never = Resolves(late=late[0]), Resolves("192.0.2.1", late=late[1]), Resolves("192.0.2.2")
    steps: list[Step] = []
    found = await _value(pipeline(nobody, first, never).resolve_name("a.test", steps))
    assert found == Resolution("a.test", ("192.0.2.1",), 0.0)
    assert (nobody.asked, first.asked, never.asked) == (1, 1, 0)
    assert "p1" in {step.plugin for step in steps} <= {"p0", "p1"}


@pytest.mark.parametrize("late", [False, True])
async def test_a_refusal_ends_the_walk(late: bool) -> None:
    """An error that is meant passes as it is; any other is the plugin's failure; neither asks the next."""
    for error, expected in ((ResolveFailed("gone"), ResolveFailed), (KeyError("x"), PluginError)):
        never = Resolves("192.0.2.2")
        with pytest.raises(expected):
            await _value(pipeline(Resolves(late=late, error=error), never).resolve_name("a.test", []))
        assert never.asked == 0


async def test_a_wrong_type_is_a_failure() -> None:
    """Also when it is awaited."""

    class Wrong:
        @hookimpl
        def resolve_name(self, name: str) -> Any:
            return ["192.0.2.1"]

    class LateWrong:
        @hookimpl
        async def resolve_name(self, name: str) -> Any:
            return ["192.0.2.1"]

    for plugin in (Wrong(), LateWrong()):
        with pytest.raises(PluginError):
            await _value(pipeline(plugin).resolve_name("a.test", []))


def test_supplies_come_from_plugins_with_secrets() -> None:
    """The first that has it; nobody: None."""

    class Has:
        @hookimpl
        def supply_credential(self, credential: str) -> Supply | None:
            return Supply(credential) if credential == "mine" else None

    made = pipeline(Has(), secrets=True)
    found = made.supply_credential(REQUEST, "mine", [])
    assert isinstance(found, Supply) and found.credential == "mine"
    assert made.supply_credential(REQUEST, "other", []) is None


def test_plugins_with_secrets_inspect_responses_first() -> None:
    """So that the others see redacted bytes, whatever the configuration's order."""

    class Opens:
        @hookimpl
        def open_inspector(self, direction: Direction) -> Any:
            return object()

    plain, secret = register("plain", Opens()), register("secret", Opens(), {"secrets"})
    opened = Pipeline([plain, secret]).open_inspectors(REQUEST, Response(200), Direction.RESPONSE, Verdict(), [])
    assert [name for name, _ in opened] == ["secret", "plain"]


def test_observers_can_not_fail_anything() -> None:
    """Their failures are counted."""

    class Observer:
        @hookimpl
        def connected(self, address: str) -> None:
            raise RuntimeError(address)

    made = pipeline(Observer())
    made.connected(GUEST, TARGET, "192.0.2.1")
    assert made.stats[0].failures == 1
    assert not made.observes
