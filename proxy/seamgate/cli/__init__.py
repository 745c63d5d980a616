"""The command line: `seamgate`. One module a command group, each imported when it is called for.

Called by people and by the script `seamgate`; nothing in the package imports it. Exit codes: 0 fine, 1 the answer is
no, 2 usage or configuration, 3 a prerequisite is missing. Errors that we know are one line and what to do, never a
traceback.
"""

from __future__ import annotations

import os

import click

from seamgate import __version__
from seamgate.cli.commands import Commands


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="seamgate", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """An egress policy gateway for AI agents.

    Agents run behind it; a policy in YAML says what they may ask of the network, credentials go in at the last hop,
    and every request leaves a record. Begin with `seamgate demo`, then `seamgate init`.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False
    elif os.environ.get("FORCE_COLOR"):
        context.color = True
