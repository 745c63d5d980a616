"""Ways around the seam through a WebSocket: each is denied, audited, and nothing of it leaves or comes back."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from seamgate import Direction, Request, Response, Verdict, allow, deny, hookimpl
from seamgate.protocol.websocket import CONTINUATION, TEXT
from support.client import Client
from support.lab import ALLOW_ALL, SECRET, Lab
from support.line import Line
from support.upstream import RawUpstream, silent
from support.websocket import (
    ALLOW_SOCKETS,
    DEFLATE,
    OPENING,
    SOCKETS_WITH_KEY,
    Peer,
    accept,
    echoing,
    open_socket,
    serves,
)
from unit.protocol.test_websocket import deflated, frame

PLACEHOLDER = "sgph-key"
SWAPS: dict[str, Any] = {"credentials": {"key": {"swap_websocket": True, "inject": None}}}
MISPLACED = "GET /ws deny placeholder_misplaced 101 truncated"


def collecting(heard: list[Any], *headers: bytes) -> RawUpstream:
    """An upstream that keeps what it hears."""

    async def talk(peer: Peer) -> None:
        while True:
            event = await peer.event()
            heard.append(event.data if isinstance(event, TextMessage | BytesMessage) else event)
            if isinstance(event, CloseConnection):
                await peer.send(event.response())
                return

    return RawUpstream(serves(talk, *headers))


# -- getting one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "rules", "reason"),
    [
        ("/ws", [ALLOW_ALL], "upgrade_refused"),
        ("/other", [{"id": "ws", "allow": {**ALLOW_ALL["allow"], "paths": ["/ws"]}, "upgrade": "websocket"}],
         "no_rule_matched"),
        ("/ws", [ALLOW_SOCKETS, {"id": "ban", "deny": {"paths": ["/ws"]}}], "rule_denied"),
        ("/ws", [{**ALLOW_SOCKETS, "id": "sales", "guests": {"team": "sales"}}, ALLOW_ALL], "upgrade_refused"),
    ],
)  # fmt: skip
async def test_an_upgrade_that_policy_does_not_allow_is_refused(path: str, rules: list[Any], reason: str) -> None:
    """As an HTTP response, before anything is resolved or dialled; the connection stays HTTP."""
    status = 501 if reason == "upgrade_refused" else 403
    async with Lab(RawUpstream(silent), rules=rules, credential=False) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", path, *OPENING)
        assert (answer.status, answer.reason) == (status, reason)
        assert lab.upstream.lines == []
        await lab.refused(f"GET {path} deny {reason} {status} denied")


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ((b"connection: upgrade", b"upgrade: h2c", b"http2-settings: AAMAAABk"), "upgrade_refused"),
        ((b"connection: upgrade", b"upgrade: websocket, h2c", *OPENING[2:]), "upgrade_refused"),
        ((b"upgrade: websocket", *OPENING[2:]), "upgrade_refused"),
        ((*OPENING[:2], b"sec-websocket-version: 7", OPENING[3]), "upgrade_refused"),
        (OPENING[:3], "bad_request"),
        ((*OPENING, b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA=="), "bad_request"),
        ((*OPENING, b"content-length: 5"), "bad_request"),
        ((b"connection: upgrade, sec-websocket-key", *OPENING[1:]), "bad_request"),
    ],
)
async def test_an_upgrade_that_could_be_read_two_ways_is_refused(headers: tuple[bytes, ...], reason: str) -> None:
    """What one parser takes for a WebSocket and another for a request (or for h2c) goes nowhere."""
    async with Lab(RawUpstream(silent), rules=[ALLOW_SOCKETS], credential=False) as lab:
        client = await lab.tunnel()
        body = b"hello" if b"content-length: 5" in headers else b""
        await client.send(client.request("GET", "/ws", *headers) + body)
        assert (await client.answer()).reason == reason
        await lab.refused(f"GET /ws deny {reason} {501 if reason == 'upgrade_refused' else 400} denied")
        client.close()


async def test_a_plugin_that_allows_does_not_allow_an_upgrade_by_the_way() -> None:
    """A verdict that says nothing of the upgrade does not cover it."""

    class Lax:
        @hookimpl
        def judge_request(self, request: Request) -> Verdict | None:
            return allow("lax")

    settings = {"plugins": ["dns"]}
    async with Lab(
        RawUpstream(silent), rules=[ALLOW_SOCKETS], credential=False, settings=settings, first=[("lax", Lax())]
    ) as lab:
        client = await lab.proxy(authority="api.test:1")
        answer = await client.ask("GET", "/ws", *OPENING)
        assert answer.reason == "upgrade_refused"
        await lab.refused("GET /ws deny upgrade_refused 501 denied")


async def test_a_request_behind_a_refused_upgrade_is_judged_by_itself() -> None:
    """Bytes that follow are a request or nothing, never frames."""
    rules = [{"id": "one", "allow": {**ALLOW_ALL["allow"], "paths": ["/ws"]}}]
    async with Lab(RawUpstream(silent), rules=rules, credential=False) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/ws", *OPENING), client.request("GET", "/secret"))
        assert (await client.answer()).reason == "upgrade_refused"
        assert (await client.answer()).reason == "no_rule_matched"
        await lab.refused("GET /ws deny upgrade_refused 501 denied", "GET /secret deny no_rule_matched 403 denied")


# -- credentials -----------------------------------------------------------------------------------------------------

SPELLINGS = {
    "plain text": (PLACEHOLDER, SECRET),
    "within text": (f"token={PLACEHOLDER};", f"token={SECRET};"),
    "JSON": (json.dumps({"op": 2, "d": {"token": PLACEHOLDER}}), json.dumps({"op": 2, "d": {"token": SECRET}})),
    "JSON, escaped": ('{"token": "sgph\\u002dk\\u0065y"}', json.dumps({"token": SECRET})),
    "JSON, as a key": (json.dumps({PLACEHOLDER: 1}), json.dumps({SECRET: 1})),
    "a JSON string": (json.dumps(f"Bot {PLACEHOLDER}"), json.dumps(f"Bot {SECRET}")),
}


@pytest.mark.parametrize("shape", ["whole", "fragments", "compressed"])
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_placeholder_in_the_first_text_is_swapped(spelling: str, shape: str) -> None:
    """However the frames come, and the guest never sees the value."""
    sent, expected = SPELLINGS[spelling]
    heard: list[Any] = []
    agrees = [b"sec-websocket-extensions: permessage-deflate"] if shape == "compressed" else []
    async with Lab(collecting(heard, *agrees), rules=[SOCKETS_WITH_KEY], settings=SWAPS) as lab:
        peer = await open_socket(await lab.tunnel(), "/ws", *([DEFLATE] if shape == "compressed" else []))
        data = sent.encode()
        if shape == "fragments":
            written = b"".join(frame(TEXT if not at else CONTINUATION, data[at : at + 1], fin=False, masked=True)
                               for at in range(len(data)))  # fmt: skip
            await peer.line.send(written + frame(CONTINUATION, masked=True))
        elif shape == "compressed":
            await peer.line.send(frame(TEXT, deflated(data), rsv=0x40, masked=True))
        else:
            await peer.say(sent)
        await peer.say("next")
        assert await peer.close() == (1000, "")
        (record,) = await lab.audited("GET /ws allow allowed 101 complete")
        assert record.credentials == ("key",)
        assert bytes(peer.line.received).find(SECRET.encode()) < 0
    assert heard[0] == expected and heard[1] == "next"


NOT_SWAPPED: dict[str, list[Any]] = {
    "in the second text": [TextMessage(data="hi"), TextMessage(data=PLACEHOLDER)],
    "in bytes": [BytesMessage(data=PLACEHOLDER.encode())],
    "percent-encoded": [TextMessage(data="sgph%2dkey")],
    "in base64": [TextMessage(data=base64.b64encode(PLACEHOLDER.encode()).decode())],
    "of another credential": [TextMessage(data="sgph-other")],
    "in a ping": [Ping(payload=PLACEHOLDER.encode())],
    "in a pong": [Pong(payload=PLACEHOLDER.encode())],
    "in a reason": [CloseConnection(code=1000, reason=PLACEHOLDER)],
    "in the second text, escaped": [TextMessage(data="hi"), TextMessage(data='{"x": "sgph\\u002dkey"}')],
}
OTHER = {"source": {"env": "PATH"}, "hosts": ["other.test"]}


@pytest.mark.parametrize("case", NOT_SWAPPED)
async def test_a_placeholder_elsewhere_is_denied(case: str) -> None:
    """Closed with 1008, the reason and the rule; the upstream gets nothing of the message."""
    heard: list[Any] = []
    settings = {"credentials": {**SWAPS["credentials"], "other": OTHER}}
    async with Lab(collecting(heard), rules=[SOCKETS_WITH_KEY], settings=settings) as lab:
        peer = await open_socket(await lab.tunnel())
        await peer.send(*NOT_SWAPPED[case])
        code, reason = await peer.closed()
        assert code == 1008 and reason.startswith("placeholder_misplaced; rule=all; id=")
        (record,) = await lab.audited(MISPLACED)
        assert record.message.startswith("the placeholder of the credential ")
        await lab.until(lambda: bool(heard) and isinstance(heard[-1], CloseConnection))
    assert heard[:-1] == (["hi"] if "second" in case else [])
    assert heard[-1].code == 1001


@pytest.mark.parametrize("why", ["not configured", "not selected"])
async def test_a_placeholder_is_swapped_only_where_credential_and_rule_say_so(why: str) -> None:
    """Neither the rule's choice nor `swap_websocket` alone is enough."""
    settings = SWAPS if why == "not selected" else {}
    rule = ALLOW_SOCKETS if why == "not selected" else SOCKETS_WITH_KEY
    async with Lab(echoing(), rules=[rule], settings=settings) as lab:
        peer = await open_socket(await lab.tunnel())
        await peer.say(PLACEHOLDER)
        assert (await peer.closed())[0] == 1008
        await lab.audited(MISPLACED)


