"""Every error condition of RFC 9113 and RFC 7541, byte by byte at the running gateway, as guest and as upstream.

Each case says what it breaks, by section, and what has to follow: the end of the connection with one of these codes,
the end of the stream (a reset, or the HTTP response that RFC 9113 8.1.1 permits before it), or nothing at all. After
anything but the end of the connection, the connection has to answer a PING and a request. A stream error may be
treated as a connection error (5.4.1), so those list both where we do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hpack import Decoder, Encoder

from seamgate.protocol import http2_frames as wire
from support.certificates import server_context
from support.http2 import Fields, Peer, claimed, get, tls_tunnel, tunnel
from support.lab import Lab
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, echo

PROTOCOL, FLOW, CLOSED, SIZE = wire.PROTOCOL_ERROR, wire.FLOW_CONTROL_ERROR, wire.STREAM_CLOSED, wire.FRAME_SIZE_ERROR
COMPRESSION, CALM = wire.COMPRESSION_ERROR, wire.ENHANCE_YOUR_CALM
AUTHORITY = "api.test:00000"
"""Stands for that of the upstream, which is as long: blocks are not compressed, so it can be put in."""
SENTINEL = b"sentinel"
SETTINGS = wire.write_settings([])
Frames = list[wire.Frame]


class Case(msgspec.Struct):
    """One thing that a peer may do wrong, or unusually right.

    Attributes:
        sent: what follows preface and SETTINGS, from which stream 1 on.
        ends: codes, one of which ends the connection; empty: it goes on.
        stream: that has to end with an error, 0 for none; `codes` are those its reset may have, a response of 4xx or
            501 is one as well.
        answered: streams that have to be answered with 200.
        bare: whether `sent` stands instead of preface and SETTINGS.
    """

    sent: bytes
    ends: tuple[int, ...] = ()
    stream: int = 0
    codes: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    bare: bool = False


def fields(*changes: tuple[bytes, bytes | None], method: str = "GET") -> Fields:
    """The fields of a request: changed where a pseudo field is named, None takes it away; others are added."""
    changed = dict(changes)
    kept = [(name, changed.get(name, value)) for name, value in get("/", AUTHORITY, method)]
    pseudo = {name for name, _ in kept}
    return [
        (name, value)
        for name, value in (*kept, *(pair for pair in changes if pair[0] not in pseudo))
        if value is not None
    ]


def block(*more: tuple[bytes, bytes | None], method: str = "GET") -> bytes:
    """A field block that depends on no table."""
    return encoded(fields(*more, method=method))


def encoded(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return Encoder().encode([(name, value, True) for name, value in pairs], huffman=False)


def head(stream: int, *more: tuple[bytes, bytes | None], ended: bool = True, method: str = "GET") -> bytes:
    return wire.write_headers(stream, block(*more, method=method), ended=ended)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return wire.write_frame(kind, flags, stream, payload)


data = Peer.data
END, HEADERS_END, PADDED = wire.END_STREAM, wire.END_HEADERS, wire.PADDED
POST = head(1, ended=False, method="POST")

STARTING = {
    "3.4 an invalid preface": Case(b"INVALID CONNECTION PREFACE\r\n\r\n", ends=(PROTOCOL,), bare=True),
    "3.4 no SETTINGS first": Case(wire.PREFACE + head(1), ends=(PROTOCOL,), bare=True),
    "3.4 an acknowledgement first": Case(wire.PREFACE + frame(wire.SETTINGS, wire.ACK, 0), ends=(PROTOCOL,), bare=True),
}
FORMAT = {
    "4.1 a frame of an unknown type": Case(frame(0x16, 0, 0, b"x" * 8) + head(1), answered=(1,)),
    "4.1 undefined flags": Case(frame(wire.PING, 0x16, 0, bytes(8)) + head(1), answered=(1,)),
    "4.1 the reserved bit of a stream": Case(frame(wire.PING, 0, 1 << 31, bytes(8)) + head(1), answered=(1,)),
    "4.2 DATA of the largest size": Case(POST + data(1, b"x" * 16384, ended=True), answered=(1,)),
    "4.2 DATA beyond it": Case(POST + data(1, bytes(16385)), ends=(SIZE,)),
    "4.2 HEADERS beyond it": Case(frame(wire.HEADERS, 5, 1, bytes(16385)), ends=(SIZE,)),
    "4.3 a block that can't be decoded": Case(frame(wire.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff"), ends=(COMPRESSION,)),
    "4.3 PRIORITY within a block": Case(
        frame(wire.HEADERS, 1, 1, block()) + frame(wire.PRIORITY, 0, 1, bytes(5)), ends=(PROTOCOL,)
    ),
    "4.3 HEADERS of another stream within a block": Case(
        frame(wire.HEADERS, 1, 1, block()) + head(3), ends=(PROTOCOL,)
    ),
    "5.5 an unknown frame within a block": Case(
        frame(wire.HEADERS, 1, 1, block()) + frame(0x16, 0, 1), ends=(PROTOCOL,)
    ),
}
STATES = {
    "5.1 DATA on an idle stream": Case(data(1, b"x", ended=True), ends=(PROTOCOL,)),
    "5.1 RST_STREAM on an idle stream": Case(wire.write_word(wire.RST_STREAM, 1, 8), ends=(PROTOCOL,)),
    "5.1 WINDOW_UPDATE on an idle stream": Case(wire.write_word(wire.WINDOW_UPDATE, 1, 9), ends=(PROTOCOL,)),
    "5.1 CONTINUATION on an idle stream": Case(frame(wire.CONTINUATION, 4, 1, block()), ends=(PROTOCOL,)),
    "5.1 DATA after the end": Case(head(1, method="POST") + data(1, b"x", ended=True), stream=1, codes=(CLOSED,)),
    "5.1 HEADERS after the end": Case(head(1) + head(1), stream=1, codes=(CLOSED,)),
    "5.1 CONTINUATION after the end": Case(head(1) + frame(wire.CONTINUATION, 4, 1, block()), ends=(PROTOCOL, CLOSED)),
    "5.1 PRIORITY on an idle stream": Case(frame(wire.PRIORITY, 0, 5, bytes(5)) + head(1), answered=(1,)),
    "5.1 WINDOW_UPDATE after a reset": Case(
        POST + wire.write_word(wire.RST_STREAM, 1, 8) + wire.write_word(wire.WINDOW_UPDATE, 1, 9) + head(3),
        answered=(3,),
    ),
    "5.1 RST_STREAM after a reset": Case(POST + wire.write_word(wire.RST_STREAM, 1, 8) * 2 + head(3), answered=(3,)),
    "5.1 DATA after a reset of its own": Case(
        POST + wire.write_word(wire.RST_STREAM, 1, 8) + data(1, b"x"), ends=(CLOSED,)
    ),
    "5.1.1 an even stream": Case(head(2), ends=(PROTOCOL,)),
    "5.1.1 a stream below one that was opened": Case(head(5) + head(3), ends=(PROTOCOL, CLOSED)),
    "5.1.2 more streams than are permitted": Case(
        b"".join(head(number, ended=False, method="POST") for number in range(1, 11, 2))
        + b"".join(wire.write_word(wire.RST_STREAM, number, 8) for number in range(1, 9, 2)),
        stream=9,
        codes=(7, PROTOCOL),
    ),
}
FRAMES = {
    "6.1 DATA on stream 0": Case(data(0, b"x"), ends=(PROTOCOL,)),
    "6.1 DATA with too much padding": Case(POST + frame(wire.DATA, END | PADDED, 1, b"\x06test"), ends=(PROTOCOL,)),
    "6.1 DATA with as much padding as it is long": Case(
        POST + frame(wire.DATA, PADDED, 1, b"\x05test"), ends=(PROTOCOL,)
    ),
    "6.1 DATA with padding": Case(POST + frame(wire.DATA, END | PADDED, 1, b"\x02ok\0\0"), answered=(1,)),
    "6.1 DATA of padding without its length": Case(POST + frame(wire.DATA, PADDED, 1, b""), ends=(PROTOCOL, SIZE)),
    "6.2 HEADERS on stream 0": Case(frame(wire.HEADERS, 5, 0, block()), ends=(PROTOCOL,)),
    "6.2 HEADERS with too much padding": Case(
        frame(wire.HEADERS, 5 | PADDED, 1, bytes((len(block()) + 1,)) + block()), ends=(PROTOCOL,)
    ),
    "6.2 HEADERS with padding and priority": Case(
        frame(wire.HEADERS, 5 | PADDED | wire.WITH_PRIORITY, 1, b"\x02" + bytes(5) + block() + bytes(2)), answered=(1,)
    ),
    "6.2 HEADERS too short for a priority": Case(frame(wire.HEADERS, 5 | wire.WITH_PRIORITY, 1, b"xx"), ends=(SIZE,)),
    "6.3 PRIORITY on stream 0": Case(frame(wire.PRIORITY, 0, 0, bytes(5)), ends=(PROTOCOL,)),
    "6.3 PRIORITY of another length": Case(frame(wire.PRIORITY, 0, 1, bytes(4)), ends=(SIZE,)),
    "6.4 RST_STREAM on stream 0": Case(wire.write_word(wire.RST_STREAM, 0, 8), ends=(PROTOCOL,)),
    "6.4 RST_STREAM of another length": Case(POST + frame(wire.RST_STREAM, 0, 1, bytes(3)), ends=(SIZE,)),
    "6.4 an unknown code": Case(POST + wire.write_word(wire.RST_STREAM, 1, 0xFF) + head(3), answered=(3,)),
    "6.5 an acknowledgement with settings": Case(frame(wire.SETTINGS, wire.ACK, 0, bytes(6)), ends=(SIZE,)),
    "6.5 SETTINGS on a stream": Case(frame(wire.SETTINGS, 0, 1, bytes(6)), ends=(PROTOCOL,)),
    "6.5 SETTINGS of another length": Case(frame(wire.SETTINGS, 0, 0, bytes(5)), ends=(SIZE,)),
    "6.5.2 ENABLE_PUSH of 2": Case(wire.write_settings([(wire.ENABLE_PUSH, 2)]), ends=(PROTOCOL,)),
    "6.5.2 too large a window": Case(wire.write_settings([(wire.INITIAL_WINDOW_SIZE, 1 << 31)]), ends=(FLOW,)),
    "6.5.2 too small frames": Case(wire.write_settings([(wire.MAX_FRAME_SIZE, 16383)]), ends=(PROTOCOL,)),
    "6.5.2 too large frames": Case(wire.write_settings([(wire.MAX_FRAME_SIZE, 1 << 24)]), ends=(PROTOCOL,)),
    "6.5.2 an unknown setting": Case(wire.write_settings([(0xFF, 1)]) + head(1), answered=(1,)),
    "6.5.2 settings that repeat": Case(
        wire.write_settings([(wire.INITIAL_WINDOW_SIZE, 100), (wire.INITIAL_WINDOW_SIZE, 65535)]) + head(1),
        answered=(1,),
    ),
    "RFC 8441 3 ENABLE_CONNECT_PROTOCOL of 2": Case(
        wire.write_settings([(wire.ENABLE_CONNECT_PROTOCOL, 2)]), ends=(PROTOCOL,)
    ),
    "6.6 PUSH_PROMISE of a client": Case(POST + frame(wire.PUSH_PROMISE, 4, 1, bytes(4) + block()), ends=(PROTOCOL,)),
    "6.7 PING on a stream": Case(frame(wire.PING, 0, 1, bytes(8)), ends=(PROTOCOL,)),
    "6.7 PING of another length": Case(frame(wire.PING, 0, 0, bytes(6)), ends=(SIZE,)),
    "6.7 an answer that nobody asked for": Case(frame(wire.PING, wire.ACK, 0, bytes(8)) + head(1), answered=(1,)),
    "6.8 GOAWAY on a stream": Case(frame(wire.GOAWAY, 0, 1, bytes(8)), ends=(PROTOCOL,)),
    "6.8 GOAWAY that is too short": Case(frame(wire.GOAWAY, 0, 0, bytes(7)), ends=(SIZE,)),
    "6.8 streams go on after a client's GOAWAY": Case(head(1) + wire.write_goaway(0, 0xFF), answered=(1,)),
    "6.9 WINDOW_UPDATE by nothing": Case(wire.write_word(wire.WINDOW_UPDATE, 0, 0), ends=(PROTOCOL,)),
    "6.9 WINDOW_UPDATE of a stream by nothing": Case(
        POST + wire.write_word(wire.WINDOW_UPDATE, 1, 0), stream=1, codes=(PROTOCOL,)
    ),
    "6.9 WINDOW_UPDATE of another length": Case(frame(wire.WINDOW_UPDATE, 0, 0, bytes(3)), ends=(SIZE,)),
    "6.9.1 the connection's window overflows": Case(
        wire.write_word(wire.WINDOW_UPDATE, 0, wire.MAX_WINDOW), ends=(FLOW,)
    ),
    "6.9.1 a stream's window overflows": Case(
        POST + wire.write_word(wire.WINDOW_UPDATE, 1, wire.MAX_WINDOW), stream=1, codes=(FLOW,)
    ),
    "6.9.1 more DATA than a stream's window": Case(
        POST + data(1, bytes(16384)) * 4 + data(1, bytes(16384)) * 3, stream=1, codes=(FLOW,)
    ),
    "6.9.2 a new initial window overflows a stream's": Case(
        POST
        + wire.write_word(wire.WINDOW_UPDATE, 1, wire.MAX_WINDOW - 65535)
        + wire.write_settings([(wire.INITIAL_WINDOW_SIZE, 65536)]),
        ends=(FLOW,),
    ),
    "6.10 two CONTINUATIONs": Case(
        frame(wire.HEADERS, 1, 1, encoded(fields()[:1]))
        + frame(wire.CONTINUATION, 0, 1, encoded(fields()[1:3]))
        + frame(wire.CONTINUATION, 4, 1, encoded(fields()[3:])),
        answered=(1,),
    ),
    "6.10 CONTINUATION after the end of a block": Case(
        POST + frame(wire.CONTINUATION, 4, 1, block()), ends=(PROTOCOL,)
    ),
    "6.10 CONTINUATION on stream 0": Case(
        frame(wire.HEADERS, 1, 1, block()) + frame(wire.CONTINUATION, 4, 0, block()), ends=(PROTOCOL,)
    ),
    "6.10 CONTINUATION after DATA": Case(
        POST + data(1, b"x") + frame(wire.CONTINUATION, 4, 1, block()), ends=(PROTOCOL,)
    ),
}


def malformed(*changes: tuple[bytes, bytes | None]) -> Case:
    return Case(head(1, *changes), stream=1, codes=(PROTOCOL,))


def trailers(*pairs: tuple[bytes, bytes], ended: bool = True) -> Case:
    sent = POST + data(1, b"x") + wire.write_headers(1, encoded(pairs), ended=ended)
    return Case(sent, stream=1, codes=(PROTOCOL,))


def length(value: bytes, *pieces: bytes) -> Case:
    sent = head(1, (b"content-length", value), ended=False, method="POST")
    sent += b"".join(data(1, piece, ended=piece is pieces[-1]) for piece in pieces)
    return Case(sent, stream=1, codes=(PROTOCOL,))


MESSAGES = {
    "8.1 a second head without an end": trailers((b"x", b"1"), ended=False),
    "8.1 trailers": Case(
        POST + data(1, b"x") + wire.write_headers(1, encoded([(b"x", b"1")]), ended=True), answered=(1,)
    ),
    "8.2.1 upper case": malformed((b"X-Test", b"1")),
    "8.2.1 a control character in a name": malformed((b"x\x01", b"1")),
    "8.2.1 a colon in a name": malformed((b"x:y", b"1")),
    "8.2.1 white space before a value": malformed((b"x", b" 1")),
    "8.2.1 a line break in a value": malformed((b"x", b"1\n2")),
    "8.2.1 an empty name": malformed((b"", b"1")),
    "8.2.2 connection": malformed((b"connection", b"keep-alive")),
    "8.2.2 keep-alive": malformed((b"keep-alive", b"1")),
    "8.2.2 proxy-connection": malformed((b"proxy-connection", b"close")),
    "8.2.2 transfer-encoding": malformed((b"transfer-encoding", b"chunked")),
    "8.2.2 upgrade": malformed((b"upgrade", b"h2c")),
    "8.2.2 TE of anything but trailers": malformed((b"te", b"trailers, deflate;q=0.5")),
    "8.3 an unknown pseudo field": malformed((b":test", b"1")),
    "8.3 a pseudo field of responses": malformed((b":status", b"200")),
    "8.3 a pseudo field in trailers": trailers((b":method", b"GET")),
    "8.3 a pseudo field after others": Case(
        wire.write_headers(1, encoded([(b"x", b"1"), *fields()]), ended=True), stream=1, codes=(PROTOCOL,)
    ),
    "8.3.1 no :method": malformed((b":method", None)),
    "8.3.1 no :scheme": malformed((b":scheme", None)),
    "8.3.1 no :path": malformed((b":path", None)),
    "8.3.1 an empty :path": malformed((b":path", b"")),
    "8.3.1 user information in :authority": malformed((b":authority", b"me@" + AUTHORITY.encode())),
    "8.3.1 two :method": Case(
        wire.write_headers(1, encoded([(b":method", b"GET"), *fields()]), ended=True), stream=1, codes=(PROTOCOL,)
    ),
    "8.3.1 two :path": Case(
        wire.write_headers(1, encoded([(b":path", b"/"), *fields()]), ended=True), stream=1, codes=(PROTOCOL,)
    ),
    "8.3.1 two :scheme": Case(
        wire.write_headers(1, encoded([(b":scheme", b"https"), *fields()]), ended=True), stream=1, codes=(PROTOCOL,)
    ),
    "8.1.1 a body that is shorter than it says": length(b"4", b"abc"),
    "8.1.1 a body that is longer than it says": length(b"2", b"abc"),
    "8.1.1 a body in pieces that is shorter": length(b"4", b"a", b"bc"),
    "8.1.1 a body in pieces that is longer": length(b"2", b"a", b"bc"),
    "8.1.1 a length of a request without a body": malformed((b"content-length", b"1")),
    "8.5 CONNECT": malformed((b":method", b"CONNECT")),
}


def hpack(sent: bytes) -> Case:
    return Case(frame(wire.HEADERS, 5, 1, sent), ends=(COMPRESSION,))


XTEST = b"\x00\x85\xf2\xb2\x4a\x84\xff"  # a literal whose name is in Huffman's code
HPACK = {
    "RFC 7541 2.3.3 an index beyond the tables": hpack(block() + b"\xc6"),
    "RFC 7541 4.2 a table size update at the end of a block": hpack(block() + b"\x20"),
    "RFC 7541 5.1 an integer that never ends": hpack(block() + b"\xff" + b"\xff" * 20),
    "RFC 7541 5.2 a string beyond the block": hpack(block() + b"\x00\x7f\xff\xff"),
    "RFC 7541 5.2 more than 7 bits of padding": hpack(block() + XTEST + b"\x85\x49\x50\x9f\xff\xff"),
    "RFC 7541 5.2 padding of zeros": hpack(block() + XTEST + b"\x83\x49\x50\x90"),
    "RFC 7541 5.2 EOS in a string": hpack(block() + XTEST + b"\x88\xff\xff\xff\xfc\x49\x50\x9f\xff"),
    "RFC 7541 6.1 index 0": hpack(block() + b"\x80"),
    "RFC 7541 6.3 a table larger than was agreed to": hpack(b"\x3f\xe2\x1f" + block()),
}
AS_GUEST = {
    "starting": STARTING,
    "format": FORMAT,
    "states": STATES,
    "frames": FRAMES,
    "messages": MESSAGES,
    "hpack": HPACK,
}


class Seen:
    """What a gateway said on one connection."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.goaway = -1
        self.resets: dict[int, int] = {}
        self.statuses: dict[int, bytes] = {}
        self.whole: set[int] = set()
        self.pings: list[bytes] = []
        self.acknowledged = 0
        self.data: dict[int, int] = {}
        self._reader = wire.FrameReader()
        self._decoder = Decoder()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until something is so, or the connection ends."""
        while not condition():
            read = await self.line.some()
            if not read:
                return
            self._reader.feed(read)
            while (got := self._reader.next_frame()) is not None:
                self._on_frame(*got)

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == wire.GOAWAY:
            self.goaway = wire.word(payload[4:])
        elif kind == wire.RST_STREAM:
            self.resets[stream] = wire.word(payload)
        elif kind == wire.PING and flags & wire.ACK:
            self.pings.append(payload)
        elif kind == wire.SETTINGS and flags & wire.ACK:
            self.acknowledged += 1
        elif kind == wire.HEADERS:
            decoded = dict(self._decoder.decode(payload, raw=True))
            self.statuses.setdefault(stream, bytes(decoded.get(b":status", b"")))
        elif kind == wire.DATA:
            self.data[stream] = self.data.get(stream, 0) + len(payload)
        if kind in (wire.HEADERS, wire.DATA) and flags & wire.END_STREAM:
            self.whole.add(stream)


def placed(lab: Lab, sent: bytes) -> bytes:
    """Put the upstream's authority in."""
    return sent.replace(AUTHORITY.encode(), lab.authority().encode())


