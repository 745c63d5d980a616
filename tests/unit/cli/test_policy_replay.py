"""`seamgate policy replay`: what an audit log recorded, judged anew; what is not recorded is never guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.record import AuditBytes, AuditGateway, AuditKind, AuditRecord, AuditRequest
from seamgate.cli import main
from seamgate.errors import Reason
from seamgate.flow import Step
from seamgate.testing import make_guest, make_record, make_request

OLD = make_guest("g1", team="research")
NEW = """\
seamgate: 1
rules:
  - id: read
    allow: {hosts: [api.test], methods: read, paths: ["/v1/**"]}
  - id: chat
    allow: {hosts: [api.test], methods: [POST], paths: [/v1/chat], json: {model: m}}
    guests: {team: research}
  - id: no-keys
    deny: {hosts: [api.test], paths: ["/v1/keys/**"]}
    except: {headers: {x-role: admin}}
  - id: cdn
    allow: {hosts: [cdn.test]}
    expires: 2026-09-01
"""


def allowed(line: str, rule: str, **facts: Any) -> AuditRecord:
    """A request that was allowed and answered."""
    steps = (Step("policy", "judge_request", 1.0, "allow"),)
    return make_record(make_request(line, guest=OLD), rule=rule, **{"steps": steps, **facts})


def denied(line: str, reason: Reason = Reason.NO_RULE_MATCHED, said: str = "deny", **facts: Any) -> AuditRecord:
    """A request that was denied."""
    steps = (Step("policy", "judge_request", 1.0, said),)
    asked = make_request(line, guest=OLD)
    return make_record(asked, verdict="deny", outcome="denied", status=403, reason=reason, **{"steps": steps, **facts})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy, in the current folder."""
    (tmp_path / "new.yaml").write_text(NEW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def journal(*records: AuditRecord) -> None:
    """Write an audit log, as a gateway does."""
    made = Journal(AuditConfig(path="audit.jsonl"))
    for record in records:
        made.append(record)
    made.flush()
    made.close()


def run(*arguments: str, code: int = 0) -> Result:
    """Run the command and check its exit code."""
    result = CliRunner().invoke(main, ["policy", "replay", "new.yaml", "--audit", "audit.jsonl", *arguments])
    assert result.exit_code == code, result.output
    return result


def told(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Return what --json says."""
    found: dict[str, Any] = json.loads(run("--json", *arguments, code=code).stdout)
    return found


def test_changes_are_grouped_by_rule() -> None:
    """Newly denied, newly allowed, allowed by another rule: counted, with who and with examples."""
    journal(
        allowed("GET https://api.test/v1/a", "read"),
        allowed("GET https://api.test/v1/b", "old-read"),
        *[allowed(f"GET https://gone.test/{number}", "gone") for number in range(5)],
        denied("HEAD https://api.test/v1/c"),
        denied("GET https://elsewhere.test/"),
    )
    found = told()
    assert (found["requests"], found["same"]) == (9, 2)
    changes = {each["change"]: each for each in found["changes"]}
    gone = changes["newly_denied"]
    assert (gone["was_rule"], gone["rule"], gone["reason"], gone["count"]) == ("gone", "", "no_rule_matched", 5)
    assert gone["examples"] == [f"GET https://gone.test/{number}" for number in range(3)]
    assert changes["newly_allowed"]["examples"] == ["HEAD https://api.test/v1/c"]
    assert (changes["another_rule"]["was_rule"], changes["another_rule"]["rule"]) == ("old-read", "read")
    people = run().output
    assert "2 as recorded, 5 newly denied, 1 newly allowed, 1 by another rule" in people
    assert "newly denied  no_rule_matched, was gone" in people


def test_exit_codes_are_what_is_asked_for() -> None:
    """A change is an answer, not a failure, unless the caller says so."""
    journal(allowed("GET https://gone.test/", "gone"))
    run()
    run("--fail-on-widening")
    run("--fail-on-denial", code=1)
    journal(denied("GET https://api.test/v1/x"))
    run("--fail-on-widening", code=1)


def test_what_hangs_on_headers_or_bodies_is_named_and_not_guessed() -> None:
    """With the rules, where they stand, and what they ask for; what does not hang on it is certain."""
    journal(
        allowed("POST https://api.test/v1/chat", "chat"),
        denied("GET https://api.test/v1/keys/1", Reason.RULE_DENIED, rule="no-keys"),
        allowed("POST https://other.test/v1/chat", "gone"),
        allowed("POST https://api.test/v1/chat", "chat", bytes=AuditBytes(0, 1)),
    )
    found = told()
    assert [(each["rule"], each["asks"]) for group in found["untold"] for each in group["hangs_on"]] == [
        ("chat", ["json model: m"]),
        ("no-keys", ["headers x-role: admin"]),
    ]
    assert [group["count"] for group in found["untold"]] == [2, 1]
    assert [(each["change"], each["count"]) for each in found["changes"]] == [("newly_denied", 1)]
    people = run().output
    assert "3 can not be told" in people
    assert "chat  new.yaml:5  json model: m" in people


def test_a_query_counts_only_if_it_was_recorded_whole(folder: Path) -> None:
    """With `query: full` it is there; names alone, or nothing, tell nothing."""
    (folder / "new.yaml").write_text("seamgate: 1\nrules: [{id: q, allow: {hosts: [api.test], query: {a: '1'}}}]\n")
    whole = AuditRequest("GET", "https", "api.test", 443, "/", query="a=1")
    journal(
        allowed("GET https://api.test/?a=1", "q", request=whole),
        allowed("GET https://api.test/?a=1", "q"),
        allowed("GET https://api.test/", "q"),
    )
    found = told()
    assert (found["same"], found["untold"][0]["count"]) == (1, 2)


def test_it_is_judged_as_of_its_own_time() -> None:
    """A rule that had expired by then does not allow."""
    journal(allowed("GET https://cdn.test/", "cdn"), allowed("GET https://cdn.test/", "cdn", time=1_780_000_000.0))
    found = told()
    assert (found["same"], found["changes"][0]["count"]) == (1, 1)


def test_what_other_plugins_said_is_not_the_policys_word() -> None:
    """A request that the policy allowed and another plugin denied is the same for the policy."""
    journal(denied("GET https://api.test/v1/x", Reason.PLACEHOLDER_MISPLACED, said="allow", rule="read"))
    assert told()["same"] == 1


def test_what_can_not_be_replayed_is_counted_by_reason() -> None:
    """Refusals before policy, limits, cut paths, tunnels, packets: each by name."""
    asked = make_request("GET https://api.test/v1/x", guest=OLD)
    journal(
        make_record(None, verdict="deny", reason=Reason.BAD_REQUEST, outcome="denied", status=400),
        denied("GET https://api.test/v1/x", Reason.RATE_LIMITED),
        denied("GET https://api.test/v1/x", request=AuditRequest("GET", "https", "api.test", 443)),
        denied("GET https://api.test/v1/x", request=AuditRequest("SEND", "udp", "10.0.0.1", 53)),
        AuditRecord(asked.received_at, AuditKind.GATEWAY, gateway=AuditGateway("start")),
    )
    found = told()
    assert (found["requests"], found["untold"]) == (0, [])
    assert sorted(found["not_replayed"].values()) == [1, 1, 1, 1]
    assert "denied by a limit of requests, which is not replayed" in run().output


def test_a_stream_that_passed_unread_is_judged_by_its_target(folder: Path) -> None:
    """protocol: tcp; nothing of what is unknown counts there."""
    (folder / "new.yaml").write_text(
        "seamgate: 1\nrules: [{id: db, allow: {hosts: [db.test], ports: [5432], protocol: tcp}}]\n"
    )
    steps = (Step("policy", "judge_connect", 1.0, "allow"),)
    for host, same in (("db.test", 1), ("db2.test", 0)):
        request = AuditRequest("CONNECT", "tcp", host, 5432)
        asked = make_record(make_request("GET https://x.test/", guest=OLD), rule="db", request=request, steps=steps)
        journal(AuditRecord(**{**{f: getattr(asked, f) for f in asked.__struct_fields__}, "kind": AuditKind.CONNECT}))
        assert told("--since", "2020-01-01")["same"] == same
        Path("audit.jsonl").unlink()
        Path("audit.jsonl.head").unlink()


def test_no_log_and_no_policy_are_errors(folder: Path) -> None:
    """Exit code 2, with what to do."""
    assert "there is no journal" in run(code=2).output
    journal()
    assert "is not a time" in run("--since", "yesterday", code=2).output
