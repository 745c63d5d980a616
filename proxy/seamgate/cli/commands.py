"""The table of commands, imported one by one, and what becomes of their errors.

`seamgate --help` and shell completion read the table alone, so that they answer at once; a command's module, with all
that it needs, is imported when the command is called. A `SeamgateError` becomes one line, the place in the file if it
has one, and the exit code that docs/cli.md gives it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import click

from seamgate.errors import ConfigError, PrerequisiteMissing, SeamgateError
from seamgate.hints import did_you_mean

EXIT_NO: Final = 1
EXIT_USAGE: Final = 2
EXIT_MISSING: Final = 3
_LONGEST_SHOWN = 160
_LONGEST_HELP = 1000


class Lazy(NamedTuple):
    """A command that is not imported yet: its module and attribute, and its line in `seamgate --help`."""

    module: str
    attribute: str
    help: str


COMMANDS: Final[Mapping[str, Lazy]] = {
    "demo": Lazy("demo", "demo", "Show the whole story on this machine: no configuration, no internet."),
    "init": Lazy("init", "init", "Write a starter configuration, policy and policy test into a folder."),
    "run": Lazy("run", "run", "Run a program as a guest, under a gateway of its own."),
    "serve": Lazy("serve", "serve", "Run the gateway."),
    "reload": Lazy("reload", "reload", "Have a running gateway load its policies and credentials again."),
    "status": Lazy("status", "status", "Show what a running gateway is doing."),
    "policy": Lazy("policy_commands", "policy", "Check, test, explain and compare policies."),
    "audit": Lazy("audit_commands", "audit", "Verify, watch, query and export the audit log."),
    "plugins": Lazy("plugins", "plugins", "List and check plugins."),
    "vm": Lazy("vm", "vm", "Guests in microVMs: templates, a pool of warm guests, measurements."),
    "ca": Lazy("ca", "ca", "Make, show and hand out the gateway's certificate authority."),
    "doctor": Lazy("doctor", "doctor", "Look at this machine: what works, what does not, what to do."),
    "completion": Lazy("completion", "completion", "Print the completion script of a shell."),
}


class Group(click.Group):
    """A group of commands: lists the whole first sentence of each, which click would cut at the line's end."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list; long sentences are wrapped."""
        commands = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        if commands:
            with formatter.section("Commands"):
                formatter.write_dl([(name, command.get_short_help_str(_LONGEST_HELP)) for name, command in commands])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the options that stand before the command."""
        with _told_alike():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _told_alike():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say which command was meant, where there is none of this name."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {name!r}{did_you_mean(name, known, 'there are')}", ctx)
        return super().resolve_command(ctx, args)


class Commands(Group):
    """The top-level group: lists the table, imports what is called, translates errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it; None if there is none of this name."""
        lazy = COMMANDS.get(cmd_name)
        return load(lazy) if lazy is not None else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that we know ends as a message and an exit code."""
        try:
            return super().invoke(ctx)
        except SeamgateError as error:
            refusal = MissingRefusal if isinstance(error, PrerequisiteMissing) else Refusal
            raise refusal(error) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete names of commands from the table."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=lazy.help) for name, lazy in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)] if incomplete.startswith("-") else found


def load(lazy: Lazy) -> click.Command:
    """Import a command."""
    command: click.Command = getattr(import_module(f"seamgate.cli.{lazy.module}"), lazy.attribute)
    return command


@contextlib.contextmanager
def _told_alike() -> Iterator[None]:
    """Have click's own errors end in the form of ours: `error: ` and a message, on standard error."""
    try:
        yield
    except (Refusal, Misuse, click.exceptions.NoArgsIsHelpError):
        raise
    except click.ClickException as error:
        raise Misuse(error) from error


class Misuse(click.ClickException):
    """What click has against a command line, or a command against what it was given, on its way to a person."""

    exit_code = EXIT_USAGE

    def __init__(self, error: click.ClickException) -> None:
        super().__init__(error.format_message())
        self.context = error.ctx if isinstance(error, click.UsageError) else None

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the usage, where it was not followed, and the message."""
        context = self.context
        if context is not None:
            hint = f"Try '{context.command_path} {max(context.help_option_names, key=len)}' for help.\n"
            click.echo(f"{context.get_usage()}\n{hint}", err=True, color=_color())
        click.echo(f"{_label()} {self.message}", err=True, color=_color())


def _label() -> str:
    return click.style("error:", fg="red", bold=True)


class Refusal(click.ClickException):
    """A SeamgateError on its way to a person. What we refuse at start is for the operator to mend: exit code 2."""

    exit_code = EXIT_USAGE

    def __init__(self, error: SeamgateError) -> None:
        super().__init__(error.message)
        self.error = error

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, and below it the line of the file that it is about."""
        click.echo(f"{_label()} {self.error.message}", err=True, color=_color())
        if isinstance(self.error, ConfigError):
            excerpt = source_excerpt(self.error)
            if excerpt:
                click.echo(excerpt, err=True, color=_color())


class MissingRefusal(Refusal):
    """Something that the command needs is not there."""

    exit_code = EXIT_MISSING


def _color() -> bool | None:
    context = click.get_current_context(silent=True)
    return context.color if context is not None else None


def source_excerpt(error: ConfigError) -> str:
    """Return the line that an error is about with a caret below its column, or "" where there is none to show."""
    if not error.line or not error.source:
        return ""
    try:
        lines = Path(error.source).read_text(encoding="utf-8", errors="replace").splitlines()
        line = lines[error.line - 1]
    except (OSError, IndexError):
        return ""
    column = max(error.column, 1)
    start = max(0, column - _LONGEST_SHOWN + 20)
    shown = "".join(char if char.isprintable() else " " for char in line[start : start + _LONGEST_SHOWN])
    number = str(error.line)
    caret = click.style("^", fg="red", bold=True)
    return f"  {number} | {shown}\n  {' ' * len(number)} | {' ' * (column - 1 - start)}{caret}"
