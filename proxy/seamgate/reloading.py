"""What a reload takes over, what waits for a restart, and the count of both. Values and comparisons; no I/O.

Used by `Gateway.reload_everywhere`, which does the reload, and by what reports it: the log, `seamgate reload`,
`/status` and the metrics.
"""

from __future__ import annotations

import msgspec

from seamgate.config import Config
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.entry.roster import NewGuests
from seamgate.pipeline import Pipeline
from seamgate.seam import IsBound
from seamgate.signing import NewAuthorities
from seamgate.upstream.addresses import AddressPermit
from seamgate.upstream.forwarder import Forwarder
from seamgate.upstream.parent import Parent
from seamgate.upstream.tls import UpstreamTls

_POLICY_SECTIONS = {"guests", "policies", "credentials", "plugins", "permit_addresses"}
_UPSTREAM_SECTIONS = {"upstream_tls", "upstream_proxy", "http2", "dns"}
TAKEN_OVER = frozenset({"source", "base", "reload", "policy_texts"} | _POLICY_SECTIONS | _UPSTREAM_SECTIONS)
"""The sections of seamgate.yaml that a reload takes over. A change of any other waits for the next start."""


class Prepared(msgspec.Struct, frozen=True):
    """A new configuration that loads: what `Gateway.take_over` puts in force without any further failure."""

    config: Config
    pipeline: Pipeline
    placeholders: PlaceholderIndex
    permit: AddressPermit
    tls: UpstreamTls
    is_bound: IsBound
    forwarder: Forwarder
    parent: Parent | None
    guests: NewGuests
    authorities: NewAuthorities | None


class ReloadReport(msgspec.Struct, frozen=True):
    """What a reload did.

    Attributes:
        generation: the number of what is in force now.
        needs_restart: sections of the file that differ from what the gateway was started with, and can't follow.
        revoked_requests: exchanges under way that the new policy ended.
        revoked_tunnels: open tunnels that it ended.
    """

    generation: int
    needs_restart: tuple[str, ...] = ()
    revoked_requests: int = 0
    revoked_tunnels: int = 0


class ReloadCounts(msgspec.Struct):
    """What reloads came to since the start.

    Attributes:
        done, refused: how many were taken over, and how many were refused and left everything as it was.
        last_at: Unix time of the last one that was done, or of the start.
        last_problem: why the last one was refused, "" if it was not.
        needs_restart: as in the last report.
        revoked_requests, revoked_tunnels: in total.
    """

    last_at: float = 0.0
    done: int = 0
    refused: int = 0
    last_problem: str = ""
    needs_restart: tuple[str, ...] = ()
    revoked_requests: int = 0
    revoked_tunnels: int = 0

    def count(self, report: ReloadReport, now: float) -> None:
        """Count a reload that was done."""
        self.done += 1
        self.last_at, self.last_problem = now, ""
        self.needs_restart = report.needs_restart
        self.revoked_requests += report.revoked_requests
        self.revoked_tunnels += report.revoked_tunnels

    def refuse(self, problem: str) -> None:
        """Count a reload that was refused."""
        self.refused += 1
        self.last_problem = problem


def waiting_sections(started: Config, new: Config) -> tuple[str, ...]:
    """Return the sections that differ from what the gateway was started with and wait for a restart.

    Compared with the start, not with the last reload: what waits goes on waiting.
    """
    names = (name for name in Config.__struct_fields__ if name not in TAKEN_OVER)
    return tuple([name for name in names if getattr(started, name) != getattr(new, name)])
