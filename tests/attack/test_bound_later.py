"""A reload binds a credential to a host while streams of it are open: from then on they are searched for its values.

What can't be searched from its middle ends, visibly and audited. The upstream here says the value on streams that were
open before it got it, as a service does that shows others what it is called with.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import h11
import pytest
from wsproto.events import BytesMessage, CloseConnection

from seamgate.credentials.known import KnownValues
from seamgate.revocation import search_anew
from seamgate_plugins.credentials import CredentialsPlugin
from support.client import Client
from support.crew import Crew
from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, SECRET, Lab, _merged
from support.reloads import audited_as_revoked, cut, reload
from support.upstream import HttpUpstream, RawUpstream, Talk, silent
from support.websocket import ALLOW_SOCKETS, Peer, open_socket, serves

ASYNC_TEST_LIMIT_S = 90.0
"""Three processes start for one test, on a machine that may be busy."""
VALUE = SECRET.encode()
OTHER = "sk-test-000000000000000000000001"
PLUGINS = ["policy", "dns", {"name": "credentials", "capabilities": ["secrets"]}]
CUT = "GET /stream deny revoked 200 truncated"

BEFORE: dict[str, dict[str, Any]] = {
    "no credential": {"credentials": None},
    "no plugin": {"credentials": None, "plugins": ["policy", "dns"]},
    "bound elsewhere": {"credentials": {"key": {"hosts": ["other.test"]}}},
    "another is bound": {"credentials": {"key": {"hosts": ["other.test"]}, "two": {"inject": {"header": "x-two"}}}},
}
"""What the configuration has before a reload to `AFTER`, by what it is like."""
AFTER: dict[str, Any] = {"credentials": {"key": {"hosts": ["api.test"]}}, "plugins": PLUGINS}


class BoundLab(Lab):
    """A lab that begins with one of `BEFORE`."""

    def __init__(self, *upstreams: RawUpstream, before: str = "no credential", **more: Any) -> None:
        super().__init__(*upstreams, **more)
        self.before = BEFORE[before]

    def settings(self) -> dict[str, Any]:
        written = super().settings()
        (self.folder / "two").write_text(OTHER)
        (self.folder / "two").chmod(0o600)
        self.key: dict[str, Any] = written["credentials"]["key"]
        two = {"source": {"file": str(self.folder / "two")}, "hosts": ["api.test"]}
        merged = _merged(written, self.before)
        if "two" in (merged.get("credentials") or {}):
            merged["credentials"]["two"].update(two)
        return merged

    def bind(self, settings: Mapping[str, Any] = AFTER) -> int:
        """Have the gateway take over a configuration with the binding; return how many requests that ended."""
        reads = self.settings()
        key = {**self.key, **settings["credentials"]["key"]}
        credentials = {**(reads.get("credentials") or {}), "key": key}
        return reload(self, None, {**settings, "credentials": credentials}).revoked_requests


class Service:
    """Sends the beginning of an answer, and the value once it is told to.

    Args:
        headers: of the answer.
        said: what it says then; VALUE stands in it.
        status: of the answer.
    """

    def __init__(
        self, *headers: tuple[str, str], said: tuple[bytes, ...] = (b"key ", VALUE), status: int = 200
    ) -> None:
        self.told = asyncio.Event()
        self._headers = headers
        self._said = said
        self._status = status

    async def __call__(self, talk: Talk) -> None:
        await talk.begin(self._status, self._headers)
        await talk.data(b"begin ")
        await self.told.wait()
        for piece in self._said:
            await talk.data(piece)
        await talk.finish()


async def begin(client: Client, path: str = "/stream") -> Any:
    """Ask for a stream, and read its beginning."""
    await client.send(client.request("GET", path))
    _, h = await client.begin()
    assert bytes((await client.event(h)).data) == b"begin "
    return h


async def rest(client: Client, h: Any) -> bytes:
    """Read a body to its clean end."""
    text = b""
    while isinstance(event := await client.event(h), h11.Data):
        text += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), event
    return text


@pytest.mark.parametrize("before", BEFORE)
async def test_an_answer_that_is_open_is_searched_from_then_on(before: str) -> None:
    """Whether anybody looked at it until then or not, and in pieces."""
    service = Service(said=(b"key ", VALUE[:11], VALUE[11:], b" ", OTHER.encode() if before[:3] == "ano" else b"x"))
    async with BoundLab(HttpUpstream(service), before=before) as lab:
        client = await lab.tunnel()
        h = await begin(client)
        assert lab.bind() == 0
        service.told.set()
        text = await rest(client, h)
        assert text == b"key [redacted:key] " + (b"[redacted:two]" if before[:3] == "ano" else b"x")
        client.close()
        await lab.audited("GET /stream allow allowed 200 complete")


@pytest.mark.parametrize("pause", [False, True])
async def test_an_answer_of_a_told_length_keeps_it(pause: bool) -> None:
    """What comes in the place of the value is as long as that, also where a pause let its beginning out."""
    said = (b"key ", VALUE[:2], VALUE[2:], b" end")
    service = Service(("content-length", str(len(b"begin " + b"".join(said)))), said=said)
    if pause:
        paused = asyncio.Event()

        async def slow(talk: Talk) -> None:
            await talk.begin(200, [("content-length", str(len(b"begin " + b"".join(said))))])
            await talk.data(b"begin ")
            await service.told.wait()
            await talk.data(said[0] + said[1])
            await paused.wait()
            await talk.data(said[2] + said[3])
            await talk.finish()

    async with BoundLab(HttpUpstream(slow if pause else service)) as lab:
        client = await lab.tunnel()
        h = await begin(client)
        assert lab.bind() == 0
        service.told.set()
        early = b""
        if pause:
            while early != b"key " + VALUE[:2]:
                early += bytes((await client.event(h)).data)
            paused.set()
        text = early + await rest(client, h)
        mark = b"[redacted:key]"
        held = VALUE[:2] if pause else b""
        assert text == b"key " + held + mark.ljust(len(VALUE) - len(held), b"*") + b" end"
        client.close()
        await lab.audited("GET /stream allow allowed 200 complete")


CANT: dict[str, Service] = {
    "coded": Service(("content-encoding", "gzip"), said=(gzip.compress(VALUE),)),
    "in a coding that nobody knows": Service(("content-encoding", "x-mine"), said=(VALUE,)),
    "messages that are coded": Service(("grpc-encoding", "gzip"), said=(VALUE,)),
    "a part": Service(("content-range", "bytes 0-9/20"), said=(VALUE[:10],), status=206),
}


@pytest.mark.parametrize("what", CANT)
async def test_an_answer_that_can_not_be_searched_from_its_middle_is_cut(what: str) -> None:
    """It ends visibly, and its record says why; its host is served on."""
    service = CANT[what]
    service.told = asyncio.Event()
    async with BoundLab(HttpUpstream(service)) as lab:
        client = await lab.tunnel()
        h = await begin(client)
        assert lab.bind() == 1
        await cut(client, h)
        [record] = await lab.audited(CUT.replace("200", str(service._status)))
        audited_as_revoked(record, rule="all")
        client.close()


async def test_a_part_is_cut_where_the_further_credential_takes_no_parts() -> None:
    """Although the one that was bound before does, and its redactor was there."""
    service = Service(("content-range", "bytes 0-9/20"), status=206)
    async with BoundLab(HttpUpstream(service), before="another is bound") as lab:
        lab.before = _merged(lab.before, {"credentials": {"two": {"allow_ranges": True}}})
        reload(lab)
        client = await lab.tunnel()
        h = await begin(client)
        assert lab.bind() == 1
        await cut(client, h)
        client.close()
        await lab.audited(CUT.replace("200", "206"))


async def test_while_the_further_value_is_not_known_the_answer_is_cut() -> None:
    """As those that begin then are refused: it may hold a value that nobody here knows."""
    async with BoundLab(HttpUpstream(Service())) as lab:
        client = await lab.tunnel()
        h = await begin(client)
        source = {"file": None, "command": ["/bin/false"]}
        assert lab.bind({**AFTER, "credentials": {"key": {"hosts": ["api.test"], "source": source}}}) == 1
        await cut(client, h)
        client.close()
        [record] = await lab.audited(CUT)
        assert "its source has given none yet" in record.message


async def test_an_answer_that_comes_after_the_reload_is_searched_too() -> None:
    """Its request left before; the plugin that looks for values came with the reload."""
    asked, told = asyncio.Event(), asyncio.Event()

    async def app(talk: Talk) -> None:
        asked.set()
        await told.wait()
        await talk.respond(200, VALUE, [("x-key", SECRET)])

    async with BoundLab(HttpUpstream(app), before="no plugin") as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/stream"))
        await asked.wait()
        assert lab.bind() == 0
        told.set()
        answer = await client.answer()
        assert (answer.body, answer.header(b"x-key")) == (b"[redacted:key]", b"[redacted:key]")
        client.close()
        await lab.audited("GET /stream allow allowed 200 complete")


async def test_over_http2() -> None:
    """On both sides: one stream is searched, one that is coded is reset, and the connection stays."""
    told = asyncio.Event()

    async def app(talk: Talk2) -> None:
        coded = [(b"content-encoding", b"gzip")] if talk.target == "/coded" else []
        await talk.begin(200, coded)
        await talk.data(b"begin ")
        await told.wait()
        if not coded:
            await talk.data(b"key ")
            await talk.data(VALUE)
            await talk.finish()

    async with BoundLab(H2Upstream(app)) as lab:
        guest = await tunnel(lab)
        plain, coded = [await guest.begin(path, ended=True) for path in ("/stream", "/coded")]
        await guest.until(lambda: all(guest.replies[each].body == b"begin " for each in (plain, coded)))
        assert lab.bind() == 1
        told.set()
        reply = await guest.answer(plain)
        assert reply.body == b"begin key [redacted:key]"
        broken = await guest.answer(coded)
        assert broken.reset >= 0 and broken.body == b"begin "
        guest.close()
        records = await claimed(lab, 2)
        assert sorted(str(each.reason and each.reason.value) for each in records) == ["allowed", "revoked"]


async def test_a_websocket_is_searched_both_ways() -> None:
    """Message by message: what comes is redacted, what would leave ends it."""
    told = asyncio.Event()
    heard: list[Any] = []

    async def talk(peer: Peer) -> None:
        await told.wait()
        await peer.say("key " + SECRET)
        while not isinstance(event := await peer.event(), CloseConnection):
            heard.append(event)
        await peer.send(event.response())

    async with BoundLab(RawUpstream(serves(talk)), rules=[ALLOW_SOCKETS], before="no plugin") as lab:
        peer = await open_socket(await lab.tunnel())
        assert lab.bind() == 0
        told.set()
        event = await peer.event()
        assert getattr(event, "data", None) == "key [redacted:key]"
        await peer.send(BytesMessage(data=b"x" + VALUE))
        closed = await peer.event()
        assert isinstance(closed, CloseConnection) and closed.code == 1008
        assert heard == []
        await lab.audited("GET [withheld] deny secret_leaving 101 truncated")


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("coding", ["", "gzip", "x-mine"])
async def test_an_upload_that_is_open(before: str, coding: str) -> None:
    """It does not take the value along; a coded one whose beginning nobody decoded goes no further."""
    async with BoundLab(RawUpstream(silent), before=before) as lab:
        client = await lab.tunnel()
        body = gzip.compress(b"x" * 100 + VALUE) if coding == "gzip" else b"begin " + VALUE
        fields = [b"content-encoding: " + coding.encode()] if coding else []
        head = [b"POST /up HTTP/1.1", b"host: " + client.authority.encode(), b"content-length: %d" % len(body), *fields]
        await client.send(b"\r\n".join(head) + b"\r\n\r\n" + body[:6])
        line = await lab.upstream.connection()
        await line.seen(b"\r\n\r\n" + body[:6])
        looked = before in ("bound elsewhere", "another is bound")
        assert lab.bind() == (coding == "gzip" and not looked)
        if coding != "gzip" or looked:
            await client.send(body[6:])
        answer = await client.answer("POST")
        reason = "secret_leaving" if coding != "gzip" or looked else "revoked"
        assert (answer.status, answer.reason) == (403, reason)
        assert VALUE[4:] not in line.received and not bytes(line.received).endswith(body[-6:])
        client.close()
        path = "[withheld]" if reason == "secret_leaving" else "/up"
        await lab.audited(f"POST {path} deny {reason} 403 denied")


async def test_a_worker_looks_before_another_one_puts_the_value_in() -> None:
    """What a worker hears of another one's values and hosts counts for what is open, before its own reload."""
    service = Service()
    async with BoundLab(HttpUpstream(service)) as lab:
        client = await lab.tunnel()
        h = await begin(client)
        [plugin] = [each.plugin for each in lab.gateway.seam.pipeline.plugins if each.name == "credentials"]
        assert isinstance(plugin, CredentialsPlugin)
        plugin.learn_values(1, {"key": (VALUE,)}, {"key": [(("api.test",), False)]})
        search_anew(lab.gateway.seam)
        service.told.set()
        assert await rest(client, h) == b"key [redacted:key]"
        client.close()
        await lab.audited("GET /stream allow allowed 200 complete")


