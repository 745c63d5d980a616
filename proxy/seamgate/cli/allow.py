"""Writes the one-line policies that `seamgate run --allow HOST` stands for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from seamgate.errors import ConfigError, TargetError
from seamgate.policy.patterns import parse_host


def allow_hosts(hosts: Iterable[str]) -> str:
    """Return the text of a policy that allows https to these hosts, each `HOST` or `HOST:PORT`, and nothing else.

    Raises:
        ConfigError: one is no host pattern, or its port no port.
    """
    rules = [_rule(number, text) for number, text in enumerate(dict.fromkeys(hosts), 1)]
    return "\n".join(["seamgate: 1", "owner: seamgate run", "rules:" if rules else "rules: []", *rules, ""])


def _rule(number: int, text: str) -> str:
    if not text:
        raise ConfigError("--allow needs a host, such as --allow api.anthropic.com")
    if "/" in text:
        alone = text.partition("://")[2] if "://" in text else text
        host = alone.partition("/")[0]
        raise ConfigError(f"--allow {text}: give the host alone, --allow {host}; for paths write a policy")
    host, port = _split(text)
    try:
        parse_host(host)
    except (TargetError, ValueError) as error:
        raise ConfigError(f"--allow {text}: {error}") from None
    ports = f", ports: [{port}]" if port else ""
    return f"  - {{id: allow-{number}, allow: {{hosts: [{json.dumps(host)}]{ports}}}, reason: {json.dumps(text)}}}"


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
