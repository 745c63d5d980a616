"""`seamgate.yaml`: how this gateway runs. What guests may do stands in policy files, see `seamgate.policy`.

Read once at start and once per reload, strictly: an unknown key, a wrong type or a reference to something that is not
there is a `ConfigError` with file, line and column. Holds no secret, only where secrets come from.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from seamgate.address import canonical_address, canonical_port, parse_authority
from seamgate.audit.config import AuditConfig
from seamgate.ca.store import CaConfig
from seamgate.credentials.config import CredentialConfig, check_credentials
from seamgate.document import Document, parse_document, read_text
from seamgate.entry.identity import GuestConfig
from seamgate.errors import ConfigError, TargetError
from seamgate.flow import Target
from seamgate.limits import LimitsConfig
from seamgate.places import anchor, anchored
from seamgate.upstream.addresses import compile_permit
from seamgate.upstream.origins import OriginPatterns
from seamgate.upstream.parent import UpstreamProxyConfig, parse_proxy_url
from seamgate.upstream.pool_key import PoolConfig
from seamgate.upstream.resolver import DnsConfig
from seamgate.upstream.tls import UpstreamTlsConfig

BUILTIN = "builtin"
"""In `plugins:`, stands for the plugins that make up the default behaviour."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the file."""


_Listen = Annotated[str, msgspec.Meta(examples=["127.0.0.1:8080"])]


class ProxyEntry(_Section, frozen=True):
    """The explicit proxy: CONNECT with TLS terminated by the gateway's CA, and absolute-form requests.

    Attributes:
        listen: address:port; port 0 takes a free one.
        guest: name of the guest that everybody here is; "": each one shows a token in Proxy-Authorization.
    """

    listen: _Listen = "127.0.0.1:8080"
    guest: str = ""


class BaseUrlEntry(_Section, frozen=True):
    """The base-URL entry: clients that take a base URL talk plaintext to the gateway, which does the TLS.

    Attributes:
        listen: address:port; port 0 takes a free one.
        guest: as for the proxy; "": the token stands in the base URL, `http://gateway/~TOKEN/ROUTE`.
        routes: first path segment -> origin, for example {anthropic: "https://api.anthropic.com"}.
        hosts: names, besides addresses and localhost, that clients reach this entry by.
    """

    listen: _Listen = "127.0.0.1:8081"
    guest: str = ""
    routes: Mapping[str, str] = {}
    hosts: tuple[str, ...] = ()


class Socks5Entry(_Section, frozen=True):
    """SOCKS 5, for clients that connect through it: TLS terminated as for CONNECT, or plaintext HTTP.

    Attributes:
        listen: address:port; port 0 takes a free one.
        guest: as for the proxy; "": the token is the password of the login.
    """

    listen: _Listen = "127.0.0.1:1080"
    guest: str = ""


class DnsEntry(_Section, frozen=True):
    """A name service for guests, over UDP and TCP, with the cache and the policy of every request.

    Attributes:
        listen: address:port; port 0 takes a free one.
        guest: name of the guest that everybody here is: DNS has no tokens.
        denied_names: what the answer to a name that policy denies is: `nxdomain` (clients give up at once) or `refused`
            (they try again, and say that it may pass). Either says why to clients that understand RFC 8914.
        queries_per_s: further ones are refused; as many may come at once after a pause.
    """

    guest: str
    listen: _Listen = "127.0.0.1:5353"
    denied_names: Literal["nxdomain", "refused"] = "nxdomain"
    queries_per_s: Annotated[int, msgspec.Meta(ge=1)] = 2000


class NetnsEntry(_Section, frozen=True):
    """What guests of `seamgate run --isolation netns` meet in their namespace. Nothing of it listens outside.

    Attributes:
        denied_names: what the answer to a name that policy denies is: `nxdomain` (clients give up at once), `refused`
            (they try again, and say that it may pass) or `explain` (an address at which every request is denied, so
            that clients over HTTP are told why).
        processes: `own`: a guest has a process namespace, or does not run. `shared`: where a machine permits none (a
            container masks parts of /proc), it sees the processes around it, may signal those of its user, the
            gateway among them, and has no unix sockets but pairs.
    """

    denied_names: Literal["nxdomain", "refused", "explain"] = "nxdomain"
    processes: Literal["own", "shared"] = "own"


