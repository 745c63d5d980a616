"""`seamgate audit export` and `stats`: every record once, whole lines, over rotations; counts that people can read."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.reading import read_lines
from seamgate.audit.record import AuditKind, AuditRecord
from seamgate.cli import main
from seamgate.cli.audit_stats import bar
from seamgate.errors import Reason
from seamgate.testing import make_guest, make_record, make_request
from support.cli import COMMAND_S, environment

_WAIT_S = 30.0


def _record(
    number: int, *, host: str = "api.test", guest: str = "g", denied: bool = False, at: float = 0
) -> AuditRecord:
    asked = make_request(f"GET https://{host}/{number}", guest=make_guest(guest), request_id=f"id-{number}")
    if denied:
        facts = {"verdict": "deny", "outcome": "denied", "status": 403, "reason": Reason.NO_RULE_MATCHED}
        return make_record(asked, time=1_790_000_000.0 + at, **facts)  # type: ignore[arg-type]
    return make_record(asked, rule="read", time=1_790_000_000.0 + at)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal of small segments: a few records each."""
    return Journal(AuditConfig(path=str(tmp_path / "audit.jsonl"), max_size_bytes=4096, keep=10_000, fsync="never"))


def _write(journal: Journal, *records: AuditRecord) -> None:
    for record in records:
        journal.append(record)
    journal.flush()


def run(*arguments: str, code: int = 0) -> Result:
    """Run `seamgate audit ...`."""
    result = CliRunner().invoke(main, ["audit", *arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("form", ["ocsf", "cef", "otlp", "jsonl"])
def test_every_record_is_exported_once_over_segments(form: str, journal: Journal, tmp_path: Path) -> None:
    """In order, one event a line (OTLP: many records), to standard output and to a file alike."""
    _write(journal, *[_record(number) for number in range(60)], AuditRecord(1.0, AuditKind.BEGIN, id="begun"))
    assert len(list(tmp_path.glob("audit.jsonl.0*"))) > 3
    path = str(journal.path)
    out = run("export", path, "--format", form).stdout_bytes
    run("export", path, "--format", form, "-o", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == out
    assert out.endswith(b"\n")
    text = out.decode()
    places = [text.index(f'id-{number}"' if form != "cef" else f"externalId=id-{number} ") for number in range(60)]
    assert places == sorted(places)
    assert ("begun" in text) is (form == "jsonl")
    if form == "jsonl":
        assert out == b"".join(read_lines(journal.path))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_filters_and_after_choose(journal: Journal) -> None:
    """As for `audit query`; --after goes on behind a record."""
    _write(journal, *[_record(number, denied=number % 2 == 0) for number in range(10)])
    path = str(journal.path)
    denied = run("export", path, "--format", "ocsf", "--denied", "--after", "4").stdout.splitlines()
    assert [json.loads(line)["metadata"]["sequence"] for line in denied] == [5, 7, 9]
    assert run("export", path, "--format", "cef", "--where", "host=none.test").stdout == ""


def test_a_file_that_can_not_be_written_is_an_error_and_leaves_the_old_one(journal: Journal, tmp_path: Path) -> None:
    """Exit code 2; what was there stays whole."""
    _write(journal, _record(1))
    done = run("export", str(journal.path), "--format", "cef", "-o", str(tmp_path / "no" / "out"), code=2)
    assert "can't be written" in done.output
    (tmp_path / "out").write_text("old")
    run("export", str(tmp_path / "none.jsonl"), "--format", "cef", "-o", str(tmp_path / "out"), code=2)
    assert (tmp_path / "out").read_text() == "old"


class _Reader:
    """Collects the lines of a process, and waits for them."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.lines: list[bytes] = []
        self._process = process
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    def wait(self, condition: Callable[[list[bytes]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.lines), _WAIT_S), self.lines[-3:]


def test_following_loses_and_repeats_nothing_over_rotations(journal: Journal, tmp_path: Path) -> None:
    """While a gateway writes and rotates: each record once, in order, each line whole."""
    _write(journal, *[_record(number) for number in range(20)])
    process = subprocess.Popen(
        [sys.executable, "-m", "seamgate", "audit", "export", str(journal.path), "--format", "ocsf", "-f"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
    )
    try:
        reader = _Reader(process)
        reader.wait(lambda lines: len(lines) >= 20)
        for number in range(20, 120):
            _write(journal, _record(number))
        reader.wait(lambda lines: len(lines) >= 120)
    finally:
        process.terminate()
        process.wait(COMMAND_S)
    assert [json.loads(line)["metadata"]["sequence"] for line in reader.lines] == list(range(1, 121))
    if process.stdout is not None:
        process.stdout.close()


def test_stats_tell_who_is_denied_and_how_often(journal: Journal) -> None:
    """Counts with bars, the denied by themselves, and requests a minute."""
    _write(
        journal,
        *[_record(number, at=number) for number in range(6)],
        *[_record(number, host="bad.test", guest="h", denied=True, at=70 + number) for number in range(10)],
        *[_record(number, host="odd.test", guest="h", denied=True, at=170 + number) for number in range(10, 15)],
    )
    found = json.loads(run("stats", str(journal.path), "--json").stdout)
    assert found["denied_hosts"] == {"bad.test": 10, "odd.test": 5}
    assert found["denied_guests"] == {"h": 15}
    assert (found["rules"], found["hosts"]["api.test"]) == ({"read": 6}, 6)
    assert found["rates"] == {
        "requests": 21,
        "per_minute": 6.85,
        "busiest_minute": "2026-09-21T14:14Z",
        "in_busiest_minute": 10,
        "denied_percent": 71.4,
    }
    told = run("stats", str(journal.path), "--top", "1").output
    assert f"denied hosts         10  {'█' * 20}  bad.test" in told
    assert "odd.test" not in told
    assert "peak                 10  in the minute of 2026-09-21T14:14Z" in told


@pytest.mark.parametrize(
    ("count", "most", "drawn"), [(0, 9, ""), (1, 10_000, "▏"), (5, 10, "█" * 10), (9, 9, "█" * 20)]
)
def test_a_bar_is_never_longer_than_its_column(count: int, most: int, drawn: str) -> None:
    """And something stands for anything above nothing."""
    assert bar(count, most) == drawn
