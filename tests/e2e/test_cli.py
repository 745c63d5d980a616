"""The command line as a whole: help, version, completion, errors, exit codes, `init`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from seamgate import __version__
from seamgate.cli import main
from seamgate.cli.commands import COMMANDS, load
from support.cli import environment, seamgate


def test_help_is_there_at_once(tmp_path: Path) -> None:
    """`seamgate --help` answers before one notices, because no command is imported for it."""
    code = "import sys; sys.argv = ['seamgate', '--help']\nfrom seamgate.cli import main\n"
    code += "main(standalone_mode=False)\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=30
    )
    heavy = {"rich", "uvloop", "cryptography", "structlog", "yaml", "asyncio", "seamgate.gateway"}
    assert not heavy & set(done.stdout.split())


def test_every_command_is_listed_and_can_be_imported() -> None:
    """The table of commands and the commands agree: each line of it leads to a command that has a help text."""
    listed = CliRunner().invoke(main, ["--help"]).output
    for name, lazy in COMMANDS.items():
        command = load(lazy)
        assert command.help
        assert name in listed


def test_every_command_explains_itself() -> None:
    """Each command, option and sub-command has its help."""
    for path, command in _walk(main, ()):
        assert command.get_short_help_str(limit=200), path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help or parameter.name in _PLAIN, (path, parameter.name)


def test_no_help_is_cut() -> None:
    """A list of commands has the whole first sentence of each, also where that is longer than a line."""
    groups = [((), main), *((path, each) for path, each in _walk(main, ()) if isinstance(each, click.Group))]
    for path, group in groups:
        shown = CliRunner().invoke(main, [*path, "--help"], env={"COLUMNS": "80"}).output
        commands = " ".join(shown.partition("Commands:")[2].split())
        assert commands and "..." not in commands, path
        for name in group.list_commands(click.Context(group)):
            assert name in commands


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("polcy",), "'polcy': did you mean 'policy'?"), (("policy", "chek"), "'chek': did you mean 'check'?")],
)
def test_a_misspelt_command_is_told_what_was_meant(arguments: tuple[str, ...], meant: str) -> None:
    """At the top and within a group: exit code 2 and the nearest name."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert f"there is no command {meant}" in done.output


_PLAIN = {"count", "shell", "log_format", "log_level"}  # their choices or defaults say it all


