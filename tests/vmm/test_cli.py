"""`seamgate vm`: every answer is a line a person can act on, and an exit code a script can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from seamgate_vmm import template as templates
from seamgate_vmm.cli import vm
from seamgate_vmm.host import Host
from seamgate_vmm.snapshot import Loaded


def test_nothing_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without templates the list says how to make one; a missing one is exit code 2 and names those that exist."""
    monkeypatch.setenv("SEAMGATE_TEMPLATES", str(tmp_path))
    result = CliRunner().invoke(vm, ["template", "list"])
    assert result.exit_code == 0
    assert "template build" in result.output
    result = CliRunner().invoke(vm, ["template", "inspect", "nope"])
    assert result.exit_code == 2
    assert "there are: none yet" in result.output
    for name in ("../x", "a/b", "", ".hidden"):
        assert CliRunner().invoke(vm, ["template", "inspect", name]).exit_code == 2


def test_a_damaged_template_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """inspect of a file that is no template says so, with what to do, exit code 2."""
    monkeypatch.setenv("SEAMGATE_TEMPLATES", str(tmp_path))
    (tmp_path / "bad.sgt").write_bytes(b"x" * 5000)
    result = CliRunner().invoke(vm, ["template", "inspect", "bad"])
    assert result.exit_code == 2
    assert "not a template; build it again" in result.output


@pytest.mark.kvm
def test_build_list_inspect_verify(host: Host, template: Loaded, tmp_path: Path) -> None:
    """A built template is listed, described, and verified; a byte changed afterwards makes verify say no."""
    assert template.meta.name == "test"
    run = CliRunner().invoke
    listed = json.loads(run(vm, ["template", "list", "--json"]).output)
    assert "test" in [entry["name"] for entry in listed]
    assert json.loads(run(vm, ["template", "inspect", "test", "--json"]).output)["name"] == "test"
    assert run(vm, ["template", "verify", "test"]).exit_code == 0
    copy = templates.path_of("copy")
    raw = bytearray(templates.path_of("test").read_bytes())
    raw[-100] ^= 1
    copy.write_bytes(raw)
    result = run(vm, ["template", "verify", "copy"])
    assert (result.exit_code, "damaged" in result.output) == (1, True)
    copy.write_bytes(raw[:-4096])
    result = run(vm, ["template", "verify", "copy"])
    assert (result.exit_code, "cut short" in result.output) == (1, True)
    copy.unlink()


@pytest.mark.kvm
def test_one_damaged_template_hides_no_other(host: Host, template: Loaded) -> None:
    """The list has all that can be read, names what can't, with what to do, and ends with exit code 1."""
    bad = templates.path_of("bad")
    bad.write_bytes(b"x" * 5000)
    try:
        result = CliRunner().invoke(vm, ["template", "list"])
        as_json = CliRunner().invoke(vm, ["template", "list", "--json"])
    finally:
        bad.unlink()
    assert result.exit_code == as_json.exit_code == 1
    assert "test  " in result.stdout and "not a template; build it again" in result.stderr
    assert template.meta.name in [entry["name"] for entry in json.loads(as_json.stdout)]


@pytest.mark.kvm
def test_pool(host: Host, template: Loaded) -> None:
    """pool runs an empty program in each guest and counts those that ended well."""
    assert template.meta.name == "test"
    result = CliRunner().invoke(vm, ["pool", "--template", "test", "--guests", "3", "--json"])
    assert json.loads(result.output)["right"] == 3


@pytest.mark.kvm
def test_guests_rest(host: Host, template: Loaded) -> None:
    """pool --rest parks, hibernates and resumes guests, asks each after every stage, and says what it took."""
    assert template.meta.name == "test"
    result = CliRunner().invoke(vm, ["pool", "--rest", "--template", "test", "--guests", "3", "--json"])
    report = json.loads(result.output)
    assert (report["right"], report["file_bytes"] > 10_000) == (3, True)
    assert "3 of 3 guests" in CliRunner().invoke(vm, ["pool", "--rest", "--template", "test", "--guests", "3"]).output
