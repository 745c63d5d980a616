"""Finds the plugins that `seamgate.yaml` names, vouches for them, and hands them over in the configuration's order.

Called once per generation, at start and at reload. Only named plugins are loaded: what happens to be installed has
no say. A plugin that can't be vouched for (unknown, a hook name that does not exist, a wrapper or a coroutine where a
hook must be plain, no capability for what it implements) is refused with `PluginRejected`, and the gateway does not
start: pluggy itself would register it in silence.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
import pluggy

from seamgate import hookspecs
from seamgate.errors import ConfigError, PluginRejected, SeamgateError
from seamgate.hookspecs import PROJECT

if TYPE_CHECKING:
    from seamgate.config import Config

ENTRY_POINT_GROUP = "seamgate"
# What each capability lets a plugin implement or see. Everything else needs none.
CAPABILITY_OF_HOOK = {"supply_credential": "secrets"}
CAPABILITIES = frozenset({"secrets"})
_MUST_BE_PLAIN = ("judge_", "amend_", "open_", "request_done", "denied", "connected", "export_", "register_")


class PluginContext(msgspec.Struct, frozen=True):
    """What a plugin is constructed with.

    Attributes:
        name: its name in the configuration.
        options: its own options, as written there.
        config: the whole configuration. Holds no secret values, only where they come from.
        generation: number of the loaded policy; rises with each reload.
        clock: Unix time in seconds; pinned in tests.
        capabilities: what the configuration grants.
    """

    name: str
    options: Mapping[str, Any]
    config: Config
    generation: int
    clock: Callable[[], float]
    capabilities: frozenset[str] = frozenset()


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


def load_plugins(config: Config, generation: int, clock: Callable[[], float]) -> tuple[LoadedPlugin, ...]:
    """Load the plugins that the configuration names, in its order.

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
            raise PluginRejected(f"there is no plugin {spec.name!r}{_did_you_mean(spec.name, points, 'installed')}")
        unknown = spec.capabilities - CAPABILITIES
        if unknown:
            raise PluginRejected(f"plugin {spec.name!r}: there is no capability {sorted(unknown)[0]!r}")
        context = PluginContext(spec.name, spec.options, config, generation, clock, spec.capabilities)
        loaded.append(_vouch(manager, _construct(point, context), point, context))
    check_references(loaded)
    return tuple(loaded)


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
                hint = _did_you_mean(name, have, "there is")
                message = f"rule {rule.id!r} names the {what} {name!r}, which nothing has{hint}; {advice}"
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


def _did_you_mean(name: str, known: Iterable[str], what: str) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} ({what}: {', '.join(known) or 'none'})"


def _construct(point: metadata.EntryPoint, context: PluginContext) -> object:
    """Import and build a plugin. Its own SeamgateErrors pass; anything else is the plugin's fault."""
    try:
        made = point.load()
        return made if inspect.ismodule(made) else made(context)
    except SeamgateError:
        raise
    except Exception as error:
        raise PluginRejected(f"plugin {context.name!r} can't be loaded: {type(error).__name__}: {error}") from error


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
