"""The check between resolving and dialling: may anything be sent to these addresses, and is one of them ourselves?

Called for each resolution, before a connection is opened or taken from the pool; the addresses that pass are the ones
that are dialled. *All* addresses of a name must pass: a name that leads to a public and a private address is an
attack, or a mistake that must not depend on which one answers first. What an address is, `upstream.addresses` says.
Every request passes here: compiled. Opens no connection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from seamgate.address import address_text, canonical_address, embedded_addresses
from seamgate.errors import AddressForbidden, ConfigError, Reason, ResolveFailed
from seamgate.upstream.addresses import PUBLIC_ONLY, AddressPermit, describe, is_local, is_permitted, is_public

# A Final of the module is read at once; an imported name is looked up each time.
_is_public: Final = is_public
_is_permitted: Final = is_permitted
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


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
        if not _is_public(text) and not _is_permitted(text, permitted):
            raise AddressForbidden(f"{name} leads to {describe(text)}" if name else f"the address is {describe(text)}")
    return addresses


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
