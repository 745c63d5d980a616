"""`seamgate serve --check`: whether a configuration can be used, told to people or as JSON.

Called by `seamgate.cli.serve`, which has a successor ask the same before it takes over. Listens nowhere, and leaves the
journal untouched.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from seamgate.audit.writable import check_writable
from seamgate.cli.commands import EXIT_MISSING, EXIT_USAGE
from seamgate.cli.policy import finding_line
from seamgate.config import Config, load_config
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.unbound import find_unbound, find_unknown_methods
from seamgate.entry.identity import Identities
from seamgate.errors import ConfigError, PrerequisiteMissing, SeamgateError
from seamgate.exposure import find_exposure
from seamgate.flow import Isolation
from seamgate.policy.files import read_policies
from seamgate.policy.lint import Finding
from seamgate.registry import load_plugins
from seamgate.signing import check_authorities
from seamgate.upstream.addresses import compile_permit
from seamgate.upstream.tls import UpstreamTls


def tell_whether_it_loads(path: Path, *, as_json: bool) -> None:
    """Print what a start would meet.

    Raises:
        SeamgateError: it can't be used; as JSON that is printed instead.
        SystemExit: likewise, as JSON: 2, or 3 where a prerequisite is missing.
    """
    try:
        findings = _findings(load_config(path))
    except SeamgateError as error:
        if not as_json:
            raise
        click.echo(json.dumps(_as_json(path, (), error)))
        raise SystemExit(EXIT_MISSING if isinstance(error, PrerequisiteMissing) else EXIT_USAGE) from None
    if as_json:
        click.echo(json.dumps(_as_json(path, findings, None)))
        return
    for finding in findings:
        click.echo(finding_line(finding), err=True)
    click.echo(f"{path}: everything loads")


def _findings(config: Config) -> list[Finding]:
    uvloop.run(check_config(config))
    return [
        *find_unbound(read_policies(config.policies), config.credentials),
        *find_unknown_methods(config.credentials, config.source),
        *find_exposure(config),
    ]


def _as_json(path: Path, findings: Sequence[Finding], error: SeamgateError | None) -> dict[str, Any]:
    place = {"file": error.source, "line": error.line, "column": error.column} if isinstance(error, ConfigError) else {}
    message = error.bare_message if isinstance(error, ConfigError) else error.message if error is not None else ""
    return {
        "configuration": str(path),
        "loads": error is None,
        "errors": [] if error is None else [{**place, "message": message}],
        "findings": [msgspec.structs.asdict(each) for each in findings],
    }


async def check_config(config: Config) -> None:
    """Load what a start loads, in a loop as it does, without listening and without touching the journal.

    Raises:
        SeamgateError: something of it can't be used.
    """
    check_writable(config.audit.file)
    if config.entries.terminate:
        check_authorities(config)
    load_plugins(config, 1, time.time)
    UpstreamTls(config.upstream_tls, base=config.base)
    Identities(config.guests, Isolation.PROXY)
    compile_permit(config.permit_addresses)
    PlaceholderIndex(config.credentials)
