"""The host's side of a ring against a guest that speaks the protocol, and against one that lies. Needs no KVM."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable

import pytest
from dnslib import QTYPE, DNSRecord

from seamgate_vmm import _kvm
from seamgate_vmm.greeting import PREFACE
from seamgate_vmm.names import NXDOMAIN, NameTable
from seamgate_vmm.ring import GuestRing, RingServer, RingTransport, StreamOpen

from .fake_guest import GUEST_SLEEPING, RX_TAIL, TX_HEAD, FakeGuest


class Recorder(asyncio.Protocol):
    """Keeps what happens to it."""

    def __init__(self, opened: StreamOpen) -> None:
        self.opened = opened
        self.data = bytearray()
        self.events: list[str] = []
        self.keep_open = False
        self.error: BaseException | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, RingTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append("lost")
        self.error = exc

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Bench:
    """A served ring with a fake guest; `turns` waits for it to be its turn, where it is not None."""

    def __init__(self, names: NameTable | None = None, refuse: bool = False) -> None:
        self.turns: list[Callable[[], None]] | None = None
        self.ring = GuestRing.create()
        self.guest = FakeGuest(self.ring)
        self.protocols: list[Recorder] = []
        self.violations: list[str] = []
        self.refuse = refuse
        self.server = RingServer(
            self.ring, self.accept, names=names, on_violation=self.violations.append, turn=self.turn
        )
        self.server.start()

    def turn(self, go_on: Callable[[], None]) -> bool:
        if self.turns is not None:
            self.turns.append(go_on)
        return self.turns is None

    def accept(self, opened: StreamOpen) -> asyncio.BaseProtocol | None:
        if self.refuse:
            return None
        self.protocols.append(Recorder(opened))
        return self.protocols[-1]

    async def settle(self) -> None:
        """Let the loop see the doorbell and do all that follows."""
        for _ in range(12):
            await asyncio.sleep(0)

    async def stream(self, first: bytes = b"hello", host: str = "192.0.2.1", port: int = 80) -> tuple[int, Recorder]:
        """Open a stream, send something, and return its number and protocol."""
        number = self.guest.open(host, port)
        self.guest.data(number, first)
        await self.settle()
        return number, self.protocols[-1]

    def close(self) -> None:
        self.server.close()
        self.guest.close()
        self.ring.close()


def with_bench(test: Callable[[Bench], Awaitable[None]], **options: object) -> None:
    """Run a test's coroutine with a bench."""

    async def run() -> None:
        bench = Bench(**options)  # type: ignore[arg-type]
        try:
            await test(bench)
        finally:
            bench.close()
            await asyncio.sleep(0)

    asyncio.run(run())


def test_nothing_is_taken_off_a_ring_while_it_is_others_turn() -> None:
    """It waits once, however often the guest rings, and goes on with all that came when it is called."""

    async def check(b: Bench) -> None:
        number, p = await b.stream(b"a")
        b.turns = []
        for _ in range(3):
            b.guest.data(number, b"b")
            await b.settle()
        assert (bytes(p.data), len(b.turns)) == (b"a", 1)
        (go_on,), b.turns = b.turns, None
        go_on()
        await b.settle()
        assert bytes(p.data) == b"abbb"

    with_bench(check)


def test_bytes_go_both_ways() -> None:
    """A stream is a transport: data arrives whole, what is written goes out, peername is what the guest named."""

    async def check(b: Bench) -> None:
        number, p = await b.stream(b"GET /")
        assert (bytes(p.data), p.transport.get_extra_info("peername")) == (b"GET /", ("192.0.2.1", 80))
        assert p.opened == StreamOpen("192.0.2.1", 80, False)
        p.transport.write(b"answer")
        assert b.guest.receive() == [(_kvm.FRAME_DATA, number, 0, b"answer")]

    with_bench(check)


