"""`seamgate audit stats`: who asks for what, how often, and who is denied; with small bars for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from seamgate.audit.config import default_path
from seamgate.audit.reading import read_lines
from seamgate.audit.view import Tally, printable, read_facts
from seamgate.cli.audit import _JSON, _PATH, _SINCE, _UNTIL, _filter, _progress, _readable

_BAR = 20
_COLOURS = {"denied_hosts": "red", "denied_guests": "red", "reasons": "red", "rules": "cyan"}
_EIGHTHS = " ▏▎▍▌▋▊▉"


@click.command()
@_PATH
@_SINCE
@_UNTIL
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), help="How many of each.")
@_JSON
def stats(path: Path | None, since: str, until: str, top: int, as_json: bool) -> None:
    """Count verdicts, reasons, rules, hosts and guests, those that were denied by themselves, and requests a minute."""
    journal = path or default_path()
    tally = Tally()
    with _readable(), _progress(journal) as on_progress:
        wanted = _filter((), "", False, since, until)
        for line in read_lines(journal):
            on_progress(len(line))
            facts = read_facts(line)
            if wanted.admits(facts):
                tally.add(facts)
    summary = tally.summary(top)
    if as_json:
        click.echo(msgspec.json.encode(summary).decode())
        return
    rates = summary.pop("rates")
    for name, value in summary.items():
        if isinstance(value, dict):
            _show_counts(name, value)
        else:
            click.echo(f"{name:13} {value}")
    _show_rates(rates)


def _show_counts(name: str, counts: Mapping[str, int]) -> None:
    most = max(counts.values(), default=0)
    for place, (key, count) in enumerate(counts.items()):
        shown = click.style(f"{bar(count, most):{_BAR}}", fg=_COLOURS.get(name, "green"))
        click.echo(f"{name.replace('_', ' ') if not place else '':13} {count:>9}  {shown}  {printable(key)}")


def bar(count: int, most: int) -> str:
    """Return a bar for a count, of at most 20 characters, in eighths; something for anything above 0."""
    eighths = max(1, round(_BAR * 8 * count / most)) if count and most else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _show_rates(rates: Mapping[str, Any]) -> None:
    click.echo(f"{'rate':13} {rates['per_minute']:>9g}  requests a minute, {rates['denied_percent']:g}% denied")
    if rates["busiest_minute"]:
        click.echo(f"{'peak':13} {rates['in_busiest_minute']:>9}  in the minute of {rates['busiest_minute']}")
