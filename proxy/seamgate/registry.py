"""Finds the plugins that `seamgate.yaml` names, vouches for them, and hands them over in the configuration's order.

Called once per generation, at start and at reload. Only named plugins are loaded: what happens to be installed has
no say. A plugin that can't be vouched for (unknown, a hook name that does not exist, a wrapper or a coroutine where a
hook must be plain, no capability for what it implements) is refused with `PluginRejected`, and the gateway does not
start: pluggy itself would register it in silence.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
import pluggy

from seamgate import hookspecs
from seamgate.collector import without_collector
from seamgate.credentials.probing import Findings
from seamgate.errors import ConfigError, PluginRejected, SeamgateError
from seamgate.hints import did_you_mean
from seamgate.hookspecs import PROJECT

if TYPE_CHECKING:
    from seamgate.config import Config
    from seamgate.policy.rates import Rates
    from seamgate.upstream.resolver import Answer

ENTRY_POINT_GROUP = "seamgate"
# What each capability lets a plugin implement or see. Everything else needs none.
CAPABILITY_OF_HOOK = {"supply_credential": "secrets"}
CAPABILITIES = frozenset({"secrets"})
_HOOKS = frozenset(name for name, value in vars(hookspecs).items() if hasattr(value, f"{PROJECT}_spec"))
# What a method of such a name is meant for is beyond doubt; "denied" or "connected" may be anything.
_NAMES_OF_HOOKS = ("judge_", "amend_", "resolve_", "supply_", "open_", "request_", "export_", "register_")
_MUST_BE_PLAIN = ("judge_", "amend_", "open_", "request_done", "denied", "connected", "export_", "register_")


Hosts: TypeAlias = Mapping[str, Sequence[tuple[tuple[str, ...], bool]]]
"""By the name of a credential: (patterns of hosts that it is bound to, whether ranges are allowed) of each binding."""


class SharedState(Protocol):
    """What all workers of one gateway have in common, for plugins to use instead of their own."""

    async def query(self, name: str) -> Answer:
        """Resolve a canonical name: whoever asks in whichever worker, it is looked up once."""
        ...

    async def share_secrets(self, values: Mapping[str, tuple[bytes, ...]], hosts: Hosts) -> None:
        """Have all workers look for exact values, by credential, in what these hosts answer: before one is put in.

        Raises:
            CredentialError: not all of them do.
        """
        ...

    def rates(self) -> Rates:
        """Return what counts the requests of a generation for all workers."""
        ...

    def findings(self, kind: str, key: str) -> Findings | None:
        """Return what a guest ("guest", id), or all about a credential ("secret", name), found out in all workers."""
        ...


class PluginContext(msgspec.Struct, frozen=True):
    """What a plugin is constructed with.

    Attributes:
        name: its name in the configuration.
        options: its own options, as written there.
        config: the whole configuration. Holds no secret values, only where they come from.
        generation: number of the loaded policy; rises with each reload.
        clock: Unix time in seconds; pinned in tests.
        capabilities: what the configuration grants.
        shared: what the workers of this gateway have in common; None where this process is all of it. A plugin that
            counts for itself counts in each worker: see `config.workers`.
        aside: what the plugin's own `load_aside` returned; None if it has none, or was not asked.
    """

    name: str
    options: Mapping[str, Any]
    config: Config
    generation: int
    clock: Callable[[], float]
    capabilities: frozenset[str] = frozenset()
    shared: SharedState | None = None
    aside: object = None


class LoadedPlugin(msgspec.Struct, frozen=True):
    """A plugin that was vouched for."""

    name: str
    plugin: object
    distribution: str
    version: str
    capabilities: frozenset[str]
    hooks: tuple[str, ...]


def available() -> dict[str, metadata.EntryPoint]:
    """Return the entry points of the group `seamgate` by name: what could be named in a configuration.

    Raises:
        PluginRejected: two distributions offer the same name.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise PluginRejected(f"two distributions offer a plugin {point.name!r}: {other.value} and {point.value}")
        found[point.name] = point
    return found


def load_aside(config: Config, generation: int, clock: Callable[[], float]) -> dict[str, object]:
    """Do that part of loading which takes long and needs no event loop: for a thread, while requests are carried.

    A plugin class says what that is with a static method `load_aside(context)`; what it returns is the `aside` of the
    context that the plugin is then made with. What can't be loaded at all is told by `load_plugins`.

    Raises:
        ConfigError: one of them refuses its part of the configuration.
    """
    points = available()
    done: dict[str, object] = {}
    with without_collector(keep=True):
        for spec in config.plugins:
            load = _aside_of(points.get(spec.name))
            if load is not None:
                context = PluginContext(spec.name, spec.options, config, generation, clock, spec.capabilities)
                done[spec.name] = load(context)
    return done


