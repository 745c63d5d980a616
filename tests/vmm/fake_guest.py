"""The guest's side of a ring in Python: speaks the real protocol, and lies when a test wants it to."""

from __future__ import annotations

import mmap
import os
import struct

from seamgate_vmm import _kvm
from seamgate_vmm.ring import GuestRing

TX_HEAD, TX_TAIL, RX_HEAD, RX_TAIL, HOST_SLEEPING, GUEST_SLEEPING, HOST_BLOCKED = (n * 64 for n in range(7))
_FRAME = struct.Struct("<IHHII")


class FakeGuest:
    """Writes and reads frames as ring.c of the shim does."""

    def __init__(self, ring: GuestRing) -> None:
        self.ring = ring
        self.memory = mmap.mmap(ring.memory, 0)
        self.head = self.tail = 0
        self.stream = 0

    def word(self, at: int) -> int:
        """Read a shared word."""
        return int(struct.unpack_from("<I", self.memory, at)[0])

    def set_word(self, at: int, value: int) -> None:
        """Write a shared word."""
        struct.pack_into("<I", self.memory, at, value & 0xFFFFFFFF)

    def raw(self, data: bytes, published: int | None = None) -> None:
        """Put bytes at the head, wrapped, and publish them, or another number of bytes."""
        for i, byte in enumerate(data):
            self.memory[_kvm.RING_TX_OFFSET + (self.head + i) % _kvm.RING_TX_SIZE] = byte
        self.head += len(data) if published is None else published
        self.set_word(TX_HEAD, self.head)
        self.bell()

    def bell(self) -> None:
        """Ring the doorbell."""
        os.eventfd_write(self.ring.doorbell, 1)

    def frame(self, kind: int, stream: int, payload: bytes = b"", aux: int = 0, length: int | None = None) -> None:
        """Send a frame, after a pad where it would wrap."""
        data = _FRAME.pack(len(payload) if length is None else length, kind, 0, stream, aux) + payload
        data += bytes(-len(data) % 16)
        left = _kvm.RING_TX_SIZE - self.head % _kvm.RING_TX_SIZE
        if left < len(data):
            self.raw(_FRAME.pack(left - 16, _kvm.FRAME_PAD, 0, 0, 0) + bytes(left - 16))
        self.raw(data)

    def open(self, address: str, port: int) -> int:
        """Open a stream to an IPv4 address."""
        self.stream += 1
        raw = bytes(int(x) for x in address.split(".")) + bytes(12)
        self.frame(_kvm.FRAME_OPEN, self.stream, struct.pack("<HH16s", 2, port, raw))
        return self.stream

    def data(self, stream: int, payload: bytes) -> None:
        """Send bytes on a stream."""
        self.frame(_kvm.FRAME_DATA, stream, payload)

    def receive(self) -> list[tuple[int, int, int, bytes]]:
        """Take all frames: (type, stream, aux, payload)."""
        out = []
        while self.tail != self.word(RX_HEAD):
            at = _kvm.RING_RX_OFFSET + self.tail % _kvm.RING_RX_SIZE
            length, kind, _, stream, aux = _FRAME.unpack_from(self.memory, at)
            payload = bytes(self.memory[at + 16 : at + 16 + length])
            self.tail = (self.tail + 16 + length + 15) & ~15 & 0xFFFFFFFF
            self.set_word(RX_TAIL, self.tail)
            if kind != _kvm.FRAME_PAD:
                out.append((kind, stream, aux, payload))
        if self.word(HOST_BLOCKED):
            self.set_word(HOST_BLOCKED, 0)
            self.bell()
        return out

    def close(self) -> None:
        """Unmap."""
        self.memory.close()
