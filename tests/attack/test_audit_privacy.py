"""The audit log is no way out: not for secrets into the log, not from the log onto somebody's terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.parts import request_part
from seamgate.audit.record import AuditKind, AuditRecord, AuditRequest, Decision, Outcome
from seamgate.cli.audit import audit
from seamgate.errors import Reason
from seamgate.flow import Guest, Request, Target

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\u202egnp.exe\x9b31m"


def _hostile_journal(path: Path) -> None:
    journal = Journal(AuditConfig(path=str(path)))
    journal.append(
        AuditRecord(
            1_800_000_000.0,
            AuditKind.REQUEST,
            request=AuditRequest(HOSTILE, HOSTILE, HOSTILE, 80, HOSTILE, (HOSTILE,)),
            verdict=Decision.DENY,
            reason=Reason.BAD_REQUEST,
            rule=HOSTILE,
            message=HOSTILE,
            outcome=Outcome.DENIED,
        )
    )
    journal.close()


def _on_a_terminal(arguments: list[str]) -> str:
    """Run `seamgate audit` with a real terminal as its output; return what that got."""
    ours, theirs = os.openpty()
    program = "from seamgate.cli.audit_commands import audit; audit()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], stdout=theirs, env=environment, check=False, timeout=100
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # EIO: how Linux says that the other end is closed
        pass
    os.close(ours)
    assert done.returncode == 0
    return shown.decode()


@pytest.mark.parametrize("command", [["tail"], ["stats"], ["query"], ["tail", "--json"]])
def test_a_guest_can_not_write_to_a_terminal(tmp_path: Path, command: list[str]) -> None:
    """Escape sequences, bidi overrides and carriage returns of a guest: denied, audited, and shown inert."""
    path = tmp_path / "audit.jsonl"
    _hostile_journal(path)
    # What styles our own output is taken off; so is the carriage return that a terminal puts before a line feed.
    shown = re.sub(r"\x1b\[[0-9;]*m", "", _on_a_terminal([*command, str(path)])).replace("\r\n", "\n")
    assert "bad_request" in shown
    assert "owned" in shown
    assert not set("\x1b\x07\r\u202e\x9b") & set(shown)


def test_a_pipe_gets_the_lines_to_the_byte(tmp_path: Path) -> None:
    """What goes to a program can be verified: it is the line as it was hashed."""
    path = tmp_path / "audit.jsonl"
    _hostile_journal(path)
    assert CliRunner().invoke(audit, ["query", str(path)]).stdout_bytes == path.read_bytes()


def test_a_secret_in_a_query_or_header_is_not_in_the_file(tmp_path: Path) -> None:
    """With the default configuration the exact value is nowhere on the disk."""
    config = AuditConfig(path=str(tmp_path / "audit.jsonl"))
    journal = Journal(config)
    request = Request(
        "r-1", Guest("g-1"), Target("https", "api.example.com", 443), "GET", "/v1", "key=sk-s3cret&sk-s3cret",
        headers=((b"authorization", b"Bearer sk-s3cret"),), body=b"sk-s3cret",
    )  # fmt: skip
    journal.append(AuditRecord(1.0, AuditKind.REQUEST, id=request.id, request=request_part(request, config.query)))
    journal.close()
    assert all(b"s3cret" not in file.read_bytes() for file in tmp_path.iterdir())
    assert b'"query_names":["key",""]' in config.file.read_bytes()