def _aside_of(point: metadata.EntryPoint | None) -> Callable[[PluginContext], object] | None:
    try:
        load: Callable[[PluginContext], object] | None = getattr(point.load() if point else None, "load_aside", None)
    except Exception:  # noqa: BLE001 - a plugin's module may raise anything; `load_plugins` meets it again and tells it
        return None
    return load


def load_plugins(
    config: Config,
    generation: int,
    clock: Callable[[], float],
    shared: SharedState | None = None,
    aside: Mapping[str, object] | None = None,
) -> tuple[LoadedPlugin, ...]:
    """Load the plugins that the configuration names, in its order. `aside`: what `load_aside` returned, if it ran.

    Raises:
        PluginRejected: one of them can't be vouched for.
        ConfigError: one of them refuses its options or its part of the configuration.
    """
    points = available()
    manager = _manager()
    loaded: list[LoadedPlugin] = []
    for spec in config.plugins:
        point = points.get(spec.name)
        if point is None:
            raise PluginRejected(f"there is no plugin {spec.name!r}{did_you_mean(spec.name, points, 'installed are')}")
        unknown = spec.capabilities - CAPABILITIES
        if unknown:
            raise PluginRejected(f"plugin {spec.name!r}: there is no capability {sorted(unknown)[0]!r}")
        ready = aside.get(spec.name) if aside is not None else None
        context = PluginContext(spec.name, spec.options, config, generation, clock, spec.capabilities, shared, ready)
        loaded.append(_vouch(manager, _construct(point, context), point, context))
    check_references(loaded)
    return tuple(loaded)


def go_on(before: Iterable[LoadedPlugin], after: Iterable[LoadedPlugin]) -> None:
    """Let the plugins that take over go on from the newest ones before, where they have `go_on_from`."""
    known = {each.name: each.plugin for each in before}
    for each in after:
        old, go_on_from = known.get(each.name), getattr(each.plugin, "go_on_from", None)
        if go_on_from is not None and type(old) is type(each.plugin):
            go_on_from(old)


def newest(before: Iterable[LoadedPlugin], after: Iterable[LoadedPlugin]) -> tuple[LoadedPlugin, ...]:
    """Return the newest plugin of each name: one that a reload takes away goes on in the one that brings it back."""
    return tuple({each.name: each for each in (*before, *after)}.values())


async def load_values(pipeline: Iterable[LoadedPlugin], before: Iterable[LoadedPlugin] = ()) -> None:
    """Let the plugins that supply credentials fetch their values, before any request: those with `load_values`."""
    known = {each.name: each.plugin for each in before}
    pending: list[Awaitable[None]] = []
    for each in pipeline:
        load = getattr(each.plugin, "load_values", None)
        if load is not None and "secrets" in each.capabilities:
            old = known.get(each.name)
            pending.append(load(old if type(old) is type(each.plugin) else None))
    await asyncio.gather(*pending)


def check_references(loaded: Iterable[LoadedPlugin]) -> None:
    """Refuse a policy that names a credential or an inspector that no plugin has.

    Such a rule would deny each of its requests, or leave a body uninspected; that is told at start. Plugins say what
    they want (`wanted_credentials`, `wanted_inspectors`: name -> rule) and what they have (`credential_names`,
    `inspector_names`); one that supplies credentials without saying which is trusted to have any.

    Raises:
        ConfigError: with the rule's place.
    """
    plugins = [each.plugin for each in loaded]
    silent = [
        each for each in loaded if "supply_credential" in each.hooks and not hasattr(each.plugin, "credential_names")
    ]
    if not silent:
        _check_names(plugins, "credential", "wanted_credentials", "credential_names", "add it under `credentials`")
    _check_names(plugins, "inspector", "wanted_inspectors", "inspector_names", "name the plugin that has it")


def _check_names(plugins: list[object], what: str, wanted: str, offered: str, advice: str) -> None:
    have = frozenset[str]().union(*(getattr(plugin, offered, ()) for plugin in plugins))
    for plugin in plugins:
        for name, rule in getattr(plugin, wanted, {}).items():
            if name not in have:
                hint = did_you_mean(name, have, "there are")
                message = f"rule {rule.id!r} names the {what} {name!r}, which nothing has ({advice}){hint}"
                raise ConfigError(message, source=rule.source, line=rule.line, column=rule.column)


