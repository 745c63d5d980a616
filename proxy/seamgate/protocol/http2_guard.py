"""Budgets against floods on one HTTP/2 connection: frames that cost us work and bring no message forward. Sans-I/O.

Called by `protocol.http2` for each such frame. A budget refills with time, so that a connection that lives for weeks
with a PING each second is never cut, and what was carried pays for what carrying needs.

Sources: CVE-2019-9511 to 9518 (PING, SETTINGS, RST, empty frames, tiny windows), CVE-2023-44487 (rapid reset),
CVE-2024-27316 (CONTINUATION). nghttp2 allows 1,000 resets at once and 33 a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from seamgate.protocol.http2_frames import ENHANCE_YOUR_CALM, ConnectionFault

RESET_BURST: Final = 1000
RESETS_PER_S: Final = 33.0
CONTROL_BURST: Final = 1000
CONTROLS_PER_S: Final = 100.0
WINDOW_BURST: Final = 2000
WINDOWS_PER_S: Final = 200.0
BYTES_PER_WINDOW: Final = 512
"""Each WINDOW_UPDATE beyond the budget has to be earned by as many bytes that were sent."""
BLOCK_FRAMES: Final = 32
"""HEADERS and CONTINUATION frames of one field block."""
BLOCK_BYTES: Final = 65536
"""One encoded field block."""
ANSWERS_WAITING: Final = 1000
"""Acknowledgements that may wait for a peer that does not read."""


class Budget:
    """So many at once, so many a second."""

    __slots__ = ("_at", "_burst", "_clock", "_left", "_per_s", "_what")

    def __init__(self, what: str, burst: float, per_s: float, clock: Callable[[], float]) -> None:
        self._what = what
        self._burst = self._left = burst
        self._per_s = per_s
        self._clock = clock
        self._at = clock()

    def spend(self, cost: float = 1.0) -> None:
        """Take from it.

        Raises:
            ConnectionFault: it is used up.
        """
        self._left -= cost
        if self._left < 0.0:
            self._refill()

    def earn(self, amount: float) -> None:
        """Put back, up to the burst."""
        self._left = min(self._burst, self._left + amount)

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 0.0:
            raise ConnectionFault(ENHANCE_YOUR_CALM, f"a flood of {self._what}")


class Guard:
    """The budgets of one connection."""

    __slots__ = ("answers", "controls", "resets", "windows")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.resets = Budget("streams that are given up", RESET_BURST, RESETS_PER_S, clock)
        self.controls = Budget("frames that carry nothing", CONTROL_BURST, CONTROLS_PER_S, clock)
        self.windows = Budget("WINDOW_UPDATE frames", WINDOW_BURST, WINDOWS_PER_S, clock)
        self.answers = 0

    def sent(self, size_bytes: int) -> None:
        """Bytes of bodies went out: the peer has to open windows for them."""
        self.windows.earn(size_bytes / BYTES_PER_WINDOW)

    def answer(self) -> None:
        """An acknowledgement was queued.

        Raises:
            ConnectionFault: the peer asks and does not read.
        """
        self.answers += 1
        if self.answers > ANSWERS_WAITING:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "the peer asks for answers and does not read them")


def check_block(frames: int, size_bytes: int) -> None:
    """Refuse a field block that goes on and on, before its end has come.

    Raises:
        ConnectionFault: it is too long, or in too many frames.
    """
    if frames > BLOCK_FRAMES:
        raise ConnectionFault(ENHANCE_YOUR_CALM, f"a field block has more than {BLOCK_FRAMES} frames")
    if size_bytes > BLOCK_BYTES:
        raise ConnectionFault(ENHANCE_YOUR_CALM, f"a field block is longer than {BLOCK_BYTES} bytes")
