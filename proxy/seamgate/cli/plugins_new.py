"""`seamgate plugins new`: the beginning of a plugin, typed, tested and ready to be installed.

Writes a folder `seamgate-NAME`: the module, pyproject.toml with the entry point, a test that runs the conformance
suite, a README. What it writes works as it is. Replaces no file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template

import click

from seamgate import __version__
from seamgate.errors import ConfigError
from seamgate.registry import available

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\Z")
_LONGEST_NAME = 40

_MODULE = '''\
"""$title: a plugin for Seamgate. It denies requests to paths with the endings that its options name.

    plugins:
      - builtin
      - {name: $name, options: {endings: [.pem, .key]}}

Change it to what you need. Every hook: docs/hooks.md. The suite that it has to pass: docs/testing.md.
"""

from __future__ import annotations

import msgspec
from seamgate import Request, SeamgateError, Verdict, deny, hookimpl
from seamgate.registry import PluginContext


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plugin's options, as seamgate.yaml gives them. An unknown one keeps the gateway from starting.

    Attributes:
        endings: of paths that are denied.
    """

    endings: tuple[str, ...] = (".pem", ".key")


class ${camel}Plugin:
    """One is made for each generation of the configuration; what it counts begins anew with each."""

    def __init__(self, context: PluginContext) -> None:
        """Read the options, and whatever else there is to read: from here on there is no I/O."""
        try:
            options = msgspec.convert(dict(context.options), Options)
        except msgspec.ValidationError as error:
            raise SeamgateError(f"options of the plugin {context.name}: {error}") from None
        self._endings = options.endings

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        """Deny, or have no opinion: the policy decides. Pure and quick; whatever this raises denies."""
        for ending in self._endings:
            if request.path.lower().endswith(ending):
                return deny(f"no path that ends with {ending} may be asked for", rule="plugin:$name")
        return None
'''
_TEST = '''\
"""What the plugin says, and that it keeps the rules of every plugin."""

from __future__ import annotations

import pytest
from seamgate import Reason, SeamgateError
from seamgate.testing import Check, conformance, judge, make_context, make_request

from $module import ${camel}Plugin


# Requests that the plugin has something to say to: the more of it they reach, the more the suite is worth.
REQUESTS = [make_request("GET https://a.example/id.PEM"), make_request("POST https://a.example/x", json={"a": 1})]


@pytest.mark.parametrize("check", conformance(${camel}Plugin, name="$name", requests=REQUESTS), ids=str)
def test_conformance(check: Check) -> None:
    """The plugin withstands what the field has met, is pure and quick, and tells no secret."""
    check()


@pytest.mark.parametrize(("url", "allowed"), [("/readme", True), ("/id.pem", False), ("/ID.KEY", False)])
def test_endings(url: str, allowed: bool) -> None:
    """What ends with one of them is denied; everything else is left to the policy."""
    judged = judge(f"GET https://a.example{url}", plugins={"$name": ${camel}Plugin(make_context())})
    assert judged.allowed is allowed
    if not allowed:
        assert judged.rule == "plugin:$name"
        assert judged.verdict.reason is Reason.RULE_DENIED


def test_options() -> None:
    """They are taken, and what is misspelt is refused."""
    plugin = ${camel}Plugin(make_context(options={"endings": [".zip"]}))
    assert not judge("GET https://a.example/x.zip", plugins={"$name": plugin}).allowed
    with pytest.raises(SeamgateError, match="endigs"):
        ${camel}Plugin(make_context("$name", options={"endigs": []}))
'''
_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "seamgate-$name"
version = "0.1.0"
description = "A plugin for Seamgate."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["msgspec", "seamgate>=$version"]

# The group and the name are all that Seamgate needs to find it; `plugins: [builtin, $name]` in seamgate.yaml loads it.
[project.entry-points.seamgate]
$name = "$module:${camel}Plugin"

[dependency-groups]
dev = ["mypy", "pytest"]

[tool.hatch.build.targets.wheel]
packages = ["$module"]

[tool.mypy]
strict = true
files = ["$module", "tests"]

[tool.pytest.ini_options]
testpaths = ["tests"]
filterwarnings = ["error"]
"""
_README = """\
# seamgate-$name

A plugin for Seamgate.

    pip install -e .
    pytest                          what it says, and the conformance suite
    mypy                            types
    seamgate plugins check $name    the suite, as an operator runs it

Then name it in `seamgate.yaml`; nothing that is merely installed is ever loaded:

    plugins:
      - builtin
      - {name: $name, options: {endings: [.pem, .key]}}
"""
_IGNORED = "__pycache__/\n*.egg-info/\n.mypy_cache/\n.pytest_cache/\ndist/\n"


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to write it. [default: seamgate-NAME]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the folder, and what was written.")
def new(name: str, folder: Path | None, as_json: bool) -> None:
    """Write a plugin called NAME: a typed distribution with its entry point, and a test that passes.

    \b
    seamgate plugins new tickets
    cd seamgate-tickets && pip install -e . && pytest && mypy
    seamgate plugins check tickets
    """
    if not _NAME.match(name) or len(name) > _LONGEST_NAME:
        raise click.UsageError(f"{name!r}: write a name of a-z, 0-9 and single hyphens, such as tickets")
    if name in available():
        raise click.UsageError(f"there is a plugin {name!r} already: `seamgate plugins list` shows what is installed")
    place = folder or Path(f"seamgate-{name}")
    files = _files(name)
    _write(place, files)
    if as_json:
        click.echo(json.dumps({"plugin": name, "folder": str(place), "files": list(files)}))
        return
    for path in files:
        click.echo(f"  {click.style(path, fg='green')}")
    click.echo(f"\nNext:  cd {place} && pip install -e . && pytest && mypy\n       seamgate plugins check {name}")


def _files(name: str) -> dict[str, str]:
    module = f"seamgate_{name.replace('-', '_')}"
    camel = "".join(part.capitalize() for part in name.split("-"))
    words = {
        "name": name,
        "module": module,
        "camel": camel,
        "title": name.replace("-", " ").capitalize(),
        "version": __version__,
    }
    texts = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        ".gitignore": _IGNORED,
        f"{module}/__init__.py": _MODULE,
        f"{module}/py.typed": "",
        f"tests/test_{name.replace('-', '_')}.py": _TEST,
    }
    return {path: Template(text).substitute(words) for path, text in texts.items()}


def _write(place: Path, files: dict[str, str]) -> None:
    """Write all files or none.

    Raises:
        ConfigError: one of them is there already, or the folder can't be written to.
    """
    there = [path for path in files if (place / path).exists()]
    if there:
        raise ConfigError(f"{place / there[0]} is there already; name another folder with --dir, or move it away")
    try:
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{place} can't be written to: {error.strerror}") from None
