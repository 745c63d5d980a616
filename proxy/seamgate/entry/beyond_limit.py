"""A connection beyond the limit of connections: told so, and closed. Put on by the gateway; reads nothing."""

from __future__ import annotations

import asyncio
from typing import cast

_ANSWER = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BeyondLimit(asyncio.Protocol):
    """See the module."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer before anything was asked; every HTTP client reads it as the answer to its first request."""
        stream = cast("asyncio.Transport", transport)  # uvloop's has the shape, not the class
        stream.write(_ANSWER)
        stream.close()
