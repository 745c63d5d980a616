"""`seamgate audit`: exit codes, JSON, and what people read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.record import (
    AuditGap,
    AuditGuest,
    AuditKind,
    AuditRecord,
    AuditRequest,
    Decision,
    GapCause,
    Outcome,
)
from seamgate.audit.schema import schema_text
from seamgate.cli.audit_commands import audit
from seamgate.errors import Reason


def _record(number: int) -> AuditRecord:
    allowed = number % 2 == 0
    return AuditRecord(
        1_800_000_000.0 + number,
        AuditKind.REQUEST,
        id=f"r-{number}",
        guest=AuditGuest(f"g-{number % 3}"),
        request=AuditRequest("GET", "https", "api.example.com", 443, f"/{number}"),
        verdict=Decision.ALLOW if allowed else Decision.DENY,
        reason=Reason.ALLOWED if allowed else Reason.NO_RULE_MATCHED,
        outcome=Outcome.COMPLETE if allowed else Outcome.DENIED,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    for number in range(10):
        journal.append(_record(number))
    journal.close()
    return path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(audit, [str(argument) for argument in arguments])


def test_verify_prints_the_head_to_note_down(path: Path) -> None:
    """Exit 0, the span of records, and a hash that --expect-head takes back."""
    result = _run("verify", path)
    assert result.exit_code == 0
    assert "OK" in result.output
    assert "records 1 to 10" in result.output
    head = result.output.split()[-1]
    assert _run("verify", path, "--expect-head", head.upper()).exit_code == 0
    wrong = _run("verify", path, "--expect-head", "ab" * 32)
    assert (wrong.exit_code, "ANCHOR_MISSING" in wrong.output) == (1, True)


def test_verify_names_file_line_and_record(path: Path) -> None:
    """Exit 1, and where to look."""
    path.write_bytes(path.read_bytes().replace(b'"/3"', b'"/x"'))
    result = _run("verify", path)
    assert result.exit_code == 1
    assert "EDITED  audit.jsonl line 4 (record 4)" in result.output
    assert "\n3 records before it are whole\n" in result.output
    facts = json.loads(_run("verify", path, "--json").output)
    assert facts["ok"] is False
    assert {key: facts["fault"][key] for key in ("file", "line", "seq", "problem")} == {
        "file": "audit.jsonl", "line": 4, "seq": 4, "problem": "edited",
    }  # fmt: skip
    assert (facts["fault"]["whole"], facts["last_seq"]) == (3, 3)


def test_what_is_whole_is_counted_up_to_the_first_wrong_line(path: Path) -> None:
    """Whether the line itself, the one after it or the head gives it away; what is left where some are gone."""
    lines = path.read_bytes().splitlines(keepends=True)
    cases = {
        b"".join([lines[0].replace(b"/0", b"/z"), *lines[1:]]): "0 records before it are whole",
        b"".join([lines[0], lines[1].replace(b"/1", b"/z"), *lines[2:]]): "1 record before it is whole",
        b"".join([*lines[:9], lines[9].replace(b"/9", b"/z")]): "9 records before it are whole",
        b"".join([*lines[:4], *lines[5:]]): "4 records before it are whole",
        b"".join([*lines[:4], lines[3], *lines[4:]]): "4 records before it are whole",
        b"".join(lines[:7]): "7 records up to there are whole",
    }
    for text, said in cases.items():
        path.write_bytes(text)
        assert said in _run("verify", path).output.splitlines()
    path.write_bytes(b"".join(lines))
    assert "10 records that are there are whole" in _run("verify", path, "--expect-head", "ab" * 32).output


def test_verify_does_not_call_a_lossy_journal_whole(path: Path) -> None:
    """A loss that the journal itself records is exit 1, unless one says that it is known."""
    journal = Journal(AuditConfig(path=str(path), fsync="never"))
    journal.append(AuditRecord(1.0, AuditKind.GAP, gap=AuditGap(GapCause.WRITE_FAILED, lost=3, detail="full")))
    journal.close()
    result = _run("verify", path)
    assert (result.exit_code, "INCOMPLETE" in result.output) == (1, True)
    assert _run("verify", path, "--allow-gaps").exit_code == 0
    assert json.loads(_run("verify", path, "--json").output)["ok"] is False


def test_a_copy_without_its_head(path: Path, tmp_path: Path) -> None:
    """A copy of the file alone does not verify, unless one says that there is no head."""
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    assert _run("verify", copy).exit_code == 1
    result = _run("verify", copy, "--no-head")
    assert result.exit_code == 0
    assert "may have been cut off" in result.output


def test_tail_shows_the_last_records(path: Path) -> None:
    """As many as asked for, after the filters, newest last."""
    lines = _run("tail", path, "-n", 2).output.splitlines()
    assert [line.split()[4] for line in lines] == ["https://api.example.com/8", "https://api.example.com/9"]
    denied = _run("tail", path, "-n", 2, "--denied", "--guest", "g-0").output.splitlines()
    assert [line.split()[4][-2:] for line in denied] == ["/3", "/9"]
    assert "\x1b" not in _run("tail", path).output
    assert json.loads(_run("tail", path, "-n", 1, "--json").output)["id"] == "r-9"
    assert _run("tail", path, "-n", 0).output == ""


def test_query_prints_lines_as_they_are(path: Path) -> None:
    """Filters by field and time; the output is lines of the journal, to the byte."""
    whole = path.read_text().splitlines()
    assert _run("query", path).output.splitlines() == whole
    assert _run("query", path, "--where", "request.path=/4").output.splitlines() == [whole[4]]
    assert _run("query", path, "--since", "2027-01-15T08:00:08Z").output.splitlines() == whole[8:]
    assert _run("query", path, "--until", "2027-01-15T08:00:02Z").output.splitlines() == whole[:2]
    assert _run("query", path, "--denied", "--limit", 1).output.splitlines() == [whole[1]]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nosuch=1", "no record has a field 'nosuch'; `seamgate audit schema` lists all that there are"),
        ("hots=api.example.com", "no record has a field 'hots': did you mean 'host'?"),
        ("request.metod=GET", "no record has a field 'request.metod': did you mean 'request.method'?"),
        ("verdict=denied", "verdict is never 'denied': did you mean 'deny'?"),
        ("outcome=x", "outcome is never 'x': it is one of aborted, complete, denied, failed, truncated"),
    ],
)
def test_a_question_that_no_record_can_answer_is_refused(path: Path, where: str, said: str) -> None:
    """An empty answer would read as "it never happened": exit 2, and what was meant."""
    for command in ("query", "tail"):
        result = _run(command, path, "--where", where)
        assert (result.exit_code, result.output) == (2, f"error: {said}\n")


@pytest.mark.parametrize(
    ("where", "count"),
    [("guest.labels.team=x", 0), ("gateway.facts.version=x", 0), ("guest=g-0", 4), ("status=200", 0), ("kind=gap", 0)],
)
def test_fields_that_records_may_have_can_be_asked_for(path: Path, where: str, count: int) -> None:
    """Labels and facts have names of their own; what is merely absent is no mistake."""
    result = _run("query", path, "--where", where)
    assert (result.exit_code, len(result.output.splitlines())) == (0, count)


def test_stats_count(path: Path) -> None:
    """For people and as JSON."""
    assert json.loads(_run("stats", path, "--json").output)["verdicts"] == {"allow": 5, "deny": 5}
    assert "api.example.com" in _run("stats", path).output


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "none.jsonl"],
        ["tail", "none.jsonl"],
        ["query", "none.jsonl"],
        ["stats", "none.jsonl"],
        ["verify", "--expect-head", "x"],
        ["query", "--where", "x"],
        ["query", "--since", "x"],
        ["tail", "--where", "x"],
    ],
)
def test_what_can_not_be_read_or_understood_is_exit_2(
    path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that says what to do, no traceback."""
    monkeypatch.setenv("SEAMGATE_AUDIT", str(path))
    result = _run(*arguments)
    assert result.exit_code == 2
    assert "error: " in result.output and "Error: " not in result.output
    assert isinstance(result.exception, SystemExit)


def test_the_path_can_come_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$SEAMGATE_AUDIT names the journal once for all commands."""
    monkeypatch.setenv("SEAMGATE_AUDIT", str(path))
    assert _run("verify").exit_code == 0


def test_schema_prints_the_published_schema() -> None:
    """To the byte what is in docs/."""
    assert _run("schema").output == schema_text()
