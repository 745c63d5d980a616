"""The `audit:` part of seamgate.yaml. Values only; the journal reads them. No I/O."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

QueryMode: TypeAlias = Literal["names", "full", "none"]
"""How much of a query is recorded: the names of its parameters, all of it, or nothing."""

FsyncMode: TypeAlias = Literal["never", "interval", "always"]

# Below this a rotation would happen every few records; a record is about 600 bytes, with a long path some KiB.
_SMALLEST_SEGMENT_BYTES = 4096


class AuditConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the journal is and how it is kept.

    Attributes:
        path: the active file; its segments, head and lock lie beside it. Without it:
            `$SEAMGATE_AUDIT`, else `$XDG_STATE_HOME/seamgate/audit.jsonl` (`~/.local/state/seamgate/audit.jsonl`).
        query: what is recorded of a query; values are never recorded unless this says `full`.
        max_size_bytes: size at which the active file becomes a segment. Never cuts a record.
        rotate_after_s: age in seconds at which it does; without it, age alone never makes one.
        keep: how many finished segments are kept; older ones are deleted, and a record says so.
        keep_min_age_s: a segment that ended less than so many seconds ago is kept whatever `keep` says, so that nobody
            can push fresh records out by making many; a full disk then refuses requests. 0: only `keep` counts.
        denials_per_minute: how many denials of one guest are recorded in full in a minute; each one more has a short
            record, without path, query, message and steps.
        fsync: when data is forced to the disk. A crash of the gateway loses nothing in any mode; a crash of the
            machine can lose what was not forced. `always` blocks the gateway for each write-ahead record.
        fsync_interval_s: for `interval`: the most that a crash of the machine may lose, in seconds.
        max_pending: how many records are kept in memory while the disk refuses them.
    """

    path: str = ""
    query: QueryMode = "names"
    max_size_bytes: Annotated[int, msgspec.Meta(ge=_SMALLEST_SEGMENT_BYTES)] = 64 * 1024 * 1024
    rotate_after_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    keep: Annotated[int, msgspec.Meta(ge=1)] = 16
    keep_min_age_s: Annotated[float, msgspec.Meta(ge=0)] = 86_400.0
    denials_per_minute: Annotated[int, msgspec.Meta(ge=0)] = 600
    fsync: FsyncMode = "interval"
    fsync_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    max_pending: Annotated[int, msgspec.Meta(ge=1)] = 10_000

    @property
    def file(self) -> Path:
        """The active file's path, the default one if none is configured."""
        return Path(self.path).expanduser() if self.path else default_path()


def default_path() -> Path:
    """Return where the journal is if nothing says otherwise: `$SEAMGATE_AUDIT`, else the user's state directory.

    Source: XDG Base Directory Specification 0.8 ($XDG_STATE_HOME).
    """
    named = os.environ.get("SEAMGATE_AUDIT")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "seamgate" / "audit.jsonl"
