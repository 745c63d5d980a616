"""The example plugin, installed as a stranger would install it, in a real gateway: found, checked, obeyed, audited."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import environment, seamgate

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "seamgate-budget"
_CONFIG = """\
entries: {proxy: {listen: 127.0.0.1:0}}
policies: [p.yaml]
guests: {agent: {token: {sha256: "%s"}}}
plugins: [builtin, {name: budget, options: %s}]
audit: {path: audit.jsonl}
"""
_POLICY = "seamgate: 1\nrules:\n  - {id: one, allow: {hosts: [a.invalid], schemes: [http]}}\n"
_ASK = """\
import json, urllib.error, urllib.request
for _ in range(4):
    try:
        urllib.request.urlopen("http://a.invalid/", timeout=40)
    except urllib.error.HTTPError as error:
        told = json.loads(error.read())["error"]
        print(error.code, told["code"], told["rule"], told["message"])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the example is installed, from its folder, without an index."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
               "--disable-pip-version-check", "--target", str(target), str(_EXAMPLE)]  # fmt: skip
    done = subprocess.run(command, env=environment(target), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": str(target)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration that names the plugin."""
    (tmp_path / "p.yaml").write_text(_POLICY)
    (tmp_path / "seamgate.yaml").write_text(_CONFIG % ("0" * 64, "{requests: 2}"))
    return tmp_path


def test_it_is_listed_with_its_hooks(installed: dict[str, str], tmp_path: Path) -> None:
    """Name, distribution, version and hooks come from what is installed."""
    listed = json.loads(seamgate("plugins", "list", "--json", home=tmp_path, env=installed).stdout)
    budget = next(plugin for plugin in listed if plugin["name"] == "budget")
    assert (budget["distribution"], budget["version"]) == ("seamgate-budget", "1.0.0")
    assert budget["hooks"] == ["judge_request", "request_done"]
    assert not budget["builtin"]
    without = json.loads(seamgate("plugins", "list", "--json", home=tmp_path).stdout)
    assert {plugin["name"] for plugin in without} == {"policy", "dns", "credentials", "inspection", "otlp"}


def test_check_loads_it_as_the_gateway_would(installed: dict[str, str], folder: Path) -> None:
    """In the configuration's order, after the built-in ones; where it is not installed, that is said."""
    done = seamgate("plugins", "check", "--json", home=folder, env=installed)
    assert [plugin["name"] for plugin in json.loads(done.stdout)][-1] == "budget"
    missing = seamgate("plugins", "check", home=folder)
    assert missing.returncode == 2
    assert "there is no plugin 'budget'" in missing.stderr


def test_its_options_are_checked(installed: dict[str, str], folder: Path) -> None:
    """A plugin that refuses its options keeps the gateway from starting."""
    (folder / "seamgate.yaml").write_text(_CONFIG % ("0" * 64, "{request: 2}"))
    done = seamgate("plugins", "check", home=folder, env=installed)
    assert done.returncode == 2
    assert "its one option is `requests`" in done.stderr


def test_it_refuses_several_workers(installed: dict[str, str], folder: Path) -> None:
    """What counts in one process would let through more in several, so the gateway does not start."""
    config = folder / "seamgate.yaml"
    config.write_text(config.read_text() + "workers: 2\n")
    done = seamgate("plugins", "check", home=folder, env=installed)
    assert done.returncode == 2
    assert "plugin budget counts in one process" in done.stderr


def test_it_denies_what_is_beyond_the_budget(installed: dict[str, str], folder: Path) -> None:
    """Two requests go through (and fail, for the name does not exist), two are denied; the journal says by whom."""
    done = seamgate(
        "run",
        "-c",
        "seamgate.yaml",
        "--audit",
        "run.jsonl",
        "--",
        sys.executable,
        "-c",
        _ASK,
        home=folder,
        env=installed,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["502", "resolve_failed"]] * 2 + [["429", "rate_limited"]] * 2
    assert "plugin:budget" in lines[2]
    assert "guest run has used its budget of 2 requests" in lines[2]
    denied = seamgate("audit", "query", "run.jsonl", "--denied", home=folder).stdout.splitlines()
    assert [json.loads(line)["rule"] for line in denied] == ["plugin:budget"] * 2
    steps = json.loads(denied[0])["steps"]
    assert ["budget", "judge_request", "deny"] in [[step[0], step[1], step[3]] for step in steps]
