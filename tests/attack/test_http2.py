"""HTTP/2 attacks at the running gateway: the offender is refused and audited, nothing goes up, nobody else notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from seamgate.audit.record import Decision
from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http2_guard import ANSWERS_WAITING, BLOCK_FRAMES, CONTROL_BURST, RESET_BURST, WINDOW_BURST
from support.http2 import H2Client, Peer, claimed, get, tunnel
from support.http2_upstream import H2Upstream, echo2
from support.lab import ALLOW_ALL, Lab
from support.line import Cut
from support.upstream import HttpUpstream, echo

POST = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/")]


async def goaway(client: H2Client) -> int:
    """Return the code of the GOAWAY that ends the connection."""
    try:
        await client.until(lambda: client.goaway >= 0)
    except Cut:
        return -1
    return client.goaway


def fields(client: H2Client, *more: tuple[bytes, bytes], path: bytes = b"/") -> list[tuple[bytes, bytes]]:
    return [*POST[:2], (b":path", path), (b":authority", client.authority.encode()), *more]


SMUGGLING = {
    "CRLF in a value": (b"a", b"1\r\nhost: evil.test\r\n\r\nGET /admin HTTP/1.1"),
    "LF in a value": (b"a", b"1\nx: 2"),
    "NUL in a value": (b"a", b"1\x00"),
    "CRLF in a name": (b"a\r\nx: 1\r\n", b"1"),
    "colon in a name": (b"host: evil", b"1"),
    "space in a name": (b"content-length ", b"5"),
    "upper case": (b"Content-Length", b"5"),
    "transfer-encoding": (b"transfer-encoding", b"chunked"),
    "connection": (b"connection", b"content-length"),
    "upgrade": (b"upgrade", b"h2c"),
    "TE": (b"te", b"trailers, chunked"),
    "late pseudo field": (b":path", b"/admin"),
    "unknown pseudo field": (b":x", b"1"),
    "two lengths": (b"content-length", b"5, 6"),
    "signed length": (b"content-length", b"+5"),
    "another host": (b"host", b"evil.test"),
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_a_downgrade_smuggles_nothing(name: str) -> None:
    """Each becomes a 4xx of its own stream and a record; an HTTP/1.1 upstream never sees a byte of it."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        stream = await guest.send(fields(guest, SMUGGLING[name]), ended=False)
        await guest.data(stream, b"0\r\n\r\nGET /admin HTTP/1.1\r\nhost: x\r\n\r\n")
        reply = await guest.answer(stream)
        assert reply.status in (400, 421)
        (record,) = await claimed(lab, 1)
        assert record.verdict is Decision.DENY
        assert lab.upstream.received == b""
        assert (await guest.ask("/")).status == 200
        await lab.audited("GET / allow allowed 200 complete")


@pytest.mark.parametrize(
    "changed",
    [
        (b":path", b"/x HTTP/1.1\r\nhost: evil.test\r\n\r\nGET /"),
        (b":path", b"https://evil.test/"),
        (b":path", b""),
        (b":method", b"GET / HTTP/1.1\r\nx:"),
        (b":method", b"CONNECT"),
        (b":scheme", b"http"),
        (b":scheme", b"https://evil.test/?"),
        (b":authority", b"evil.test"),
        (b":authority", b"api.test@evil.test"),
        (b":authority", b""),
    ],
)
async def test_a_pseudo_field_names_nothing_else(changed: tuple[bytes, bytes]) -> None:
    """One target: what the tunnel, the certificate and policy agreed to."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        sent = [(name, changed[1] if name == changed[0] else value) for name, value in get("/", guest.authority)]
        reply = await guest.answer(await guest.send(sent))
        assert reply.status in (400, 403, 421, 501)
        (record,) = await claimed(lab, 1)
        assert record.verdict is Decision.DENY and lab.upstream.received == b""


async def test_a_body_is_never_longer_than_it_says() -> None:
    """The surplus of a content-length does not become a second request of an HTTP/1.1 upstream."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        stream = await guest.send(fields(guest, (b"content-length", b"3")), ended=False)
        await guest.data(stream, b"abcGET /admin HTTP/1.1\r\n\r\n")
        reply = await guest.answer(stream)
        assert reply.status == 400
        await lab.audited("POST / deny bad_request 400 denied")
        assert b"/admin" not in lab.upstream.received


@pytest.mark.parametrize("protocol", [b"connect-udp", b"connect-ip", b"webtransport", b"WebSocket", b"h2c"])
async def test_an_extended_connect_to_anything_but_websocket_is_refused(protocol: bytes) -> None:
    """RFC 8441 is for WebSocket alone: no other protocol gets a stream that nobody reads."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        sent = [(b":method", b"CONNECT"), (b":protocol", protocol), *get("/", guest.authority)[1:]]
        reply = await guest.answer(await guest.send(sent, ended=False))
        assert (reply.status, reply.reason) == (501, "upgrade_refused")
        await lab.refused(f"- {lab.authority()} deny upgrade_refused 501 denied")


async def test_plugins_and_policy_see_the_one_request() -> None:
    """A path with dot segments or escapes is refused as in HTTP/1.1."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        for path in ("/a/../b", "/a/%2e%2e/b", "/a/.", "/%00", "/a#b"):
            assert (await guest.ask(path)).reason == "bad_path"
        await lab.refused(*[f"GET {lab.authority()} deny bad_path 400 denied"] * 5)