async def check(lab: Lab, case: Case) -> None:
    """Send it, and assert what has to follow."""
    line = await tls_tunnel(lab)
    seen = Seen(line)
    await line.send(placed(lab, case.sent if case.bare else wire.PREFACE + SETTINGS + case.sent))
    if case.ends:
        await seen.until(lambda: seen.goaway >= 0)
        assert seen.goaway in case.ends, f"GOAWAY {seen.goaway}, {seen.resets}"
        line.close()
        return
    await line.send(frame(wire.PING, 0, 0, SENTINEL))
    stream = case.stream
    await seen.until(
        lambda: (
            SENTINEL in seen.pings
            and seen.whole >= set(case.answered)
            and (not stream or stream in seen.resets or stream in seen.statuses)
        )
    )
    assert seen.goaway == -1 and SENTINEL in seen.pings, f"GOAWAY {seen.goaway}"
    assert {seen.statuses.get(each) for each in case.answered} <= {b"200"}, seen.statuses
    if stream and stream in seen.statuses:
        assert seen.statuses[stream][:1] == b"4" or seen.statuses[stream] == b"501", seen.statuses
    elif stream:
        assert seen.resets[stream] in case.codes, seen.resets
    if case.sent.find(wire.write_goaway(0, 0xFF)) < 0:
        await line.send(placed(lab, head(101)))
        await seen.until(lambda: 101 in seen.whole)
        assert seen.statuses[101] == b"200"
    line.close()


