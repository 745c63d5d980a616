"""Names of headers that a CGI-like server takes for others (`X_Api_Key`, RFC 3875 4.1.18): none reaches an upstream.

Not beside the header that a credential sets, not for one that it takes away, not for one that frames the message.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.upstream import HttpUpstream, echo

TWINS = ["x_api_key", "x.api.key", "X-Api_Key", "x_other_key", "if_range", "x_ms_range"]
FRAMING = [
    "content_length", "transfer_encoding", "Transfer.Encoding", "proxy_authorization", "keep_alive", "http2_settings",
    "accept_encoding", "a.im", "content_type", "Content.Encoding", "grpc_encoding", "connect_content_encoding",
]  # fmt: skip
SETTINGS = {"credentials": {"key": {"remove_headers": ["x-other-key"]}}}


@pytest.mark.parametrize("rule", [WITH_KEY, ALLOW_ALL])
@pytest.mark.parametrize("name", FRAMING)
async def test_what_frames_a_message_has_one_name(name: str, rule: dict[str, Any]) -> None:
    """With a credential and without."""
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/", f"{name}: 0".encode(), b"x_mine: stays", body=b"body")
        assert (answer.status, answer.json["body"]) == (200, "body")
        names = [header for header, _ in answer.json["headers"]]
        assert name.lower() not in names and "x_mine" in names
        client.close()
        await lab.audited("POST / allow allowed 200 complete")


@pytest.mark.parametrize("name", TWINS)
async def test_nothing_stands_beside_what_a_credential_sets_or_takes_away(name: str) -> None:
    """The service would have two keys to choose from, one of them the guest's."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], settings=SETTINGS) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/", f"{name}: mine".encode())
        assert answer.status == 200
        assert "mine" not in [value for _, value in answer.json["headers"]]
        talk = lab.upstream.talks[0]  # type: ignore[attr-defined]
        assert talk.header("x-api-key") == SECRET
        client.close()
        await lab.audited("GET / allow allowed 200 complete")


async def test_nor_the_other_way_round() -> None:
    """A credential that sets `x_api_key` leaves no `x-api-key` of the guest beside it."""
    settings = {"credentials": {"key": {"inject": {"header": "x_api_key"}, "remove_headers": ["x_other_key"]}}}
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], settings=settings) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/", b"x-api-key: mine", b"x-other-key: mine")
        assert answer.status == 200
        assert "mine" not in [value for _, value in answer.json["headers"]]
        assert lab.upstream.talks[0].header("x_api_key") == SECRET  # type: ignore[attr-defined]
        client.close()
        await lab.audited("GET / allow allowed 200 complete")


async def test_over_http2_too() -> None:
    """On both sides."""
    seen: list[bytes] = []

    async def app(talk: Talk2) -> None:
        seen.extend(name for name, _ in talk.headers)
        await talk.respond(200, b"")

    async with Lab(H2Upstream(app), rules=[WITH_KEY], settings=SETTINGS) as lab:
        guest = await tunnel(lab)
        reply = await guest.ask("/x", *((name.lower().encode(), b"mine") for name in (*TWINS, *FRAMING)))
        assert reply.status == 200
        assert b"x-api-key" in seen
        assert not {name.lower().encode() for name in (*TWINS, *FRAMING)} & set(seen)
        guest.close()
        await claimed(lab, 1)


@pytest.mark.parametrize(
    "name", ["content_length", "Transfer.Encoding", "x_api_key", "content_type", "content-encoding"]
)
async def test_nor_in_trailers(name: str) -> None:
    """Some servers merge them into the head."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        head = client.request("POST", "/t", b"transfer-encoding: chunked")
        await client.send(head + b"1\r\na\r\n0\r\n" + f"{name}: 5\r\n\r\n".encode())
        answer = await client.answer("POST")
        assert answer.status in (400, 403)
        client.close()
        assert name.lower().encode() not in lab.upstream.received.lower()
        (told,) = await lab.told()
        assert " deny " in told
