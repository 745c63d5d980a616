"""Connections in memory: whatever TCP may do to whoever uses it, by the dice of one seed.

Bytes arrive late, in other pieces than they were written in, or not at all; a reader that pauses holds its peer back;
ends are clean, cut or reset. Nothing is invented: no byte is lost within a connection, changed, or out of order.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

from simulation.loop import VirtualLoop

Factory = Callable[[], Any]
DatagramHandler = Callable[[bytes, Callable[[bytes, float], None]], None]
"""Called with a datagram and what sends one back after so many seconds."""

_HIGH_BYTES = 64 * 1024
ACCEPT_AGAIN_S = 1.0
"""As asyncio.constants.ACCEPT_RETRY_DELAY."""


class Weather:
    """What becomes of one direction of one connection.

    Attributes:
        latency_s: until a piece arrives.
        most_bytes: of one piece.
        reset_after_bytes: then the connection breaks; None: it does not.
        stall_after_bytes, stall_s: then nothing arrives for so long; None: it does not stall.
    """

    def __init__(self, rng: random.Random, roughness: float) -> None:
        self.latency_s = rng.choice((0.0, 0.0001, 0.001, 0.02))
        self.most_bytes = rng.choice((1 << 20, 1 << 16, 1460, rng.randint(1, 200)))
        rough = rng.random() < roughness
        self.reset_after_bytes = rng.randint(0, 3000) if rough and rng.random() < 0.4 else None
        self.stall_after_bytes = rng.randint(0, 3000) if rough and rng.random() < 0.4 else None
        self.stall_s = rng.choice((0.5, 5.0, 100.0))


class _Socket:
    """What the gateway asks of a socket: whether `abort` is to be a reset."""

    def __init__(self, end: Endpoint) -> None:
        self._end = end

    def setsockopt(self, *option: Any) -> None:
        """SO_LINGER with a time of zero makes a close a reset; other options change nothing here."""
        if isinstance(option[-1], bytes):
            self._end.linger = True


class Endpoint(asyncio.Transport):
    """One end of a connection, as a transport.

    Attributes:
        spoiled: set by a server that broke the protocol in what has arrived at the other end.
    """

    def __init__(self, network: Network, name: tuple[str, int], peer_name: tuple[str, int], weather: Weather) -> None:
        super().__init__()
        self.network = network
        self.peer: Endpoint
        self.protocol: Any = None
        self.linger = False
        self._names = {"sockname": name, "peername": peer_name, "socket": _Socket(self)}
        self._weather = weather
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._sent_bytes = 0
        self._eof_queued = self._eof_sent = False
        self._closing = self._lost = False
        self._reading = True
        self._paused_writing = False
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._pump: asyncio.Handle | None = None
        self._stalled = False

    def __repr__(self) -> str:
        return f"<Endpoint {self._names['sockname']} to {self._names['peername']} closing={self._closing}>"

    @property
    def lost(self) -> bool:
        """Whether its protocol heard of the end."""
        return self._lost

    # -- as a transport ----------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """Queue bytes; after the end they go nowhere."""
        if self._closing or self._eof_queued or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        if self._out_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            self.protocol.pause_writing()
        self._pump_soon(self._weather.latency_s)

    def writelines(self, list_of_data: Any) -> None:
        """All of them."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """FIN behind what is queued."""
        if not self._closing and not self._eof_queued:
            self._eof_queued = True
            self._pump_soon(self._weather.latency_s)

    def can_write_eof(self) -> bool:
        """TCP can."""
        return True

    def close(self) -> None:
        """FIN behind what is queued, then nothing is read any more."""
        if not self._closing:
            self._closing = True
            self._eof_queued = True
            self._reading = False
            self._pump_soon(self._weather.latency_s)

    def abort(self) -> None:
        """Drop what is queued; the peer sees a reset where SO_LINGER says so, or if we left bytes unread."""
        if self._lost:
            return
        reset = self.linger or self.peer.queued
        self._drop()
        self.network.loop.call_soon(self._lose, None)
        if reset:
            self.network.loop.call_later(self._weather.latency_s, self.peer.broken, ConnectionResetError(104, "reset"))
        else:
            self._eof_queued = True
            self._pump_soon(self._weather.latency_s)

    def reset(self) -> None:
        """What a test does to break a connection."""
        self.linger = True
        self.abort()

    def is_closing(self) -> bool:
        """Whether close or abort was called, or it is over."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether pieces are delivered."""
        return self._reading

    def pause_reading(self) -> None:
        """Deliver nothing for now."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver again."""
        if not self._closing:
            self._reading = True
            self.peer._pump_soon(0.0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As asyncio has it."""
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that have not arrived."""
        return self._out_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Names and the socket."""
        return self._names.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        """Who is told from now on."""
        self.protocol = protocol

    def get_protocol(self) -> Any:
        """Who is told."""
        return self.protocol

    # -- the way to the peer -----------------------------------------------------------------------------------------

    @property
    def queued(self) -> bool:
        """Whether something is on its way to the peer."""
        return bool(self._out)

    def _pump_soon(self, delay_s: float) -> None:
        if self._pump is None and not self._stalled:
            loop = self.network.loop
            self._pump = loop.call_later(delay_s, self._move) if delay_s else loop.call_soon(self._move)

    def _move(self) -> None:
        """Deliver one piece, or the end."""
        self._pump = None
        weather, peer = self._weather, self.peer
        if peer._lost:
            if not self._lost:
                self.broken(ConnectionResetError(104, "the peer is gone"))
            return
        if weather.stall_after_bytes is not None and self._sent_bytes >= weather.stall_after_bytes:
            weather.stall_after_bytes = None
            self._stalled = True
            self.network.loop.call_later(weather.stall_s, self._go_on)
            return
        if weather.reset_after_bytes is not None and self._sent_bytes >= weather.reset_after_bytes:
            self.broken(ConnectionResetError(104, "the network broke"))
            peer.broken(ConnectionResetError(104, "the network broke"))
            return
        if self._out:
            if peer._closing:
                self.broken(ConnectionResetError(104, "the peer has closed"))
                return
            if not peer._reading:
                return
            piece = self._take()
            peer.protocol.data_received(piece)
            if self._paused_writing and self._out_bytes <= self._low and not self._lost:
                self._paused_writing = False
                self.protocol.resume_writing()
            if self._out or self._eof_queued:
                self._pump_soon(0.0)
        elif self._eof_queued and not self._eof_sent:
            self._eof_sent = True
            self._deliver_eof()
        if self._closing and not self._out and self._eof_sent and not self._lost:
            self.network.loop.call_soon(self._lose, None)

    def _take(self) -> bytes:
        first = self._out[0]
        size = self.network.rng.randint(1, self._weather.most_bytes) if self._weather.most_bytes < 1 << 16 else 1 << 20
        size = max(size, self._out_bytes // 12)  # or a large body would cost more than all the rest
        piece, rest = first[:size], first[size:]
        if rest:
            self._out[0] = rest
        else:
            del self._out[0]
        self._out_bytes -= len(piece)
        self._sent_bytes += len(piece)
        return piece

    def _deliver_eof(self) -> None:
        peer = self.peer
        if peer._closing or peer._lost:
            return
        if not peer.protocol.eof_received():
            peer.close()

    def _go_on(self) -> None:
        self._stalled = False
        self._pump_soon(0.0)

    # -- ends --------------------------------------------------------------------------------------------------------

    def broken(self, error: Exception) -> None:
        """The connection broke: what is queued is lost."""
        if not self._lost:
            self._drop()
            self.network.loop.call_soon(self._lose, error)

    def _drop(self) -> None:
        self._closing = True
        self._reading = False
        self._out, self._out_bytes = [], 0
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._closing = True
            self.protocol.connection_lost(error)
            # A peer that writes into this learns of it; one that is silent may never.
            if self.peer._out:
                self.peer._pump_soon(0.0)


class DatagramSocket:
    """A UDP socket as the resolver uses one: made, connected, written to, read from when the loop says so, closed.

    Stands in the place of `socket.socket` in `seamgate.upstream.dns_exchange`.
    """

    def __init__(self, *_: int) -> None:
        loop: Any = asyncio.get_running_loop()
        self._network: Network = loop.network
        if self._network.exhausted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._network.sockets.append(self)
        self._descriptor = 1_000_000 + len(self._network.sockets)
        self._remote = ("", 0)
        self._came: list[bytes | OSError] = []
        self.closed = False

    def __enter__(self) -> DatagramSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def fileno(self) -> int:
        """No descriptor of the system."""
        return self._descriptor

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def connect(self, remote: tuple[str, int]) -> None:
        """Say whom `send` sends to."""
        self._remote = remote

    def send(self, data: bytes) -> int:
        """Ask whoever is there."""
        handler = self._network.datagram_servers.get(self._remote)
        if handler is None:
            self._network.loop.call_soon(self._arrive, ConnectionRefusedError(111, "Connection refused"))
        else:
            handler(data, self._answer)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Return the next datagram, or raise what ICMP said."""
        if not self._came:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        first = self._came.pop(0)
        if isinstance(first, OSError):
            raise first
        return first[:size]

    def _answer(self, data: bytes, after_s: float) -> None:
        self._network.loop.call_later(after_s, self._arrive, data)

    def _arrive(self, what: bytes | OSError) -> None:
        if not self.closed:
            self._came.append(what)
            self._network.loop.readable(self._descriptor)


class _Listener:
    """What `create_server` returns, as far as the gateway uses it."""

    def __init__(self, network: Network, place: tuple[str, int]) -> None:
        self._network, self._place = network, place
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self._place

    def close(self) -> None:
        """Take no more connections."""
        self._network.listeners.pop(self._place, None)


class Network:
    """All connections of one simulation.

    Attributes:
        dialled: every place that somebody connected to, in order.
        hidden: places that never answer a connection.
        exhausted: whether the gateway has no descriptor left.
        unaccepted: how many connections it could not accept for that.
    """

    def __init__(self, loop: VirtualLoop, rng: random.Random, roughness: float) -> None:
        self.loop = loop
        self.rng = rng
        self.listeners: dict[tuple[str, int], Factory] = {}
        self.datagram_servers: dict[tuple[str, int], DatagramHandler] = {}
        self.dialled: list[tuple[str, int]] = []
        self.hidden: set[tuple[str, int]] = set()
        self.exhausted = False
        self.unaccepted = 0
        self.endpoints: list[Endpoint] = []
        self.sockets: list[DatagramSocket] = []
        self._roughness = roughness
        self._port = 40000

    def listen(self, factory: Factory, host: str, port: int) -> _Listener:
        """Take connections."""
        if not port:
            self._port += 1
            port = self._port
        self.listeners[host, port] = factory
        return _Listener(self, (host, port))

    async def connect(self, factory: Factory, host: str, port: int) -> tuple[Endpoint, Any]:
        """Open a connection."""
        self.dialled.append((host, port))
        to_gateway = host.startswith("127.")
        if self.exhausted and not to_gateway:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.05)))
        if to_gateway and self.exhausted:
            await self._unaccepted()
        if (host, port) in self.hidden:
            await _never(self.loop)
        accept = self.listeners.get((host, port))
        if accept is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._port += 1
        mine, theirs = ("10.9.9.9", self._port), (host, port)
        near = Endpoint(self, mine, theirs, Weather(self.rng, self._roughness))
        far = Endpoint(self, theirs, mine, Weather(self.rng, self._roughness))
        near.peer, far.peer = far, near
        self.endpoints += (near, far)
        near.protocol, far.protocol = factory(), accept()
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        return near, near.protocol

    async def _unaccepted(self) -> None:
        """Accepting fails with EMFILE: asyncio leaves who comes in the backlog, uvloop accepts and closes."""
        self.unaccepted += 1
        if self.rng.random() < 0.5:
            raise ConnectionResetError(104, "accepted and closed at once")
        while self.exhausted:  # noqa: ASYNC110 - asyncio, too, tries again after a second
            await asyncio.sleep(ACCEPT_AGAIN_S)

    def left(self) -> list[str]:
        """What is still open."""
        return [repr(each) for each in self.endpoints if not each.lost] + [
            "a UDP socket" for each in self.sockets if not each.closed
        ]


def _never(loop: VirtualLoop) -> Awaitable[None]:
    return loop.create_future()
