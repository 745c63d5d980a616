"""What can go wrong with machines, templates and workers, as one tree.

A guest that ends badly is no exception: it is an `Outcome` with a reason (see `outcome.py`).
"""


class VmmError(Exception):
    """Base of every error of this package; the message says what to do next."""


class KvmUnusable(VmmError):
    """KVM cannot be used here; exit code 3 of the command line."""


class ProgramError(VmmError):
    """The program to run is missing, unreadable or no x86-64 ELF file; exit code 2."""


class TemplateError(VmmError):
    """A template cannot be built, or its file is damaged, of another version or for another processor."""


class HibernationError(VmmError):
    """A guest cannot be hibernated or resumed: the message says why."""


class WorkerDied(VmmError):
    """A worker process ended; its guests ended with it."""
