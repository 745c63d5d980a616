"""TLS over memory: both sides of `TlsStream` joined by two transports that a test pumps by hand, in any pieces."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamgate.errors import GuestProtocolError, Reason
from seamgate.protocol.client_hello import ClientHello
from seamgate.protocol.work import FINISHED, HELLO, VERIFIED
from seamgate.records import PARTS
from seamgate.streams import TlsStream
from seamgate.turns import BUDGET, Share
from support.certificates import careless_context, server_context, upstream_ca
from support.openssl import KeyChanger


@pytest.fixture(autouse=True, scope="module", params=["C", "Python"])
def records(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every rule of streams holds with the records in C, and with their twin."""
    assert PARTS.native is not None
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Python":
            patch.setattr(PARTS, "native", None)
        yield


class Wire:
    """What stands below a stream: keeps what was written until the test carries it over."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.aborted = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return "peer" if name == "peername" else default


class Above:
    """What stands above a stream: notes what it was told."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = b""
        self.pieces = 0
        self.ended = self.lost = False
        self.error: Exception | None = None
        self.writable = True

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.error = True, exc

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True


class Pair:
    """A client's and a server's stream, with what stands above and below them."""

    def __init__(
        self,
        *,
        name: str = "api.test",
        choose: Any = None,
        context: ssl.SSLContext | None = None,
        shares: tuple[Share | None, Share | None] = (None, None),
    ) -> None:
        self.failures: list[Exception] = []
        self.hellos: list[ClientHello] = []
        self.client_above, self.server_above = Above(), Above()
        self.client_wire, self.server_wire = Wire(), Wire()
        self.client = TlsStream(
            self.client_above,
            context=context or _trusting(),
            server_hostname=name,
            on_failure=self.failures.append,
            share=shares[0],
        )
        self.server = TlsStream(
            self.server_above, choose=choose or self._choose, on_failure=self.failures.append, share=shares[1]
        )
        self.server.connection_made(self.server_wire)
        self.client.connection_made(self.client_wire)

    def _choose(self, hello: ClientHello) -> ssl.SSLContext:
        self.hellos.append(hello)
        return server_context("api.test")

    def carry(self, size: int = 1 << 20) -> None:
        """Carry bytes over, so many at a time, until both sides are quiet."""
        while self.client_wire.written or self.server_wire.written:
            self.carry_once(size)

    def carry_once(self, size: int) -> None:
        """Carry so many bytes over, of each side."""
        for wire, stream in ((self.client_wire, self.server), (self.server_wire, self.client)):
            data, wire.written = wire.written[:size], wire.written[size:]
            if data:
                stream.data_received(data)


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    upstream_ca().configure_trust(context)
    return context


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_handshake_and_data_both_ways(size: int) -> None:
    """In whatever pieces the bytes come, both sides are connected once and read what was written."""
    pair = Pair()
    pair.carry(size)
    assert pair.failures == []
    assert pair.hellos == [ClientHello("api.test", ())]
    pair.client.write(b"ping" * 10_000)
    pair.server.write(b"pong")
    pair.carry(size)
    assert (pair.server_above.received, pair.client_above.received) == (b"ping" * 10_000, b"pong")


@settings(max_examples=25)
@given(pieces=st.lists(st.binary(max_size=40_000), max_size=6), size=st.integers(1, 70_000))
def test_any_pieces_arrive_in_order(pieces: list[bytes], size: int) -> None:
    """What was written is read, whatever the pieces on either layer."""
    pair = Pair()
    pair.carry()
    for piece in pieces:
        pair.client.write(piece)
    pair.carry(size)
    assert pair.server_above.received == b"".join(pieces)


@settings(max_examples=60)
@given(
    written=st.lists(st.integers(1, 50) | st.integers(16_300, 16_500) | st.integers(1, 50_000), min_size=1, max_size=5),
    carried=st.lists(st.integers(1, 60) | st.integers(1, 20_000), min_size=1, max_size=6),
)
def test_records_that_come_in_parts_are_read_whole(written: list[int], carried: list[int]) -> None:
    """However the ciphertext is cut, within records and across them, all plaintext is given up, and nothing waits."""
    pair = Pair()
    pair.carry()
    text = b"".join([bytes((65 + place % 26,)) * size for place, size in enumerate(written)])
    for place, size in enumerate(written):
        pair.client.write(bytes((65 + place % 26,)) * size)
    sizes = itertools.cycle(carried)
    while pair.client_wire.written:
        pair.carry_once(next(sizes))
    assert pair.server_above.received == text


def test_a_request_in_the_last_flight_is_not_lost() -> None:
    """A client may send its first request in the segment that ends its handshake."""
    pair = Pair()
    pair.server.data_received(pair.client_wire.written)
    pair.client_wire.written = b""
    pair.client.data_received(pair.server_wire.written)
    pair.server_wire.written = b""
    pair.client.write(b"GET / HTTP/1.1\r\n\r\n")
    pair.server.data_received(pair.client_wire.written)
    assert pair.server_above.received == b"GET / HTTP/1.1\r\n\r\n"


