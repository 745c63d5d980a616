"""What may be dialled: only what is public or named, all of it or nothing, and never the gateway itself."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.address import AddressClass, address_text, classify
from seamgate.errors import AddressForbidden, ConfigError, Reason, ResolveFailed
from seamgate.upstream.addresses import PUBLIC_ONLY, compile_permit, is_local
from seamgate.upstream.destination import OwnAddresses, check_addresses, check_destination

PUBLIC = "93.184.216.34"
PUBLIC_6 = "2606:2800:220:1::1"


def test_public_addresses_pass_unchanged() -> None:
    """The very tuple comes back that was given: it is what will be dialled."""
    given_addresses = (PUBLIC_6, PUBLIC)
    assert check_addresses(given_addresses) is given_addresses


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("10.1.2.3", "private"),
        ("fc00::1", "private"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("100.64.0.1", "shared"),
        ("224.0.0.1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("192.0.2.1", "reserved"),
        ("::ffff:10.0.0.1", "private"),
        ("64:ff9b::a9fe:a9fe", "metadata"),
        ("::ffff:8.8.8.8", "reserved"),
        ("2002:7f00:1::1", "loopback"),
    ],
)
def test_special_addresses_are_refused_by_class(address: str, named: str) -> None:
    """Each class is refused, and the message names the class and the name that led there."""
    with pytest.raises(AddressForbidden, match=rf"a\.example leads to .*\({named}\)") as caught:
        check_addresses((address,), name="a.example")
    assert caught.value.reason is Reason.ADDRESS_FORBIDDEN


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_address_refuses_all(place: int) -> None:
    """A mixed answer is refused whole, wherever the bad address stands."""
    mixed = [PUBLIC, PUBLIC_6]
    mixed.insert(place, "10.0.0.1")
    with pytest.raises(AddressForbidden, match=r"10\.0\.0\.1"):
        check_addresses(tuple(mixed))


@pytest.mark.parametrize(
    "text",
    [
        "127.1",
        "0x7f.1",
        "2130706433",
        "fe80::1%2",
        "fe80::1%eth0",
        "2001:DB8::1",
        "::ffff:7f00:1",
        "a.example",
        "",
        "[::1]",
        " 8.8.8.8",
    ],
)
def test_what_is_not_canonical_is_refused(text: str) -> None:
    """A resolver plugin may return anything; only canonical texts are looked at, others are refused."""
    with pytest.raises(AddressForbidden, match="canonical form"):
        check_addresses((text,), compile_permit(("private", "loopback", "link-local", "reserved")))


def test_no_address_is_a_failure() -> None:
    """An empty answer is a failed resolution, never a pass."""
    with pytest.raises(ResolveFailed):
        check_addresses(())


@pytest.mark.parametrize(
    ("entries", "address"),
    [
        (("private",), "10.0.0.1"),
        (("loopback",), "127.0.0.1"),
        (("metadata",), "169.254.169.254"),
        (("10.0.0.0/8",), "10.255.0.1"),
        (("10.0.0.0/30", "10.0.1.0/30"), "10.0.1.2"),
        (("fd00::/8",), "fd12::1"),
        (("169.254.169.254",), "169.254.169.254"),
        (("169.254.169.254/32",), "169.254.169.254"),
        (("0.0.0.0",), "0.0.0.0"),
        (("multicast",), "224.0.0.1"),
        (("127.0.0.2",), "127.0.0.2"),
        (("2001:DB8::1",), "2001:db8::1"),
        (("64:ff9b::/96",), "64:ff9b::808:808"),
        (("64:ff9b::/96", "private"), "64:ff9b::a00:1"),
        (("::ffff:10.0.0.1",), "::ffff:10.0.0.1"),
        (("reserved",), "192.0.2.1"),
    ],
)
def test_named_addresses_pass(entries: tuple[str, ...], address: str) -> None:
    """Classes, networks and exact addresses let in what they name."""
    assert check_addresses((address, PUBLIC), compile_permit(entries)) == (address, PUBLIC)


@pytest.mark.parametrize(
    ("entries", "address"),
    [
        # a class or network lets in nothing else
        (("private",), "127.0.0.1"),
        (("10.0.0.0/8",), "11.0.0.1.example"),
        (("10.0.0.0/24",), "10.0.1.0"),
        (("loopback", "private", "link-local", "shared", "reserved"), "169.254.169.254"),
        # metadata, unspecified and multicast are never let in by a network
        (("169.254.0.0/16",), "169.254.169.254"),
        (("link-local",), "169.254.169.254"),
        (("fd00::/8",), "fd00:ec2::254"),
        (("100.64.0.0/10",), "100.100.100.200"),
        (("0.0.0.0/8",), "0.0.0.0"),
        (("224.0.0.0/4",), "224.0.0.1"),
        (("ff00::/8",), "ff02::1"),
        (("168.63.129.0/24",), "168.63.129.16"),
        # what embeds another address is let in by a network of such forms only, and then as the inner one is
        (("private",), "::ffff:10.0.0.1"),
        (("10.0.0.0/8",), "::ffff:10.0.0.1"),
        (("10.0.0.1",), "::ffff:10.0.0.1"),
        (("reserved",), "64:ff9b::808:808"),
        (("64:ff9b::/96",), "64:ff9b::a00:1"),
        (("64:ff9b::/96",), "64:ff9b::a9fe:a9fe"),
        (("::ffff:0:0/96",), "::ffff:127.0.0.1"),
        (("2002::/16",), "2002:7f00:1::1"),
        (("loopback",), "2002:7f00:1::1"),
    ],
)
def test_what_is_not_named_stays_refused(entries: tuple[str, ...], address: str) -> None:
    """A permit lets in what it names, and nothing that only looks like it."""
    with pytest.raises(AddressForbidden):
        check_addresses((address,), compile_permit(entries))


@pytest.mark.parametrize(
    "entry", ["0.0.0.0/0", "::/0", "10.0.0.0/7", "128.0.0.0/1", "172.0.0.0/8", "0.0.0.0/1", "fc00::/6"]
)
def test_wide_networks_are_an_error(entry: str) -> None:
    """A network that spans classes permits nothing: it is an error that says to name the classes."""
    with pytest.raises(ConfigError, match="more than one class"):
        compile_permit((entry,))


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "public",
        "Private",
        "all",
        "*",
        "a.example",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/255.0.0.0/8",
        "127.1",
        "10/8",
        "fe80::1%1",
    ],
)
def test_odd_entries_are_an_error(entry: str) -> None:
    """An entry is a class, a network without host bits, or an address; anything else is an error."""
    with pytest.raises(ConfigError):
        compile_permit((entry,))


def test_permits_add_up() -> None:
    """What configuration and rule name is permitted together."""
    both = compile_permit(("private",)) | compile_permit(("127.0.0.1", "169.254.0.0/16"))
    assert check_addresses(("10.0.0.1", "127.0.0.1", "169.254.1.1"), both)
    assert (PUBLIC_ONLY | both) == both == (both | PUBLIC_ONLY)
    assert not PUBLIC_ONLY


@given(st.lists(st.ip_addresses(), min_size=1, max_size=5))
def test_only_public_passes_by_default(found: list[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> None:
    """Without a permit a set passes exactly if each of its addresses is public."""
    texts = tuple(address_text(address) for address in found)
    if all(classify(text) is AddressClass.PUBLIC for text in texts):
        assert check_addresses(texts) == texts
    else:
        with pytest.raises(AddressForbidden):
            check_addresses(texts)


@given(st.ip_addresses(v=4))
def test_no_network_lets_in_metadata(address: ipaddress.IPv4Address) -> None:
    """Every network that can be named around a metadata address leaves it refused."""
    metadata = ipaddress.ip_address("169.254.169.254")
    for bits in range(16, 32):
        network = ipaddress.ip_network((int(metadata) >> (32 - bits) << (32 - bits), bits))
        assert not compile_permit((str(network),)).permits(str(metadata))
    permit = compile_permit(("169.254.0.0/16",))
    assert permit.permits(str(address)) == (
        classify(str(address)) is AddressClass.PUBLIC
        or (address in ipaddress.ip_network("169.254.0.0/16") and classify(str(address)) is AddressClass.LINK_LOCAL)
    )


# -- the gateway itself ----------------------------------------------------------------------------------------------

EVERYTHING = compile_permit(("loopback", "private", "unspecified", "link-local", "reserved", "::ffff:127.0.0.1"))


@pytest.mark.parametrize(
    "spelling",
    [
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
    ],
)
def test_own_listener_is_refused_in_any_spelling(spelling: str) -> None:
    """A listener on one address is known in every form that embeds it, and as "any address" of this machine."""
    own = OwnAddresses([("127.0.0.1", 8080)])
    with pytest.raises(AddressForbidden, match="gateway itself") as caught:
        check_destination((PUBLIC, spelling), 8080, EVERYTHING, own, name="a.example")
    assert caught.value.reason is Reason.OWN_ADDRESS


def test_other_ports_and_addresses_are_not_the_gateway() -> None:
    """Only the listeners' own ports are refused as such; a service beside the gateway can be permitted."""
    own = OwnAddresses([("127.0.0.1", 8080)])
    assert check_destination(("127.0.0.1",), 8081, EVERYTHING, own) == ("127.0.0.1",)
    assert check_destination(("127.0.0.2",), 8080, EVERYTHING, own) == ("127.0.0.2",)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_wildcard_listener_is_every_local_address(wildcard: str) -> None:
    """A listener on all addresses is the gateway at each address of this machine, not at others."""
    own = OwnAddresses([(wildcard, 8080)])
    for address in ("127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::ffff:127.9.9.9"):
        assert own.owns(address, 8080)
    assert not own.owns(PUBLIC, 8080)
    assert not own.owns("127.0.0.1", 8081)


