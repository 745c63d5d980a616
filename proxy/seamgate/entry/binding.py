"""From a request head to its one Target: the rules of each kind of entry, pure.

Whatever names the destination more than once has to agree: CONNECT authority, SNI (checked before, see
`entry.tunnel`), absolute URI and Host. A disagreement is refused, never resolved in favour of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from seamgate.address import parse_authority
from seamgate.entry.bound import Bound
from seamgate.entry.identity import Identities
from seamgate.errors import GuestProtocolError, Reason, TargetError
from seamgate.flow import Guest, Target
from seamgate.paths import canonical_path, check_query
from seamgate.protocol.heads import RequestHead

_Bound: Final = Bound  # an imported name is looked up each time


class Binding(Protocol):
    """What a connection needs of its entry.

    Attributes:
        entry: the entry's name for audit and metrics.
        guest: who it is, where the channel alone says so; None where each request says it.
    """

    entry: str
    guest: Guest | None

    def bind(self, head: RequestHead) -> Bound:
        """Return what a request asks for.

        Raises:
            GuestProtocolError: it is ambiguous, malformed, or nobody's.
        """
        ...

    def place(self, head: RequestHead | None) -> Target | None:
        """Return where a request that is refused asked to go, for its record; None where a guest did not say.

        Where names disagree, it is the one in the request-target: the message of the refusal has the other one.

        Args:
            head: None where what came is no request.
        """
        ...

    def whose(self, head: RequestHead | None) -> Guest | None:
        """Return who sent a request that `bind` refuses, for its record; None where neither channel nor token says it.

        Args:
            head: None where what came is no request.
        """
        ...


def split_target(target: str, method: str) -> tuple[str, str | None]:
    """Split an origin-form request-target into canonical path and query.

    Raises:
        TargetError: it is not one, or ambiguous.
    """
    if target == "*":
        if method != "OPTIONS":
            raise TargetError("the target * is for OPTIONS only", reason=Reason.BAD_REQUEST)
        return "*", None
    path, mark, query = target.partition("?")
    return canonical_path(path), check_query(query) if mark else None


def split_absolute(target: str, method: str) -> tuple[Target, str, str | None]:
    """Split an absolute-form request-target (RFC 9112 3.2.2).

    Raises:
        TargetError: it is not an http or https URI, has userinfo or a fragment, or is ambiguous.
    """
    named, tail = _split_uri(target)
    if not tail.startswith("/"):
        tail = "*" if not tail and method == "OPTIONS" else f"/{tail}"
    path, query = split_target(tail, method)
    return named, path, query


def _split_uri(target: str) -> tuple[Target, str]:
    """Split an absolute URI into its origin and the rest, which is not looked at.

    Raises:
        TargetError: as `split_absolute`.
    """
    scheme, separator, rest = target.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in ("http", "https"):
        raise TargetError("the request-target is neither a path nor an http(s) URI", reason=Reason.BAD_REQUEST)
    end = min((place for place in (rest.find("/"), rest.find("?")) if place >= 0), default=len(rest))
    authority, tail = rest[:end], rest[end:]
    if "@" in authority:
        raise TargetError("the URI has a user name in it; send credentials in a header")
    return parse_authority(authority, scheme), tail


def named_target(head: RequestHead) -> Target:
    """Return what a request-target names that is not merely a path, whatever else of the head is wrong.

    Raises:
        TargetError: it names nothing, or something odd.
    """
    if head.method == "CONNECT":
        return parse_authority(head.target, "https", port_required=True)
    return _split_uri(head.target)[0]


def check_host(head: RequestHead, target: Target) -> None:
    """Refuse a Host header that names another host or port than the target.

    Raises:
        GuestProtocolError: with reason TARGET_MISMATCH, or BAD_TARGET if it is malformed.
    """
    host = head.host
    if host is None or host == target.authority:
        return
    named = parse_authority(host, target.scheme)
    if (named.host, named.port) != (target.host, target.port):
        raise GuestProtocolError(
            f"the Host header names {named.authority}, the request goes to {target.authority}",
            reason=Reason.TARGET_MISMATCH,
        )


class TunnelBinding:
    """Inside a tunnel whose target and guest are known: by CONNECT, by a namespace's redirect, by the ring."""

    def __init__(self, entry: str, guest: Guest, target: Target) -> None:
        self.entry = entry
        self.guest: Guest | None = guest
        self._guest = guest
        self._target = target

    def bind(self, head: RequestHead) -> Bound:
        """Return the tunnel's own target; whatever the head names has to agree with it."""
        target = self._target
        if head.target.startswith("/") or head.target == "*":
            path, query = split_target(head.target, head.method)
        else:
            absolute, path, query = split_absolute(head.target, head.method)
            if absolute != target:
                raise GuestProtocolError(
                    f"the URI names {absolute.origin}, the tunnel goes to {target.origin}",
                    reason=Reason.TARGET_MISMATCH,
                )
        check_host(head, target)
        return _Bound(self._guest, target, path, query)

    def place(self, head: RequestHead | None) -> Target | None:
        """Return the tunnel's own target, whatever the head names."""
        return self._target

    def whose(self, head: RequestHead | None) -> Guest | None:
        """Return the tunnel's own guest."""
        return self._guest


