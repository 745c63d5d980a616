"""What a journal says about one run, in a few lines. Used by `seamgate run` at its end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
import msgspec

from seamgate.audit.reading import read_lines
from seamgate.audit.view import field_of, printable, read_facts
from seamgate.cli.counting import counted

_SHOWN = 5
_LONGEST_MESSAGE = 160
_NAMED = 3
"""Kinds of denial in the line for those who have no terminal."""


class Denial(msgspec.Struct, frozen=True):
    """A kind of denial: why, of what, by which rule, and the sentence that the guest got."""

    reason: str
    what: str
    rule: str
    message: str


class Summary(msgspec.Struct, frozen=True):
    """Counts of requests. A tunnel counts only where it was refused: what goes through it counts by itself."""

    allowed: int
    denied: int
    denials: tuple[tuple[Denial, int], ...]


def summarise(journal: Path) -> Summary:
    """Read a journal.

    Raises:
        AuditError: it can't be read.
    """
    allowed = 0
    denials: Counter[Denial] = Counter()
    for line in read_lines(journal):
        facts = read_facts(line)
        kind, denied = facts.get("kind"), facts.get("verdict") == "deny"
        if denied and kind in ("request", "connect"):
            what = " ".join(filter(None, (field_of(facts, "method"), field_of(facts, "host"), field_of(facts, "path"))))
            message = str(facts.get("message", ""))
            denials[Denial(str(facts.get("reason", "")), what, str(facts.get("rule", "")), message)] += 1
        elif kind == "request":
            allowed += 1
    return Summary(allowed, denials.total(), tuple(denials.most_common()))


def summary_json(summary: Summary, journal: Path) -> dict[str, Any]:
    """Return it for --json: every kind of denial, the most frequent first."""
    return {
        "allowed": summary.allowed,
        "denied": summary.denied,
        "denials": [{**msgspec.structs.asdict(denial), "count": count} for denial, count in summary.denials],
        "journal": str(journal),
    }


def _counted(count: int, what: str, color: str) -> str:
    return click.style(f"{count} {what}", fg=color) if count else f"0 {what}"


def render_summary(summary: Summary, journal: Path) -> str:
    """Return the text for people."""
    total = summary.allowed + summary.denied
    head = f"seamgate: {counted(total, 'request')}, "
    allowed = _counted(summary.allowed, "allowed", "green")
    denied = _counted(summary.denied, "denied", "red")
    lines = [f"{head}{allowed}, {denied}"]
    for denial, count in summary.denials[:_SHOWN]:
        rule = f" by rule {denial.rule}" if denial.rule else ""
        lines.append(f"  {count:>4} x {click.style(denial.reason, fg='red')}{rule}  {printable(denial.what)}")
        if denial.message:
            lines.append(f"         {click.style(_short(printable(denial.message)), dim=True)}")
    hidden = len(summary.denials) - _SHOWN
    if hidden > 0:
        lines.append(f"         and {counted(hidden, 'more kind')}")
    lines.append(f"  every record: seamgate audit tail {journal}{' --denied' if summary.denied else ''}")
    return "\n".join(lines)


def brief_summary(summary: Summary, journal: Path) -> list[str]:
    """Return two lines for a log, without colours: what was denied and where its records are; none if nothing was."""
    if not summary.denied:
        return []
    kinds = [f"{count} x {each.reason} {_short(printable(each.what))}" for each, count in summary.denials[:_NAMED]]
    hidden = len(summary.denials) - _NAMED
    told = ", ".join(kinds + ([counted(hidden, "more kind")] if hidden > 0 else []))
    return [f"{counted(summary.denied, 'request')} denied: {told}", f"why: seamgate audit tail {journal} --denied"]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 3]}..."
