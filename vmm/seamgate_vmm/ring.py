"""A guest's ring as asyncio streams: what a gateway attaches its protocols to, exactly as to TCP connections.

    ring = GuestRing.create()                  # shared memory and its two eventfds; hand `ring.handles()` to a worker
    server = RingServer(ring, accept=on_open)  # on_open(StreamOpen) -> asyncio.Protocol, or None to refuse
    server.start()

The guest on the other side is hostile. Indices, lengths and types are checked in C (`native/ring.c`); here each
stream keeps to its state machine, credits bound what a guest can make us hold, and a budget a turn keeps one guest
from holding up the loop. A guest that breaks the rules is reported once, by `on_violation`, and its ring is closed.
Runs on: the event loop.
"""

import asyncio
import errno
import fcntl
import ipaddress
import os
import struct
from collections.abc import Callable

from seamgate_vmm import _kvm
from seamgate_vmm.greeting import PREFACE, read_greeting
from seamgate_vmm.greeting import StreamOpen as StreamOpen
from seamgate_vmm.names import NameTable
from seamgate_vmm.ring_transport import RingTransport as RingTransport

_FRAMES_PER_TURN = 64
# More than this in a window and the guest waits for the next: 40,000 a second are 640 MB/s in full frames, and more
# than any program makes by calls; a guest that rings for nothing, or sends nothings, costs the loop a bounded share.
_FRAMES_PER_WINDOW = 4000
_WINDOW_S = 0.1
_GREETING_WAIT_S = 0.2  # a client that lets the server speak first is recognised by its silence
_SWEEP_S = 1.0  # a doorbell that a guest kept to itself costs it a second, never a hang
_ROOM_BYTES = _kvm.RING_TX_SIZE // 4  # so much taken, and a guest that found its ring full can go on
_OPEN = struct.Struct("<HH16s")
_AF_INET, _AF_INET6 = 2, 10


Accept = Callable[[StreamOpen], asyncio.BaseProtocol | None]
Turn = Callable[[Callable[[], None]], bool]
"""Whether it is the guest's turn; if not, what it is given is called once it is."""


