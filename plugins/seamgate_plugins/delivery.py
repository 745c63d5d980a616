"""Delivers a journal to an OTLP collector: in batches, in order, at least once, from a position that is kept on disk.

Runs in a thread of its own, started by the plugin `otlp` with the first record. State: `_position` is the number and
hash of the last record that arrived, kept in a file beside the journal; everything behind it is sent, and sent again
until it arrives. What a collector refuses for good (400, a partial success) is counted, and not sent again, as OTLP
demands; any other failure, a wrong token or path included, is waited out, since the journal is at hand.

Source: OTLP 1.x, "OTLP/HTTP" (requests, partial success, throttling).
"""

from __future__ import annotations

import atexit
import gzip
import http.client
import random
import ssl
import threading
from collections import deque
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog

from seamgate import __version__
from seamgate.audit.formats.otlp import as_otlp
from seamgate.audit.line import read_link
from seamgate.audit.link import Link
from seamgate.audit.reading import Follower, read_lines_after
from seamgate.audit.view import read_facts
from seamgate.errors import AuditError

log = structlog.get_logger("seamgate.otlp")

BATCH_RECORDS: Final = 512
BATCH_BYTES: Final = 1024 * 1024
"""Well below the 4 MiB that OTLP recommends as a limit, before compression."""
_LONGEST_WAIT_S: Final = 60.0
_MOST_THROTTLED_S: Final = 300.0
_DRAIN_S: Final = 5.0
_COMPRESS_FROM_BYTES: Final = 1024
_MOST_ANSWER_BYTES: Final = 64 * 1024


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where to, and how patiently. See the plugin's options."""

    endpoint: str
    interval_s: float = 1.0
    timeout_s: float = 10.0
    token_file: str = ""
    ca: str = ""


class Counts(msgspec.Struct):
    """What was delivered so far. Written by the delivery's thread only."""

    delivered: int = 0
    failures: int = 0
    rejected: int = 0
    lost: int = 0
    position: int = 0


class _Position(msgspec.Struct, frozen=True):
    """The last record that arrived: its number, and its line's hash, which tells this journal from another."""

    seq: int = 0
    hash: str = ""


class _Failed(Exception):
    """The batch did not arrive. `wait_s`: what the collector asked for; None: as we like. `smaller`: try half of it."""

    def __init__(self, why: str, *, wait_s: float | None = None, smaller: bool = False) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        self.smaller = smaller