def register(name: str, plugin: object, capabilities: Iterable[str] = ()) -> LoadedPlugin:
    """Vouch for a plugin object that no configuration names: for tests and for embedding.

    Raises:
        PluginRejected: it can't be vouched for.
    """
    return _checked(_manager(), name, plugin, frozenset(capabilities), "", "")


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _construct(point: metadata.EntryPoint, context: PluginContext) -> object:
    """Import and build a plugin. Its own SeamgateErrors pass; anything else is the plugin's fault."""
    try:
        made = point.load()
        if inspect.ismodule(made):
            return made
        _check_constructor(context.name, made)
        return made(context)
    except SeamgateError:
        raise
    except Exception as error:
        raise PluginRejected(f"plugin {context.name!r} can't be loaded: {type(error).__name__}: {error}") from error


def _check_constructor(name: str, made: object) -> None:
    """Refuse what can't be called with the context alone, before Python says so in its own words."""
    what = getattr(made, "__qualname__", type(made).__name__)
    if not callable(made):
        raise PluginRejected(f"plugin {name!r}: its entry point leads to {what}; name a class or a module of functions")
    try:
        signature = inspect.signature(made)
    except ValueError:
        return  # built in C, without a signature: calling it will show
    try:
        signature.bind(None)
    except TypeError:
        write = "def __init__(self, context)" if inspect.isclass(made) else f"def {what}(context)"
        raise PluginRejected(
            f"plugin {name!r}: {what} is called with one argument, its PluginContext, and takes {signature}: "
            f"write `{write}`"
        ) from None


def _vouch(
    manager: pluggy.PluginManager, plugin: object, point: metadata.EntryPoint, context: PluginContext
) -> LoadedPlugin:
    name, version = (point.dist.name, point.dist.version) if point.dist is not None else ("", "")
    return _checked(manager, context.name, plugin, context.capabilities, name, version)


def _checked(
    manager: pluggy.PluginManager,
    name: str,
    plugin: object,
    capabilities: frozenset[str],
    distribution: str,
    version: str,
) -> LoadedPlugin:
    _check_marks(manager, name, plugin)
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginRejected(f"plugin {name!r}: {error}") from error
    hooks: list[str] = []
    for caller in manager.get_hookcallers(plugin) or []:
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin:
                _check_hook(name, caller.name, implementation, capabilities)
                hooks.append(caller.name)
    if not hooks:
        raise PluginRejected(f"plugin {name!r} implements no hook: mark its functions with @hookimpl")
    return LoadedPlugin(name, plugin, distribution, version, capabilities, tuple(sorted(hooks)))


def _check_marks(manager: pluggy.PluginManager, name: str, plugin: object) -> None:
    """Refuse names that only resemble a hook's or an argument's, and hooks without a mark: nothing would call them."""
    unmarked, marked = "", False
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            if attribute.startswith(_NAMES_OF_HOOKS) and attribute in _HOOKS:
                unmarked = unmarked or attribute
            continue
        marked = True
        hook = options["specname"] or attribute
        if hook not in _HOOKS:
            raise PluginRejected(f"plugin {name!r}: there is no hook {hook!r}{did_you_mean(hook, _HOOKS, 'there are')}")
        known = inspect.signature(getattr(hookspecs, hook)).parameters
        for argument in inspect.signature(getattr(plugin, attribute)).parameters:
            if argument not in known:
                hint = did_you_mean(argument, known, "there are")
                raise PluginRejected(f"plugin {name!r}: {hook} has no argument {argument!r}{hint}")
    if marked and unmarked:
        raise PluginRejected(f"plugin {name!r}: {unmarked} lacks @hookimpl, so nothing would call it")


def _check_hook(name: str, hook: str, implementation: pluggy.HookImpl, capabilities: frozenset[str]) -> None:
    if implementation.wrapper or implementation.hookwrapper:
        raise PluginRejected(f"plugin {name!r}: {hook} is a wrapper; no plugin may change what another one said")
    if implementation.tryfirst or implementation.trylast:
        raise PluginRejected(f"plugin {name!r}: {hook} asks for a place; the order is the configuration's")
    function = implementation.function
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async and hook.startswith(_MUST_BE_PLAIN):
        raise PluginRejected(f"plugin {name!r}: {hook} is async; it must be a plain function")
    needed = CAPABILITY_OF_HOOK.get(hook)
    if needed is not None and needed not in capabilities:
        raise PluginRejected(
            f"plugin {name!r} implements {hook}: grant it in seamgate.yaml with `capabilities: [{needed}]`"
        )
