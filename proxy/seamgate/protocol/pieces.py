"""Pieces of a body that wait: small ones are joined as they come. Sans-I/O.

A peer chooses how small its chunks and frames are, and a piece of two bytes costs 56 as an object of its own. What is
counted of a body that waits is its length, so that is what it has to take: joined, a piece takes some 5 % more at most.
Called wherever pieces wait: by the upload, the queues and streams of HTTP/2, the inspectors and the answer.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SMALL_BYTES: Final = 1024
"""Pieces below this are joined: copying what is already there is cheaper than reading a frame."""


def hold_piece(pieces: list[bytes] | deque[bytes], data: bytes) -> None:
    """Append a piece to those that wait; a small one to the last, where that is small too."""
    if pieces and len(data) < SMALL_BYTES and len(pieces[-1]) < SMALL_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)
