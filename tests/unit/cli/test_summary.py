"""The end of `seamgate run`: counts and the denials that matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seamgate.cli.summary import render_summary, summarise


def _journal(folder: Path, *facts: dict[str, Any]) -> Path:
    path = folder / "j.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in facts))
    return path


def _request(verdict: str, path: str, **more: Any) -> dict[str, Any]:
    request = {"method": "GET", "host": "a.example", "path": path}
    return {"kind": "request", "verdict": verdict, "request": request, "reason": "allowed"} | more


def test_tunnels_count_only_where_they_were_refused(tmp_path: Path) -> None:
    """A tunnel that was opened is no request of its own, and what was only begun is not counted twice."""
    tunnel = {"method": "CONNECT", "host": "b.example"}
    summary = summarise(
        _journal(
            tmp_path,
            {"kind": "gateway"},
            {"kind": "connect", "verdict": "allow", "request": tunnel},
            {"kind": "begin", "verdict": "allow"},
            _request("allow", "/one"),
            {"kind": "connect", "verdict": "deny", "reason": "no_rule_matched", "request": tunnel},
        )
    )
    assert (summary.allowed, summary.denied) == (1, 1)


def test_the_most_frequent_denials_come_first(tmp_path: Path) -> None:
    """The same denial is one line with its count; beyond five kinds the rest is only counted."""
    rare = [_request("deny", f"/rare{number}", reason="rule_denied", rule="no") for number in range(6)]
    often = [_request("deny", "/often", reason="rule_denied", rule="no", message="Rule no denies it.")] * 3
    journal = _journal(tmp_path, *rare, *often)
    lines = render_summary(summarise(journal), journal).splitlines()
    assert "9 requests" in lines[0]
    assert lines[1].split()[:2] == ["3", "x"]
    assert "Rule no denies it." in lines[2]
    assert "and 2 more kinds" in lines[-2]
    assert lines[-1].endswith(f"{journal} --denied")


def test_a_count_of_nothing_has_no_colour(tmp_path: Path) -> None:
    """Not even the code that ends one."""
    text = render_summary(summarise(_journal(tmp_path, _request("allow", "/"))), tmp_path)
    assert "0 denied" in text
    assert "\x1b[0m0" not in text and "0 denied\x1b" not in text


def test_what_a_guest_sent_does_not_write_to_the_terminal(tmp_path: Path) -> None:
    """Paths and messages are made printable."""
    journal = _journal(tmp_path, _request("deny", "/\x1b]0;x\x07", reason="bad_path", message="bad \x1b[31m"))
    text = render_summary(summarise(journal), journal)
    assert "\x1b]" not in text
    assert "\\x1b" in text
