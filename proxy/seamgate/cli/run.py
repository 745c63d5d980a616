"""`seamgate run`: a program as a guest, under a gateway of its own or, with --pool, of one that runs already."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import uvloop

from seamgate.cli.pooled import run_in_pool
from seamgate.cli.saying import explain, say, say_nothing
from seamgate.observe.logging import LEVELS, configure_logging


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
@click.option(
    "--pool",
    envvar="SEAMGATE_POOL",
    metavar="SOCKET",
    help="Be a guest of the gateway whose `entries: kvm: pool:` listens there, on a machine that waits. "
    "[env: SEAMGATE_POOL]",
)
@click.option("--guest", "guest_name", metavar="NAME", help="With --pool: which of the gateway's `guests:` it is.")
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
    "only what is withheld, held less than by a microVM, or denied]",
)
@click.option("--json", "as_json", is_flag=True, help="At the end, print the summary as one line of JSON instead.")
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
    pool: str | None,
    guest_name: str | None,
    template: str,
    audit_path: Path | None,
    summary: bool | None,
    as_json: bool,
    log_level: str,
    command: tuple[str, ...],
) -> None:
    """Run a program as a guest, under a gateway of its own, or of one that runs (--pool).

    \b
    seamgate run --allow api.anthropic.com -- python agent.py
    seamgate run -c seamgate.yaml --label team=research -- python agent.py
    seamgate run --pool guests.sock --guest research -- python agent.py

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
    if pool or guest_name:
        place, name = _pool_options(context, pool, guest_name)
        context.exit(uvloop.run(run_in_pool(place, name, command, say if talkative else say_nothing, explain)))
    # Imported now: it takes most of a second, which a program that is handed in has no use for.
    from seamgate.cli.own_gateway import Asked, run_under_own_gateway

    asked = Asked(config_path, allowed, kept, labels, isolation, own_ca, template, audit_path, as_json, command)
    context.exit(run_under_own_gateway(asked, talkative=talkative, quiet=quiet))


_OF_THE_POOL = ("config_path", "allowed", "kept", "labels", "isolation", "own_ca", "template", "audit_path", "as_json")
"""Parameters whose place the pool's gateway has: its configuration, its journal, its template."""


def _pool_options(context: click.Context, pool: str | None, guest: str | None) -> tuple[str, str]:
    """Return socket and guest. Raises: click.UsageError."""
    if not pool or not guest:
        raise click.UsageError("--pool and --guest go together: the socket, and which of the gateway's guests it is")
    given = {each.name: each.opts[0] for each in context.command.params if each.name in _OF_THE_POOL}
    for name, option in given.items():
        if context.get_parameter_source(name or "") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is for a gateway of the program's own: with --pool, the pool's decides")
    return pool, guest
