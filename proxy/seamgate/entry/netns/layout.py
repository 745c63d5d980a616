"""What the inside of a guest's network namespace looks like: addresses and ports, the same in every one of them.

Read by the launcher, which sets them up, and by the gateway, which serves them. A namespace is fresh, so every port is
free; those above the range of ephemeral ones are not what a program in it would listen on.
"""

from __future__ import annotations

import ipaddress
from typing import Final

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_6: Final = "::1"
GUEST_ADDRESS: Final = "198.18.0.1"
"""What connections to elsewhere come from; over IPv6 they come from LOOPBACK_6."""
NAMES: Final = ipaddress.IPv4Network("198.18.0.0/15")
"""Addresses that stand for names. Source: RFC 2544, for benchmarks, routed nowhere; `classify` calls them reserved."""
FIRST_NAME: Final = 256
"""The first address of NAMES that stands for a name; those before are the namespace's own."""

DNS_PORT: Final = 53
PROXY_PORT: Final = 61801
BASE_URL_PORT: Final = 61802
TRANSPARENT_PORT: Final = 61803
"""Where every TCP connection to elsewhere ends up, whatever its port was."""

LOG_GROUP: Final = 7
"""NFLOG group of what the rules refuse; groups are numbered per network namespace."""
LOGGED_BYTES: Final = 128
"""How much of a refused packet is looked at: the headers."""

SOCKETS: Final = ("proxy", "base_url", "transparent", "transparent6", "dns", "dns_tcp", "refused")
"""The sockets that the launcher hands over, in this order; `transparent6` is left out where there is no IPv6."""