def _walk(command: click.Command, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found += _walk(below, (*path, name))
    return found


def test_the_version_is_the_packages() -> None:
    """--version says what is installed."""
    assert CliRunner().invoke(main, ["--version"]).output == f"seamgate {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_us_back(shell: str, tmp_path: Path) -> None:
    """Each shell gets a script that asks `seamgate` itself what may follow."""
    done = seamgate("completion", shell, home=tmp_path)
    assert done.returncode == 0
    assert f"_SEAMGATE_COMPLETE={shell}_complete" in done.stdout.replace("env ", "")


def test_completion_knows_commands_and_their_options(tmp_path: Path) -> None:
    """What the script asks is answered: commands by the table, options by the command."""
    ask = {"_SEAMGATE_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "seamgate de"}
    code = "from seamgate.cli import main\nmain(prog_name='seamgate')"
    for words, expected in (("seamgate de", "plain,demo"), ("seamgate demo --ke", "plain,--keep")):
        ask |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(tmp_path, ask), capture_output=True, text=True, timeout=30,
            check=False,
        )  # fmt: skip
        assert done.stdout.split() == [expected]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("serve", "--nonsense"),
        ("serve", "-c", "missing.yaml"),
        ("run",),
        ("run", "--label", "team", "--", "true"),
        ("run", "--allow", "https://x.example", "--", "true"),
        ("run", "-c", "missing.yaml", "--", "true"),
        ("plugins", "check", "-c", "missing.yaml"),
    ],
)
def test_bad_usage_is_exit_code_2_without_a_traceback(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """What the user can mend is told in words and is exit code 2."""
    done = seamgate(*arguments, home=tmp_path)
    assert done.returncode == 2
    assert any(line.startswith("error: ") for line in done.stderr.splitlines())
    assert "Error:" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_configuration_error_shows_the_line(tmp_path: Path) -> None:
    """File, line, column, a suggestion, and the line itself with a caret below the place."""
    (tmp_path / "seamgate.yaml").write_text("entries:\n  prxy: {listen: 127.0.0.1:0}\npolicies: [p.yaml]\n")
    done = seamgate("serve", "--check", home=tmp_path)
    assert done.returncode == 2
    message, line, caret = done.stderr.splitlines()
    assert message == "error: seamgate.yaml:2:3: unknown key 'prxy' in entries: did you mean 'proxy'?"
    assert line == "  2 |   prxy: {listen: 127.0.0.1:0}"
    assert caret == "    |   ^"


def test_a_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """The line that is shown comes from a file that anybody may have written: control characters are left out."""
    (tmp_path / "seamgate.yaml").write_text("entries:\n  prxy: {}   # \x1b]0;owned\x07\npolicies: [p.yaml]\n")
    done = seamgate("serve", "--check", home=tmp_path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr


def test_init_writes_what_works(tmp_path: Path) -> None:
    """The starter's configuration loads, its policy test passes, its token is private, and nothing is overwritten."""
    folder = tmp_path / "first"
    made = seamgate("init", str(folder), home=tmp_path)
    assert made.returncode == 0, made.stderr
    assert (folder / "agent.token").stat().st_mode & 0o777 == 0o600
    tested = seamgate("policy", "test", ".", home=tmp_path, cwd=folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    checked = seamgate("serve", "--check", home=tmp_path, cwd=folder)
    assert (checked.returncode, checked.stdout) == (0, "seamgate.yaml: everything loads\n")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    again = seamgate("init", str(folder), home=tmp_path)
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_is_written_and_checked_can_be_json(tmp_path: Path) -> None:
    """One JSON object on standard output, whatever the answer is; the exit code is the same as without."""
    folder = tmp_path / "first"
    made = json.loads(seamgate("init", str(folder), "--json", home=tmp_path).stdout)
    assert made["ca_made"] is True
    assert sorted(made["files"]) == sorted(path.name for path in folder.iterdir())
    done = seamgate("serve", "--check", "--json", home=tmp_path, cwd=folder)
    assert json.loads(done.stdout) == {"configuration": "seamgate.yaml", "loads": True, "errors": [], "findings": []}
    config = folder / "seamgate.yaml"
    config.write_text(config.read_text() + "admin: {listen: '127.0.0.1:8080'}\n")
    done = seamgate("serve", "--check", "--json", home=tmp_path, cwd=folder)
    (error,) = json.loads(done.stdout)["errors"]
    assert (done.returncode, done.stderr, error["file"]) == (2, "", "seamgate.yaml")
    assert "entries.proxy listens on 127.0.0.1:8080 already" in error["message"]
    assert error["line"] == len(config.read_text().splitlines())
    assert seamgate("serve", "--json", home=tmp_path, cwd=folder).returncode == 2
    variables = json.loads(seamgate("ca", "env", "--json", home=tmp_path).stdout)
    assert Path(variables["SSL_CERT_DIR"]).is_dir()
    plugin = json.loads(seamgate("plugins", "new", "of-this-test", "--json", home=tmp_path).stdout)
    assert all((tmp_path / plugin["folder"] / name).is_file() for name in plugin["files"])


def test_the_token_of_init_is_not_in_the_configuration(tmp_path: Path) -> None:
    """seamgate.yaml holds the token's digest only, so that it can be kept under version control."""
    seamgate("init", str(tmp_path / "first"), home=tmp_path)
    token = (tmp_path / "first" / "agent.token").read_text().strip()
    assert len(token) >= 32
    assert token not in (tmp_path / "first" / "seamgate.yaml").read_text()
    assert "agent.token" in (tmp_path / "first" / ".gitignore").read_text().split()


def test_check_needs_what_a_start_needs(tmp_path: Path) -> None:
    """--check fails for a missing secret, a missing policy and a missing CA, each by name."""
    seamgate("init", str(tmp_path / "first"), home=tmp_path)
    folder = tmp_path / "first"
    config = (folder / "seamgate.yaml").read_text()
    credential = "credentials: {k: {source: {env: NOT_THERE_K}, inject: {bearer: true}, hosts: [a.example]}}\n"
    for text, expected in (
        (config + credential, "NOT_THERE_K is not set"),
        (config.replace("policy.yaml]", "gone.yaml]"), "gone.yaml"),
        (config + "ca: {dir: nowhere}\n", "seamgate ca init"),
        (config.replace("path: audit/audit.jsonl", "path: policy.yaml/x.jsonl"), "x.jsonl can't be written: "),
    ):
        (folder / "seamgate.yaml").write_text(text)
        done = seamgate("serve", "--check", home=tmp_path, cwd=folder)
        assert done.returncode == 2, expected
        assert expected in done.stderr