def test_forwarded_places_can_be_named() -> None:
    """Where a load balancer or port mapping leads back to the gateway, the place can be named."""
    own = OwnAddresses([("127.0.0.1", 8080)], also=[("203.0.113.7", 443)])
    with pytest.raises(AddressForbidden, match="gateway itself"):
        own.check(("203.0.113.7",), 443)


def test_own_address_is_reported_before_its_class() -> None:
    """Who asks for the gateway hears that, not that loopback is special."""
    with pytest.raises(AddressForbidden) as caught:
        check_destination(("127.0.0.1",), 8080, PUBLIC_ONLY, OwnAddresses([("127.0.0.1", 8080)]))
    assert caught.value.reason is Reason.OWN_ADDRESS


def test_odd_spellings_at_an_own_port_are_refused() -> None:
    """At a port of the gateway, what is not canonical is not even looked at."""
    with pytest.raises(AddressForbidden):
        OwnAddresses([("127.0.0.1", 8080)]).check(("127.1",), 8080)


def test_listener_must_be_an_address() -> None:
    """A name as listener is an error: what is bound is an address."""
    with pytest.raises(ConfigError):
        OwnAddresses([("localhost", 8080)])


@pytest.mark.parametrize("nonlocal_bind", [False, True])
def test_local_addresses_are_known_from_the_kernel(nonlocal_bind: bool) -> None:
    """Loopback is local, a documentation address is not, whether or not binding to anything is allowed."""
    assert is_local("127.0.0.1", nonlocal_bind=lambda: nonlocal_bind)
    assert is_local("::1", nonlocal_bind=lambda: nonlocal_bind)
    assert not is_local("192.0.2.1", nonlocal_bind=lambda: nonlocal_bind)
    assert not is_local("2001:db8::1", nonlocal_bind=lambda: nonlocal_bind)