@pytest.mark.parametrize("spelling", ["plain", "base64", "JSON", "bytes", "ping"])
async def test_a_real_value_never_leaves(spelling: str) -> None:
    """A guest that got hold of it can't send it anywhere, its own host included."""
    events: dict[str, Event] = {
        "plain": TextMessage(data=f"it is {SECRET}"),
        "base64": TextMessage(data=base64.b64encode(b"xy" + SECRET.encode()).decode()),
        "JSON": TextMessage(data=json.dumps({"x": SECRET}).replace("-", "\\u002d")),
        "bytes": BytesMessage(data=SECRET.encode()),
        "ping": Ping(payload=SECRET.encode()),
    }
    async with Lab(echoing(), rules=[ALLOW_SOCKETS]) as lab:
        peer = await open_socket(await lab.tunnel())
        await peer.send(events[spelling])
        code, reason = await peer.closed()
        assert code == 1008 and reason.startswith("secret_leaving; ")
        await lab.audited("GET [withheld] deny secret_leaving 101 truncated")


async def test_what_an_upstream_repeats_is_redacted_in_every_place() -> None:
    """Compressed messages, pongs, the reason of a Close and the headers of the 101."""

    async def script(line: Line) -> None:
        extension = b"sec-websocket-extensions: permessage-deflate"
        _, peer = await accept(line, b"x-key: " + SECRET.encode(), extension)
        await peer.line.send(frame(TEXT, deflated(f"a {SECRET} b".encode()), rsv=0x40))
        await peer.line.send(frame(TEXT, SECRET[:9].encode(), fin=False) + frame(CONTINUATION, SECRET[9:].encode()))
        await peer.send(Pong(payload=SECRET.encode()))
        await peer.send(CloseConnection(code=1000, reason=f"you are {SECRET}"))
        await peer.line.end()

    async with Lab(RawUpstream(script), rules=[SOCKETS_WITH_KEY]) as lab:
        client: Client = await lab.tunnel()
        peer = await open_socket(client, "/ws", DEFLATE)
        assert b"x-key: [redacted:key]" in client.line.received
        assert [await peer.hear(), await peer.hear()] == ["a [redacted:key] b", "[redacted:key]"]
        assert await peer.event() == Pong(payload=b"[redacted:key]")
        assert await peer.closed() == (1000, "you are [redacted:key]")
        assert SECRET.encode() not in client.line.received
        await lab.audited("GET /ws allow allowed 101 complete")


