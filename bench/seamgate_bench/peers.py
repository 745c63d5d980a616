"""The peers of a run: what they are, whether they are installed, and how each is started.

Every peer is configured as its makers would for speed (no access log where it can be off), with one worker, and sets
the same credential header by its own means. Each peer's adapter is a module of `adapters`; `lineup.py` has their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from seamgate_bench.ground import Ground
from seamgate_bench.load import Way
from seamgate_bench.process import Program


@dataclass(frozen=True, slots=True)
class Running:
    """A started peer: the program whose CPU counts (None: there is no proxy), and the way through it."""

    program: Program | None
    way: Way
    audit: Path | None = None
    """Where it writes a record per request, if it does: the run checks that they are all there."""


class Peer(Protocol):
    """One column of the comparison."""

    @property
    def name(self) -> str:
        """As `--only` and the table have it."""
        ...

    @property
    def kind(self) -> str:
        """mitm, t2t, p2t or none: what it does with TLS."""
        ...

    def missing(self) -> str | None:
        """Say why this peer can't be measured here, or None if it can."""
        ...

    def version(self) -> str:
        """Return its version, as it prints it."""
        ...

    def launch(self, ground: Ground, room: Path) -> Running:
        """Start it, keeping all files in `room`; returned when it accepts connections.

        Raises:
            PeerFailed: it did not start.
        """
        ...


@contextmanager
def started(peer: Peer, ground: Ground, suffix: str = "") -> Iterator[Running]:
    """Run a peer for the length of a `with` block."""
    running = peer.launch(ground, ground.room(peer.name.replace(" ", "-") + suffix))
    try:
        yield running
    finally:
        if running.program is not None:
            running.program.stop()
