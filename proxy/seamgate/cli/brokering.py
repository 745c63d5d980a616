"""What becomes of the secrets in the caller's environment when `seamgate run` has no configuration. Pure.

A well-known credential whose host is allowed is brokered: the program gets its placeholder, and the gateway puts the
value in. Every other variable that looks like a secret is withheld: it is not in the program's environment at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from seamgate.cli.allow import HTTPS_PORTS, split_host
from seamgate.credentials.config import CredentialConfig, InjectConfig, SourceConfig
from seamgate.errors import ConfigError

_BEARER = InjectConfig(bearer=True)


class WellKnown(msgspec.Struct, frozen=True):
    """A variable that clients of one service take their credential from, as the service documents it.

    Attributes:
        variable: the environment variable.
        name: of the credential.
        host: where it is for, and nowhere else.
        inject: how it goes into a request.
    """

    variable: str
    name: str
    host: str
    inject: InjectConfig = _BEARER


WELL_KNOWN = (
    WellKnown("ANTHROPIC_API_KEY", "anthropic", "api.anthropic.com", InjectConfig(header="x-api-key")),
    WellKnown("OPENAI_API_KEY", "openai", "api.openai.com"),
    WellKnown("GEMINI_API_KEY", "gemini", "generativelanguage.googleapis.com", InjectConfig(header="x-goog-api-key")),
    WellKnown("GOOGLE_API_KEY", "google", "generativelanguage.googleapis.com", InjectConfig(header="x-goog-api-key")),
    WellKnown("MISTRAL_API_KEY", "mistral", "api.mistral.ai"),
    WellKnown("GROQ_API_KEY", "groq", "api.groq.com"),
    WellKnown("DEEPSEEK_API_KEY", "deepseek", "api.deepseek.com"),
    WellKnown("XAI_API_KEY", "xai", "api.x.ai"),
    WellKnown("OPENROUTER_API_KEY", "openrouter", "openrouter.ai"),
    WellKnown("GITHUB_TOKEN", "github", "api.github.com"),
    WellKnown("GH_TOKEN", "gh", "api.github.com"),
    WellKnown("HF_TOKEN", "huggingface", "huggingface.co"),
)
"""Of two for one host the first that is set is brokered, the other withheld: a request has one credential."""

_SECRET_NAME = re.compile(
    r"""(?ix)
    (?: (?: ^ | _ ) (?: key | pat | pass | auth | credentials? ) $ | _pwd $  # never PWD, a folder
      | (?: api_?key | token | secret s? | password | passwd | passphrase ) (?: _base64 | _b64 )? $
      | (?: ^ | _ ) (?: secret | password | passwd | private_key | access_key | api_?key ) (?: _ | $ )
    )"""
)
_PROXY_NAME = re.compile(r"(?i)_proxy$")
_URL_WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s@]*:[^/?#\s]+@")


class Brokered(msgspec.Struct, frozen=True):
    """What becomes of an environment.

    Attributes:
        credentials: by name, each bound to its one host.
        withheld: variables that the program does not get, sorted.
    """

    credentials: Mapping[str, CredentialConfig]
    withheld: tuple[str, ...]

    @property
    def by_host(self) -> dict[str, str]:
        """Return the name of the credential of each host that has one."""
        return {credential.hosts[0]: name for name, credential in self.credentials.items()}

    def told(self) -> list[str]:
        """Return what a person should know of it, in lines; without any value."""
        lines = [
            f"{credential.source.env}: the program gets a placeholder; the key goes to {credential.hosts[0]} only"
            for credential in self.credentials.values()
        ]
        if self.withheld:
            lines.append(f"withheld from the program: {', '.join(self.withheld)} (--keep-env NAME hands one on)")
        return lines


def broker(environ: Mapping[str, str], allowed: Iterable[str], kept: Collection[str] = ()) -> Brokered:
    """Decide about each variable of an environment.

    Args:
        environ: the caller's.
        allowed: hosts, each `HOST` or `HOST:PORT`.
        kept: variables that the program gets as they are.

    Raises:
        ConfigError: one of `allowed` is no host pattern, or one of `kept` is not set.
    """
    for name in kept:
        if name not in environ:
            raise ConfigError(f"--keep-env {name}: there is no such variable in this environment")
    allowed = tuple(allowed)
    credentials: dict[str, CredentialConfig] = {}
    hosts: set[str] = set()
    for known in WELL_KNOWN:
        if environ.get(known.variable) and known.variable not in kept and known.host not in hosts:
            if any(covers(text, known.host) for text in allowed):
                hosts.add(known.host)
                credentials[known.name] = CredentialConfig(
                    source=SourceConfig(env=known.variable), inject=known.inject, hosts=(known.host,)
                )
    brokered = {credential.source.env for credential in credentials.values()}
    withheld = (
        name
        for name, value in environ.items()
        if name not in brokered and name not in kept and value and looks_secret(name, value)
    )
    return Brokered(credentials, tuple(sorted(withheld)))


def covers(text: str, host: str) -> bool:
    """Return whether `HOST` or `HOST:PORT` allows https to this host on its default port.

    Raises:
        ConfigError: it is no host pattern.
    """
    pattern, port = split_host(text)
    return port in HTTPS_PORTS and pattern.matches(host, False)


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable is likely to hold a secret, by its name, or by a password in a URL.

    Proxy variables do not count: the program gets the gateway's own in their place.
    """
    if _PROXY_NAME.search(name):
        return False
    return bool(_SECRET_NAME.search(name) or _URL_WITH_PASSWORD.search(value))
