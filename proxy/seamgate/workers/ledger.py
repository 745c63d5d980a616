"""The supervisor's side of the audit log: takes the records of all workers, and knows what each has begun.

Records that begin in one turn of the supervisor's loop are written together, whoever sent them; then each worker hears
that they are. What a worker had begun when it died ends here, as `worker_lost`: so each request that was begun has its
one terminal record, whatever becomes of the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from seamgate.audit.line import opened
from seamgate.audit.record import AuditGap, AuditKind, AuditRecord, GapCause, Outcome
from seamgate.audit.sealed import Sealed
from seamgate.errors import AuditError, Reason
from seamgate.workers.messages import Acknowledge, Records


class Chain(Protocol):
    """What is asked of the journal."""

    def begin_all(self, records: list[Sealed]) -> None:
        """Write ahead. Raises AuditError."""

    def append(self, record: AuditRecord) -> None:
        """Keep a terminal record until it is written."""

    def append_all(self, records: list[Sealed]) -> None:
        """Keep terminal records of what was allowed."""


Answer = Callable[[Acknowledge], None]
_LOST = "The worker that carried it is gone; whether it reached the upstream is not known."


class Account:
    """What one worker has under way: begun, written, and not ended. By request id."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.begun: dict[str, Sealed] = {}


class Ledger:
    """See the module. State: `_waiting` is what is written at the end of this turn."""

    def __init__(self, journal: Chain, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._clock = clock
        self._waiting: list[tuple[Account, Records]] = []

    def take(self, account: Account, records: Records) -> None:
        """Take a worker's message."""
        for waiting, _ in self._waiting:
            if waiting is account:
                self.commit()  # what ends now may be what begins there
                break
        if records.lost:
            self._journal.append(self._gap(records.lost))
        begun = account.begun
        for record in records.denied:
            begun.pop(record.id, None)
            self._journal.append(record)
        if records.ended:
            for sealed in records.ended:
                begun.pop(sealed.id, None)
            self._journal.append_all(records.ended)
        if records.begun:
            self._waiting.append((account, records))
            if len(self._waiting) == 1:
                asyncio.get_running_loop().call_soon(self.commit)

    def commit(self) -> None:
        """Write what waits, and say so to those who sent it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        problem = ""
        try:
            self._journal.begin_all([sealed for _, records in waiting for sealed in records.begun])
        except AuditError as error:
            problem = error.message
        for account, records in waiting:
            if not problem:
                for sealed in records.begun:
                    account.begun[sealed.id] = sealed
            account.answer(Acknowledge(records.number, problem))

    def lose(self, account: Account) -> int:
        """A worker is gone: end what it had begun, and return how much that was."""
        self.commit()
        now = self._clock()
        for sealed in account.begun.values():
            self._journal.append(_ended(opened(sealed), now))
        count = len(account.begun)
        account.begun = {}
        return count

    def _gap(self, lost: int) -> AuditRecord:
        detail = f"{lost} records of a worker did not fit into memory while the supervisor did not follow"
        return AuditRecord(self._clock(), AuditKind.GAP, gap=AuditGap(GapCause.WRITE_FAILED, detail=detail, lost=lost))


def _ended(begun: AuditRecord, now: float) -> AuditRecord:
    return msgspec.structs.replace(
        begun,
        time=now,
        kind=AuditKind.REQUEST,
        reason=Reason.WORKER_LOST,
        outcome=Outcome.ABORTED,
        message=_LOST,
    )
