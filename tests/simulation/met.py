"""What the schedules had in them: a search that never makes a thing finds nothing amiss in it, and looks as good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simulation.guests import Asked
from simulation.world import Outcome

KINDS = (
    "answered", "answered over HTTP/2", "upstream over HTTP/2", "redacted", "WebSocket", "WebSocket on a stream",
    "WebSocket on an upstream's stream", "call answered", "call denied", "trailers", "not accepted", "killed", "moved",
)  # fmt: skip
"""Each has to be there, and often."""


def met(outcome: Outcome) -> Counter[str]:
    """Return how often each kind was in a schedule."""
    found: Counter[str] = Counter()
    for guest in outcome.guests:
        for asked in guest.asked:
            found.update(_of(asked))
    ledger = outcome.ledger
    found["upstream over HTTP/2"] += ledger.streams
    found["WebSocket on an upstream's stream"] += sum(method == "CONNECT" for _, _, method in ledger.heads)
    found["not accepted"] += outcome.network.unaccepted
    found["killed"] += len(outcome.killed)
    found["moved"] += outcome.names.moves
    return found


def _of(asked: Asked) -> Iterator[str]:
    whole = asked.whole and not asked.reason and asked.status == 200
    if asked.said and asked.heard:
        yield "WebSocket on a stream" if asked.status == 200 else "WebSocket"
    if whole and not asked.is_call:
        yield "answered over HTTP/2" if asked.on_stream else "answered"
    if b"[redacted:key]" in asked.answer:
        yield "redacted"
    if asked.is_call and asked.whole:
        yield "call denied" if asked.reason else "call answered"
    if whole and asked.trailers:
        yield "trailers"
