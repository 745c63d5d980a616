"""One stream of a guest's ring as an asyncio transport: its state machine, credits in both directions, water marks.

Behaves as the transport of a TCP connection does. Made by `ring.py` for each stream that a guest opens; what it sends
goes by a `Carrier`, which is the ring's server.
Runs on: the event loop.
"""

import asyncio
import errno
import os
from typing import Any, Protocol, cast

from seamgate_vmm import _kvm
from seamgate_vmm.greeting import StreamOpen

_HIGH_WATER = 64 * 1024


class Carrier(Protocol):
    """Where a stream's frames go."""

    loop: asyncio.AbstractEventLoop

    def room(self) -> int:
        """Return the payload that fits into one frame now."""
        ...

    def send(self, kind: int, stream: int, aux: int, payload: bytes) -> bool:
        """Put a frame on the ring; False without room."""
        ...

    def send_soon(self, kind: int, stream: int, aux: int, payload: bytes = b"") -> None:
        """Put a small frame on the ring, now or as soon as there is room, in order."""
        ...

    def wants_room(self, transport: "RingTransport") -> None:
        """Call transport.has_room when there is room."""
        ...

    def forget(self, stream: int) -> None:
        """Take a stream out of the tables."""
        ...


class RingTransport(asyncio.Transport):
    """One stream of a guest, as an asyncio transport."""

    def __init__(self, server: Carrier, stream: int, address: tuple[str, int]) -> None:
        super().__init__({"peername": address, "ring": server})
        self._server = server
        self._stream = stream
        self._protocol: asyncio.BaseProtocol | None = None
        self._out = bytearray()
        self._credit = _kvm.RING_RX_WINDOW  # what we may send
        self._granted = _kvm.RING_TX_WINDOW  # what the guest may send
        self._inbox = bytearray()  # received while paused or before a protocol is there
        self._owed = 0  # delivered, and not yet given back as credit
        self._paused = False
        self._writing_paused = False
        self._closing = False
        self._lost = False
        self._eof_out = False
        self._fin_sent = False
        self._eof_in = False
        self._eof_delivered = False
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4

    def __repr__(self) -> str:
        return f"<RingTransport {self._stream} {self.get_extra_info('peername')}{' closing' if self._closing else ''}>"

    # ---- asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol in charge."""
        return cast(asyncio.BaseProtocol, self._protocol)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Put another protocol in charge, as for TCP (an upgrade)."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """True after close or abort, from either side."""
        return self._closing

    def is_reading(self) -> bool:
        """True unless paused."""
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        """Deliver nothing until resumed; the guest runs out of credit and waits."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver again what was held."""
        if self._paused:
            self._paused = False
            self._server.loop.call_soon(self._deliver)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep them while the guest has no room. Raises: RuntimeError after write_eof."""
        if self._eof_out:
            raise RuntimeError("cannot write after write_eof()")
        if self._closing or not data:
            return
        self._out += data
        self._flush()

    def writelines(self, list_of_data: Any) -> None:
        """Send several pieces."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """True: streams close one direction at a time."""
        return True

    def write_eof(self) -> None:
        """End our direction after what is buffered."""
        self._eof_out = True
        self._flush()

    def close(self) -> None:
        """Send what is buffered, then end."""
        if not self._closing:
            self._closing = self._eof_out = True
            self._inbox.clear()
            self._flush()

    def abort(self) -> None:
        """End now; what is buffered is lost."""
        self._reset(errno.ECONNRESET)

    def get_write_buffer_size(self) -> int:
        """Bytes that the guest has no room for yet."""
        return len(self._out)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high) water, in bytes."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when pause_writing and resume_writing are called, as asyncio defines it. Raises: ValueError."""
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._check_water()

    # ---- towards the guest

    def _flush(self) -> None:
        """Send as much as credit and room permit; called again on CREDIT and when the ring has room."""
        while self._out and not self._lost:
            size = min(len(self._out), self._credit, self._server.room())
            if size <= 0:
                if self._credit > 0:
                    self._server.wants_room(self)
                break
            if not self._server.send(_kvm.FRAME_DATA, self._stream, 0, bytes(memoryview(self._out)[:size])):
                self._server.wants_room(self)
                break
            del self._out[:size]
            self._credit -= size
        self._check_water()
        if self._eof_out and not self._out and not self._fin_sent and not self._lost:
            self._fin_sent = self._server.send(_kvm.FRAME_FIN, self._stream, 0, b"")
            if not self._fin_sent:
                self._server.wants_room(self)
        if self._closing and self._fin_sent:
            self._lose(None)

    def _check_water(self) -> None:
        size = len(self._out)
        if size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._call("pause_writing")
        elif size <= self._low and self._writing_paused:
            self._writing_paused = False
            self._call("resume_writing")

    def _call(self, name: str) -> None:
        if self._protocol is not None and not self._lost:
            getattr(self._protocol, name)()

    def _grant(self) -> None:
        if self._owed >= _kvm.RING_TX_WINDOW // 4 and not self._eof_in:
            if self._server.send(_kvm.FRAME_CREDIT, self._stream, self._owed, b""):
                self._granted += self._owed
                self._owed = 0
            else:
                self._server.wants_room(self)

    def _reset(self, number: int) -> None:
        if self._lost:
            return
        self._closing = True
        self._out.clear()
        self._inbox.clear()
        self._server.send_soon(_kvm.FRAME_RESET, self._stream, number)
        self._server.forget(self._stream)
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._out.clear()
        if self._protocol is not None:
            self._server.loop.call_soon(self._protocol.connection_lost, error)

    # ---- from the guest (called by RingServer)

    def attach(self, protocol: asyncio.BaseProtocol, opened: StreamOpen) -> None:
        """Put the protocol in charge and deliver what has come so far."""
        self._protocol = protocol
        self._extra["stream_open"] = opened  # type: ignore[attr-defined]  # the base class's dict, absent from its stub
        protocol.connection_made(self)
        self._deliver()

    def received(self, data: bytes) -> bool:
        """Take bytes; False if the guest exceeded its credit."""
        if len(data) > self._granted or self._eof_in:
            return False
        self._granted -= len(data)
        if self._closing:
            self._owed += len(data)
            self._grant()
            return True
        self._inbox += data
        self._deliver()
        return True

    def _deliver(self) -> None:
        protocol = self._protocol
        if protocol is None or self._paused or self._closing:
            return
        if self._inbox:
            data, self._inbox = bytes(self._inbox), bytearray()
            self._owed += len(data)
            self._grant()
            self._feed(protocol, data)
        if self._eof_in and not self._inbox and not self._eof_delivered and not self._closing and not self._paused:
            self._eof_delivered = True
            keep = cast(asyncio.Protocol, self._protocol).eof_received()
            if not keep:
                self.close()

    @staticmethod
    def _feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
        if isinstance(protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view:
                buffer = memoryview(protocol.get_buffer(len(view))).cast("B")
                size = min(len(buffer), len(view))
                buffer[:size] = view[:size]
                protocol.buffer_updated(size)
                view = view[size:]
        else:
            cast(asyncio.Protocol, protocol).data_received(data)

    def peek(self) -> bytes:
        """Return what has come before a protocol is there."""
        return bytes(self._inbox)

    def drop(self, count: int) -> None:
        """Take the preface out of what has come."""
        del self._inbox[:count]
        self._owed += count

    def ended(self) -> None:
        """The guest sends no more."""
        self._eof_in = True
        self._deliver()

    def was_reset(self, number: int) -> None:
        """The guest closed the stream."""
        error = ConnectionResetError(number, os.strerror(number)) if number else None
        self._closing = True
        self._inbox.clear()
        self._lose(error)

    def credited(self, count: int) -> bool:
        """The guest has read; False if it claims more than was sent."""
        if self._credit + count > _kvm.RING_RX_WINDOW:
            return False
        self._credit += count
        self._flush()
        return True

    def has_room(self) -> None:
        """The ring has room again."""
        self._grant()
        self._flush()
