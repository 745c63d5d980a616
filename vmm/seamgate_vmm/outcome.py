"""How a guest ends: a closed set of reasons, each with what a person needs to know.

Made by `guest.py` and `worker.py`, read by the command line, the pool and the audit.
"""

import enum
from dataclasses import dataclass, field
from typing import Literal

GuestEvent = Literal["guest_park", "guest_hibernate", "guest_resume"]
"""What may happen to a guest before its end. The values are stable: they appear in audit records."""


class Reason(enum.Enum):
    """Why a guest is over. The values are stable: they appear in audit records."""

    EXITED = "exited"  # the program ended by itself
    SIGNALLED = "signalled"  # the program ended itself by a signal (abort)
    FAULT = "fault"  # an exception of the processor: bad address, bad instruction
    OUT_OF_MEMORY_RANGE = "out_of_memory_range"  # it touched an address that it has no memory for
    DEADLOCK = "deadlock"  # every thread waits for another
    CPU_LIMIT = "cpu_limit"
    WALL_LIMIT = "wall_limit"
    OUTPUT_LIMIT = "output_limit"
    RING_VIOLATION = "ring_violation"
    BAD_REQUEST = "bad_request"  # it asked the host for what no shim asks
    NOT_RESEEDED = "not_reseeded"  # a restored guest did not confirm its fresh randomness
    NOT_RESUMED = "not_resumed"  # it was hibernated, and its file was refused
    STOPPED = "stopped"  # by its owner
    IGNORED_STOP = "ignored_stop"  # it was asked to end, and did not within its grace
    MACHINE_FAILED = "machine_failed"  # KVM could not go on
    WORKER_DIED = "worker_died"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a guest.

    code: the exit status that a shell would see: the program's own, 128 + signal, or 70 for every unnatural end.
    unsupported: names of calls that were refused, with how often each was reported.
    """

    reason: Reason
    code: int
    detail: str = ""
    unsupported: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    parked_times: int = 0  # because it waited for long

    @property
    def natural(self) -> bool:
        """True if the program ended by itself."""
        return self.reason is Reason.EXITED

    def __str__(self) -> str:
        text = f"{self.reason.value} (exit status {self.code})"
        return f"{text}: {self.detail}" if self.detail else text
