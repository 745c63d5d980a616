"""The registry: only what can be vouched for is loaded, in the configuration's order."""

from __future__ import annotations

import time
from typing import Any

import pluggy
import pytest

from seamgate import Request, Supply, Verdict, hookimpl, registry
from seamgate.config import Config, PluginSpec
from seamgate.errors import ConfigError, PluginRejected
from seamgate.registry import available, load_plugins, register

# Ours takes no options; a plugin may use pluggy's own.
pluggys: Any = pluggy.HookimplMarker("seamgate")


class Good:
    """Implements one hook."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return None


class Misspelt:
    """A hook that does not exist."""

    @hookimpl
    def judge_requests(self, request: Request) -> Verdict | None:
        return None


class WrongArgument:
    """An argument that the hook does not have."""

    @hookimpl
    def judge_request(self, flow: Request) -> Verdict | None:
        return None


class Unmarked:
    """Forgot one of its markers."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return None

    def judge_connect(self) -> Verdict | None:
        return None


class Wrapper:
    """Wants to change what others say."""

    @pluggys(wrapper=True)  # type: ignore[untyped-decorator]
    def judge_request(self, request: Request) -> Any:
        return (yield)


class First:
    """Wants a place."""

    @pluggys(tryfirst=True)  # type: ignore[untyped-decorator]
    def judge_request(self, request: Request) -> Verdict | None:
        return None


class AsyncJudge:
    """Judges later."""

    @hookimpl
    async def judge_request(self, request: Request) -> Verdict | None:
        return None


class Nothing:
    """Forgot the marker."""

    def judge_request(self, request: Request) -> Verdict | None:
        return None


class Supplier:
    """Needs a capability."""

    @hookimpl
    def supply_credential(self, request: Request, credential: str) -> Supply | None:
        return None


REJECTED: dict[type[Any], str] = {
    Misspelt: "there is no hook 'judge_requests': did you mean 'judge_request'?",
    WrongArgument: "judge_request has no argument 'flow': there are request",
    Unmarked: "judge_connect lacks @hookimpl",
    Wrapper: "wrapper",
    First: "order is the configuration's",
    AsyncJudge: "async",
    Nothing: "@hookimpl",
    Supplier: "capabilities",
}


@pytest.mark.parametrize("kind", REJECTED)
def test_what_can_not_be_vouched_for_is_refused(kind: type[Any]) -> None:
    """Each with a message that says what to mend; pluggy itself would take most of them in silence."""
    with pytest.raises(PluginRejected, match=REJECTED[kind]):
        register("bad", kind())


def test_a_capability_lets_in_what_needs_it() -> None:
    """And the loaded plugin says what it has."""
    loaded = register("s", Supplier(), {"secrets"})
    assert loaded.hooks == ("supply_credential",)
    assert loaded.capabilities == {"secrets"}


def test_an_async_supplier_is_fine() -> None:
    """What does I/O may be awaited."""

    class Late:
        @hookimpl
        async def supply_credential(self, request: Request, credential: str) -> Supply | None:
            return None

    assert register("late", Late(), {"secrets"}).hooks == ("supply_credential",)


def test_a_module_is_a_plugin_too() -> None:
    """Functions of a module, or methods of an object."""
    assert register("good", Good()).name == "good"


def load(*specs: PluginSpec) -> Any:
    return load_plugins(Config(plugins=specs), 1, time.time)


def test_builtins_are_offered_as_a_strangers_would_be() -> None:
    """By entry points."""
    assert {"policy", "dns", "credentials", "inspection"} <= available().keys()


def test_unknown_names_and_capabilities() -> None:
    """With a hint."""
    with pytest.raises(PluginRejected, match=r"there is no plugin 'dms': did you mean 'dns'\?"):
        load(PluginSpec(name="dms"))
    with pytest.raises(PluginRejected, match="no capability 'root'"):
        load(PluginSpec(name="dns", capabilities=frozenset({"root"})))


