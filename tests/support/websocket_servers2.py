"""Real servers of WebSockets over HTTP/2 (RFC 8441), as programs: hypercorn, and node's http2 with frames of its own.

Both serve the paths of `support.websocket_servers`, and plain requests.
"""

from __future__ import annotations

import sys

from support.lab import SECRET
from support.servers import ProgramUpstream

APP = """
import json, os
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            what = (await receive())["type"]
            await send({"type": what + ".complete"})
            if what == "lifespan.shutdown":
                return
    with open("versions", "a") as log:
        log.write(f"{scope['type']} {scope['http_version']}\\n")
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"plain"})
        return
    await receive()
    chosen = "v2" if "v2" in scope["subprotocols"] else None
    await send({"type": "websocket.accept", "subprotocol": chosen})
    if scope["path"] == "/bye":
        await send({"type": "websocket.close", "code": 4001, "reason": "done"})
        return
    if scope["path"] == "/early":
        await send({"type": "websocket.send", "text": "welcome"})
    first = True
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            with open("closed", "a") as log:
                log.write("closed\\n")
            return
        text = event.get("text")
        if first and scope["path"] == "/identify":
            token = json.loads(text)["token"]
            text = f"welcome {token}" if token == "SECRET" else "who are you"
        first = False
        answer = {"text": text} if text is not None else {"bytes": event["bytes"]}
        await send({"type": "websocket.send", **answer})
""".replace("SECRET", SECRET)


class Hypercorn(ProgramUpstream):
    """hypercorn, over either version of HTTP as ALPN agrees.

    Attributes:
        versions: a line for each request: "http" or "websocket", and the version of HTTP.
        closed: how many WebSockets it saw closed by the other side.
    """

    @property
    def versions(self) -> list[str]:
        return (self.folder / "versions").read_text().splitlines()

    @property
    def closed(self) -> int:
        path = self.folder / "closed"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def command(self) -> list[str]:
        (self.folder / "app.py").write_text(APP)
        (self.folder / "hypercorn.toml").write_text(
            f'bind = ["127.0.0.1:{self.port}"]\ncertfile = "cert.pem"\nkeyfile = "key.pem"\nerrorlog = "error.log"\n'
        )
        return [sys.executable, "-m", "hypercorn", "--config", "hypercorn.toml", "app:app"]


FRAMES = r"""
// Frames of RFC 6455, as far as the tests speak them. A client's are masked.
function reader(tell) {
  let held = Buffer.alloc(0), parts = [], kind = 0;
  return (data) => {
    held = Buffer.concat([held, data]);
    for (;;) {
      if (held.length < 2) return;
      let size = held[1] & 127, at = 2;
      if (size === 126) { if (held.length < 4) return; size = held.readUInt16BE(2); at = 4; }
      else if (size === 127) { if (held.length < 10) return; size = Number(held.readBigUInt64BE(2)); at = 10; }
      const masked = held[1] & 128, mask = held.subarray(at, at + 4);
      if (masked) at += 4;
      if (held.length < at + size) return;
      const payload = Buffer.from(held.subarray(at, at + size));
      if (masked) for (let n = 0; n < size; n++) payload[n] ^= mask[n & 3];
      const opcode = held[0] & 15, fin = held[0] & 128;
      held = held.subarray(at + size);
      if (opcode >= 8) { tell(opcode, payload); continue; }
      if (opcode) kind = opcode;
      parts.push(payload);
      if (fin) { tell(kind, Buffer.concat(parts)); parts = []; }
    }
  };
}
function frame(opcode, payload, masked) {
  payload = Buffer.from(payload);
  const size = payload.length, head = size < 126 ? Buffer.from([0x80 | opcode, size])
    : size < 65536 ? Buffer.from([0x80 | opcode, 126, size >> 8, size & 255]) : Buffer.alloc(10);
  if (size >= 65536) { head[0] = 0x80 | opcode; head[1] = 127; head.writeBigUInt64BE(BigInt(size), 2); }
  if (!masked) return Buffer.concat([head, payload]);
  head[1] |= 128;
  const mask = require('node:crypto').randomBytes(4);
  for (let n = 0; n < size; n++) payload[n] ^= mask[n & 3];
  return Buffer.concat([head, mask, payload]);
}
function close(code, reason, masked) {
  return frame(8, Buffer.concat([Buffer.from([code >> 8, code & 255]), Buffer.from(reason)]), masked);
}
"""


class NodeSockets(ProgramUpstream):
    """node's http2 server, with extended CONNECT."""

    def command(self) -> list[str]:
        (self.folder / "server.js").write_text(
            FRAMES
            + """
const http2 = require('node:http2'), fs = require('node:fs');
const server = http2.createSecureServer({
  cert: fs.readFileSync('cert.pem'), key: fs.readFileSync('key.pem'), settings: {enableConnectProtocol: true}});
server.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  if (headers[':method'] !== 'CONNECT') { stream.respond({':status': 200}); stream.end('plain'); return; }
  const path = headers[':path'], offered = headers['sec-websocket-protocol'] || '';
  stream.respond({':status': 200, ...(offered.includes('v2') ? {'sec-websocket-protocol': 'v2'} : {})});
  if (path === '/bye') stream.write(close(4001, 'done'));
  if (path === '/early') stream.write(frame(1, 'welcome'));
  let first = true;
  stream.on('data', reader((opcode, payload) => {
    if (opcode === 8) { if (path !== '/bye') stream.write(frame(8, payload)); stream.end(); return; }
    if (opcode === 9) { stream.write(frame(10, payload)); return; }
    if (first && path === '/identify') {
      const token = JSON.parse(payload).token;
      payload = Buffer.from(token === 'SECRET' ? 'welcome ' + token : 'who are you');
    }
    first = false;
    stream.write(frame(opcode, payload));
  }));
});
server.listen(Number(process.argv[2]), '127.0.0.1');
""".replace("SECRET", SECRET)
        )
        return ["node", "server.js", str(self.port)]
