"""Names, addresses and authorities: one spelling each, everything odd is refused, and special places are known."""

# ruff: noqa: RUF001 - look-alike characters are the point here

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.address import (
    AddressClass,
    address_text,
    canonical_address,
    canonical_host,
    canonical_name,
    canonical_port,
    classify,
    embedded_addresses,
    parse_authority,
    straddles_classes,
)
from seamgate.errors import TargetError
from seamgate.flow import Target

REFUSED_HOSTS = [
    # empty and odd dots
    "", ".", "..", "a..b", ".a.example", "a.example..", "a. example", " a.example", "a.example ",
    # other dots, invisible characters, look-alikes
    "a。example", "a．example", "a｡example", "a\u00adb.example", "a\u200bb.example", "a\u200db.example",
    "ａ.example", "ⓐ.example", "ﬁ.example", "straße.example", "e\u0301.example", "\u2170.example",
    "\u212a.example", "\u2126.example", "\u017f.example",
    "a\u2024example", "\ufeffa.example", "a.example\u3002", "İ.example", "xn--é.example",
    # control characters, truncation, injection
    "a\x00.example", "a.example\x00.b.example", "a\r\n.example", "a.example\n", "a\t.example", "a.example\x7f",
    # parts of a URL
    "user@a.example", "a.example@b.example", "a.example#b", "a.example?b", "a.example/b", "a.example\\b",
    "http://a.example", "a.example:443", "//a.example", "a%2eexample", "a.example%00", "%61.example",
    # brackets around what is not IPv6, zones
    "[a.example]", "[[a.example]]", "[192.0.2.1]", "[::1", "::1]", "[]", "[::1]]", "[[::1]]", "::1", "fe80::1",
    "[fe80::1%eth0]", "[fe80::1%25eth0]", "[::1 ]", "[::ffff:127.1]", "[v1.x]", "[1:2:3:4:5:6:7:8:9]", "[:::1]",
    "[::ffff:1.2.3.04]", "[12345::]",
    # odd spellings of IPv4
    "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "0x7f000001", "127.0.0.1.", "127.0.0.01", "1.2.3", "1.2.3.4.5",
    "256.1.1.1", "1.2.3.4 ", "1.2.3.0x4", "١.2.3.4", "１２７.0.0.1", "127.0.0.1\n", "+1.2.3.4", "0", "00.0.0.0",
    "a.example.1", "a.0x", "a.0xff", "1.2.3.4.",
    # labels
    "-a.example", "a-.example", "a." + "b" * 64, ".".join(["a" * 63] * 4) + ".b", "*.example", "a,b", "a;b", "a b",
    "a!b.example", "a$b", "a'b", 'a"b', "a(b)", "a|b", "a^b", "a`b", "a{b}", "a<b>", "a~b", "a=b", "a+b", "a&b",
]  # fmt: skip

ACCEPTED_HOSTS = [
    ("a.example", "a.example", False),
    ("A.EXAMPLE", "a.example", False),
    ("a.example.", "a.example", False),
    ("localhost", "localhost", False),
    ("_dmarc.a_b.example", "_dmarc.a_b.example", False),
    ("xn--bcher-kva.example", "xn--bcher-kva.example", False),
    ("bücher.example", "xn--bcher-kva.example", False),
    ("BÜCHER.example", "xn--bcher-kva.example", False),
    ("例え.テスト", "xn--r8jz45g.xn--zckzah", False),
    ("1.2.3.4", "1.2.3.4", True),
    ("255.255.255.255", "255.255.255.255", True),
    ("[::1]", "::1", True),
    ("[0:0:0:0:0:0:0:1]", "::1", True),
    ("[2001:DB8::00a1]", "2001:db8::a1", True),
    ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1", True),
    ("[::FFFF:7F00:1]", "::ffff:127.0.0.1", True),
    ("1a.example", "1a.example", False),
    ("a.1b", "a.1b", False),
    ("0xff.example", "0xff.example", False),
    ("a--b.example", "a--b.example", False),
    ("b" * 63 + ".example", "b" * 63 + ".example", False),
]


@pytest.mark.parametrize("text", REFUSED_HOSTS)
def test_odd_hosts_are_refused(text: str) -> None:
    """Whatever is not the one spelling of a host, or a plain variant in case and trailing dot, is an error."""
    with pytest.raises(TargetError):
        canonical_host(text)


