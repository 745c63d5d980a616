"""Streams that pass unread, by CONNECT and by SOCKS: bytes both ways, ends, back-pressure, TLS end to end, records."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from seamgate import hookimpl
from seamgate.audit.record import AuditBytes, AuditKind, AuditRecord
from support.certificates import upstream_ca
from support.client import start_tls
from support.lab import ALLOW_ALL, Lab
from support.line import Line
from support.netns import python
from support.upstream import HttpUpstream, RawUpstream, Script
from support.upstream import echo as http_echo

TCP: dict[str, Any] = {"id": "db", "allow": {"hosts": ["db.test"], "ports": ["1-65535"], "protocol": "tcp"}}
SOCKS: dict[str, Any] = {"entries": {"socks5": {"listen": "127.0.0.1:0", "guest": "g"}}}
ENTRIES = ["proxy", "socks5"]


def database(script: Script, **options: Any) -> RawUpstream:
    return RawUpstream(script, "db.test", **{"tls": False, **options})


TOLD = {"proxy": 200, "socks5": 0}
"""The status that a guest was told of its stream: over HTTP it is one."""


async def back(line: Line) -> None:
    """Say everything back, then end."""
    while data := await line.some():
        await line.send(data.upper())
    line.close()


async def opened(lab: Lab, entry: str = "proxy", *, keeps: bool = True) -> Line:
    """Open a stream to the first upstream."""
    if entry == "proxy":
        line, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 200 "), head
        line.keeps = keeps
        return line
    line = await lab.line("socks5")
    await line.send(b"\5\1\0")
    assert await line.exactly(2) == b"\5\0"
    name = lab.upstream.names[0].encode()
    await line.send(b"\5\1\0\3" + bytes([len(name)]) + name + lab.upstream.port.to_bytes(2, "big"))
    answer = await line.exactly(10)
    assert answer[:2] == b"\5\0", answer
    line.keeps = keeps
    return line


async def recorded(lab: Lab, expected: str) -> AuditRecord:
    """Return the one record, which says this: "decision reason status outcome"."""
    await lab.until(lambda: len(lab.observer.records) == 1)
    (record,) = lab.observer.records
    lab._claimed = len(lab.records)
    assert record.kind is AuditKind.CONNECT and record.request is not None
    assert (record.request.scheme, record.request.host, record.request.port) == ("tcp", "db.test", lab.upstream.port)
    assert f"{record.verdict} {record.reason} {record.status} {record.outcome}" == expected
    return record


@pytest.mark.parametrize("entry", ENTRIES)
async def test_bytes_go_both_ways_and_are_counted(entry: str) -> None:
    """The rule, the address and the bytes of each side are in the one record."""
    async with Lab(database(back), rules=[TCP], settings=SOCKS, credential=False) as lab:
        line = await opened(lab, entry)
        await line.send(b"hello", b" there")
        assert await line.exactly(11) == b"HELLO THERE"
        line.transport.write_eof()  # type: ignore[union-attr]
        assert await line.end() == b""
        line.close()
        record = await recorded(lab, f"allow allowed {TOLD[entry]} complete")
        assert (record.rule, record.bytes) == ("db", AuditBytes(11, 11))
        assert record.upstream is not None and record.upstream.address == "127.0.0.1"


@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_server_may_speak_first(entry: str) -> None:
    """As databases and mail servers do: nothing waits for the guest."""

    async def script(line: Line) -> None:
        await line.send(b"220 ready\r\n")
        await back(line)

    async with Lab(database(script), rules=[TCP], settings=SOCKS, credential=False) as lab:
        line = await opened(lab, entry)
        assert await line.until(b"\r\n") == b"220 ready\r\n"
        await line.send(b"quit")
        assert await line.exactly(4) == b"QUIT"
        line.transport.write_eof()  # type: ignore[union-attr]
        await line.end()
        line.close()
        await recorded(lab, f"allow allowed {TOLD[entry]} complete")


@pytest.mark.parametrize("entry", ENTRIES)
async def test_a_server_may_end_at_once(entry: str) -> None:
    """What it says and its end come after the answer to the guest, never before."""

    async def script(line: Line) -> None:
        await line.send(b"busy")
        line.close()

    async with Lab(database(script), rules=[TCP], settings=SOCKS, credential=False) as lab:
        line = await opened(lab, entry)
        assert await line.end() == b"busy"
        line.close()
        await recorded(lab, f"allow allowed {TOLD[entry]} complete")


async def test_a_guest_may_leave_while_the_upstream_is_dialled() -> None:
    """Then nothing stays open."""

    class Slow:
        @hookimpl
        def resolve_name(self, name: str) -> Any:
            async def never() -> None:
                asked.set()
                await asyncio.Event().wait()

            return never()

    asked = asyncio.Event()
    async with Lab(database(back), rules=[TCP], credential=False, first=[("slow", Slow())]) as lab:
        line = await lab.line()
        await line.send(f"CONNECT {lab.authority()} HTTP/1.1\r\nhost: {lab.authority()}\r\n\r\n".encode())
        await asked.wait()
        line.reset()
        await recorded(lab, "allow guest_gone 499 aborted")
        assert lab.upstream.lines == []


async def test_half_a_stream_may_end_either_way() -> None:
    """An end is passed on, and the other direction goes on."""

    async def script(line: Line) -> None:
        line.transport.write_eof()  # type: ignore[union-attr]
        while data := await line.some():
            got.append(data)
        line.close()

    got: list[bytes] = []
    async with Lab(database(script), rules=[TCP], credential=False) as lab:
        line = await opened(lab)
        assert await line.end() == b""
        await line.send(b"still ", b"here")
        await lab.until(lambda: b"".join(got) == b"still here")
        line.close()
        await recorded(lab, "allow allowed 200 complete")


@pytest.mark.parametrize("side", ["guest", "upstream"])
async def test_a_break_is_a_break_on_the_other_side(side: str) -> None:
    """A reset is never turned into an end."""

    async def script(line: Line) -> None:
        await line.exactly(2)
        if side == "upstream":
            line.reset()
        else:
            await line.send(b"ok")
            await line.changed()

    async with Lab(database(script), rules=[TCP], credential=False) as lab:
        line = await opened(lab)
        await line.send(b"go")
        if side == "guest":
            await line.exactly(2)
            line.reset()
            await recorded(lab, "allow guest_gone 200 aborted")
            far = await lab.upstream.connection()
            await lab.until(lambda: far.lost)
            assert far.error is not None
        else:
            while not line.lost:
                await line.changed()
            assert line.error is not None
            await recorded(lab, "allow upstream_closed 200 truncated")


@pytest.mark.parametrize("slow", ["guest", "upstream"])
async def test_a_side_that_does_not_read_holds_the_other_back(slow: str) -> None:
    """Memory stays bounded, and all of it arrives once it is read."""
    size, times = 1_000_000, 60
    held: list[Line] = []
    floods: list[asyncio.Future[None]] = []

    async def flood(line: Line) -> None:
        for _ in range(times):
            await line.send(bytes(size))

    async def script(line: Line) -> None:
        line.keeps = False
        if slow == "guest":
            floods.append(asyncio.ensure_future(flood(line)))
        else:
            line.hold()
            held.append(line)
        while not line.lost:
            await line.changed()

    async with Lab(database(script), rules=[TCP], credential=False) as lab:
        line = await opened(lab, keeps=False)
        if slow == "guest":
            line.hold()
            held.append(line)
        else:
            floods.append(asyncio.ensure_future(flood(line)))
        await lab.until(lambda: bool(held) and bool(floods))
        for _ in range(300):
            await asyncio.sleep(0.001)
        assert not floods[0].done()
        before = held[0].received_bytes
        held[0].go_on()
        await floods[0]
        while held[0].received_bytes - before < size * times:
            await held[0].changed()
        line.reset()
        record = await recorded(lab, "allow guest_gone 200 aborted")
        assert record.bytes is not None
        assert max(record.bytes.request_body, record.bytes.response_body) == size * times


@pytest.mark.parametrize("entry", ENTRIES)
async def test_tls_goes_end_to_end(entry: str) -> None:
    """The guest sees the upstream's own certificate: nothing is terminated."""
    async with Lab(database(back, tls=True), rules=[TCP], settings=SOCKS, credential=False) as lab:
        line = await opened(lab, entry)
        context = ssl.create_default_context(cadata=upstream_ca().cert_pem.bytes().decode())
        inner = await start_tls(line, context, "db.test")
        await inner.send(b"secret")
        assert await inner.exactly(6) == b"SECRET"
        inner.close()
        await inner.end()
        await lab.until(lambda: len(lab.observer.records) == 1)
        (record,) = lab.observer.records
        assert record.bytes is not None and record.bytes.request_body > 300


