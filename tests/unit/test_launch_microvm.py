"""What a guest in a microVM gets: a configuration without listeners, an environment that is about no machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate import launch
from seamgate.ca.environment import client_environment
from seamgate.config import Config, KvmEntry, parse_config
from seamgate.errors import ConfigError
from seamgate.flow import Isolation

_TEXT = """\
entries:
  proxy: {listen: 127.0.0.1:8080}
  kvm: {own_tls: refuse}
policies: [p.yaml]
guests: {other: {token: {env: OTHER_TOKEN}}}
credentials:
  key: {source: {env: SSH_LIKE_KEY}, inject: {bearer: true}, hosts: [a.example], placeholder: sk-looks-real-0000}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A configuration with a credential."""
    return parse_config(_TEXT, "seamgate.yaml", base=tmp_path)


def test_nothing_listens_for_it(config: Config, tmp_path: Path) -> None:
    """Its one entry is the ring; what the configuration says of that holds, and TLS of guests needs the CA."""
    made = launch.private_config(config, token="", labels={}, audit_path=tmp_path / "x", isolation=Isolation.KVM)
    assert made.entries.kvm == KvmEntry(own_tls="refuse")
    assert (made.entries.proxy, made.entries.netns, made.entries.terminate) == (None, None, True)


def test_its_environment_has_no_secret_no_proxy_and_no_machine(config: Config) -> None:
    """Placeholders stand where credentials stood, also under a name that is left out otherwise."""
    about_here = {"PATH": "/x", "HOME": "/x", "LD_PRELOAD": "x.so", "PYTHONPATH": "/x", "SSH_AUTH_SOCK": "/x"}
    proxies = client_environment("http://127.0.0.1:3128", "/ca.pem")
    secrets = {"SSH_LIKE_KEY": "sk-the-real-value", "OTHER_TOKEN": "a-token-of-somebody"}
    made = launch.microvm_environment(config, {"MODEL": "m", **about_here, **proxies, **secrets})
    assert made == {"MODEL": "m", "SSH_LIKE_KEY": "sk-looks-real-0000"}


@pytest.mark.parametrize(
    ("idle", "message"),
    [
        ("{hibernate_s: 20}", "parked before they are hibernated"),
        ("{park_s: 0, hibernate_s: 60}", "parked before they are hibernated"),
        ("{trim_s: -1}", "trim_s"),
        ("{park_s: .inf}", "plain decimal number"),
        ("{rest_s: 5}", "rest_s"),
    ],
)
def test_a_policy_for_waiting_guests_makes_sense(tmp_path: Path, idle: str, message: str) -> None:
    """Its times are finite, not negative, and in order: an error with file and line otherwise, when it is loaded."""
    text = _TEXT.replace("{own_tls: refuse}", f"{{idle: {idle}}}")
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(text, "seamgate.yaml", base=tmp_path)
    assert "seamgate.yaml:3" in str(caught.value)
