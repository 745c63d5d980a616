"""Real WebSocket clients against real servers, as programs with nothing but the environment that a guest gets."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from support.lab import SECRET, Lab
from support.netns import Guests
from support.programs import python, run
from support.websocket import SOCKETS_WITH_KEY
from support.websocket_servers import AiohttpServer, WebsocketsServer

pytestmark = pytest.mark.clients

SETTINGS: dict[str, Any] = {
    "entries": {"proxy": {"guest": ""}},
    "credentials": {"key": {"swap_websocket": True, "inject": None}},
}
PATHS = ["/echo", "/early", "/identify", "/bye"]
RULES = [{**SOCKETS_WITH_KEY, "allow": {**SOCKETS_WITH_KEY["allow"], "paths": PATHS}}]
SERVERS = {"websockets": WebsocketsServer, "aiohttp": AiohttpServer}

# This client reads in one thread while another writes. Before 3.13 Python lets both into OpenSSL at once: what is
# written while the tickets of TLS 1.3 come in may then never be sent. TLS 1.2 has its ticket within the handshake.
SYNC = """
import functools, json, os, ssl
from websockets.sync.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
base, out = os.environ["BASE"], {}
if base.startswith("wss:"):
    context = ssl.create_default_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    connect = functools.partial(connect, ssl=context)
with connect(base + "/echo", subprotocols=["v1", "v2"]) as ws:
    out["subprotocol"], out["deflate"] = ws.subprotocol, bool(ws.protocol.extensions)
    texts = ["hello", "\\u00e9" * 200000, ""]
    for text in texts:
        ws.send(text)
    out["texts"] = [ws.recv() for _ in texts] == texts
    ws.send(bytes(range(256)) * 1000)
    out["bytes"] = ws.recv() == bytes(range(256)) * 1000
    ws.send(["frag", "men", "ted"])
    out["fragments"] = ws.recv()
    out["ping"] = ws.ping().wait(40)
with connect(base + "/early") as ws:
    out["early"] = ws.recv()
with connect(base + "/identify") as ws:
    ws.send([json.dumps({"token": "sgph-key"})[:9], json.dumps({"token": "sgph-key"})[9:]])
    out["identify"] = ws.recv()
    ws.send("sgph-key")
    try:
        ws.recv()
    except ConnectionClosed as closed:
        out["denied"] = [closed.rcvd.code, closed.rcvd.reason.split(";")[0]]
with connect(base + "/bye") as ws:
    try:
        ws.recv()
    except ConnectionClosed as closed:
        out["bye"] = [closed.rcvd.code, closed.rcvd.reason]
try:
    connect(base + "/other")
except InvalidStatus as refused:
    out["refused"] = [refused.response.status_code, refused.response.headers["x-seamgate-reason"]]
print(json.dumps(out))
"""

ASYNCIO = """
import asyncio, json, os
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
base, out = os.environ["BASE"], {}
async def main():
    async with connect(base + "/echo", subprotocols=["v1", "v2"]) as ws:
        out["subprotocol"], out["deflate"] = ws.subprotocol, bool(ws.protocol.extensions)
        texts = ["hello", "\\u00e9" * 200000, ""]
        for text in texts:
            await ws.send(text)
        out["texts"] = [await ws.recv() for _ in texts] == texts
        await ws.send(bytes(range(256)) * 1000)
        out["bytes"] = await ws.recv() == bytes(range(256)) * 1000
        await ws.send(["frag", "men", "ted"])
        out["fragments"] = await ws.recv()
        await (await ws.ping())
        out["ping"] = True
    async with connect(base + "/early") as ws:
        out["early"] = await ws.recv()
    async with connect(base + "/identify") as ws:
        await ws.send(json.dumps({"token": "sgph-key"}))
        out["identify"] = await ws.recv()
        await ws.send("sgph-key")
        try:
            await ws.recv()
        except ConnectionClosed as closed:
            out["denied"] = [closed.rcvd.code, closed.rcvd.reason.split(";")[0]]
    async with connect(base + "/bye") as ws:
        try:
            await ws.recv()
        except ConnectionClosed as closed:
            out["bye"] = [closed.rcvd.code, closed.rcvd.reason]
    try:
        await connect(base + "/other")
    except InvalidStatus as refused:
        out["refused"] = [refused.response.status_code, refused.response.headers["x-seamgate-reason"]]
asyncio.run(main())
print(json.dumps(out))
"""

AIOHTTP = """
import aiohttp, asyncio, json, os
base, out = os.environ["BASE"], {}
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        async with session.ws_connect(base + "/echo", protocols=["v1", "v2"], compress=15) as ws:
            out["subprotocol"], out["deflate"] = ws.protocol, bool(ws.compress)
            texts = ["hello", "\\u00e9" * 200000, ""]
            for text in texts:
                await ws.send_str(text)
            out["texts"] = [await ws.receive_str() for _ in texts] == texts
            await ws.send_bytes(bytes(range(256)) * 1000)
            out["bytes"] = await ws.receive_bytes() == bytes(range(256)) * 1000
            await ws.send_str("fragmented")
            out["fragments"] = await ws.receive_str()
            await ws.ping(b"x")
            out["ping"] = True
        async with session.ws_connect(base + "/early") as ws:
            out["early"] = await ws.receive_str()
        async with session.ws_connect(base + "/identify", compress=15) as ws:
            await ws.send_str(json.dumps({"token": "sgph-key"}))
            out["identify"] = await ws.receive_str()
            await ws.send_str("sgph-key")
            message = await ws.receive()
            out["denied"] = [ws.close_code, message.extra.split(";")[0]]
        async with session.ws_connect(base + "/bye") as ws:
            message = await ws.receive()
            out["bye"] = [ws.close_code, message.extra]
        try:
            await session.ws_connect(base + "/other")
        except aiohttp.WSServerHandshakeError as refused:
            out["refused"] = [refused.status, refused.headers["x-seamgate-reason"]]
