"""What was asked and what came back, as frozen values: guest, target, request, response, exchange.

Every room of the gateway reads these and no room changes them. They are built once per request on the hot path,
so they are `msgspec.Struct`s: immutable like frozen dataclasses, at a tenth of the price. No I/O, no clock.

Header lists are tuples of (name, value), both bytes, names lower-case, order kept, values without outer white space.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from seamgate.headers import Headers as Headers
from seamgate.headers import apply_amendment as apply_amendment
from seamgate.headers import find_header as find_header


class Isolation(StrEnum):
    """How a guest is kept from everything but the seam; weakest last. The entry that it came through follows."""

    KVM = "kvm"
    NETNS = "netns"
    PROXY = "proxy"
    BASE_URL = "base_url"


class Guest(msgspec.Struct, frozen=True, eq=False):
    """Who asks. Known from the channel (ring, namespace, token), never from what it sent.

    Made once per channel and compared by identity, so that it can key caches.

    Attributes:
        id: unique among the running guests, for people and the audit log.
        labels: what policies match on, for example {"team": "research"}.
        isolation: how it is attached.
        group: guests of one group may share upstream sessions.
    """

    id: str
    labels: Mapping[str, str] = {}
    isolation: Isolation = Isolation.PROXY
    group: str = ""


class Target(msgspec.Struct, frozen=True, cache_hash=True):
    """Where a request goes: parsed once, read by policy, credentials, dialling, SNI, Host and audit.

    Attributes:
        scheme: "http" or "https"; "tcp" for a stream that is passed on unread.
        host: canonical: a lower-case A-label name without trailing dot, or an address in its one canonical text
            form (IPv6 without brackets).
        port: 1 to 65535.
        is_address: whether host is an address literal.
        authority: host and port as in a Host header: the port only where it is not the scheme's default. Not given,
            but made of the others.
    """

    scheme: str
    host: str
    port: int
    is_address: bool = False
    authority: str = ""

    def __post_init__(self) -> None:
        """Put together what each request of this target needs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80 if self.scheme == "http" else 0
        msgspec.structs.force_setattr(self, "authority", host if self.port == default else f"{host}:{self.port}")

    @property
    def origin(self) -> str:
        """`scheme://authority`."""
        return f"{self.scheme}://{self.authority}"


class BodyState(StrEnum):
    """What is known of a request's body in the present phase."""

    ABSENT = "absent"
    PENDING = "pending"
    """There is one; it has not been read. A rule that needs it defers."""
    COMPLETE = "complete"
    """It is here, whole, without transfer or content coding."""
    OVERSIZE = "oversize"
    """It is longer than what the gateway holds in memory to judge: conditions on it are unevaluable."""
    UNDECODABLE = "undecodable"
    """Its content coding is unknown or broken: conditions on it are unevaluable."""


class Request(msgspec.Struct, frozen=True, eq=False):
    """A request as policy and plugins see it: canonical, before any credential.

    Attributes:
        id: unique, sortable by time; the same in audit, logs and denial.
        guest: who asks.
        target: where to.
        method: upper-case token as sent (methods are case-sensitive; RFC 9110 9.1).
        path: canonical absolute path, percent-escapes upper-case and only where needed; "*" for OPTIONS *.
        query: what follows "?", as sent, or None where there is no "?".
        headers: end-to-end headers without Host, hop-by-hop and Proxy-* headers.
        body: the whole body if body_state is COMPLETE, else None.
        body_state: what is known of the body in this phase.
        received_at: Unix time in seconds at which the head was complete.
        upgrade: what the connection is to become: "websocket", or "" for none.
    """

    id: str
    guest: Guest
    target: Target
    method: str
    path: str
    query: str | None = None
    headers: Headers = ()
    body: bytes | None = None
    body_state: BodyState = BodyState.ABSENT
    received_at: float = 0.0
    upgrade: str = ""

    @property
    def url(self) -> str:
        """The whole URL, for people. May hold a placeholder, never a secret."""
        query = "" if self.query is None else f"?{self.query}"
        return f"{self.target.origin}{self.path}{query}"

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header with this lower-case name, or None."""
        return find_header(self.headers, name)


class Response(msgspec.Struct, frozen=True, eq=False):
    """The head of a final response as plugins see it: after redaction.

    Attributes:
        status: 200 to 599.
        headers: end-to-end headers.
    """

    status: int
    headers: Headers = ()

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header with this lower-case name, or None."""
        return find_header(self.headers, name)


class Amendment(msgspec.Struct, frozen=True):
    """What an `amend_request` hook wants changed. Applied by the core; policy judges the result again.

    Attributes:
        set_headers: replaces all headers of the same name, or adds one.
        remove_headers: lower-case names.
    """

    set_headers: Headers = ()
    remove_headers: tuple[bytes, ...] = ()


class Supply(msgspec.Struct, frozen=True, eq=False):
    """What a `supply_credential` hook puts in at the last hop. Its repr shows no value.

    Attributes:
        credential: the credential's name.
        set_headers: replaces all headers of the same name, or adds one. Values are secret.
        remove_headers: lower-case names that must not go upstream.
        query: replaces the query if not None. May hold secrets.
        secrets: the exact values that must not come back: the redactor looks for them.
        websocket: what replaces the credential's placeholder in the first text message of a WebSocket. Secret. None:
            it is not replaced there.
    """

    credential: str
    set_headers: Headers = ()
    remove_headers: tuple[bytes, ...] = ()
    query: str | None = None
    secrets: tuple[bytes, ...] = ()
    websocket: bytes | None = None

    def __repr__(self) -> str:
        names = ", ".join(name.decode("ascii", "replace") for name, _ in self.set_headers)
        return f"<Supply {self.credential}: {names}>"


class Resolution(msgspec.Struct, frozen=True):
    """What a name resolved to.

    Attributes:
        name: the canonical name that was asked for.
        addresses: canonical address texts in the order to try; never empty.
        expires_at: monotonic seconds until which this may be used.
        cached: whether it cost no query.
    """

    name: str
    addresses: tuple[str, ...]
    expires_at: float
    cached: bool = False


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One call of one plugin: who, which hook, how long, what it said.

    Attributes:
        plugin: its name in the configuration.
        hook: the hook's name.
        duration_us: wall time in microseconds.
        outcome: "allow", "deny", "defer", "none", "amended", "supplied", "failed", "overrun" ...
    """

    plugin: str
    hook: str
    duration_us: float
    outcome: str


class Direction(StrEnum):
    """Which body an inspector reads."""

    REQUEST = "request"
    RESPONSE = "response"