async def test_a_hello_in_pieces_is_looked_at_whole() -> None:
    """However it comes, it goes on once it is whole and right."""
    async with Lab(database(back, tls=True), rules=[TCP], credential=False) as lab:
        line = await opened(lab)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cadata=upstream_ca().cert_pem.bytes().decode())
        tls = context.wrap_bio(incoming, outgoing, server_hostname="db.test")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        await line.send(*[hello[at : at + 1] for at in range(len(hello))])
        assert (await line.exactly(1)) == b"\x16"
        line.reset()
        await recorded(lab, "allow guest_gone 200 aborted")


async def test_where_requests_are_allowed_they_are_read() -> None:
    """A rule for requests outweighs one for the stream: the tunnel is terminated, and each request is judged."""
    rule = {**ALLOW_ALL, "id": "web"}
    tcp = {"id": "tcp", "allow": {"hosts": ["api.test"], "ports": ["*"], "protocol": "tcp"}}
    async with Lab(HttpUpstream(http_echo), rules=[rule, tcp], credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")


async def test_socks_may_carry_both_on_one_port() -> None:
    """Where a port may have requests and streams, the first byte says which it is."""
    rules = [TCP, {**ALLOW_ALL, "id": "web"}]
    async with Lab(database(back), rules=rules, settings=SOCKS, credential=False) as lab:
        line = await opened(lab, "socks5")
        await line.send(b"\0\0\0\x08binary")
        assert await line.exactly(10) == b"\0\0\0\x08BINARY"
        line.transport.write_eof()  # type: ignore[union-attr]
        await line.end()
        line.close()
        await recorded(lab, "allow allowed 0 complete")


@pytest.mark.parametrize("entry", ENTRIES)
async def test_an_upstream_that_is_not_there_is_told_in_the_protocol(entry: str) -> None:
    """As a 502 with its reason, or as the reply of SOCKS that says so; not as an open tunnel."""
    upstream = database(back)
    async with Lab(upstream, rules=[TCP], settings=SOCKS, credential=False) as lab:
        upstream._server.close()  # type: ignore[union-attr]
        if entry == "proxy":
            line, head = await lab.connect()
            assert head.startswith(b"HTTP/1.1 502 ") and b"x-seamgate-reason: connect_failed\r\n" in head
            assert b"connect_failed" in await line.end()
        else:
            with pytest.raises(AssertionError, match=r"\\x05\\x05"):
                await opened(lab, entry)
        await recorded(lab, f"allow connect_failed {502 if entry == 'proxy' else 0} failed")


async def test_a_reload_ends_it_at_once() -> None:
    """With a reset on both sides, and a record that names the new generation."""
    async with Lab(database(back), rules=[TCP], credential=False) as lab:
        line = await opened(lab)
        await line.send(b"x")
        await line.exactly(1)
        lab.write_policy([ALLOW_ALL])
        report = lab.gateway.reload(lab.gateway.config)
        assert report.revoked_tunnels == 1
        while not line.lost:
            await line.changed()
        assert line.error is not None
        record = await recorded(lab, "deny revoked 200 aborted")
        assert record.generation == 2
        far = await lab.upstream.connection()
        await lab.until(lambda: far.lost)


async def test_a_reload_that_still_allows_it_leaves_it_alone() -> None:
    """A new generation of the same rules cuts nothing."""
    async with Lab(database(back), rules=[TCP], credential=False) as lab:
        line = await opened(lab)
        lab.gateway.reload(lab.gateway.config)
        await line.send(b"x")
        assert await line.exactly(1) == b"X"
        line.transport.write_eof()  # type: ignore[union-attr]
        await line.end()
        line.close()
        await recorded(lab, "allow allowed 200 complete")


async def test_silence_of_both_sides_ends_it() -> None:
    """After as long as an upstream may be silent."""
    async with Lab(database(back), rules=[TCP], credential=False) as lab:
        line = await opened(lab)
        lab.age_guests(901)
        while not line.lost:
            await line.changed()
        await recorded(lab, "allow upstream_timeout 200 aborted")


async def test_a_stop_cuts_it() -> None:
    """A gateway that stops leaves no stream behind."""
    async with Lab(database(back), rules=[TCP], credential=False) as lab:
        line = await opened(lab)
        await lab.gateway.stop(grace_s=1.0)
        while not line.lost:
            await line.changed()
        await recorded(lab, "deny shutting_down 200 aborted")


async def test_a_guest_in_a_namespace_just_connects() -> None:
    """By name, without any proxy: redirected, judged, passed on; a server may speak first; another port is reset."""

    async def script(line: Line) -> None:
        await line.send(b"220 ready\r\n")
        await back(line)

    code = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as stream:
    greeting = stream.recv(100)
    stream.sendall(b"hello")
    stream.shutdown(socket.SHUT_WR)
    print(greeting, stream.recv(100), stream.recv(100))
try:
    with socket.create_connection((sys.argv[1], 22), 10) as stream:
        print(stream.recv(100))
except OSError as error:
    print(type(error).__name__)
"""
    upstream = database(script)
    await upstream.start()
    rule = {"id": "db", "allow": {"hosts": ["db.test"], "ports": [upstream.port], "protocol": "tcp"}}
    await upstream.stop()
    async with Lab(database(script, port=upstream.port), rules=[rule], credential=False) as lab:
        done = await python(lab, code, "db.test", str(upstream.port))
        assert done.out == "b'220 ready\\r\\n' b'HELLO' b''\nConnectionResetError\n", done
        await lab.until(lambda: len(lab.observer.records) == 2)
        lab._claimed = len(lab.records)
        first, second = lab.observer.records
        assert (first.entry, first.rule, first.outcome, first.bytes) == ("netns", "db", "complete", AuditBytes(5, 16))
        assert (second.reason, second.request and second.request.port) == ("no_rule_matched", 22)