@pytest.mark.parametrize(("text", "host", "is_address"), ACCEPTED_HOSTS)
def test_plain_hosts_become_canonical(text: str, host: str, is_address: bool) -> None:
    """Case, one trailing dot, IDNA and the spelling of IPv6 in brackets are settled once."""
    assert canonical_host(text) == (host, is_address)


@pytest.mark.parametrize("host", [host for _, host, _ in ACCEPTED_HOSTS])
def test_canonical_hosts_stay_as_they_are(host: str) -> None:
    """A canonical host is its own canonical form."""
    assert canonical_host(f"[{host}]" if ":" in host else host)[0] == host


@given(st.text(max_size=40) | st.from_regex(r"[a-zA-Z0-9._\-üß:\[\]%x。]{0,30}", fullmatch=True))
def test_canonical_host_is_idempotent_and_plain(text: str) -> None:
    """Out of any text comes a TargetError, or a host of plain characters that comes out the same again."""
    try:
        host, is_address = canonical_host(text)
    except TargetError:
        return
    assert set(host) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.:")
    assert len(host) <= 253
    assert canonical_host(f"[{host}]" if ":" in host else host) == (host, is_address)
    if not is_address:
        with pytest.raises(ValueError, match="does not appear"):
            ipaddress.ip_address(host)


