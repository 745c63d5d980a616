"""`seamgate policy`: output, JSON and exit codes of each command, as a security team meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from seamgate.cli import main

POLICY = """\
seamgate: 1
layer: team
owner: secops@acme.example
rules:
  - id: messages
    allow: {hosts: [api.llm.test], methods: [POST], paths: [/v1/messages], json: {model: claude-*}}
    guests: {team: research}
    credential: llm
    limits: {requests: 60/min, request_body: 5MiB}
    reason: agents call the LLM
  - id: no-admin
    deny: {hosts: ["**.llm.test"], paths: ["/v1/admin/**"]}
    reason: accounts are for people
"""
TESTS = """\
seamgate_test: 1
policy: [research.yaml]
now: 2026-12-01T09:00:00Z
cases:
  - request: POST https://api.llm.test/v1/messages
    guest: {team: research}
    json: {model: claude-x}
    expect: allow
    rule: messages
  - {request: GET https://api.llm.test/v1/admin/keys, guest: {team: research}, rule: no-admin}
"""
GOOD = ["POST", "https://api.llm.test/v1/messages", "--guest", "team=research"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy, its tests and a body, which is the current one."""
    (tmp_path / "research.yaml").write_text(POLICY, encoding="utf-8")
    (tmp_path / "research.test.yaml").write_text(TESTS, encoding="utf-8")
    (tmp_path / "body.json").write_text('{"model": "claude-x"}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    """Run `seamgate policy ...` and check its exit code."""
    result = CliRunner().invoke(main, ["policy", *arguments], input=stdin)
    assert result.exit_code == code, result.output
    return result


def as_json(*arguments: str, code: int = 0) -> Any:
    """Run with --json and return the value."""
    return json.loads(run(*arguments, "--json", code=code).stdout)


def test_check_says_what_each_file_is() -> None:
    """One line a file; exit 0."""
    assert run("check", "research.yaml").output == "ok  research.yaml  layer team, 1 allow, 1 deny\n"
    assert as_json("check", "research.yaml")["policies"][0]["denies"] == 1


def test_check_says_what_patterns_cover() -> None:
    """With -v, each pattern of each rule in words; with --json the same as data."""
    assert run("check", "-v", "research.yaml").output.splitlines() == [
        "ok  research.yaml  layer team, 1 allow, 1 deny",
        "    messages  allow",
        "      hosts  api.llm.test  this name, and none below it",
        "      paths  /v1/messages  this path alone",
        "    no-admin  deny",
        "      hosts  **.llm.test   every name below llm.test, not llm.test itself",
        "      paths  /v1/admin/**  every path below /v1/admin/, not /v1/admin itself",
    ]
    assert as_json("check", "-v", "research.yaml")["covers"][2] == {
        "file": "research.yaml", "rule": "no-admin", "effect": "deny", "key": "hosts", "pattern": "**.llm.test",
        "covers": "every name below llm.test, not llm.test itself",
    }  # fmt: skip
    assert "covers" not in as_json("check", "research.yaml")


def test_check_warns_of_public_suffixes(folder: Path) -> None:
    """With file, line and rule, on standard error; it is legal, so exit 0."""
    (folder / "wide.yaml").write_text(
        "seamgate: 1\nrules:\n  - {id: pages, allow: {hosts: ['*.github.io']}}\n"
        "  - {id: none-there, deny: {hosts: ['**.co.uk']}}\n"
    )
    told = run("check", "wide.yaml").stderr
    assert told == (
        "wide.yaml:3: warning: pages: the host *.github.io covers names that anybody can get under github.io:"
        " name the hosts [public-suffix]\n"
    )
    assert [each["code"] for each in as_json("check", "wide.yaml")["findings"]] == ["public-suffix"]


def test_check_tells_every_file_that_is_wrong(folder: Path) -> None:
    """All errors with their places, on standard error; exit 2."""
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text("seamgate: 1\nruels: []\n", encoding="utf-8")
    result = run("check", "one.yaml", "research.yaml", "two.yaml", "none.yaml", code=2)
    assert "one.yaml:2:1: unknown key 'ruels': did you mean 'rules'?" in result.stderr
    assert "two.yaml:2:1" in result.stderr
    assert "none.yaml: can't be read: there is no such file" in result.stderr
    errors = as_json("check", "one.yaml", code=2)["errors"]
    assert (errors[0]["line"], errors[0]["column"]) == (2, 1)


MANY = """\
seamgate: 2
layr: team
rules:
  - id: a
    alow: {hosts: [a.test]}
    limts: {requests: 1/s}
  - id: b
    allow: {hosts: ["a b"], paths: [x]}
  - {id: c, allow: {hosts: [c.test]}}
  - id: c
    deny: {hosts: [c.test], schemes: [ftp]}
    mode: off
  - id: b
    allow: {hosts: [a.test]}
    when: request.method =
  - reason: no id
"""


def test_check_tells_all_that_is_wrong_with_a_file(folder: Path) -> None:
    """In the order of the file, each with its place; so that one round of mending is enough."""
    (folder / "many.yaml").write_text(MANY.replace("off", "quiet"), encoding="utf-8")
    told = run("check", "many.yaml", code=2).stderr.splitlines()
    assert [line.removeprefix("error  many.yaml:") for line in told] == [
        "1:11: seamgate: 2 means nothing here: write 1",
        "2:1: unknown key 'layr': did you mean 'layer'?",
        "5:5: unknown key 'alow' in rules[0]: did you mean 'allow'?",
        "6:5: unknown key 'limts' in rules[0]: did you mean 'limits'?",
        "8:21: what was given is not a host name: use letters, digits and hyphens, without scheme or port",
        "11:39: rules[3].deny.schemes[0]: 'ftp' means nothing here: write one of http, https",
        "12:11: rules[3].mode: 'quiet' means nothing here: write one of audit, enforce",
        "13:9: the id 'b' is already that of the rule on line 7",
        "16:5: rules[5] lacks the key 'id': add it",
    ]


def test_check_says_why_a_file_can_not_be_read(folder: Path) -> None:
    """There is none; it is a folder: each in words, with exit code 2 and without a traceback."""
    told = run("check", "none.yaml", ".", code=2).stderr.splitlines()
    assert told == [
        "error  none.yaml: can't be read: there is no such file",
        "error  .: can't be read: it is a folder; name the files in it",
    ]


def test_check_loads_files_together(folder: Path) -> None:
    """What two files contradict each other in is an error too."""
    (folder / "other.yaml").write_text(POLICY, encoding="utf-8")
    assert "other.yaml:5:5: the id 'messages' is already" in run("check", "research.yaml", "other.yaml", code=2).stderr


def test_test_prints_a_line_a_case_and_the_sum() -> None:
    """With no file named, the folder is searched; the duration of each case is told."""
    lines = run("test").output.splitlines()
    assert lines[0] == "research.test.yaml"
    assert lines[1].startswith("  ok    POST https://api.llm.test/v1/messages  [team=research]  allow messages  (")
    assert lines[1].endswith(" ms)")
    assert lines[-1].startswith("PASS: 2/2  (")
    assert run("test", "research.yaml").output.splitlines()[-1].startswith("PASS: 2/2")
    assert run("test", ".").output.splitlines()[-1].startswith("PASS: 2/2")


def test_test_fails_loudly(folder: Path) -> None:
    """Each failure with file and line; exit 1; rules that no case reaches are named."""
    (folder / "research.test.yaml").write_text(TESTS.replace("claude-x", "gpt"), encoding="utf-8")
    result = run("test", "--quiet", code=1)
    assert "FAIL  POST https://api.llm.test/v1/messages" in result.output
    assert "research.test.yaml:5: expected allow, got deny: No rule allows" in result.output
    assert "FAIL: 1/2" in result.output
    assert "no case is decided by: messages" in result.output
    assert "ok  " not in result.output
    report = as_json("test", code=1)
    assert (report["passed"], report["total"], report["undecided"]) == (1, 2, ["messages"])
    assert report["cases"][1]["reason"] == "rule_denied"


def test_test_without_a_test_is_an_error(folder: Path) -> None:
    """Nothing to run is never a pass."""
    (folder / "research.test.yaml").unlink()
    assert "there is no *.test.yaml" in run("test", code=2).output


def test_test_refuses_a_broken_policy(folder: Path) -> None:
    """A policy that does not load is exit 2, not a failed case."""
    (folder / "research.yaml").write_text("seamgate: 2\n", encoding="utf-8")
    assert "research.yaml:1:11" in run("test", code=2).output


def test_explain_an_allowed_request() -> None:
    """Exit 0, with the rule, its place and everything that goes with it."""
    output = run("explain", "--policy", "research.yaml", *GOOD, "--json-body", "body.json").output
    assert output.startswith("ALLOWED  POST https://api.llm.test/v1/messages\n")
    for text in ("messages  research.yaml:5", "agents call the LLM", "llm", "60 requests in 60 s", "5242880 bytes"):
        assert text in output


def test_explain_a_denied_request() -> None:
    """Exit 1, with the nearest rules and all that each lacked, conditions included."""
    output = run("explain", "--policy", "research.yaml", "GET", GOOD[1], "--guest", "team=ops", code=1).output
    assert output.startswith("DENIED  GET https://api.llm.test/v1/messages\n")
    assert "    messages  research.yaml:5\n" in output
    for lack in (
        "the guest's label team is 'ops', not 'research'",
        "method GET is not one of POST",
        "json model: claude-* does not hold",
    ):
        assert f"      - {lack}\n" in output


def test_explain_a_ban() -> None:
    """The rule that denies, why, and what would have allowed."""
    url, guest = "https://api.llm.test/v1/ADMIN/x", ("--guest", "team=research")
    report = as_json("explain", "--policy", "research.yaml", "GET", url, *guest, code=1)
    assert (report["effect"], report["rule"], report["phase"]) == ("deny", "no-admin", "head")
    assert report["covering"] == [{"rule": "no-admin", "effect": "deny", "place": "research.yaml:11", "outcome": "yes"}]


def test_explain_what_the_gateway_would_refuse() -> None:
    """A path or host that is not canonical is denied before policy, and told so."""
    report = as_json("explain", "--policy", "research.yaml", "GET", "https://api.llm.test/a/../b", code=1)
    assert (report["phase"], report["reason"]) == ("parse", "bad_path")


def test_explain_takes_the_policies_of_a_configuration(folder: Path) -> None:
    """seamgate.yaml in the current folder, or the one that is named."""
    config = "entries:\n  proxy: {listen: 127.0.0.1:8080}\npolicies: [research.yaml]\n"
    config += "guests:\n  a: {token: {env: A_TOKEN}}\n"
    (folder / "seamgate.yaml").write_text(config, encoding="utf-8")
    run("explain", *GOOD, "--json-body", "body.json")
    run("explain", "-c", "seamgate.yaml", *GOOD, "--json-body", "-", stdin='{"model": "gpt"}', code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["GET", "https://a.test/"], "name a policy file"),
        (["--policy", "research.yaml", "GET", "a.test"], "begin with https://"),
        (["--policy", "research.yaml", "GET", "https://a.test/", "--guest", "team"], "write NAME=VALUE"),
        (["--policy", "research.yaml", "GET", "https://a.test/", "-H", "x"], "write NAME:VALUE"),
        (["--policy", "research.yaml", "GET", "https://a.test/", "-H", "Expect: x"], "policy never sees it"),
        (["--policy", "research.yaml", "GET", "https://a.test/", "--now", "soon"], "write 2026-12-01T09:00:00Z"),
        (["--policy", "none.yaml", "GET", "https://a.test/"], "none.yaml"),
    ],
)
def test_explain_says_how_it_is_used(arguments: list[str], message: str) -> None:
    """A mistake in the call is exit 2 and a sentence."""
    assert message in run("explain", *arguments, code=2).output