def test_a_guest_that_waits_for_room_is_woken() -> None:
    """Who found its ring full sleeps until the host has taken a part of it, although nothing is sent to it."""

    async def check(b: Bench) -> None:
        number, _ = await b.stream()
        b.guest.set_word(GUEST_SLEEPING, 1)
        for _ in range(3):
            b.guest.data(number, bytes(_kvm.RING_TX_SIZE // 8))
        await b.settle()
        assert b.guest.receive() == []  # not even credit
        assert (os.eventfd_read(b.ring.wake), b.guest.word(GUEST_SLEEPING)) == (1, 0)

    with_bench(check)


def test_preface_makes_a_tls_stream() -> None:
    """The preface carries the server's name and protocols, is taken out of the bytes, and may come in any pieces."""

    async def check(b: Bench) -> None:
        body = b"API.test\0http/1.1,h2"
        whole = PREFACE + len(body).to_bytes(2, "big") + body + b"GET /"
        for cut in range(1, len(whole)):
            number = b.guest.open("198.18.0.9", 443)
            b.guest.data(number, whole[:cut])
            b.guest.data(number, whole[cut:])
            await b.settle()
            p = b.protocols[-1]
            assert p.opened == StreamOpen("198.18.0.9", 443, True, "api.test", ("http/1.1", "h2"))
            assert bytes(p.data) == b"GET /"
            b.guest.frame(_kvm.FRAME_RESET, number)
            await b.settle()

    with_bench(check)


def test_a_real_client_hello_is_told() -> None:
    """Bytes that begin a TLS handshake are marked, so that the gateway terminates or refuses them."""

    async def check(b: Bench) -> None:
        _, p = await b.stream(b"\x16\x03\x01\x00\x10")
        assert p.opened.client_hello
        assert not p.opened.tls

    with_bench(check)


def test_a_broken_preface_is_no_tls() -> None:
    """What only looks like a preface is passed on as it is, for the protocol to refuse; one too long as well."""

    async def check(b: Bench) -> None:
        _, p = await b.stream(b"\0garbage and more")
        assert not p.opened.tls
        _, p = await b.stream(PREFACE + b"\xff\xff" + b"x" * 100)
        assert not p.opened.tls

    with_bench(check)


def test_names_are_answered_without_a_lookup() -> None:
    """A name gets an address of its own; a connection to that address is told by its name; AAAA is empty."""

    async def check(b: Bench) -> None:
        b.guest.frame(_kvm.FRAME_NAME_QUERY, 1, DNSRecord.question("Example.COM").pack())
        b.guest.frame(_kvm.FRAME_NAME_QUERY, 1, DNSRecord.question("example.com", "AAAA").pack())
        await b.settle()
        answers = [DNSRecord.parse(payload) for _, _, _, payload in b.guest.receive()]
        address = str(answers[0].rr[0].rdata)
        assert address.startswith("198.18.")
        assert (answers[1].rr, answers[1].header.rcode) == ([], 0)
        _, p = await b.stream(host=address)
        assert p.opened.host == "example.com"

    with_bench(check)


def test_a_denied_name_is_nxdomain() -> None:
    """The gateway may deny a name; garbage is not answered at all."""

    async def check(b: Bench) -> None:
        b.guest.frame(_kvm.FRAME_NAME_QUERY, 1, DNSRecord.question("evil.test").pack())
        b.guest.frame(_kvm.FRAME_NAME_QUERY, 1, b"\x00\x01garbage")
        b.guest.frame(_kvm.FRAME_NAME_QUERY, 1, b"")
        await b.settle()
        (answer,) = b.guest.receive()
        assert DNSRecord.parse(answer[3]).header.rcode == NXDOMAIN
        assert not b.violations

    with_bench(check, names=NameTable(lambda name: NXDOMAIN))


def test_a_guest_cannot_have_names_without_end() -> None:
    """After its share of names a guest gets SERVFAIL for new ones; known ones still work."""
    table = NameTable()
    for i in range(4096):
        assert table.address_of(f"n{i}.test") is not None
    assert table.address_of("one.more") is None
    assert table.address_of("n7.test") is not None
    answer = table.answer(DNSRecord.question("one.more", "A").pack())
    assert answer is not None
    assert DNSRecord.parse(answer).header.rcode == 2
    assert QTYPE.A == 1


def test_refusal_is_a_reset() -> None:
    """A stream that the gateway does not take is reset with ECONNREFUSED."""

    async def check(b: Bench) -> None:
        number = b.guest.open("192.0.2.1", 80)
        b.guest.data(number, b"x")
        await b.settle()
        assert b.guest.receive() == [(_kvm.FRAME_RESET, number, errno.ECONNREFUSED, b"")]
        assert b.server.stream_count == 0

    with_bench(check, refuse=True)


def test_half_close_and_close() -> None:
    """FIN is eof_received; a protocol that keeps the stream open can still answer; close sends FIN after the data."""

    async def check(b: Bench) -> None:
        number, p = await b.stream()
        p.keep_open = True
        b.guest.frame(_kvm.FRAME_FIN, number)
        await b.settle()
        assert p.events == ["made", "eof"]
        p.transport.write(b"bye")
        p.transport.close()
        await b.settle()
        assert [f[0] for f in b.guest.receive()] == [_kvm.FRAME_DATA, _kvm.FRAME_FIN]
        assert p.events == ["made", "eof", "lost"]
        b.guest.frame(_kvm.FRAME_RESET, number)
        await b.settle()
        assert b.server.stream_count == 0

    with_bench(check)


def test_reset_by_the_guest() -> None:
    """A guest's plain close is a clean end, with an errno a ConnectionResetError; a protocol hears it once."""

    async def check(b: Bench) -> None:
        number, p = await b.stream()
        b.guest.frame(_kvm.FRAME_RESET, number, aux=0)
        await b.settle()
        assert (p.events, p.error) == (["made", "lost"], None)
        number, p = await b.stream()
        b.guest.frame(_kvm.FRAME_RESET, number, aux=errno.ECONNRESET)
        await b.settle()
        assert isinstance(p.error, ConnectionResetError)
        p.transport.abort()
        p.transport.close()
        p.transport.write(b"x")
        await b.settle()
        assert p.events.count("lost") == 1

    with_bench(check)


def test_abort_resets() -> None:
    """abort sends RESET; frames that were under way are ignored, not a violation."""

    async def check(b: Bench) -> None:
        number, p = await b.stream()
        p.transport.abort()
        b.guest.data(number, b"late")
        await b.settle()
        assert b.guest.receive() == [(_kvm.FRAME_RESET, number, errno.ECONNRESET, b"")]
        assert p.events == ["made", "lost"]
        assert not b.violations

    with_bench(check)


def test_credit_and_water() -> None:
    """More than the guest's window waits here; the protocol is paused and resumed; nothing is lost or reordered."""

    async def check(b: Bench) -> None:
        number, p = await b.stream()
        sent = random.Random(1).randbytes(300_000)
        p.transport.write(sent)
        assert p.events[-1] == "pause"
        assert p.transport.get_write_buffer_size() > 0
        got = b""
        for _ in range(200):
            frames = b.guest.receive()
            fresh = b"".join(f[3] for f in frames if f[0] == _kvm.FRAME_DATA)
            got += fresh
            if fresh:
                b.guest.frame(_kvm.FRAME_CREDIT, number, aux=len(fresh))
            await b.settle()
            if len(got) == len(sent):
                break
        assert got == sent
        assert p.events[-1] == "resume"
        with pytest.raises(ValueError, match="must be >="):
            p.transport.set_write_buffer_limits(high=1, low=2)

    with_bench(check)


def test_pause_reading_holds_the_guest() -> None:
    """While paused nothing is delivered and no credit given, so that a guest can make us hold one window at most."""

    async def check(b: Bench) -> None:
        number, p = await b.stream(b"x")
        p.transport.pause_reading()
        total = 1
        while total + 16_000 <= _kvm.RING_TX_WINDOW:
            b.guest.data(number, b"y" * 16_000)
            total += 16_000
            await b.settle()
        assert bytes(p.data) == b"x"
        assert not b.guest.receive()
        p.transport.resume_reading()
        await b.settle()
        assert len(p.data) == total
        assert [f[0] for f in b.guest.receive()] == [_kvm.FRAME_CREDIT]

    with_bench(check)


def test_silence_lets_the_server_speak_first() -> None:
    """A stream on which the guest says nothing is opened all the same, after a moment."""

    async def check(b: Bench) -> None:
        b.guest.open("192.0.2.1", 25)
        async with asyncio.timeout(40):
            while not b.protocols:  # noqa: ASYNC110 - the moment is the ring's own timer
                await asyncio.sleep(0.02)
        assert b.protocols[0].opened == StreamOpen("192.0.2.1", 25, False)

    with_bench(check)


def _lie_index(b: Bench, _: int) -> None:
    b.guest.set_word(TX_HEAD, b.guest.head + _kvm.RING_TX_SIZE + 16)
    b.guest.bell()


def _lie_half(b: Bench, _: int) -> None:
    b.guest.raw(b"x" * 8)


def _lie_length(b: Bench, n: int) -> None:
    b.guest.frame(_kvm.FRAME_DATA, n, b"x" * 16, length=100_000)


def _lie_unpublished(b: Bench, n: int) -> None:
    b.guest.frame(_kvm.FRAME_DATA, n, b"x" * 16, length=64)


def _lie_wrap(b: Bench, n: int) -> None:
    b.guest.frame(_kvm.FRAME_DATA, n, b"x", length=0xFFFFFFF0)


def _lie_type(b: Bench, n: int) -> None:
    b.guest.frame(_kvm.FRAME_NAME_ANSWER, n, b"x")


def _lie_pad(b: Bench, _: int) -> None:
    b.guest.frame(_kvm.FRAME_PAD, 0, b"")


def _lie_unknown(b: Bench, n: int) -> None:
    b.guest.data(n + 7, b"x")


def _lie_twice(b: Bench, n: int) -> None:
    b.guest.stream = n - 1
    b.guest.open("192.0.2.1", 80)


def _lie_open(b: Bench, n: int) -> None:
    b.guest.frame(_kvm.FRAME_OPEN, n + 1, b"short")


def _lie_credit(b: Bench, n: int) -> None:
    b.guest.frame(_kvm.FRAME_CREDIT, n, aux=0xFFFFFFFF)


def _lie_after_fin(b: Bench, n: int) -> None:
    b.protocols[-1].keep_open = True
    b.guest.frame(_kvm.FRAME_FIN, n)
    b.guest.data(n, b"more")


@pytest.mark.parametrize(
    "lie",
    [_lie_index, _lie_half, _lie_length, _lie_unpublished, _lie_wrap, _lie_type, _lie_pad, _lie_unknown, _lie_twice,
     _lie_open, _lie_credit, _lie_after_fin],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_a_lying_guest_is_reported_once(lie: Callable[[Bench, int], None]) -> None:
    """Impossible indices, lengths, types, numbers and credits end the ring, with one report and its streams lost."""

    async def check(b: Bench) -> None:
        number, p = await b.stream()
        lie(b, number)
        await b.settle()
        assert len(b.violations) == 1
        assert p.events[-1] == "lost"
        b.guest.bell()
        await b.settle()
        assert len(b.violations) == 1

    with_bench(check)


def test_more_than_its_credit_is_a_violation() -> None:
    """A guest that sends more than it was given credit for is ended, whatever the protocol does."""

    async def check(b: Bench) -> None:
        number, p = await b.stream()
        p.transport.pause_reading()
        for _ in range(_kvm.RING_TX_WINDOW // 16_000 + 2):
            b.guest.data(number, b"z" * 16_000)
            await b.settle()
            if b.violations:
                break
        assert b.violations == ["it sent more than it had credit for"]

    with_bench(check)


def test_streams_are_limited() -> None:
    """A guest has 64 streams; the next is refused with ENOBUFS and ends nothing."""

    async def check(b: Bench) -> None:
        for _ in range(_kvm.RING_STREAMS):
            b.guest.open("192.0.2.1", 80)
        extra = b.guest.open("192.0.2.1", 80)
        await b.settle()
        assert b.guest.receive() == [(_kvm.FRAME_RESET, extra, errno.ENOBUFS, b"")]
        assert b.server.stream_count == _kvm.RING_STREAMS
        assert not b.violations

    with_bench(check)


def test_a_guest_that_lies_about_reading_only_hurts_itself() -> None:
    """A reader's index ahead of what was sent looks like a full ring: nothing is written, nothing breaks here."""

    async def check(b: Bench) -> None:
        _, p = await b.stream()
        b.guest.set_word(RX_TAIL, 0x7FFFFFF0)
        p.transport.write(b"lost on it")
        await b.settle()
        assert p.transport.get_write_buffer_size() == 10

    with_bench(check)


def test_one_guest_cannot_hold_up_the_loop() -> None:
    """A flood is taken in turns of a budget, with other work between them."""

    async def check(b: Bench) -> None:
        number, _ = await b.stream()
        for _ in range(1000):
            b.guest.frame(_kvm.FRAME_CREDIT, number, aux=0)
        turns = 0
        while b.guest.word(64) != b.guest.head and turns < 100:
            turns += 1
            await asyncio.sleep(0)
        assert 1000 // 64 <= turns < 100

    with_bench(check)


def test_a_guest_that_rings_without_end_is_throttled() -> None:
    """Doorbells for nothing cost the loop a bounded number of turns in a window; then the guest is heard again."""

    async def check(b: Bench) -> None:
        number, p = await b.stream()
        turns, loop = 0, asyncio.get_running_loop()
        until = loop.time() + 0.09
        pump = b.server._pump

        def counted() -> None:
            nonlocal turns
            turns += 1
            pump()

        b.server._pump = counted  # type: ignore[method-assign]
        while loop.time() < until:
            b.guest.bell()
            await asyncio.sleep(0)
        assert turns <= 4100
        b.guest.data(number, b" again")
        async with asyncio.timeout(40):
            while not p.data.endswith(b"again"):  # noqa: ASYNC110 - a timer of the ring ends it
                await asyncio.sleep(0.01)

    with_bench(check)


def test_a_thousand_random_rings() -> None:
    """Random bytes and random indices give frames, nothing, or a violation; never another error."""
    dice = random.Random(3)
    for _ in range(300):
        ring = GuestRing.create()
        guest, host = FakeGuest(ring), _kvm.Ring(ring.memory)
        guest.memory[_kvm.RING_TX_OFFSET : _kvm.RING_TX_OFFSET + 4096] = dice.randbytes(4096)
        for at in range(_kvm.RING_TX_OFFSET, _kvm.RING_TX_OFFSET + 4096, 16):
            if dice.random() < 0.9:
                guest.memory[at : at + 8] = bytes([dice.randrange(64), 0, 0, 0, dice.randrange(1, 9), 0, 0, 0])
        guest.set_word(TX_HEAD, dice.choice([16, 256, 4096, dice.randrange(1 << 32)]))
        try:
            for kind, _, _, payload in host.take(1000):
                assert kind != _kvm.FRAME_PAD
                assert len(payload) <= _kvm.RING_MAX_PAYLOAD
        except _kvm.RingViolation as error:
            assert str(error) in ("index", "length", "type")
        host.close()
        guest.close()
        ring.close()


def test_ring_memory_must_be_sealed() -> None:
    """Memory that its other holder could shrink under us is refused."""
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _kvm.RING_BYTES)
    with pytest.raises(ValueError, match="sealed"):
        _kvm.Ring(fd)
    os.close(fd)
