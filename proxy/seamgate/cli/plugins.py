"""`seamgate plugins`: what is installed, whether a configuration's load, whether one conforms, and how to begin one."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import uvloop

from seamgate.cli.commands import Group
from seamgate.cli.plugins_new import new
from seamgate.config import BUILTIN_PLUGINS, Config, PluginSpec, load_config
from seamgate.errors import PluginRejected
from seamgate.hookspecs import PROJECT
from seamgate.registry import LoadedPlugin, available, load_plugins

if TYPE_CHECKING:
    from seamgate.testing import Check

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_DEFAULT_CONFIG = Path("seamgate.yaml")
_BUILTIN = {spec.name: spec.capabilities for spec in BUILTIN_PLUGINS}


@click.group(cls=Group)
def plugins() -> None:
    """List, check and begin plugins. Only those that seamgate.yaml names are ever loaded."""


plugins.add_command(new)


@plugins.command(name="list")
@_JSON
def list_(as_json: bool) -> None:
    """Show what is installed and could be named under `plugins`. Imports each to see its hooks, starts none."""
    found = [_describe(name, point) for name, point in sorted(available().items())]
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for plugin in found:
        state = click.style("built in", dim=True) if plugin["builtin"] else ""
        origin = f"{plugin['distribution']} {plugin['version']}".strip()
        click.echo(f"{click.style(plugin['name'], bold=True)}  {origin}  {state}".rstrip())
        if plugin["problem"]:
            click.echo(f"  {click.style('broken', fg='red')}  {plugin['problem']}")
            continue
        click.echo(f"  hooks         {', '.join(plugin['hooks']) or 'none'}")
        if plugin["capabilities"]:
            click.echo(f"  capabilities  {', '.join(plugin['capabilities'])}")


@plugins.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-c",
    "--config",
    "config_path",
    envvar="SEAMGATE_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration: whose plugins to load, or whose options NAME gets. [default: seamgate.yaml]",
)
@_JSON
def check(names: tuple[str, ...], config_path: Path | None, as_json: bool) -> None:
    """Load a configuration's plugins as the gateway would; or hold NAME, which is installed, to every plugin's rules.

    Without NAME: policies and credentials included, in the order in which plugins are asked; what a gateway would
    refuse is refused (exit code 2).

    With NAME: runs the conformance suite (docs/testing.md): odd requests, no I/O while judging, time, secrets,
    inspectors under any split of the bytes. Exit code 1 if it breaks a rule. It is made with the options that -c gives
    it, and given made-up requests and records: don't point it at where a live one exports to.

    \b
    seamgate plugins check
    seamgate plugins check tickets
    """
    if names:
        _check_conformance(names, config_path, as_json)
        return
    config = load_config(config_path or _DEFAULT_CONFIG)

    async def load() -> tuple[LoadedPlugin, ...]:
        return load_plugins(config, 1, time.time)

    loaded = uvloop.run(load())
    if as_json:
        click.echo(msgspec.json.encode([_facts(plugin) for plugin in loaded]).decode())
        return
    for plugin in loaded:
        granted = f"  +{'+'.join(sorted(plugin.capabilities))}" if plugin.capabilities else ""
        mark = click.style("ok", fg="green")
        origin = click.style(f"({plugin.distribution} {plugin.version})", dim=True)
        click.echo(f"{mark}  {plugin.name}{granted}  {origin}  {', '.join(plugin.hooks)}")


def _check_conformance(names: Iterable[str], config_path: Path | None, as_json: bool) -> None:
    """Run the suite on each, telling as it goes; exit with 1 if one breaks a rule."""
    config = load_config(config_path) if config_path is not None else Config()
    found: list[dict[str, Any]] = []
    for name in names:
        if not as_json:
            click.echo(click.style(name, bold=True))
        for rule in _suite(name, config):
            problem = _problem(rule)
            found.append({"plugin": name, "rule": str(rule), "passed": not problem, "problem": problem})
            if not as_json:
                mark = click.style("FAIL", fg="red", bold=True) if problem else click.style("ok  ", fg="green")
                click.echo(f"  {mark}  {str(rule).replace('_', ' ')}")
                if problem:
                    click.echo(f"        {problem}\n        {click.style(rule.rule, dim=True)}")
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    if not all(each["passed"] for each in found):
        raise SystemExit(1)


def _suite(name: str, config: Config) -> list[Check]:
    from seamgate.testing import conformance  # half a second, for nobody else

    point = available().get(name)
    if point is None:
        raise PluginRejected(f"there is no plugin {name!r}: `seamgate plugins list` shows what is installed")
    own = next((spec for spec in config.plugins if spec.name == name), PluginSpec(name=name))
    made = point.load()
    offered = () if inspect.ismodule(made) else getattr(made, "inspector_names", ())
    return conformance(
        made,
        name=name,
        options=own.options,
        config=config,
        capabilities=own.capabilities,
        inspect_names=offered if isinstance(offered, tuple | list | frozenset) else (),
    )


def _problem(rule: Check) -> str:
    """What the plugin does wrong, "" if nothing."""
    try:
        rule()
    except AssertionError as error:
        return str(error).removeprefix(f"{rule}: ").partition("\n")[0]
    return ""


def _describe(name: str, point: metadata.EntryPoint) -> dict[str, Any]:
    hooks: list[str] = []
    problem = ""
    try:
        hooks = hooks_of(point.load())
    except Exception as error:  # noqa: BLE001 - a plugin's module may raise anything while it is imported
        problem = f"{type(error).__name__}: {error}"
    return {
        "name": name,
        "distribution": point.dist.name if point.dist is not None else "",
        "version": point.dist.version if point.dist is not None else "",
        "value": point.value,
        "builtin": name in _BUILTIN,
        "hooks": hooks,
        "capabilities": sorted(_BUILTIN.get(name, ())),
        "problem": problem,
    }


def hooks_of(plugin: object) -> list[str]:
    """Return the hooks that a plugin class, object or module implements, by the mark that `hookimpl` leaves."""
    mark = f"{PROJECT}_impl"
    names = (name for name in dir(plugin) if not name.startswith("__"))
    return sorted(name for name in names if hasattr(getattr(plugin, name, None), mark))


def _facts(plugin: LoadedPlugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "capabilities": sorted(plugin.capabilities),
        "hooks": plugin.hooks,
    }
