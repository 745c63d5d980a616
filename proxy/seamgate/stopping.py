"""How a gateway lets go of its guests: told to come again, left to finish, and at last cut, each with its record.

Called by `Gateway.retire` and `Gateway.stop`, in this order, while its journal is open. Closes nothing but guests.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from seamgate.entry.connections import Connections
from seamgate.refusing import STOPPING
from seamgate.seam import Seam

log = structlog.get_logger("seamgate.gateway")

PATIENCE_S: Final = 0.5
"""How long guests' idle connections may still ask once a successor is there: longer than a request is on its way."""
FIRST_REQUEST_S: Final = 2.0
"""The same for one that has not asked yet: it was opened to ask, and many a client does not try that twice."""
_LOOK_EVERY_S: Final = 0.02
_TURNS_TO_END: Final = 100
"""How many turns of the loop a connection that was aborted may take to say so; it takes two or three."""


async def see_off(connections: Connections) -> None:
    """Answer who asks now, and have each come again: nobody's request is on its way when its connection is closed.

    Also of those that are within a handshake, or a greeting, or wait for a turn of their guest's.

    Precondition: nobody listens any more. Who was taken just before may be known a turn of the loop later only.
    """
    loop = asyncio.get_running_loop()
    until, last = loop.time() + PATIENCE_S, loop.time() + FIRST_REQUEST_S
    await asyncio.sleep(_LOOK_EVERY_S)
    while (connections.all and loop.time() < until) or (connections.awaited and loop.time() < last):
        for connection in list(connections.all):
            connection.drain(patient=True)
        await asyncio.sleep(_LOOK_EVERY_S)


async def let_finish(seam: Seam, connections: Connections, grace_s: float) -> None:
    """Let what is under way finish for a while, then end it. What is asked meanwhile is as `seam.draining` says."""
    for connection in list(connections.all):
        connection.drain()
    try:
        async with asyncio.timeout(grace_s):
            await seam.quiet()
            # Nobody tells, and this is the end.
            while seam.under_way or connections.flushing or (connections.asked and not seam.draining):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        log.warning("guests were cut at stop", requests=seam.active, connections=len(connections.all))
    # By themselves, not with their connections: a guest that reads nothing would keep them past the journal's end,
    # and one that reads would take a closed connection for the end of an answer that only that ends.
    for exchange in list(seam.under_way):
        exchange.refuse(STOPPING)
    connections.close()


async def end_all(connections: Connections) -> None:
    """End the connections that are still there, so that each has its record before the journal is closed."""
    await asyncio.sleep(0)
    connections.abort()
    for _ in range(_TURNS_TO_END):
        if not connections.all:
            break
        await asyncio.sleep(0)