class Delivery:
    """One journal on its way to one collector."""

    def __init__(self, destination: Destination, journal: Path, position_file: Path) -> None:
        self.destination = destination
        self.journal = journal
        self.counts = Counts()
        self._position_file = position_file
        self._position = _Position()
        self._lines: _Lines | None = None
        self._size = BATCH_RECORDS
        self._sent = 0  # how many records the last request had
        self._waits = 0
        self._connection: http.client.HTTPConnection | None = None
        self._more = threading.Event()
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._draining = False
        self._predecessor: Delivery | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Delivery to {self.destination.endpoint} at {self.counts.position}>"

    @property
    def key(self) -> tuple[Destination, Path]:
        """What makes two of them the same."""
        return self.destination, self.journal

    @property
    def ended(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    # -- from the gateway's thread -----------------------------------------------------------------------------------

    def follow(self, predecessor: Delivery) -> None:
        """Begin once another delivery of the same journal has ended; it is told to."""
        predecessor.stop()
        self._predecessor = predecessor

    def wake(self) -> None:
        """There is more. Starts the thread with the first call; never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="seamgate-otlp", daemon=True)
            self._thread.start()
            atexit.register(self.drain)
        self._more.set()

    def stop(self) -> None:
        """Send nothing more; return at once. What did not arrive stays for the next one."""
        self._stop.set()
        self._hurry.set()
        self._more.set()
        atexit.unregister(self.drain)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return whether it ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def drain(self) -> None:
        """At the process's end: deliver what is left, for a few seconds at most, once each."""
        self._draining = True
        self._hurry.set()
        self._more.set()
        self.join(_DRAIN_S)
        self.stop()

    # -- in its own thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._predecessor is not None:
            self._predecessor.join(2 * self._predecessor.destination.timeout_s)
            self._predecessor = None
        self._position = self._read_position()
        self.counts.position = self._position.seq
        while not self._stop.is_set():
            try:
                again = self._deliver()
                wait_s = 0.0 if again else None
                self._waits = 0
            except _Failed as failure:
                wait_s = self._failed(failure)
            except (AuditError, OSError) as error:
                wait_s = self._failed(_Failed(f"the audit log can't be read: {error}"))
            if self._draining and wait_s != 0.0:
                break
            if wait_s is None:
                self._more.wait()
                self._more.clear()
                wait_s = self.destination.interval_s  # for company
            if wait_s and not self._draining:
                self._hurry.wait(wait_s)
        self._hang_up()
        if self._lines is not None:
            self._lines.close()

    def _failed(self, failure: _Failed) -> float:
        """Count and log a failure; return how long to wait: longer each time, and no shorter than asked for."""
        self.counts.failures += 1
        if failure.smaller:
            self._size = max(1, self._sent // 2)
            return 0.0
        backoff_s = min(_LONGEST_WAIT_S, self.destination.interval_s * float(2**self._waits)) * random.uniform(0.5, 1.0)
        self._waits = min(self._waits + 1, 16)
        wait_s = backoff_s if failure.wait_s is None else max(backoff_s, failure.wait_s)
        log.warning(
            "records wait for the collector",
            endpoint=self.destination.endpoint,
            why=str(failure),
            wait_s=round(wait_s, 1),
        )
        return wait_s

    def _deliver(self) -> bool:
        """Send the next batch; return whether there was one.

        Raises:
            _Failed: it did not arrive; the position stays.
        """
        if self._lines is None:
            self._lines = _Lines(self.journal, self._checked_position())
        batch = self._lines.peek(self._size, BATCH_BYTES)
        if not batch:
            return False
        lost = self._lines.skipped
        if lost:
            self._lines.skipped = 0
            self.counts.lost += lost
            log.error("records were deleted before they arrived", count=lost)
        self._sent = len(batch)
        facts = [read_facts(line) for _, line in batch]
        rejected = self._send([each for each in facts if "time" in each])
        last = batch[-1][0]
        self._lines.taken(len(batch))
        self._write_position(_Position(last.seq, last.hash))
        self.counts.delivered += len(batch) - rejected
        self.counts.rejected += rejected
        self._size = BATCH_RECORDS
        return True

    def _send(self, facts: list[Any]) -> int:
        """Post a request; return how many of its records the collector rejected for good.

        Raises:
            _Failed: it did not arrive.
        """
        body = msgspec.json.encode(as_otlp(facts))
        headers = {"content-type": "application/json", "user-agent": f"seamgate/{__version__}"}
        if len(body) >= _COMPRESS_FROM_BYTES:
            body = gzip.compress(body, compresslevel=1, mtime=0)
            headers["content-encoding"] = "gzip"
        status, answer, retry_after = self._post(body, headers)
        if status == 200:
            return self._partly_rejected(answer, len(facts))
        if status == 400 or (status == 413 and len(facts) <= 1):
            log.error("the collector refuses records for good", status=status, count=len(facts))
            return len(facts)
        raise _Failed(f"it answered {status}", wait_s=_seconds(retry_after), smaller=status == 413)

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
        path = urlsplit(self.destination.endpoint).path or "/"
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._connection.request("POST", path, body, {**headers, **self._authorization()})
            response = self._connection.getresponse()
            answer = response.read(_MOST_ANSWER_BYTES)
            if not response.isclosed() or response.will_close:
                self._hang_up()
            return response.status, answer, response.headers.get("retry-after", "")
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            raise _Failed(f"{type(error).__name__}: {error}") from error

    def _connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self.destination.endpoint)
        host, timeout_s = url.hostname or "", self.destination.timeout_s
        if url.scheme == "http":
            return http.client.HTTPConnection(host, url.port or 80, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self.destination.ca or None)
        return http.client.HTTPSConnection(host, url.port or 443, timeout=timeout_s, context=context)

    def _authorization(self) -> dict[str, str]:
        if not self.destination.token_file:
            return {}
        return {"authorization": f"Bearer {Path(self.destination.token_file).read_text(encoding='ascii').strip()}"}

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _partly_rejected(self, answer: bytes, sent: int) -> int:
        try:
            told = msgspec.json.decode(answer) if answer.strip() else {}
            rejected = int((told.get("partialSuccess") or {}).get("rejectedLogRecords") or 0)
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError):
            return 0
        rejected = min(max(rejected, 0), sent)
        if rejected:
            log.error("the collector rejected records for good", count=rejected)
        return rejected

    # -- the position ------------------------------------------------------------------------------------------------

    def _read_position(self) -> _Position:
        try:
            return msgspec.json.decode(self._position_file.read_bytes(), type=_Position)
        except FileNotFoundError:
            return _Position()
        except (OSError, msgspec.DecodeError) as error:
            log.error("the position can't be read; everything is sent again", error=str(error))
            return _Position()

    def _write_position(self, position: _Position) -> None:
        """Keep the position; if it can't be kept, a restart repeats records rather than losing any."""
        self._position = position
        self.counts.position = position.seq
        aside = self._position_file.with_name(f"{self._position_file.name}.new")
        try:
            aside.write_bytes(msgspec.json.encode(position))
            aside.chmod(0o600)
            aside.replace(self._position_file)
        except OSError as error:
            log.error("the position can't be kept", error=str(error))

    def _checked_position(self) -> int:
        """Return the number to go on behind: 0 where the journal is not the one that the position is of.

        Raises:
            AuditError: there is no journal.
        """
        seq = self._position.seq
        if seq:
            with closing(read_lines_after(self.journal, seq - 1)) as lines:
                first = next(lines, None)
            link = read_link(first) if first is not None else None
            if link is None or (link.seq == seq and link.hash != self._position.hash):
                log.warning("this is another journal than the position's; it is sent from its beginning")
                return 0
        return seq


