"""The records in C are those of the very connection that `ssl` made and verified, or there are none."""

from __future__ import annotations

import asyncio
import gc
import re
import ssl
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from seamgate.records import PARTS, PythonRecords, Records, Wrapped
from seamgate.streams import TlsStream, as_protocol
from support.certificates import careless_context, server_context, upstream_ca


def connect(context: ssl.SSLContext | None = None) -> tuple[Wrapped, Wrapped]:
    """A client and a server whose handshake is done; nothing waits between them."""
    client = Wrapped(context or careless_context(), "api.test", server_side=False)
    server = Wrapped(server_context("api.test"), None, server_side=True)
    for _ in range(4):
        for side, other in ((client, server), (server, client)):
            try:
                side.tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            other.incoming.write(side.outgoing.read())
    return client, server


def taken_over() -> tuple[Records, Records]:
    """The records of both sides; the client's has read the server's tickets."""
    client, server = connect()
    tickets = client.incoming.read()
    ours, theirs = client.take_over(), server.take_over()
    assert ours.read(tickets, 9) == b""
    return ours, theirs


def test_connections_of_ssl_have_records_in_c() -> None:
    """Where OpenSSL 3 is a library, as in Debian's Python, the C part is what runs."""
    client, server = connect()
    assert PARTS.native is not None
    assert isinstance(client.take_over(), PARTS.native) and isinstance(server.take_over(), PARTS.native)


class _Twice(ssl.SSLContext):
    """Makes two connections where it was asked for one."""

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        self.other = super().wrap_bio(*args, **more)
        return super().wrap_bio(*args, **more)


class _Before(ssl.SSLContext):
    """Gives a connection that was made before, or makes one and gives that."""

    before: ssl.SSLObject | None = None
    makes_another = False

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        if self.before is None or self.makes_another:
            made = super().wrap_bio(*args, **more)
            self.before = self.before or made
        return self.before


def _careless(kind: type[ssl.SSLContext]) -> Any:
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_another_connection_is_never_taken() -> None:
    """What OpenSSL made meanwhile counts only where it was one, and the one that is given; else the twin goes on."""
    contexts = [_careless(_Twice), _careless(_Before), _careless(_Before)]
    contexts[2].makes_another = True
    for context in contexts[1:]:
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
    for context in contexts:
        assert isinstance(Wrapped(context, "api.test", server_side=False).take_over(), PythonRecords)


def test_a_failure_to_make_one_is_told() -> None:
    """A name that `ssl` refuses is refused as `ssl` does it."""
    with pytest.raises(ValueError, match="server_hostname"):
        Wrapped(careless_context(), "", server_side=False)


