"""Writes the policies that `seamgate run --allow HOST` stands for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from seamgate.errors import ConfigError, TargetError
from seamgate.policy.patterns import HostPattern, parse_host

HTTPS_PORTS = ("", "443")
"""How the default port of https is written after a host."""
_NO_CREDENTIALS: Mapping[str, str] = {}


def allow_hosts(hosts: Iterable[str], credentials: Mapping[str, str] = _NO_CREDENTIALS) -> str:
    """Return the text of a policy that allows https to these hosts, each `HOST` or `HOST:PORT`, and nothing else.

    Args:
        hosts: what is allowed.
        credentials: by host, each allowed: the credential that requests to it get. Such a host has a rule of its own,
            which is more specific than the pattern that allows it.

    Raises:
        ConfigError: one is no host pattern, or its port no port.
    """
    texts = list(dict.fromkeys(hosts))
    named = {host.text for host, port in map(split_host, texts) if port in HTTPS_PORTS}
    rules = [_rule(number, text, credentials) for number, text in enumerate(texts, 1)]
    rules += [
        _line(f"broker-{name}", host, "", name, f"credential {name}")
        for host, name in credentials.items()
        if host not in named
    ]
    return "\n".join(["seamgate: 1", "owner: seamgate run", "rules:" if rules else "rules: []", *rules, ""])


def _rule(number: int, text: str, credentials: Mapping[str, str]) -> str:
    host, port = split_host(text)
    credential = credentials.get(host.text, "") if port in HTTPS_PORTS else ""
    return _line(f"allow-{number}", _split(text)[0], port, credential, text)


def _line(name: str, host: str, port: str, credential: str, reason: str) -> str:
    ports = f", ports: [{port}]" if port else ""
    selected = f", credential: {credential}" if credential else ""
    return f"  - {{id: {name}, allow: {{hosts: [{json.dumps(host)}]{ports}}}{selected}, reason: {json.dumps(reason)}}}"


def split_host(text: str) -> tuple[HostPattern, str]:
    """Return the host pattern and the port, "" if there is none, of `HOST` or `HOST:PORT`.

    Raises:
        ConfigError: it is no host pattern, or its port no port; with what to write.
    """
    if not text:
        raise ConfigError("--allow needs a host, such as --allow api.anthropic.com")
    if "/" in text:
        alone = text.partition("://")[2] if "://" in text else text
        host = alone.partition("/")[0]
        raise ConfigError(f"--allow {text}: give the host alone, --allow {host}; for paths write a policy")
    host, port = _split(text)
    try:
        return parse_host(host), port
    except (TargetError, ValueError) as error:
        raise ConfigError(f"--allow {text}: {error}") from None


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, port = text.partition("]")
        host, port = host + bracket, port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        return text, ""
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"--allow {text}: {port!r} is no port: write HOST or HOST:PORT")
    return host, port
