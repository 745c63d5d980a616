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
    ],
)  # fmt: skip
def test_a_name_that_says_secret_is_withheld(name: str) -> None:
    """Whatever its case or its owner."""
    assert broker({name: "some-value"}, ["**"]).withheld == (name,)


def test_a_password_in_a_url_is_withheld() -> None:
    """The name says nothing there; a proxy variable is replaced in any case, and needs no mention."""
    assert looks_secret("DATABASE_URL", "postgres://app:hunter2hunter2@db.example/app")
    assert not looks_secret("DATABASE_URL", "postgres://app@db.example/app")
    assert not looks_secret("HTTPS_PROXY", "http://user:pass@proxy.example:3128")


@pytest.mark.parametrize(
    "name", ["PATH", "PWD", "OLDPWD", "HOME", "LANG", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "MONKEY"]
)
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
