"""Values that a process of the gateway has not put in itself: no answer repeats one, no request takes one along.

The upstream here is a service that shows the last key it was called with on another page, as many dashboards do.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import h11
import pytest

from support.client import Answer, Client
from support.crew import Crew
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, Talk

ASYNC_TEST_LIMIT_S = 90.0
"""Three processes start for some tests, on a machine that may be busy."""
ROTATED = "sk-live-0d9e8f7a6b5c4d3e2f10a9b8"
WITH_POST: dict[str, Any] = {**WITH_KEY, "allow": {**ALLOW_ALL["allow"], "methods": ["POST"]}}
OTHERS: dict[str, Any] = {"id": "others", "allow": {**ALLOW_ALL["allow"], "methods": ["GET", "PUT"]}}


class Dashboard:
    """The service; `last` is the key that it was called with last, in this or an earlier life of the gateway."""

    def __init__(self, last: str = "") -> None:
        self.last = last
        self.streams: list[Talk] = []
        self.over = asyncio.Event()

    async def __call__(self, talk: Talk) -> None:
        await talk.body()
        self.last = talk.header("x-api-key") or self.last
        await talk.respond(200, f"last key: {self.last}".encode())


class CommandLab(Lab):
    """A lab whose credential comes from a command."""

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        settings["credentials"]["key"]["source"] = {"command": ["/bin/cat", str(self.folder / "key")]}
        return settings


class CommandCrew(Crew):
    """The same with several workers."""

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        settings["credentials"]["key"]["source"] = {"command": ["/bin/cat", str(self.folder / "key")]}
        return settings


def rotate(folder: Path, value: str) -> None:
    """Put another value in the place of the file."""
    fresh = folder / "fresh"
    fresh.write_text(value)
    fresh.chmod(0o600)
    fresh.rename(folder / "key")


async def reload(lab: Lab, value: str = SECRET) -> None:
    """Have the gateway load its file again, while the source gives this value."""
    lab.gateway.reload_path = lab.folder / "seamgate.yaml"
    lab.gateway.reload_path.write_text(json.dumps(lab.settings()))
    rotate(lab.folder, value)
    await lab.gateway.reload_everywhere()


async def last_key(client: Client, path: str = "/debug") -> Answer:
    """Look at the page that repeats the key."""
    return await client.ask("GET", path)


async def test_the_value_of_a_command_is_known_before_it_is_used() -> None:
    """From the first request on: neither does it come back, nor does it go elsewhere."""
    async with CommandLab(HttpUpstream(Dashboard(SECRET), "api.test", "other.test"), rules=[WITH_POST, OTHERS]) as lab:
        client = await lab.tunnel()
        answer = await last_key(client)
        assert (answer.status, answer.body) == (200, b"last key: [redacted:key]")
        client.close()
        other = await lab.tunnel(f"other.test:{lab.upstream.port}")
        answer = await other.ask("GET", "/x", b"x-mine: " + SECRET.encode())
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        other.close()
        await lab.audited("GET /debug allow allowed 200 complete", "GET [withheld] deny secret_leaving 403 denied")


async def test_a_reload_forgets_no_value() -> None:
    """Neither that of a command nor those of before, nor where a credential was bound to until now."""
    dashboard = Dashboard()
    async with CommandLab(HttpUpstream(dashboard), rules=[WITH_POST, OTHERS]) as lab:
        client = await lab.tunnel()
        await client.ask("POST", "/v1", b"content-length: 0")
        assert dashboard.last == SECRET
        for _ in range(2):
            await reload(lab, ROTATED)
            assert (await last_key(client)).body == b"last key: [redacted:key]"
        client.close()
        looks = ["GET /debug allow allowed 200 complete"] * 2
        await lab.audited("POST /v1 allow allowed 200 complete", *looks)


async def test_another_command_of_a_reload_is_known_before_it_is_used() -> None:
    """What its source is now gives another value: neither that nor the one before comes back."""
    dashboard = Dashboard()
    async with Lab(HttpUpstream(dashboard), rules=[WITH_POST, OTHERS]) as lab:
        client = await lab.tunnel()
        await client.ask("POST", "/v1", b"content-length: 0")
        command = ["/bin/echo", ROTATED]
        lab._settings = {"credentials": {"key": {"source": {"file": None, "command": command}}}}
        await reload(lab)
        for value in (SECRET, ROTATED):
            dashboard.last = value
            assert (await last_key(client)).body == b"last key: [redacted:key]"
        client.close()
        looks = ["GET /debug allow allowed 200 complete"] * 2
        await lab.audited("POST /v1 allow allowed 200 complete", *looks)


async def test_while_another_command_of_a_reload_fails_no_older_value_stands_in_for_it() -> None:
    """None is put in, and no answer passes: that may hold a value of the new source. Nor does the old one leave."""
    async with Lab(HttpUpstream(Dashboard(ROTATED)), rules=[WITH_POST, OTHERS]) as lab:
        client = await lab.tunnel()
        await client.ask("POST", "/v1", b"content-length: 0")
        lab._settings = {"credentials": {"key": {"source": {"file": None, "command": ["/bin/false"]}}}}
        await reload(lab)
        answer = await client.ask("POST", "/v1", b"content-length: 0")
        assert (answer.status, answer.reason) == (503, "credential_unavailable")
        answer = await last_key(client)
        assert (answer.status, answer.reason) == (503, "credential_unavailable")
        answer = await client.ask("GET", "/x?" + SECRET)
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        await lab.audited(
            "POST /v1 allow allowed 200 complete",
            "POST /v1 deny credential_unavailable 503 denied",
            "GET /debug deny credential_unavailable 503 denied",
            "GET [withheld] deny secret_leaving 403 denied",
        )


@pytest.mark.parametrize("hosts", [["elsewhere.test"], None])
async def test_a_host_that_a_credential_was_bound_to_repeats_it_in_vain(hosts: list[str] | None) -> None:
    """Bound elsewhere by a reload, or gone: the host has the value all the same."""
    dashboard = Dashboard()
    async with Lab(HttpUpstream(dashboard), rules=[WITH_POST, OTHERS]) as lab:
        client = await lab.tunnel()
        await client.ask("POST", "/v1", b"content-length: 0")
        lab._settings = {"credentials": {"key": {"hosts": hosts}}} if hosts else {}
        lab.write_policy([OTHERS])
        if hosts is None:
            lab._credential = False
        await reload(lab)
        again = await lab.tunnel()
        assert (await last_key(again)).body == b"last key: [redacted:key]"
        answer = await again.ask("GET", "/x?" + SECRET)
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        again.close()
        await lab.audited(
            "POST /v1 allow allowed 200 complete",
            "GET /debug allow allowed 200 complete",
            "GET [withheld] deny secret_leaving 403 denied",
        )


async def test_while_a_command_fails_no_answer_of_its_host_passes() -> None:
    """It may hold a value that nobody here knows. Once the command gives one, it is redacted."""

    class NoKeyYet(CommandLab):
        def settings(self) -> dict[str, Any]:
            settings = super().settings()
            (self.folder / "key").unlink()
            return settings

    async with NoKeyYet(HttpUpstream(Dashboard(SECRET)), rules=[WITH_POST, OTHERS]) as lab:
        client = await lab.tunnel()
        answer = await last_key(client)
        assert (answer.status, answer.reason) == (503, "credential_unavailable")
        assert SECRET.encode() not in answer.body
        rotate(lab.folder, SECRET)
        (plugin,) = [each.plugin for each in lab.gateway.seam.pipeline.plugins if each.name == "credentials"]
        for credential in plugin.keeper.credentials.values():  # type: ignore[attr-defined]
            credential.source._retry_at = 0.0  # as if the two seconds were over
        assert (await client.ask("POST", "/v1", b"content-length: 0")).status == 200
        assert (await last_key(client)).body == b"last key: [redacted:key]"
        client.close()
        await lab.audited(
            "GET /debug deny credential_unavailable 503 denied",
            "POST /v1 allow allowed 200 complete",
            "GET /debug allow allowed 200 complete",
        )


async def test_no_worker_repeats_what_another_one_put_in() -> None:
    """The value of a command, which each of them runs for itself, and another one each time."""
    dashboard = Dashboard()
    async with CommandCrew(HttpUpstream(dashboard), rules=[WITH_POST, OTHERS]) as crew:
        clients = await crew.spread()
        for client in clients:
            assert (await client.ask("POST", "/api/v1", b"content-length: 0")).status == 200
            for each in clients:
                assert (await last_key(each, "/api/debug")).body == b"last key: [redacted:key]"


async def test_a_rotated_file_is_known_to_all_workers_before_it_is_used() -> None:
    """Whoever sees it first; a worker that starts afterwards knows it too, and those of before."""
    dashboard = Dashboard()
    async with Crew(HttpUpstream(dashboard, "api.test", "other.test"), rules=[WITH_POST, OTHERS]) as crew:
        first, second = await crew.spread()
        await first.ask("POST", "/api/v1", b"content-length: 0")
        rotate(crew.folder, ROTATED)
        while dashboard.last != ROTATED:  # the first worker looks at the file once a second
            assert (await first.ask("POST", "/api/v1", b"content-length: 0")).status == 200
        assert (await last_key(second, "/api/debug")).body == b"last key: [redacted:key]"
        answer = await second.ask("GET", "/api/x?" + ROTATED)
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        await crew.kill(1)
        await crew.serving()
        _, third = await crew.spread()
        for value in (SECRET, ROTATED):
            dashboard.last = value
            assert (await last_key(third, "/api/debug")).body == b"last key: [redacted:key]"
        assert ROTATED.encode() not in crew.gateway.journal_path.read_bytes()


class Ticker(Dashboard):
    """The service, with a stream of events that tells of each call."""

    async def __call__(self, talk: Talk) -> None:
        if talk.target != "/events":
            await super().__call__(talk)
            for stream in self.streams:
                await stream.data(f"data: used {self.last}\n\n".encode())
            return
        await talk.begin(200, [("content-type", "text/event-stream")])
        await talk.data(b"data: hello\n\n")
        self.streams.append(talk)
        await self.over.wait()
        await talk.finish()


@pytest.mark.parametrize("reloads", [False, True])
async def test_a_stream_that_is_open_while_a_value_rotates_has_the_new_one_redacted(reloads: bool) -> None:
    """Also where it was opened before a reload, whose generation puts the new value in."""
    ticker = Ticker()
    async with Lab(HttpUpstream(ticker), rules=[WITH_POST, OTHERS]) as lab:
        client, stream = await lab.tunnel(), await lab.tunnel()
        await stream.send(stream.request("GET", "/events"))
        answer, h = await stream.begin()
        await lab.until(lambda: bool(ticker.streams))
        await client.ask("POST", "/v1", b"content-length: 0")
        rotate(lab.folder, ROTATED)
        if reloads:
            await reload(lab, ROTATED)
        while ticker.last != ROTATED:  # looked at once a second
            assert (await client.ask("POST", "/v1", b"content-length: 0")).status == 200
        ticker.over.set()
        text = b""
        while isinstance(event := await stream.event(h), h11.Data):
            text += bytes(event.data)
        assert answer.status == 200
        assert text.startswith(b"data: hello\n\ndata: used [redacted:key]\n\n")
        assert ROTATED.encode() not in text and SECRET.encode() not in text
        client.close()
        stream.close()
        told = await lab.told()
        assert "GET /events allow allowed 200 complete" in told


async def test_an_upload_that_is_open_while_a_value_rotates_does_not_take_the_new_one_along() -> None:
    """The guest got it elsewhere; what was sent is no whole request upstream."""
    dashboard = Dashboard()
    async with Lab(HttpUpstream(dashboard, "api.test", "other.test"), rules=[WITH_POST, OTHERS]) as lab:
        client, upload = await lab.tunnel(), await lab.tunnel(f"other.test:{lab.upstream.port}")
        await client.ask("POST", "/v1", b"content-length: 0")
        await upload.send(upload.request("PUT", "/up", b"transfer-encoding: chunked") + b"5\r\nbegin\r\n")
        await lab.until(lambda: b"begin" in lab.upstream.received)
        rotate(lab.folder, ROTATED)
        while dashboard.last != ROTATED:
            assert (await client.ask("POST", "/v1", b"content-length: 0")).status == 200
        await upload.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(ROTATED), ROTATED.encode()))
        answer = await upload.answer("PUT")
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        sent = [bytes(line.received) for line in lab.upstream.lines if b"PUT /up" in line.received]
        assert len(sent) == 1 and ROTATED.encode()[4:] not in sent[0]
        client.close()
        upload.close()
        assert "PUT [withheld] deny secret_leaving 403 denied" in await lab.told()
