"""`seamgate.credentials.config`: what the configuration may say, and how it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from seamgate.credentials.config import (
    BasicConfig,
    CredentialConfig,
    InjectConfig,
    SourceConfig,
    check_credentials,
    shown_placeholder,
)
from seamgate.errors import ConfigError

GOOD: dict[str, Any] = {"source": {"env": "KEY"}, "inject": {"header": "x-api-key"}, "hosts": ["api.example.com"]}


def load(**change: Any) -> CredentialConfig:
    return msgspec.convert({**GOOD, **change}, CredentialConfig)


def test_the_whole_of_it() -> None:
    """Everything the manual shows is accepted."""
    config = load(
        source={"command": ["op", "read", "op://x"], "refresh_s": 60, "timeout_s": 5, "max_stale_s": 600},
        inject={"header": "authorization", "prefix": "token "},
        placeholder="sk-ant-api03-placeholder",
        methods=["GET"],
        paths=["/v1/**"],
        swap_query=True,
        remove_headers=["cookie"],
        allow_ranges=True,
        allow_http=True,
    )
    assert config.inject is not None
    assert config.inject.header_name == b"authorization"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hosts": []}, "hosts is empty"),
        ({"methods": []}, "binds to nothing"),
        ({"paths": []}, "binds to nothing"),
        ({"source": {}}, "exactly one of env, file, command"),
        ({"source": {"env": "A", "file": "/x"}}, "exactly one of env, file, command"),
        ({"source": {"env": "not a name"}}, "name of an environment variable"),
        ({"source": {"file": ""}}, "path of the file"),
        ({"source": {"command": []}}, "command is empty"),
        ({"source": {"command": ["x"], "timeout_s": 0}}, "above 0"),
        ({"source": {"command": ["x"], "refresh_s": 60, "max_stale_s": 5}}, "max_stale_s"),
        ({"source": {"env": "A", "vault": "x"}}, "unknown field `vault`"),
        ({"inject": {}}, "exactly one of header, bearer"),
        ({"inject": {"header": "a", "bearer": True}}, "exactly one of header, bearer"),
        ({"inject": {"header": "bad name"}}, "not a header name"),
        ({"inject": {"header": "Host"}}, "belongs to the gateway"),
        ({"inject": {"header": "Transfer-Encoding"}}, "belongs to the gateway"),
        ({"inject": {"header": "Proxy-Authorization"}}, "belongs to the gateway"),
        ({"inject": {"bearer": True, "prefix": "x "}}, "prefix goes with header"),
        ({"inject": {"header": "a", "prefix": "x\r\n"}}, "visible ASCII"),
        ({"inject": {"basic": {}}}, "exactly one of username and password"),
        ({"inject": {"basic": {"username": "a:b"}}}, "colon"),
        ({"inject": {"basic": {"username": "a\n"}}}, "control character"),
        ({"placeholder": "short"}, "8 to 256"),
        ({"placeholder": "has a space in it"}, "8 to 256"),
        ({"remove_headers": ["content-length"]}, "belongs to the gateway"),
        ({"value": "sk-literal"}, "unknown field `value`"),
    ],
)
def test_what_can_not_work_is_refused_with_what_to_do(change: dict[str, Any], says: str) -> None:
    """Each mistake has its message."""
    with pytest.raises(msgspec.ValidationError, match=says):
        load(**change)


def test_two_credentials_with_one_placeholder_are_refused() -> None:
    """A placeholder stands for exactly one credential."""
    one, other = load(placeholder="sk-same-placeholder"), load(placeholder="sk-same-placeholder")
    with pytest.raises(ConfigError, match="same placeholder"):
        check_credentials({"a": one, "b": other})
    with pytest.raises(ConfigError, match="same placeholder"):
        check_credentials({"a": load(placeholder="sgph-bcd"), "bcd": load()})


@pytest.mark.parametrize("name", ["", "Upper", "a b", "a" * 65, "-a", "ä"])
def test_odd_names_are_refused(name: str) -> None:
    """Names become placeholders and metric labels, so they are plain."""
    with pytest.raises(ConfigError, match="a name is"):
        check_credentials({name: load()})


def test_the_placeholder_to_show() -> None:
    """The custom one if there is one, else `sgph-<name>`."""
    assert shown_placeholder("llm", load()) == "sgph-llm"
    assert shown_placeholder("llm", load(placeholder="sk-ant-000")) == "sk-ant-000"


DOCS = Path(__file__).parents[3] / "docs" / "credentials.md"


def test_the_manual_names_every_key() -> None:
    """Of each struct of the configuration."""
    text = DOCS.read_text(encoding="utf-8")
    for struct in (SourceConfig, BasicConfig, InjectConfig, CredentialConfig):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.name}" in text or f"{field.name}:" in text or f"{{{field.name}" in text, field.name


def test_the_example_of_the_manual_is_accepted() -> None:
    """The first one, whole."""
    example = DOCS.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    credentials = msgspec.convert(yaml.safe_load(example)["credentials"], dict[str, CredentialConfig])
    check_credentials(credentials)
    assert set(credentials) == {"anthropic", "github", "registry"}
