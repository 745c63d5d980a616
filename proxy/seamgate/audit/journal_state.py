"""What a journal knows of itself besides its files: counters, and the outage that it may be in. Values only."""

from __future__ import annotations

import msgspec


class JournalStats(msgspec.Struct, frozen=True):
    """What the journal did since it was opened.

    Attributes:
        seq: number of the last line that is written.
        hash: its hash: what to note down elsewhere as an anchor.
        records: lines written.
        bytes: their size.
        batches: write calls that they took.
        pending: records that wait in memory.
        lost: records that did not fit into memory.
        failures: writes that failed.
        rotations: segments finished.
        error: why the last write failed, "" if it did not.
    """

    seq: int
    hash: str
    records: int
    bytes: int
    batches: int
    pending: int
    lost: int
    failures: int
    rotations: int
    error: str


class Outage(msgspec.Struct):
    """A time in which writing fails. `reported` once its gap record waits behind everything else."""

    since: float
    error: str
    lost: int = 0
    reported: bool = False


class Counters(msgspec.Struct):
    """What `JournalStats` is made of."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    lost: int = 0
    failures: int = 0
    rotations: int = 0