class KvmIdle(_Section, frozen=True):
    """What a guest in a microVM gives back while it waits. Seconds of waiting; 0: never.

    Attributes:
        trim_s: pages that are what its template has.
        park_s: what KVM holds for it; its streams stay, and whatever comes wakes it.
        hibernate_s: its memory, to disk, sealed. Only a guest that has no stream and does not read its standard input,
            and only if it waits at least as long again; its clocks and limits go on. Not before `park_s`.
    """

    trim_s: Annotated[float, msgspec.Meta(ge=0)] = 15.0
    park_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    hibernate_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class KvmPool(_Section, frozen=True):
    """Guests of the running gateway: `seamgate run --pool` hands it a program, and finds a machine that waits for it.

    Attributes:
        listen: `unix:/path` of a socket (from the file's folder) that only this user can open, where programs are
            handed in. Whoever can open it says which of `guests` a program is.
        template: what guests are restored from, and so the Python that they run.
        warm: how many machines wait for guests to come.
        most: how many guests there may be at once.
        folders: what guests see of this machine's files beside their Python, read-only, at the same paths (from the
            file's folder). A program's working directory is in one of them.
    """

    listen: str
    template: str = "python"
    warm: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16
    most: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 256
    folders: tuple[str, ...] = ()


class KvmEntry(_Section, frozen=True):
    """What guests in microVMs meet at the end of their ring. Nothing listens for them; `pool` listens for programs.

    Attributes:
        denied_names: as for `netns`. No name of such a guest is ever looked up for it, so that a denied one may as well
            get an address (`explain`), at which its program is told why.
        own_tls: what becomes of a TLS handshake that a guest makes by itself, not through Python's `ssl`: `terminate`
            it with a certificate of the gateway's CA, or `refuse` it.
        idle: what a guest gives back while it waits.
        pool: guests of the gateway itself; without it each `seamgate run` has a gateway of its own.
    """

    denied_names: Literal["nxdomain", "refused", "explain"] = "explain"
    own_tls: Literal["terminate", "refuse"] = "terminate"
    idle: KvmIdle = KvmIdle()
    pool: KvmPool | None = None


class Entries(_Section, frozen=True):
    """The ways in. At least one of `proxy`, `base_url`, `socks5` and `kvm: pool`."""

    proxy: ProxyEntry | None = None
    base_url: BaseUrlEntry | None = None
    socks5: Socks5Entry | None = None
    dns: DnsEntry | None = None
    netns: NetnsEntry | None = None
    kvm: KvmEntry | None = None

    @property
    def terminate(self) -> bool:
        """Whether TLS of guests is terminated, which needs the CA."""
        entries = (self.proxy, self.socks5, self.netns, self.kvm)
        return any(entry is not None for entry in entries)

    @property
    def pool(self) -> KvmPool | None:
        """The guests of the gateway itself."""
        return None if self.kvm is None else self.kvm.pool


class Http2Config(_Section, frozen=True):
    """HTTP/2, which ALPN agrees to within TLS; never in clear text.

    Attributes:
        guests: whether guests are offered it. Their requests cost the gateway more than those of HTTP/1.1.
        upstreams: whether upstreams are offered it. Then one connection carries many guests' requests. gRPC needs both.
    """

    guests: bool = True
    upstreams: bool = True

    @property
    def guest_alpn(self) -> tuple[str, ...]:
        """What guests are offered."""
        return _ALPN if self.guests else _ALPN[1:]

    @property
    def upstream_alpn(self) -> tuple[str, ...]:
        """What upstreams are offered."""
        return _ALPN if self.upstreams else _ALPN[1:]


_ALPN = ("h2", "http/1.1")


class AdminConfig(_Section, frozen=True):
    """The admin listener: /metrics, /healthz, /readyz, /status. Never an entry, never reachable through the gateway.

    Attributes:
        listen: `unix:/path` of a socket (from the file's folder) that only this user can open, which `seamgate reload`
            needs; or address:port on loopback, read-only; "": none.
    """

    listen: str = ""


