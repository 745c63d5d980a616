"""A guest's side of a ring in the test's own process, served by a lab's gateway: the entry `ring` without a machine.

    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        assert (await client.ask("GET", "/x")).status == 200

Everything is real but the virtual machine: shared memory, frames, credits, names, and the gateway's side of it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from typing import Any, cast

from dnslib import DNSRecord

from seamgate.config import KvmEntry
from seamgate.entry.ring import RingGuest
from seamgate.flow import Guest, Isolation
from seamgate.streams import Receiver, TlsStream
from seamgate_vmm import _kvm
from seamgate_vmm.greeting import PREFACE
from seamgate_vmm.names import NameTable
from seamgate_vmm.ring import GuestRing, RingServer
from support.client import Client
from support.lab import Lab
from support.line import Line
from vmm.fake_guest import GUEST_SLEEPING, TX_TAIL, FakeGuest

GUEST = Guest("run", {"team": "research"}, Isolation.KVM, "team=research")


def preface(server_name: str) -> bytes:
    """Return what the template's `ssl` layer sends before the plaintext."""
    body = server_name.encode() + b"\0http/1.1"
    return PREFACE + len(body).to_bytes(2, "big") + body


class _Stream:
    """The guest's end of a stream: as much of a transport as a `Line` needs."""

    def __init__(self, ringed: Ringed, line: Receiver, number: int) -> None:
        self.line = line
        self.number = number
        self._ringed = ringed
        self._credit = _kvm.RING_TX_WINDOW
        self._out = b""
        self._lost = False
        self.reset_with: int | None = None

    def write(self, data: bytes) -> None:
        """Send, as far as there is credit."""
        self._out += data
        while self._out and self._credit:
            size = min(len(self._out), self._credit, _kvm.RING_MAX_PAYLOAD)
            self._ringed.send(_kvm.FRAME_DATA, self.number, self._out[:size])
            self._out = self._out[size:]
            self._credit -= size

    def take(self, kind: int, aux: int, payload: bytes) -> None:
        """A frame from the gateway."""
        if kind == _kvm.FRAME_DATA:
            self.line.data_received(payload)
            self._ringed.send(_kvm.FRAME_CREDIT, self.number, aux=len(payload))
        elif kind == _kvm.FRAME_CREDIT:
            self._credit += aux
            self.write(b"")
        elif kind == _kvm.FRAME_FIN:
            self.line.eof_received()
        elif kind == _kvm.FRAME_RESET:
            self.reset_with = aux
            self._lose(ConnectionResetError(aux, os.strerror(aux)))

    def close(self) -> None:
        """Close as a program does: nothing is sent or read any more."""
        if not self._lost:
            self._ringed.send(_kvm.FRAME_RESET, self.number)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self.line.connection_lost(error)

    def is_closing(self) -> bool:
        """Whether it is over."""
        return self._lost

    def abort(self) -> None:
        """Close."""
        self.close()

    def get_extra_info(self, _: str, default: Any = None) -> Any:
        """There is nothing more to know."""
        return default

    def pause_reading(self) -> None:
        """A test's client reads all that comes."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for credit."""
        return len(self._out)


