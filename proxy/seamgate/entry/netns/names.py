"""Which address of a guest's namespace stands for which name. One table a guest.

The name service gives each name that policy lets through an address that leads nowhere; a connection to that address
then says which name is meant, and the gateway holds the server name and the Host header to it. An address is never
given to a second name: whoever remembers one must not reach somebody else. No I/O.
"""

from __future__ import annotations

import ipaddress

from seamgate.entry.netns.layout import FIRST_NAME, NAMES

MOST_NAMES = NAMES.num_addresses - FIRST_NAME - 1


class NameTable:
    """Names and their addresses, for as long as the guest lives."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._by_name: dict[str, str] = {}
        self._by_address: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def address_of(self, name: str) -> str | None:
        """Return the address that stands for a canonical name; None if there are no more."""
        address = self._by_name.get(name)
        if address is None and len(self._by_name) < self._most:
            address = str(NAMES[FIRST_NAME + len(self._by_name)])
            self._by_name[name], self._by_address[address] = address, name
        return address

    def name_of(self, address: str) -> str | None:
        """Return the name that an address stands for, or None."""
        return self._by_address.get(address)


def is_stand_in(address: str) -> bool:
    """Return whether an address is one of those that can only stand for a name."""
    return ":" not in address and ipaddress.IPv4Address(address) in NAMES
