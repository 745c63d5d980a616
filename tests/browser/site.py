"""A site for browsers: one page whose script tries all that a page can, and tells the site what came of it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from support.lab import SECRET
from support.servers import ProgramUpstream

PAGE = """<!doctype html><title>site</title><script>
const out = {};
const open = (path, protocols) => new Promise((resolve) => {
  const ws = new WebSocket(location.origin.replace("http", "ws") + path, protocols), heard = [], wanted = [];
  ws.binaryType = "arraybuffer";
  const told = (what) => wanted.length ? wanted.shift()(what) : heard.push(what);
  ws.hear = () => heard.length ? Promise.resolve(heard.shift()) : new Promise((tell) => wanted.push(tell));
  ws.onmessage = (event) => told(event.data);
  ws.onclose = (event) => told([event.code, event.reason]);
  ws.onerror = () => resolve(null);
  ws.onopen = () => resolve(ws);
});
const events = () => new Promise((resolve) => {
  const source = new EventSource("/events"), heard = [];
  source.onmessage = (event) => {
    heard.push(event.data);
    if (heard.length === 3) { source.close(); resolve(heard); }
  };
});
async function pages() {
  const answer = await fetch("/data", {method: "POST", body: JSON.stringify({n: 1, text: "\\u00e9".repeat(100000)})});
  out.posted = (await answer.json()).length;
  const many = await Promise.all([...Array(40).keys()].map((n) => fetch("/data?n=" + n).then((each) => each.text())));
  out.many = new Set(many).size;
  const large = await (await fetch("/large")).arrayBuffer();
  out.large = large.byteLength;
  out.protocol = performance.getEntriesByType("resource").find((each) => each.name.endsWith("/large")).nextHopProtocol;
  const denied = await fetch("/forbidden");
  out.denied = [denied.status, (await denied.json()).error.code, denied.headers.get("x-seamgate-reason")];
  out.key = await (await fetch("/key")).text();
  try { await (await fetch("/cut")).arrayBuffer(); out.cut = "whole"; } catch (error) { out.cut = error.name; }
  out.events = await events();
}
async function sockets() {
  let ws = await open("/ws/echo", ["v1", "v2"]);
  out.subprotocol = ws.protocol;
  out.deflate = ws.extensions.includes("permessage-deflate");
  ws.send("hello"); ws.send("\\u00e9".repeat(200000)); ws.send(new Uint8Array(300000));
  out.messages = [await ws.hear(), (await ws.hear()).length, (await ws.hear()).byteLength];
  ws.close(1000, "fin");
  out.closed = (await ws.hear())[0];
  ws = await open("/ws/early");
  out.early = await ws.hear();
  ws.close(); await ws.hear();
  ws = await open("/ws/identify");
  ws.send(JSON.stringify({token: "sgph-key"}));
  out.identify = await ws.hear();
  ws.send("sgph-key");
  const [code, reason] = await ws.hear();
  out.misplaced = [code, reason.split(";")[0]];
  out.refused = await open("/ws/forbidden");
}
(async () => {
  try { await pages(); await sockets(); } catch (error) { out.failed = String(error && error.stack || error); }
  await fetch("/result", {method: "POST", body: JSON.stringify(out)});
})();
</script>
"""

APP = """
import asyncio, json
PAGE = open("page.html", "rb").read()
SECRET = open("secret").read()

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            what = (await receive())["type"]
            await send({"type": what + ".complete"})
            if what == "lifespan.shutdown":
                return
    with open("versions", "a") as log:
        log.write(f"{scope['type']} {scope['http_version']} {scope['path']}\\n")
    await (http if scope["type"] == "http" else socket)(scope, receive, send)

async def http(scope, receive, send):
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    path, length, kind = scope["path"], None, b"text/plain"
    if path == "/":
        answer, kind = [PAGE], b"text/html"
    elif path == "/data" and scope["method"] == "POST":
        answer = [json.dumps({"length": len(json.loads(body)["text"])}).encode()]
    elif path == "/data":
        answer = [scope["query_string"]]
    elif path == "/large":
        answer = [bytes(100_000)] * 50
    elif path == "/key":
        answer = [b"<" + dict(scope["headers"]).get(b"x-api-key", b"none") + b">"]
    elif path == "/cut":
        answer, length = [bytes(1000)], b"2000"
    elif path == "/events":
        answer, kind = [b"data: %d\\n\\n" % n for n in range(3)], b"text/event-stream"
    else:
        with open("result.part", "wb") as file:
            file.write(body)
        import os
        os.rename("result.part", "result")
        answer = [b"thanks"]
    headers = [(b"content-type", kind)] + ([(b"content-length", length)] if length else [])
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in answer:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if length:
        raise RuntimeError("this answer stays half")
    await send({"type": "http.response.body", "body": b"", "more_body": False})

async def socket(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept", "subprotocol": "v2" if "v2" in scope["subprotocols"] else None})
    if scope["path"] == "/ws/early":
        await send({"type": "websocket.send", "text": "welcome"})
    first = scope["path"] == "/ws/identify"
    while (event := await receive())["type"] != "websocket.disconnect":
        text = event.get("text")
        if first:
            token = json.loads(text)["token"]
            text = f"welcome {token}" if token == SECRET else "who are you"
        first = False
        await send({"type": "websocket.send", **({"text": text} if text is not None else {"bytes": event["bytes"]})})
"""


class Site(ProgramUpstream):
    """hypercorn with the page, over HTTP/2 and WebSockets over HTTP/2, or over HTTP/1.1 alone.

    Attributes:
        versions: a line for each request: "http" or "websocket", the version of HTTP, the path.
    """

    def __init__(self, *, alpn: tuple[str, ...]) -> None:
        super().__init__()
        self._alpn = alpn

    @property
    def versions(self) -> list[str]:
        return (self.folder / "versions").read_text().splitlines()

    async def result(self) -> dict[str, Any]:
        """Wait for what the page tells."""
        path = self.folder / "result"
        while not path.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
        told: dict[str, Any] = json.loads(path.read_bytes())
        return told

    def command(self) -> list[str]:
        for name, text in (("page.html", PAGE), ("app.py", APP), ("secret", SECRET)):
            (self.folder / name).write_text(text)
        (self.folder / "hypercorn.toml").write_text(
            f'bind = ["127.0.0.1:{self.port}"]\ncertfile = "cert.pem"\nkeyfile = "key.pem"\nerrorlog = "error.log"\n'
            f"alpn_protocols = {json.dumps(self._alpn)}\n"
        )
        return [sys.executable, "-m", "hypercorn", "--config", "hypercorn.toml", "app:app"]
