"""No proxy at all: what the load generator and the upstream cost alone, and the base of added latency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seamgate_bench.ground import Ground
from seamgate_bench.load import Way
from seamgate_bench.peers import Running


@dataclass(frozen=True)
class Direct:
    """TLS straight to the upstream; the client holds the credential."""

    name: str = "direct"
    kind: str = "none"

    def missing(self) -> str | None:
        """Nothing can be missing."""
        return None

    def version(self) -> str:
        """There is no proxy."""
        return ""

    def launch(self, ground: Ground, room: Path) -> Running:
        """Point at the upstream."""
        return Running(None, Way(mode="t2t", port=ground.upstream_port, ca=ground.ca_cert, holds_credential=True))
