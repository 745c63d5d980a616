"""`seamgate ca`: make the gateway's CA, look at it, and tell shells and clients to trust it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import click
from cryptography.hazmat.primitives import serialization

from seamgate.ca.environment import client_environment, render_environment
from seamgate.ca.store import CaMaterial, default_directory, fingerprint, init_ca, load_ca, permitted_names
from seamgate.cli.commands import Group

_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the CA's files. [default: $XDG_DATA_HOME/seamgate/ca]",
)
_GUEST = click.option(
    "--guest", default="", metavar="NAME", help="The CA that this guest has of its own, with `ca: {each_guest: true}`."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=Group)
def ca() -> None:
    """The gateway's certificate authority."""


@ca.command()
@_DIRECTORY
@_GUEST
@click.option("--name", "names", multiple=True, help="Limit the CA to this domain and what is below it; repeatable.")
@click.option("--force", is_flag=True, help="Replace the CA that is there: guests must then get the new ca.pem.")
@_JSON
def init(directory: Path | None, guest: str, names: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Make a CA: ECDSA P-256, ten years, its key readable by you only.

    `seamgate serve` makes those of guests by itself, and limits them to what their policy could allow.
    """
    _print(init_ca(directory or default_directory(), guest=guest, names=names, force=force), as_json)


@ca.command()
@_DIRECTORY
@_GUEST
@click.option("--pem", is_flag=True, help="Print the certificate itself: what clients have to trust.")
@_JSON
def show(directory: Path | None, guest: str, pem: bool, as_json: bool) -> None:
    """Check the CA and print what identifies it.

    \b
    seamgate ca show --guest agent-7 --pem > agent-7.pem
    """
    if pem and as_json:
        raise click.UsageError("--pem prints the certificate, --json what identifies it: ask for one of them")
    material = load_ca(directory or default_directory(), guest=guest)
    if pem:
        click.echo(material.certificate.public_bytes(serialization.Encoding.PEM), nl=False)
    else:
        _print(material, as_json)


@ca.command()
@_DIRECTORY
@_GUEST
@click.option("--proxy", "proxy_url", default="", help="http://[user:token@]host:port of the gateway's proxy entry.")
@click.option("--shell", type=click.Choice(["sh", "fish", "json"]), default="sh", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As `--shell json`.")
@click.option(
    "--bundle", is_flag=True, help="Trust the machine's roots too: where not all traffic crosses the gateway."
)
def env(directory: Path | None, guest: str, proxy_url: str, shell: str, as_json: bool, bundle: bool) -> None:
    """Print what makes clients trust the CA, and with --proxy, use the gateway.

    \b
    eval "$(seamgate ca env --proxy http://127.0.0.1:8080)"
    """
    files = load_ca(directory or default_directory(), guest=guest).files
    path = files.bundle if bundle else files.certificate
    # With the bundle, the machine's roots are wanted: whatever else names them stays.
    no_roots = "" if bundle else files.make_no_roots()
    environment = client_environment(proxy_url, path.absolute(), no_roots)
    click.echo(render_environment(environment, "json" if as_json else shell))


def _print(material: CaMaterial, as_json: bool) -> None:
    facts = describe(material)
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        click.echo(f"{key.replace('_', ' '):{width}}  {value}".rstrip())


def describe(material: CaMaterial) -> dict[str, str | int]:
    """Return what identifies a CA, for people and for --json; nothing secret."""
    certificate = material.certificate
    names = permitted_names(certificate)
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return {
        "certificate": str(material.files.certificate),
        "bundle": str(material.files.bundle),
        "java_trust_store": str(material.files.java_store),
        "subject": certificate.subject.rfc4514_string(),
        "sha256": fingerprint(certificate),
        "valid_until": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
        "days_left": left.days,
        "limited_to": "" if names is None else ", ".join(names),
    }