@given(st.ip_addresses())
def test_addresses_have_one_text(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Each address has one text, which reads back as the same address, however it was spelt."""
    text = address_text(address)
    assert canonical_address(text) == text
    assert ipaddress.ip_address(text) == address
    if address.version == 6:
        assert canonical_address(address.exploded.upper()) == text


def test_mapped_addresses_are_written_with_a_quad() -> None:
    """The text of a mapped address does not depend on the version of Python."""
    assert address_text(ipaddress.ip_address("::ffff:0a00:0001")) == "::ffff:10.0.0.1"


@pytest.mark.parametrize(
    "text",
    ["", "0", "00443", "0443", "+443", "-1", " 443", "443 ", "65536", "99999", "4_43", "４４３", "44e1", "0x1bb"],
)
def test_odd_ports_are_refused(text: str) -> None:
    """A port is a decimal number from 1 to 65535 without anything around it."""
    with pytest.raises(TargetError):
        canonical_port(text)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a.example", Target("https", "a.example", 443)),
        ("A.example.:8443", Target("https", "a.example", 8443)),
        ("192.0.2.1:1", Target("https", "192.0.2.1", 1, True)),
        ("[2001:db8::1]", Target("https", "2001:db8::1", 443, True)),
        ("[2001:DB8:0::1]:65535", Target("https", "2001:db8::1", 65535, True)),
    ],
)
def test_authorities_are_read(text: str, target: Target) -> None:
    """Host and port are read into one target; the port defaults to the scheme's."""
    assert parse_authority(text, "https") == target
    assert parse_authority(target.authority, "https") == target


@pytest.mark.parametrize(
    "text",
    ["", ":", ":443", "a.example:", "a.example:443:443", "::1", "::1:443", "[::1]443", "[::1]:", "[::1]:x", "u@a:1",
     "a.example:443/", "[a.example]:443", "[::1]x:443", "a.example :443", "a.example: 443", "[::1]:443]"],
)  # fmt: skip
def test_odd_authorities_are_refused(text: str) -> None:
    """An authority is a canonical host, and a colon and a port if at all."""
    with pytest.raises(TargetError):
        parse_authority(text, "https")


def test_connect_needs_a_port() -> None:
    """CONNECT has no default port (RFC 9110 9.3.6)."""
    for text in ("a.example", "[::1]"):
        with pytest.raises(TargetError, match="port"):
            parse_authority(text, "https", port_required=True)


@given(st.text(max_size=30))
def test_only_target_errors_come_out(text: str) -> None:
    """Whatever the text, an authority is read or refused with our own error."""
    try:
        target = parse_authority(text, "http")
    except TargetError:
        return
    assert parse_authority(target.authority, "http") == target


@pytest.mark.parametrize("text", ["a" * 300, "ü" * 300, "a." * 200])
def test_long_names_are_refused_shortly(text: str) -> None:
    """What is far too long is refused with a message that does not repeat it."""
    with pytest.raises(TargetError) as caught:
        canonical_name(text)
    assert len(caught.value.message) < 200


PLAIN = {
    AddressClass.PUBLIC: (
        "8.8.8.8",
        "2606:4700::1111",
        "172.15.255.255",
        "172.32.0.1",
        "100.63.255.255",
        "11.0.0.1",
        "126.255.255.255",
        "128.0.0.1",
        "223.255.255.255",
    ),
    AddressClass.LOOPBACK: (
        "127.0.0.1",
        "127.255.255.254",
        "::1",
    ),
    AddressClass.PRIVATE: (
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.255.255",
        "fc00::1",
        "fdff::1",
        "fec0::1",
    ),
    AddressClass.LINK_LOCAL: (
        "169.254.0.1",
        "fe80::1",
        "febf::1",
    ),
    AddressClass.METADATA: (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fe80::a9fe:a9fe",
    ),
    AddressClass.SHARED: (
        "100.64.0.1",
        "100.127.255.255",
    ),
    AddressClass.MULTICAST: (
        "224.0.0.1",
        "239.255.255.255",
        "ff02::1",
    ),
    AddressClass.UNSPECIFIED: (
        "0.0.0.0",
        "0.1.2.3",
        "::",
    ),
    AddressClass.RESERVED: (
        "255.255.255.255",
        "240.0.0.1",
        "198.18.0.1",
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "192.88.99.1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
        "4000::1",
        "5f00::1",
    ),
}
# Forms that embed another address.
EMBEDDING = {
    AddressClass.LOOPBACK: (
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::1",
        "2001:0:7f00:1::1",
        "2606:4700::200:5efe:7f00:1",
    ),
    AddressClass.METADATA: (
        "::ffff:a9fe:a9fe",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
    ),
    AddressClass.RESERVED: (
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ),
    AddressClass.PRIVATE: (
        "::10.0.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
        "2606:4700::5efe:a00:1",
    ),
    AddressClass.LINK_LOCAL: ("fe80::5efe:8.8.8.8",),
}
CLASSES = [(text, kind) for table in (PLAIN, EMBEDDING) for kind, texts in table.items() for text in texts]


@pytest.mark.parametrize(("text", "kind"), CLASSES)
def test_special_places_are_known(text: str, kind: AddressClass) -> None:
    """Each special range has its class, at its borders too, and every embedding form is seen through."""
    assert classify(text) is kind


@given(st.ip_addresses(v=4))
def test_embedded_addresses_are_never_public(address: ipaddress.IPv4Address) -> None:
    """No IPv6 form around an IPv4 address is public, and a special one inside shows its class."""
    number = int(address)
    inner = classify(str(address))
    for base in (0xFFFF << 32, 0x64FF9B << 96, 0xFFFF << 48):
        if base == 0x64FF9B << 96:
            base = int(ipaddress.IPv6Address("64:ff9b::"))
        outer = ipaddress.IPv6Address(base | number)
        assert address in embedded_addresses(outer)
        kind = classify(str(outer))
        assert kind is (AddressClass.RESERVED if inner is AddressClass.PUBLIC else inner)


@given(st.ip_addresses())
def test_public_is_what_the_registry_calls_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Nothing is public here that the standard library's copy of the IANA registries does not call global."""
    if classify(address_text(address)) is AddressClass.PUBLIC:
        assert address.is_global
        assert not address.is_multicast


@pytest.mark.parametrize(
    ("text", "straddles"),
    [
        ("0.0.0.0/0", True), ("::/0", True), ("10.0.0.0/7", True), ("172.0.0.0/8", True), ("128.0.0.0/1", True),
        ("2000::/3", True), ("f000::/4", True), ("10.0.0.0/8", False), ("10.1.2.0/24", False), ("8.8.8.0/24", False),
        ("fc00::/7", False), ("fd12::/16", False), ("64:ff9b::/96", False), ("169.254.0.0/16", False),
    ],
)  # fmt: skip
def test_wide_networks_straddle(text: str, straddles: bool) -> None:
    """A network that reaches over the border of a class is told apart from one inside of it."""
    assert straddles_classes(ipaddress.ip_network(text)) is straddles
