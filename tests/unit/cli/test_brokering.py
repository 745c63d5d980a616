"""What becomes of the secrets in the caller's environment when `run` has no configuration."""

from __future__ import annotations

import pytest

from seamgate.cli.allow import allow_hosts
from seamgate.cli.brokering import WELL_KNOWN, WellKnown, broker, looks_secret
from seamgate.credentials.config import shown_placeholder
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import ConfigError
from seamgate.policy.loader import parse_policy

_KEY = "sk-ant-the-real-value-123456"


@pytest.mark.parametrize("known", WELL_KNOWN, ids=lambda known: known.variable)
def test_a_well_known_credential_is_brokered_to_its_host(known: WellKnown) -> None:
    """Each of the table: bound to its one host, selected by the rule for that host, shown as a placeholder."""
    found = broker({known.variable: _KEY}, [known.host])
    assert found.withheld == ()
    credential = found.credentials[known.name]
    assert (credential.source.env, credential.hosts, credential.inject) == (known.variable, (known.host,), known.inject)
    assert shown_placeholder(known.name, credential) != _KEY
    PlaceholderIndex(found.credentials)
    (rule,) = parse_policy(allow_hosts([known.host], found.by_host), "run").rules
    assert rule.credentials == (known.name,)


@pytest.mark.parametrize("allowed", ["*.anthropic.com", "**", "api.anthropic.com:443"])
def test_whatever_allows_the_host_brokers(allowed: str) -> None:
    """A pattern gets a rule for the host besides, which is the more specific one; 443 is what https means."""
    found = broker({"ANTHROPIC_API_KEY": _KEY}, [allowed])
    assert list(found.credentials) == ["anthropic"]
    rules = parse_policy(allow_hosts([allowed], found.by_host), "run").rules
    (rule,) = (rule for rule in rules if rule.credentials)
    assert rule.credentials == ("anthropic",)
    assert [host.text for host in rule.match.hosts or ()] == ["api.anthropic.com"]
    assert len(rules) == (1 if ":" in allowed else 2)


def test_a_rule_for_another_port_gets_no_credential() -> None:
    """The value is for https on its own port, whatever else of the host is allowed."""
    allowed = ["api.anthropic.com:8443", "*.anthropic.com"]
    found = broker({"ANTHROPIC_API_KEY": _KEY}, allowed)
    rules = parse_policy(allow_hosts(allowed, found.by_host), "run").rules
    assert [(rule.match.ports, rule.credentials) for rule in rules] == [
        (((8443, 8443),), None), (None, None), (None, ("anthropic",)),
    ]  # fmt: skip


@pytest.mark.parametrize("allowed", [[], ["api.openai.com"], ["api.anthropic.com:8443"], ["x.api.anthropic.com"]])
def test_a_credential_whose_host_is_not_allowed_is_withheld(allowed: list[str]) -> None:
    """It is for nobody, so nobody gets it."""
    found = broker({"ANTHROPIC_API_KEY": _KEY}, allowed)
    assert (found.credentials, found.withheld) == ({}, ("ANTHROPIC_API_KEY",))


def test_of_two_for_one_host_one_is_brokered() -> None:
    """The first of the table; the other is withheld, never handed on."""
    found = broker({"GH_TOKEN": _KEY, "GITHUB_TOKEN": _KEY}, ["api.github.com"])
    assert (list(found.credentials), found.withheld) == (["github"], ("GH_TOKEN",))


@pytest.mark.parametrize(
    "name",
    [
        "ACME_API_KEY", "NPM_TOKEN", "CLIENT_SECRET", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN", "PGPASSWORD", "MYSQL_PWD", "SECRET_KEY_BASE", "DJANGO_SECRET_KEY", "APIKEY", "GITLAB_PAT",
        "GOOGLE_APPLICATION_CREDENTIALS", "acme_token", "SSH_PRIVATE_KEY", "NPM_CONFIG__AUTH", "TOKEN", "API_KEY_2",
        "DOCKER_AUTH_CONFIG", "AZURE_STORAGE_CONNECTION_STRING", "SLACK_WEBHOOK_URL", "SECRETKEY", "AWS_SECRETKEY",
        "DBPASS", "SSHKEY", "BEARER", "CI_JOB_JWT", "JWT", "SESSION_COOKIE", "NETRC", "DATABASE_DSN", "REDIS_PASS_1",
        "GIT_HTTP_EXTRAHEADER", "dbPassword", "USER_PIN", "SERVICE_CONN_STR", "COMPOSER_AUTH", "BASIC_AUTH_VALUE",
    ],
)  # fmt: skip
def test_a_name_that_says_secret_is_withheld(name: str) -> None:
    """Whatever its case or its owner."""
    assert broker({name: "some-value"}, ["**"]).withheld == (name,)


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("postgres://app:hunter2hunter2@db.example/app", True),
        ("postgres://app@db.example/app", False),
        ("redis://:hunter2@cache.example", True),
        ("https://t0ken@pypi.corp.example/simple", True),
        ("https://a.example/simple HTTPS://t0ken@b.example/simple", True),
        ("git+https://git@github.com/acme/x", False),
        ("https://oauth2:t@gitlab.example/x", True),
        ("ssh://git@github.com/acme/x", False),
        ("https://pypi.corp.example/simple?page=1", False),
        ("https://store.example/x?sv=2024&sig=abc%3D", True),
        ("https://hooks.slack.com/services/T0/B0/abcdefghijk", True),
        ("https://discord.com/api/webhooks/1/abc", True),
        ("someone@example.com", False),
    ],
)
def test_a_login_in_a_url_is_withheld(value: str, is_secret: bool) -> None:
    """A password always; in URLs of the web a user too, which may be a token; and addresses that are the secret."""
    assert looks_secret("SETTING", value) is is_secret
    assert not looks_secret("HTTPS_PROXY", value), "replaced by the gateway's own in any case"
    assert looks_secret("RSYNC_PROXY", value) is is_secret


