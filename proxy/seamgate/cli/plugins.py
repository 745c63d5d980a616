"""`seamgate plugins`: which plugins are installed, what they hook into, and whether a configuration's load."""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from seamgate.cli.commands import Group
from seamgate.config import BUILTIN_PLUGINS, load_config
from seamgate.hookspecs import PROJECT
from seamgate.registry import LoadedPlugin, available, load_plugins

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_BUILTIN = {spec.name: spec.capabilities for spec in BUILTIN_PLUGINS}


@click.group(cls=Group)
def plugins() -> None:
    """List and check plugins. Only those that seamgate.yaml names are ever loaded."""


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
@click.option(
    "-c",
    "--config",
    "config_path",
    envvar="SEAMGATE_CONFIG",
    default="seamgate.yaml",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Load the plugins that it names, in its order.",
)
@_JSON
def check(config_path: Path, as_json: bool) -> None:
    """Load plugins as the gateway would, policies and credentials included; refuse what it would refuse (exit code 2).

    Shows them in the order in which they are asked.
    """
    config = load_config(config_path)

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
