"""Names and addresses in their one canonical form, and which addresses nothing may be sent to.

Called wherever text becomes a `Target`: entries, policy loader, configuration, resolver. Odd spellings are refused,
not repaired, because each published bypass of a gateway like this lived in a repair. Resolves nothing, opens nothing.

What is canonical:
- a name: ASCII letters, digits, hyphens and underscores in labels of 1 to 63, 253 in all, lower case, IDNA A-labels,
  at most one trailing dot, which is taken off; the last label is not all digits (RFC 3696 2, WHATWG URL 4.3: such a
  name would be read as an IPv4 number by some resolver);
- an address: what `address_text` prints. Only dotted-quad IPv4 without leading zeros and bracketed IPv6 without zone
  are read; "0x7f.1", "2130706433", "127.1", "0177.0.0.1" are refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

from seamgate.errors import TargetError
from seamgate.flow import Target

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*{_LABEL}\Z")
_LAST_LABEL_IS_NUMBER = re.compile(r"(?:\A|\.)(?:[0-9]+|0x[0-9a-f]*)\Z")
_IPV4 = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}\Z")
_LONGEST_TEXT = 254  # 253 and the trailing dot; a name in other scripts only gets longer as A-labels
_LONGEST_SHOWN = 64
_OF_URIS = re.compile(r"[@:/?#%~=&\s]")
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
DEFAULT_PORTS = {"http": 80, "https": 443}


class AddressClass(StrEnum):
    """What kind of place an address is. Only PUBLIC is reachable unless a rule or the configuration names the rest."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    METADATA = "metadata"
    SHARED = "shared"
    MULTICAST = "multicast"
    UNSPECIFIED = "unspecified"
    RESERVED = "reserved"


@lru_cache(maxsize=65536)
def canonical_name(text: str) -> str:
    """Return a DNS name in canonical form: str, lower-case ASCII A-labels, no trailing dot.

    Raises:
        TargetError: it is not a name, or an odd spelling of one.
    """
    if len(text) > _LONGEST_TEXT:
        raise TargetError(f"{_shown(text)} is not a host name: it has more than 253 characters")
    name = text[:-1] if text.endswith(".") else text
    name = name.lower() if name.isascii() else _to_a_labels(name)
    if not _NAME.match(name):
        raise TargetError(f"{_shown(text)} is not a host name: use letters, digits and hyphens, without scheme or port")
    if _LAST_LABEL_IS_NUMBER.search(name):
        raise TargetError(f"{_shown(text)} looks like an odd spelling of an address: write it as a.b.c.d or [v6]")
    return name


def _shown(text: str) -> str:
    """Return a name as a message may repeat it: not if it has what user names, passwords and tokens stand beside."""
    return "what was given" if _OF_URIS.search(text) else repr(text[:_LONGEST_SHOWN])


def _to_a_labels(name: str) -> str:
    """IDNA 2003 through the standard library, then refuse whatever does not come back the same (UTS 46 confusions)."""
    lowered = "".join(_lower(char, name) for char in name)
    try:
        encoded = ".".join(label.encode("idna").decode("ascii") for label in lowered.split("."))
        back = ".".join(label.encode("ascii").decode("idna") for label in encoded.split("."))
    except UnicodeError:
        raise TargetError(f"{_shown(name)} is not a valid internationalised name: write its xn-- form") from None
    if back != lowered:
        raise TargetError(f"{_shown(name)} has look-alike characters: write its xn-- form, {encoded!r}")
    return encoded


def _lower(char: str, name: str) -> str:
    """Lower one character, but not by a change of script or letter: U+212A (Kelvin) is no "k"."""
    low = char.lower()
    if char not in (low, low.upper()):
        raise TargetError(f"{_shown(name)} has look-alike characters: write its xn-- form")
    return low


def canonical_address(text: str) -> str | None:
    """Return an IPv4 or (unbracketed) IPv6 literal in its one text form, or None if the text is neither."""
    if _IPV4.match(text):
        return text
    if ":" in text and "%" not in text:
        try:
            return address_text(ipaddress.IPv6Address(text))
        except ValueError:
            return None
    return None


def address_text(address: IPAddress) -> str:
    """Return the one text form of an address (RFC 5952); IPv4-mapped ones end in a dotted quad (section 5).

    `str` of a mapped address differs between Python 3.11 and 3.13, and what policies and audit hold must not.
    """
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address) if mapped is None else f"::ffff:{mapped}"


@lru_cache(maxsize=65536)
def canonical_host(text: str) -> tuple[str, bool]:
    """Return (host, is_address) of a host as in a URI: a name, an IPv4 literal, or an IPv6 literal in brackets.

    Raises:
        TargetError: it is none of them.
    """
    if text.startswith("["):
        address = canonical_address(text[1:-1]) if text.endswith("]") else None
        if address is None or ":" not in address:
            raise TargetError("the host is not an IPv6 address in brackets")
        return address, True
    if _IPV4.match(text):
        return text, True
    return canonical_name(text), False


