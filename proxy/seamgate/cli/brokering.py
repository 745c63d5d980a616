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

# What a name says wherever it stands in it, and what only a whole word says. Variables that say something else by it
# are `_HARMLESS_NAME`.
_SECRET_NAME = re.compile(
    r"""(?ix)
    secret | passw | passphrase | credential | api_?key | access_?key | private_?key | signing_?key | auth_?key
    | ssh_?key | encryption_?key | connection_?string | conn_?str | webhook | bearer | cookie | extra_?header
    | token (?: _? (?: base64 | b64 | value | \d+ ) )? $ | token _
    | (?: ^ | _ ) (?: key | pat | pwd | pin | jwt | otp | dsn | sas | netrc | pgpass ) (?: _ | \d* $ )
    | (?: pass | pwd | auth | key s? ) (?: _? (?: base64 | b64 | value | \d+ ) )? $
    | (?: ^ | _ ) (?: pass | auth | htpasswd | oauth ) _
    """
)
_HARMLESS_NAME = re.compile(
    r"""(?ix)
    ^ (?: OLD )? PWD $  # folders
    | ^ (?: .* _ )? (?: monkey | hotkey | turkey | keyboard ) $ | (?: ^ | _ ) (?: compass | bypass | author ) $
    | ^ (?: SSH_AUTH_SOCK | XAUTHORITY | GIT_ASKPASS | SSH_ASKPASS | SUDO_ASKPASS | SSH_ASKPASS_REQUIRE ) $
    | ^ TOKENIZERS_
    """
)
# Those that every isolation replaces or takes out (`ca.environment`); others (RSYNC_PROXY) are like any variable.
_PROXY_NAME = re.compile(r"(?i)^(?:(?:https?|all|wss?|no)_proxy|npm_config_(?:https_)?proxy)$")
_URL_WITH_USER = re.compile(r"(?P<web>https?)?://(?P<user>[^/?#\s@]+)@", re.IGNORECASE)
_NO_SECRET_USERS = frozenset(("git", "hg", "svn", "ssh"))
"""Who logs in with a key, not with what stands in the URL."""
_URL_THAT_IS_A_SECRET = re.compile(
    r"""(?ix) :// (?:
      hooks\.slack(?:-gov)?\.com / | (?:[a-z]+\.)? discord(?:app)?\.com / api / (?: v\d+ / )? webhooks /
      | [^/\s]+ \.webhook\.office\.com / | [^/\s]+ \.logic\.azure\.com [:/] | chat\.googleapis\.com / v1 / spaces /
      | api\.telegram\.org / bot \d
    )
    | [?&] (?: sig | signature | token | access_token | api_?key | key | password | secret | x-amz-signature ) = [^&\s]
    """
)
# As their issuers document them; what stands before the random part is enough, with as much behind it as no word has.
_SECRET_VALUE = re.compile(
    r"""(?x)
    -----BEGIN\ [A-Z0-9 ]*PRIVATE\ KEY
    | (?<![A-Za-z0-9]) (?:
        gh[opsur]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | gl(?:pat|ptt|dt|rt|soat|agent)-[A-Za-z0-9_-]{16,}
      | (?<! [_-] ) sk- (?= [A-Za-z_-]{0,64} [0-9] ) [A-Za-z0-9_-]{16,}
      | [sr]k_(?:live|test)_[A-Za-z0-9]{10,} | whsec_[A-Za-z0-9]{16,}
      | xox[abceoprs]-[A-Za-z0-9-]{8,} | xapp-[0-9]-[A-Za-z0-9-]{8,}
      | A(?:KIA|SIA)[A-Z0-9]{12,} | AIza[A-Za-z0-9_-]{30,} | ya29\.[A-Za-z0-9_-]{16,} | GOCSPX-[A-Za-z0-9_-]{16,}
      | hf_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{20,} | pypi-AgE[A-Za-z0-9_-]{16,} | dop_v1_[a-f0-9]{16,}
      | SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,} | dckr_pat_[A-Za-z0-9_-]{16,} | gsk_[A-Za-z0-9]{16,}
      | xai-[A-Za-z0-9]{16,} | hvs\.[A-Za-z0-9_-]{16,} | AGE-SECRET-KEY-1 | lin_api_[A-Za-z0-9]{16,}
      | (?<! [_-] ) eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]+
    )
    | (?i: (?: \b bearer | \b authorization [\s:="']+ [a-z]+ ) \s+ [A-Za-z0-9+/_.=-]{8,} )
    | (?i: (?: ^ | [\s;&,{"'] ) (?: password | passwd | pwd | accountkey | sharedaccesskey | secret | auth | private_key
        | identitytoken | client_secret | access_?token | refresh_?token | api_?key ) ["']? \s* [=:] \s*
        ["']? [^\s;"'}] )
    | (?i: ^ machine \s+ \S+ \s .* \b password \s )
    """
)


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
    """Return whether a variable is likely to hold a secret: by its name, or by what is in it.

    That is a URL with a user or password in it, or one that is a secret itself; or the form of a key or token.
    Proxy variables do not count: the program gets the gateway's own in their place.
    """
    if _PROXY_NAME.search(name):
        return False
    if _SECRET_NAME.search(name) and not _HARMLESS_NAME.search(name):
        return True
    return bool(_SECRET_VALUE.search(value) or _URL_THAT_IS_A_SECRET.search(value)) or _has_login(value)


def _has_login(value: str) -> bool:
    """Whether a URL in it has a password, or is one of the web with a user that may be a token."""
    return any(
        ":" in (user := found["user"]) or (found["web"] and user.lower() not in _NO_SECRET_USERS)
        for found in _URL_WITH_USER.finditer(value)
    )