class PluginSpec(_Section, frozen=True):
    """One plugin that is loaded.

    Attributes:
        name: of its entry point.
        capabilities: what it may do more; `secrets` lets it supply credentials and see unredacted responses.
        options: its own.
    """

    name: str
    capabilities: frozenset[str] = frozenset()
    options: Mapping[str, Any] = {}


MOST_WORKERS = 64
"""More processes than that would wait for one supervisor."""

BUILTIN_PLUGINS = (
    PluginSpec(name="policy"),
    PluginSpec(name="dns"),
    PluginSpec(name="credentials", capabilities=frozenset({"secrets"})),
    PluginSpec(name="inspection"),
)


class ConfigFile(_Section, frozen=True):
    """The file as it is written. `Config` is what the gateway uses.

    Attributes:
        entries: the ways in.
        policies: policy files, from the file's folder. Guests may do what they allow and nothing denies.
        credentials: by name: what policies select and the gateway puts in at the last hop.
        guests: by name: who may ask, how they prove it, and the labels that policies match on.
        plugins: names, or sections with capabilities and options, in the order in which they are asked; `builtin`
            stands for the four that make up the default behaviour.
        ca: the gateway's own certificate authority, which guests trust.
        audit: the journal.
        limits: of connections, times and sizes.
        pool: the shared sessions to upstreams.
        dns: how names are resolved.
        upstream_tls: which roots and client certificates hold for which upstreams.
        upstream_proxy: the proxy that upstreams are reached by, if they are.
        http2: towards whom HTTP/2 is spoken.
        permit_addresses: classes (loopback, private ...), networks and addresses beyond public ones that may be
            dialled for any rule. A rule's `addresses` permit them for its own hosts only.
        admin: the listener for metrics and health.
        workers: how many processes carry requests. With one, the gateway is one process; with more, a supervisor owns
            audit log, names and limits for all of them. `serve --workers` says otherwise.
        reload: "watch" loads this file again when it, a policy or a certificate for upstreams has changed; "manual"
            waits for SIGHUP or `seamgate reload`, so that nobody puts half a change in force by saving a file.
    """

    entries: Entries
    policies: tuple[str, ...]
    credentials: Mapping[str, CredentialConfig] = {}
    guests: Mapping[str, GuestConfig] = {}
    plugins: tuple[str | PluginSpec, ...] = (BUILTIN,)
    ca: CaConfig = CaConfig()
    audit: AuditConfig = AuditConfig()
    limits: LimitsConfig = LimitsConfig()
    pool: PoolConfig = PoolConfig()
    dns: DnsConfig = DnsConfig()
    upstream_tls: UpstreamTlsConfig = UpstreamTlsConfig()
    upstream_proxy: UpstreamProxyConfig | None = None
    http2: Http2Config = Http2Config()
    permit_addresses: tuple[str, ...] = ()
    admin: AdminConfig = AdminConfig()
    workers: Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)] = 1
    reload: Literal["manual", "watch"] = "manual"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A checked configuration.

    Attributes:
        source: the file it came from, for messages; "" if none.
        base: folder that relative file names started from: all that stand here are absolute (`places`).
        entries, credentials, guests, ca, audit, limits, pool, dns, upstream_tls, upstream_proxy, http2, admin,
            workers, reload: as written.
        policies: policy files, absolute.
        plugins: in order, `builtin` spelled out.
        permit_addresses: classes, networks and addresses beyond the public ones that may be dialled for any rule.
        policy_texts: what stands in policy files, by their names, where somebody has read them already: all workers get
            from the supervisor what it has checked, whatever became of the files since. Empty: they are read.
    """

    source: str = ""
    base: Path = Path()
    entries: Entries = Entries()
    policies: tuple[str, ...] = ()
    credentials: Mapping[str, CredentialConfig] = {}
    guests: Mapping[str, GuestConfig] = {}
    plugins: tuple[PluginSpec, ...] = BUILTIN_PLUGINS
    ca: CaConfig = CaConfig()
    audit: AuditConfig = AuditConfig()
    limits: LimitsConfig = LimitsConfig()
    pool: PoolConfig = PoolConfig()
    dns: DnsConfig = DnsConfig()
    upstream_tls: UpstreamTlsConfig = UpstreamTlsConfig()
    upstream_proxy: UpstreamProxyConfig | None = None
    http2: Http2Config = Http2Config()
    permit_addresses: tuple[str, ...] = ()
    admin: AdminConfig = AdminConfig()
    workers: int = 1
    reload: Literal["manual", "watch"] = "manual"
    policy_texts: Mapping[str, str] = {}


def load_config(path: Path | str) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: with file, line and column.
    """
    return parse_config(read_text(path), str(path), base=Path(anchored(Path(path).parent)))


