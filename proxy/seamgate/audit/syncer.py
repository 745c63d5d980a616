"""Forces written data to the disk now and then, in a thread of its own, so that a slow disk never holds up the gateway.

Used by the journal for `fsync: interval`. It owns the descriptors that it is told to retire, and only those; an error
is kept for the journal to find, never swallowed.
"""

from __future__ import annotations

import os
import threading


class Syncer:
    """Calls fdatasync at most once an interval, and only after something was written.

    `touch`, `retire`, `take_error` and `close` run on the journal's thread.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._changed = threading.Condition()
        # Guarded by _changed; _dirty is also read without it in `touch`, where a stale value only costs a lock.
        self._dirty = -1
        self._retired: list[int] = []
        self._stopping = False
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None

    def touch(self, fd: int) -> None:
        """Something was written to this descriptor: sync it within the interval."""
        if self._dirty == fd:
            return
        with self._changed:
            self._dirty = fd
            self._wake()

    def retire(self, fd: int) -> None:
        """Sync this descriptor and close it; the caller must not use it any more."""
        with self._changed:
            if self._dirty == fd:
                self._dirty = -1
            self._retired.append(fd)
            self._wake()

    def take_error(self) -> OSError | None:
        """Return the error of a sync that failed since the last call, if one did."""
        error, self._error = self._error, None
        return error

    def close(self) -> None:
        """Sync what is left, close what is retired, end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._sync_all()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="seamgate-audit-sync", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._dirty >= 0 or self._retired)
                # Gather what comes within the interval: one sync for all of it.
                if self._changed.wait_for(lambda: self._stopping, timeout=self._interval_s):
                    return
            self._sync_all()

    def _sync_all(self) -> None:
        with self._changed:
            dirty, retired = self._dirty, self._retired
            self._dirty, self._retired = -1, []
        for fd in [*retired, dirty] if dirty >= 0 else retired:
            try:
                os.fdatasync(fd)
            except OSError as error:
                self._error = error
        for fd in retired:
            os.close(fd)
