"""`seamgate audit export`: the audit log in the words of a SIEM. Reads only; the gateway may be writing meanwhile."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import click
import msgspec

from seamgate.audit.config import default_path
from seamgate.audit.formats.cef import as_cef
from seamgate.audit.formats.ocsf import as_ocsf
from seamgate.audit.formats.otlp import as_otlp
from seamgate.audit.line import read_link
from seamgate.audit.reading import Follower, read_lines
from seamgate.audit.view import Facts, Filter, read_facts
from seamgate.cli.audit import _DENIED, _GUEST, _PATH, _SINCE, _UNTIL, _WHERE, _filter, _readable
from seamgate.errors import ConfigError

_OTLP_RECORDS = 500
"""Records in one line of OTLP: some 600 KiB, well below the 4 MiB that collectors take."""
_encode = msgspec.json.Encoder().encode


def _jsonl(lines: Iterable[bytes]) -> Iterator[bytes]:
    yield from lines


def _ocsf(lines: Iterable[bytes]) -> Iterator[bytes]:
    for facts in map(read_facts, lines):
        event = as_ocsf(facts) if "time" in facts else None
        if event is not None:
            yield _encode(event) + b"\n"


def _cef(lines: Iterable[bytes]) -> Iterator[bytes]:
    for facts in map(read_facts, lines):
        event = as_cef(facts) if "time" in facts else None
        if event is not None:
            yield event.encode("utf-8", "replace") + b"\n"


def _otlp(lines: Iterable[bytes]) -> Iterator[bytes]:
    known: Iterable[Facts] = (facts for facts in map(read_facts, lines) if "time" in facts and facts["kind"] != "begin")
    left = iter(known)
    while batch := list(islice(left, _OTLP_RECORDS)):
        yield _encode(as_otlp(batch)) + b"\n"


_FORMATS: dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "ocsf": _ocsf,
    "cef": _cef,
    "otlp": _otlp,
    "jsonl": _jsonl,
}


@click.command()
@_PATH
@click.option("--format", "form", required=True, type=click.Choice(list(_FORMATS)), help="What to write.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
@click.option("-f", "--follow", is_flag=True, help="Go on with lines as they come, over rotations.")
@click.option("--after", "after", type=click.IntRange(0), default=0, metavar="SEQ", help="Only records after this one.")
@_WHERE
@_GUEST
@_DENIED
@_SINCE
@_UNTIL
def export(
    path: Path | None,
    form: str,
    output: Path | None,
    follow: bool,
    after: int,
    fields: tuple[str, ...],
    guest: str,
    denied: bool,
    since: str,
    until: str,
) -> None:
    """Print records as OCSF 1.5.0, CEF:0, OTLP (JSON) or as they stand (jsonl), one event a line.

    Lines are whole or not there. With -o the file is there at the end, and whole; with -f it is appended to, a line at
    a time, and --after (the `seq` of the last record that arrived) goes on where an export was stopped.

    \b
    seamgate audit export --format ocsf --since 1d -o events.json
    seamgate audit export --format cef --denied -f | logger --tag seamgate
    """
    journal = path or default_path()
    with _readable():
        wanted = _filter(fields, guest, denied, since, until)
        with _opened(output, follow=follow) as write:
            chooser = _Chooser(wanted, after)
            for event in _FORMATS[form](chooser.choose(read_lines(journal))):
                write(event)
            if follow:
                _follow(Follower(journal, chooser.seq), chooser, form, write)


class _Chooser:
    """Picks lines, and remembers how far it is: what is written meanwhile is neither left out nor told twice."""

    def __init__(self, wanted: Filter, after: int) -> None:
        self.seq = after
        self._wanted = wanted
        self._everything = wanted == Filter()

    def choose(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Return the lines that are wanted, of those after the last one that was looked at."""
        for line in lines:
            link = read_link(line)
            if link is None or link.seq <= self.seq:
                continue
            self.seq = link.seq
            if self._everything or self._wanted.admits(read_facts(line)):
                yield line


def _follow(follower: Follower, chooser: _Chooser, form: str, write: Callable[[bytes], None]) -> None:
    try:
        for line in follower.follow():
            for event in _FORMATS[form](chooser.choose([line])):
                write(event)
    except KeyboardInterrupt:
        return


@contextmanager
def _opened(output: Path | None, *, follow: bool) -> Iterator[Callable[[bytes], None]]:
    """Yield what writes a line: to standard output, at the end of a file, or to one that takes its place when whole."""
    if output is None:
        yield _writer(sys.stdout.buffer, flush=follow)
        return
    try:
        if follow:
            with output.open("ab", buffering=0) as file:
                yield _writer(file, flush=False)
            return
        with _replacing(output) as file:
            yield _writer(file, flush=False)
    except OSError as error:
        raise ConfigError(f"{output} can't be written: {error.strerror}") from None


@contextmanager
def _replacing(output: Path) -> Iterator[IO[bytes]]:
    """Yield a file beside the output that takes its place once all is written; gone if anything fails."""
    descriptor, name = tempfile.mkstemp(dir=output.absolute().parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _writer(file: IO[bytes], *, flush: bool) -> Callable[[bytes], None]:
    def write(line: bytes) -> None:
        file.write(line)
        if flush:
            file.flush()

    return write
