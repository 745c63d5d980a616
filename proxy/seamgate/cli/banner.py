"""What a terminal shows when a gateway has started: the ways in, the rules, and what to do next. Used by `serve`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from seamgate import __version__
from seamgate.ca.store import ca_directory
from seamgate.cli.counting import counted
from seamgate.config import Config
from seamgate.credentials.config import CredentialConfig
from seamgate.gateway import Gateway

_WIDTH = 12


def render_banner(gateway: Gateway) -> str:
    """Return the text for people."""
    config = gateway.config
    lines = ["", f"  {click.style('seamgate', bold=True)} {__version__}  {click.style(config.source, dim=True)}", ""]
    lines += [f"  {click.style(label.ljust(_WIDTH), fg='cyan')}{text}" for label, text in _facts(gateway, config)]
    return "\n".join([*lines, "", *_next_steps(gateway, config), ""])


def _facts(gateway: Gateway, config: Config) -> Iterator[tuple[str, str]]:
    for entry, (host, port) in gateway.addresses.items():
        yield entry.replace("_", " "), f"http://{_bracketed(host)}:{port}  {click.style(_who(config, entry), dim=True)}"
    if config.entries.base_url is not None:
        for route, origin in config.entries.base_url.routes.items():
            yield "", f"  /{route} -> {origin}"
    for policy in loaded_policies(gateway):
        yield "policy", _policy_line(policy)
    for name, credential in config.credentials.items():
        yield (
            "credential",
            f"{name}  {click.style(f'{_source(credential)} -> ', dim=True)}{', '.join(credential.hosts)}",
        )
    yield (
        "plugins",
        ", ".join(
            plugin.name
            + (click.style(f" (+{'+'.join(sorted(plugin.capabilities))})", dim=True) if plugin.capabilities else "")
            for plugin in gateway.seam.pipeline.plugins
        ),
    )
    yield "audit", str(gateway.journal_path)


def loaded_policies(gateway: Gateway) -> tuple[Any, ...]:
    """Return the policies of the present generation, as the plugin that enforces them has them."""
    for plugin in gateway.seam.pipeline.plugins:
        evaluator = getattr(plugin.plugin, "evaluator", None)
        if evaluator is not None:
            return tuple(evaluator.policies)
    return ()


def _policy_line(policy: Any) -> str:
    denies = sum(not rule.allows for rule in policy.rules)
    audits = sum(rule.audit for rule in policy.rules)
    parts = [counted(len(policy.rules), "rule"), f"{denies} of them deny" if denies else "", f"layer {policy.layer}"]
    parts += [f"{audits} in audit mode" if audits else "", f"owner {policy.owner}" if policy.owner else ""]
    return f"{Path(policy.source).name}  {click.style(', '.join(filter(None, parts)), dim=True)}"


def _who(config: Config, entry: str) -> str:
    guest = getattr(config.entries, entry).guest
    if guest:
        return f"everybody is guest {guest}"
    names = [name for name, each in config.guests.items() if each.token is not None]
    return f"by token: {', '.join(names)}"


def _source(credential: CredentialConfig) -> str:
    source = credential.source
    if source.env is not None:
        return f"env {source.env}"
    return f"file {source.file}" if source.file is not None else f"command {(source.command or ('',))[0]}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _next_steps(gateway: Gateway, config: Config) -> Iterator[str]:
    proxy = gateway.addresses.get("proxy")
    if proxy is not None:
        identity = "" if config.entries.proxy is not None and config.entries.proxy.guest else "GUEST:TOKEN@"
        directory = f" --dir {ca_directory(config.ca, config.base)}" if config.ca.dir else ""
        directory += " --guest GUEST" if config.ca.each_guest else ""
        url = f"http://{identity}{_bracketed(proxy[0])}:{proxy[1]}"
        yield f'  use it    eval "$(seamgate ca env{directory} --proxy {url})"'
    yield f"  watch it  seamgate audit tail -f {gateway.journal_path}"
    yield "  reload    SIGHUP; stop: Ctrl-C, twice to cut what is under way"
