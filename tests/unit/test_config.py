"""`seamgate.yaml`: strict, with places, and relative to its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.config import BUILTIN_PLUGINS, load_config, parse_config, parse_route, split_listen
from seamgate.errors import ConfigError, TargetError
from seamgate.flow import Target

LEAST = """
entries:
  proxy: {listen: "127.0.0.1:8080", guest: g}
guests:
  g: {}
policies: [policy.yaml]
"""


def parse(text: str) -> object:
    return parse_config(text, "seamgate.yaml", base=Path("/etc/seamgate"))


def test_the_least_that_works() -> None:
    """Everything else has a default; file names are relative to the file; the built-in plugins are there."""
    config = parse_config(LEAST, "seamgate.yaml", base=Path("/etc/seamgate"))
    assert config.policies == ("/etc/seamgate/policy.yaml",)
    assert config.plugins == BUILTIN_PLUGINS
    assert config.permit_addresses == ()
    assert config.entries.base_url is None


def test_a_file_is_read(tmp_path: Path) -> None:
    """With its folder as base; one that is not there is named."""
    (tmp_path / "seamgate.yaml").write_text(LEAST + "audit: {path: log/a.jsonl}\n")
    assert load_config(tmp_path / "seamgate.yaml").audit.path == str(tmp_path / "log/a.jsonl")
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        load_config(tmp_path / "gone.yaml")


def test_plugins_are_spelled_out_in_order() -> None:
    """`builtin` stands for those, wherever it stands."""
    config = parse_config(LEAST + "plugins: [mine, builtin, {name: other, options: {a: 1}}]\n", "f", base=Path())
    names = [plugin.name for plugin in config.plugins]
    assert names == ["mine", *(plugin.name for plugin in BUILTIN_PLUGINS), "other"]
    assert config.plugins[-1].options == {"a": 1}


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        (LEAST + "limit: {}\n", "7:1", "limits"),
        (LEAST + "limits: {conections: 5}\n", "7:10", "connections"),
        (LEAST + "limits: {connections: many}\n", "7:23", "int"),
        (LEAST.replace("guest: g}", "guest: h}"), "3:", "no guest"),
        (LEAST.replace("127.0.0.1:8080", "localhost:8080"), "3:", "address:port"),
        (LEAST.replace("127.0.0.1:8080", "127.0.0.1:080"), "3:", "port"),
        (LEAST.replace(", guest: g", ""), "3:", "nobody"),
        (LEAST.replace("[policy.yaml]", "[]"), "6:", "policy"),
        (LEAST.replace('"127.0.0.1:8080"', "8080"), "3:", "write for example 127.0.0.1:8080"),
        (LEAST + 'admin: {listen: "127.0.0.1:8080"}\n', "7:", "entries.proxy listens on 127.0.0.1:8080 already"),
        (
            LEAST.replace("8080", "5353").replace("guest: g}", "guest: g}\n  dns: {listen: '0.0.0.0:5353', guest: g}"),
            "4:",
            "another port",
        ),
        (LEAST + "permit_addresses: [everything]\n", "7:", "class"),
        (LEAST + "plugins: [dns, dns]\n", "7:", "twice"),
        (LEAST + "credentials: {k: {source: {env: A}, hosts: []}}\n", "7:", "hosts"),
        (LEAST + "guests: {}\n", "7:1", "twice|again|duplicate"),
        (LEAST + "dns: {timeout_s: -1}\n", "7:", "timeout_s"),
        (LEAST + "dns: {addresses: {a: [127.0.0.1]}, a: &x 1}\n", "7:", "anchor|&"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, place: str, word: str) -> None:
    """File, line, column, and a word that helps."""
    with pytest.raises(ConfigError, match=f"(?i){word}") as caught:
        parse(text)
    assert str(caught.value).startswith(f"seamgate.yaml:{place}")


@pytest.mark.parametrize(
    ("listen", "url", "is_own"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080", True),
        ("127.0.0.1:8080", "https://localhost:8080", True),
        ("[::1]:8080", "http://localhost:8080", True),
        ("0.0.0.0:8080", "http://127.0.0.2:8080", True),
        ("127.0.0.1:8080", "http://127.0.0.1:3128", False),
        ("127.0.0.1:8080", "http://127.0.0.2:8080", False),
        ("0.0.0.0:8080", "http://10.0.0.1:8080", False),
        ("127.0.0.1:8080", "http://proxy.corp.example:8080", False),
        ("127.0.0.1:0", "http://127.0.0.1:8080", False),
    ],
)
def test_an_upstream_proxy_that_is_a_listener_of_its_own_is_refused(listen: str, url: str, is_own: bool) -> None:
    """It would ask itself; what only a look-up can tell is denied at run time (`own_address`)."""
    text = LEAST.replace("127.0.0.1:8080", listen) + f"upstream_proxy:\n  resolve: proxy\n  url: {url}\n"
    if not is_own:
        assert parse(text)
        return
    with pytest.raises(ConfigError, match=r"seamgate\.yaml:9:8: this is entries\.proxy of this gateway, to which"):
        parse(text)


def test_listeners() -> None:
    """address:port; port 0 is a free one; IPv6 in brackets."""
    assert split_listen("127.0.0.1:0") == ("127.0.0.1", 0)
    assert split_listen("[::1]:8080") == ("::1", 8080)
    for text in ("8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "host:1", "127.1:80", "127.0.0.1:-1"):
        with pytest.raises(TargetError):
            split_listen(text)


def test_routes() -> None:
    """Origins: scheme, host, port, nothing else."""
    assert parse_route("https://a.test") == Target("https", "a.test", 443)
    assert parse_route("http://a.test:8080/") == Target("http", "a.test", 8080)
    for text in ("a.test", "ftp://a.test", "https://a.test/v1", "https://u@a.test", "https://", "//a.test"):
        with pytest.raises(TargetError):
            parse_route(text)


def test_files_of_secrets_start_from_the_configurations_folder(tmp_path: Path) -> None:
    """A relative file of a credential or a token is beside the configuration, whatever the working directory is."""
    text = """
entries: {proxy: {listen: "127.0.0.1:0"}}
policies: [p.yaml]
guests: {g: {token: {file: token}}}
credentials: {k: {source: {file: keys/k}, inject: {bearer: true}, hosts: [api.example.com]}}
"""
    config = parse_config(text, "seamgate.yaml", base=tmp_path)
    assert config.credentials["k"].source.file == str(tmp_path / "keys/k")
    token = config.guests["g"].token
    assert token is not None and token.file == str(tmp_path / "token")
