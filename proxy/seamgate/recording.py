"""What a gateway asks of its audit log: the journal's part of it, or of what stands for it in a worker. A protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from seamgate.audit.journal_state import JournalStats
from seamgate.seam import Recorder


class AuditLog(Recorder, Protocol):
    """What a gateway uses of its journal, or of what stands for it in a worker."""

    @property
    def path(self) -> Path:
        """The active file."""
        ...

    @property
    def stats(self) -> JournalStats:
        """What happened so far."""
        ...

    def flush(self) -> bool:
        """Write all that waits."""
        ...

    def close(self) -> None:
        """Write what waits, and let go of the file."""
