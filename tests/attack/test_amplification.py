"""What a guest sends costs the gateway no more than is counted for it, and nothing of it stays when it is answered."""

from __future__ import annotations

import gc
import gzip
import sys
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import brotli
import pytest
import zstandard

from seamgate.credentials.config import CredentialConfig, SourceConfig
from seamgate.credentials.messages import placeholder_in, swap_in_text
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.scanner import RequestScanner
from seamgate.paths import MOST_CHARACTERS, MOST_SEGMENTS
from seamgate.policy.evaluation import CACHED_SIZE, Evaluator
from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http1_reader import RequestReader
from seamgate.protocol.websocket import Deflate, FrameReader, Message
from seamgate.protocol.work import HEAD, HEAD_SHIFT, MARKS_SHIFT, MESSAGE, MESSAGE_SHIFT
from seamgate.turns import Share
from support.http2 import Peer, get, server, tunnel
from support.http2_upstream import H2Upstream
from support.lab import ALLOW_ALL, Lab
from support.upstream import HttpUpstream, Talk, echo
from support.websocket import ALLOW_SOCKETS, echoing, open_socket

PORTS = ["1-65535"]
GETS: list[dict[str, Any]] = [
    {"id": "get", "allow": {"hosts": ["api.test"], "ports": PORTS, "methods": ["GET"], "paths": ["/ok/**"]}},
    {"id": "no-debug", "deny": {"hosts": ["api.test"], "paths": ["/debug/**"], "query": {"debug": True}}},
]


# -- memory ------------------------------------------------------------------------------------------------------------


async def test_long_paths_are_not_remembered() -> None:
    """No plan is kept for a path or an override that is long, allowed or denied; a sentence shows its beginning."""
    async with Lab(HttpUpstream(echo), rules=GETS, credential=False) as lab:
        client = await lab.tunnel()
        plans = [each._plans for each in gc.get_objects() if isinstance(each, Evaluator) and "no-debug" in each.rules]
        for number in range(20):
            long = f"{number}{'x' * (CACHED_SIZE + number)}"
            assert (await client.ask("GET", f"/no/{long}")).reason == "no_rule_matched"
            assert (await client.ask("GET", f"/ok/{long}")).status == 200
            header = f"x-original-url: /no/{long}".encode()
            assert (await client.ask("GET", "/ok/a", header)).reason == "no_rule_matched"
        assert sum(map(len, plans)) == 0
        assert (await client.ask("GET", "/no/short")).reason == "no_rule_matched"
        assert sum(map(len, plans)) == 1
        told = await lab.told()
        assert len(told) == 61
        assert sum("deny no_rule_matched 403 denied" in each for each in told) == 41
        assert max(len(record.message) for record in lab.records) < 2 * CACHED_SIZE


JUDGED: dict[str, Any] = {"id": "no-y", "deny": {"hosts": ["api.test"], "methods": ["POST"], "json": {"x": "y"}}}


@pytest.mark.parametrize("size", [1, 2, 700])
async def test_tiny_pieces_that_wait_take_what_is_counted_of_them(size: int) -> None:
    """A body that a rule waits for, in frames of two bytes: what holds it is hardly larger than `held_bytes` says."""
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, JUDGED], credential=False) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/x", (b"content-type", b"application/json"), method="POST")
        body = b'{"x": "y", "z": "' + b"a" * 40_000
        frames = [wire.write_frame(wire.DATA, 0, stream, body[at : at + size]) for at in range(0, len(body), size)]
        await guest.raw(*frames)
        held = lab.gateway.seam.held
        await lab.until(lambda: held.used_bytes == len(body))
        exchange: Any = next(iter(lab.gateway.seam.under_way))
        pieces = exchange._upload.held
        assert b"".join(pieces) == body
        assert sum(map(sys.getsizeof, pieces)) + sys.getsizeof(pieces) < 1.1 * len(body)
        await guest.data(stream, b'"}', ended=True)
        assert (await guest.answer(stream)).reason == "rule_denied"
        await lab.audited("POST /x deny rule_denied 403 denied")
        assert held.used_bytes == 0


# -- heads -------------------------------------------------------------------------------------------------------------

