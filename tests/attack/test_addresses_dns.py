"""SSRF by DNS: whatever a name server says, nothing that is not public and not the gateway itself gets dialled.

The chain is the real one up to the socket: a DNS server on loopback, the resolver, the plugin's cache, and the check
that stands before dialling. What a denial of these looks like to a guest and to the audit is tested at the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fake_dns import FakeDns, Turn, addresses, no_address, says
from seamgate import Resolution, ResolveFailed
from seamgate.errors import AddressForbidden, Reason, SeamgateError
from seamgate.upstream.addresses import AddressPermit, compile_permit
from seamgate.upstream.destination import OwnAddresses, check_destination
from seamgate.upstream.dns_cache import DnsCache
from seamgate.upstream.resolver import DnsConfig, Resolver

PUBLIC = "93.184.216.34"
OWN_PORT = 8080


class Guarded:
    """Name to addresses that may be dialled, as the gateway does it."""

    def __init__(self, dns: FakeDns, permit: AddressPermit | None = None, **settings: Any) -> None:
        given = {
            "servers": (dns.server,),
            "hosts_file": False,
            "families": "both",
            "timeout_s": 5.0,
            "deadline_s": 20.0,
        }
        config = DnsConfig(**{**given, **settings})
        self.cache = DnsCache(config, Resolver(config))
        self.permit = permit or AddressPermit()
        self.own = OwnAddresses([("127.0.0.1", OWN_PORT)])

    async def dialled(self, name: str = "rebind.example", port: int = 443) -> tuple[str, ...]:
        """Return what would be dialled."""
        found = self.cache.get(name)
        resolution = found if isinstance(found, Resolution) else await found
        return check_destination(resolution.addresses, port, self.permit, self.own, name=name)


def run(scenario: Callable[[FakeDns], Awaitable[None]]) -> None:
    """Run a scenario against a fresh server, bounded in time."""

    async def main() -> None:
        async with asyncio.timeout(30), FakeDns() as dns:
            await scenario(dns)

    asyncio.run(main())


@pytest.mark.parametrize(
    "evil",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
        "100.64.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:7f00:1",
        "::ffff:a9fe:a9fe",
        "::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::",
        "2001:0:7f00:1::1",
        "2606:4700::5efe:7f00:1",
    ],
)
def test_no_special_address_by_any_record(evil: str) -> None:
    """Alone or beside a public address, first or last: the whole name is refused."""

    async def scenario(dns: FakeDns) -> None:
        for place, found in enumerate(([evil], [evil, PUBLIC], [PUBLIC, evil])):
            name = f"n{place}.example"
            dns.host(name, *found)
            with pytest.raises(AddressForbidden) as caught:
                await Guarded(dns).dialled(name)
            assert caught.value.reason is Reason.ADDRESS_FORBIDDEN

    run(scenario)


def test_rebinding_is_checked_at_each_answer() -> None:
    """A name that turns private is refused at the next answer; until then the first answer is what is dialled."""

    async def scenario(dns: FakeDns) -> None:
        for ttl, second_is_refused in ((0, True), (60, False)):
            dns.tell("rebind.example", "AAAA", no_address(ttl=ttl))
            dns.tell(
                "rebind.example",
                "A",
                addresses("rebind.example", PUBLIC, ttl=ttl),
                addresses("rebind.example", "127.0.0.1", ttl=ttl),
            )
            guarded = Guarded(dns)
            assert await guarded.dialled() == (PUBLIC,)
            if second_is_refused:
                with pytest.raises(AddressForbidden):
                    await guarded.dialled()
            else:
                assert await guarded.dialled() == (PUBLIC,)

    run(scenario)


@pytest.mark.parametrize(
    "turn",
    [
        says("rebind.example. 60 IN CNAME localhost.", "localhost. 60 IN A 127.0.0.1"),
        says(
            "rebind.example. 60 IN CNAME a.example.",
            "a.example. 60 IN CNAME metadata.google.internal.",
            "metadata.google.internal. 60 IN A 169.254.169.254",
        ),
    ],
)
def test_aliases_lead_nowhere_special(turn: Turn) -> None:
    """An allowed name that is an alias of an inner one is judged by where it leads."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell("rebind.example", "A", turn)
        with pytest.raises(AddressForbidden):
            await Guarded(dns, families="ipv4").dialled()

    run(scenario)


def test_private_address_behind_many_public_ones() -> None:
    """A private address among the first that are kept refuses; one beyond the cap is dropped and never dialled."""

    async def scenario(dns: FakeDns) -> None:
        many = [f"93.184.{index >> 8}.{index & 255}" for index in range(1000)]
        for place, refused in ((3, True), (900, False)):
            found = [*many[:place], "10.0.0.1", *many[place:]]
            name = f"at{place}.example"
            dns.tell(name, "A", says(truncated=True))
            dns.tcp_script[name, "A"] = [addresses(name, *found)]
            guarded = Guarded(dns, families="ipv4", max_addresses=16)
            if refused:
                with pytest.raises(AddressForbidden):
                    await guarded.dialled(name)
            else:
                assert await guarded.dialled(name) == tuple(many[:16])

    run(scenario)


def test_failed_lookup_is_not_public() -> None:
    """SERVFAIL, NXDOMAIN and silence end in a refusal, never in a guess."""

    async def scenario(dns: FakeDns) -> None:
        dns.tell("fail.example", "A", says(code="SERVFAIL"))
        dns.tell("fail.example", "AAAA", says(code="SERVFAIL"))
        for name in ("fail.example", "gone.example"):
            with pytest.raises(ResolveFailed):
                await Guarded(dns, attempts=1).dialled(name)

    run(scenario)


@pytest.mark.parametrize(
    "evil", ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1".replace("127.0.0.1", "7f00:1"), "64:ff9b::7f00:1"]
)
def test_no_name_leads_to_the_gateway(evil: str) -> None:
    """A name that leads to the gateway's own listener is refused as such, even where loopback is permitted."""

    async def scenario(dns: FakeDns) -> None:
        dns.host("rebind.example", evil, PUBLIC)
        permit = compile_permit(("loopback", "unspecified", "64:ff9b::/96", "::ffff:0:0/96"))
        with pytest.raises(AddressForbidden) as caught:
            await Guarded(dns, permit).dialled(port=OWN_PORT)
        assert caught.value.reason is Reason.OWN_ADDRESS

    run(scenario)


def test_localhost_names_never_ask_and_never_pass() -> None:
    """Names under localhost are loopback whatever a server says, so they are refused."""

    async def scenario(dns: FakeDns) -> None:
        dns.host("app.localhost", PUBLIC)
        for name in ("localhost", "app.localhost"):
            with pytest.raises(SeamgateError) as caught:
                await Guarded(dns).dialled(name)
            assert caught.value.reason is Reason.ADDRESS_FORBIDDEN
        assert dns.queries == []

    run(scenario)
