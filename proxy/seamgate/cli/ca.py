"""`seamgate ca`: make the gateway's CA, look at it, and tell shells and clients to trust it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import click

from seamgate.ca.environment import client_environment, render_environment
from seamgate.ca.store import CaMaterial, default_directory, fingerprint, init_ca, load_ca
from seamgate.cli.commands import Group

_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the CA's files. [default: $XDG_DATA_HOME/seamgate/ca]",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=Group)
def ca() -> None:
    """The gateway's certificate authority."""


@ca.command()
@_DIRECTORY
@click.option("--name", "names", multiple=True, help="Limit the CA to this domain and what is below it; repeatable.")
@click.option("--force", is_flag=True, help="Replace the CA that is there: guests must then get the new ca.pem.")
@_JSON
def init(directory: Path | None, names: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Make a CA: ECDSA P-256, ten years, its key readable by you only."""
    _print(init_ca(directory or default_directory(), names=names, force=force), as_json)


@ca.command()
@_DIRECTORY
@_JSON
def show(directory: Path | None, as_json: bool) -> None:
    """Check the CA and print what identifies it."""
    _print(load_ca(directory or default_directory()), as_json)


@ca.command()
@_DIRECTORY
@click.option("--proxy", "proxy_url", default="", help="http://[user:token@]host:port of the gateway's proxy entry.")
@click.option("--shell", type=click.Choice(["sh", "fish", "json"]), default="sh", show_default=True)
@click.option(
    "--bundle", is_flag=True, help="Trust the machine's roots too: where not all traffic crosses the gateway."
)
def env(directory: Path | None, proxy_url: str, shell: str, bundle: bool) -> None:
    """Print what makes clients trust the CA, and with --proxy, use the gateway.

    \b
    eval "$(seamgate ca env --proxy http://127.0.0.1:8080)"
    """
    files = load_ca(directory or default_directory()).files
    path = files.bundle if bundle else files.certificate
    click.echo(render_environment(client_environment(proxy_url, path.absolute()), shell))


def _print(material: CaMaterial, as_json: bool) -> None:
    facts = describe(material)
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        click.echo(f"{key.replace('_', ' '):{width}}  {value}")


def describe(material: CaMaterial) -> dict[str, str | int]:
    """Return what identifies a CA, for people and for --json; nothing secret."""
    certificate = material.certificate
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return {
        "certificate": str(material.files.certificate),
        "bundle": str(material.files.bundle),
        "java_trust_store": str(material.files.java_store),
        "subject": certificate.subject.rfc4514_string(),
        "sha256": fingerprint(certificate),
        "valid_until": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        "days_left": left.days,
    }