def parse_config(text: str, source: str, *, base: Path) -> Config:
    """Parse and check a configuration.

    Raises:
        ConfigError: with the place.
    """
    document = parse_document(text, source)
    written = document.convert(ConfigFile)
    _check(document, written)
    written = anchor(written, base)
    return Config(
        source=source,
        base=base,
        entries=written.entries,
        policies=written.policies,
        credentials=written.credentials,
        guests=written.guests,
        plugins=_spell_out(document, written.plugins),
        ca=written.ca,
        audit=written.audit,
        limits=written.limits,
        pool=written.pool,
        dns=written.dns,
        upstream_tls=written.upstream_tls,
        upstream_proxy=written.upstream_proxy,
        http2=written.http2,
        permit_addresses=written.permit_addresses,
        admin=written.admin,
        workers=written.workers,
        reload=written.reload,
    )


def split_listen(text: str) -> tuple[str, int]:
    """Split `address:port` (IPv6 in brackets) of a listener; port 0 is a free one.

    Raises:
        TargetError: it is not that.
    """
    host, _, port = text.rpartition(":")
    address = canonical_address(host.removeprefix("[").removesuffix("]"))
    if address is None:
        raise TargetError(f"{text!r} is not address:port; write for example 127.0.0.1:8080")
    return address, 0 if port == "0" else canonical_port(port)


def split_admin(listen: str) -> tuple[str, int] | str:
    """Return where the admin listener is: (address, port) on loopback, or the path of a socket.

    Raises:
        TargetError: it is neither.
    """
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:")
        if not path or "\0" in path:
            raise TargetError(f"{listen!r} names no socket; write for example unix:/run/seamgate/admin.sock")
        return path
    address, port = split_listen(listen)
    if not ipaddress.ip_address(address).is_loopback:
        raise TargetError(f"the admin listener is for this machine only: {address} is not a loopback address")
    return address, port


def parse_route(origin: str) -> Target:
    """Return the target of a route's origin.

    Raises:
        TargetError: it is not `http(s)://host[:port]`.
    """
    scheme, separator, authority = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise TargetError(f"{origin!r} is not an origin; write for example https://api.anthropic.com")
    return parse_authority(authority.removesuffix("/"), scheme)


def _check(document: Document, written: ConfigFile) -> None:
    """Check what the types can't say."""
    entries = written.entries
    if entries.proxy is None and entries.base_url is None and entries.socks5 is None and entries.pool is None:
        raise document.error("there is no entry: add for example `proxy: {listen: 127.0.0.1:8080}`", "entries")
    for name in ("proxy", "base_url", "socks5", "dns"):
        entry = getattr(entries, name)
        if entry is not None:
            _check_entry(document, written, name, entry)
    if not written.policies:
        raise document.error("no policy file is named, so nothing would be allowed: name one", "policies")
    if written.upstream_proxy is not None:
        proxy = written.upstream_proxy
        _translated(document, lambda: parse_proxy_url(proxy.url), "upstream_proxy", "url")
        _translated(document, lambda: OriginPatterns(proxy.direct), "upstream_proxy", "direct")
    _check_places(document, written)
    if written.entries.kvm is not None:
        idle = written.entries.kvm.idle
        if idle.hibernate_s and not 0 < idle.park_s <= idle.hibernate_s:
            message = "guests are parked before they are hibernated: `park_s` must be neither 0 nor longer than this"
            raise document.error(message, "entries", "kvm", "idle", "hibernate_s")
    if entries.pool is not None and not entries.pool.listen.removeprefix("unix:").strip("/"):
        raise document.error("name a socket, for example unix:guests.sock", "entries", "kvm", "pool", "listen")
    if entries.pool is not None and not entries.pool.listen.startswith("unix:"):
        raise document.error("guests are handed in over a socket: unix:/path", "entries", "kvm", "pool", "listen")
    _translated(document, lambda: compile_permit(written.permit_addresses), "permit_addresses")
    _translated(document, lambda: check_credentials(written.credentials), "credentials")