asyncio.run(main())
print(json.dumps(out))
"""
CLIENTS = {"websockets, sync": SYNC, "websockets, asyncio": ASYNCIO, "aiohttp": AIOHTTP}
SEEN = {
    "subprotocol": "v2",
    "deflate": True,
    "texts": True,
    "bytes": True,
    "fragments": "fragmented",
    "ping": True,
    "early": "welcome",
    "identify": "welcome [redacted:key]",
    "denied": [1008, "placeholder_misplaced"],
    "bye": [4001, "done"],
    "refused": [403, "no_rule_matched"],
}
AUDITED = [
    "GET /echo allow allowed 101 complete",
    "GET /early allow allowed 101 complete",
    "GET /identify deny placeholder_misplaced 101 truncated",
    "GET /bye allow allowed 101 complete",
    "GET /other deny no_rule_matched 403 denied",
]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_clients_of_python(client: str, server: str) -> None:
    """Subprotocol, compression, large and fragmented messages, pings, early messages, tokens, closes, denials."""
    async with Lab(SERVERS[server](), rules=RULES, settings=SETTINGS) as lab:
        environment = {**lab.environment(), "BASE": lab.url("").replace("https", "wss")}
        assert await python(CLIENTS[client], environment) == SEEN
        records = await lab.audited(*AUDITED)
        assert records[0].websocket is not None
        assert records[0].websocket.from_guest == records[0].websocket.from_upstream == 5
        await lab.until(lambda: len(lab.upstream.codes) == 4)  # type: ignore[attr-defined]
        assert lab.upstream.codes[0] == 1000  # type: ignore[attr-defined]


NODE = """
const base = process.env.BASE, out = {};
const open = (path, protocols) => new Promise((resolve) => {
  const ws = new WebSocket(base + path, protocols), heard = [], wanted = [];
  ws.binaryType = "arraybuffer";
  ws.hear = () => heard.length ? Promise.resolve(heard.shift()) : new Promise((tell) => wanted.push(tell));
  const told = (what) => wanted.length ? wanted.shift()(what) : heard.push(what);
  ws.onmessage = (event) => told(event.data);
  ws.onclose = (event) => told([event.code, event.reason]);
  ws.onerror = () => resolve(null);
  ws.onopen = () => resolve(ws);
});
(async () => {
  let ws = await open("/echo", ["v1", "v2"]);
  out.subprotocol = ws.protocol;
  ws.send("hello"); ws.send("\\u00e9".repeat(200000));
  out.texts = [await ws.hear(), (await ws.hear()).length];
  ws.send(new Uint8Array(300000));
  out.bytes = (await ws.hear()).byteLength;
  ws.close(1000, "fin");
  out.closed = (await ws.hear())[0];
  ws = await open("/early");
  out.early = await ws.hear();
  ws.close(); await ws.hear();
  ws = await open("/identify");
  ws.send(JSON.stringify({token: "sgph-key"}));
  out.identify = await ws.hear();
  ws.send("sgph-key");
  const [code, reason] = await ws.hear();
  out.denied = [code, reason.split(";")[0]];
  ws = await open("/bye");
  out.bye = await ws.hear();
  out.refused = await open("/other");
  console.log(JSON.stringify(out));
})();
"""


@pytest.mark.parametrize("server", SERVERS)
async def test_node(server: str) -> None:
    """Node's own WebSocket (undici), by a base URL: it knows no proxy variables."""
    settings = {**SETTINGS, "entries": {"base_url": {"guest": "g"}, "proxy": {"guest": ""}}}
    async with Lab(SERVERS[server](), rules=RULES, settings=settings) as lab:
        environment = {**lab.environment(), "BASE": lab.base_url.replace("http", "ws")}
        code, out, err = await run("node", "--no-warnings", "--experimental-websocket", "-e", NODE, env=environment)
        assert code == 0, err.decode()
        assert json.loads(out) == {
            "subprotocol": "v2",
            "texts": ["hello", 200000],
            "bytes": 300000,
            "closed": 1000,
            "early": "welcome",
            "identify": "welcome [redacted:key]",
            "denied": [1008, "placeholder_misplaced"],
            "bye": [4001, "done"],
            "refused": None,
        }
        await lab.audited(*AUDITED)
    assert SECRET.encode() not in out


BARE = """
import json, os
from websockets.sync.client import connect
with connect(os.environ["BASE"] + "/identify", proxy=None) as ws:
    ws.send(json.dumps({"token": "sgph-key"}))
    print(ws.recv())
"""


async def test_a_client_in_a_namespace_that_knows_no_proxy() -> None:
    """Its connection is redirected and its TLS terminated; the rest is the same."""
    async with Lab(WebsocketsServer(), rules=RULES, settings=SETTINGS) as lab:
        guests = Guests(lab)
        environment = {**guests.environment(), "BASE": lab.url("").replace("https", "wss")}
        done = await guests.run(sys.executable, "-c", BARE, environment=environment)
        assert done.out == "welcome [redacted:key]\n", done
        await lab.audited("GET /identify allow allowed 101 complete")
