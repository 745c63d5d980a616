"""Chooses and applies the isolation of `seamgate run`: the strongest that there is here, and says which and why."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from seamgate import launch
from seamgate.cli.kernel_needs import what_needs_a_kernel
from seamgate.cli.microvm import NotPython, find_python, run_in_microvm, template_files
from seamgate.config import Config, parse_route
from seamgate.entry.identity import make_guest
from seamgate.entry.netns.guest import ADDRESSES, OWN_HOSTS, NetnsGuest
from seamgate.errors import ConfigError, PrerequisiteMissing
from seamgate.flow import Isolation
from seamgate.gateway import Gateway

_PROXY = "--isolation proxy, which does not hold a program that ignores the proxy variables"
_NOT_HELD = (
    "warning: isolation proxy: a program that ignores the proxy variables is not held, and reaches the network directly"
)
_INSIST = "--isolation netns or kvm ends such a run before it begins"


class Run(msgspec.Struct, frozen=True, eq=False):
    """What is to be run: under which configuration, with which labels, where the journal is.

    Attributes:
        environ: what the program's environment is made of.
        template: of a guest in a microVM; "": the one of the program's Python.
        chosen: by whom the isolation was, and why none that is stronger: for the audit log; "": by the user.
        no_roots: an empty folder.
    """

    config: Config
    labels: Mapping[str, str]
    journal: Path
    command: Sequence[str]
    environ: Mapping[str, str]
    template: str = ""
    chosen: str = ""
    no_roots: str = ""

    def facts(self, isolation: Isolation) -> dict[str, str]:
        """Return what the audit log should know of the run's start, in this isolation."""
        facts = {"isolation": isolation.value}
        return {**facts, "isolation_chosen": self.chosen} if self.chosen else facts


class Voice(msgspec.Struct, frozen=True, eq=False):
    """Whom a run tells what; standard error is also the program's.

    Attributes:
        say: what is as a person expects it.
        tell: that `auto` took less than the strongest. Also where nobody looks on: a service's log keeps it.
        warn: that nothing holds the program. Nothing silences this.
        explain: at the end, what a person should know of the program's own end.
    """

    say: Callable[[str], None]
    tell: Callable[[str], None]
    warn: Callable[[str], None]
    explain: Callable[[str], None]


async def run_isolated(run: Run, isolation: str, voice: Voice) -> int:
    """Run the program in this isolation, or in the strongest that carries it for `auto`, and return its exit code.

    A stronger isolation that was asked for by name is never replaced by a weaker one.

    Args:
        voice: told what `auto` took, and why.

    Raises:
        PrerequisiteMissing: this machine does not offer it.
        OSError: the program could not be started.
    """
    if isolation == "kvm":
        try:
            return await run_in_microvm(run, find_python(run.command, run.template), _say_nothing, voice.explain)
        except NotPython as missing:
            raise PrerequisiteMissing(f"--isolation kvm: {missing}") from missing
        except PrerequisiteMissing as missing:
            raise PrerequisiteMissing(f"--isolation kvm: {missing}; or use --isolation netns") from missing
    if isolation == "auto":
        return await _run_in_the_strongest(run, voice)
    if isolation == "netns":
        try:
            return await _in_namespace(run, _say_nothing)
        except PrerequisiteMissing as missing:
            raise PrerequisiteMissing(f"--isolation netns: {missing.message}, or use {_PROXY}") from missing
    return await _behind_proxy(run)


async def _run_in_the_strongest(run: Run, voice: Voice) -> int:
    """Run the program in the strongest isolation that carries it, and say which that is, and why none before it.

    A program that starts others goes before a microVM, where that is an error, into a namespace; but rather into the
    microVM than where nothing holds it.
    """
    why: list[str] = []

    def because() -> Run:
        return msgspec.structs.replace(run, chosen=" ".join(("auto.", *why)))

    def told(message: str) -> None:
        (voice.tell if why else voice.say)(". ".join((message, *why)))

    needs = what_needs_a_kernel(_arguments(run), Path.cwd())
    if needs:
        why.append(f"Why not kvm: {needs}, which it does not have; --isolation kvm insists")
        try:
            return await _in_namespace(because(), told)
        except PrerequisiteMissing as missing:
            why[:] = [f"Why not netns: {missing.message}; {needs}, which is an error here"]
    try:
        return await run_in_microvm(because(), find_python(run.command, run.template), told, voice.explain)
    except (NotPython, PrerequisiteMissing, ConfigError) as missing:
        why.append(f"Why not kvm: {missing}")
    if not needs:
        try:
            return await _in_namespace(because(), told)
        except PrerequisiteMissing as missing:
            why.insert(0, f"Why not netns: {missing.message}")
    voice.warn(". ".join((_NOT_HELD, *why, _INSIST)))
    return await _behind_proxy(because())


def _arguments(run: Run) -> Sequence[str]:
    """Return what follows the interpreter, if the command is a Python program; else nothing."""
    try:
        return find_python(run.command, run.template).command[1:]
    except (NotPython, PrerequisiteMissing, FileNotFoundError):
        return ()


def _say_nothing(_: str) -> None:
    """The user knows: it was asked for."""


async def _behind_proxy(run: Run) -> int:
    token = launch.new_token()
    private = launch.private_config(run.config, token=token, labels=run.labels, audit_path=run.journal)
    async with Gateway(private, facts=run.facts(Isolation.PROXY)) as gateway:
        # Of the whole configuration, so that the tokens of its other guests are taken out too.
        environment = launch.guest_environment(
            run.config, gateway.addresses, gateway.ca_path, token, run.environ, run.no_roots
        )
        return await launch.run_program(run.command, environment)


async def _in_namespace(run: Run, say: Callable[[str], None]) -> int:
    config = run.config
    private = launch.private_config(
        config, token="", labels=run.labels, audit_path=run.journal, isolation=Isolation.NETNS
    )
    base_url = config.entries.base_url
    routes = {} if base_url is None else {name: parse_route(origin) for name, origin in base_url.routes.items()}
    addresses = {name: address for name, address in ADDRESSES.items() if name == "proxy" or routes}
    with contextlib.suppress(OSError):  # where this user can't make it, a guest can't put anything there either
        config.audit.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with Gateway(private, facts=run.facts(Isolation.NETNS)) as gateway:
        environment = launch.guest_environment(config, addresses, gateway.ca_path, "", run.environ, run.no_roots)
        environment |= {"NO_PROXY": OWN_HOSTS, "no_proxy": OWN_HOSTS, "npm_config_noproxy": OWN_HOSTS}
        command = launch.find_program(run.command, environment)
        assert private.entries.netns is not None
        guest = NetnsGuest(
            gateway,
            make_guest(launch.GUEST, private.guests[launch.GUEST], Isolation.NETNS),
            entry=private.entries.netns,
            routes=routes,
            hide=launch.secret_files(config, run.journal),
            fix=[*launch.policy_files(config), *template_files()],
            on_ready=lambda: say(
                "isolation netns: the program has a network namespace of its own, in which there is only the gateway"
            ),
        )
        return await guest.run(command, environment, launch.run_program)