class ProxyBinding:
    """An explicit proxy: absolute-form requests; identity by token, or by the listener."""

    def __init__(self, entry: str, identities: Identities, guest: Guest | None) -> None:
        self.entry = entry
        self.guest = guest
        self._identities = identities

    def identify(self, head: RequestHead) -> Guest:
        """Return who asks.

        Raises:
            GuestProtocolError: with reason UNAUTHENTICATED.
        """
        return self.guest or self._identities.by_proxy_authorization(head.proxy_authorization)

    def bind(self, head: RequestHead) -> Bound:
        """Return what an absolute-form request asks for."""
        guest = self.identify(head)
        if head.target.startswith("/"):
            raise GuestProtocolError(
                "this is a proxy: send CONNECT or an absolute URI (or use the base_url entry)",
                reason=Reason.BAD_REQUEST,
            )
        target, path, query = split_absolute(head.target, head.method)
        check_host(head, target)
        return Bound(guest, target, path, query)

    def place(self, head: RequestHead | None) -> Target | None:
        """Return what the CONNECT or the absolute URI of a known guest names."""
        if head is None:
            return None
        try:
            self.identify(head)
            return named_target(head)
        except GuestProtocolError:
            return None

    def whose(self, head: RequestHead | None) -> Guest | None:
        """Return the listener's guest, or whose token came with it."""
        if self.guest is not None or head is None:
            return self.guest
        try:
            return self.identify(head)
        except GuestProtocolError:
            return None


class RouteBinding:
    """The base-URL entry: `http://gateway/[~TOKEN/]ROUTE/path`; each route is one origin.

    A browser on the same machine can send requests here on behalf of any page, so two things are refused: a Host that
    is a name of somebody else's (DNS rebinding), and, where no token is asked for, whatever says that a page sent it.
    """

    def __init__(
        self,
        entry: str,
        routes: Mapping[str, Target],
        identities: Identities,
        guest: Guest | None,
        hosts: Collection[str] = (),
    ) -> None:
        self.entry = entry
        self.guest = guest
        self._routes = dict(routes)
        self._identities = identities
        self._hosts = frozenset(("localhost", *hosts))

    def bind(self, head: RequestHead) -> Bound:
        """Return what a request to one of the routes asks for."""
        self._check_sender(head)
        guest, asked = self.guest, head.target
        if guest is None:
            # Off before anything is said about the rest: no message or record may ever hold it.
            guest, asked = self._identified(asked)
        path, query = split_target(asked, head.method)
        route, path = _first_segment(path)
        target = self._routes.get(route)
        if target is None:
            known = ", ".join(sorted(self._routes))
            what = "this entry asks for no token: leave ~TOKEN out" if route[:1] == "~" else "there is no such route"
            raise GuestProtocolError(f"{what}; the base URL ends with one of {known}", reason=Reason.BAD_TARGET)
        return Bound(guest, target, path, query)

    def place(self, head: RequestHead | None) -> Target | None:
        """Return the origin of the route that is named, as it is spelt in the configuration, or what a URI names.

        Of what is neither nothing is said: it may be a token, or hold a credential's value.
        """
        if head is None:
            return None
        try:
            if not head.target.startswith("/"):
                return named_target(head) if self.guest is not None else None
            asked = head.target if self.guest is not None else self._identified(head.target)[1]
        except GuestProtocolError:
            return None
        return self._routes.get(_first_segment(asked.partition("?")[0])[0])

    def whose(self, head: RequestHead | None) -> Guest | None:
        """Return the listener's guest, or whose token stands in the path."""
        if self.guest is not None or head is None:
            return self.guest
        try:
            return self._identified(head.target)[0]
        except GuestProtocolError:
            return None

    def _identified(self, asked: str) -> tuple[Guest, str]:
        """Take the token off a request-target; return whose it is and the rest.

        Raises:
            GuestProtocolError: with reason UNAUTHENTICATED. Never repeats what may be a token.
        """
        segment, rest = _first_segment(asked)
        token, mark, query = segment.partition("?")
        try:
            token = canonical_path(f"/{token}")[1:]
        except TargetError:
            token = ""
        if not (asked.startswith("/") and token.startswith("~")):
            raise GuestProtocolError(
                "no token: the base URL is http://gateway/~TOKEN/ROUTE", reason=Reason.UNAUTHENTICATED
            )
        return self._identities.by_token(token[1:]), f"/?{query}" if mark else rest

    def _check_sender(self, head: RequestHead) -> None:
        """Refuse what a page in a browser could have sent."""
        if head.host is not None:
            named = parse_authority(head.host, "http")
            if not named.is_address and named.host not in self._hosts:
                raise GuestProtocolError(
                    f"the Host header names {named.host}, which is not this gateway; add it to `hosts` of the entry",
                    reason=Reason.TARGET_MISMATCH,
                )
        if self.guest is not None and any(name in _OF_BROWSERS for name, _ in head.headers):
            raise GuestProtocolError(
                "a page in a browser sent this, and this entry asks for no token: remove `guest` from the entry",
                reason=Reason.UNAUTHENTICATED,
            )


# Every browser sends one of them with whatever a page asks for (Fetch Standard 3.2, Fetch Metadata 2).
_OF_BROWSERS = frozenset((b"origin", b"sec-fetch-site"))


def _first_segment(path: str) -> tuple[str, str]:
    segment, _, rest = path[1:].partition("/")
    return segment, f"/{rest}"
