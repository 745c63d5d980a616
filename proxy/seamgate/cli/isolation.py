"""Chooses and applies the isolation of `seamgate run`: the strongest that there is here, and says which and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from seamgate import launch
from seamgate.cli.microvm import NotPython, find_python, run_in_microvm
from seamgate.config import Config, parse_route
from seamgate.entry.identity import make_guest
from seamgate.entry.netns.guest import ADDRESSES, OWN_HOSTS, NetnsGuest
from seamgate.errors import ConfigError, PrerequisiteMissing
from seamgate.flow import Isolation
from seamgate.gateway import Gateway

_PROXY = "--isolation proxy, which does not hold a program that ignores the proxy variables"


class Run(msgspec.Struct, frozen=True, eq=False):
    """What is to be run: under which configuration, with which labels, where the journal is.

    Attributes:
        template: of a guest in a microVM; "": the one of the program's Python.
    """

    config: Config
    labels: Mapping[str, str]
    journal: Path
    command: Sequence[str]
    template: str = ""


async def run_isolated(run: Run, isolation: str, say: Callable[[str], None], explain: Callable[[str], None]) -> int:
    """Run the program in this isolation, or in the strongest for `auto`, and return its exit code.

    A stronger isolation that was asked for by name is never replaced by a weaker one.

    Args:
        say: told what `auto` took, and why.
        explain: told what a person should know after the end.

    Raises:
        PrerequisiteMissing: this machine does not offer it.
        OSError: the program could not be started.
    """
    if isolation == "kvm":
        try:
            return await run_in_microvm(run, find_python(run.command, run.template), _say_nothing, explain)
        except (NotPython, PrerequisiteMissing) as missing:
            raise PrerequisiteMissing(f"--isolation kvm: {missing}; or use --isolation netns") from missing
    auto, why = isolation == "auto", ""
    if auto:
        try:
            return await run_in_microvm(run, find_python(run.command, run.template), say, explain)
        except (NotPython, PrerequisiteMissing, ConfigError) as missing:
            why = f". Why not kvm: {missing}"
    if isolation != "proxy":
        try:
            return await _in_namespace(run, say if auto else _say_nothing, why)
        except PrerequisiteMissing as missing:
            if not auto:
                raise PrerequisiteMissing(f"--isolation netns: {missing.message}, or use {_PROXY}") from missing
            say(
                "isolation proxy: a program that ignores the proxy variables is not held. Why not netns: "
                f"{missing.message}{why}"
            )
    return await _behind_proxy(run)


def _say_nothing(_: str) -> None:
    """The user knows: it was asked for."""


async def _behind_proxy(run: Run) -> int:
    token = launch.new_token()
    private = launch.private_config(run.config, token=token, labels=run.labels, audit_path=run.journal)
    async with Gateway(private) as gateway:
        # Of the whole configuration, so that the tokens of its other guests are taken out too.
        environment = launch.guest_environment(run.config, gateway.addresses, gateway.ca_path, token, os.environ)
        return await launch.run_program(run.command, environment)


async def _in_namespace(run: Run, say: Callable[[str], None], why: str) -> int:
    config = run.config
    private = launch.private_config(
        config, token="", labels=run.labels, audit_path=run.journal, isolation=Isolation.NETNS
    )
    base_url = config.entries.base_url
    routes = {} if base_url is None else {name: parse_route(origin) for name, origin in base_url.routes.items()}
    addresses = {name: address for name, address in ADDRESSES.items() if name == "proxy" or routes}
    async with Gateway(private) as gateway:
        environment = launch.guest_environment(config, addresses, gateway.ca_path, "", os.environ)
        environment |= {"NO_PROXY": OWN_HOSTS, "no_proxy": OWN_HOSTS, "npm_config_noproxy": OWN_HOSTS}
        command = launch.find_program(run.command, environment)
        assert private.entries.netns is not None
        guest = NetnsGuest(
            gateway,
            make_guest(launch.GUEST, private.guests[launch.GUEST], Isolation.NETNS),
            entry=private.entries.netns,
            routes=routes,
            hide=launch.secret_files(config, run.journal),
            on_ready=lambda: say(
                "isolation netns: the program has a network namespace of its own, in which there is only the gateway"
                + why
            ),
        )
        return await guest.run(command, environment, launch.run_program)
