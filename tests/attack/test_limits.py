"""Guests and upstreams that take their time, or more than their share: each limit ends them, and nobody else."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import pytest

from seamgate.descriptors import SPARE, fit_connections
from seamgate.entry.http1_guest import LINGER_S
from seamgate.interim import MOST_INFORMATIONAL
from seamgate.protocol import http2_frames as wire
from seamgate.upload import HeldBytes
from support.http2 import tunnel
from support.lab import ALLOW_ALL, OTHER_TOKEN, TOKEN, Lab
from support.line import Cut, Line
from support.upstream import HttpUpstream, RawUpstream, echo, ok, says, silent

ALLOWED = "allow allowed 200 complete"
JUDGED: dict[str, Any] = {**ALLOW_ALL, "when": 'request.json.model == "m"'}
NO_PROXY_GUEST = {"entries": {"proxy": {"guest": None}}}


# -- upstreams that take their time ------------------------------------------------------------------------------------

DRIPS = {"1xx": b"HTTP/1.1 102 Processing\r\n\r\n", "a head": b"x"}


@pytest.mark.parametrize("what", DRIPS)
async def test_an_upstream_gains_no_time_before_its_answer(what: str) -> None:
    """What is not the final head's end is silence: neither 1xx responses nor a head byte by byte put off a timeout."""

    dripped = 0

    async def script(line: Line) -> None:
        nonlocal dripped
        await line.request()
        if what == "a head":
            await line.send(b"HTTP/1.1 200 OK\r\nx: ")
        while not line.lost:
            await line.send(DRIPS[what])
            dripped += 1
            await asyncio.sleep(0.001)

    async with Lab(RawUpstream(script), credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        await (await lab.upstream.connection()).seen(b"GET /x")
        (bucket,) = lab.gateway.seam.pool._buckets.values()
        (session,) = bucket.busy
        asked_at = session.active_at
        await lab.until(lambda: dripped >= 5 and session.answered)
        assert session.active_at == asked_at
        lab.age_upstreams(901)
        assert (await client.answer()).reason == "upstream_timeout"
        await lab.audited("GET /x allow upstream_timeout 504 failed")


async def test_a_flood_of_informational_responses_ends_the_exchange() -> None:
    """Each is work and none is an answer: beyond a number the upstream is refused, whatever would follow."""
    flood = b"HTTP/1.1 102 Processing\r\n\r\n" * (MOST_INFORMATIONAL + 1) + ok(b"late")
    async with Lab(RawUpstream(says(flood)), credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "upstream_protocol"
        await lab.audited("GET /x allow upstream_protocol 502 failed")
        assert lab.gateway.seam.pool.counts == (0, 0, 0)


async def test_as_many_informational_responses_as_are_allowed() -> None:
    """At the number itself the answer still comes."""
    said = b"HTTP/1.1 102 Processing\r\n\r\n" * MOST_INFORMATIONAL + ok(b"fine")
    async with Lab(RawUpstream(says(said)), credential=False) as lab:
        assert (await (await lab.tunnel()).ask("GET", "/x")).body == b"fine"
        await lab.audited(f"GET /x {ALLOWED}")


# -- guests that take their time ---------------------------------------------------------------------------------------


async def test_a_head_has_its_time_from_its_first_byte() -> None:
    """A header now and then gains a guest nothing: the head is late as a whole."""
    async with Lab(HttpUpstream(echo)) as lab:
        client = await lab.proxy()
        await client.send(b"GET http://api.test/ HTTP/1.1\r\nhost: api.test\r\n")
        await lab.until(lambda: bool(lab.gateway.connections.all))
        connection: Any
        (connection,) = lab.gateway.connections.all
        await lab.until(lambda: not connection.idle)
        connection._begun_at -= 31
        connection._active_at = 0.0
        await client.send(b"x: y\r\n")
        await lab.until(lambda: connection._active_at > 0)
        lab.age_guests(0)
        assert (await client.answer()).reason == "guest_timeout"
        client.close()
        await lab.refused("- - deny guest_timeout 408 denied")


async def test_the_time_of_a_head_begins_with_it() -> None:
    """Neither the silence nor the answers before it are counted: a connection that is long in use may begin a head."""
    async with Lab(HttpUpstream(echo), credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/1")).status == 200
        (connection,) = lab.gateway.connections.all
        connection._begun_at -= 1000  # type: ignore[attr-defined]
        request = client.request("GET", "/2")
        await client.send(request[:9])
        await lab.until(lambda: not connection.idle)  # type: ignore[attr-defined]
        lab.age_guests(1)
        await client.send(request[9:])
        assert (await client.answer()).status == 200
        await lab.audited(f"GET /1 {ALLOWED}", f"GET /2 {ALLOWED}")


async def test_the_rest_of_a_refused_body_has_its_time() -> None:
    """It is read over so that the guest can go on; one that sends it byte by byte is ended."""
    async with Lab(HttpUpstream(echo), rules=[], credential=False) as lab:
        client = await lab.proxy(authority="api.test")
        await client.send(client.request("POST", "/x", b"content-length: 1000") + b"a")
        assert (await client.answer()).status == 403
        await client.send(b"b")
        lab.age_guests(lab.gateway.seam.limits.body_timeout_s + 1)
        lab.age_guests(LINGER_S)  # what it is told on the way out, it has had the time to read
        await client.closed()
        await lab.refused("POST /x deny no_rule_matched 403 denied", "- - deny guest_timeout 408 denied")


async def test_a_field_block_has_its_time_from_its_first_byte() -> None:
    """CONTINUATION after CONTINUATION, each in time: the block is late as a whole, also beside other streams."""
    async with Lab(RawUpstream(silent), credential=False) as lab:
        guest = await tunnel(lab)
        await guest.begin("/open", ended=True)
        await (await lab.upstream.connection()).seen(b"GET /open")
        await guest.raw(wire.write_frame(wire.HEADERS, 0, 3, b""))
        connection: Any
        (connection,) = lab.gateway.connections.all
        await lab.until(lambda: connection.core.in_head)
        connection._begun_at -= 31
        connection._active_at = 0.0
        await guest.raw(wire.write_frame(wire.CONTINUATION, 0, 3, b""))
        await lab.until(lambda: connection._active_at > 0)
        lab.age_guests(0)
        lab.age_guests(LINGER_S)
        await guest.gone()
        await lab.audited("GET /open allow guest_timeout 408 failed")


async def test_a_frame_has_its_time_from_its_first_byte() -> None:
    """So has what is not a field block: a SETTINGS byte by byte."""
    async with Lab(HttpUpstream(echo)) as lab:
        guest = await tunnel(lab)
        await guest.raw(b"\x00\x00\x06\x04")
        (connection,) = lab.gateway.connections.all
        await lab.until(lambda: not connection.core.between_frames)  # type: ignore[attr-defined]
        lab.age_guests(31)
        lab.age_guests(LINGER_S)
        with pytest.raises(Cut):
            await guest.until(lambda: False)
        await lab.refused(f"- {lab.authority()} deny guest_timeout 408 denied")


async def test_a_slow_piece_of_a_body_is_no_slow_head() -> None:
    """A DATA frame may take as long as a body may be silent, whatever the limit of heads."""
    async with Lab(HttpUpstream(echo), credential=False) as lab:
        guest = await tunnel(lab)
        stream = await guest.begin("/", method="POST")
        frame = wire.write_frame(wire.DATA, 1, stream, b"fine")
        await guest.raw(frame[:11])
        (connection,) = lab.gateway.connections.all
        await lab.until(lambda: not connection.core.between_frames)  # type: ignore[attr-defined]
        lab.age_guests(31)
        await guest.raw(frame[11:])
        assert (await guest.answer(stream)).status == 200
        await lab.audited(f"POST / {ALLOWED}")


async def test_a_ping_is_no_request() -> None:
    """An idle HTTP/2 connection ends in its time although the guest pings and is answered."""
    async with Lab(HttpUpstream(echo), credential=False) as lab:
        guest = await tunnel(lab)
        assert (await guest.ask("/")).status == 200
        connection: Any
        (connection,) = lab.gateway.connections.all
        connection._active_at -= 301
        heard = guest.line.received_bytes
        await guest.raw(wire.write_frame(wire.PING, 0, 0, bytes(8)), wire.write_settings([]))
        while guest.line.received_bytes == heard:
            await guest.line.changed()
        lab.age_guests(0)
        await guest.gone()
        await lab.audited(f"GET / {ALLOWED}")


# -- guests that take more than their share ----------------------------------------------------------------------------


async def test_strangers_get_half_of_the_connections() -> None:
    """Who shows no token can't keep others out: the oldest of them has to go, those with a token stay."""
    settings = {**NO_PROXY_GUEST, "limits": {"connections": 8}}
    async with Lab(HttpUpstream(echo, tls=False), settings=settings, credential=False) as lab:
        known = await lab.proxy(token=TOKEN)
        assert (await known.ask("GET", "/1")).status == 200
        strangers = [await lab.line() for _ in range(12)]
        await lab.until(lambda: lab.gateway.connections.refused_total == 8)
        for line in strangers[:8]:
            await line.end()
        assert len(lab.gateway.connections.all) <= 5
        fresh = await lab.proxy(token=OTHER_TOKEN)
        assert (await fresh.ask("GET", "/2")).status == 200
        assert (await known.ask("GET", "/3")).status == 200
        assert len(lab.gateway.connections.strangers) <= 4
        await lab.audited(f"GET /1 {ALLOWED}", f"GET /2 {ALLOWED}", f"GET /3 {ALLOWED}")
    assert not lab.gateway.connections.strangers


async def test_where_no_token_is_asked_nobody_is_a_stranger() -> None:
    """An entry that names its guest gives all connections to it."""
    async with Lab(HttpUpstream(echo), settings={"limits": {"connections": 4}}) as lab:
        lines = [await lab.line() for _ in range(4)]
        await lab.until(lambda: len(lab.gateway.connections.all) == 4)
        assert not lab.gateway.connections.refused_total
        assert not any(line.lost for line in lines)


async def test_bodies_are_held_within_one_budget() -> None:
    """What many requests hold in memory together is bounded: beyond it they are refused as overloaded, not swapped."""
    settings = {"limits": {"held_bytes": 100_000, "plugin_budget_s": 5.0}}
    async with Lab(HttpUpstream(echo), rules=[JUDGED], settings=settings, credential=False) as lab:
        slow, other = await lab.tunnel(), await lab.tunnel()
        json = b"content-type: application/json"
        await slow.send(slow.request("POST", "/slow", json, b"content-length: 90000") + bytes(40_000))
        held = lab.gateway.seam.held
        await lab.until(lambda: held.used_bytes == 40_000)
        answer = await other.ask("POST", "/x", json, body=bytes(20_000))
        assert (answer.status, answer.reason) == (503, "overloaded")
        assert held.used_bytes == 40_000
        slow.close()
        await lab.until(lambda: held.used_bytes == 0)
        again = await lab.tunnel()
        answer = await again.ask("POST", "/y", json, body=b'{"model": "m"}')
        assert (answer.status, answer.reason) == (200, "")
        assert held.used_bytes == 0
        again.close()
        await lab.audited(
            "POST /x deny overloaded 503 denied", "POST /slow deny guest_gone 0 aborted", f"POST /y {ALLOWED}"
        )


def test_a_guest_holds_half_of_the_budget_at_most() -> None:
    """One guest can't take it from all others; what is given back is there again."""
    held = HeldBytes(100)
    assert held.take("a", 50)
    assert not held.take("a", 1)
    assert held.take("b", 40)
    assert not held.take("c", 20)
    held.give_back("a", 50)
    assert held.take("c", 20)
    held.give_back("b", 40)
    held.give_back("c", 20)
    assert held.used_bytes == 0
    assert not held._by_guest


# -- descriptors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "raised", "fitting"),
    [
        (1024, 4096, 100, None, 100),
        (1024, 1 << 20, 10_000, 2 * 10_000 + SPARE, 10_000),
        (1024, 4096, 10_000, 4096, (4096 - SPARE) // 2),
        (1024, resource.RLIM_INFINITY, 10_000, 2 * 10_000 + SPARE, 10_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10_000, None, 10_000),
        (64, 64, 10_000, 64, 1),
    ],
)
def test_connections_fit_into_the_open_files(
    soft: int, hard: int, wanted: int, raised: int | None, fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The soft limit is raised as far as is needed and permitted; what does not fit is not promised."""
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: done.append(limits))
    assert fit_connections(wanted) == fitting
    assert done == ([] if raised is None else [(raised, hard)])


def test_a_limit_that_the_system_refuses_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems have a lower maximum than they say: then what fits into the old limit is taken."""

    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 20))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert fit_connections(10_000) == (1024 - SPARE) // 2
