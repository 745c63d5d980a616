"""`seamgate run`: a program as a guest, under a gateway of its own that lives as long as the program does."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
import uvloop

from seamgate import launch
from seamgate.ca.store import ca_directory, init_ca
from seamgate.cli.allow import allow_hosts
from seamgate.cli.brokering import broker
from seamgate.cli.isolation import Run, Voice, run_isolated
from seamgate.cli.summary import render_summary, summarise
from seamgate.config import Config, load_config
from seamgate.errors import ConfigError
from seamgate.observe.logging import LEVELS, configure_logging
from seamgate.policy.files import read_policies
from seamgate.signing import signing_limits


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-c",
    "--config",
    "config_path",
    envvar="SEAMGATE_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take policies, credentials and plugins from this seamgate.yaml. [env: SEAMGATE_CONFIG]",
)
@click.option("--allow", "allowed", multiple=True, metavar="HOST[:PORT]", help="Without -c: allow https to this host.")
@click.option(
    "--keep-env",
    "kept",
    multiple=True,
    metavar="NAME",
    help="Without -c: give the program this variable as it is, though it looks like a secret.",
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the guest, for policies.")
@click.option(
    "--isolation",
    type=click.Choice(["auto", "proxy", "netns", "kvm"]),
    default="auto",
    show_default=True,
    help="How the program is kept from everything but the gateway; auto takes the strongest that it can run in.",
)
@click.option(
    "--own-ca", is_flag=True, help="Make a CA for this run, limited to what its policy allows. [as `ca: each_run`]"
)
@click.option("--template", default="", metavar="NAME", help="Of kvm: restore this template. [default: made by itself]")
@click.option(
    "--audit",
    "audit_path",
    type=click.Path(path_type=Path),
    help="Write the journal here. [default: runs/DATE-PID.jsonl]",
)
@click.option(
    "--summary/--no-summary",
    default=None,
    help="Say at the start what is made of this run, at the end what was denied. [default: on a terminal; elsewhere "
    "only what is withheld, or held less than by a microVM]",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    config_path: Path | None,
    allowed: tuple[str, ...],
    kept: tuple[str, ...],
    labels: tuple[str, ...],
    isolation: str,
    own_ca: bool,
    template: str,
    audit_path: Path | None,
    summary: bool | None,
    log_level: str,
    command: tuple[str, ...],
) -> None:
    """Run a program as a guest, under a gateway of its own.

    \b
    seamgate run --allow api.anthropic.com -- python agent.py
    seamgate run -c seamgate.yaml --label team=research -- python agent.py

    The program gets the variables that make clients use the gateway and trust its CA (in a microVM it needs none), and
    placeholders where the gateway's environment holds credentials. Exit code: the program's own.

    Without -c, a well-known credential in your environment (ANTHROPIC_API_KEY, OPENAI_API_KEY, GITHUB_TOKEN ...) is one
    where --allow covers its host: the program gets a placeholder, and the key goes in on the way. Every other variable
    that looks like a secret is withheld from the program; --keep-env NAME hands it on.

    Each run has a journal of its own, `runs/DATE-PID.jsonl` beside the journal that the configuration names (without
    one, in the user's state directory): read it with `seamgate audit tail PATH`.
    """
    talkative, quiet = sys.stderr.isatty() if summary is None else summary, summary is False
    configure_logging("auto", log_level, color=context.color)
    with _scratch() as scratch:
        environ: Mapping[str, str]
        if config_path is not None:
            config, environ = _configured(config_path, allowed, kept), os.environ
        else:
            config, environ = _unconfigured(allowed, kept, scratch, quiet=quiet)
        if own_ca or config.ca.each_run:
            config = _with_own_ca(config, scratch, _parse_labels(labels), talkative)
        else:
            config = _with_ca(config, scratch, talkative, may_move=config_path is None)
        journal = (audit_path or launch.run_journal(config.audit)).absolute()
        journal = journal.parent.resolve() / journal.name  # a link that turns later leads no guest to it
        launch.forbid_inspection()
        wanted = Run(config, _parse_labels(labels), journal, command, environ, template)
        voice = Voice(_say if talkative else _say_nothing, _say_nothing if quiet else _say, _say, _explain)
        code = uvloop.run(_run(wanted, isolation, voice))
        if talkative:
            click.echo(render_summary(summarise(journal), journal), err=True)
    context.exit(code)


async def _run(wanted: Run, isolation: str, voice: Voice) -> int:
    name = wanted.command[0]
    try:
        return await run_isolated(wanted, isolation, voice)
    except FileNotFoundError:
        _say(f"{name}: there is no such program on the PATH")
        return launch.NOT_FOUND
    except OSError as error:
        _say(f"{name}: {error.strerror}")
        return launch.CANNOT_EXECUTE


def _say(message: str) -> None:
    click.echo(f"seamgate: {message}", err=True)


def _explain(line: str) -> None:
    click.echo(line, err=True)


def _say_nothing(_: str) -> None:
    """Standard error is the program's alone."""


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
        _say("no policy: everything is denied; use --allow HOST, or -c seamgate.yaml (`seamgate init` writes one)")
    for line in () if quiet else found.told():
        _say(line)
    config = Config(source="seamgate run", base=Path.cwd(), policies=(str(policy),), credentials=found.credentials)
    return config, {name: value for name, value in os.environ.items() if name not in found.withheld}


def _with_ca(config: Config, scratch: Path, talkative: bool, *, may_move: bool) -> Config:
    directory = ca_directory(config.ca, config.base).resolve()
    try:
        if launch.ensure_ca(directory) and talkative:
            _say(f"made a CA in {directory}")
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
        _say("made a CA for this run" + ("" if names is None else f", for {', '.join(names)}"))
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