class BoundCrew(Crew, BoundLab):
    """The same with several workers."""


async def test_no_workers_open_stream_repeats_what_any_of_them_puts_in() -> None:
    """Each worker has a stream open when a reload binds the credential; whichever calls first, no stream says it."""
    last, streams, over = [""], [], asyncio.Event()

    async def app(talk: Talk) -> None:
        if talk.target == "/stream":
            await talk.begin(200)
            await talk.data(b"begin ")
            streams.append(talk)
            await over.wait()
            await talk.finish()
            return
        last[0] = talk.header("x-api-key") or last[0]
        for stream in streams:
            await stream.data(b"[%b]" % last[0].encode())
        await talk.respond(200, b"fine")

    async with BoundCrew(HttpUpstream(app)) as crew:
        watching = await crew.spread()
        calling = await crew.spread()
        opened = [await begin(client, "/api/stream") for client in watching]
        crew.before = {}
        crew.write_settings()
        crew.write_policy([{**ALLOW_ALL, "credential": "key"}, {**ALLOW_ALL, "id": "others"}])
        await crew.supervisor.reload_everywhere()
        for client in calling:
            assert (await client.ask("POST", "/api/v1", b"content-length: 0")).status == 200
        assert last == [SECRET]
        over.set()
        for client, h in zip(watching, opened, strict=True):
            assert await rest(client, h) == b"[[redacted:key]]" * len(calling)


def test_what_is_known_says_where_it_may_come_from() -> None:
    """Hosts that others tell count like those of a configuration; what that says of ranges is not changed by them."""
    known, other = KnownValues(), KnownValues()
    other.learn_hosts("key", [(("api.test",), True), (("*.test",), False)])
    version = known.version
    known.learn_hosts("key", other.hosts_of("key"))
    assert known.version > version and known.hosts_of("key") == other.hosts_of("key")
    version = known.version
    known.learn_hosts("key", [(("api.test",), False)])
    assert known.version == version
    assert json.loads(json.dumps(known.hosts_of("key"))) == [[["api.test"], True], [["*.test"], False]]
