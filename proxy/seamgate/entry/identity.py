"""Who is asking, for entries where a token says so. Tokens are kept as hashes only and never logged.

Called by the explicit proxy for Proxy-Authorization and by the base-URL entry for the token in the path.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from seamgate.errors import ConfigError, GuestProtocolError, Reason
from seamgate.flow import Guest, Isolation

_SHORTEST_TOKEN = 16
_REMEMBERED, _REMEMBERED_SIZE_BYTES = 16384, 512
"""How many header values, up to which size, are remembered with whose they are: a guest can write its in many ways."""


class TokenSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a guest's token comes from: exactly one of env, file, sha256.

    Attributes:
        env: name of an environment variable of the gateway.
        file: path of a file that holds it.
        sha256: its digest, 64 hex digits, so that the configuration itself can be kept anywhere.
    """

    env: str | None = None
    file: str | None = None
    sha256: str | None = None

    def digest(self, guest: str) -> bytes:
        """Return the token's SHA-256.

        Raises:
            ConfigError: there is no token, or it is too short to be one.
        """
        given = [each for each in (self.env, self.file, self.sha256) if each is not None]
        if len(given) != 1:
            raise ConfigError(f"guests.{guest}.token needs exactly one of `env`, `file`, `sha256`")
        if self.sha256 is not None:
            return _hex_digest(self.sha256, guest)
        token = os.environ.get(self.env, "") if self.env is not None else _read(Path(self.file or ""), guest)
        token = token.strip()
        if len(token) < _SHORTEST_TOKEN:
            where = f"the environment variable {self.env}" if self.env is not None else f"the file {self.file}"
            raise ConfigError(
                f"guests.{guest}.token: {where} holds no token of at least {_SHORTEST_TOKEN} characters; "
                "make one with `openssl rand -hex 16`"
            )
        return hashlib.sha256(token.encode()).digest()


class GuestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One guest, or one kind of guest, of seamgate.yaml.

    Attributes:
        token: how it proves who it is; without one it can only be named by an entry (`guest:`).
        labels: what policies match on.
        group: guests of one group share upstream sessions; "" means those with the same labels.
    """

    token: TokenSource | None = None
    labels: Mapping[str, str] = {}
    group: str = ""


def _hex_digest(text: str, guest: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigError(f"guests.{guest}.token.sha256 is not 64 hex digits")
    return digest


def _read(path: Path, guest: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"guests.{guest}.token: the file {path} can't be read: {type(error).__name__}") from None


def make_guest(name: str, config: GuestConfig, isolation: Isolation) -> Guest:
    """Return the guest of a configuration entry."""
    labels = dict(sorted(config.labels.items()))
    return Guest(name, labels, isolation, f"group {config.group}" if config.group else _group_of(labels))


def _group_of(labels: Mapping[str, str]) -> str:
    """Return a text that guests have in common if all their labels are equal, and no other guests have."""
    return "labels " + msgspec.json.encode(labels).decode() if labels else ""


def unless_changed(known: Guest | None, new: Guest) -> Guest:
    """Return the known object if the new one says the same: guests are told apart by identity."""
    if known is not None and msgspec.structs.astuple(known) == msgspec.structs.astuple(new):
        return known
    return new


class Identities:
    """The guests that a token identifies."""

    def __init__(self, guests: Mapping[str, GuestConfig], isolation: Isolation) -> None:
        """Read every token.

        Raises:
            ConfigError: one is missing, or two guests have the same.
        """
        self._isolation = isolation
        self._by_digest: dict[bytes, Guest] = {}
        self._by_header: dict[bytes, Guest] = {}
        self._by_digest = self.table(guests)

    def table(self, guests: Mapping[str, GuestConfig]) -> dict[bytes, Guest]:
        """Return these guests by the digest of their tokens; who is unchanged is the same object as now.

        Raises:
            ConfigError: a token is missing, or two guests have the same.
        """
        table: dict[bytes, Guest] = {}
        for name, config in guests.items():
            if config.token is not None:
                digest = config.token.digest(name)
                if digest in table:
                    raise ConfigError(f"guests {name!r} and {table[digest].id!r} have the same token")
                table[digest] = unless_changed(self._by_digest.get(digest), make_guest(name, config, self._isolation))
        return table

    def take(self, table: dict[bytes, Guest]) -> list[Guest]:
        """Know these guests from now on; return those that were known by a token and are no more."""
        before, self._by_digest = self._by_digest, table
        self._by_header.clear()
        return [guest for digest, guest in before.items() if table.get(digest) is not guest]

    def by_token(self, token: str) -> Guest:
        """Return the guest with this token.

        Raises:
            GuestProtocolError: with reason UNAUTHENTICATED.
        """
        guest = self._by_digest.get(hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest())
        if guest is None:
            raise GuestProtocolError("the token is not known", reason=Reason.UNAUTHENTICATED)
        return guest

    def by_proxy_authorization(self, value: bytes | None) -> Guest:
        """Return the guest of a Proxy-Authorization value: Bearer, or Basic with the token as password or user.

        Raises:
            GuestProtocolError: with reason UNAUTHENTICATED.
        """
        if value is None:
            raise GuestProtocolError(
                "no token: put it into the proxy URL, http://guest:TOKEN@host:port", reason=Reason.UNAUTHENTICATED
            )
        known = self._by_header.get(value)
        if known is None:
            known = self.by_token(_token_of(value))
            if len(self._by_header) < _REMEMBERED and len(value) <= _REMEMBERED_SIZE_BYTES:
                self._by_header[value] = known
        return known


def _token_of(value: bytes) -> str:
    scheme, _, rest = value.partition(b" ")
    rest = rest.strip()
    if scheme.lower() == b"bearer":
        return rest.decode("latin-1")
    if scheme.lower() == b"basic":
        try:
            user, colon, password = base64.b64decode(rest, validate=True).partition(b":")
        except binascii.Error:
            raise GuestProtocolError("Proxy-Authorization is not base64", reason=Reason.UNAUTHENTICATED) from None
        return (password if colon and password else user).decode("latin-1")
    raise GuestProtocolError("Proxy-Authorization is neither Basic nor Bearer", reason=Reason.UNAUTHENTICATED)