class Ringed:
    """A served ring and its guest."""

    def __init__(self, lab: Lab, who: Guest = GUEST, entry: KvmEntry | None = None) -> None:
        self.lab = lab
        self.violations: list[str] = []
        self.ring = GuestRing.create()
        self.guest = FakeGuest(self.ring)
        self.entry = RingGuest(lab.gateway, who, entry or KvmEntry())
        self.names = NameTable(self.entry.judge_name)
        self.server: RingServer
        self._streams: dict[int, _Stream] = {}
        self._waiting: deque[tuple[int, int, bytes, int]] = deque()
        self._answers: list[bytes] = []
        self._answered = asyncio.Event()

    async def __aenter__(self) -> Ringed:
        self.server = RingServer(
            self.ring,
            self.entry.accept,
            names=self.names,
            on_violation=self.violations.append,
            turn=self.entry.turn,
        )
        self.server.start()
        asyncio.get_running_loop().add_reader(self.ring.wake, self._woken)
        self.guest.set_word(GUEST_SLEEPING, 1)  # the guest sleeps: wake it for every frame
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self.ring.wake)
        self.server.close()
        self.guest.close()
        self.ring.close()

    def _woken(self) -> None:
        os.eventfd_read(self.ring.wake)
        self.guest.set_word(GUEST_SLEEPING, 1)
        for kind, stream, aux, payload in self.guest.receive():
            if kind == _kvm.FRAME_NAME_ANSWER:
                self._answers.append(payload)
                self._answered.set()
            elif stream in self._streams:
                self._streams[stream].take(kind, aux, payload)

    def send(self, kind: int, stream: int, payload: bytes = b"", aux: int = 0) -> None:
        """Put a frame on the ring, in order, once there is room."""
        self._waiting.append((kind, stream, payload, aux))
        if len(self._waiting) == 1:
            self._pump()

    def _pump(self) -> None:
        while self._waiting and not self.violations and not self.guest.memory.closed:
            kind, stream, payload, aux = self._waiting[0]
            used = (self.guest.head - self.guest.word(TX_TAIL)) & 0xFFFFFFFF
            if _kvm.RING_TX_SIZE - used < 2 * (len(payload) + 32):  # twice: it may need a pad before it
                asyncio.get_running_loop().call_later(0.001, self._pump)
                return
            self.guest.frame(kind, stream, payload, aux)
            self._waiting.popleft()

    # -- what a guest does -------------------------------------------------------------------------------------------

    async def resolve(self, name: str, kind: str = "A") -> tuple[int, str]:
        """Ask for a name: (code, address or "")."""
        self._answered.clear()
        self.guest.frame(_kvm.FRAME_NAME_QUERY, 0, cast("bytes", DNSRecord.question(name, kind).pack()))
        await self._answered.wait()
        answer = DNSRecord.parse(self._answers.pop())
        return int(answer.header.rcode), str(answer.rr[0].rdata) if answer.rr else ""

    async def open(self, host: str = "", port: int = 0, *, first: bytes = b"") -> Line:
        """Open a stream to a name or an address, as of the first upstream, and send its first bytes."""
        line = Line()
        stream = await self._open(line, host, port)
        if first:
            stream.write(first)
        return line

    async def _open(self, line: Receiver, host: str, port: int) -> _Stream:
        name, _, number = self.lab.authority().rpartition(":")
        host, port = host or name, port or int(number)
        address = host if host.replace(".", "").isdigit() else (await self.resolve(host))[1]
        assert address, f"{host} was not given an address"
        stream = _Stream(self, line, self.guest.open(address, port))
        self._streams[stream.number] = stream
        line.connection_made(stream)
        return stream

    async def own_tls(self, server_name: str, context: ssl.SSLContext, host: str = "") -> Client:
        """Open a stream, to a host or the first upstream, and do TLS of one's own in it. Raises what fails."""
        line = Line()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tls = TlsStream(
            line,
            context=context,
            server_hostname=server_name,
            on_failure=over.set_exception,
            on_established=lambda: over.set_result(None),
        )
        await self._open(tls, host, 0)
        await over
        return Client(line, self.lab.authority())

    async def tls(self, host: str = "", port: int = 0, *, server_name: str = "") -> Client:
        """Open a stream as the template's `ssl` layer does."""
        name = host or self.lab.authority().rpartition(":")[0]
        line = await self.open(host, port, first=preface(server_name or name))
        return Client(line, f"{name}:{port}" if port else self.lab.authority())

    async def plain(self, host: str = "", port: int = 0) -> Client:
        """Open a stream for plain HTTP."""
        name = host or self.lab.authority().rpartition(":")[0]
        return Client(await self.open(host, port), f"{name}:{port}" if port else self.lab.authority())