def test_close_says_so() -> None:
    """close() is a clean end for the peer; eof is told once, then the stream closes too."""
    pair = Pair()
    pair.carry()
    pair.server.write(b"last")
    pair.server.close()
    assert pair.server_wire.closed
    pair.carry()
    assert (pair.client_above.received, pair.client_above.ended) == (b"last", True)
    assert pair.client_wire.closed and pair.client.is_closing()


def test_a_cut_is_no_end() -> None:
    """TCP's end without close_notify is told as a loss, never as an end."""
    pair = Pair()
    pair.carry()
    pair.server.write(b"half")
    pair.server.cut()
    pair.carry()
    assert pair.client.eof_received() is False
    pair.client.connection_lost(None)
    assert (pair.client_above.received, pair.client_above.ended, pair.client_above.lost) == (b"half", False, True)


def test_a_broken_record_ends_it() -> None:
    """What does not decrypt is followed by nothing that could be trusted."""
    pair = Pair()
    pair.carry()
    pair.client.write(b"good")
    record = bytearray(pair.client_wire.written)
    record[-1] ^= 1
    pair.server.data_received(bytes(record))
    assert pair.server_above.received == b""
    assert isinstance(pair.server_above.error, ssl.SSLError)
    assert pair.server_above.error.reason == "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    assert pair.server_above.error.library == "SSL"
    assert pair.server_wire.aborted
    pair.server.data_received(b"more")
    assert pair.server_above.received == b""


def test_the_other_name_is_refused_with_an_alert() -> None:
    """A refusal by name is the alert unrecognized_name, and nothing above hears of the stream."""

    def choose(hello: ClientHello) -> ssl.SSLContext:
        raise GuestProtocolError("another", reason=Reason.TARGET_MISMATCH)

    pair = Pair(choose=choose)
    pair.server.data_received(pair.client_wire.written)
    assert pair.server_wire.written == b"\x15\x03\x01\x00\x02\x02\x70"
    assert pair.server_wire.closed
    assert pair.server_above.transport is None
    pair.client.data_received(pair.server_wire.written)
    assert [type(failure).__name__ for failure in pair.failures] == ["GuestProtocolError", "SSLError"]