def test_order_is_the_configurations() -> None:
    """As named, not as installed."""
    secrets = frozenset({"secrets"})
    loaded = load(PluginSpec(name="credentials", capabilities=secrets), PluginSpec(name="dns"))
    assert [plugin.name for plugin in loaded] == ["credentials", "dns"]
    assert loaded[0].distribution == "seamgate"


class Point:
    """An entry point that a test makes."""

    def __init__(self, value: Any, *, name: str = "made") -> None:
        self.name, self.value, self.dist = name, repr(value), None
        self._made = value

    def load(self) -> Any:
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


@pytest.mark.parametrize(
    ("made", "error", "word"),
    [
        (ImportError("no module x"), PluginRejected, "no module x"),
        (lambda context: 1 / 0, PluginRejected, "ZeroDivisionError"),
        (lambda context: Nothing(), PluginRejected, "@hookimpl"),
        (
            Good,
            PluginRejected,
            r"Good is called with one argument, its PluginContext, .* `def __init__\(self, context\)`",
        ),
        (Good(), PluginRejected, "leads to Good; name a class"),
        (lambda: Good(), PluginRejected, "<lambda> is called with one argument"),
    ],
)
def test_a_plugin_that_can_not_be_built(
    made: Any, error: type[Exception], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Import errors, errors of its constructor, nothing in it: the gateway does not start."""
    monkeypatch.setattr(registry, "available", lambda: {"made": Point(made)})
    with pytest.raises(error, match=word):
        load(PluginSpec(name="made"))


def test_a_plugins_own_complaint_about_its_options_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the user's error, not the plugin's; the context carries the options."""

    def make(context: Any) -> object:
        raise ConfigError(f"bad option {context.options['x']}")

    monkeypatch.setattr(registry, "available", lambda: {"made": Point(make)})
    with pytest.raises(ConfigError, match="bad option 5"):
        load(PluginSpec(name="made", options={"x": 5}))


def test_two_offers_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one is meant can't be told."""
    monkeypatch.setattr("seamgate.registry.metadata.entry_points", lambda group: [Point("a"), Point("b")])
    with pytest.raises(PluginRejected, match="two distributions"):
        available()


def test_what_takes_long_may_be_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_aside` of a class gives its instance `context.aside`; a class without one gets None; errors pass."""

    class Slow(Good):
        def __init__(self, context: Any) -> None:
            self.aside = context.aside

        @staticmethod
        def load_aside(context: Any) -> str:
            if context.options:
                raise ConfigError("bad option")
            return f"loaded for generation {context.generation}"

    class Quick(Good):
        def __init__(self, context: Any) -> None:
            self.aside = context.aside

    points = {"slow": Point(Slow), "quick": Point(Quick), "broken": Point(ImportError("no module x"))}
    monkeypatch.setattr(registry, "available", lambda: points)
    config = Config(plugins=(PluginSpec(name="slow"), PluginSpec(name="quick")))
    aside = registry.load_aside(config, 7, time.time)
    assert aside == {"slow": "loaded for generation 7"}
    loaded: Any = load_plugins(config, 7, time.time, aside=aside)
    assert [each.plugin.aside for each in loaded] == ["loaded for generation 7", None]
    assert registry.load_aside(Config(plugins=(PluginSpec(name="broken"), PluginSpec(name="none"))), 1, time.time) == {}
    with pytest.raises(ConfigError, match="bad option"):
        registry.load_aside(Config(plugins=(PluginSpec(name="slow", options={"x": 1}),)), 1, time.time)


def test_a_plugin_goes_on_from_the_one_of_its_name() -> None:
    """Of the same class, and only where it wants to."""

    class Keeps(Good):
        kept: object = None

        def go_on_from(self, before: object) -> None:
            self.kept = before

    old, new, other = Keeps(), Keeps(), Keeps()
    registry.go_on([register("a", old), register("b", Good())], [register("a", new), register("b", other)])
    assert (new.kept, other.kept) == (old, None)
