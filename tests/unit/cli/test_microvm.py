"""Which Python a command runs, and so which template a microVM is restored from; what of it a guest has to see."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seamgate.cli.microvm import NotPython, find_python

BASE = getattr(sys, "_base_executable", sys.executable)


def test_a_virtual_environment_has_a_template_of_its_own(tmp_path: Path) -> None:
    """Named after the environment's folder, and made of it; two environments don't share one."""
    found = []
    for name in ("a", "b"):
        venv = tmp_path / name
        (venv / "bin").mkdir(parents=True)
        (venv / "pyvenv.cfg").write_text("")
        (venv / "bin" / "python").symlink_to(BASE)
        found.append(find_python([str(venv / "bin" / "python"), "agent.py"]))
        assert (found[-1].venv, list(found[-1].command)) == (venv, ["python", "agent.py"])
    assert found[0].template.startswith("venv-") and found[0].template != found[1].template


def test_this_python_has_the_default_one() -> None:
    """And a template that was asked for is taken as it is, and never made anew by a run."""
    assert find_python([BASE, "-c", "pass"])[1:] == ("python", None, None, True)
    assert find_python([BASE, "-c", "pass"], "mine")[1:] == ("mine", None, None, False)


def test_what_a_version_manager_put_there_is_asked(tmp_path: Path) -> None:
    """A script in place of an interpreter says which one it runs; one that is no Python at all is refused."""
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/sh\nexec "{BASE}" "$@"\n')
    shim.chmod(0o755)
    assert find_python([str(shim), "-c", "pass"]).template == "python"
    shim.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(NotPython, match="make a virtual environment"):
        find_python([str(shim), "-c", "pass"])


@pytest.mark.parametrize("command", [["true"], ["sh", "-c", "python"], ["pythonic", "x"]])
def test_other_programs_are_refused(command: list[str]) -> None:
    """The message says what such a guest runs, and what to use instead."""
    with pytest.raises(NotPython, match="--isolation netns"):
        find_python(command)


def test_a_program_that_is_not_there() -> None:
    """Is told as for every isolation."""
    with pytest.raises(FileNotFoundError):
        find_python(["python3.999", "x.py"])


def test_the_folder_of_a_script_elsewhere_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One within the current folder needs no other; -c and -m have none."""
    (tmp_path / "here" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert find_python([BASE, "-u", str(tmp_path / "agent.py")]).folder == tmp_path
    for words in (["sub/agent.py"], ["-m", "http.client"], ["-c", "pass", "/etc/x.py"]):
        assert find_python([BASE, *words]).folder is None
