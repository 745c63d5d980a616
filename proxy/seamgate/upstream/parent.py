"""The proxy that stands between this gateway and its upstreams: a company's, say. CONNECT for everything.

Called by the connector for each target that is not an exception. TLS with the target goes on inside of the tunnel and
is verified as always, so what the parent sees is a host, a port and ciphertext (for plain http: all of it). There is no
way around a parent that fails: the connection fails.

`TunnelClient` is the protocol on the wire; it reads nothing but the head of the parent's answer.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from seamgate.address import parse_authority
from seamgate.credentials.config import SourceConfig
from seamgate.credentials.sources import Source, open_source
from seamgate.errors import ConfigError, ConnectFailed, SeamgateError, TargetError
from seamgate.flow import Resolution, Target
from seamgate.places import anchored
from seamgate.streams import Receiver, TlsStream, as_protocol
from seamgate.upstream.origins import OriginPatterns
from seamgate.upstream.tls import TlsProfile, build_context, tls_failed

VIA_PROXY: Final = "proxy"
"""Stands for the address of a target whose name the parent resolves, so that nobody here knows it."""
_LONGEST_HEAD_BYTES = 16384
_REFUSALS = {
    403: "refused it: its own policy denies it",
    407: "wants another login: see upstream_proxy.login",
    502: "can't reach it",
    503: "can't reach it",
    504: "got no answer from it in time",
}

Resolve = Callable[[str], "Resolution | Awaitable[Resolution | None] | None"]


class ProxyLogin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who the gateway is for the parent (Basic, RFC 7617).

    Attributes:
        username: in clear.
        password: where it comes from, as of any credential.
    """

    username: str
    password: SourceConfig

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        if not self.username or ":" in self.username or not self.username.isprintable():
            raise ValueError("username is empty, or holds a colon or a control character")


class UpstreamProxyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `upstream_proxy` of seamgate.yaml.

    Attributes:
        url: `http://host:port`, or `https://host:port` for TLS to the proxy itself.
        resolve: who turns names into addresses. "gateway": this one does, checks every address, and asks the proxy for
            the address. "proxy": the proxy is asked for the name; where that leads is not checked by anybody here.
        login: if it wants one.
        ca: PEM file with extra roots for TLS to the proxy.
        direct: exceptions, dialled without it: exact names or addresses, or `*.domain` for one label or more
            below it (what a policy writes as `**.domain`).
    """

    url: str
    resolve: Literal["gateway", "proxy"]
    login: ProxyLogin | None = None
    ca: str = ""
    direct: tuple[str, ...] = ()


class Parent:
    """The proxy of one loaded configuration."""

    def __init__(
        self,
        config: UpstreamProxyConfig,
        *,
        base: Path = Path(),
        resolve: Resolve,
        refuse_own: Callable[[tuple[str, ...], int], None],
        secret_variables: Collection[str] = (),
    ) -> None:
        """Read what the configuration names.

        Args:
            config: the section.
            base: folder that relative file names start from.
            resolve: gives the addresses of the proxy's own name.
            refuse_own: raises if one of these addresses at this port is the gateway itself.
            secret_variables: names of the environment variables that a command for the password must not see.

        Raises:
            ConfigError: the URL, a file or the login can't be used.
        """
        self._target = parse_proxy_url(config.url)
        self._names_by_proxy = config.resolve == "proxy"
        try:
            self._direct = OriginPatterns(config.direct)
        except TargetError as error:
            raise ConfigError(f"upstream_proxy.direct: {error.message}") from None
        self._resolve = resolve
        self._refuse_own = refuse_own
        self._context: ssl.SSLContext | None = None
        if self._target.scheme == "https":
            ca = anchored(config.ca, base) if config.ca else ""
            self._context = build_context(TlsProfile(ca=ca))
        elif config.ca:
            raise ConfigError("upstream_proxy: `ca` is for a proxy with an https:// URL")
        self._username = config.login.username if config.login is not None else ""
        self._password: Source | None = None
        if config.login is not None:
            source = config.login.password
            if source.file is not None:
                source = msgspec.structs.replace(source, file=anchored(source.file, base))
            self._password = open_source(
                "upstream_proxy.login",
                source,
                environ=os.environ,
                monotonic=monotonic,
                secret_variables=secret_variables,
            )

    def __repr__(self) -> str:
        return f"<Parent {self._target.authority}>"

    def carries(self, target: Target) -> bool:
        """Whether a target is reached through the proxy."""
        return not self._direct.fits(target)

    def resolves(self, target: Target) -> bool:
        """Whether the proxy turns the target's name into an address. Names of this machine never leave it."""
        local = target.host == "localhost" or target.host.endswith(".localhost")
        return self._names_by_proxy and not target.is_address and not local and self.carries(target)

    async def open(self, receiver: Receiver, target: Target, address: str, write_high_bytes: int) -> Any:
        """Open a tunnel; return the transport that the receiver was given.

        Args:
            receiver: gets `connection_made` once the tunnel is there.
            target: host and port to ask for.
            address: validated, to ask for instead of the name; VIA_PROXY: ask for the name.
            write_high_bytes: how much may be queued before the receiver is paused.

        Raises:
            ConnectFailed: the proxy can't be reached, or does not open the tunnel.
            SeamgateError: its login can't be had, its TLS is not right, its name has no address, or it is ourselves.
        """
        host = target.host if address == VIA_PROXY else address
        authority = f"[{host}]:{target.port}" if ":" in host else f"{host}:{target.port}"
        request = await self._request(authority)
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def failed(error: Exception) -> None:
            if not opened.done():
                opened.set_exception(error)

        client = TunnelClient(request, receiver, opened, f"{self._target.authority}, the upstream proxy")
        below: Receiver = client
        if self._context is not None:
            name = self._target.host
            below = TlsStream(
                client,
                context=self._context,
                server_hostname=name,
                on_failure=lambda error: failed(tls_failed(error, f"{name}, the upstream proxy,")),
            )
        transport = await self._dial(below)
        transport.set_write_buffer_limits(write_high_bytes)
        try:
            return await opened
        except BaseException:
            transport.abort()
            if not opened.cancel() and not opened.cancelled():
                opened.exception()  # else nobody would have asked for it
            raise

    async def _request(self, authority: str) -> bytes:
        login = b""
        if self._password is not None:
            secret = self._password.current() or await self._password.fetch()
            pair = self._username.encode() + b":" + secret.reveal()
            login = b"proxy-authorization: Basic " + base64.b64encode(pair) + b"\r\n"
        name = authority.encode("ascii")
        return b"CONNECT " + name + b" HTTP/1.1\r\nhost: " + name + b"\r\n" + login + b"\r\n"

    async def _dial(self, below: Receiver) -> asyncio.Transport:
        """Connect to the first of the proxy's own addresses that answers."""
        target = self._target
        found: Resolution | Awaitable[Resolution | None] | None = Resolution(target.host, (target.host,), 0.0)
        if not target.is_address:
            found = self._resolve(target.host)
            if found is not None and not isinstance(found, Resolution):
                found = await found
        if not isinstance(found, Resolution):
            raise ConnectFailed(f"no plugin resolves names; the upstream proxy {target.host} can't be reached")
        self._refuse_own(found.addresses, target.port)
        problems = []
        for address in found.addresses:
            try:
                transport, _ = await asyncio.get_running_loop().create_connection(
                    lambda: as_protocol(below), address, target.port
                )
            except OSError as error:
                problems.append(f"{address}: {error.strerror or type(error).__name__}")
            else:
                return transport
        raise ConnectFailed(f"the upstream proxy {target.authority} can't be reached ({'; '.join(problems)})")