@pytest.mark.parametrize("part", AS_GUEST)
async def test_each_error_of_a_guest_ends_what_it_has_to(part: str) -> None:
    """RFC 9113 3 to 8, RFC 7541: the right end, of the right thing, and everything is audited."""
    settings = {"limits": {"streams": 4}}
    async with Lab(HttpUpstream(echo), settings=settings, credential=False) as lab:
        assert len(lab.authority()) == len(AUTHORITY)
        wrong: dict[str, str] = {}
        for what, case in AS_GUEST[part].items():
            try:
                async with asyncio.timeout(40):
                    await check(lab, case)
            except (AssertionError, TimeoutError) as error:
                wrong[what] = repr(error)
        assert wrong == {}
        await lab.until(lambda: not lab.gateway.connections.all)
        await claimed(lab, len(lab.records))


# -- as upstream -----------------------------------------------------------------------------------------------------


class Wrong(msgspec.Struct):
    """What an upstream says wrong in answer to stream 1.

    Attributes:
        ends: whether it ends the connection; else only the stream, and the connection carries another request.
        cut: whether the answer had begun, so that the guest sees it cut instead of 502.
        first: sent in place of SETTINGS.
    """

    sent: bytes
    ends: bool = True
    cut: bool = False
    first: bytes = SETTINGS