class GuestRing:
    """The shared memory of one ring and its eventfds: `doorbell` (guest to host) and `wake` (host to worker)."""

    def __init__(self, memory: int, doorbell: int, wake: int) -> None:
        self.memory, self.doorbell, self.wake = memory, doorbell, wake

    @classmethod
    def create(cls) -> "GuestRing":
        """Make the memory, sealed at its size, and the eventfds."""
        memory = os.memfd_create("seamgate-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, -(-_kvm.RING_BYTES // 4096) * 4096)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        return cls(memory, os.eventfd(0, flags), os.eventfd(0, flags))

    def handles(self) -> tuple[int, int, int]:
        """(memory, doorbell, wake): the descriptors that a worker needs."""
        return self.memory, self.doorbell, self.wake

    def close(self) -> None:
        """Close the descriptors; mappings live on."""
        for fd in self.handles():
            os.close(fd)


class RingServer:
    """Serves one guest's ring on the running event loop."""

    def __init__(
        self,
        ring: GuestRing,
        accept: Accept,
        *,
        names: NameTable | None = None,
        on_violation: Callable[[str], None] | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.names = names or NameTable()
        self._fds = ring
        self._ring = _kvm.Ring(ring.memory)
        self._accept = accept
        self._on_violation = on_violation
        self._turn = turn
        self._waits = False
        self._streams: dict[int, RingTransport] = {}
        self._greeting: dict[int, tuple[str, int, asyncio.TimerHandle]] = {}
        self._last_stream = 0
        self._waiting_for_room: dict[RingTransport, None] = {}
        self._unsent: list[tuple[int, int, int, bytes]] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._taken_bytes = 0  # since the guest was woken
        self._window_end = 0.0
        self._window_left = _FRAMES_PER_WINDOW
        self._throttled: asyncio.TimerHandle | None = None
        self._closed = False
        self._refusing = False
        self.bytes_in = self.bytes_out = 0

    def start(self) -> None:
        """Begin to serve."""
        self.loop.add_reader(self._fds.doorbell, self._on_doorbell)
        self._schedule_sweep()
        self._pump()

    def close(self) -> None:
        """Stop; every stream is lost. May be called twice. The descriptors stay the caller's."""
        if self._closed:
            return
        self._closed = True
        self.loop.remove_reader(self._fds.doorbell)
        for pending in (self._sweep, self._throttled):
            if pending is not None:
                pending.cancel()
        for _, _, timer in self._greeting.values():
            timer.cancel()
        self._greeting.clear()
        for transport in list(self._streams.values()):
            transport.was_reset(errno.ECONNRESET)
        self._streams.clear()
        self._ring.close()

    def on_another(self, ring: GuestRing) -> "RingServer":
        """Return a server like this one for a guest that goes on with another ring; names keep their addresses."""
        return RingServer(ring, self._accept, names=self.names, on_violation=self._on_violation, turn=self._turn)

    def end_streams(self) -> None:
        """End every stream, as a network that goes away, and refuse new ones until `accept_streams`."""
        self._refusing = True
        for transport in list(self._streams.values()):
            transport.abort()

    def accept_streams(self) -> None:
        """Take new streams again."""
        self._refusing = False

    @property
    def stream_count(self) -> int:
        """How many streams the guest has open."""
        return len(self._streams)

    # ---- sending

    def room(self) -> int:
        """Return the payload that fits into one frame now."""
        return 0 if self._closed or self._unsent else self._ring.room()

    def send(self, kind: int, stream: int, aux: int, payload: bytes) -> bool:
        """Put a frame on the ring; False without room."""
        if self._closed or self._unsent:
            return False
        if not self._ring.put(kind, stream, aux, payload):
            return False
        self.bytes_out += len(payload)
        if self._ring.guest_wants_wake():
            self._wake()
        return True

    def send_soon(self, kind: int, stream: int, aux: int, payload: bytes = b"") -> None:
        """Put a small frame on the ring, now or as soon as there is room, in order. Bounded by what a guest can cause:
        one per stream and query, of which it has few."""
        if not self.send(kind, stream, aux, payload) and not self._closed:
            if len(self._unsent) > 4 * _kvm.RING_STREAMS:
                self._violated("it asks and does not read")
                return
            self._unsent.append((kind, stream, aux, payload))
            self._blocked()

    def wants_room(self, transport: RingTransport) -> None:
        """Call transport.has_room when there is room."""
        self._waiting_for_room[transport] = None
        self._blocked()

    def _blocked(self) -> None:
        if not self._closed:
            self._ring.blocked()
            if self._ring.guest_wants_wake():
                self._wake()

    def _wake(self) -> None:
        self._taken_bytes = 0
        try:
            os.eventfd_write(self._fds.wake, 1)
        except BlockingIOError:
            pass  # it is awake enough

    def _retry(self) -> None:
        pending, self._unsent = self._unsent, []
        for index, frame in enumerate(pending):
            if not self.send(*frame):
                self._unsent = pending[index:]
                self._blocked()
                return
        waiting, self._waiting_for_room = self._waiting_for_room, {}
        for transport in waiting:
            transport.has_room()

    # ---- receiving

    def _on_doorbell(self) -> None:
        try:
            os.eventfd_read(self._fds.doorbell)
        except BlockingIOError:
            pass
        self._pump()

    def _schedule_sweep(self) -> None:
        if not self._closed:
            self._sweep = self.loop.call_later(_SWEEP_S, self._on_sweep)

    def _on_sweep(self) -> None:
        self._pump()
        self._schedule_sweep()

    def _pump(self) -> None:
        """Take one budget of frames; come back at once if there is more, else when the doorbell rings."""
        if self._closed or self._throttled is not None or self._waits:
            return
        if self._turn is not None and not self._turn(self._pump_in_turn):
            self._waits = True
            return
        try:
            frames = self._ring.take(_FRAMES_PER_TURN)
        except _kvm.RingViolation as error:
            self._violated(f"its {error} is impossible")
            return
        self._spend(max(1, len(frames)))
        for kind, stream, aux, payload in frames:
            self.bytes_in += len(payload)
            self._taken_bytes += len(payload) + 16
            wrong = self._frame(kind, stream, aux, payload)
            if wrong:
                self._violated(wrong)
            if self._is_closed():
                return
        if self._unsent or self._waiting_for_room:
            self._retry()
        if self._taken_bytes >= _ROOM_BYTES and not self._closed and self._ring.guest_wants_wake():
            self._wake()  # it may sleep for want of room, and nothing that is sent would wake it
        if not self._closed and (len(frames) == _FRAMES_PER_TURN or not self._ring.may_sleep()):
            self.loop.call_soon(self._pump)

    def _pump_in_turn(self) -> None:
        self._waits = False
        self._pump()

    def _spend(self, count: int) -> None:
        """Count what this turn cost; over the window's share, hear nothing of this guest until the next one."""
        now = self.loop.time()
        if now >= self._window_end:
            self._window_end, self._window_left = now + _WINDOW_S, _FRAMES_PER_WINDOW
        self._window_left -= count
        if self._window_left < 0:
            self.loop.remove_reader(self._fds.doorbell)
            self._throttled = self.loop.call_at(self._window_end, self._unthrottle)

    def _unthrottle(self) -> None:
        self._throttled = None
        self.loop.add_reader(self._fds.doorbell, self._on_doorbell)
        self._pump()

    def _is_closed(self) -> bool:
        return self._closed  # a call, because handling a frame may have changed it

    def _violated(self, what: str) -> None:
        if not self._closed:
            self.close()
            if self._on_violation is not None:
                self._on_violation(what)

    def _frame(self, kind: int, stream: int, aux: int, payload: bytes) -> str | None:
        """Handle one frame; return what is wrong with it, or None."""
        if kind == _kvm.FRAME_OPEN:
            return self._open(stream, payload)
        if kind == _kvm.FRAME_NAME_QUERY:
            answer = self.names.answer(payload)
            if answer is not None and len(answer) <= 1400:
                self.send_soon(_kvm.FRAME_NAME_ANSWER, stream, 0, answer)
            return None
        transport = self._streams.get(stream)
        if transport is None:  # reset by us while this frame was under way
            return None if stream <= self._last_stream else "a frame for a stream that was never opened"
        if kind == _kvm.FRAME_DATA:
            if not transport.received(payload):
                return "it sent more than it had credit for"
            self._greet(stream, transport)
        elif kind == _kvm.FRAME_FIN:
            self._greet(stream, transport, force=True)
            transport.ended()
        elif kind == _kvm.FRAME_CREDIT:
            return None if transport.credited(aux) else "it gave credit for what it never received"
        elif kind == _kvm.FRAME_RESET:
            self.forget(stream)
            transport.was_reset(aux & 0xFF)
        return None

    def forget(self, stream: int) -> None:
        """Take a stream out of the tables."""
        self._streams.pop(stream, None)
        greeting = self._greeting.pop(stream, None)
        if greeting is not None:
            greeting[2].cancel()

    def _open(self, stream: int, payload: bytes) -> str | None:
        if stream <= self._last_stream:
            return "it used a stream's number twice"
        if len(payload) != _OPEN.size:
            return "an OPEN of the wrong size"
        self._last_stream = stream
        family, port, raw = _OPEN.unpack(payload)
        if family not in (_AF_INET, _AF_INET6) or not port:
            self.send_soon(_kvm.FRAME_RESET, stream, errno.EADDRNOTAVAIL)
            return None
        if self._refusing or len(self._streams) >= _kvm.RING_STREAMS:
            self.send_soon(_kvm.FRAME_RESET, stream, errno.ECONNRESET if self._refusing else errno.ENOBUFS)
            return None
        address = str(ipaddress.IPv4Address(raw[:4]) if family == _AF_INET else ipaddress.IPv6Address(raw))
        host = self.names.name_of(address) or address
        self._streams[stream] = RingTransport(self, stream, (host, port))
        timer = self.loop.call_later(_GREETING_WAIT_S, self._silence, stream)
        self._greeting[stream] = (host, port, timer)
        return None

    def _silence(self, stream: int) -> None:
        transport = self._streams.get(stream)
        if transport is not None:
            self._greet(stream, transport, force=True)

    def _greet(self, stream: int, transport: RingTransport, *, force: bool = False) -> None:
        """Find out from a stream's first bytes what it is, and put a protocol in charge."""
        greeting = self._greeting.get(stream)
        if greeting is None:
            return
        host, port, timer = greeting
        seen = transport.peek()
        opened = read_greeting(seen, host, port)
        if opened is None:
            if not force:
                return
            if seen.startswith(PREFACE[:1]):
                transport.abort()  # a preface that never ends, or none of ours
                return
            opened = (StreamOpen(host, port, False), 0)
        timer.cancel()
        del self._greeting[stream]
        transport.drop(opened[1])
        protocol = self._accept(opened[0])
        if protocol is None:
            self.send_soon(_kvm.FRAME_RESET, stream, errno.ECONNREFUSED)
            self.forget(stream)
            transport.was_reset(0)
            return
        transport.attach(protocol, opened[0])
