"""`seamgate reload`: have a running gateway load its files again, and say what came of it."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from seamgate.cli.admin_client import ask, find, problem_of, where
from seamgate.cli.commands import EXIT_NO
from seamgate.errors import ConfigError
from seamgate.reloading import ReloadReport


@click.command()
@where
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def reload(context: click.Context, config_path: Path, admin: str, as_json: bool) -> None:
    """Have a running gateway load its configuration again: policies, credentials, plugins, DNS and upstream TLS.

    Needs `admin: {listen: unix:...}`: whoever can open that socket, its own user and root, may reload; without one send
    SIGHUP. What can't be used leaves everything as it is (exit code 1). What the new policy forbids ends at once.
    """
    place = find(admin, config_path)
    if not isinstance(place, str):
        raise ConfigError(
            "a reload is asked for over a unix socket, never over TCP, where every program of this machine could: let "
            "`admin: listen:` name one, or send SIGHUP to the gateway (`systemctl reload seamgate`)"
        )
    status, body = ask(place, "POST", "/reload")
    if status != 200:
        click.echo(f"{click.style('refused:', fg='red', bold=True)} {problem_of(body)}", err=True, color=context.color)
        click.echo("the old configuration stays in force", err=True)
        context.exit(EXIT_NO)
    report = msgspec.json.decode(body, type=ReloadReport)
    click.echo(body.decode().strip() if as_json else "\n".join(_lines(report)), color=context.color)


def _lines(report: ReloadReport) -> list[str]:
    lines = [f"{click.style('reloaded', fg='green')}: generation {report.generation} is in force"]
    if report.revoked_requests or report.revoked_tunnels:
        lines.append(f"  ended by it: {report.revoked_requests} requests, {report.revoked_tunnels} tunnels under way")
    if report.needs_restart:
        waiting = ", ".join(report.needs_restart)
        lines.append(f"  {click.style('needs a restart', fg='yellow')}: {waiting} changed and can't follow a reload")
    return lines