def said(*pairs: tuple[bytes, bytes], stream: int = 1, ended: bool = True) -> bytes:
    return wire.write_headers(stream, encoded(pairs), ended=ended)


OK = (b":status", b"200")
AS_UPSTREAM = {
    "3.4 no SETTINGS first": Wrong(b"", first=frame(wire.PING, 0, 0, bytes(8))),
    "4.2 a frame that is too long": Wrong(frame(wire.DATA, 0, 1, bytes(16385))),
    "4.3 a block that can't be decoded": Wrong(frame(wire.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff")),
    "4.3 a block that is interrupted": Wrong(
        frame(wire.HEADERS, 1, 1, encoded([OK])) + frame(wire.PING, 0, 0, bytes(8))
    ),
    "5.1 DATA on an idle stream": Wrong(data(99, b"x")),
    "5.1 HEADERS on an idle stream": Wrong(said(OK, stream=99)),
    "5.1 RST_STREAM on an idle stream": Wrong(wire.write_word(wire.RST_STREAM, 99, 8)),
    "5.1 WINDOW_UPDATE on an idle stream": Wrong(wire.write_word(wire.WINDOW_UPDATE, 99, 1)),
    "5.1.1 a stream of its own": Wrong(said(OK, stream=2)),
    "6.5.2 ENABLE_PUSH of 1": Wrong(wire.write_settings([(wire.ENABLE_PUSH, 1)])),
    "6.5.2 a setting out of range": Wrong(wire.write_settings([(wire.MAX_FRAME_SIZE, 1)])),
    "RFC 8441 3 extended CONNECT taken back": Wrong(
        wire.write_settings([(wire.ENABLE_CONNECT_PROTOCOL, 1)])
        + wire.write_settings([(wire.ENABLE_CONNECT_PROTOCOL, 0)])
    ),
    "6.6 PUSH_PROMISE": Wrong(frame(wire.PUSH_PROMISE, 4, 1, bytes(3) + b"\x02" + encoded([OK]))),
    "6.7 PING of another length": Wrong(frame(wire.PING, 0, 0, bytes(7))),
    "6.8 GOAWAY on a stream": Wrong(frame(wire.GOAWAY, 0, 1, bytes(8))),
    "6.9 WINDOW_UPDATE by nothing": Wrong(wire.write_word(wire.WINDOW_UPDATE, 0, 0)),
    "6.9.1 a window that overflows": Wrong(wire.write_word(wire.WINDOW_UPDATE, 0, wire.MAX_WINDOW)),
    "6.10 CONTINUATION without HEADERS": Wrong(frame(wire.CONTINUATION, 4, 1, encoded([OK]))),
    "8.1 DATA before the head": Wrong(data(1, b"x", ended=True), ends=False),
    "8.1 a 1xx response that ends": Wrong(said((b":status", b"103")), ends=False),
    "8.1 a second head": Wrong(said(OK, ended=False) + said(OK, ended=False), ends=False, cut=True),
    "8.1.1 a body that is shorter than it says": Wrong(
        said(OK, (b"content-length", b"5"), ended=False) + data(1, b"x", ended=True), ends=False, cut=True
    ),
    "8.1.1 a body that is longer than it says": Wrong(
        said(OK, (b"content-length", b"1"), ended=False) + data(1, b"xyz", ended=True), ends=False, cut=True
    ),
    "8.2.1 upper case": Wrong(said(OK, (b"X", b"1")), ends=False),
    "8.2.1 a line break in a value": Wrong(said(OK, (b"x", b"1\r\ny: 2")), ends=False),
    "8.2.2 transfer-encoding": Wrong(said(OK, (b"transfer-encoding", b"chunked")), ends=False),
    "8.3.2 no :status": Wrong(said((b"x", b"1")), ends=False),
    "8.3.2 two :status": Wrong(said(OK, OK), ends=False),
    "8.3.2 a :status that is none": Wrong(said((b":status", b"20")), ends=False),
    "8.6 101": Wrong(said((b":status", b"101")), ends=False),
    "8.3 a pseudo field of requests": Wrong(said(OK, (b":path", b"/")), ends=False),
    "8.3 a pseudo field in trailers": Wrong(said(OK, ended=False) + said(OK), ends=False, cut=True),
    "RFC 7541 6.1 index 0": Wrong(frame(wire.HEADERS, 5, 1, b"\x80")),
    "RFC 7541 6.3 a table larger than was agreed to": Wrong(frame(wire.HEADERS, 5, 1, b"\x3f\xe2\x1f" + encoded([OK]))),
}


class WrongUpstream(RawUpstream):
    """A server of HTTP/2 that answers the first request wrongly and each further one of the connection well."""

    def __init__(self) -> None:
        super().__init__(self._serve)
        self.wrong = Wrong(b"")

    async def start(self) -> None:
        context = server_context.__wrapped__(*self.names)
        context.set_alpn_protocols(["h2"])
        self._server = await asyncio.get_running_loop().create_server(self._accept, self.address, 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, line: Line) -> None:
        wrong, reader = self.wrong, wire.FrameReader(wire.PREFACE)
        await line.send(wrong.first)
        while read := await line.some():
            reader.feed(read)
            while (got := reader.next_frame()) is not None:
                if got[0] == wire.HEADERS and got[2] == 1:
                    await line.send(wrong.sent)
                elif got[0] == wire.HEADERS:
                    await line.send(said(OK, stream=got[2], ended=False) + data(got[2], b"good", ended=True))
        line.close()


async def test_each_error_of_an_upstream_ends_what_it_has_to() -> None:
    """Its guest gets a 502 or a visible cut; the connection ends, or carries the next request as if nothing was."""
    upstream = WrongUpstream()
    wrong: dict[str, str] = {}
    async with Lab(upstream, credential=False) as lab:
        for what, case in AS_UPSTREAM.items():
            upstream.wrong = case
            connections = len(upstream.lines)
            guest = await tunnel(lab)
            async with asyncio.timeout(40):
                reply = await guest.answer(await guest.begin("/", ended=True))
                (record,) = await claimed(lab, 1)
                well = await guest.ask("/") if not case.ends else None
            told = (reply.status, reply.reset >= 0) == (200, True) if case.cut else reply.reason == "upstream_protocol"
            if not told or record.reason != "upstream_protocol":
                wrong[what] = f"{reply.status} {reply.reason} {reply.reset}, audited as {record.reason}"
            elif well is not None and (well.body != b"good" or len(upstream.lines) != connections + 1):
                wrong[what] = f"the connection did not go on: {well.status}"
            if well is not None:
                await claimed(lab, 1)
            elif not wrong.get(what):
                await lab.until(lambda: lab.gateway.seam.pool.counts == (0, 0, 0))
            for line in upstream.lines:
                line.close()
            await lab.until(lambda: lab.gateway.seam.pool.counts == (0, 0, 0))
            guest.close()
        assert wrong == {}