PING = wire.write_frame(wire.PING, 0, 0, bytes(8))
FLOODS = {
    "PING": PING * (CONTROL_BURST + 200),
    "SETTINGS": wire.write_settings([]) * (CONTROL_BURST + 200),
    "settings in SETTINGS": wire.write_settings([(0x99, 1)] * 2000) * 20,
    "PRIORITY": wire.write_frame(wire.PRIORITY, 0, 9, bytes(5)) * (CONTROL_BURST + 200),
    "unknown frames": wire.write_frame(0xAA, 0, 0, b"") * (CONTROL_BURST + 200),
    "WINDOW_UPDATE": wire.write_word(wire.WINDOW_UPDATE, 0, 1) * (WINDOW_BURST + 500),
    "GOAWAY": wire.write_goaway(0, 0) * (CONTROL_BURST + 200),
    "answers to PING": wire.write_frame(wire.PING, wire.ACK, 0, bytes(8)) * (CONTROL_BURST + 200),
    "acknowledged SETTINGS": wire.write_frame(wire.SETTINGS, wire.ACK, 0) * (CONTROL_BURST + 200),
    "settings that change the windows": wire.write_settings([(wire.INITIAL_WINDOW_SIZE, 1)]) * (CONTROL_BURST + 200),
    "CONTINUATION": wire.write_frame(wire.HEADERS, 0, 1, b"")
    + wire.write_frame(wire.CONTINUATION, 0, 1, b"") * (BLOCK_FRAMES + 1),
    "a long field block": wire.write_frame(wire.HEADERS, 0, 1, bytes(16384))
    + wire.write_frame(wire.CONTINUATION, 0, 1, bytes(16384)) * 5,
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_the_offenders_connection(name: str) -> None:
    """GOAWAY (ENHANCE_YOUR_CALM), one record; another guest's connection goes on."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest, other = await tunnel(lab), await tunnel(lab)
        await guest.raw(FLOODS[name])
        assert await goaway(guest) == wire.ENHANCE_YOUR_CALM
        await lab.refused(f"- {lab.authority()} deny bad_request 400 denied")
        assert (await other.ask("/")).status == 200
        await lab.audited("GET / allow allowed 200 complete")


async def test_a_flood_of_empty_data_ends_the_connection() -> None:
    """CVE-2019-9518: frames of a body that carry nothing."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        await guest.begin("/", method="POST")
        await guest.raw(Peer.data(1, b"") * (CONTROL_BURST + 200))
        assert await goaway(guest) == wire.ENHANCE_YOUR_CALM
        await lab.audited("POST / deny bad_request 400 denied")


async def test_a_rapid_reset_ends_the_connection() -> None:
    """CVE-2023-44487: requests that are given up as soon as they are made; each that was begun has its record."""
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL]) as lab:
        guest, other = await tunnel(lab), await tunnel(lab)
        peer, flood = Peer(), b""
        for number in range(1, 2 * (RESET_BURST + 300), 2):
            flood += peer.headers(number, get("/", guest.authority)) + wire.write_word(wire.RST_STREAM, number, 8)
        await guest.raw(flood)
        assert await goaway(guest) == wire.ENHANCE_YOUR_CALM
        await lab.until(lambda: not lab.gateway.seam.active)
        records = await claimed(lab, len(lab.records))
        assert RESET_BURST < len({record.id for record in records}) == len(records) < RESET_BURST + 300
        assert (await other.ask("/")).status == 200
        await lab.audited("GET / allow allowed 200 complete")


async def test_a_rapid_reset_does_not_reach_the_others_of_an_upstream() -> None:
    """The shared session retires long before the upstream would end it for all."""

    async def app(talk: Any) -> None:
        if talk.target == "/stay":
            await stay.wait()
            await talk.respond(200, b"stayed")
        elif talk.target == "/reset":
            await talk.given_up()
        else:
            await talk.respond(200, b"x")

    stay = asyncio.Event()
    async with Lab(H2Upstream(app), credential=False) as lab:
        upstream: Any = lab.upstream
        other, guest = await tunnel(lab), await tunnel(lab)
        staying = await other.begin("/stay", ended=True)
        await lab.until(lambda: len(upstream.talks) == 1)
        for _ in range(8):
            streams = [await guest.begin("/reset", ended=True) for _ in range(60)]
            seen = len(lab.records)
            for stream in streams:
                guest.h.reset_stream(stream, 8)
            await guest.flush()
            await lab.until(lambda seen=seen: len(lab.records) >= seen + 60)  # type: ignore[misc]
        resets: dict[int, int] = {}
        await lab.until(lambda: sum(talk.reset >= 0 for talk in upstream.talks) >= 300)
        for talk in upstream.talks:
            resets[talk.connection] = resets.get(talk.connection, 0) + (talk.reset >= 0)
        assert max(resets.values()) <= 400
        stay.set()
        assert (await other.answer(staying)).body == b"stayed"
        await claimed(lab, 481)


