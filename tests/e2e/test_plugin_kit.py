"""A plugin from its first file to its last check, as a stranger makes one: new, install, check, test, types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import environment, seamgate

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "seamgate-budget"
_LIMIT_S = 150.0
_BROKEN = """\
from seamgate import hookimpl
class Plugin:
    def __init__(self, context):
        context.options.get("x")
    @hookimpl
    def judge_request(self, request):
        request.headers[0][1].decode()
"""


def _run(*command: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment(cwd, env),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def _install(source: Path, target: Path, home: Path) -> dict[str, str]:
    """Install a distribution from its folder, without an index, into a folder of its own."""
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    _run("pip", "install", "--quiet", *options, "--target", str(target), str(source), cwd=home, env={})
    return {"PYTHONPATH": str(target)}


@pytest.mark.timeout(300)
def test_what_new_writes_installs_conforms_and_has_types(tmp_path: Path) -> None:
    """`plugins new`, pip, `plugins check`, its own tests and strict mypy, each as it is told to do next."""
    made = seamgate("plugins", "new", "deny-endings", home=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "Next:  cd seamgate-deny-endings" in made.stdout
    folder = tmp_path / "seamgate-deny-endings"
    installed = _install(folder, tmp_path / "installed", tmp_path)

    checked = seamgate("plugins", "check", "deny-endings", "--json", home=tmp_path, env=installed)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = json.loads(checked.stdout)
    assert len(found) == 18
    assert all(each["passed"] and each["plugin"] == "deny-endings" for each in found)

    tests = _run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder, env=installed)
    assert "22 passed" in tests.stdout
    types = _run("mypy", "--cache-dir", str(tmp_path / "types"), cwd=folder, env=installed)
    assert "no issues found in 2 source files" in types.stdout


def test_new_replaces_nothing_and_takes_no_odd_name(tmp_path: Path) -> None:
    """A file that is there, a name that is taken or no name: exit code 2, and nothing is written."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "README.md").write_text("mine")
    taken = seamgate("plugins", "new", "of-this-test-alone", "--dir", "here", home=tmp_path)
    assert (taken.returncode, "README.md is there already" in taken.stderr) == (2, True)
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["README.md"]
    for name in ("Bad_Name", "-x", "a--b", "policy", "../x"):
        done = seamgate("plugins", "new", "--", name, home=tmp_path)
        assert done.returncode == 2, name
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("seamgate-")] == []


def test_check_names_the_rule_that_a_plugin_breaks(tmp_path: Path) -> None:
    """Exit code 1, the rule, with what it was broken, and what the rule says."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "seamgate_broken.py").write_text(_BROKEN)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "seamgate-broken"\nversion = "1"\n'
        '[project.entry-points.seamgate]\nbroken = "seamgate_broken:Plugin"\n'
        '[tool.hatch.build.targets.wheel]\ninclude = ["seamgate_broken.py"]\n'
    )
    installed = _install(source, tmp_path / "installed", tmp_path)
    done = seamgate("plugins", "check", "broken", home=tmp_path, env=installed)
    assert done.returncode == 1
    assert "FAIL  refuses unknown options" in done.stdout
    assert "FAIL  withstands the field" in done.stdout
    assert "judge_request raised IndexError" in done.stdout
    assert "ok    withstands records" in done.stdout
    unknown = seamgate("plugins", "check", "brocken", home=tmp_path, env=installed)
    assert (unknown.returncode, "there is no plugin 'brocken'" in unknown.stderr) == (2, True)


def test_check_gives_a_plugin_the_options_of_a_configuration(tmp_path: Path) -> None:
    """With -c the suite runs what the gateway would run, options that are refused included."""
    installed = _install(_EXAMPLE, tmp_path / "installed", tmp_path)
    (tmp_path / "p.yaml").write_text("seamgate: 1\nrules: []\n")
    config = tmp_path / "seamgate.yaml"
    text = (
        "entries: {proxy: {listen: 127.0.0.1:0}}\npolicies: [p.yaml]\n"
        'guests: {agent: {token: {sha256: "%s"}}}\nplugins: [builtin, {name: budget, options: %s}]\n'
    )
    config.write_text(text % ("0" * 64, "{requests: 5}"))
    fine = seamgate("plugins", "check", "budget", "-c", str(config), home=tmp_path, env=installed)
    assert fine.returncode == 0, fine.stdout
    config.write_text(text % ("0" * 64, "{requests: 0}"))
    wrong = seamgate("plugins", "check", "budget", "-c", str(config), home=tmp_path, env=installed)
    assert wrong.returncode == 1
    assert "its one option is `requests`" in wrong.stdout


@pytest.mark.timeout(120)
def test_the_examples_own_tests_pass(tmp_path: Path) -> None:
    """The example in the tree runs the suite in its own tests, as it tells others to."""
    installed = _install(_EXAMPLE, tmp_path / "installed", tmp_path)
    tests = str(_EXAMPLE / "tests")
    done = _run(
        "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), tests, cwd=tmp_path, env=installed
    )
    assert "passed" in done.stdout
