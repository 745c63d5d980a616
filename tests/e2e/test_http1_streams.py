"""Bodies in motion: events passed on when they come, back-pressure both ways, bodies beyond memory."""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import brotli
import h11
import pytest
import zstandard

from support.client import Client
from support.gateway_process import GatewayProcess
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, Talk

ALLOWED = "allow allowed 200 complete"
MIB = 1024 * 1024
HELD_BYTES = 8 * MIB
"""More than all buffers of the gateway and of both sockets on the way; far less than what is sent."""


class _Gzip:
    def __init__(self) -> None:
        self._deflater = zlib.compressobj(wbits=31)

    def __call__(self, data: bytes) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)


class _Brotli:
    def __init__(self) -> None:
        self._compressor = brotli.Compressor()

    def __call__(self, data: bytes) -> bytes:
        return bytes(self._compressor.process(data) + self._compressor.flush())


class _Zstd:
    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor().compressobj()

    def __call__(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


CODERS: dict[str, Any] = {"": lambda: lambda data: data, "gzip": _Gzip, "br": _Brotli, "zstd": _Zstd}


@pytest.mark.parametrize("ends", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("coding", CODERS)
@pytest.mark.parametrize("redacts", [True, False])
async def test_events_are_passed_on_when_they_come(redacts: bool, coding: str, ends: str) -> None:
    """The next event is sent only when the one before has arrived: whatever is inspected, nothing is held back."""
    arrived = asyncio.Event()

    async def app(talk: Talk) -> None:
        code = CODERS[coding]()
        headers = [("content-type", "text/event-stream"), *([("content-encoding", coding)] if coding else [])]
        await talk.begin(200, headers)
        for number in range(3):
            await talk.data(code(f"data: {number} {SECRET if redacts else ''}{ends}".encode()))
            await arrived.wait()
            arrived.clear()
        talk.line.close()

    async with Lab(HttpUpstream(app), rules=[WITH_KEY if redacts else ALLOW_ALL], credential=redacts) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/e", b"accept-encoding: gzip, br, zstd"))
        answer, h = await client.begin()
        assert answer.status == 200
        decode = _decoder("" if redacts else coding)
        got = ""
        for number in range(3):
            while f"data: {number}" not in got or not got.endswith(ends):
                event = await client.event(h)
                assert isinstance(event, h11.Data), event
                got += decode(bytes(event.data)).decode()
            arrived.set()
        assert SECRET not in got
        assert await client.event(h) == h11.ConnectionClosed()
        await lab.audited("GET /e allow upstream_closed 200 truncated")


def _decoder(coding: str) -> Any:
    if coding == "gzip":
        return zlib.decompressobj(wbits=31).decompress
    if coding == "br":
        return brotli.Decompressor().process
    if coding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress
    return bytes


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
async def test_coded_bodies_are_redacted_decoded(coding: str) -> None:
    """A secret inside a coded body is found; the guest gets the plain body without the coding's header."""
    plain = b"before " + SECRET.encode() + b" after" * 5000
    coders: dict[str, Any] = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstandard.compress}

    async def app(talk: Talk) -> None:
        await talk.respond(200, coders[coding](plain), [("content-encoding", coding), ("etag", '"x"')])

    async with Lab(HttpUpstream(app), rules=[WITH_KEY]) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x", b"accept-encoding: gzip, br, zstd")
        assert answer.body == plain.replace(SECRET.encode(), b"[redacted:key]")
        assert answer.header(b"content-encoding") is None
        assert answer.whole
        await lab.audited(f"GET /x {ALLOWED}")


@pytest.mark.parametrize("entry", ["tunnel", "base"])
@pytest.mark.parametrize("credential", [True, False])
async def test_a_slow_reader_holds_the_upstream_back(entry: str, credential: bool) -> None:
    """A guest that does not read stops the upstream's sending soon; when it reads, all of it comes."""
    size = 64 * MIB
    sent = 0

    async def script(line: Line) -> None:
        nonlocal sent
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while sent < size:
            await line.send(bytes(MIB))
            sent += MIB
        await line.end()

    async with Lab(RawUpstream(script), rules=[WITH_KEY] if credential else [ALLOW_ALL], credential=credential) as lab:
        client: Client = await getattr(lab, entry)()
        client.line.keeps = False
        client.line.hold()
        await client.send(client.request("GET", "/api/x" if entry == "base" else "/x"))
        await _stalls(lambda: sent)
        assert sent < HELD_BYTES * 2
        client.line.go_on()
        while client.line.received_bytes < size:
            await client.line.changed()
        client.close()
        await lab.audited(f"GET /x {ALLOWED}")


async def _stalls(progress: Any) -> None:
    """Return once a counter has stood still for a while: there is no event for what does not happen."""
    still = 0
    last = -1
    while still < 40:
        await asyncio.sleep(0.005)
        still = still + 1 if progress() == last else 0
        last = progress()


async def test_a_slow_upstream_holds_the_guest_back() -> None:
    """An upstream that does not read stops the guest's sending soon; when it reads, all of it comes."""
    size = 64 * MIB
    go = asyncio.Event()

    async def script(line: Line) -> None:
        line.keeps = True
        await line.head()
        line.keeps = False
        line.hold()
        await go.wait()
        line.go_on()
        while line.received_bytes < size:
            await line.changed()
        await line.send(b"HTTP/1.1 204 N\r\n\r\n")
        await line.end()

    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel()
        sent = 0

        async def pour() -> None:
            nonlocal sent
            await client.send(client.request("PUT", "/x", b"content-length: %d" % size))
            while sent < size:
                await client.send(bytes(MIB))
                sent += MIB

        pouring = asyncio.ensure_future(pour())
        await _stalls(lambda: sent)
        assert 0 < sent < HELD_BYTES * 2
        go.set()
        await pouring
        assert (await client.answer()).status == 204
        await lab.audited("PUT /x allow allowed 204 complete")


async def test_a_guest_that_pipelines_and_never_reads_is_held_back() -> None:
    """Answers pile up only so far: the next request waits until the guest has read the ones before it."""
    size = 64 * MIB
    sent = 0

    async def script(line: Line) -> None:
        nonlocal sent
        while True:
            head, _ = await line.request()
            if b"/small" in head:
                await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 200000\r\n\r\n" + bytes(200_000))
                continue
            await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            while sent < size:
                await line.send(bytes(MIB))
                sent += MIB

    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel(keeps=False)
        client.line.hold()
        requests = client.request("GET", "/small") * 60 + client.request("GET", "/large")
        await client.send(requests)
        await _stalls(lambda: sent + len(lab.upstream.received))
        assert sent < HELD_BYTES * 2
        client.line.go_on()
        while client.line.received_bytes < size + 60 * 200_000:
            await client.line.changed()
        await lab.audited(*[f"GET /small {ALLOWED}"] * 60, f"GET /large {ALLOWED}")


async def test_a_body_that_a_rule_reads_is_held_and_sent_whole() -> None:
    """A condition on the body is judged with all of it; then all of it goes up, chunked or not."""
    rule = {**ALLOW_ALL, "when": 'request.json.model == "small"'}
    body = b'{"model": "small", "pad": "%s"}' % (b"x" * 300_000)

    async def app(talk: Talk) -> None:
        await talk.respond(200, str(len(await talk.body())).encode())

    async with Lab(HttpUpstream(app), rules=[rule], credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("POST", "/x", b"content-type: application/json", body=body)).body == b"%d" % len(body)
        denied = await client.ask(
            "POST", "/x", b"content-type: application/json", body=body.replace(b"small", b"large")
        )
        assert denied.status == 403
        await lab.audited(f"POST /x {ALLOWED}", "POST /x deny no_rule_matched 403 denied")


# -- beyond memory -----------------------------------------------------------------------------------------------------

BIG_BYTES = (1024 if os.environ.get("SEAMGATE_TEST_FULL") else 256) * MIB
RSS_MIB = 48
"""What flows through may add buffers to what a gateway has at rest, never a body; 5 MiB were measured."""


async def _serve_big(line: Line) -> None:
    while True:
        head = await line.head()
        if head.startswith(b"GET"):
            await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % BIG_BYTES)
            block = bytes(MIB)
            for _ in range(BIG_BYTES // MIB):
                await line.send(block)
            continue
        line.keeps = False
        while line.received_bytes < BIG_BYTES:
            await line.changed()
        await line.send(b"HTTP/1.1 204 N\r\n\r\n")
        await line.end()
        return


@pytest.mark.timeout(240)
@pytest.mark.parametrize("redacts", [True, False])
async def test_bodies_beyond_memory(redacts: bool, tmp_path: Path) -> None:
    """A body of any size, down and up, over TLS on both sides, stays within a bound of the gateway's memory."""
    upstream = RawUpstream(_serve_big)
    await upstream.start()
    try:
        async with GatewayProcess(tmp_path, upstream, credential=redacts) as gateway:
            at_rest = gateway.rss_mib()
            for command in (["-o", "/dev/null"], ["-T", "-"]):
                code, out = await gateway.curl(*command, "-w", "%{size_download}", big_bytes=BIG_BYTES)
                assert code == 0, out
                assert gateway.peak_rss_mib() < at_rest + RSS_MIB, (at_rest, gateway.peak_rss_mib())
    finally:
        await upstream.stop()
