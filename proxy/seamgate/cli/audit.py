"""`seamgate audit`: verify the journal, watch it, ask it. Reads only; the gateway may be writing meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from seamgate.audit.config import default_path
from seamgate.audit.line import read_link
from seamgate.audit.reading import Follower, last_lines, read_lines, size_bytes, verify_journal
from seamgate.audit.schema import schema_text
from seamgate.audit.verify import Problem, Report
from seamgate.audit.view import Filter, parse_fields, parse_moment, printable_json, read_facts, render
from seamgate.cli.commands import Group
from seamgate.errors import AuditError

# A journal of this size takes about a second to verify: from here on a person wants to see that it goes on.
_PROGRESS_FROM_BYTES = 32 * 1024 * 1024

_PATH = click.argument("path", required=False, type=click.Path(path_type=Path, dir_okay=False))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_WHERE = click.option(
    "--where", "fields", multiple=True, metavar="FIELD=VALUE", help="Only lines with this value, e.g. request.host=x."
)
_DENIED = click.option("--denied", is_flag=True, help="Only what was refused.")
_GUEST = click.option("--guest", default="", help="Only this guest.")
_SINCE = click.option("--since", default="", metavar="TIME", help="2026-12-01T09:00:00Z, a date, or 15m, 2h, 7d ago.")
_UNTIL = click.option("--until", default="", metavar="TIME", help="As --since; lines before it.")


class _CantRead(click.ClickException):
    """There is nothing to read, or the question can't be understood."""

    exit_code = 2


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except AuditError as error:
        raise _CantRead(error.message) from None
    except BrokenPipeError:
        raise  # who reads our output has had enough, which is no fault of the journal: click ends quietly
    except OSError as error:
        raise _CantRead(f"the journal can't be read: {error.strerror} ({error.filename})") from None


@click.group(cls=Group)
def audit() -> None:
    """The audit log. PATH is the journal; by default $SEAMGATE_AUDIT, else the user's state directory."""


@audit.command()
@_PATH
@click.option("--expect-head", "expect", default="", metavar="HASH", help="A head hash that was noted down elsewhere.")
@click.option("--allow-gaps", is_flag=True, help="Exit 0 although the journal itself records that records are lost.")
@click.option("--partial", is_flag=True, help="The chain may begin at any line: older segments are kept elsewhere.")
@click.option("--no-head", is_flag=True, help="There is no head file (a copy): don't judge where the journal ends.")
@_JSON
def verify(path: Path | None, expect: str, allow_gaps: bool, partial: bool, no_head: bool, as_json: bool) -> None:
    """Check every line against the chain; name the first that was edited, dropped, reordered, inserted or cut.

    Prints the head hash: keep it elsewhere, and give it to --expect-head later. Exit code 1: it does not verify.
    """
    journal = path or default_path()
    with _readable(), _progress(journal) as on_progress:
        report = verify_journal(
            journal, expect_hash=_hash(expect), partial=partial, use_head=not no_head, on_progress=on_progress
        )
    lossy = bool(report.losses) and not allow_gaps
    if as_json:
        click.echo(msgspec.json.encode(_report_facts(journal, report, lossy)).decode())
    else:
        _print_report(journal, report, lossy)
    if report.fault is not None or lossy:
        raise SystemExit(1)


@audit.command()
@_PATH
@click.option("-f", "--follow", is_flag=True, help="Go on with lines as they come, over rotations.")
@click.option("-n", "--lines", "count", default=20, show_default=True, type=click.IntRange(0))
@_DENIED
@_GUEST
@_WHERE
@_JSON
def tail(
    path: Path | None, follow: bool, count: int, denied: bool, guest: str, fields: tuple[str, ...], as_json: bool
) -> None:
    """Show the last records: time, guest, verdict, method, URL, rule or reason, status, duration."""
    journal = path or default_path()
    with _readable():
        wanted = _filter(fields, guest, denied)
        lines = last_lines(journal, count if not wanted.fields and not denied else sys.maxsize)
        shown = [line for line in lines if _show(line, wanted)]
        for line in shown[len(shown) - count :] if count < len(shown) else shown:
            _print_line(line, as_json)
        if follow:
            _follow(journal, wanted, as_json)