async def test_a_credential_in_the_subprotocol_stays_at_the_seam() -> None:
    """Some services take a key as a subprotocol: it is swapped there, and an answer that names it is translated."""

    async def script(line: Line) -> None:
        head, peer = await accept(line, b"sec-websocket-protocol: " + SECRET.encode())
        assert b"sec-websocket-protocol: realtime, " + SECRET.encode() in head
        await peer.closed()

    settings = {"credentials": {"key": {"inject": None, "swap_headers": ["sec-websocket-protocol"]}}}
    async with Lab(RawUpstream(script), rules=[SOCKETS_WITH_KEY], settings=settings) as lab:
        client = await lab.tunnel()
        peer = await open_socket(client, "/ws", b"sec-websocket-protocol: realtime, sgph-key")
        assert b"sec-websocket-protocol: sgph-key\r\n" in client.line.received
        assert SECRET.encode() not in client.line.received
        await peer.close()
        await lab.audited("GET /ws allow allowed 101 complete")


# -- plugins ---------------------------------------------------------------------------------------------------------


class Watcher:
    """Sees every message, and refuses the word `forbidden`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.direction = ""

    @hookimpl
    def open_inspector(self, response: Response | None, direction: Direction) -> Any:
        if response is None or response.status != 101:
            return None
        opened = Watcher()
        opened.seen, opened.direction = self.seen, direction.value
        return opened

    def head(self, headers: Any) -> Any:
        return headers

    def feed(self, data: bytes) -> bytes:
        self.seen.append((self.direction, data))
        if data == b"broken":
            raise RuntimeError
        if data == b"not text":
            return b"\xff"
        return data.replace(b"cat", b"dog")

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


async def test_inspectors_see_and_change_every_message_without_secrets() -> None:
    """Both ways, whole, with placeholders instead of values; what they return is what goes on."""
    watcher = Watcher()
    async with Lab(echoing(), rules=[SOCKETS_WITH_KEY], settings=SWAPS, plugins=[("watcher", watcher)]) as lab:
        peer = await open_socket(await lab.tunnel())
        await peer.say(f"cat {PLACEHOLDER}")
        assert await peer.hear() == "dog [redacted:key]"
        await peer.close()
        await lab.audited("GET /ws allow allowed 101 complete")
    assert watcher.seen == [("request", b"cat sgph-key"), ("response", b"dog [redacted:key]")]


@pytest.mark.parametrize("text", ["broken", "not text"])
async def test_an_inspector_that_fails_ends_it(text: str) -> None:
    """Fail closed: nothing of the message goes on."""
    async with Lab(echoing(), rules=[ALLOW_SOCKETS], credential=False, plugins=[("watcher", Watcher())]) as lab:
        peer = await open_socket(await lab.tunnel())
        await peer.say(text)
        code, reason = await peer.closed()
        assert code == 1011 and reason.startswith("plugin_failed; ")
        (record,) = await lab.audited("GET /ws deny plugin_failed 101 truncated")
        assert any(step.plugin == "watcher" for step in record.steps)
        assert text.encode() not in lab.upstream.received


async def test_a_plugin_may_deny_the_101() -> None:
    """`judge_response` is asked before the guest hears of it."""

    class Denier:
        @hookimpl
        def judge_response(self, response: Response) -> Verdict | None:
            return deny("no") if response.status == 101 else None

    async with Lab(echoing(), rules=[ALLOW_SOCKETS], credential=False, plugins=[("denier", Denier())]) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/ws", *OPENING)
        assert answer.status == 403
        await lab.audited("GET /ws deny rule_denied 403 denied")


# -- floods ----------------------------------------------------------------------------------------------------------


async def test_a_bomb_is_not_inflated() -> None:
    """A small compressed message that would be a huge one ends with 1009, from either side."""
    bomb = deflated(bytes(50_000_000))
    assert len(bomb) < 100_000

    async def talk(peer: Peer) -> None:
        await peer.line.send(frame(0x2, bomb, rsv=0x40))
        await peer.line.end()

    extension = b"sec-websocket-extensions: permessage-deflate"
    async with Lab(RawUpstream(serves(talk, extension)), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel(), "/ws", DEFLATE)
        assert (await peer.closed())[0] == 1011
        await lab.audited("GET /ws allow upstream_protocol 101 truncated")
    async with Lab(echoing(extension), rules=[ALLOW_SOCKETS], credential=False) as lab:
        peer = await open_socket(await lab.tunnel(), "/ws", DEFLATE)
        await peer.line.send(frame(0x2, bomb, rsv=0x40, masked=True))
        assert (await peer.closed())[0] == 1009
        await lab.audited("GET /ws deny body_too_large 101 truncated")
