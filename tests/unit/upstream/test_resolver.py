"""The resolver's files and settings; what it does on the wire is tested in tests/e2e/test_dns.py."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from seamgate.errors import ConfigError, ResolveFailed
from seamgate.upstream import resolver as resolver_module
from seamgate.upstream.dns_message import TYPE_A, TYPE_AAAA, Outcome
from seamgate.upstream.resolver import (
    DnsConfig,
    Resolver,
    SystemNames,
    load_system_names,
    parse_hosts,
    parse_resolv_conf,
)


def test_resolv_conf_is_read() -> None:
    """The first three servers count, once each; search domains are ignored; options are bounded."""
    text = (
        "# comment\nsearch corp.example\nnameserver 192.0.2.1\nnameserver 192.0.2.1 trailing\nnameserver fe80::1%eth0\n"
        "nameserver 2001:DB8::1\nnameserver 127.1\nnameserver\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n"
        "options ndots:5 timeout:1 attempts:99\noptions timeout:x rotate\n"
    )
    servers, timeout_s, attempts = parse_resolv_conf(text)
    assert servers == (("192.0.2.1", 53), ("2001:db8::1", 53), ("192.0.2.3", 53))
    assert (timeout_s, attempts) == (1, 5)


def test_hosts_are_read() -> None:
    """Names are canonical; odd lines, odd names and comments are skipped; addresses add up."""
    text = (
        "127.0.0.1 localhost\n::1 localhost ip6-localhost # comment\n192.0.2.5\tDB.Example. db\n# 192.0.2.6 x\n\n"
        "127.1 odd\nfe80::1%lo0 zone\n192.0.2.7 bad/name good.example\n192.0.2.8\n"
    )
    assert parse_hosts(text) == {
        "localhost": ("127.0.0.1", "::1"),
        "ip6-localhost": ("::1",),
        "db.example": ("192.0.2.5",),
        "db": ("192.0.2.5",),
        "good.example": ("192.0.2.7",),
    }


def test_configuration_wins_over_files(tmp_path: Path) -> None:
    """Servers and static addresses of the configuration replace those of the machine's files."""
    (tmp_path / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    (tmp_path / "hosts").write_text("192.0.2.2 a.example b.example\n")
    config = DnsConfig(servers=("192.0.2.9", "[2001:db8::9]:5353"), addresses={"a.example": ("192.0.2.10",)})
    names = load_system_names(config, resolv_conf=tmp_path / "resolv.conf", hosts_file=tmp_path / "hosts")
    assert names.servers == (("192.0.2.9", 53), ("2001:db8::9", 5353))
    assert names.static == {"a.example": ("192.0.2.10",), "b.example": ("192.0.2.2",)}
    without = load_system_names(
        DnsConfig(hosts_file=False), resolv_conf=tmp_path / "resolv.conf", hosts_file=tmp_path / "hosts"
    )
    assert (without.servers, without.static) == ((("192.0.2.1", 53),), {})


@pytest.mark.parametrize(
    "server", ["dns.example", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:99999", "127.1", "::1:x", ""]
)
def test_odd_servers_are_refused(server: str) -> None:
    """A server is an address with or without port; the message says how to write it."""
    with pytest.raises(ConfigError, match="write an address"):
        load_system_names(DnsConfig(servers=(server,)))


@pytest.mark.parametrize(
    "addresses", [{"a.example": ()}, {"a.example": ("b.example",)}, {"a.example": ("127.1",)}, {"a/b": ("192.0.2.1",)}]
)
def test_odd_static_addresses_are_refused(addresses: dict[str, tuple[str, ...]]) -> None:
    """A static answer is a canonical name and a list of addresses."""
    with pytest.raises(ConfigError, match=r"dns\.addresses"):
        load_system_names(DnsConfig(addresses=addresses))


@pytest.mark.parametrize(
    "section",
    [
        {"server": ["192.0.2.1"]},
        {"timeout_s": 0},
        {"attempts": 0},
        {"min_ttl_s": 10, "max_ttl_s": 5},
        {"serve_stale_s": -1},
        {"families": "ipv5"},
        {"deadline_s": float("nan")},
    ],
)
def test_odd_settings_are_refused(section: dict[str, Any]) -> None:
    """Unknown keys and values without sense are errors of the configuration."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, DnsConfig)


def test_without_servers_nothing_resolves_and_says_so() -> None:
    """No server known is a failure that names the two places to mend; nothing is guessed."""
    resolver = Resolver(DnsConfig(), SystemNames((), {}, 1.0, 1))
    with pytest.raises(ResolveFailed, match=r"dns\.servers"):
        asyncio.run(resolver.resolve("a.example"))


def test_missing_files_are_no_error(tmp_path: Path) -> None:
    """A machine without resolv.conf and hosts file has no servers and no static names."""
    names = load_system_names(DnsConfig(), resolv_conf=tmp_path / "none", hosts_file=tmp_path / "none")
    assert (names.servers, names.static) == ((), {})


def test_names_outside_the_dns_fail_without_asking() -> None:
    """Names under .onion, .invalid and .alt have no address (RFC 7686, 6761, 9476)."""
    resolver = Resolver(DnsConfig(), SystemNames((), {}, 1.0, 1))
    for name in ("a.onion", "a.invalid", "a.alt"):
        assert asyncio.run(resolver.query(name)).outcome is Outcome.NO_SUCH_NAME


def test_routes_are_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which families this machine has is remembered for 5 s, and then found out again: a network may come and go."""
    asked: list[int] = []
    families = {socket.AF_INET}
    now = 100.0

    def has_route(family: socket.AddressFamily) -> bool:
        asked.append(family)
        return family in families

    monkeypatch.setattr(resolver_module, "_has_route", has_route)
    monkeypatch.setattr(resolver_module, "monotonic", lambda: now)
    resolver = Resolver(DnsConfig(), SystemNames((), {}, 1.0, 1))
    assert resolver._record_types() == resolver._record_types() == (TYPE_A,)
    assert len(asked) == 2
    families.add(socket.AF_INET6)
    now = 104.9
    assert resolver._record_types() == (TYPE_A,)
    now = 105.0
    assert resolver._record_types() == (TYPE_AAAA, TYPE_A)
    assert len(asked) == 4


def test_documented_settings_are_the_defaults() -> None:
    """The example of docs/dns.md is a valid section, and shows the defaults where it does not name something."""
    text = (Path(__file__).parents[3] / "docs" / "dns.md").read_text()
    section = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["dns"]
    config = msgspec.convert(section, DnsConfig)
    assert msgspec.structs.replace(config, servers=(), addresses={}) == DnsConfig()
    assert set(section) == set(DnsConfig.__struct_fields__)
    load_system_names(config)
