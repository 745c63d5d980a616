"""`seamgate completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(seamgate completion bash)"              in ~/.bashrc
    zsh:   eval "$(seamgate completion zsh)"               in ~/.zshrc
    fish:  seamgate completion fish > ~/.config/fish/completions/seamgate.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "seamgate", "_SEAMGATE_COMPLETE").source())
