"""A loaded policy: frozen, canonical, with everything compiled that can be.

Made by `loader`, read by `index`, `evaluation`, `explain`, `lint`. Patterns, methods and times are in their canonical
form; conditions know how to judge a request; nothing here judges by itself. No I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from seamgate.policy.conditions import Condition
from seamgate.policy.patterns import HostPattern, PathPattern
from seamgate.verdict import Limits


class Layer(StrEnum):
    """Who speaks. A request must be allowed by every layer that is present and denied by none."""

    ORG = "org"
    TEAM = "team"
    SANDBOX = "sandbox"


LabelMatch = tuple[str, frozenset[str] | None]
"""A label's name, and its values, or None for any value. A guest without the label never matches."""
PortRange = tuple[int, int]
"""(lowest, highest), both included."""
SCHEMES = frozenset({"http", "https", "tcp"})
"""`tcp` is a stream that is passed on unread: an allow covers it by `protocol: tcp` only, a deny like the others."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule or an exception covers. None: no restriction.

    Attributes:
        hosts: patterns; () covers nothing.
        schemes: of `SCHEMES`.
        ports: ranges; None in an allow means the scheme's default port (`default_ports`).
        default_ports: whether ports None means the default port only.
        methods: upper-case, HEAD in it where GET is.
        paths: patterns; () covers nothing.
        guests: labels, and-ed.
        conditions: what depends on more than guest, target, method and path; and-ed.
    """

    hosts: tuple[HostPattern, ...] | None = None
    schemes: frozenset[str] = SCHEMES
    ports: tuple[PortRange, ...] | None = None
    default_ports: bool = False
    methods: frozenset[str] | None = None
    paths: tuple[PathPattern, ...] | None = None
    guests: tuple[LabelMatch, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def covers_port(self, scheme: str, port: int) -> bool:
        """Whether scheme and port are covered."""
        if scheme not in self.schemes:
            return False
        if self.ports is None:
            return not self.default_ports or port == (443 if scheme == "https" else 80)
        return any(low <= port <= high for low, high in self.ports)

    def covers_guest(self, labels: Mapping[str, str]) -> bool:
        """Whether a guest with these labels is covered."""
        for name, values in self.guests:
            value = labels.get(name)
            if value is None or (values is not None and value not in values):
                return False
        return True

    def covers_host(self, host: str, is_address: bool) -> bool:
        """Whether the canonical host is covered."""
        return self.hosts is None or any(pattern.matches(host, is_address) for pattern in self.hosts)

    def covers_method(self, method: str) -> bool:
        """Whether the method is covered."""
        return self.methods is None or method in self.methods

    def covers_path(self, path: str) -> bool:
        """Whether the canonical path is covered byte for byte."""
        return self.paths is None or any(pattern.matches(path) for pattern in self.paths)


class Exemption(msgspec.Struct, frozen=True, kw_only=True):
    """What lifts a ban (`except:`).

    Attributes:
        match: what it covers within the ban.
        expires_at: Unix seconds from which it is void.
        reason: for people.
    """

    match: Match
    expires_at: float = math.inf
    reason: str = ""


class Rule(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One rule, compared by identity.

    Attributes:
        id: unique in all loaded policies.
        allows: True for allow, False for deny.
        layer: of its file.
        match: what it covers.
        exemptions: what lifts the ban; () in an allow.
        credentials: names, or None where the rule says nothing of credentials.
        limits: or None.
        inspect: names, or None.
        addresses: classes and networks beyond public ones.
        upgrade: what requests that an allow covers may become: "websocket", or "" for nothing.
        encoded_slash: whether an allow covers paths with %2F.
        audit: recorded, not enforced.
        expires_at: Unix seconds from which it is void.
        owner, reason, ticket: for people.
        source, line, column: where it stands; 1-based.
    """

    id: str
    allows: bool
    layer: Layer
    match: Match
    exemptions: tuple[Exemption, ...] = ()
    credentials: tuple[str, ...] | None = None
    limits: Limits | None = None
    inspect: tuple[str, ...] | None = None
    addresses: tuple[str, ...] = ()
    upgrade: str = ""
    encoded_slash: bool = False
    audit: bool = False
    expires_at: float = math.inf
    owner: str = ""
    reason: str = ""
    ticket: str = ""
    source: str = ""
    line: int = 0
    column: int = 0

    @property
    def place(self) -> str:
        """`file:line`, for people."""
        return f"{self.source}:{self.line}"

    def __repr__(self) -> str:
        return f"<Rule {self.id}: {'allow' if self.allows else 'deny'}, {self.place}>"


class Policy(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One loaded file.

    Attributes:
        source: the file's name as the user gave it.
        layer: whose it is.
        audit: the whole file is recorded, not enforced: its layer is not demanded on its account.
        owner, description: for people.
        rules: in the file's order, which means nothing.
    """

    source: str
    layer: Layer
    rules: tuple[Rule, ...]
    audit: bool = False
    owner: str = ""
    description: str = ""
