"""What `seamgate run` says on standard error, which is the program's too: lines of its own are marked."""

from __future__ import annotations

import click


def say(message: str) -> None:
    """Tell a person something about the run."""
    click.echo(f"seamgate: {message}", err=True)


def explain(line: str) -> None:
    """Tell why a program ended as it did; the line is marked already."""
    click.echo(line, err=True)


def say_nothing(_: str) -> None:
    """Standard error is the program's alone."""
