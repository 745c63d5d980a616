"""Hosts and ports as sections of seamgate.yaml name them: exact names or addresses, or "*.domain". Values only."""

from __future__ import annotations

from collections.abc import Sequence

from seamgate.address import canonical_address, canonical_name
from seamgate.flow import Target


class OriginPatterns:
    """Hosts and ports in canonical form."""

    def __init__(self, hosts: Sequence[str], ports: Sequence[int] = ()) -> None:
        """Compile them.

        Args:
            hosts: exact names or addresses, or `*.domain` for one label or more below it (what a
                policy writes as `**.domain`).
            ports: which ports; empty: all.

        Raises:
            TargetError: a host is none.
        """
        self._exact: set[str] = set()
        self._below: list[str] = []
        self._ports = frozenset(ports)
        for host in hosts:
            if host.startswith("*."):
                self._below.append(f".{canonical_name(host[2:])}")
            else:
                self._exact.add(canonical_address(host.strip("[]")) or canonical_name(host))

    def fits(self, target: Target) -> bool:
        """Whether a target is one of them."""
        if self._ports and target.port not in self._ports:
            return False
        return target.host in self._exact or (not target.is_address and target.host.endswith(tuple(self._below)))
