"""What may be dialled besides public addresses, what an address is, and which are this machine's.

Asked by `upstream.destination`, which is the check between resolving and dialling. Classes come from
`seamgate.address`; what else is permitted, configuration and the deciding rule name (`AddressPermit`). Opens no
connection.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec

from seamgate.address import (
    AddressClass,
    IPAddress,
    canonical_address,
    classify,
    embedded_addresses,
    straddles_classes,
)
from seamgate.errors import ConfigError

# Too dangerous to be let in by a network that happens to cover them: named by class or as exact address only.
NAMED_ONLY = frozenset({AddressClass.METADATA, AddressClass.UNSPECIFIED, AddressClass.MULTICAST})
_NONLOCAL_BIND = Path("/proc/sys/net/ipv4/ip_nonlocal_bind")


class AddressPermit(msgspec.Struct, frozen=True, cache_hash=True):
    """Which addresses besides the public ones may be dialled. Made by `compile_permit`.

    Attributes:
        classes: permitted as a whole, except in forms that embed another address.
        networks: permitted, except the classes in `NAMED_ONLY`.
        exact: canonical texts of single addresses, permitted whatever they are.
    """

    classes: frozenset[AddressClass] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    exact: frozenset[str] = frozenset()

    def __or__(self, other: AddressPermit) -> AddressPermit:
        """Return what either permits: the configuration's and the rule's. Remembered, since requests do this."""
        return _union(self, other)

    def __bool__(self) -> bool:
        return bool(self.classes or self.networks or self.exact)

    def permits(self, text: str) -> bool:
        """Return whether this canonical address may be dialled though it is not public."""
        if text in self.exact:
            return True
        address, *embedded = embedded_addresses(ipaddress.ip_address(text))
        if embedded:
            # A form that embeds another address (mapped, NAT64, 6to4 ...) is let in by a network of such forms, as
            # DNS64 needs it, and then leads where the inner address leads, which must be permitted by itself.
            return self._in_networks(address) and all(self._permits_plain(inner) for inner in embedded)
        return self._permits_plain(address)

    def _permits_plain(self, address: IPAddress) -> bool:
        text = str(address)
        kind = classify(text)
        if kind is AddressClass.PUBLIC or kind in self.classes or text in self.exact:
            return True
        return kind not in NAMED_ONLY and self._in_networks(address)

    def _in_networks(self, address: IPAddress) -> bool:
        return any(network.version == address.version and address in network for network in self.networks)


@lru_cache(maxsize=4096)
def _union(one: AddressPermit, other: AddressPermit) -> AddressPermit:
    networks = tuple(dict.fromkeys((*one.networks, *other.networks)))
    return AddressPermit(one.classes | other.classes, networks, one.exact | other.exact)


PUBLIC_ONLY = AddressPermit()
"""Permits nothing beyond public addresses: the default."""


@lru_cache(maxsize=4096)
def compile_permit(entries: tuple[str, ...]) -> AddressPermit:
    """Compile what configuration or a rule names: classes ("private"), networks ("10.0.0.0/8"), addresses.

    Raises:
        ConfigError: an entry is none of them, or a network that spans more than one class, such as 0.0.0.0/0.
    """
    classes, networks, exact = set(), [], set()
    for entry in entries:
        if entry in _CLASS_NAMES:
            classes.add(AddressClass(entry))
            continue
        network = _parse_network(entry)
        if network.num_addresses == 1:
            exact.add(canonical_address(str(network.network_address)) or "")
        elif straddles_classes(network):
            raise ConfigError(
                f"{entry!r} covers addresses of more than one class; name the classes ({', '.join(_CLASS_NAMES)}) "
                "or a network inside one of them"
            )
        else:
            networks.append(network)
    return AddressPermit(frozenset(classes), tuple(networks), frozenset(exact))


_CLASS_NAMES = tuple(kind.value for kind in AddressClass if kind is not AddressClass.PUBLIC)


def _parse_network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    head, _, _ = entry.partition("/")
    if canonical_address(head) is None:
        raise ConfigError(f"{entry!r} is no address, network or class of addresses ({', '.join(_CLASS_NAMES)})")
    try:
        return ipaddress.ip_network(entry)
    except ValueError as exc:
        raise ConfigError(f"{entry!r} is no network: {exc}") from None


@lru_cache(maxsize=65536)
def is_public(text: str) -> bool:
    """Return whether this is the canonical text of a public address. Remembered, as each request asks."""
    return canonical_address(text) == text and classify(text) is AddressClass.PUBLIC


@lru_cache(maxsize=65536)
def is_permitted(text: str, permit: AddressPermit) -> bool:
    """Return whether this is the canonical text of an address that a permit names. Remembered, as each request asks."""
    return canonical_address(text) == text and permit.permits(text)


def describe(text: str) -> str:
    """Say what an address is that may not be dialled, and what would permit it."""
    if canonical_address(text) != text:
        return f"{text[:60]!r}, which is no address in canonical form"
    _, *embedded = embedded_addresses(ipaddress.ip_address(text))
    form = f", which embeds {', '.join(str(each) for each in embedded)}" if embedded else ""
    return (
        f"{text}{form} ({classify(text).value}); nothing is sent there unless the rule or the configuration names "
        "the address, its network or its class"
    )


def is_local(text: str, *, nonlocal_bind: Callable[[], bool] | None = None) -> bool:
    """Return whether this canonical address is one of this machine's, as the kernel sees it now.

    Loopback is. In doubt (an error that tells nothing) the answer is yes, because this is asked to refuse.
    """
    address = ipaddress.ip_address(text)
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            if (nonlocal_bind or _binds_anywhere)():
                # Binding tells nothing then. To itself, a machine sends from the very address that it sends to.
                probe.connect((text, 9))
                return str(probe.getsockname()[0]) == text
            probe.bind((text, 0))
    except OSError as exc:
        return exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.EHOSTUNREACH)
    return True


def _binds_anywhere() -> bool:
    try:
        return _NONLOCAL_BIND.read_text(encoding="ascii").strip() != "0"
    except OSError:
        return False
