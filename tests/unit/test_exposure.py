"""`seamgate.exposure`: set-ups that work and are not safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.cli.doctor_gateway import check_exposure
from seamgate.cli.findings import Level, Setting
from seamgate.config import Config, load_config
from seamgate.exposure import find_exposure

POLICY = "seamgate: 1\nrules:\n  - {id: a, allow: {hosts: [api.test]}}\n"


def configured(folder: Path, text: str, *, mode: int = 0o600, token_mode: int = 0o600) -> Config:
    """Write a configuration, its policy and a token, and load it."""
    for name, content, bits in (
        ("policy.yaml", POLICY, 0o644),
        ("token", "t" * 32, token_mode),
        ("seamgate.yaml", text, mode),
    ):
        (folder / name).write_text(content, encoding="utf-8")
        (folder / name).chmod(bits)
    return load_config(folder / "seamgate.yaml")


HEAD = "policies: [policy.yaml]\nguests: {g: {token: {file: token}}}\n"


@pytest.mark.parametrize("entry", ["proxy", "base_url", "socks5", "dns"])
@pytest.mark.parametrize(("address", "open_to_all"), [("0.0.0.0", True), ("[::]", True), ("127.0.0.1", False)])
def test_an_entry_without_tokens_beyond_this_machine(
    entry: str, address: str, open_to_all: bool, tmp_path: Path
) -> None:
    """Where it has a guest by name, whoever reaches it is that one; with tokens it may listen anywhere."""
    rest = ", routes: {a: 'https://api.test'}" if entry == "base_url" else ""
    proxy = "" if entry == "proxy" else "  proxy: {listen: '0.0.0.0:0'}\n"
    text = f"{HEAD}entries:\n{proxy}  {entry}: {{listen: '{address}:0', guest: g{rest}}}\n"
    found = list(find_exposure(configured(tmp_path, text)))
    assert [each.code for each in found] == (["open-entry"] if open_to_all else [])
    assert all(f"entries.{entry}" in each.message for each in found)


def test_files_that_others_may_write_or_read(tmp_path: Path) -> None:
    """Who can write the configuration or a policy decides; who can read a token is that guest. Doctor says it too."""
    text = f"{HEAD}entries: {{proxy: {{}}}}\n"
    assert not list(find_exposure(configured(tmp_path, text)))
    config = configured(tmp_path, text, mode=0o622, token_mode=0o640)
    (tmp_path / "policy.yaml").chmod(0o666)
    assert [each.code for each in find_exposure(config)] == ["open-file", "open-file", "open-token"]
    told = list(check_exposure(Setting(ca_dir=tmp_path, config=config)))
    assert {(each.level, each.advice) for each in told} == {(Level.WARN, "chmod go-w it"), (Level.WARN, "chmod 600 it")}


def test_a_credential_for_every_host(tmp_path: Path) -> None:
    """It goes wherever a rule says, also to a host of the guest's."""
    credential = "{source: {env: K}, inject: {bearer: true}, hosts: ['**']}"
    text = f"{HEAD}entries: {{proxy: {{}}}}\ncredentials: {{k: {credential}}}\n"
    assert [each.code for each in find_exposure(configured(tmp_path, text))] == ["wide-credential"]
