"""The check between resolving and dialling: may anything be sent to these addresses, and is one of them ourselves?

Called for each resolution, before a connection is opened or taken from the pool; the addresses that pass are the ones
that are dialled. *All* addresses of a name must pass: a name that leads to a public and a private address is an
attack, or a mistake that must not depend on which one answers first. Classes come from `seamgate.address`; what else
is permitted, configuration and the deciding rule name (`AddressPermit`). Opens no connection.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from seamgate.address import (
    AddressClass,
    IPAddress,
    address_text,
    canonical_address,
    classify,
    embedded_addresses,
    straddles_classes,
)
from seamgate.errors import AddressForbidden, ConfigError, Reason, ResolveFailed

# Too dangerous to be let in by a network that happens to cover them: named by class or as exact address only.
NAMED_ONLY = frozenset({AddressClass.METADATA, AddressClass.UNSPECIFIED, AddressClass.MULTICAST})
_NONLOCAL_BIND = Path("/proc/sys/net/ipv4/ip_nonlocal_bind")
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


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


def check_addresses(
    addresses: tuple[str, ...], permitted: AddressPermit = PUBLIC_ONLY, *, name: str = ""
) -> tuple[str, ...]:
    """Return the addresses as they are, if every one of them may be dialled.

    Args:
        addresses: canonical texts, as a `Resolution` holds them.
        permitted: what configuration and the deciding rule name.
        name: what was resolved, for the message.

    Raises:
        AddressForbidden: one of them may not; the message names its class.
        ResolveFailed: there is none.
    """
    if not addresses:
        raise ResolveFailed(f"{name or 'the name'} has no address")
    for text in addresses:
        if not _is_public(text) and not _permitted(text, permitted):
            raise AddressForbidden(
                f"{name} leads to {_describe(text)}" if name else f"the address is {_describe(text)}"
            )
    return addresses


@lru_cache(maxsize=65536)
def _is_public(text: str) -> bool:
    return canonical_address(text) == text and classify(text) is AddressClass.PUBLIC


@lru_cache(maxsize=65536)
def _permitted(text: str, permitted: AddressPermit) -> bool:
    return canonical_address(text) == text and permitted.permits(text)


def _describe(text: str) -> str:
    if canonical_address(text) != text:
        return f"{text[:60]!r}, which is no address in canonical form"
    _, *embedded = embedded_addresses(ipaddress.ip_address(text))
    form = f", which embeds {', '.join(str(each) for each in embedded)}" if embedded else ""
    return (
        f"{text}{form} ({classify(text).value}); nothing is sent there unless the rule or the configuration names "
        "the address, its network or its class"
    )


class OwnAddresses:
    """Knows the gateway's own listeners, so that no guest reaches the gateway, its admin port or a loop through it.

    A listener on 0.0.0.0 or [::] is reachable by every address of this machine. These are not enumerated, since they
    change: whether an address is this machine's is asked of the kernel at the time, by binding a socket to it.

    Attributes:
        places: what was added.
    """

    def __init__(self, listeners: Iterable[tuple[str, int]], *, also: Iterable[tuple[str, int]] = ()) -> None:
        """Take (address, port) of every listener as bound, and of places from which they are forwarded (`also`)."""
        self.places: list[tuple[str, int]] = []
        self._exact: set[tuple[str, int]] = set()
        self._wildcard_ports: set[int] = set()
        self._ports: set[int] = set()
        for address, port in (*listeners, *also):
            self.add(address, port)

    def add(self, address: str, port: int) -> None:
        """Add a listener: its address as bound, and its port.

        Raises:
            ConfigError: it is not an address.
        """
        text = canonical_address(address.partition("%")[0])
        if text is None:
            raise ConfigError(f"{address!r} is not an address to listen on")
        self.places.append((address, port))
        self._ports.add(port)
        if text in _ANY:
            self._wildcard_ports.add(port)
        else:
            self._exact.add((text, port))

    def owns(self, address: str, port: int) -> bool:
        """Return whether a connection to this address and port would reach the gateway itself."""
        if port not in self._ports:
            return False
        spellings = {address_text(each) for each in embedded_addresses(ipaddress.ip_address(address))} | {address}
        if any((each, port) in self._exact for each in spellings):
            return True
        # To connect to 0.0.0.0 or [::] is to connect to this machine's loopback.
        if spellings & _ANY:
            return True
        return port in self._wildcard_ports and any(is_local(each) for each in spellings)

    def check(self, addresses: Iterable[str], port: int, *, name: str = "") -> None:
        """Refuse if one of the addresses, at this port, is the gateway itself.

        Raises:
            AddressForbidden: with reason OWN_ADDRESS.
        """
        for address in addresses if port in self._ports else ():
            if canonical_address(address) != address or self.owns(address, port):
                what = f"{name} port {port}" if name else f"{address} port {port}"
                raise AddressForbidden(f"{what} is the gateway itself", reason=Reason.OWN_ADDRESS)


def check_destination(
    addresses: tuple[str, ...], port: int, permitted: AddressPermit, own: OwnAddresses, *, name: str = ""
) -> tuple[str, ...]:
    """Return the addresses if all of them may be dialled at this port: the one check to call before dialling.

    Raises:
        AddressForbidden: one may not (ADDRESS_FORBIDDEN), or is the gateway itself (OWN_ADDRESS, looked at first).
        ResolveFailed: there is none.
    """
    own.check(addresses, port, name=name)
    return check_addresses(addresses, permitted, name=name)


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