def canonical_port(text: str) -> int:
    """Return a port from decimal text without sign, leading zero or white space.

    Raises:
        TargetError: it is not a number from 1 to 65535.
    """
    port = int(text) if _PORT.match(text) else 0
    if not 1 <= port <= 65535:
        raise TargetError("the port is not a number from 1 to 65535")
    return port


@lru_cache(maxsize=65536)
def parse_authority(text: str, scheme: str, *, port_required: bool = False) -> Target:
    """Parse `host[:port]`, without userinfo, into a Target.

    Args:
        text: as in a Host header, a CONNECT request or an absolute URI.
        scheme: "http" or "https".
        port_required: as in CONNECT (RFC 9110 9.3.6).

    Raises:
        TargetError: anything is odd.
    """
    if "@" in text:
        raise TargetError("the authority has a user name in it; send credentials in a header")
    head, colon, tail = text.rpartition(":")
    if not colon or (text.endswith("]") and text.startswith("[")):
        if port_required:
            raise TargetError(f"{_shown(text)} has no port: write host:port")
        host, is_address = canonical_host(text)
        return Target(scheme, host, DEFAULT_PORTS[scheme], is_address)
    host, is_address = canonical_host(head)
    return Target(scheme, host, canonical_port(tail), is_address)


def embedded_addresses(address: IPAddress) -> Iterable[IPAddress]:
    """Yield the address and every IPv4 address that it carries inside.

    IPv4-mapped (RFC 4291 2.5.5.2), IPv4-compatible (2.5.5.1), NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056),
    Teredo server and client (RFC 4380), ISATAP (RFC 5214).
    """
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    number = int(address)
    low = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    compatible = number >> 32 == 0 and number > 1  # :: and ::1 carry nothing
    if address.ipv4_mapped is not None or compatible or number >> 32 == 0xFFFF0000:
        yield low
    if any(address in network for network in _NAT64):
        yield low
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if (number >> 32) & 0xFFFFFFFF in (0x00005EFE, 0x02005EFE):
        yield low


_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
# Metadata services of the large clouds; link-local ones are refused as link-local too, the others would not be.
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.169.253", "169.254.169.123",
        "169.254.0.23", "169.254.42.42", "169.254.169.250", "100.96.0.96",
        "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
        "fd00:ec2::253", "fd00:ec2::123", "fd00:42::42", "fe80::a9fe:a9fe",
    )
)  # fmt: skip
_SPECIAL: tuple[tuple[AddressClass, tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]], ...] = tuple(
    (kind, tuple(ipaddress.ip_network(text) for text in texts))
    for kind, texts in (
        (AddressClass.UNSPECIFIED, ("0.0.0.0/8", "::/128")),
        (AddressClass.LOOPBACK, ("127.0.0.0/8", "::1/128")),
        (AddressClass.LINK_LOCAL, ("169.254.0.0/16", "fe80::/10")),
        (AddressClass.PRIVATE, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
        (AddressClass.SHARED, ("100.64.0.0/10",)),
        (AddressClass.MULTICAST, ("224.0.0.0/4", "ff00::/8")),
        (
            AddressClass.RESERVED,
            (
                "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
                "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
                "100::/64", "2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20", "5f00::/16",
            ),
        ),
    )
)  # fmt: skip
_GLOBAL_UNICAST_6 = ipaddress.IPv6Network("2000::/3")


def _classify_one(address: IPAddress) -> AddressClass:
    if address in _METADATA:
        return AddressClass.METADATA
    for kind, networks in _SPECIAL:
        if any(network.version == address.version and address in network for network in networks):
            return kind
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST_6:
        return AddressClass.RESERVED
    return AddressClass.PUBLIC


@lru_cache(maxsize=65536)
def classify(text: str) -> AddressClass:
    """Say what kind of place an address (unbracketed literal) is, looking inside every embedding form.

    PUBLIC only if the address and each address embedded in it are public. An IPv6 form that embeds a public IPv4
    address (mapped, translated, tunnelled) is RESERVED: it is never what a resolver should have said.
    """
    address = ipaddress.ip_address(text)
    kinds = [_classify_one(each) for each in embedded_addresses(address)]
    special = [kind for kind in kinds if kind is not AddressClass.PUBLIC]
    if len(kinds) > 1:
        # The inner one tells more: ::ffff:169.254.169.254 is metadata, not merely reserved.
        inner = [kind for kind in kinds[1:] if kind is not AddressClass.PUBLIC]
        return inner[0] if inner else special[0] if special else AddressClass.RESERVED
    return special[0] if special else AddressClass.PUBLIC


def straddles_classes(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """Return whether a network covers addresses of more than one class, the metadata addresses not counted."""
    borders = [border for _, networks in _SPECIAL for border in networks]
    borders.append(_GLOBAL_UNICAST_6)
    return any(_overlaps(network, border) and not _within(network, border) for border in borders)


def _overlaps(one: ipaddress.IPv4Network | ipaddress.IPv6Network, other: object) -> bool:
    return isinstance(other, type(one)) and one.overlaps(other)


def _within(one: ipaddress.IPv4Network | ipaddress.IPv6Network, other: object) -> bool:
    return isinstance(other, type(one)) and one.subnet_of(other)  # type: ignore[arg-type]
