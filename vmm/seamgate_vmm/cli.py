"""`seamgate vm`: templates and pool. The group is `vm`; the command line of the gateway mounts it and adds `bench`.

Exit codes as everywhere: 0 fine, 1 the answer is no, 2 usage or configuration, 3 a prerequisite is missing.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from seamgate_vmm import template as templates
from seamgate_vmm.errors import KvmUnusable, ProgramError, TemplateError, VmmError
from seamgate_vmm.guest import MIB
from seamgate_vmm.host import open_host
from seamgate_vmm.runner import DEFAULT_TEMPLATE, ensure_template
from seamgate_vmm.snapshot import Meta, check_fits, load

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NO, _USAGE, _MISSING = 1, 2, 3


def exit_codes(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn this package's errors into one line and an exit code."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except KvmUnusable as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(_MISSING)
        except (TemplateError, ProgramError) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(_USAGE)
        except VmmError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(_NO)

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def vm() -> None:
    """Guests in microVMs: templates, a pool of warm guests, measurements."""


@vm.group("template")
def template_group() -> None:
    """What guests are restored from: CPython, warmed up."""


def _summary(meta: Meta) -> dict[str, Any]:
    stored = sum(e.length for e in meta.extents)
    return {
        "name": meta.name,
        "created": meta.created,
        "python": meta.program,
        "imports": list(meta.imports),
        "stored_bytes": stored,
        "memory_bytes": meta.first_bytes,
        "written_by_every_guest_bytes": sum(n for _, n in meta.hot),
        "cpu_required": list(meta.cpu_required),
        "cpu_model": meta.cpu_model,
    }


@template_group.command("build")
@click.argument("name", default=DEFAULT_TEMPLATE)
@click.option(
    "--venv", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Use its Python and packages."
)
@click.option(
    "--import", "imports", multiple=True, metavar="MODULE", help="Import this too, beside the standard library."
)
@click.option(
    "--cpu",
    type=click.Choice(["portable", "native"]),
    default="portable",
    show_default=True,
    help="portable: runs on every x86-64-v2 processor; native: uses all that this one has.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@exit_codes
def build_command(name: str, venv: Path | None, imports: tuple[str, ...], cpu: str, quiet: bool, as_json: bool) -> None:
    """Warm CPython up with its imports and save it as NAME."""
    start = time.monotonic()

    def console(_: int, data: bytes) -> int:
        if not quiet:
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
        return len(data)

    meta = templates.build(open_host(), name, imports=imports, venv=venv, portable=cpu == "portable", output=console)
    if as_json:
        click.echo(json.dumps(_summary(meta)))
    elif not quiet:
        stored = _summary(meta)["stored_bytes"] / MIB
        click.echo(f"{name}: {stored:.1f} MiB, built in {time.monotonic() - start:.1f} s")


@template_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@exit_codes
def list_command(as_json: bool) -> None:
    """List the templates that exist. Exit status 1 if one of them can't be read; the others are listed."""
    found, refused = [], []
    for name in templates.names():
        try:
            found.append(_summary(templates.inspect(name)))
        except TemplateError as error:
            refused.append(str(error))
    if as_json:
        click.echo(json.dumps(found))
    for entry in () if as_json else found:
        modules = f", {len(entry['imports'])} more imports" if entry["imports"] else ""
        click.echo(f"{entry['name']:20} {entry['stored_bytes'] / MIB:7.1f} MiB  {entry['created']}{modules}")
    if not (found or refused or as_json):
        click.echo("none yet; `seamgate vm template build` makes one")
    for reason in refused:
        click.echo(f"error: {reason}", err=True)
    sys.exit(_NO if refused else 0)


@template_group.command("inspect")
@click.argument("name", default=DEFAULT_TEMPLATE)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@exit_codes
def inspect_command(name: str, as_json: bool) -> None:
    """Say what a template is."""
    summary = _summary(templates.inspect(name))
    if as_json:
        click.echo(json.dumps(summary))
        return
    for key, value in summary.items():
        click.echo(f"{key:30} {', '.join(value) if isinstance(value, list) else value}")


@template_group.command("verify")
@click.argument("name", default=DEFAULT_TEMPLATE)
@exit_codes
def verify_command(name: str) -> None:
    """Check every digest of a template, and whether it fits this machine. Exit status 1 if not."""
    path = templates.path_of(name)
    host = open_host()
    if not path.exists():
        templates.inspect(name)  # says which there are
    try:
        meta = templates.inspect(name)
        check_fits(path, meta, host)
        load(path, host).close()
    except TemplateError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(_NO)
    click.echo(f"{name}: whole, and fits this machine ({len(meta.extents)} extents)")


@vm.command("pool")
@click.option("--template", "name", default=DEFAULT_TEMPLATE, show_default=True, help="Restore this template.")
@click.option("--guests", default=16, show_default=True, type=click.IntRange(1, 10_000), help="How many to keep warm.")
@click.option("--rest", is_flag=True, help="Park guests, hibernate and resume them instead, and check that they go on.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@exit_codes
def pool_command(name: str, guests: int, rest: bool, as_json: bool) -> None:
    """Make guests warm, run an empty program in each, and time both. They have no network here."""
    from seamgate_vmm.bench.empty import PoolReport, pool_report
    from seamgate_vmm.bench.resting import RestReport, rest_report

    template = ensure_template(name)
    report: PoolReport | RestReport
    if rest:
        report = asyncio.run(rest_report(template, guests))
    else:
        report = asyncio.run(pool_report(template, guests))
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        click.echo(str(report))
    sys.exit(0 if report.right == guests else _NO)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    vm()