def _check_entry(
    document: Document, written: ConfigFile, name: str, entry: ProxyEntry | BaseUrlEntry | Socks5Entry | DnsEntry
) -> None:
    place = ("entries", name)
    _translated(document, lambda: split_listen(entry.listen), *place, "listen")
    if entry.guest and entry.guest not in written.guests:
        raise document.error(f"there is no guest {entry.guest!r} under `guests`", *place, "guest")
    if not entry.guest and not any(guest.token for guest in written.guests.values()):
        raise document.error(
            "nobody could use this entry: give a guest a token under `guests`, or name one here with `guest:`", *place
        )
    if isinstance(entry, BaseUrlEntry):
        if not entry.routes:
            raise document.error("there are no routes: add for example `anthropic: https://api.anthropic.com`", *place)
        for route, origin in entry.routes.items():
            _translated(document, lambda origin=origin: parse_route(origin), *place, "routes", route)


def _check_places(document: Document, written: ConfigFile) -> None:
    """Refuse two listeners in one place, since the second could not be opened, and one that is the upstream proxy."""
    entries = written.entries
    all_entries = {"proxy": entries.proxy, "base_url": entries.base_url, "socks5": entries.socks5, "dns": entries.dns}
    there = {f"entries.{name}": entry.listen for name, entry in all_entries.items() if entry is not None}
    if written.admin.listen:
        _translated(document, lambda: split_admin(written.admin.listen), "admin", "listen")
        if not written.admin.listen.startswith("unix:"):
            there["admin"] = written.admin.listen
    taken: dict[str, tuple[str, int]] = {}
    for name, listen in there.items():
        place = split_listen(listen)
        for other, its in taken.items():
            if _meet(place, its):
                message = f"{other} listens on {there[other]} already: give one of them another port"
                raise document.error(message, *name.split("."), "listen")
        taken[name] = place
    if written.upstream_proxy is not None:
        proxy = parse_proxy_url(written.upstream_proxy.url)
        for name, place in taken.items():
            if _leads_to(place, proxy):
                message = f"this is {name} of this gateway, to which all requests would come back: name another proxy"
                raise document.error(message, "upstream_proxy", "url")


def _leads_to(place: tuple[str, int], target: Target) -> bool:
    """Whether a target is a listener, as far as it can be told without looking up names or interfaces."""
    if target.port != place[1]:
        return False
    listener = ipaddress.ip_address(place[0])
    names = ("127.0.0.1", "::1") if target.host == "localhost" else (target.host,) if target.is_address else ()
    hosts = [host for host in map(ipaddress.ip_address, names) if host.version == listener.version]
    return any(host == listener or (listener.is_unspecified and host.is_loopback) for host in hosts)


def _meet(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether two listeners exclude each other; 0.0.0.0 and :: are all addresses of their family."""
    hosts = [ipaddress.ip_address(host) for host, _ in (one, other)]
    if one[1] != other[1] or one[1] == 0 or hosts[0].version != hosts[1].version:
        return False
    return hosts[0] == hosts[1] or any(host.is_unspecified for host in hosts)


def _translated(document: Document, check: Any, *place: str) -> None:
    """Run a check and say where in the file its complaint belongs."""
    try:
        check()
    except ConfigError as error:
        raise document.error(error.bare_message, *place) from None
    except TargetError as error:
        raise document.error(error.message, *place) from None


def _spell_out(document: Document, plugins: tuple[str | PluginSpec, ...]) -> tuple[PluginSpec, ...]:
    specs: list[PluginSpec] = []
    for place, plugin in enumerate(plugins):
        if plugin == BUILTIN:
            specs += BUILTIN_PLUGINS
        else:
            specs.append(PluginSpec(name=plugin) if isinstance(plugin, str) else plugin)
        if len({spec.name for spec in specs}) != len(specs):
            raise document.error("a plugin is named twice", "plugins", place)
    return tuple(specs)