HEADS: dict[str, tuple[str, list[tuple[bytes, bytes]]]] = {
    "characters": ("/" + "a" * MOST_CHARACTERS, []),
    "escapes": ("/" + "%25" * (MOST_CHARACTERS // 3 + 1), []),
    "segments": ("/a" * (MOST_SEGMENTS + 1), []),
    "encoded slashes": ("/a" + "%2fa" * MOST_SEGMENTS, []),
    "paths in headers": ("/x", [(b"x-original-url", b"/1" + b"a" * 5000), (b"x-rewrite-url", b"/2" + b"a" * 5000)]),
    "a long path in a header": ("/x", [(b"x-original-url", b"/" + b"%C3%A9" * 2000)]),
    "methods in a header": ("/x", [(b"x-http-method-override", b"A," * 20000)]),
    "methods in the query": ("/x?" + "&".join(f"_method=A{each}" for each in range(20)), []),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("what", HEADS)
async def test_a_head_that_costs_much_is_refused(what: str, version: int) -> None:
    """What a head may hold that policy reads in many ways is bounded: a path and its segments, overrides."""
    path, headers = HEADS[what]
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, *GETS], credential=False) as lab:
        if version == 1:
            client = await lab.tunnel()
            answer = await client.ask("GET", path, *[name + b": " + value for name, value in headers])
            reason, status = answer.reason, answer.status
        else:
            guest = await tunnel(lab)
            reply = await guest.answer(await guest.begin(path, *headers, ended=True))
            reason, status = reply.reason, reply.status
        assert reason == "bad_path"
        assert f"deny bad_path {status} denied" in (await lab.told())[0]
        assert b"".join(upstream.received for upstream in lab.upstreams) == b""


@pytest.mark.parametrize("mark", [b"%25", b"/", b"&"])
def test_a_head_counts_by_what_policy_makes_of_it(mark: bytes) -> None:
    """Escapes and separators are what takes time: a head of them counts more than one of letters, on each protocol."""
    size = 6000 // len(mark)
    for text, least in ((b"a" * size * len(mark), 0), (mark * size, size >> MARKS_SHIFT)):
        head = b"GET /?" + text + b" HTTP/1.1\r\nhost: a.test\r\n\r\n"
        reader = RequestReader()
        reader.left = 10_000
        reader.feed(head)
        reader.next_event()
        assert least <= 10_000 - reader.left - HEAD - (len(head) >> HEAD_SHIFT) <= least + 2
        core, peer = server(), Peer()
        core.left = 10_000
        core.feed(peer.headers(1, get("/?" + text.decode())))
        assert least <= 10_000 - core.left - HEAD - (len(text) >> HEAD_SHIFT) <= least + 3


# -- bodies and messages -----------------------------------------------------------------------------------------------

FULL_OF: dict[str, bytes] = {
    "percent": b"%",
    "escapes": b"%41",
    "JSON": b"\\u0041",
    "references": b"&#65;",
    "all": b"%25\\u0025",
}


@pytest.mark.parametrize("what", FULL_OF)
def test_escapes_cost_no_object_each(what: str) -> None:
    """What searches a body or message full of escapes holds two copies of it at once, not an object for each."""
    config = CredentialConfig(source=SourceConfig(env="X"), hosts=("api.test",))
    index = PlaceholderIndex({"key": config})
    body = FULL_OF[what] * (1_000_000 // len(FULL_OF[what]))
    RequestScanner(index, [("key", b"sk-live-0123456789abcdef")]).body_findings(body[:100])
    tracemalloc.start()
    try:
        assert RequestScanner(index, [("key", b"sk-live-0123456789abcdef")]).body_findings(body) == []
        assert placeholder_in(index, body) is None
        assert swap_in_text(index, body, "key", b"sk-live-0123456789abcdef") == body
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(body)


async def test_a_small_message_is_not_a_large_one() -> None:
    """A message that is compressed better than anything real ends its WebSocket, before anybody looks into it."""
    async with Lab(echoing(), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel(), "/ws", b"sec-websocket-extensions: permessage-deflate")
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = (compressor.compress(b"%" * (8 << 20)) + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(
            b"\0\0\xff\xff"
        )
        assert len(packed) < 10_000
        await peer.line.send(bytes((0xC1, 0xFE)) + len(packed).to_bytes(2, "big") + bytes(4) + packed)
        assert (await peer.closed())[0] == 1009
        assert "body_too_large" in (await lab.told())[0]


@pytest.mark.parametrize("size", [1000, 300_000])
def test_a_message_counts_by_what_is_inspected_of_it(size: int) -> None:
    """Inflated: a message that came small is not small for whoever looks into it."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = (compressor.compress(b"a" * size) + compressor.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\0\0\xff\xff")
    reader = FrameReader(masked=False, deflate=Deflate(), limit_bytes=1 << 20)
    reader.left = 10_000
    reader.feed(
        bytes((0xC1, 126)) + len(packed).to_bytes(2, "big") + packed
        if len(packed) > 125
        else bytes((0xC1, len(packed))) + packed
    )
    event = reader.next_event()
    assert isinstance(event, Message) and len(event.data) == size
    assert 10_000 - reader.left == MESSAGE + (size >> MESSAGE_SHIFT)


LONG_AND_EVEN = bytes(8 << 20)
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": lambda data: brotli.compress(data, quality=3),
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


async def lengths(talk: Talk) -> None:
    await talk.respond(200, b"%d" % len(await talk.body()))


def sends(packed: bytes) -> Callable[[Any], Awaitable[None]]:
    async def app(talk: Any) -> None:
        await talk.respond(200, packed, [("content-encoding", "gzip")])

    return app


LINE = b'{"role": "user", "content": "%d", "more": "' + b"a" * 70 + b'"},\n'
LONG = b"".join([LINE % number for number in range(100_000)])
"""11 MB, of which gzip makes a thirtieth: not a bomb."""
UNITS = 256
MOST_BEYOND = 1400
"""Units by which one piece may overdraw a share: 2 KiB become a MiB (the grace), in the worst case."""


@pytest.fixture
def lowest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with what was least left of any share, as it falls."""
    found = [UNITS]
    spend = Share.spend

    def watched(share: Share, units: int) -> None:
        spend(share, units)
        found[0] = min(found[0], share.left)

    monkeypatch.setattr(Share, "spend", watched)
    return found


@pytest.mark.parametrize("version", [1, 2])
async def test_a_body_that_is_decoded_waits_for_turns(version: int, lowest: list[int]) -> None:
    """What a request's body becomes is counted, piece by piece; once nothing is left the rest waits for a turn."""
    packed = gzip.compress(LONG)
    coded = (b"content-encoding", b"gzip")
    async with Lab(HttpUpstream(lengths), rules=[ALLOW_ALL]) as lab:
        if version == 1:
            client = await lab.tunnel()
            answer = await client.ask("POST", "/x", b": ".join(coded), body=packed)
            assert answer.body == b"%d" % len(packed)
        else:
            guest = await tunnel(lab)
            stream = await guest.begin("/x", coded, method="POST")
            await guest.data(stream, packed, ended=True)
            assert (await guest.answer(stream)).body == b"%d" % len(packed)
        await lab.audited("POST /x allow allowed 200 complete")
        assert -MOST_BEYOND < lowest[0] < 0


@pytest.mark.parametrize("version", [1, 2])
async def test_an_answer_that_is_decoded_waits_for_turns(version: int, lowest: list[int]) -> None:
    """So does an upstream's answer, on its guest's share, however fast the upstream sends it."""
    packed = gzip.compress(LONG)
    server = HttpUpstream(sends(packed)) if version == 1 else H2Upstream(sends(packed))
    async with Lab(server, rules=[ALLOW_ALL]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x", b"accept-encoding: gzip")
        assert answer.body == LONG
        await lab.audited("GET /x allow allowed 200 complete")
        assert -MOST_BEYOND < lowest[0] < 0


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
@pytest.mark.parametrize("version", [1, 2])
async def test_a_request_unpacks_less_than_an_answer(coding: str, version: int) -> None:
    """A guest's body that becomes more than 50 times as long, beyond the first MiB, ends, whoever looks into it."""
    packed = PACK[coding](LONG_AND_EVEN)
    assert 50 < len(LONG_AND_EVEN) / len(packed)
    coded = (b"content-encoding", coding.encode())
    async with Lab(HttpUpstream(lengths), rules=[ALLOW_ALL]) as lab:
        if version == 1:
            client = await lab.tunnel()
            await client.send(client.request("POST", "/x", b": ".join(coded), body=packed))
            reason = (await client.answer("POST")).reason
        else:
            guest = await tunnel(lab)
            stream = await guest.begin("/x", coded, method="POST")
            await guest.data(stream, packed, ended=True)
            reason = (await guest.answer(stream)).reason
        assert reason == "body_undecodable"
        (told,) = await lab.told()
        assert "deny body_undecodable" in told