@pytest.mark.parametrize(
    "value",
    [
        "ghp_" + "a1" * 18, "github_pat_" + "a1" * 20, "glpat-" + "a1" * 10, "sk-ant-api03-" + "a" * 24,
        "sk-proj-" + "a1" * 10, "sk_live_" + "a1" * 10, "xoxb-1234-5678-abcdef", "AKIA" + "ABCD" * 4,
        "ASIA" + "ABCD" * 4, "AIza" + "a1" * 18, "hf_" + "a1" * 17, "npm_" + "a1" * 18, "pypi-AgE" + "a1" * 20,
        "gsk_" + "a1" * 20, "-----BEGIN PRIVATE KEY-----\nMII", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3",
        "eyJhbGciOiJIUzI1NiJ9.e30.c2ln",
        "--header=ghp_" + "a1" * 18, "Authorization: Basic dXNlcjpwYXNz", "Bearer abcdefgh12345678",
        '{"auths":{"r.example":{"auth":"dXNlcjpwYXNz"}}}', "host=h user=u password=hunter2",
        "AccountName=a;AccountKey=abc==", "machine h login u password p",
    ],
)  # fmt: skip
def test_a_value_with_the_form_of_a_secret_is_withheld(value: str) -> None:
    """Whatever the name of the variable says."""
    assert broker({"SETTING": value}, ["**"]).withheld == ("SETTING",)


@pytest.mark.parametrize(
    "value",
    [
        "/usr/bin:/bin", "en_GB.UTF-8", "task-force-of-seventeen", "sk-learn-extension-package", "xterm-256color",
        "-----BEGIN CERTIFICATE-----\nMII", "basic programming", "1.2.3", "a=1;b=2", "--author=me --password-file=x",
        "github_pat", "ghp_", '{"a": {"b": 1}}', "AKIAVERY", "unix:path=/run/user/0/bus",
    ],
)  # fmt: skip
def test_an_ordinary_value_is_left_alone(value: str) -> None:
    """Prefixes alone, certificates and words are no secrets."""
    assert not looks_secret("SETTING", value)


def test_a_long_value_takes_no_time() -> None:
    """What a variable may hold at most is searched in one pass, whatever it repeats."""
    for piece in (
        "a",
        "eyJ",
        "-eyJ",
        "sk-",
        "=sk-a",
        "a:",
        "://a",
        "bearer ",
        "password ",
        "machine x ",
        "a.",
        "-ghp_",
    ):
        assert not looks_secret("SETTING", piece * (131072 // len(piece)))


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "PWD", "OLDPWD", "HOME", "LANG", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "MONKEY",
        "SSH_AUTH_SOCK", "XAUTHORITY", "GIT_AUTHOR_NAME", "GIT_ASKPASS", "COMPASS", "TOX_TESTENV_PASSENV", "PINNED",
        "KEYMAP", "PIP_INDEX_URL", "PYTHONPATH", "SHOPPING_LIST", "PATHEXT", "LS_COLORS", "COLORTERM", "NO_PROXY",
    ],
)  # fmt: skip
def test_an_ordinary_variable_is_left_alone(name: str) -> None:
    """What a program needs to run is there."""
    assert broker({name: "some-value"}, ["**"]).withheld == ()


def test_a_kept_variable_is_neither_brokered_nor_withheld() -> None:
    """--keep-env is the caller's word; a name that is not set is a slip, and said to be."""
    found = broker({"ANTHROPIC_API_KEY": _KEY, "NPM_TOKEN": "t" * 20}, ["**"], ["ANTHROPIC_API_KEY", "NPM_TOKEN"])
    assert (found.credentials, found.withheld) == ({}, ())
    with pytest.raises(ConfigError, match="--keep-env NPM_TOKE: there is no such variable"):
        broker({"NPM_TOKEN": "t" * 20}, ["**"], ["NPM_TOKE"])


def test_what_is_told_holds_no_value() -> None:
    """Which variables, where a key goes in, and how to hand one on."""
    told = "\n".join(broker({"ANTHROPIC_API_KEY": _KEY, "NPM_TOKEN": "t" * 20}, ["api.anthropic.com"]).told())
    assert "ANTHROPIC_API_KEY: the program gets a placeholder" in told
    assert "api.anthropic.com" in told
    assert "withheld from the program: NPM_TOKEN (--keep-env NAME" in told
    assert _KEY not in told
    assert "t" * 20 not in told
