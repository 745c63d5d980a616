"""Every file that a configuration names is one absolute place, the same for who opens, hides and mounts it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seamgate.config import Config, load_config, parse_config
from seamgate.launch import secret_files
from seamgate.places import anchored


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """`here` with a link `to` that leads to `there/deep`, and a link `again` to `to`."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "here" / "to").symlink_to(tmp_path / "there" / "deep")
    (tmp_path / "here" / "again").symlink_to("to")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("a", "here/a"),
        ("./a//b/", "here/a/b"),
        ("../www", "www"),
        ("x/../../www/.", "www"),
        ("to/key", "here/to/key"),  # a link stays: what it leads to may be another tomorrow
        ("to", "here/to"),
        ("to/../key", "there/key"),
        ("again/../key", "there/key"),
        ("nowhere/../key", "here/key"),
        ("nul\0/../key", "here/key"),
    ],
)
def test_a_name_is_a_place(name: str, meant: str, tree: Path) -> None:
    """From the configuration's folder, without `.` and `..`; `..` is the folder above that which a link leads to."""
    assert anchored(name, tree / "here") == str(tree / meant)
    assert anchored(str(tree / "here" / name), Path("/elsewhere")) == str(tree / meant)


def test_homes_and_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is a home; above the root is the root; without a folder it is the current one."""
    monkeypatch.setenv("HOME", "/home/me")
    assert anchored("~/x/../key", Path("/etc")) == "/home/me/key"
    assert anchored("../../../..", Path("/usr")) == "/"
    assert anchored("key") == f"{Path.cwd()}/key"


WRITTEN: dict[str, Any] = {
    "entries": {"proxy": {"listen": "127.0.0.1:0"}, "kvm": {"pool": {"listen": "unix:../@1", "folders": ["../@2"]}}},
    "policies": ["../@3"],
    "guests": {"g": {"token": {"file": "../@4"}}},
    "credentials": {"k": {"source": {"file": "../@5"}, "inject": {"header": "x"}, "hosts": ["a.test"]}},
    "plugins": ["builtin", {"name": "otlp", "options": {"endpoint": "https://l.test", "token_file": "../@6"}}],
    "ca": {"dir": "../@7"},
    "audit": {"path": "../@8"},
    "admin": {"listen": "unix:../@9"},
    "upstream_tls": {
        "trust_store": "../@10",
        "origins": [
            {"hosts": ["a.test"], "ca": "../@11", "client_certificate": {"certificate": "../@12", "key": "../@13"}}
        ],
    },
    "upstream_proxy": {
        "url": "https://p.test:1",
        "resolve": "gateway",
        "ca": "../@14",
        "login": {"username": "u", "password": {"file": "../@15"}},
    },
}
_FILES = 15


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list | tuple) else []


def _read(base: Path) -> Config:
    return parse_config(json.dumps(WRITTEN), "seamgate.yaml", base=base)


def test_every_file_of_a_configuration_is_anchored() -> None:
    """Each place where one can be named, from the folder of the file, without `..`."""
    config = _read(Path("/etc/seamgate"))
    found = _texts(msgspec.to_builtins(config, enc_hook=str))
    assert [each for each in found if ".." in each] == []
    named = {each.removeprefix("unix:") for each in found if "@" in each}
    assert named == {f"/etc/@{number}" for number in range(1, _FILES + 1)}


def test_what_is_hidden_is_what_is_opened() -> None:
    """The secrets among them, by the same names."""
    hidden = {str(path) for path in secret_files(_read(Path("/etc/seamgate")), Path("/var/x/../log/j.jsonl"))}
    secrets = {f"/etc/@{number}" for number in (4, 5, 6, 7, 8, 13, 15)}
    assert {each for each in secrets if any(path == each or path.startswith(each + "/") for path in hidden)} == secrets
    assert "/var/log/j.jsonl" in hidden and not any(".." in path for path in hidden)


def test_the_folder_itself(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is named with `..` lies in the folder that the kernel finds."""
    (tree / "there" / "seamgate.yaml").write_text(json.dumps({**WRITTEN, "policies": ["p.yaml"]}))
    monkeypatch.chdir(tree / "here")
    config = load_config(os.path.join("to", "..", "seamgate.yaml"))
    assert (config.base, config.policies) == (tree / "there", (f"{tree}/there/p.yaml",))