def test_lint_warns_with_exit_1(folder: Path) -> None:
    """A warning is 1, a note alone is 0 unless --strict."""
    run("lint", "research.yaml")
    (folder / "wide.yaml").write_text("seamgate: 1\nrules:\n  - {id: w, allow: {hosts: ['**']}}\n", encoding="utf-8")
    output = run("lint", "wide.yaml", code=1).output
    assert "wide.yaml:3: warning: w: the host ** covers names of anybody [any-host]" in output
    assert {each["code"] for each in as_json("lint", "wide.yaml", code=1)} == {"any-host", "no-owner", "no-reason"}
    (folder / "notes.yaml").write_text("seamgate: 1\nrules:\n  - {id: w, allow: {hosts: [a.test]}}\n", encoding="utf-8")
    run("lint", "notes.yaml")
    run("lint", "--strict", "notes.yaml", code=1)


UNBOUND = """\
entries: {proxy: {listen: 127.0.0.1:0, guest: g}}
guests: {g: {}}
policies: [research.yaml]
credentials: {llm: {source: {env: K}, hosts: [api.llm.example], inject: {bearer: true}}}
"""


def test_a_credential_that_is_bound_elsewhere_is_told(folder: Path) -> None:
    """With a configuration, `lint` fails for it and `check` warns; without one nobody knows the credentials."""
    (folder / "seamgate.yaml").write_text(UNBOUND, encoding="utf-8")
    told = "research.yaml:5: warning: messages: selects the credential 'llm', which is bound to none of its hosts: "
    assert told in run("lint", code=1).output
    assert told in run("check").output
    assert [each["code"] for each in as_json("check")["findings"]] == ["credential-unbound"]
    assert told not in run("check", "research.yaml").output
    run("lint", "research.yaml")


def test_schema_is_json_schema() -> None:
    """For policies and for tests."""
    assert "PolicyFile" in run("schema").output
    assert json.loads(run("schema", "test").output)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_help_teaches_with_examples() -> None:
    """Each command shows a line to copy."""
    for command in ("check", "test", "explain", "lint", "schema"):
        assert f"seamgate policy {command}" in run(command, "--help").output
