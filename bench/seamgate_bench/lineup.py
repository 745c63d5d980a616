"""Which peers and scenarios there are, in the order of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seamgate_bench.adapters.direct import Direct
from seamgate_bench.adapters.envoy import Envoy
from seamgate_bench.adapters.mitmproxy import Mitmproxy
from seamgate_bench.adapters.nginx import Nginx
from seamgate_bench.adapters.proxy_py import ProxyPy
from seamgate_bench.adapters.seamgate import Seamgate
from seamgate_bench.adapters.squid import Squid
from seamgate_bench.peers import Peer


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load."""

    name: str
    title: str
    path: str
    connections: int
    new_connection: bool = False
    one_core: bool = False
    """Proxy, upstream and load share a core: a wake-up across cores costs more, and varies more, than a proxy does."""
    idle: bool = False
    """Memory is read while the connections are held, in a fresh process; nothing is timed."""
    repeats_at_most: int = 99


SCENARIOS = (
    Scenario("small", "200 bytes, 32 connections", "/v1/small", 32),
    Scenario("big", "22 KB, 32 connections", "/v1/big", 32),
    Scenario("small-256", "200 bytes, 256 connections", "/v1/small", 256),
    Scenario("big-256", "22 KB, 256 connections", "/v1/big", 256),
    Scenario("small-1500", "200 bytes, 1,500 connections", "/v1/small", 1500, repeats_at_most=3),
    Scenario("big-1500", "22 KB, 1,500 connections", "/v1/big", 1500, repeats_at_most=3),
    Scenario("stream", "8 MiB, 8 connections", "/v1/stream", 8),
    Scenario("new", "200 bytes, CONNECT and TLS for every request, 16 at a time", "/v1/small", 16, new_connection=True),
    Scenario("latency", "200 bytes, one connection, everything on one core", "/v1/small", 1, one_core=True),
    Scenario("idle", "1,500 idle connections after one request each", "/v1/small", 1500, idle=True),
)

QUICK = ("small", "big", "new", "latency")


def choose_scenarios(names: Sequence[str], connections: int | None) -> list[Scenario]:
    """Return the named scenarios in the table's order, with another number of connections if one is given.

    Raises:
        ValueError: there is no scenario of a name; the message lists them.
    """
    known = {s.name for s in SCENARIOS}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are {', '.join(s.name for s in SCENARIOS)}")
    chosen = [s for s in SCENARIOS if s.name in names]
    if connections is None:
        return chosen
    return [
        s if s.one_core else replace(s, connections=connections, title=f"{s.title} ({connections} here)")
        for s in chosen
    ]


def peers(rules: Sequence[int]) -> list[Peer]:
    """Return every peer. Of several numbers of rules the first is plain `seamgate`, the others get own rows."""
    first, *others = rules
    return [
        Seamgate(rules=first),
        *(Seamgate(name=f"seamgate-{count}", rules=count) for count in others),
        Seamgate(name="seamgate-plain", kind="p2t", rules=first),
        Seamgate(name="seamgate-pure", rules=first, compiled=False),
        Seamgate(name="seamgate-2w", rules=first, workers=2),
        Seamgate(name="seamgate-spread", rules=first, spread=True),
        Seamgate(name="seamgate-2w-spread", rules=first, workers=2, spread=True),
        Squid(domains=first),
        Squid(name="squid-first", domains=first, client_first=True),
        Squid(name="squid-log", domains=first, access_log=True),
        Envoy(),
        ProxyPy(),
        Mitmproxy(),
        Nginx(),
        Nginx(name="nginx-plain", kind="p2t"),
        Direct(),
    ]


WORKERS = ("seamgate", "seamgate-2w", "seamgate-spread", "seamgate-2w-spread")
"""One process and two workers, on one core and on two: `make bench-workers`."""
OPTIONAL = frozenset({"squid-log", *WORKERS[1:]})
"""Measured only when `--only` names them."""
FOR_NEW_CONNECTIONS = frozenset({"squid-first"})
"""Differ from their sibling in nothing else."""


def choose_peers(every: Sequence[Peer], only: Sequence[str]) -> list[Peer]:
    """Return the peers that `only` names, or the usual ones where it names none.

    Raises:
        ValueError: there is no peer of a name; the message lists them.
    """
    if not only:
        return [p for p in every if p.name not in OPTIONAL]
    unknown = [n for n in only if n not in {p.name for p in every}]
    if unknown:
        raise ValueError(f"no peer {', '.join(unknown)}; there are {', '.join(p.name for p in every)}")
    return [p for p in every if p.name in only]


def fits(peer: Peer, scenario: Scenario) -> bool:
    """Say whether a scenario tells something about a peer."""
    if peer.name in FOR_NEW_CONNECTIONS:
        return scenario.new_connection
    if peer.name == "direct":
        return not scenario.idle
    return True


def steps(peers: Sequence[Peer], scenarios: Sequence[Scenario], repeats: int) -> int:
    """Return how many steps a run has at most: starts, samples, and idle peers."""
    count = len(peers)
    for scenario in scenarios:
        each = 1 if scenario.idle else min(repeats, scenario.repeats_at_most)
        count += each * sum(fits(p, scenario) for p in peers)
    return count
