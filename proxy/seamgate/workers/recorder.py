"""A worker's journal: it has none, so it hands its records to the supervisor, who chains and writes those of all.

What `seamgate.audit.journal` promises holds here too. A record that is written ahead is acknowledged before its request
leaves; while the supervisor can't write, or is gone, or does not follow, `healthy` is False and nothing begins.

A message costs both processes as much as 20 records, so few are sent: what begins comes as the seam has gathered it,
and what has ended goes ahead of it in the same message. Where nothing begins it waits `COMPANY_S` for more.

Runs on the worker's loop. Opens nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import Final

from seamgate.audit.journal_state import JournalStats
from seamgate.audit.line import GENESIS
from seamgate.audit.record import AuditKind, AuditRecord, Decision
from seamgate.audit.sealed import Sealed
from seamgate.errors import AuditError
from seamgate.seam import Ahead
from seamgate.workers.channel import Channel
from seamgate.workers.messages import Records
from seamgate.workers.sealing import Sealer

COMPANY_S: Final = 0.005
"""How long what has ended may wait for company: as long as a worker that is killed may forget it."""
MOST_TOGETHER: Final = 256
"""So many go at once."""
PATIENCE_S: Final = 10.0
"""How long a record that is written ahead may go without an answer."""
MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""How much may wait for a supervisor that does not follow; what comes beyond is counted as lost."""


class Recorder:
    """What `seamgate.seam.Recorder` asks for, over a channel.

    State: `_denied` and `_ended` leave with the next message; `_unanswered` are those that wait for the supervisor, by
    message.
    """

    def __init__(self, channel: Channel, path: Path, problem: str) -> None:
        """Take the channel, the journal's path for people, and why it can't be written, "" if it can."""
        self._channel = channel
        self._path = path
        self._problem = problem
        self._sealer = Sealer()
        self._denied: list[AuditRecord] = []
        self._ended: list[Sealed] = []
        self._lost = 0
        self._lost_total = 0
        self._number = 0
        self._unanswered: dict[int, tuple[float, list[Ahead]]] = {}
        self._latest: dict[str, int] = {}
        self._flushing = False

    def __repr__(self) -> str:
        return f"<Recorder {len(self._ended) + len(self._denied)} pending, {len(self._unanswered)} messages unanswered>"

    # -- as a journal ------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The file that the supervisor writes."""
        return self._path

    @property
    def healthy(self) -> bool:
        """Whether a request may begin."""
        return not (self._problem or self._channel.closed or self._channel.clogged)

    @property
    def stats(self) -> JournalStats:
        """What is known here of the journal: what waits, and what is wrong."""
        problem = "the supervisor is gone" if self._channel.closed else self._problem
        return JournalStats(0, GENESIS, 0, 0, 0, len(self._ended) + len(self._denied), self._lost_total, 0, 0, problem)

    def begin_all(self, records: list[AuditRecord]) -> None:
        """Refuse: nothing here can write at once. Exchanges wait by `begin_later`.

        Raises:
            AuditError: always.
        """
        raise AuditError("a worker's records are written by the supervisor, so none can be written at once")

    def append(self, record: AuditRecord) -> None:
        """Take a terminal record; it leaves with what begins next, or after `COMPANY_S`."""
        if self._channel.closed or self._channel.waiting_bytes > MOST_WAITING_BYTES:
            self._lost += 1
            self._lost_total += 1
            return
        if record.verdict is Decision.ALLOW and record.kind is AuditKind.REQUEST:
            self._ended.append(self._sealer.seal(record))
        else:
            self._denied.append(record)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_later(COMPANY_S, self._flush_late)
        elif len(self._ended) + len(self._denied) >= MOST_TOGETHER:
            self.flush()

    def flush(self) -> bool:
        """Send what waits. Return whether it can be written, as far as is known."""
        if self._ended or self._denied or self._lost:
            self._send([])
        return self.healthy

    def _flush_late(self) -> None:
        self._flushing = False
        self.flush()

    def close(self) -> None:
        """Send what waits."""
        self.flush()

    def _send(self, begun: list[Sealed]) -> None:
        denied, self._denied = self._denied, []
        ended, self._ended = self._ended, []
        lost, self._lost = self._lost, 0
        self._channel.send(Records(self._number, denied, ended, begun, lost))

    # -- written ahead -----------------------------------------------------------------------------------------------

    def begin_later(self, ahead: list[Ahead]) -> None:
        """Have these written, and let each go on once that is acknowledged, or hear why it is not."""
        if not self.healthy:
            for _, _, go_on in ahead:
                go_on(self._refusal(self._problem))
            return
        self._number += 1
        self._unanswered[self._number] = (monotonic() + PATIENCE_S, ahead)
        for record, _, _ in ahead:
            self._latest[record.id] = self._number
        self._send([self._sealer.seal(record) for record, _, _ in ahead])

    def acknowledged(self, number: int, problem: str) -> None:
        """The supervisor answers the message of this number."""
        _, ahead = self._unanswered.pop(number, (0.0, []))
        error = self._refusal(problem) if problem else None
        for record, _, go_on in ahead:
            # One that was judged again meanwhile has begun anew: what it waits for is the later message.
            if self._latest.get(record.id) == number:
                del self._latest[record.id]
                go_on(error)

    def told(self, problem: str) -> None:
        """The supervisor says whether the journal can be written."""
        self._problem = problem

    def check(self, now: float) -> None:
        """Give up what was not answered in time. Called every second."""
        late = [number for number, (until, _) in self._unanswered.items() if now > until]
        for number in late:
            self.acknowledged(number, f"the supervisor did not confirm within {PATIENCE_S:g} s")

    def supervisor_gone(self) -> None:
        """Nothing is written any more: whatever waits is refused."""
        for number in list(self._unanswered):
            self.acknowledged(number, "the supervisor is gone")

    @staticmethod
    def _refusal(problem: str) -> AuditError:
        return AuditError(f"the audit log can't be written: {problem or 'the supervisor does not follow'}")
