"""The framing that S3's clients call a content coding (`aws-chunked`): taken off of what is looked at.

It holds nothing back and changes nothing: `seamgate.protocol.coding` opens it where a request's body is searched for
values, so that none passes cut into chunks, or coded below the framing. Sans-I/O. It never checks the signatures.
Source: Amazon S3 API Reference, "Signature calculations for the authorization header: transferring payload in multiple
chunks", and "Using trailing checksums".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from seamgate.errors import ProtocolError

_LINE_BYTES = 512
"""The longest head of a chunk: a length and `;chunk-signature=` with 64 digits take about a hundred."""
_TRAILER_BYTES = 8192
_STEP_BYTES = 64 * 1024
_FIRST = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\x21-\x7e]*)?\r\n")
_NEXT = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})(?:;[\x21-\x7e]*)?\r\n")
_TRAILER = re.compile(rb"[\t\r\n\x20-\x7e]*")


class BrokenFramingError(ProtocolError):
    """A body is not framed as it says: a server could read other content in it than is looked at here."""


class AwsChunked:
    """Gives out the content of the chunks; strict, as what is read differently elsewhere would be searched in vain.

    What follows the last chunk (checksums, a signature) is text of lines, and no content.
    """

    __slots__ = ("_before", "_head", "_left", "_trailer_bytes")

    def __init__(self) -> None:
        self._head = b""  # of a chunk whose head is not here yet
        self._left = 0  # of the chunk that is being read
        self._before = b""  # what ends the chunk before
        self._trailer_bytes = -1  # below zero: the last chunk has not come

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content in steps of at most 64 KiB and a piece.

        Raises:
            BrokenFramingError: the framing is not as it is defined.
        """
        at, found, size_bytes = 0, [], 0
        while at < len(data):
            if self._trailer_bytes >= 0:
                self._check_trailer(data, at)
                break
            if not self._left:
                at = self._read_head(data, at)
                continue
            piece = data[at : at + min(self._left, _STEP_BYTES)]
            at += len(piece)
            self._left -= len(piece)
            found.append(piece)
            size_bytes += len(piece)
            if size_bytes >= _STEP_BYTES:
                yield b"".join(found)
                found, size_bytes = [], 0
        yield b"".join(found)

    def _read_head(self, data: bytes, at: int) -> int:
        """Take a chunk's head, with the end of the chunk before; return where it ends, or the end of the data."""
        known = len(self._head)
        head = self._head + data[at : at + _LINE_BYTES - known]
        end = head.find(b"\n", len(self._before)) + 1
        if not end and len(head) < _LINE_BYTES:
            self._head = head
            return len(data)
        said = (_NEXT if self._before else _FIRST).fullmatch(head, 0, end)
        if said is None:
            raise BrokenFramingError("the body says aws-chunked, and its chunks are not framed so")
        self._head, self._before, self._left = b"", b"\r\n", int(said[1], 16)
        if not self._left:
            self._trailer_bytes = 0
        return at + end - known

    def _check_trailer(self, data: bytes, at: int) -> None:
        self._trailer_bytes += len(data) - at
        if self._trailer_bytes > _TRAILER_BYTES or _TRAILER.fullmatch(data, at) is None:
            raise BrokenFramingError("the body goes on after its last aws-chunk with more than checksums")

    def finish(self) -> Iterator[bytes]:
        """Yield nothing more.

        Raises:
            BrokenFramingError: the last chunk has not come.
        """
        if self._trailer_bytes < 0:
            raise BrokenFramingError("the body ends before its last aws-chunk")
        yield b""
