"""Real clients and servers of WebSockets over HTTP/2: node and hypercorn, and clients of HTTP/1.1 in front of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.test_websocket_clients import AUDITED, CLIENTS, RULES, SEEN, SETTINGS
from support.http2 import claimed
from support.lab import SECRET, Lab
from support.programs import python, run
from support.websocket_servers import WebsocketsServer
from support.websocket_servers2 import FRAMES, Hypercorn, NodeSockets

pytestmark = pytest.mark.clients

WARM: dict[str, Any] = {**SETTINGS, "pool": {"preconnect": True}}

NODE = (
    FRAMES
    + r"""
const http = require('node:http'), http2 = require('node:http2'), tls = require('node:tls'), fs = require('node:fs');
const authority = process.argv[2], proxy = new URL(process.env.https_proxy), out = {};
const ca = fs.readFileSync(process.env.NODE_EXTRA_CA_CERTS);
const login = 'Basic ' + Buffer.from(`${proxy.username}:${proxy.password}`).toString('base64');
http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: authority,
              headers: {host: authority, 'proxy-authorization': login}})
  .on('connect', (_, socket) => {
    const secure = tls.connect({socket, ca, servername: authority.split(':')[0], ALPNProtocols: ['h2']}, () => {
      const session = http2.connect('https://' + authority, {createConnection: () => secure});
      session.once('remoteSettings', (settings) => main(session, settings));
    });
  }).end();
async function main(session, settings) {
  out.offered = settings.enableConnectProtocol;
  const open = (path, more) => new Promise((resolve) => {
    const heard = [], wanted = [];
    const told = (what) => wanted.length ? wanted.shift()(what) : heard.push(what);
    const stream = session.request({':method': 'CONNECT', ':protocol': 'websocket', ':path': path,
                                    'sec-websocket-version': '13', ...more});
    stream.hear = () => heard.length ? Promise.resolve(heard.shift()) : new Promise((tell) => wanted.push(tell));
    stream.say = (opcode, payload) => stream.write(frame(opcode, payload, true));
    stream.on('error', (error) => told('error ' + error.code));
    stream.on('end', () => told('end'));
    stream.on('response', (headers) => {
      stream.head = headers;
      if (headers[':status'] !== 200) { stream.resume(); stream.end(); resolve(stream); return; }
      stream.on('data', reader((opcode, payload) => told(
        opcode === 8 ? [payload.readUInt16BE(0), payload.subarray(2).toString()] :
        opcode === 2 ? payload.length : payload.toString())));
      resolve(stream);
    });
  });
  let ws = await open('/echo', {'sec-websocket-protocol': 'v1, v2'});
  out.subprotocol = ws.head['sec-websocket-protocol'];
  const large = '\u00e9'.repeat(200000);
  ws.say(1, 'hello'); ws.say(1, large); ws.say(2, Buffer.alloc(300000));
  out.texts = [await ws.hear(), (await ws.hear()) === large];
  out.bytes = await ws.hear();
  ws.say(9, 'ping');
  out.pong = await ws.hear();
  ws.write(close(1000, 'fin', true));
  out.closed = [(await ws.hear())[0], await ws.hear()];
  ws.end();
  ws = await open('/early');
  out.early = await ws.hear();
  ws.write(close(1000, '', true)); await ws.hear(); ws.end();
  ws = await open('/identify');
  ws.say(1, JSON.stringify({token: 'sgph-key'}));
  out.identify = await ws.hear();
  ws.say(1, 'sgph-key');
  const [code, reason] = await ws.hear();
  out.denied = [code, reason.split(';')[0]];
  ws.write(close(code, '', true)); out.after = await ws.hear(); ws.end();
  ws = await open('/bye');
  out.bye = await ws.hear();
  ws.write(close(4001, 'done', true)); ws.end();
  ws = await open('/other');
  out.refused = [ws.head[':status'], ws.head['x-seamgate-reason']];
  console.log(JSON.stringify(out));
  session.close();
}
"""
)
NODE_SEEN = {
    "offered": True,
    "subprotocol": "v2",
    "texts": ["hello", True],
    "bytes": 300000,
    "pong": "ping",
    "closed": [1000, "end"],
    "early": "welcome",
    "identify": "welcome [redacted:key]",
    "denied": [1008, "placeholder_misplaced"],
    "after": "end",
    "bye": [4001, "done"],
    "refused": [403, "no_rule_matched"],
}


@pytest.mark.parametrize("server", [NodeSockets, Hypercorn, WebsocketsServer])
async def test_node_as_guest(server: type[Any]) -> None:
    """All on one connection of node's http2, to servers of HTTP/2 and of HTTP/1.1; each stream ends cleanly."""
    async with Lab(server(), rules=RULES, settings=WARM) as lab:
        script = lab.folder / "client.js"
        script.write_text(NODE)
        code, out, err = await run("node", str(script), lab.authority(), env=lab.environment())
        assert code == 0, err.decode()
        assert json.loads(out) == NODE_SEEN
        records = await claimed(lab, 5)
        assert sorted(f"{record.request.path} {record.reason}" for record in records if record.request) == [
            "/bye allowed", "/early allowed", "/echo allowed", "/identify placeholder_misplaced",
            "/other no_rule_matched",
        ]  # fmt: skip
        assert SECRET.encode() not in out


@pytest.mark.parametrize("server", [Hypercorn, NodeSockets])
@pytest.mark.parametrize("client", CLIENTS)
async def test_clients_of_http1_in_front_of_http2(client: str, server: type[Any]) -> None:
    """Python's clients, unchanged: their HTTP/1.1 becomes streams, and nothing else changes."""
    async with Lab(server(), rules=RULES, settings=WARM) as lab:
        environment = {**lab.environment(), "BASE": lab.url("").replace("https", "wss")}
        assert await python(CLIENTS[client], environment) == SEEN
        await lab.audited(*AUDITED)
        if server is Hypercorn:
            upstream: Any = lab.upstream
            assert upstream.versions == ["websocket 2"] * 4
            await lab.until(lambda: upstream.closed == 3)
