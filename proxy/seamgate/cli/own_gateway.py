"""A program as a guest under a gateway of its own, that lives as long as the program. Called by `seamgate run`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import uvloop

from seamgate import launch
from seamgate.ca.store import ca_directory, init_ca
from seamgate.cli.allow import allow_hosts
from seamgate.cli.brokering import broker
from seamgate.cli.isolation import Run, Voice, run_isolated
from seamgate.cli.saying import explain, say, say_nothing
from seamgate.cli.summary import brief_summary, render_summary, summarise, summary_json
from seamgate.config import BUILTIN_PLUGINS, Config, PluginSpec, load_config
from seamgate.errors import ConfigError
from seamgate.policy.files import read_policies
from seamgate.signing import signing_limits


class Asked(NamedTuple):
    """The options of `seamgate run`, as they were given."""

    config_path: Path | None
    allowed: Sequence[str]
    kept: Sequence[str]
    labels: Sequence[str]
    isolation: str
    own_ca: bool
    template: str
    audit_path: Path | None
    as_json: bool
    command: Sequence[str]


def run_under_own_gateway(asked: Asked, *, talkative: bool, quiet: bool) -> int:
    """Run the program and return its exit code.

    Args:
        talkative: whether a person is told what happens, and at the end what was denied.
        quiet: whether not even that is told which is said without a terminal too.

    Raises:
        SeamgateError: it can't be run so; the program has not begun.
    """
    with _scratch() as scratch:
        environ: Mapping[str, str]
        if asked.config_path is not None:
            config, environ = _configured(asked.config_path, asked.allowed, asked.kept), os.environ
        else:
            config, environ = _unconfigured(asked.allowed, asked.kept, scratch, quiet=quiet)
        labels = _parse_labels(asked.labels)
        if asked.own_ca or config.ca.each_run:
            config = _with_own_ca(config, scratch, labels, talkative)
        else:
            config = _with_ca(config, scratch, talkative, may_move=asked.config_path is None)
        journal = (asked.audit_path or launch.run_journal(config.audit)).absolute()
        journal = journal.parent.resolve() / journal.name  # a link that turns later leads no guest to it
        launch.forbid_inspection()
        no_roots = scratch / "no-roots"
        no_roots.mkdir()
        wanted = Run(config, labels, journal, asked.command, environ, asked.template, no_roots=str(no_roots))
        voice = Voice(say if talkative else say_nothing, say_nothing if quiet else say, say, explain)
        code = uvloop.run(_run(wanted, asked.isolation, voice))
        if asked.as_json or not quiet:
            _tell_the_end(journal, as_json=asked.as_json, talkative=talkative)
    return code


def _tell_the_end(journal: Path, *, as_json: bool, talkative: bool) -> None:
    """Say what was denied; without a terminal only if anything was: curl, git and node do not print why."""
    summary = summarise(journal)
    if as_json:
        click.echo(json.dumps(summary_json(summary, journal)), err=True)
    elif talkative:
        click.echo(render_summary(summary, journal), err=True)
    else:
        for line in brief_summary(summary, journal):
            say(line)


async def _run(wanted: Run, isolation: str, voice: Voice) -> int:
    name = wanted.command[0]
    try:
        return await run_isolated(wanted, isolation, voice)
    except FileNotFoundError:
        say(f"{name}: there is no such program on the PATH")
        return launch.NOT_FOUND
    except OSError as error:
        say(f"{name}: {error.strerror}")
        return launch.CANNOT_EXECUTE


def _configured(path: Path, allowed: Sequence[str], kept: Sequence[str]) -> Config:
    if allowed:
        raise click.UsageError("--allow is for runs without -c: with it, the configuration's policies decide")
    if kept:
        raise click.UsageError(
            "--keep-env is for runs without -c: with it, `credentials:` says which variables are secrets"
        )
    return load_config(path)


def _unconfigured(
    allowed: Sequence[str], kept: Sequence[str], scratch: Path, *, quiet: bool
) -> tuple[Config, Mapping[str, str]]:
    """Return a configuration for --allow, and the caller's environment without what is withheld from the program."""
    found = broker(os.environ, allowed, kept)
    policy = scratch / "run.policy.yaml"
    policy.write_text(allow_hosts(allowed, found.by_host), encoding="utf-8")
    if not allowed and sys.stderr.isatty():
        say("no policy: everything is denied; use --allow HOST, or -c seamgate.yaml (`seamgate init` writes one)")
    for line in () if quiet else found.told():
        say(line)
    config = Config(
        source="seamgate run",
        base=Path.cwd(),
        policies=(str(policy),),
        credentials=found.credentials,
        plugins=_plugins(),
    )
    return config, {name: value for name, value in os.environ.items() if name not in found.withheld}


def _plugins() -> tuple[PluginSpec, ...]:
    """Return the default ones; an agent may show a model its environment, in which nobody but us put placeholders."""
    options = {"credentials": {"placeholders_in_bodies": "pass"}}
    return tuple([msgspec.structs.replace(each, options=options.get(each.name, {})) for each in BUILTIN_PLUGINS])


def _with_ca(config: Config, scratch: Path, talkative: bool, *, may_move: bool) -> Config:
    directory = ca_directory(config.ca, config.base).resolve()
    try:
        if launch.ensure_ca(directory) and talkative:
            say(f"made a CA in {directory}")
    except ConfigError:
        if not may_move:
            raise
        directory = scratch / "ca"
        launch.ensure_ca(directory)
    return msgspec.structs.replace(config, ca=msgspec.structs.replace(config.ca, dir=str(directory)))


def _with_own_ca(config: Config, scratch: Path, labels: dict[str, str], talkative: bool) -> Config:
    """Make a CA that ends with the run and can sign for nothing that its policy could not allow, if that is known."""
    directory = scratch / "ca"
    names = signing_limits(config, read_policies(config.policies), {launch.GUEST: labels})[launch.GUEST]
    init_ca(directory, names=names or ())
    if talkative:
        say("made a CA for this run" + ("" if names is None else f", for {', '.join(names)}"))
    return msgspec.structs.replace(config, ca=msgspec.structs.replace(config.ca, dir=str(directory)))


def _parse_labels(texts: Sequence[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--label")
        labels[key] = value
    return labels


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for as long as the run lasts, readable by nobody else."""
    folder = Path(tempfile.mkdtemp(prefix="seamgate-run-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
