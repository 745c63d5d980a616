"""`seamgate policy diff`: rules and requests that differ, and when that is a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from seamgate.cli import main

OLD = """\
seamgate: 1
rules:
  - id: read
    allow: {hosts: [api.test], methods: read, paths: ["/v1/**"]}
  - id: chat
    allow: {hosts: [api.test], methods: [POST], paths: [/v1/chat], json: {model: m}}
    guests: {team: research}
    limits: {requests: 60/min}
  - id: no-keys
    deny: {hosts: [api.test], paths: ["/v1/keys/**"]}
  - id: cel
    allow: {hosts: [cel.test]}
    when: request.json.n > 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    (tmp_path / "old.yaml").write_text(OLD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    """Run the command and check its exit code."""
    result = CliRunner().invoke(main, ["policy", "diff", *arguments])
    assert result.exit_code == code, result.output
    return result


def compare(change: tuple[str, str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Return what --json says of OLD and OLD with one text replaced."""
    assert change[0] in OLD
    Path("new.yaml").write_text(OLD.replace(*change))
    found: dict[str, Any] = json.loads(run("old.yaml", "new.yaml", "--json", *arguments, code=code).stdout)
    return found


@pytest.mark.parametrize(
    ("change", "effect", "detail"),
    [
        (("[api.test], methods: [POST]", "[api.test, b.test], methods: [POST]"), "widened", "hosts: + b.test"),
        (('["/v1/**"]', "[/v1/models]"), "narrowed", "paths: - /v1/**, + /v1/models"),
        (('["/v1/**"]', '["/v2/**"]'), "changed", "paths: - /v1/**, + /v2/**"),
        (("methods: read", "methods: [GET, POST]"), "changed", "methods: - OPTIONS, + POST"),
        (("{team: research}", "{team: research, role: a}"), "narrowed", "guests: + role=a"),
        (("{team: research}", '{team: "*"}'), "widened", "guests: - team=research, + team=*"),
        ((", json: {model: m}", ""), "widened", "conditions: - json model: m"),
        (("60/min", "90/min"), "widened", "limit requests: 60 in 60 s became 90 in 60 s"),
        (("    limits: {requests: 60/min}\n", ""), "widened", "limit requests: 60 in 60 s became none"),
        (('["/v1/keys/**"]', '["/v1/keys/*"]'), "widened", "paths: - /v1/keys/**, + /v1/keys/*"),
        (
            ('keys/**"]}\n', 'keys/**"]}\n    except: {guests: {team: ops}}\n'),
            "widened",
            "1 exception(s) more or other",
        ),
        (('keys/**"]}\n', 'keys/**"]}\n    mode: audit\n'), "widened", "is recorded only"),
        (("    when:", "    expires: 2027-01-01\n    when:"), "narrowed", "expires earlier"),
        (("n > 3", "n > 2"), "changed", "conditions: - when request.json.n > 3, + when request.json.n > 2"),
        (("deny: {hosts: [api.test]", "allow: {hosts: [api.test]"), "widened", "deny became allow"),
    ],
)
def test_a_change_of_a_rule_is_said_with_its_effect(change: tuple[str, str], effect: str, detail: str) -> None:
    """By its text: what lets more through widens, what lets less through narrows, the rest has changed."""
    (told,) = compare(change)["rules"]
    assert (told["what"], told["effect"], told["details"]) == ("changed", effect, [detail])


@pytest.mark.parametrize(
    ("kind", "old", "new", "widens"),
    [
        ("allow", "query: {v: ['1*']}", "query: {v: ['1*', '2']}", True),
        ("allow", "query: {v: ['1*']}", "query: {v: ['12']}", False),
        ("allow", "query: {v: ['1*']}", "query: {v: true}", True),
        ("allow", "json: {number: [1, 2]}", "json: {number: [1, 2, 3]}", True),
        ("allow", "json: {number: [1, 2]}", "json: {number: [1, 3]}", True),
        ("allow", "json: {number: [1, 2]}", "json: {number: [2]}", False),
        ("allow", "headers: {x-a: false}", "headers: {x-a: true}", True),
        ("allow", "hosts: [a.test]", "hosts: [b.test]", True),
        ("deny", "headers: {x-d: ['1', '2', 'on*']}", "headers: {x-d: ['1', 'on*']}", True),
        ("deny", "headers: {x-d: ['1', 'on*']}", "headers: {x-d: ['1', 'one*']}", True),
        ("deny", "headers: {x-d: ['1', 'on*']}", "headers: {x-d: ['1', 'on*', 'off']}", False),
        ("deny", "json: {a.b: [xx, yy]}", "json: {a.b: [xx]}", True),
        ("deny", "json: {number: [1]}", "json: {number: [true]}", True),
        ("deny", "query: {debug: true}", "query: {debug: ['*1*', '*a*']}", True),
        ("deny", "query: {debug: ['1']}", "query: {debug: true}", False),
    ],
)
def test_each_value_of_a_list_counts(folder: Path, kind: str, old: str, new: str, widens: bool) -> None:
    """A value more in an allow, or less in a deny, lets more through, whichever place of the list it has."""
    for name, part in (("old", old), ("new", new)):
        match = f"methods: [POST], {'' if part.startswith('hosts') else 'hosts: [api.test], '}{part}"
        rules = f"  - {{id: all, allow: {{hosts: ['**']}}}}\n  - {{id: r, {kind}: {{{match}}}}}\n"
        (folder / f"{name}.yaml").write_text(f"seamgate: 1\nrules:\n{rules}", encoding="utf-8")
    (told,) = json.loads(run("old.yaml", "new.yaml", "--json").stdout)["rules"]
    assert told["widens"] is widens, told
    run("old.yaml", "new.yaml", "--fail-on-widening", code=int(widens))


def test_another_spelling_of_cel_hides_no_value(folder: Path) -> None:
    """What else changes in the same rule counts by itself, whatever becomes of its condition in CEL."""
    for name, values, when in (
        ("old", "['1', '2']", "request.method == 'POST'"),
        ("new", "['1']", "(request.method == 'POST')"),
    ):
        rule = f'  - {{id: r, deny: {{hosts: [api.test], headers: {{x-d: {values}}}}}, when: "{when}"}}\n'
        text = f"seamgate: 1\nrules:\n  - {{id: all, allow: {{hosts: ['**']}}}}\n{rule}"
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    run("old.yaml", "new.yaml", "--fail-on-widening", code=1)


def test_rules_come_and_go() -> None:
    """A new allow and a lost deny widen; a new deny and a lost allow narrow; another id alone is a new name."""
    lost = compare(('  - id: no-keys\n    deny: {hosts: [api.test], paths: ["/v1/keys/**"]}\n', ""))
    assert [(each["rule"], each["what"], each["effect"]) for each in lost["rules"]] == [
        ("no-keys", "removed", "widened")
    ]
    added = compare(("rules:\n", "rules:\n  - {id: x, deny: {hosts: [x.test]}}\n"))
    assert [(each["rule"], each["effect"]) for each in added["rules"]] == [("x", "narrowed")]
    renamed = compare(("id: read", "id: reading"))
    assert [(each["rule"], each["what"], each["details"]) for each in renamed["rules"]] == [
        ("read", "renamed", ["now reading"])
    ]
    assert renamed["requests"] == []


def test_requests_tell_what_it_does() -> None:
    """Tried within the patterns and just beside them, by the real pipeline, with labels, headers and JSON that fit."""
    found = compare(('["/v1/keys/**"]', '["/v1/keys/*"]'))
    allowed = [each for each in found["requests"] if each["change"] == "newly_allowed"]
    assert allowed
    assert all(each["old"]["rule"] == "no-keys" and each["new"]["rule"] == "read" for each in allowed)
    narrowed = compare(("{team: research}", "{team: research, role: a}"))
    denied = [each for each in narrowed["requests"] if each["change"] == "newly_denied"]
    assert {(each["request"], each["body"]) for each in denied} == {("POST https://api.test/v1/chat", '{"model":"m"}')}
    assert {"team": "research"} in [each["guest"] for each in denied]
    other = compare(("60/min", "90/min"))
    assert {each["change"] for each in other["requests"]} == {"other_choice"}


def test_widening_can_be_a_failure() -> None:
    """What is newly allowed, or may be; never what is narrowed."""
    compare(("[api.test], methods: [POST]", "[api.test, b.test], methods: [POST]"))
    compare(("[api.test], methods: [POST]", "[api.test, b.test], methods: [POST]"), "--fail-on-widening", code=1)
    compare(('["/v1/**"]', "[/v1/models]"), "--fail-on-widening")
    run("old.yaml", "old.yaml", "--fail-on-widening")


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (("    limits", "    addresses: [private]\n    limits"), "addresses: - none, + private"),
        (("    limits", "    upgrade: websocket\n    limits"), "upgrade: none became websocket"),
        (("    limits", "    encoded_slash: true\n    limits"), "encoded_slash: none became True"),
        (("    limits", "    credential: key\n    limits"), "credential: - none, + key"),
        (('keys/**"]}\n', 'keys/**"]}\n    expires: 2027-01-01\n'), "expires earlier"),
        (("60/min", "61/h"), "limit requests: 60 in 60 s became 61 in 3600 s"),
    ],
)
def test_what_a_rule_opens_is_a_failure(change: tuple[str, str], detail: str) -> None:
    """Also where the requests that are tried are allowed before and after: the text says it."""
    (told,) = compare(change, "--fail-on-widening", code=1)["rules"]
    assert (told["effect"], told["widens"], told["details"]) == ("widened", True, [detail])


def test_what_widens_and_narrows_at_once_is_a_failure() -> None:
    """A rule that gives up something does not pay for what it opens."""
    change = (
        "methods: [POST], paths: [/v1/chat], json: {model: m}}",
        "paths: [/v1/chat], json: {model: m}, query: {q: x}}",
    )
    (told,) = compare(change, "--fail-on-widening", code=1)["rules"]
    assert (told["effect"], told["widens"]) == ("changed", True)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("inspect", "inspect: [secrets]", "inspect: [other]"),
        ("credential", "credential: one", "credential: two"),
        ("addresses", "addresses: [private]", "addresses: [loopback]"),
    ],
)
def test_another_in_its_place_is_a_failure(kind: str, old: str, new: str, folder: Path) -> None:
    """What the new one opens was closed before; an inspector that is gone looks at nothing any more."""
    rule = "seamgate: 1\nrules:\n  - id: a\n    allow: {hosts: [a.test]}\n    "
    (folder / "old.yaml").write_text(rule + old + "\n")
    (folder / "new.yaml").write_text(rule + new + "\n")
    (told,) = json.loads(run("old.yaml", "new.yaml", "--json", "--fail-on-widening", code=1).stdout)["rules"]
    assert (told["widens"], told["details"][0].partition(":")[0]) == (True, kind)


def test_a_condition_that_no_request_meets_is_named(folder: Path) -> None:
    """It may widen, so it fails; a test case that meets it settles it."""
    found = compare(("n > 3", "n > 4"), "--fail-on-widening", code=1)
    assert found["unchecked"] == ["cel"]
    case = '{request: POST https://cel.test/, json: {"n": %d}, guest: {team: x}}'
    cases = "".join(f"  - {case % number}\n" for number in (4, 5))
    tests = "seamgate_test: 1\npolicy: [new.yaml]\nnow: 2026-12-01T09:00:00Z\ncases:\n"
    (folder / "new.test.yaml").write_text(tests + cases)
    settled = compare(("n > 3", "n > 4"), "--fail-on-widening")
    assert settled["unchecked"] == []
    assert [(each["change"], each["body"]) for each in settled["requests"]] == [("newly_denied", '{"n":4}')]
    told = run("old.yaml", "new.yaml").output
    assert "newly denied  cel -> no_rule_matched  (1)" in told
    assert "POST https://cel.test/  [team=x]" in told


def test_folders_are_loaded_together_and_layers_count(folder: Path) -> None:
    """A layer that is added narrows all; what is no policy is left alone, a broken one is an error."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "team.yaml").write_text(OLD)
        (folder / name / "seamgate.yaml").write_text("entries: {}\n")
    org = folder / "b" / "org.yaml"
    org.write_text("seamgate: 1\nlayer: org\nrules: [{id: org, allow: {hosts: [api.test], methods: read}}]\n")
    found = json.loads(run("a", "b", "--json", "--fail-on-widening").stdout)
    assert found["layers"] == [{"effect": "narrowed", "detail": "layer org must allow everything too"}]
    assert {each["change"] for each in found["requests"]} == {"newly_denied"}
    run("b", "a", "--fail-on-widening", code=1)
    org.write_text("seamgate: 1\nlayer: orgg\n")
    assert "orgg" in run("a", "b", code=2).output
    (folder / "c").mkdir()
    assert "there is no policy in c" in run("a", "c", code=2).output