def test_the_handshake_verifies_as_ever() -> None:
    """The C part has no say in it: an issuer that the context does not trust ends the handshake."""
    client = Wrapped(ssl.create_default_context(), "api.test", server_side=False)
    server = Wrapped(server_context("api.test"), None, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.do_handshake()
    server.incoming.write(client.outgoing.read())
    with pytest.raises(ssl.SSLWantReadError):
        server.tls.do_handshake()
    client.incoming.write(server.outgoing.read())
    with pytest.raises(ssl.SSLCertVerificationError):
        client.tls.do_handshake()


def test_what_python_shows_of_the_connection_stays_right() -> None:
    """Version, cipher and the peer's certificate can be asked for afterwards; to read and write there does no harm."""
    client, server = connect(guest_context_of_upstream())
    ours, theirs = client.take_over(), server.take_over()
    certificate: Any = client.tls.getpeercert()
    assert certificate["subjectAltName"] == (("DNS", "api.test"),)
    assert client.tls.version() == "TLSv1.3" and client.tls.cipher() is not None
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.read(10)
    client.tls.write(b"beside")
    assert theirs.read(ours.write(b" it"), 9) == b"beside it"


def guest_context_of_upstream() -> ssl.SSLContext:
    """A context that trusts the issuer of `server_context`."""
    context = ssl.create_default_context()
    upstream_ca().configure_trust(context)
    return context


def test_either_may_end_first() -> None:
    """Python's object and the records both keep the connection; none leaves the other with memory that is gone."""
    for keep in ("records", "tls"):
        client, server = connect()
        theirs = server.take_over()
        ours: Any = client.take_over()
        tls: Any = client.tls
        gone = weakref.ref(tls)
        del client
        if keep == "records":
            del tls
            gc.collect()
            assert gone() is None
            assert theirs.read(ours.write(b"alive" * 9000), 9) == b"alive" * 9000
        else:
            del ours
            gc.collect()
            assert tls.write(b"alive") == 5
            with pytest.raises(ssl.SSLWantReadError):
                tls.read(1)


def test_it_is_taken_over_once_and_not_used_before() -> None:
    """Wrong use is an error, never a crash."""
    assert PARTS.native is not None
    _, records = PARTS.native.adopt(careless_context(), ssl.MemoryBIO(), ssl.MemoryBIO(), False, "api.test")
    assert records is not None
    wrong: list[Callable[[], object]] = [lambda: records.read(b"", 1), lambda: records.write(b"x"), records.close]
    for use in wrong:
        with pytest.raises(ValueError, match="not taken over yet"):
            use()
    records.take()
    with pytest.raises(ValueError, match="already"):
        records.take()
    with pytest.raises(TypeError):
        records.read(5, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        PARTS.native()
    with pytest.raises(TypeError):
        PARTS.native.adopt()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes(kind: Any) -> None:
    """What a stream below or above gives may be any kind of bytes."""
    ours, theirs = taken_over()
    assert theirs.read(kind(ours.write(kind(b"text"))), 9) == b"text"


def test_after_an_error_there_is_no_more() -> None:
    """A record that does not decrypt ends it for good, both ways; what came before it is given."""
    ours, theirs = taken_over()
    good, bad = ours.write(b"good"), bytearray(ours.write(b"bad"))
    bad[-1] ^= 1
    opened = theirs.read(good + bytes(bad) + ours.write(b"later"), 9)
    assert isinstance(opened, tuple)
    plain, ended, behind, _, error = opened
    assert (plain, ended, behind) == (b"good", False, False)
    assert isinstance(error, ssl.SSLError) and error.reason == "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    again = theirs.read(ours.write(b"later"), 9)
    assert isinstance(again, tuple) and again[0] == b"" and isinstance(again[4], ssl.SSLError)


def test_errors_of_others_are_not_taken_for_ours() -> None:
    """What another use of OpenSSL left in its queue of errors ends no connection."""
    ours, theirs = taken_over()
    for data in (b"one", b"two"):
        with pytest.raises(ssl.SSLError):
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers("none of that name")
        assert theirs.read(ours.write(data), 9) == data


class _Echo:
    """Gives back what it gets, in capitals."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


async def _ask_openssl(version: str, *asked: tuple[bytes, bytes]) -> bytes:
    """Say each line to an echo through `openssl s_client` once the answer before it came; return all that it showed."""
    context = server_context("api.test")
    context.options |= ssl.OP_NO_RENEGOTIATION

    def serve() -> asyncio.Protocol:
        return as_protocol(TlsStream(_Echo(), choose=lambda _: context, on_failure=lambda error: None))

    server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", "api.test", version, "-msg"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert client.stdin is not None and client.stdout is not None
    said = b""
    try:
        async with asyncio.timeout(30):
            for line, answer in asked:
                client.stdin.write(line)
                while not re.search(answer, said):
                    part = await client.stdout.read(65536)
                    assert part, said.decode()
                    said += part
    finally:
        if client.returncode is None:
            client.kill()
        await client.wait()
        server.close()
    return said


async def test_new_keys_are_agreed_to_and_used() -> None:
    """A peer that changes its keys and asks for ours to change is answered with the next data (RFC 8446 4.6.3)."""
    asked = ((b"first\n", rb"FIRST"), (b"K\n", rb">>> .*KeyUpdate"), (b"second\n", rb"SECOND"))
    said = await _ask_openssl("-tls1_3", *asked)
    assert re.search(rb"<<< .*KeyUpdate(.|\n)*SECOND", said)


async def test_what_tls_itself_answers_is_sent() -> None:
    """An answer that no data follows, as to a renegotiation that is refused, leaves at once."""
    await _ask_openssl("-tls1_2", (b"first\n", rb"FIRST"), (b"R\n", rb"<<< .*Alert.*no_renegotiation"))
