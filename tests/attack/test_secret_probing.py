"""A guest that guesses at a secret by what the gateway holds back: it gets a few characters, and then nothing more."""

from __future__ import annotations

import string
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seamgate.credentials.probing import FLUSH_LIMIT_BYTES, MOST_HOLDS
from support.client import Client
from support.crew import Crew
from support.lab import ALLOW_ALL, OTHER_TOKEN, SECRET, WITH_KEY, Lab
from support.line import Cut, Line
from support.reloads import reload
from support.upstream import RawUpstream, silent

CHARACTERS = string.ascii_lowercase + string.digits + "-_" + string.ascii_uppercase
MOST_LEARNT = SECRET[: FLUSH_LIMIT_BYTES + MOST_HOLDS]


async def put(line: Line | Client, data: bytes) -> None:
    """Send one chunk."""
    await line.send(b"%x\r\n%b\r\n" % (len(data), data))


async def chunk(line: Line) -> bytes:
    """Return the next chunk's data."""
    size = int((await line.until(b"\r\n")).strip(), 16)
    data = await line.exactly(size)
    await line.exactly(2)
    return data


async def held(near: Line | Client, far: Line, guess: bytes) -> bool:
    """Send a guess behind a space, which comes at once; return whether the guess does not. Raise Cut as `Line` does."""
    await put(near, b" " + guess)
    first = came = await chunk(far)
    await put(near, b" ")
    while len(came) < len(guess) + 2:
        came += await chunk(far)
    return first == b" "


async def guess_all(known: str, right: Callable[[bytes], Awaitable[bool]]) -> str:
    """Return what a guesser has when it is cut off, or finds nothing more. What cuts it off was right too."""
    while True:
        for character in CHARACTERS:
            guess = known + character
            try:
                if await right(guess.encode()):
                    break
            except Cut:
                return guess
        else:
            return known
        known = guess


async def ended(lab: Lab, rule: dict[str, Any], *first: str) -> None:
    """Assert that the guest gets nothing more, not even after a reload, and that all is in the audit log."""
    refused = "GET /y deny secret_probed 403 denied"
    for _ in range(2):
        client = await lab.tunnel()
        answer = await client.ask("GET", "/y")
        assert (answer.status, answer.reason) == (403, "secret_probed")
        client.close()
        reload(lab, [rule])
    await lab.audited(*first, refused, refused)


async def begin_upload(lab: Lab) -> Client:
    client = await lab.tunnel()
    head = b"POST /x HTTP/1.1\r\nhost: %s\r\ntransfer-encoding: chunked\r\n\r\n"
    await client.send(head % client.authority.encode())
    return client


@pytest.mark.parametrize("rule", [WITH_KEY, ALLOW_ALL])
async def test_what_an_upload_holds_back_tells_a_few_characters(rule: dict[str, Any]) -> None:
    """A server of the guest's own sees when each piece leaves: after so many right guesses the guest is ended."""
    async with Lab(RawUpstream(silent), rules=[rule]) as lab:
        client = await begin_upload(lab)
        line = await lab.upstream.connection()
        await line.head()
        assert await guess_all(SECRET[:3], lambda guess: held(client, line, guess)) == MOST_LEARNT
        answer = await client.answer("POST")
        assert answer.reason == "secret_probed"
        client.close()
        await ended(lab, rule, "POST /x deny secret_probed 403 denied")


async def begin_answer(lab: Lab, number: int = 0) -> tuple[Client, Line]:
    """Return both ends of an answer that has begun."""
    client = await lab.tunnel()
    await client.send(client.request("GET", "/x"))
    line = await lab.upstream.connection(number)
    await line.head()
    await line.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    await client.line.until(b"\r\n\r\n")
    return client, line


@pytest.mark.parametrize("rule", [WITH_KEY, ALLOW_ALL])
async def test_what_an_answer_holds_back_tells_a_few_characters(rule: dict[str, Any]) -> None:
    """An origin that repeats what it is told is no better, and neither is another answer that is under way."""
    async with Lab(RawUpstream(silent), rules=[rule]) as lab:
        client, line = await begin_answer(lab)
        other, other_line = await begin_answer(lab, 1)
        assert await guess_all(SECRET[:3], lambda guess: held(line, client.line, guess)) == MOST_LEARNT
        await put(other_line, b"anything")
        assert b"anything" not in await other.closed()
        for each in (client, other):
            each.close()
        cut = "GET /x deny secret_probed 200 truncated"

        await ended(lab, rule, cut, cut)


async def test_a_secret_that_an_origin_drips_is_no_guess() -> None:
    """However often and in whatever pieces it comes back: it is redacted, and the guest goes on."""
    async with Lab(RawUpstream(silent), rules=[WITH_KEY]) as lab:
        client, line = await begin_answer(lab)
        for _ in range(3 * MOST_HOLDS):
            for character in " " + SECRET:
                await put(line, character.encode())
        await put(line, b".")
        await line.send(b"0\r\n\r\n")
        assert (await client.line.until(b"0\r\n\r\n")).count(b"[redacted:key]") == 3 * MOST_HOLDS
        client.close()
        line.close()
        await lab.audited("GET /x allow allowed 200 complete")


async def test_all_workers_count_together() -> None:
    """Guesses that are spread over workers come to the same: all of them refuse the guest then, a new one too."""
    async with Crew(RawUpstream(silent), rules=[WITH_KEY]) as crew:
        first, second = await crew.spread()
        learnt = await guess_in_turn(crew, [first, second])
        assert learnt == MOST_LEARNT
        for each in await crew.spread():
            assert (await each.ask("GET", "/api/y")).reason == "secret_probed"
        await crew.kill(1)
        await crew.serving()
        for each in await crew.spread():
            assert (await each.ask("GET", "/api/y")).reason == "secret_probed"


async def test_all_workers_count_together_for_who_came_by_a_reload() -> None:
    """A guest that a reload added has its place in the memory of all of them, as those have that were there."""
    settings: dict[str, Any] = {"entries": {"base_url": {"guest": ""}}}
    async with Crew(RawUpstream(silent), rules=[WITH_KEY], settings={**settings, "guests": {"h": None}}) as crew:
        crew._settings = settings
        crew.write_settings()
        await crew.supervisor.reload_everywhere()
        prefix = f"/~{OTHER_TOKEN}"
        first, second = await crew.spread(prefix=prefix)
        assert await guess_in_turn(crew, [first, second], f"{prefix}/api") == MOST_LEARNT
        for each in await crew.spread(prefix=prefix):
            assert (await each.ask("GET", f"{prefix}/api/y")).reason == "secret_probed"


async def guess_in_turn(crew: Crew, clients: list[Client], path: str = "/api") -> str:
    """Guess the next character in an upload of its own, by one worker after the other; return what is known then."""
    known, number = SECRET[:FLUSH_LIMIT_BYTES], 0
    while True:
        known = SECRET[: len(known) + 1]
        client = clients[len(known) % len(clients)]
        head = f"POST {path}/x HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
        await client.send(head.encode())
        line = await crew.upstream.connection(number)
        await line.head()
        try:
            assert await held(client, line, known.encode())
        except Cut:
            return known
        await client.send(b"0\r\n\r\n")
        await line.until(b"0\r\n\r\n")
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        assert (await client.answer("POST")).status == 200
        line.close()
        number += 1
