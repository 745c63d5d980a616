"""The documents say what the code says: hooks, reasons, generated pages, dependencies, links."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from seamgate import hookspecs
from seamgate.cli import main
from seamgate.errors import Reason

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HOOKS = sorted(name for name in dir(hookspecs) if hasattr(getattr(hookspecs, name), f"{hookspecs.PROJECT}_spec"))
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_documented_with_its_signature(hook: str) -> None:
    """docs/hooks.md has a section for it, and in it the signature of the specification, letter for letter."""
    section = re.search(rf"^## {hook}\n(.*?)(?=^## |\Z)", (DOCS / "hooks.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None, "no section"
    signature = str(inspect.signature(getattr(hookspecs, hook))).replace("'", "")
    assert f"```python\ndef {hook}{signature}\n```" in section[1]
    assert len(section[1].split("```")[2].split()) >= 8, "say when it runs and what it may do"


def test_no_hook_is_documented_that_is_not_there() -> None:
    """A section of docs/hooks.md is a hook."""
    assert sorted(re.findall(r"^## (\w+)$", (DOCS / "hooks.md").read_text(), re.MULTILINE)) == HOOKS


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_a_reason_is_documented(reason: Reason) -> None:
    """Code, status, who can mend it and what it means are in docs/reasons.md."""
    row = f"| `{reason.value}` | {reason.status} | {reason.blame.value} | {reason.text} |"
    assert row in (DOCS / "reasons.md").read_text()


def test_generated_pages_are_fresh() -> None:
    """docs/cli.md, docs/configuration.md and docs/reasons.md are what docs/generate.py writes now."""
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_key_of_the_configuration_is_explained() -> None:
    """No cell of docs/configuration.md is empty where the meaning should stand."""
    rows = [line for line in (DOCS / "configuration.md").read_text().splitlines() if line.startswith("| `")]
    assert not [row for row in rows if row.endswith("|  |")]
    assert len(rows) > 50


def test_every_dependency_has_its_reason() -> None:
    """What pyproject.toml asks for stands in docs/dependencies.md, and nothing else does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + [
        each for group in project["dependency-groups"].values() for each in group
    ]
    names = {re.split(r"[<>=!~ \[;]", requirement, maxsplit=1)[0] for requirement in wanted}
    rows = re.findall(r"^\| ([a-z0-9, -]+) \| \S", (DOCS / "dependencies.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} - {"package"} == names


def test_a_build_of_its_own_has_what_the_hook_runs() -> None:
    """`pip install .` builds where there is only what `build-system` names: all of the hook, in the lock's versions."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    locked = (ROOT / "requirements.lock").read_text()
    assert {"hatchling", "mypy", "setuptools"} <= {each.partition("==")[0] for each in requires}
    for each in requires:
        assert re.search(rf"^{re.escape(each)} ", locked, re.MULTILINE), each


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file of ours leads to one that is there, and one to a section to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        parts = urlsplit(target)
        if parts.scheme:
            continue
        file = page.parent / parts.path if parts.path else page
        assert file.exists(), target
        if parts.fragment and file.suffix == ".md":
            assert parts.fragment in _anchors(file), target


def _anchors(page: Path) -> set[str]:
    """What headings are linked by: lower case, blanks as hyphens, punctuation left out (as on GitHub)."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_there(page: Path) -> None:
    """A command of ours that a page shows in a line of text exists, with each option that it is given."""
    for shown in re.findall(r"`(seamgate [a-z][^`]*)`", page.read_text(encoding="utf-8")):
        words = shown.split()[1:]
        command: click.Command = main
        context = click.Context(main)
        while words and isinstance(command, click.Group):
            each_of = [command.get_command(context, name) for name in words.pop(0).split("|")]
            assert all(each_of), shown
            command = each_of[-1] or main
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
        mine = itertools.takewhile(lambda word: word != "--", words)
        for option in (word.partition("=")[0] for word in mine if re.match(r"--?[a-z]", word)):
            assert option in known, f"{shown}: {option}"


def test_reasons_that_answers_name_are_reasons() -> None:
    """What docs/questions.md calls a reason is a code that a guest and the audit log are shown."""
    page = (DOCS / "questions.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z]+_(?:denied|matched|forbidden|mismatch|refused|failed|unavailable))`", page))
    assert len(named) >= 6
    assert named <= set(Reason)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.svg")), ids=lambda page: page.name)
def test_a_drawing_is_whole(page: Path) -> None:
    """It is well-formed, has a title and a description for those who can't see it, and nothing stands outside of it."""
    root = ElementTree.fromstring(page.read_text(encoding="utf-8"))
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title")
    assert root.findtext(f"{space}desc")
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for text in root.iter(f"{space}text"):
        assert 0 < float(text.attrib["x"]) < width
        assert 0 < float(text.attrib["y"]) < height


def test_the_page_of_the_configuration_speaks_of_no_code() -> None:
    """Who writes YAML meets neither a function's name nor Python's word for nothing."""
    page = (DOCS / "configuration.md").read_text()
    assert re.findall(r"\w+\(\)|\bNone\b|\bTrue\b|\bFalse\b", page) == []
