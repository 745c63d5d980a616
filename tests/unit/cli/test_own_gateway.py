"""`seamgate.cli.own_gateway`: what a gateway without a configuration is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.cli.own_gateway import _unconfigured
from seamgate.config import BUILTIN_PLUGINS


def test_placeholders_may_be_shown_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that prints its environment to a model goes on; all else of the plugins is as by default."""
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_" + "a1" * 18)
    config, _ = _unconfigured(["api.github.com"], [], tmp_path, quiet=True)
    assert list(config.credentials) == ["github"]
    options = {each.name: dict(each.options) for each in config.plugins}
    assert options == {each.name: dict(each.options) for each in BUILTIN_PLUGINS} | {
        "credentials": {"placeholders_in_bodies": "pass"}
    }
    assert [each.capabilities for each in config.plugins] == [each.capabilities for each in BUILTIN_PLUGINS]
