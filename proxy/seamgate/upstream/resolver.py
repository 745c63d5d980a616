"""An asynchronous stub resolver: canonical name in, addresses (or why not) and a TTL out. Caches nothing.

Called by the plugin `dns` (which caches and coalesces), by `seamgate doctor`, and by nothing on the hot path. The
order is: special names, static `addresses` of the configuration, the hosts file, then the DNS servers
(`seamgate.upstream.dns_exchange`), A and AAAA in parallel. There are no search domains: every name is absolute. What
the addresses are good for is not judged here, but in `seamgate.upstream.addresses`.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Literal

import msgspec

from seamgate.address import canonical_address, canonical_host, canonical_name
from seamgate.errors import ConfigError, ResolveFailed, TargetError
from seamgate.flow import Resolution
from seamgate.upstream import dns_message
from seamgate.upstream.dns_exchange import Server, exchange_tcp, exchange_udp
from seamgate.upstream.dns_message import TYPE_A, TYPE_AAAA, FamilyAnswer, MalformedAnswer, Outcome

RESOLV_CONF = Path("/etc/resolv.conf")
HOSTS_FILE = Path("/etc/hosts")
DNS_PORT = 53
# With one family's addresses in hand, how long the other's may still take. RFC 8305 3 has 50 ms for a race to connect;
# this answer is cached, so a little more patience pays.
_OTHER_FAMILY_GRACE_S = 0.25
# Names that never have an address in the DNS: asking would only leak them (RFC 6761 6.4, RFC 7686, RFC 9476).
NEVER_ASKED = frozenset({"invalid", "onion", "alt"})
_LOCALHOST = ("127.0.0.1", "::1")
_STATIC_TTL_S = 60.0
_PROBE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}
_ROUTES_HOLD_S = 5.0
"""For how long it is remembered which families are routed: asking the kernel costs a look-up a tenth of its time."""


class DnsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `dns` of seamgate.yaml.

    Attributes:
        servers: "address", "address:port" or "[v6]:port"; empty: those of /etc/resolv.conf.
        addresses: static answers by name; they win over everything else, and are checked like any other.
        hosts_file: whether /etc/hosts is read.
        families: which addresses to ask for; "auto": those that this machine has a route for.
        timeout_s: for one try at one server.
        attempts: rounds over all servers.
        deadline_s: for the whole resolution.
        min_ttl_s, max_ttl_s: bounds put on the TTL of an answer.
        max_negative_ttl_s: bound put on the TTL of "no such name" (RFC 2308 5 advises 1 to 3 hours at most).
        failure_ttl_s: how long a failure of all servers is remembered (RFC 9520 3.2: 1 s to 5 min).
        max_addresses: addresses kept of one answer.
        cache_size: names remembered.
        max_lookups: look-ups under way at once; more fail at once.
        serve_stale_s: how long after its end an answer may be used while all servers fail (RFC 8767); 0: never.
        prefetch: whether names in use are asked for again shortly before their answer ends.
    """

    servers: tuple[str, ...] = ()
    addresses: Mapping[str, tuple[str, ...]] = {}
    hosts_file: bool = True
    families: Literal["auto", "both", "ipv4", "ipv6"] = "auto"
    timeout_s: float = 2.0
    attempts: int = 2
    deadline_s: float = 8.0
    min_ttl_s: float = 0.0
    max_ttl_s: float = 3600.0
    max_negative_ttl_s: float = 300.0
    failure_ttl_s: float = 2.0
    max_addresses: int = 32
    cache_size: int = 10_000
    max_lookups: int = 512
    serve_stale_s: float = 0.0
    prefetch: bool = True

    def __post_init__(self) -> None:
        """Refuse values that make no sense.

        Raises:
            ValueError: with what to write instead; msgspec turns it into an error with the place.
        """
        for name in ("timeout_s", "deadline_s", "attempts", "max_addresses", "cache_size", "max_lookups"):
            if not getattr(self, name) > 0:
                raise ValueError(f"dns.{name} must be more than 0")
        for name in ("min_ttl_s", "max_ttl_s", "max_negative_ttl_s", "failure_ttl_s", "serve_stale_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"dns.{name} must not be negative")
        if self.min_ttl_s > self.max_ttl_s:
            raise ValueError("dns.min_ttl_s must not be more than dns.max_ttl_s")


class Answer(msgspec.Struct, frozen=True):
    """What a name resolved to, or why it did not. Never raised, so that many waiters can share it.

    Attributes:
        name: the canonical name.
        outcome: ADDRESSES, or what went wrong.
        addresses: canonical texts in the order to try; empty exactly when outcome is not ADDRESSES.
        ttl_s: how long this may be used, within the configured bounds.
        message: for people; "" for ADDRESSES.
        aliases: names that the answer leads through.
    """

    name: str
    outcome: Outcome
    addresses: tuple[str, ...] = ()
    ttl_s: float = 0.0
    message: str = ""
    aliases: tuple[str, ...] = ()


class SystemNames(msgspec.Struct, frozen=True):
    """What the configuration and the machine's files say about names and servers.

    Attributes:
        servers: in the order to ask.
        static: addresses by canonical name.
        timeout_s, attempts: for the servers.
    """

    servers: tuple[Server, ...]
    static: Mapping[str, tuple[str, ...]]
    timeout_s: float
    attempts: int


def load_system_names(
    config: DnsConfig, *, resolv_conf: Path = RESOLV_CONF, hosts_file: Path = HOSTS_FILE
) -> SystemNames:
    """Read what the configuration does not say from the machine's files.

    Raises:
        ConfigError: a server or a static address of the configuration is none.
    """
    static = parse_hosts(_read(hosts_file)) if config.hosts_file else {}
    static.update(_static_addresses(config.addresses))
    if config.servers:
        servers = tuple(_parse_server(text) for text in config.servers)
        return SystemNames(servers, static, config.timeout_s, config.attempts)
    found, timeout_s, attempts = parse_resolv_conf(_read(resolv_conf))
    return SystemNames(found, static, timeout_s or config.timeout_s, attempts or config.attempts)


def _read(path: Path) -> str:
    """Return the text of a file of the machine, "" if there is none: then nothing resolves, and says so."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _static_addresses(addresses: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    static: dict[str, tuple[str, ...]] = {}
    for name, texts in addresses.items():
        canonical = [canonical_address(text) for text in texts]
        if not texts or None in canonical:
            raise ConfigError(f"dns.addresses: {name}: write a list of addresses, as in [192.0.2.1, '2001:db8::1']")
        try:
            static[canonical_name(name)] = tuple(text for text in canonical if text is not None)
        except TargetError as exc:
            raise ConfigError(f"dns.addresses: {exc.message}") from None
    return static


def _parse_server(text: str) -> Server:
    bare = canonical_address(text)
    if bare is not None:
        return bare, DNS_PORT
    host, _, port = text.rpartition(":")
    try:
        address, is_address = canonical_host(host)
    except TargetError:
        address, is_address = "", False
    if not is_address or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"dns.servers: {text!r} is no server: write an address, address:port or [v6]:port")
    return address, int(port)


def parse_resolv_conf(text: str) -> tuple[tuple[Server, ...], float, int]:
    """Return (servers, timeout in seconds or 0, attempts or 0) of a resolv.conf; what is odd in it is skipped.

    At most three servers count, a timeout is at most 30 s and there are at most 5 attempts. Source: resolv.conf(5)
    """
    servers: list[Server] = []
    timeout_s, attempts = 0, 0
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            # A zone (fe80::1%eth0) needs an interface; such a server can't be used.
            address = canonical_address(words[1])
            if address is not None:
                servers.append((address, DNS_PORT))
        elif words and words[0] == "options":
            timeout_s = _option(words, "timeout:", 30) or timeout_s
            attempts = _option(words, "attempts:", 5) or attempts
    return tuple(dict.fromkeys(servers))[:3], float(timeout_s), attempts


def _option(words: list[str], prefix: str, most: int) -> int:
    for word in words:
        digits = word.removeprefix(prefix)
        if word.startswith(prefix) and digits.isascii() and digits.isdigit():
            return min(int(digits), most)
    return 0


def parse_hosts(text: str) -> dict[str, tuple[str, ...]]:
    """Return addresses by canonical name of a hosts file; lines and names that are not canonical are skipped."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        address = canonical_address(words[0]) if words else None
        for word in words[1:] if address is not None else ():
            try:
                addresses = found.setdefault(canonical_name(word), [])
            except TargetError:
                continue
            if address is not None and address not in addresses:
                addresses.append(address)
    return {name: tuple(addresses) for name, addresses in found.items()}


class Resolver:
    """Resolves names. Remembers nothing but which families are routed; safe to use from many tasks of one loop."""

    def __init__(self, config: DnsConfig | None = None, system: SystemNames | None = None) -> None:
        self._config = config if config is not None else DnsConfig()
        self._system = system if system is not None else load_system_names(self._config)
        self._routed: tuple[int, ...] = ()
        self._routed_until = float("-inf")

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers that are asked, in order."""
        return self._system.servers

    async def resolve(self, name: str) -> Resolution:
        """Resolve a canonical name.

        Raises:
            ResolveFailed: it has no address, or no server answered.
        """
        answer = await self.query(name)
        if answer.outcome is not Outcome.ADDRESSES:
            raise ResolveFailed(answer.message)
        return Resolution(name, answer.addresses, monotonic() + answer.ttl_s)

    async def query(self, name: str) -> Answer:
        """Resolve a canonical name to an Answer. Raises nothing but a cancellation."""
        known = self._without_asking(name)
        if known is not None:
            return known
        if not self._system.servers:
            return self._failed(name, "no DNS server is known; name some under dns.servers, or mend /etc/resolv.conf")
        try:
            async with asyncio.timeout(self._config.deadline_s):
                answers = await self._ask_families(name)
        except TimeoutError:
            return self._failed(name, f"no DNS server answered within {self._config.deadline_s:g} s")
        return self._merge(name, answers)

    def _without_asking(self, name: str) -> Answer | None:
        literal = canonical_address(name)
        if literal is not None:
            return Answer(name, Outcome.ADDRESSES, (literal,), self._config.max_ttl_s)
        static = self._system.static.get(name)
        if static is not None:
            return Answer(name, Outcome.ADDRESSES, static, min(_STATIC_TTL_S, self._config.max_ttl_s))
        last = name.rpartition(".")[2]
        if last == "localhost":
            return Answer(name, Outcome.ADDRESSES, _LOCALHOST, _STATIC_TTL_S)
        if last in NEVER_ASKED:
            message = f"{name} has no address: names under .{last} are never in the DNS"
            return Answer(name, Outcome.NO_SUCH_NAME, (), self._config.max_negative_ttl_s, message)
        return None

    def _record_types(self) -> tuple[int, ...]:
        """Say what to ask for, AAAA first: with both, addresses are tried in that order (RFC 6724 6)."""
        families = self._config.families
        if families == "auto":
            now = monotonic()
            if now >= self._routed_until:
                routed = [kind for kind, family in _FAMILIES.items() if _has_route(family)]
                self._routed, self._routed_until = tuple(routed) or (TYPE_A,), now + _ROUTES_HOLD_S
            return self._routed
        return {"both": (TYPE_AAAA, TYPE_A), "ipv4": (TYPE_A,), "ipv6": (TYPE_AAAA,)}[families]

    async def _ask_families(self, name: str) -> list[FamilyAnswer]:
        """Ask for each family in parallel; once one settles the matter, the others get little more time."""
        kinds = self._record_types()
        if len(kinds) == 1:
            return [await self._ask_servers(name, kinds[0])]
        tasks = [asyncio.ensure_future(self._ask_servers(name, kind)) for kind in kinds]
        try:
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            while waiting and not any(task.result().outcome in _SETTLES for task in done):
                more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                done |= more
            if waiting:
                more, waiting = await asyncio.wait(waiting, timeout=_OTHER_FAMILY_GRACE_S)
                done |= more
            return [task.result() for task in tasks if task in done]
        finally:
            for task in tasks:
                task.cancel()

    async def _ask_servers(self, name: str, record_type: int) -> FamilyAnswer:
        """Ask one server after the other, `attempts` rounds, until one answers the question."""
        problems: dict[Server, str] = {}
        for _ in range(self._system.attempts):
            for server in self._system.servers:
                try:
                    async with asyncio.timeout(self._system.timeout_s):
                        answer = await self._ask(server, name, record_type)
                except TimeoutError:
                    problems[server] = f"no answer within {self._system.timeout_s:g} s"
                except (OSError, MalformedAnswer) as exc:
                    problems[server] = exc.message if isinstance(exc, MalformedAnswer) else _describe(exc)
                else:
                    if answer.outcome is not Outcome.FAILED:
                        return answer
                    problems[server] = answer.detail
        detail = "; ".join(f"{server_text(server)}: {problem}" for server, problem in problems.items())
        return FamilyAnswer(Outcome.FAILED, detail=detail)

    async def _ask(self, server: Server, name: str, record_type: int) -> FamilyAnswer:
        answer = await self._exchange(server, name, record_type, edns=True)
        if answer.edns_refused:
            answer = await self._exchange(server, name, record_type, edns=False)
        return answer

    async def _exchange(self, server: Server, name: str, record_type: int, *, edns: bool) -> FamilyAnswer:
        query = dns_message.build_query(name, record_type, secrets.randbelow(65536), edns=edns)
        message = await exchange_udp(server, query)
        if dns_message.is_truncated(message):
            message = await exchange_tcp(server, query)
        return dns_message.read_answer(message, record_type, max_addresses=self._config.max_addresses)

    def _merge(self, name: str, answers: list[FamilyAnswer]) -> Answer:
        config = self._config
        positive = [answer for answer in answers if answer.outcome is Outcome.ADDRESSES]
        if positive:
            addresses = _interleave([answer.addresses for answer in positive])[: config.max_addresses]
            ttl_s = min(answer.ttl_s or 0 for answer in positive)
            clamped = min(max(ttl_s, config.min_ttl_s), config.max_ttl_s)
            return Answer(name, Outcome.ADDRESSES, addresses, clamped, aliases=positive[0].aliases)
        missing = any(answer.outcome is Outcome.NO_SUCH_NAME for answer in answers)
        failed = [answer.detail for answer in answers if answer.outcome is Outcome.FAILED]
        if failed and not missing:
            return self._failed(name, failed[0])
        answers = [answer for answer in answers if answer.outcome is not Outcome.FAILED]
        # Without a SOA record a negative answer should not be cached (RFC 2308 5): as short as a failure, then.
        negative_s = min(config.failure_ttl_s if answer.ttl_s is None else answer.ttl_s for answer in answers)
        outcome = Outcome.NO_SUCH_NAME if missing else Outcome.NO_ADDRESS
        message = f"{name} does not exist (NXDOMAIN)" if missing else f"{name} exists, but has no address"
        aliases = answers[0].aliases
        return Answer(name, outcome, (), min(negative_s, config.max_negative_ttl_s), message, aliases)

    def _failed(self, name: str, detail: str) -> Answer:
        message = f"{name} could not be resolved: {detail}"
        return Answer(name, Outcome.FAILED, (), self._config.failure_ttl_s, message)


# "No such name" holds for every type (RFC 8020).
_SETTLES = frozenset({Outcome.ADDRESSES, Outcome.NO_SUCH_NAME})
_FAMILIES = {TYPE_AAAA: socket.AF_INET6, TYPE_A: socket.AF_INET}


def _has_route(family: socket.AddressFamily) -> bool:
    """Return whether the kernel would route to the internet by this family. Sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(_PROBE[family])
    except OSError:
        return False
    return True


def _interleave(lists: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Merge so that families alternate and none hides behind many dead addresses of the other (RFC 8305 4)."""
    longest = max(len(each) for each in lists)
    return tuple(each[index] for index in range(longest) for each in lists if index < len(each))


def _describe(exc: OSError) -> str:
    return "the connection was refused" if isinstance(exc, ConnectionRefusedError) else exc.strerror or str(exc)


def server_text(server: Server) -> str:
    """Return a server as messages name it."""
    host = f"[{server[0]}]" if ":" in server[0] else server[0]
    return host if server[1] == DNS_PORT else f"{host}:{server[1]}"