def parse_proxy_url(url: str) -> Target:
    """Return scheme, host and port of a proxy's URL.

    Raises:
        ConfigError: it is not `http(s)://host:port`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise ConfigError("upstream_proxy.url must be http(s)://host:port; a login goes under `login`")
    try:
        return parse_authority(parts.netloc, parts.scheme, port_required=True)
    except TargetError as error:
        raise ConfigError(f"upstream_proxy.url: {error.message}") from None


class TunnelClient:
    """Asks for a tunnel, then passes everything through to the protocol above."""

    def __init__(self, request: bytes, above: Receiver, opened: asyncio.Future[Any], name: str) -> None:
        self._request = request
        self._above = above
        self._opened = opened
        self._name = name
        self._below: Any = None
        self._head = b""
        self._open = False
        self._over = False

    def connection_made(self, transport: Any) -> None:
        """The proxy is there: ask it."""
        self._below = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """The head of its answer; after it, what comes through the tunnel."""
        if self._open:
            self._above.data_received(data)
            return
        if self._over:
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _LONGEST_HEAD_BYTES:
                self._fail(ConnectFailed(f"{self._name}, answered with an endless head"))
            return
        status = read_status(self._head[:end])
        if not 200 <= status < 300:
            self._fail(ConnectFailed(f"{self._name}, {_REFUSALS.get(status, 'did not open a tunnel')} ({status})"))
            return
        rest, self._head, self._open = self._head[end + 4 :], b"", True
        self._above.connection_made(self._below)
        if not self._opened.done():
            self._opened.set_result(self._below)
        if rest:
            self._above.data_received(rest)

    def eof_received(self) -> bool:
        """It sends no more."""
        if self._open:
            return self._above.eof_received()
        self._fail(ConnectFailed(f"{self._name}, closed before it opened a tunnel"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._open:
            self._above.connection_lost(exc)
        else:
            self._fail(ConnectFailed(f"{self._name}, closed before it opened a tunnel"))

    def pause_writing(self) -> None:
        """It has enough."""
        if self._open:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        """It takes more."""
        if self._open:
            self._above.resume_writing()

    def _fail(self, error: SeamgateError) -> None:
        self._over = True
        if not self._opened.done():
            self._opened.set_exception(error)
        if self._below is not None:
            self._below.abort()


def read_status(head: bytes) -> int:
    """Return the status of an answer's head (RFC 9112 4); 0 if it is none."""
    line = head.partition(b"\r\n")[0]
    version, _, rest = line.partition(b" ")
    digits = rest[:3]
    good = version in (b"HTTP/1.1", b"HTTP/1.0") and digits.isdigit() and rest[3:4] in (b"", b" ")
    return int(digits) if good else 0
