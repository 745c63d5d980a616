"""What a guest of `seamgate run` gets: a configuration of its own and an environment without secrets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from seamgate import launch
from seamgate.audit.config import AuditConfig
from seamgate.ca.store import CaFiles, init_ca
from seamgate.config import Config, parse_config
from seamgate.entry.identity import Identities
from seamgate.errors import ConfigError
from seamgate.flow import Isolation
from seamgate.limits import LimitsConfig

_TEXT = """\
entries:
  proxy: {listen: 0.0.0.0:8080, guest: everybody}
  base_url: {listen: 0.0.0.0:8081, guest: everybody, routes: {a: https://a.example}}
policies: [p.yaml]
guests:
  everybody: {labels: {team: all}}
  other: {token: {env: OTHER_TOKEN}}
credentials:
  first: {source: {env: KEY}, inject: {bearer: true}, hosts: [a.example]}
  second: {source: {env: KEY}, inject: {bearer: true}, hosts: [b.example]}
  shaped: {source: {env: SHAPED}, hosts: [a.example], placeholder: sk-looks-real-0000}
  filed: {source: {file: key.txt}, hosts: [a.example]}
admin: {listen: 127.0.0.1:9000}
audit: {path: audit.jsonl, query: none}
"""
_ADDRESSES = {"proxy": ("127.0.0.1", 1234), "base_url": ("127.0.0.1", 1235)}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A configuration for many guests."""
    return parse_config(_TEXT, "seamgate.yaml", base=tmp_path)


def test_one_program_gets_connections_for_one(config: Config, tmp_path: Path) -> None:
    """A service's default number needs more open files than a user may have; what is configured holds."""
    path = tmp_path / "run.jsonl"
    made = launch.private_config(config, token="t" * 32, labels={}, audit_path=path)
    assert made.limits.connections == launch.CONNECTIONS
    said = msgspec.structs.replace(config, limits=LimitsConfig(connections=5000))
    assert launch.private_config(said, token="t" * 32, labels={}, audit_path=path).limits.connections == 5000


def test_the_private_gateway_has_one_guest(config: Config, tmp_path: Path) -> None:
    """Loopback on free ports, one token, the run's labels; nobody is a guest just by asking."""
    made = launch.private_config(config, token="t" * 32, labels={"team": "red"}, audit_path=tmp_path / "run.jsonl")
    assert made.entries.proxy is not None
    assert made.entries.base_url is not None
    assert (made.entries.proxy.listen, made.entries.proxy.guest) == ("127.0.0.1:0", "")
    assert (made.entries.base_url.listen, made.entries.base_url.guest) == ("127.0.0.1:0", "")
    assert made.entries.base_url.routes == {"a": "https://a.example"}
    guest = Identities(made.guests, Isolation.PROXY).by_token("t" * 32)
    assert (guest.id, guest.labels) == ("run", {"team": "red"})
    assert list(made.guests) == ["run"]


def test_what_decides_is_taken_over(config: Config, tmp_path: Path) -> None:
    """Policies, credentials and plugins are the configuration's; the journal is the run's, and no admin listener is."""
    made = launch.private_config(config, token="t" * 32, labels={}, audit_path=tmp_path / "run.jsonl")
    assert (made.policies, made.credentials, made.plugins) == (config.policies, config.credentials, config.plugins)
    assert (made.audit.path, made.audit.query) == (str(tmp_path / "run.jsonl"), "none")
    assert made.admin.listen == ""


def test_no_secret_is_in_the_environment(config: Config) -> None:
    """Variables of credentials hold placeholders, those of other guests' tokens are gone, the rest stays."""
    secrets = {"KEY": "secret-one", "SHAPED": "secret-two", "OTHER_TOKEN": "secret-three"}
    made = launch.guest_environment(config, _ADDRESSES, Path("ca.pem"), "tok", {**secrets, "PATH": "/bin"})
    assert made["PATH"] == "/bin"
    assert (made["KEY"], made["SHAPED"]) == ("sgph-first", "sk-looks-real-0000")
    assert "OTHER_TOKEN" not in made
    assert not [value for value in made.values() if "secret" in value]


def test_a_placeholder_is_there_even_if_the_variable_is_not(config: Config) -> None:
    """So that an SDK finds a key although only the gateway's own environment has it."""
    assert launch.guest_environment(config, _ADDRESSES, Path("ca.pem"), "tok", {})["SHAPED"] == "sk-looks-real-0000"


def test_proxy_and_base_url_carry_the_token(config: Config) -> None:
    """Each client finds its way and says who it is; an inherited proxy or exception does not survive."""
    inherited = {"HTTPS_PROXY": "http://elsewhere:1", "no_proxy": "*"}
    made = launch.guest_environment(config, _ADDRESSES, Path("ca.pem"), "tok", inherited)
    assert made["HTTPS_PROXY"] == made["https_proxy"] == "http://run:tok@127.0.0.1:1234"
    assert made["no_proxy"] == made["NO_PROXY"] == ""
    assert made["SEAMGATE_BASE_URL"] == "http://127.0.0.1:1235/~tok"


def test_tokens_differ() -> None:
    """Each run has its own."""
    assert len({launch.new_token() for _ in range(100)}) == 100


def test_a_runs_journal_stands_beside_the_configured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder `runs`; without a configured one, beside the default one."""
    assert launch.run_journal(AuditConfig(path="/var/lib/seamgate/audit.jsonl")).parent == Path(
        "/var/lib/seamgate/runs"
    )
    monkeypatch.setenv("SEAMGATE_AUDIT", "/somewhere/a.jsonl")
    assert launch.run_journal(AuditConfig()).parent == Path("/somewhere/runs")


def test_a_ca_is_made_once(tmp_path: Path) -> None:
    """The first use makes it, whole and private; later ones leave it as it is."""
    directory = tmp_path / "below" / "ca"
    assert launch.ensure_ca(directory)
    before = CaFiles(directory).key.read_bytes()
    assert not launch.ensure_ca(directory)
    assert CaFiles(directory).key.read_bytes() == before
    assert [path.name for path in directory.parent.iterdir()] == ["ca"]


def test_who_comes_second_uses_the_first_ones_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gateways that start at once agree: the one that is a moment late keeps nothing of its own."""
    directory = tmp_path / "ca"
    real = init_ca

    def late(draft: Path) -> object:
        made = real(draft)
        real(directory)  # meanwhile, in another process
        return made

    monkeypatch.setattr(launch, "init_ca", late)
    assert not launch.ensure_ca(directory)
    assert [path.name for path in tmp_path.iterdir()] == ["ca"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    """A CA never takes the place of somebody's files."""
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="holds other files"):
        launch.ensure_ca(tmp_path / "ca")
    assert (tmp_path / "ca" / "thesis.tex").exists()


def test_the_gateways_secrets_are_known_by_their_files(tmp_path: Path) -> None:
    """Keys of CAs, credentials, tokens, client keys, plugins' files, journals: what an isolation may have to hide."""
    text = _TEXT.replace("{token: {env: OTHER_TOKEN}}", "{token: {file: token.txt}}") + (
        "upstream_tls: {origins: [{hosts: [a.example], client_certificate: {certificate: c.pem, key: c.key}}]}\n"
        "plugins: [builtin, {name: otlp, options: {endpoint: 'https://logs.example', token_file: otlp.token}}]\n"
    )
    made = parse_config(text, "seamgate.yaml", base=tmp_path)
    journals = {"run.jsonl", "run.jsonl.head", "audit.jsonl", "runs"}
    names = {path.name for path in launch.secret_files(made, tmp_path / "run.jsonl")}
    assert names == {"ca.key", "guests", "key.txt", "token.txt", "c.key", "otlp.token", *journals}


def test_a_namespace_needs_no_token_and_no_listener(config: Config, tmp_path: Path) -> None:
    """Who asks is known from the namespace, and the entries are inside of it."""
    path = tmp_path / "run.jsonl"
    made = launch.private_config(config, token="", labels={"a": "b"}, audit_path=path, isolation=Isolation.NETNS)
    assert (made.entries.proxy, made.entries.base_url) == (None, None)
    assert made.entries.netns is not None
    assert made.guests[launch.GUEST].token is None
    environment = launch.guest_environment(made, _ADDRESSES, tmp_path / "ca.pem", "", {})
    assert environment["HTTPS_PROXY"] == "http://127.0.0.1:1234"
    assert environment["SEAMGATE_BASE_URL"] == "http://127.0.0.1:1235"
