"""`seamgate.protocol.pieces`: pieces that wait take what they hold, however small they came."""

from __future__ import annotations

import sys
from collections import deque

import pytest

from seamgate.protocol.http2_events import StreamData, StreamEnd, StreamEvent, hold_event
from seamgate.protocol.pieces import SMALL_BYTES, hold_piece


@pytest.mark.parametrize("sizes", [[1], [2], [SMALL_BYTES - 1], [SMALL_BYTES], [1, SMALL_BYTES], [3, 700, 2, 40_000]])
def test_what_waits_is_hardly_larger_than_its_bytes(sizes: list[int]) -> None:
    """In a list, in a queue, as events: the same bytes in the same order, and at most a tenth more than they are."""
    held: list[bytes] = []
    queue: deque[bytes] = deque()
    events: list[StreamEvent] = []
    pieces = [bytes([number % 251]) * sizes[number % len(sizes)] for number in range(3000)]
    for piece in pieces:
        hold_piece(held, piece)
        hold_piece(queue, piece)
        hold_event(events, StreamData(1, piece))
    whole = b"".join(pieces)
    assert b"".join(held) == b"".join(queue) == whole
    datas = [event.data for event in events if isinstance(event, StreamData)]
    assert b"".join(datas) == whole
    assert sum(map(sys.getsizeof, held)) + sys.getsizeof(held) < 1.15 * len(whole) + 100
    assert len(datas) == len(held) == len(queue)


def test_an_end_is_not_joined_over() -> None:
    """What comes behind the end of a body stays behind it."""
    events: list[StreamEvent] = []
    for event in (StreamData(1, b"a"), StreamEnd(1, ()), StreamData(1, b"b")):
        hold_event(events, event)
    assert events == [StreamData(1, b"a"), StreamEnd(1, ()), StreamData(1, b"b")]