@audit.command()
@_PATH
@_WHERE
@_GUEST
@_DENIED
@_SINCE
@_UNTIL
@click.option("--limit", type=click.IntRange(1), help="Stop after this many.")
def query(
    path: Path | None,
    fields: tuple[str, ...],
    guest: str,
    denied: bool,
    since: str,
    until: str,
    limit: int | None,
) -> None:
    """Print the matching lines as they stand in the journal, as JSON lines."""
    journal = path or default_path()
    with _readable():
        wanted = _filter(fields, guest, denied, since, until)
        found = 0
        for line in read_lines(journal):
            if _show(line, wanted):
                _print_line(line, as_json=True)
                found += 1
                if found == limit:
                    return


@audit.command()
def schema() -> None:
    """Print the JSON Schema of a line."""
    click.echo(schema_text(), nl=False)


def _filter(fields: tuple[str, ...], guest: str, denied: bool, since: str = "", until: str = "") -> Filter:
    now = time.time()
    pairs = parse_fields(fields)
    return Filter(
        (*pairs, ("guest", guest)) if guest else pairs,
        denied,
        parse_moment(since, now) if since else "",
        parse_moment(until, now) if until else "",
    )


def _show(line: bytes, wanted: Filter) -> bool:
    return wanted == Filter() or wanted.admits(read_facts(line))


def _print_line(line: bytes, as_json: bool) -> None:
    click.echo(_json_text(line) if as_json else render(read_facts(line)))


def _json_text(line: bytes) -> str:
    """The line to the byte for a pipe; for a terminal with all that is not printable as JSON escapes."""
    text = line.decode("utf-8", "replace").rstrip("\n")
    return printable_json(text) if sys.stdout.isatty() else text


def _follow(journal: Path, wanted: Filter, as_json: bool) -> None:
    newest = last_lines(journal, 1)
    link = read_link(newest[0]) if newest else None
    try:
        for line in Follower(journal, link.seq if link else 0).follow():
            if _show(line, wanted):
                _print_line(line, as_json)
                sys.stdout.flush()
    except KeyboardInterrupt:
        return


def _hash(text: str) -> str:
    digest = text.strip().lower()
    if digest and (len(digest) != 64 or digest.strip("0123456789abcdef")):
        raise _CantRead(f"--expect-head takes the 64 hex digits that `audit verify` printed, not {text!r}")
    return digest


@contextmanager
def _progress(journal: Path) -> Iterator[Any]:
    total = size_bytes(journal)
    hidden = total < _PROGRESS_FROM_BYTES or not sys.stderr.isatty()
    with click.progressbar(length=total, label="reading", file=sys.stderr, hidden=hidden) as bar:
        yield bar.update


def _report_facts(journal: Path, report: Report, lossy: bool) -> dict[str, Any]:
    return {
        "path": str(journal),
        "ok": report.fault is None and not lossy,
        "lines": report.lines,
        "first_seq": report.first_seq,
        "last_seq": report.last_seq,
        "head_hash": report.head_hash,
        "fault": report.fault,
        "gaps": report.gaps,
        "lost": report.lost,
        "anchor_seq": report.anchor_seq,
        "notes": report.notes,
    }


def _print_report(journal: Path, report: Report, lossy: bool) -> None:
    for entry in report.gaps:
        colour = "red" if entry in report.losses else "yellow"
        name = click.style(f"gap {entry.gap.cause}", fg=colour)
        click.echo(f"{name}  {entry.file} line {entry.line} (record {entry.seq}): {entry.gap.detail}")
    for note in report.notes:
        click.echo(f"note  {note}")
    if report.anchor_seq:
        click.echo(f"anchor  the expected hash is that of record {report.anchor_seq}")
    fault = report.fault
    if fault is not None:
        place = f"{fault.file} line {fault.line} (record {fault.seq})" if fault.line else str(journal)
        click.echo(f"{click.style(fault.problem.upper(), fg='red', bold=True)}  {place}: {fault.message}")
        where = "up to there" if fault.problem is Problem.TRUNCATED else "before it" if fault.line else "that are there"
        many = fault.whole != 1
        click.echo(f"{fault.whole} record{'s' * many} {where} {'are' if many else 'is'} whole")
        return
    span = f"records {report.first_seq} to {report.last_seq}" if report.lines else "no record yet"
    verdict = click.style("INCOMPLETE", fg="red", bold=True) if lossy else click.style("OK", fg="green", bold=True)
    click.echo(f"{verdict}  {journal}: {span}, every line is as it was written")
    if lossy:
        click.echo(f"{len(report.losses)} gap(s) above mean that records are lost; --allow-gaps accepts them")
    click.echo(f"head  {report.head_hash}")
