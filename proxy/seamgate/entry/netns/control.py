"""How launcher and gateway talk: lines of JSON over a unix stream, some with file descriptors. Both sides use it.

gateway -> launcher    {"command": [...], "environment": {...}, "covers": {...}, "trust": path, "parent": pid,
                       "may_share": bool}
launcher -> gateway    {"ready": [names of sockets], "processes": bool} and the sockets, or {"error": text}
gateway -> launcher    {"go": true}
keeper -> gateway      {"pairs_only": why there are no other unix sockets}
keeper -> gateway      {"refused": {"socket": [family, type]}}, {"refused": {"path": of a unix socket outside}} or
                       {"refused": {"unseen": name of a program that can't be looked into}}
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_PIECE_BYTES = 65536
_MOST_DESCRIPTORS = 16
LONGEST_LINE: int = 16 * 1024 * 1024


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def send(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message; the descriptors stay open here."""
    data = encode(message)
    sent = socket.send_fds(channel, [data], descriptors)
    channel.sendall(data[sent:])


class Reader:
    """Takes messages off a channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._rest = b""
        self._descriptors: list[int] = []

    def read(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message with the descriptors that came so far; None at the end.

        Raises:
            BlockingIOError: the channel does not block and there is none.
            ValueError: it is not a message.
        """
        while b"\n" not in self._rest:
            data, descriptors, _, _ = socket.recv_fds(self._channel, _PIECE_BYTES, _MOST_DESCRIPTORS)
            self._descriptors += descriptors
            if not data:
                return None
            self._rest += data
            if len(self._rest) > LONGEST_LINE:
                raise ValueError("a message without an end")
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message that is no object")
        descriptors, self._descriptors = self._descriptors, []
        return message, descriptors

    def close(self) -> None:
        """Close what was received and not taken."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
