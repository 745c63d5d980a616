"""The data of a TLS connection whose handshake is done: plaintext into records, and records into plaintext.

Called by `seamgate.streams`. `wrap` makes the connection with Python's `ssl`, whose context decides all that is to be
verified, and whose handshake verifies it; `take_over` gives what seals and opens its data from then on. That is
`seamgate._native.Records` where OpenSSL 3 is a library that `ssl` has loaded, and else `PythonRecords`, over two memory
BIOs. Opens no connection.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from seamgate._native import Records as NativeRecords

_RECORD_BYTES: Final = 16384
_HEADER_BYTES: Final = 5
"""Kind, version, and two of length. Source: RFC 8446 5.1."""

Opened: TypeAlias = "bytes | tuple[bytes, bool, bool, bytes, ssl.SSLError | None]"
"""All plaintext that is there. With more to say: that, whether the peer said close_notify, whether records wait, what
is to be sent (an answer of TLS itself), and why there will be no more."""


class Records(Protocol):
    """What seals and opens the data of one connection."""

    def read(self, data: bytes, most: int, /) -> Opened:
        """Open what waited and what came, of at most so many records (1 or more), with or without data."""
        ...

    def write(self, data: bytes, /) -> bytes:
        """Seal; return what is to be sent.

        Raises:
            ssl.SSLError: the connection broke.
        """
        ...

    def close(self) -> bytes:
        """Return what is to be sent last: close_notify, unless the connection broke."""
        ...


class PythonRecords:
    """The specification of `seamgate._native.Records`, and what runs where there is none."""

    def __init__(self, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._tls = tls
        # What `tls` wraps: its methods in Python are a tenth of the cost of a small record.
        self._raw: Any = getattr(tls, "_sslobj", tls)
        self._incoming = incoming
        self._outgoing = outgoing
        self._behind = b""
        self._header_bytes = 0  # how many of the present record's header were seen
        self._body_left = 0  # how many bytes of its body were not

    def read(self, data: bytes, most: int, /) -> Opened:
        """Open records."""
        raw, incoming = self._raw, self._incoming
        partial = self._header_bytes > 0
        data = self._behind + data
        size = self._measure(data, most)
        incoming.write(data[:size])
        self._behind = data[size:]
        pieces: list[bytes] = []
        error: ssl.SSLError | None = None
        ended = False
        pending = incoming.pending
        try:
            while pending:
                # No more plaintext than ciphertext: no 16 KiB are taken for a small record, unless it came in parts.
                room = _RECORD_BYTES if partial or pending > _RECORD_BYTES else pending
                piece: bytes = raw.read(room)
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
                # OpenSSL keeps plaintext of its own only where a read took less than a whole record.
                pending = (raw.pending() if len(piece) == room else 0) or incoming.pending
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as problem:
            error = problem
        if ended or error is not None:
            self._behind = b""
        behind = len(self._behind) > 0
        plain = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if ended or behind or error is not None or self._outgoing.pending:
            return plain, ended, behind, self._outgoing.read(), error
        return plain

    def _measure(self, data: bytes, most: int) -> int:
        """Return how many of these bytes are at most so many records.

        All records count, since OpenSSL goes on by itself after those without data: a read of nothing but changes of
        keys would take a fifth of a second.
        """
        at, size = 0, len(data)
        while at < size and (most > 0 or self._header_bytes):
            if self._header_bytes < _HEADER_BYTES:
                self._header_bytes += 1
                self._body_left = (self._body_left << 8 | data[at]) & 0xFFFF
                at += 1
            else:
                take = min(self._body_left, size - at)
                self._body_left -= take
                at += take
            if self._header_bytes == _HEADER_BYTES and not self._body_left:
                self._header_bytes = 0
                most -= 1
        return at

    def write(self, data: bytes, /) -> bytes:
        """Seal."""
        self._raw.write(data)
        return self._outgoing.read()

    def close(self) -> bytes:
        """Say close_notify."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # our close_notify is in the BIO; the peer's is not waited for
        return self._outgoing.read()


def _native() -> type[NativeRecords] | None:
    try:
        from seamgate._native import Records as native
    except ImportError:  # the sources, where nobody ran `make build`, or a Python with another OpenSSL built in
        return None
    return native


class Parts:
    """Which records there are.

    Attributes:
        native: those in C; None for the twin. Tests choose.
    """

    __slots__ = ("native",)

    def __init__(self) -> None:
        self.native = _native()


PARTS: Final = Parts()


class Wrapped:
    """A connection whose handshake is to be done over two memory BIOs.

    Attributes:
        tls: what does the handshake.
        incoming: ciphertext for it.
        outgoing: ciphertext from it.
    """

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None, *, server_side: bool) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self._native: NativeRecords | None = None
        if PARTS.native is not None:
            self.tls, self._native = PARTS.native.adopt(
                context, self.incoming, self.outgoing, server_side, server_hostname
            )
        else:
            self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side, server_hostname)

    def take_over(self) -> Records:
        """After the handshake: return what goes on, for all that `incoming` and `outgoing` hold no more."""
        if self._native is None:
            return PythonRecords(self.tls, self.incoming, self.outgoing)
        self._native.take()
        return self._native
