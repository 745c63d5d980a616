"""Reading policy files: the names that users gave are in the errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.errors import ConfigError
from seamgate.policy.files import read_policies, read_policy


def test_files_are_read_in_order(tmp_path: Path) -> None:
    """Each file is one policy with its name as the source."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"seamgate: 1\nowner: {name}\n", encoding="utf-8")
    found = read_policies([tmp_path / "b.yaml", tmp_path / "a.yaml"])
    assert [each.owner for each in found] == ["b", "a"]
    assert found[0].source == str(tmp_path / "b.yaml")


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Missing or meaningless: a ConfigError with the file's name, never a policy that is half there."""
    with pytest.raises(ConfigError, match=r"none\.yaml: can't be read"):
        read_policy(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("seamgate: 1\nruels: []\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.yaml:2:1: unknown key 'ruels': did you mean 'rules'\?"):
        read_policies([tmp_path / "bad.yaml"])
