"""What `seamgate.yaml` says about credentials, as checked values. Holds no secret, opens nothing.

    credentials:
      anthropic:
        source: {env: ANTHROPIC_API_KEY}
        inject: {header: x-api-key}
        hosts: [api.anthropic.com]
        methods: [POST]
        paths: [/v1/messages]

The configuration loader converts the YAML to `dict[str, CredentialConfig]` with msgspec, which names the place of an
error ("... - at `$.credentials.anthropic.source`"), and then calls `check_credentials`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from seamgate.errors import ConfigError

DEFAULT_PLACEHOLDER_PREFIX = "sgph-"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_PLACEHOLDER = re.compile(r"[A-Za-z0-9._~-]{8,256}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Framing, routing and hop-by-hop fields are the gateway's own (RFC 9110 7.6.1).
_NOT_INJECTABLE = frozenset(
    (
        "connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "te", "trailer",
        "transfer-encoding", "upgrade",
    )
)  # fmt: skip


class SourceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the value comes from: exactly one of env, file, command.

    Attributes:
        env: name of an environment variable of the gateway, read once at start.
        file: path of a file; read again when it changes. A trailing line break is stripped.
        command: program and arguments, run without a shell; its standard output is the value.
        refresh_s: age at which a command runs again.
        timeout_s: how long a command may take.
        max_stale_s: age up to which the last good value is used while the command fails.
    """

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None
    refresh_s: float = 300.0
    timeout_s: float = 10.0
    max_stale_s: float = 900.0

    def __post_init__(self) -> None:
        """Refuse what can't work; msgspec adds the place to the message."""
        if sum(each is not None for each in (self.env, self.file, self.command)) != 1:
            raise ValueError("a source has exactly one of env, file, command")
        if self.env is not None and not _ENV_NAME.match(self.env):
            raise ValueError("env is not the name of an environment variable")
        if self.file == "":
            raise ValueError("file is empty: write the path of the file that holds the value")
        if self.command is not None and not (self.command and self.command[0]):
            raise ValueError("command is empty: write it as a list, [program, argument, ...]")
        if min(self.refresh_s, self.timeout_s) <= 0 or self.max_stale_s < self.refresh_s:
            raise ValueError("refresh_s and timeout_s must be above 0, and max_stale_s at least refresh_s")


class BasicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """HTTP Basic (RFC 7617): one half is fixed, the other is the secret.

    Attributes:
        username: the fixed user name; the secret is the password.
        password: the fixed password, often ""; the secret is the user name.
    """

    username: str | None = None
    password: str | None = None

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        if (self.username is None) == (self.password is None):
            raise ValueError("basic has exactly one of username and password; the secret is the other")
        if ":" in (self.username or ""):
            raise ValueError("a Basic user name can't hold a colon")
        if not f"{self.username}{self.password}".isprintable():
            raise ValueError("basic holds a control character")


class InjectConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the value goes in whatever the guest sent: exactly one of header, bearer, basic.

    Attributes:
        header: name of the header that carries the value.
        prefix: what stands before the value in that header, with its space: "token ".
        bearer: `Authorization: Bearer <value>`.
        basic: `Authorization: Basic <base64>`.
    """

    header: str | None = None
    prefix: str = ""
    bearer: bool = False
    basic: BasicConfig | None = None

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        if sum((self.header is not None, self.bearer, self.basic is not None)) != 1:
            raise ValueError("inject has exactly one of header, bearer: true, basic")
        if self.header is not None:
            check_header_name(self.header)
        if self.prefix and self.header is None:
            raise ValueError("prefix goes with header only")
        if not (self.prefix.isascii() and self.prefix.isprintable()) or self.prefix.startswith(" "):
            raise ValueError("prefix is not visible ASCII")

    @property
    def header_name(self) -> bytes:
        """Lower-case name of the header that is set."""
        return (self.header or "authorization").lower().encode("ascii")


class CredentialConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One credential: its source, its way in, and the requests that it is bound to.

    Attributes:
        source: where the value comes from.
        hosts: host patterns, as in policy. Never empty: a credential without hosts would be for nobody.
        methods: as in policy (GET implies HEAD); absent: every method.
        paths: path patterns, as in policy; absent: every path.
        inject: how the value goes in if no placeholder stands in the request; absent: only placeholders are swapped.
        placeholder: a text, besides `sgph-<name>`, that stands for the value, for SDKs that check a key's shape.
        swap_headers: the headers in which a placeholder is swapped; in any other it is refused. Absent:
            `authorization`, and the one that `inject` names.
        swap_query: whether placeholders are swapped in the query too. Queries end up in logs of upstreams.
        swap_websocket: whether a placeholder is swapped in the first text message that a guest sends over a WebSocket,
            where some services take their token.
        remove_headers: headers of the guest that never go upstream together with this credential.
        allow_ranges: whether the guest may ask for parts of a body. Off, because a value that an upstream repeats could
            be fetched in two halves, which no redactor sees together; then Range is dropped and the whole comes.
        allow_http: whether the value may go over plain http.
    """

    source: SourceConfig
    hosts: tuple[str, ...]
    methods: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    inject: InjectConfig | None = None
    placeholder: str | None = None
    swap_headers: tuple[str, ...] | None = None
    swap_query: bool = False
    swap_websocket: bool = False
    remove_headers: tuple[str, ...] = ()
    allow_ranges: bool = False
    allow_http: bool = False

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        if not self.hosts:
            raise ValueError("hosts is empty: name the hosts that the credential is for")
        if self.methods == () or self.paths == ():
            raise ValueError("an empty list of methods or paths binds to nothing: fill it or leave it out")
        if self.placeholder is not None and not _PLACEHOLDER.match(self.placeholder):
            raise ValueError("placeholder must be 8 to 256 letters, digits or . _ ~ -")
        for name in (*self.remove_headers, *(self.swap_headers or ())):
            check_header_name(name)

    @property
    def swapped_in(self) -> frozenset[bytes]:
        """Lower-case names of the headers in which a placeholder is swapped.

        A value that may stand in any header ends up in logs of upstreams, which keep User-Agent and Referer but not
        Authorization (RFC 9110 11.6.2), or in a field that another service reads.
        """
        names = self.swap_headers
        if names is None:
            names = ("authorization",) if self.inject is None else ("authorization", self.inject.header_name.decode())
        return frozenset(name.lower().encode("ascii") for name in names)


def check_header_name(name: str) -> None:
    """Raise ValueError unless a credential may set or remove this header."""
    if not _TOKEN.match(name):
        raise ValueError(f"{name!r} is not a header name")
    if name.lower() in _NOT_INJECTABLE or name.lower().startswith("proxy-"):
        raise ValueError(f"the header {name!r} belongs to the gateway: a credential can't set or remove it")


def default_placeholder(name: str) -> str:
    """Return the placeholder that every credential of this name has."""
    return DEFAULT_PLACEHOLDER_PREFIX + name


def shown_placeholder(name: str, config: CredentialConfig) -> str:
    """Return the placeholder to give to a guest, for example in an environment variable."""
    return config.placeholder or default_placeholder(name)


def check_credentials(credentials: Mapping[str, CredentialConfig]) -> None:
    """Check what one credential alone can't tell.

    Raises:
        ConfigError: a name is not usable, or two credentials have the same placeholder.
    """
    owners: dict[str, str] = {}
    for name, config in credentials.items():
        if not _NAME.match(name):
            raise ConfigError(
                f"credential {name!r}: a name is 1 to 64 of a-z, 0-9, _ and -, and begins with a-z or 0-9"
            )
        for text in {default_placeholder(name), shown_placeholder(name, config)}:
            if owners.setdefault(text, name) != name:
                raise ConfigError(f"credentials {owners[text]!r} and {name!r} have the same placeholder: change one")
