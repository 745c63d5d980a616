"""`seamgate policy coverage`: what is exercised counts, what is not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from seamgate.cli import main

POLICY = """\
seamgate: 1
rules:
  - id: read
    allow: {hosts: [a.test, b.test], methods: read, paths: [/x, "/y/**"]}
  - id: post
    allow: {hosts: [a.test], methods: [POST, GET], json: {model: m*}}
    limits: {requests: 2/min}
  - id: ban
    deny: {hosts: ["**"], schemes: [https], paths: ["/y/secret/**"]}
    except:
      - {guests: {team: ops}, reason: operators may}
      - {guests: {team: night}, paths: ["/y/secret/log"]}
  - id: late
    allow: {hosts: [late.test]}
    expires: 2026-12-31
  - id: silent
    allow: {hosts: [silent.test]}
  - id: stream
    allow: {hosts: [db.test], ports: [5432], protocol: tcp}
"""
TESTS = """\
seamgate_test: 1
policy: [p.yaml]
now: 2026-12-01T09:00:00Z
cases:
  - {request: GET https://a.test/x, expect: allow}
  - {request: GET https://a.test/y/1, expect: allow}
  - {request: POST https://a.test/, json: {model: mini}, times: 3, reason: rate_limited}
  - {request: GET https://b.test/y/secret/1, guest: {team: ops}, expect: allow}
  - {request: GET https://a.test/y/secret/1}
  - {request: GET https://late.test/, expect: allow}
  - {request: CONNECT tcp://db.test:5432, expect: allow}
  - {request: GET https://127.1/}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy and its tests, in the current folder."""
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "p.test.yaml").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    """Run the command and check its exit code."""
    result = CliRunner().invoke(main, ["policy", "coverage", *arguments])
    assert result.exit_code == code, result.output
    return result


def found(*arguments: str, code: int = 0) -> dict[str, dict[str, int]]:
    """Return rule -> branch -> cases."""
    told: dict[str, Any] = json.loads(run("--json", *arguments, code=code).stdout)
    return {
        each["rule"]: {"": each["cases"], **{branch["branch"]: branch["cases"] for branch in each["branches"]}}
        for each in told["rules"]
    }


def test_each_part_of_a_rule_counts_by_itself() -> None:
    """Hosts, paths, methods, conditions both ways, exceptions, limits, expiries: with the cases that exercise them."""
    rules = found()
    assert rules["read"] == {"": 4, "host a.test": 3, "host b.test": 1, "path /x": 1, "path /y/**": 3}
    assert rules["post"] == {
        "": 1,
        "method POST": 1,
        "method GET": 0,
        "json model: m* holds": 1,
        "json model: m* does not hold": 3,
        "its limit of requests is reached": 1,
    }
    assert rules["ban"] == {"": 1, "exception 1 lifts it (operators may)": 1, "exception 2 lifts it": 0}
    assert rules["late"] == {"": 1, "it has expired": 0}
    assert rules["silent"] == {"": 0}
    assert rules["stream"] == {"": 1}


def test_what_is_not_exercised_is_listed() -> None:
    """For people: the rule, where it stands, and what no case does."""
    told = run().output
    assert "0/1  silent  p.yaml:16\n      ✗ no case is covered by it" in told
    assert "✗ no case: exception 2 lifts it" in told
    assert "read" not in told.splitlines()[0]
    assert told.splitlines()[-1] == "77.8%  14 of 18 points, 5 of 6 rules exercised"
    assert "✓ path /x (1)" in run("-v").output


def test_a_bar_can_be_set() -> None:
    """Exit code 1 below it."""
    run("--fail-under", "77")
    run("--fail-under", "78", code=1)


def test_a_test_that_fails_fails_the_coverage(folder: Path) -> None:
    """What is covered by a failing test says little."""
    (folder / "p.test.yaml").write_text(TESTS + "  - {request: GET https://other.test/, expect: allow}\n")
    assert "1 test fails: see `seamgate policy test`" in run(code=1).output


def test_a_policy_without_tests_is_not_exercised(folder: Path) -> None:
    """In the folder, named by no test; what is no policy is left alone."""
    (folder / "q.yaml").write_text("seamgate: 1\nlayer: org\nrules: [{id: q, deny: {hosts: [q.test]}}]\n")
    (folder / "seamgate.yaml").write_text("entries: {}\n")
    assert found()["q"] == {"": 0}
    assert "q" not in found("p.test.yaml")


def test_several_tests_of_one_policy_add_up(folder: Path) -> None:
    """A rule is the same rule whichever file names it."""
    more = TESTS.partition("cases:")[0] + "cases:\n  - {request: GET https://silent.test/, expect: allow}\n"
    (folder / "more.test.yaml").write_text(more)
    rules = found()
    assert (rules["silent"][""], rules["read"][""]) == (1, 4)