@pytest.mark.parametrize("speech", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05\x02aaaa", b"\x00"])
def test_what_is_no_hello_is_refused(speech: bytes) -> None:
    """Before any TLS is done."""
    pair = Pair()
    pair.server.data_received(speech)
    assert [failure.reason for failure in pair.failures if isinstance(failure, GuestProtocolError)] == [
        Reason.GUEST_TLS_FAILED
    ]
    assert pair.server_wire.closed


def test_an_untrusted_certificate_fails_once() -> None:
    """A client that does not trust the chain fails, both sides are told once, and nothing above is connected."""
    pair = Pair(context=ssl.create_default_context())
    pair.carry()
    assert len(pair.failures) == 2
    pair.client.connection_lost(None)
    pair.server.connection_lost(None)
    assert len(pair.failures) == 2
    assert pair.client_above.transport is None


def test_the_wrong_name_fails() -> None:
    """The client checks the name that it asked for."""
    pair = Pair(name="other.test")
    pair.carry()
    assert any(isinstance(failure, ssl.SSLCertVerificationError) for failure in pair.failures)


def test_lost_within_the_handshake() -> None:
    """A connection that ends within the handshake is a failure, not an end."""
    for end in ("eof_received", "connection_lost"):
        pair = Pair(context=careless_context())
        getattr(pair.server, end)(*([None] if end == "connection_lost" else []))
        assert [type(failure) for failure in pair.failures] == [ConnectionResetError]
        assert not pair.server_above.lost


def test_flow_control_passes_through() -> None:
    """Pauses go down and up."""
    pair = Pair()
    pair.carry()
    told = []
    pair.server.pause_reading()
    told.append(pair.server_wire.reading)
    pair.server.resume_reading()
    told.append(pair.server_wire.reading)
    pair.server.pause_writing()
    told.append(pair.server_above.writable)
    pair.server.resume_writing()
    told.append(pair.server_above.writable)
    assert told == [False, True, False, True]
    assert pair.server.get_extra_info("peername") == "peer"
    assert isinstance(pair.server.get_extra_info("ssl_object"), ssl.SSLObject)


async def test_records_that_are_tiny_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many came at once, a turn has so many; nothing is read below meanwhile, and the end comes last."""
    monkeypatch.setattr(BUDGET, "records", 4)
    pair = Pair()
    pair.carry()
    await asyncio.sleep(0)
    for _ in range(10):
        pair.client.write(b"x")
    pair.client.close()
    pair.carry()
    seen = []
    while not pair.server_above.ended:
        seen.append((pair.server_above.received, pair.server_wire.reading))
        await asyncio.sleep(0)
    assert seen == [(b"x" * 4, False), (b"x" * 8, False)]
    assert pair.server_above.received == b"x" * 10


def _with_key_changer() -> tuple[TlsStream, Above, Wire, KeyChanger]:
    """Return a server's stream after its handshake with a client that changes keys."""
    above, wire = Above(), Wire()
    server = TlsStream(above, choose=lambda _: server_context("api.test"), on_failure=lambda error: None)
    server.connection_made(wire)
    client = KeyChanger()
    sent = client.handshake()
    while above.transport is None:
        server.data_received(sent)
        data, wire.written = wire.written, b""
        sent = client.handshake(data)
    return server, above, wire, client


async def test_records_without_data_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of keys, each some twenty microseconds of work, count as data does, and what follows them is read."""
    monkeypatch.setattr(BUDGET, "records", 4)
    server, above, wire, client = _with_key_changer()
    server.data_received(client.change_keys(10) + client.write(b"after"))
    seen = []
    while not above.received:
        seen.append(wire.reading)
        await asyncio.sleep(0)
    assert seen == [False, False]
    assert (above.received, wire.reading) == (b"after", True)


async def _until(condition: Callable[[], object]) -> None:
    """Let the loop take turns until it is so; a few are enough."""
    for _ in range(8):
        if condition():
            return
        await asyncio.sleep(0)


async def test_each_step_of_a_handshake_waits_for_its_turn() -> None:
    """It is counted by what it costs either side; what comes while it is others' turn is kept, and nothing is read."""
    client, server = Share(), Share()
    pair = Pair(shares=(client, server))
    server.spend(BUDGET.units)
    pair.carry()
    assert (pair.hellos, pair.server_wire.reading) == ([], False)
    await _until(lambda: pair.hellos)
    assert pair.server_wire.reading
    assert server.left == BUDGET.units - HELLO - FINISHED
    client.spend(BUDGET.units)
    pair.carry()
    assert not pair.client_wire.reading
    await _until(lambda: pair.client_above.transport is not None)
    assert client.left <= BUDGET.units - VERIFIED
    pair.carry()
    assert pair.server_above.transport is not None and pair.failures == []


async def test_what_a_guest_sends_is_decrypted_in_its_turn() -> None:
    """Once it is established too; an upstream's session is read by whom it carries, whose reader counts."""
    client, server = Share(), Share()
    pair = Pair(shares=(client, server))
    pair.carry()
    await asyncio.sleep(0)
    client.spend(BUDGET.units * 2)
    server.spend(BUDGET.units * 2)
    pair.client.write(b"up")
    pair.server.write(b"down")
    pair.carry()
    assert (pair.client_above.received, pair.server_above.received) == (b"down", b"")
    assert not pair.server_wire.reading
    await _until(lambda: pair.server_above.received)
    assert pair.server_above.received == b"up" and pair.server_wire.reading


async def test_answers_of_tls_itself_do_not_pile_up() -> None:
    """Who asks for other keys and reads nothing is not read either, until the answers have gone."""
    server, above, wire, client = _with_key_changer()
    reading = []
    server.data_received(client.change_keys(1, asking=True))
    reading.append(wire.reading)
    answered = wire.written
    server.pause_writing()
    server.data_received(client.change_keys(1, asking=True))
    reading.append(wire.reading)
    server.pause_reading()
    server.resume_reading()
    reading.append(wire.reading)
    server.resume_writing()
    reading.append(wire.reading)
    assert reading == [True, False, False, True]
    assert len(wire.written) > len(answered)
    server.data_received(client.write(b"after"))
    assert above.received == b"after"


async def test_who_does_not_read_is_told_of_no_end() -> None:
    """A protocol that is behind hears of close_notify after what came before it; a lost connection puts nothing off."""
    for lost in (False, True):
        pair = Pair()
        pair.carry()
        pair.server.pause_reading()
        pair.client.write(b"x")
        pair.client.close()
        pair.carry()
        assert (pair.server_above.received, pair.server_above.ended) == (b"x", False)
        if lost:
            pair.server.connection_lost(None)
        else:
            pair.server.resume_reading()
            await asyncio.sleep(0)
        assert (pair.server_above.ended, pair.server_above.lost) == (True, lost)


async def test_records_that_wait_are_read_before_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decrypted in no turn yet is still told, in order."""
    monkeypatch.setattr(BUDGET, "records", 4)
    pair = Pair()
    pair.carry()
    await asyncio.sleep(0)
    for _ in range(10):
        pair.client.write(b"x")
    pair.carry()
    pair.server.connection_lost(None)
    assert (pair.server_above.received, pair.server_above.lost) == (b"x" * 10, True)


def test_nothing_is_written_after_the_end() -> None:
    """A closed stream takes nothing more."""
    pair = Pair()
    pair.carry()
    pair.server.abort()
    written = pair.server_wire.written
    pair.server.write(b"late")
    pair.server.close()
    assert pair.server_wire.written == written
