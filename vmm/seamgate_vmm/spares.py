"""What waits in a worker for its next guest: machines at their template, and scratch folders.

All that can be done before a guest comes is done before: a machine has run a rehearsal and was brought back, its
folder exists, its view of the files is made. Machines of guests that ended are brought back when there is nothing else
to do. Used by `worker.py`, on its thread.
"""

import itertools
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from seamgate_vmm.guest import Guest, Limits
from seamgate_vmm.host import Host
from seamgate_vmm.image import Mount, View
from seamgate_vmm.removal import remove_tree
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import recycle, rehearse

_SCRATCH = "/tmp"  # noqa: S108 - where a guest sees its scratch folder


@dataclass(frozen=True, slots=True)
class Scratch:
    """An empty folder of one guest, and the view with it."""

    path: Path
    view: View

    def remove(self) -> None:
        """Delete it with all that is in it."""
        remove_tree(self.path)


class Spares:
    """See the module."""

    def __init__(self, host: Host, loaded: Loaded, view: View, scratch_root: Path) -> None:
        self._host, self._loaded, self._view, self._scratch_root = host, loaded, view, scratch_root
        self._ready: list[Guest] = []  # ended, their machines at the template
        self._used: deque[Guest] = deque()  # ended, their machines still to be brought back
        self._folders: list[Scratch] = []
        self._numbers = itertools.count()

    @property
    def count(self) -> int:
        """How many machines there are."""
        return len(self._ready) + len(self._used)

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do."""
        return bool(self._used)

    def warm(self, limits: Limits) -> None:
        """Make one more machine warm. Raises: OSError if KVM refuses."""
        self._ready.append(rehearse(self._host, self._loaded, self._view, limits))
        self._folders.append(self._new_folder())

    def keep(self, guest: Guest) -> None:
        """Take the machine of a guest that ended naturally."""
        self._used.append(guest)

    def tidy(self) -> None:
        """Bring one machine back to its template: a millisecond or more that the next guest need not wait for."""
        guest = self._used.popleft()
        try:
            recycle(guest)
        except OSError:
            guest.close()
            return
        self._ready.append(guest)
        if len(self._folders) < len(self._ready):
            self._folders.append(self._new_folder())

    def take(self) -> Guest | None:
        """Return a machine for `restore(reuse=...)`, one at its template before others; None if there is none."""
        if self._ready:
            return self._ready.pop()
        return self._used.popleft() if self._used else None

    def folder(self) -> Scratch:
        """Return a scratch folder. Raises: OSError."""
        return self._folders.pop() if self._folders else self._new_folder()

    def folder_of(self, name: str) -> Scratch:
        """Return the folder of a guest that was hibernated, with what it left there. Raises: FileNotFoundError."""
        path = self._scratch_root / name
        path.stat()
        return self._scratch_at(path)

    def _new_folder(self) -> Scratch:
        path = self._scratch_root / f"{os.getpid()}-{next(self._numbers)}"  # workers share the root
        path.mkdir(mode=0o700)
        return self._scratch_at(path)

    def _scratch_at(self, path: Path) -> Scratch:
        return Scratch(path, self._view.with_scratch(Mount(_SCRATCH, str(path), writable=True)))