class _Lines:
    """The lines behind a position: first what is there, as a stream, then what comes.

    Attributes:
        skipped: how many were gone before they could be read.
    """

    def __init__(self, journal: Path, after: int) -> None:
        self.skipped = 0
        self._journal = journal
        self._seq = after
        self._backlog: Generator[bytes, None, None] | None = read_lines_after(journal, after)
        self._follower: Follower | None = None
        self._waiting: deque[tuple[Link, bytes]] = deque()

    def close(self) -> None:
        """Let go of the open files."""
        if self._backlog is not None:
            self._backlog.close()
        if self._follower is not None:
            self._follower.close()

    def peek(self, most: int, most_bytes: int) -> list[tuple[Link, bytes]]:
        """Return the next lines, the same ones until they are taken."""
        while len(self._waiting) < most and self._fill(most):
            pass
        batch: list[tuple[Link, bytes]] = []
        size = 0
        for each in self._waiting:
            size += len(each[1])
            if len(batch) == most or (batch and size > most_bytes):
                break
            batch.append(each)
        return batch

    def taken(self, count: int) -> None:
        """These have arrived."""
        for _ in range(count):
            self._waiting.popleft()

    def _fill(self, most: int) -> bool:
        """Read some more; False if there is nothing more now."""
        if self._backlog is not None:
            line = next(self._backlog, None)
            if line is not None:
                self._keep(line)
                return True
            self._backlog.close()
            self._backlog = None
            self._follower = Follower(self._journal, self._seq)
        assert self._follower is not None
        found = self._follower.poll()
        for line in found:
            self._keep(line)
        return bool(found) and len(self._waiting) < most

    def _keep(self, line: bytes) -> None:
        link = read_link(line)
        if link is None or link.seq <= self._seq:
            return
        if self._seq:
            self.skipped += link.seq - self._seq - 1
        self._seq = link.seq
        self._waiting.append((link, line))


def _seconds(retry_after: str) -> float | None:
    """Return what a Retry-After asks for, in seconds; a date, or nonsense, asks for nothing."""
    return min(float(retry_after), _MOST_THROTTLED_S) if retry_after.strip().isdigit() else None


_running: dict[Path, Delivery] = {}
"""By journal: a reload makes a new plugin, and two deliveries of one journal would send everything twice."""


def take_over(delivery: Delivery) -> Delivery:
    """Return the delivery that is to be used: the one that runs, if it is the same; else this one, after that one."""
    running = _running.get(delivery.journal)
    if running is delivery:
        return delivery
    if running is not None and not running.ended:
        if running.key == delivery.key:
            return running
        delivery.follow(running)
    _running[delivery.journal] = delivery
    return delivery


def stop_all() -> None:
    """End every delivery, for tests and embedders."""
    for delivery in list(_running.values()):
        delivery.stop()
        delivery.join(_DRAIN_S)
    _running.clear()