async def test_a_header_bomb_is_refused_before_it_is_large() -> None:
    """A small block whose table entries unfold to megabytes: bounded by the decoded size."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        peer = Peer()
        block = peer.encoder.encode([*get("/", guest.authority), (b"bomb", b"x" * 3900)])
        await guest.raw(wire.write_headers(1, block + b"\xbe" * 16000, ended=True))
        assert await goaway(guest) == wire.ENHANCE_YOUR_CALM
        await lab.refused(f"- {lab.authority()} deny headers_too_large 431 denied")


async def test_many_fields_are_refused_on_their_stream() -> None:
    """431, and the connection goes on."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        reply = await guest.answer(await guest.send(fields(guest, *[(b"x", b"1")] * 200)))
        assert (reply.status, reply.reason) == (431, "headers_too_large")
        assert (await guest.ask("/")).status == 200
        await claimed(lab, 2)


async def test_who_asks_for_answers_without_reading_is_not_served_for_ever() -> None:
    """PING after PING into a closed socket: what waits for the guest is bounded."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        guest.line.hold()
        (connection,) = lab.gateway.connections.all
        core = connection.core  # type: ignore[attr-defined]
        connection.pause_writing()  # type: ignore[attr-defined]
        await guest.raw(PING * (ANSWERS_WAITING - 200))
        await guest.raw(PING * 400)
        await lab.until(lambda: core.broken)
        assert core.output_bytes < 64 * 1024
        connection.resume_writing()  # type: ignore[attr-defined]
        guest.line.go_on()
        await lab.refused(f"- {lab.authority()} deny bad_request 400 denied")


async def test_windows_are_no_trick() -> None:
    """A window that overflows is its stream's, or its connection's, end."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/", method="POST")
        await guest.raw(wire.write_word(wire.WINDOW_UPDATE, stream, wire.MAX_WINDOW))
        reply = await guest.answer(stream)
        assert reply.reset == wire.FLOW_CONTROL_ERROR
        await lab.audited("POST / deny bad_request 400 denied")
        await guest.raw(wire.write_word(wire.WINDOW_UPDATE, 0, wire.MAX_WINDOW))
        assert await goaway(guest) == wire.FLOW_CONTROL_ERROR
        await lab.refused(f"- {lab.authority()} deny bad_request 400 denied")


async def test_streams_that_never_end_time_out() -> None:
    """A body that stops coming, a field block that never ends, a preface that never comes."""
    async with Lab(HttpUpstream(echo)) as lab:
        slow_body, slow_head = await tunnel(lab), await tunnel(lab)
        stream = await slow_body.begin("/", method="POST")
        await slow_head.raw(wire.write_frame(wire.HEADERS, 0, 1, b""))
        await lab.until(lambda: bool(lab.upstream.lines))
        await lab.until(lambda: any(each.core.in_head for each in lab.gateway.connections.all))  # type: ignore[attr-defined]
        lab.age_guests(121)
        assert (await slow_body.answer(stream)).reason == "guest_timeout"
        assert await goaway(slow_head) >= 0
        await claimed(lab, 2)


async def test_a_guest_that_leaves_its_answers_unread_is_ended() -> None:
    """Closed windows hold an upstream no longer than an idle connection may last."""

    async def app(talk: Any) -> None:
        await talk.respond(200, bytes(4 << 20))

    async with Lab(H2Upstream(app), credential=False) as lab:
        guest = await tunnel(lab)
        guest.opens_windows = False
        stream = await guest.begin("/", ended=True)
        await guest.until(lambda: len(guest.replies[stream].body) == 65535)
        connection: Any
        (connection,) = lab.gateway.connections.all
        await lab.until(lambda: all(each.full_at for each in connection._streams.values()))
        lab.age_guests(301)
        reply = await guest.answer(stream)
        assert not reply.whole and reply.reset == 2
        await lab.audited("GET / allow guest_timeout 200 truncated")


async def test_a_thousand_requests_leave_nothing_behind() -> None:
    """Streams, windows and tables of a long connection stay as small as they were."""
    async with Lab(H2Upstream(echo2)) as lab:
        guest = await tunnel(lab)
        for _ in range(20):
            streams = [await guest.begin("/", ended=True) for _ in range(50)]
            for stream in streams:
                await guest.answer(stream)
        (connection,) = lab.gateway.connections.all
        assert connection.core.stream_count == 0  # type: ignore[attr-defined]
        assert not connection._streams  # type: ignore[attr-defined]
        await claimed(lab, 1000)
