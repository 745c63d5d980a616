"""`seamgate demo`: what a newcomer sees first. Played for real, once for all tests of this file where possible."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seamgate.demo.stage import shipped_policy
from support.cli import seamgate
from support.tutorial import matches

README = Path(__file__).resolve().parents[2] / "README.md"
_DIFFERS = (
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"\.test:84\d\d\b", ".test:PORT"),  # the first of a range that is free: another demo may run
    (r"(process +)\d+", r"\1PID"),
    (r"/\S+/seamgate-demo-[^/\s]+/", "/FOLDER/"),
    (r"agent's \d+ variables", "agent's N variables"),
    (r"\d+\.\d+ (m?s)\b", r"N \1"),
    (r"(\.\.\.|key_ends_with '|it ends with )[0-9a-f]{4}\b", r"\1LAST"),
)
"""What is another thing in each run of the demo, and what stands for it."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The demo's story, as machines get it."""
    done = seamgate("demo", "--json", home=tmp_path_factory.mktemp("home"))
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _attempts(story: dict[str, Any]) -> list[dict[str, Any]]:
    return [attempt for scene in story["scenes"] for attempt in scene["attempts"]]


def test_the_demo_holds(story: dict[str, Any]) -> None:
    """Every claim is checked and holds, and it says how long that took."""
    assert (story["ok"], story["failed"], story["problem"]) == (True, [], "")
    assert story["checks"] >= 25
    assert story["duration_s"] > 0


def test_the_demo_shows_each_kind_of_denial(story: dict[str, Any]) -> None:
    """Denied by a rule, by default, for a placeholder out of place and for an address, and some allowed."""
    reasons = {attempt["reason"] for attempt in _attempts(story)}
    assert reasons == {"allowed", "rule_denied", "no_rule_matched", "placeholder_misplaced", "address_forbidden"}


def test_a_denial_names_its_rule_and_the_rules_place(story: dict[str, Any]) -> None:
    """The rule's line is the one in the policy that ships."""
    denied = next(attempt for attempt in _attempts(story) if attempt["reason"] == "rule_denied")
    name, _, line = denied["place"].partition(":")
    assert name == "demo.yaml"
    assert denied["rule"] in shipped_policy("demo.yaml").read_text().splitlines()[int(line) - 1]


def test_what_the_default_denies_tells_the_nearest_rule(story: dict[str, Any]) -> None:
    """The sentence says which rule came closest and what the request lacked."""
    messages = [attempt["message"] for attempt in _attempts(story) if attempt["reason"] == "no_rule_matched"]
    assert any(re.search(r"nearest rule llm-messages: .*model", message) for message in messages)


def test_without_a_terminal_there_is_no_colour(tmp_path: Path) -> None:
    """What is piped into a file is plain text, with every scene and the result."""
    done = seamgate("demo", home=tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert re.search(r"\d+ checks, all hold", done.stdout)
    assert "[redacted:llm]" in done.stdout


def _without_what_differs(text: str) -> str:
    for pattern, same in _DIFFERS:
        text = re.sub(pattern, same, text)
    return text


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """Each line of the README's excerpt is in the output, in order, but for figures of that run; ⋮ stands for lines."""
    excerpt = re.search(r"<!-- demo -->\n```\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert excerpt is not None
    output = seamgate("demo", home=tmp_path).stdout
    printed = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
    shown = re.sub("^⋮$", "...", excerpt[1], flags=re.MULTILINE)
    assert matches(f"...\n{_without_what_differs(shown)}", _without_what_differs(printed)), printed


def test_colour_can_be_had_where_it_is_asked_for(tmp_path: Path) -> None:
    """FORCE_COLOR colours a pipe; NO_COLOR wins over it."""
    assert "\x1b[" in seamgate("demo", home=tmp_path, env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    assert "\x1b[3" not in seamgate("demo", home=tmp_path, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


def test_a_demo_that_goes_wrong_says_so(tmp_path: Path) -> None:
    """Nothing is scripted: under a policy that allows too much the claims fail, are named, and the exit code is 1."""
    text = shipped_policy("demo.yaml").read_text()
    policy = tmp_path / "lax.yaml"
    policy.write_text(text.replace('when: request.json.model.startsWith("demo-")', 'when: request.json.model != ""'))
    done = seamgate("demo", "--policy", str(policy), "--json", home=tmp_path)
    story = json.loads(done.stdout)
    assert (done.returncode, story["ok"]) == (1, False)
    assert story["failed"] == ["denied, for the right reason"]


def test_a_policy_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The user's own file is what the message is about, with its line and a caret; exit code 2."""
    policy = tmp_path / "broken.yaml"
    policy.write_text("seamgate: 1\nrulez: []\n")
    done = seamgate("demo", "--policy", str(policy), home=tmp_path)
    assert done.returncode == 2
    assert f"{policy}:2:1: unknown key 'rulez': did you mean 'rules'?" in done.stderr
    assert done.stderr.endswith("  2 | rulez: []\n    | ^\n")


def test_what_is_kept_can_be_looked_into(tmp_path: Path) -> None:
    """--keep leaves a configuration, the policy and a journal that the other commands read; no key is in any file."""
    folder = tmp_path / "kept"
    assert seamgate("demo", "--keep", str(folder), home=tmp_path).returncode == 0
    verified = seamgate("audit", "verify", str(folder / "audit.jsonl"), home=tmp_path)
    assert verified.returncode == 0, verified.stdout
    forged = seamgate("audit", "verify", "--no-head", str(folder / "forged.jsonl"), home=tmp_path)
    assert (forged.returncode, "EDITED" in forged.stdout) == (1, True)
    checked = seamgate("policy", "check", str(folder / "demo.yaml"), home=tmp_path)
    assert checked.returncode == 0
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"sk-demo-" in path.read_bytes()]
    again = seamgate("demo", "--keep", str(folder), home=tmp_path)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
