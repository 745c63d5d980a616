"""Real HTTP/2 clients and servers: curl, httpx, node and h2load as guests; nginx and node as upstreams."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from support.bridge import bridge
from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, echo2
from support.lab import Lab
from support.programs import python, run
from support.servers import Nginx, Node
from support.upstream import HttpUpstream, echo

pytestmark = pytest.mark.clients


async def test_curl_multiplexes() -> None:
    """Twenty parallel URLs over one tunnel, as HTTP/2, to an upstream of either version."""
    for upstream in (HttpUpstream(echo), H2Upstream(echo2)):
        async with Lab(upstream) as lab:
            command = ["curl", "-sS", "--http2", "--parallel", "--parallel-max", "20", "-o", "/dev/null"]
            command += ["-w", "%{http_version} %{http_code}\n", lab.url("/[1-20]")]
            code, out, err = await run(*command, env=lab.environment())
            assert (code, out.split(b"\n")[:-1]) == (0, [b"2 200"] * 20), err
            await claimed(lab, 20)


async def test_curl_is_told_why() -> None:
    """A denial over HTTP/2 is a 403 with its body."""
    async with Lab(
        HttpUpstream(echo), rules=[{"id": "r", "allow": {"hosts": ["*.test"], "ports": ["1-65535"], "paths": ["/ok"]}}]
    ) as lab:
        code, out, _ = await run(
            "curl", "-sS", "-w", "%{http_version} %{http_code}", lab.url("/no"), env=lab.environment()
        )
        assert code == 0 and out.endswith(b"2 403") and b"no_rule_matched" in out
        await claimed(lab, 1)


async def test_httpx_over_http2() -> None:
    """JSON, streaming and concurrency through httpx's own HTTP/2."""
    async with Lab(H2Upstream(echo2)) as lab:
        script = f"""
import asyncio, httpx, json
async def main():
    async with httpx.AsyncClient(http2=True) as client:
        answers = await asyncio.gather(*[client.post({lab.url("/x")!r}, json={{"n": n}}) for n in range(30)])
        bodies = sorted(json.loads(each.json()["body"])["n"] for each in answers)
        print(json.dumps([sorted({{each.http_version for each in answers}}), bodies]))
asyncio.run(main())
"""
        versions, bodies = await python(script, lab.environment())
        assert (versions, bodies) == (["HTTP/2"], list(range(30)))
        await claimed(lab, 30)


NODE = """
const http = require('node:http'), http2 = require('node:http2'), tls = require('node:tls'), fs = require('node:fs');
const [authority, calls] = [process.argv[2], Number(process.argv[3])];
const proxy = new URL(process.env.https_proxy);
const ca = fs.readFileSync(process.env.NODE_EXTRA_CA_CERTS);
const login = 'Basic ' + Buffer.from(`${proxy.username}:${proxy.password}`).toString('base64');
http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: authority,
              headers: {host: authority, 'proxy-authorization': login}})
  .on('connect', (_, socket) => {
    const secure = tls.connect({socket, ca, servername: authority.split(':')[0], ALPNProtocols: ['h2']}, () => {
      const session = http2.connect('https://' + authority, {createConnection: () => secure});
      const results = [];
      for (let n = 0; n < calls; n++) {
        const stream = session.request({':method': 'POST', ':path': '/' + n});
        const result = {body: '', trailers: null, early: 0};
        stream.on('headers', () => result.early++);
        stream.on('trailers', (fields) => { result.trailers = fields['x-late']; });
        stream.on('data', (data) => { result.body += data; });
        stream.on('close', () => {
          results.push(result);
          if (results.length === calls) { console.log(JSON.stringify(results)); session.close(); }
        });
        stream.end('n'.repeat(n * 100));
      }
    });
  }).end();
"""


async def test_node_on_both_sides() -> None:
    """A hundred streams at once with bodies, 103 and trailers, from node's client to node's server."""
    async with Lab(Node(), credential=False) as lab:
        script = lab.folder / "client.js"
        script.write_text(NODE)
        code, out, err = await run("node", str(script), lab.authority(), "100", env=lab.environment())
        assert code == 0, err.decode()
        results = json.loads(out)
        assert sorted(len(result["body"]) for result in results) == [n * 100 for n in range(100)]
        assert {result["trailers"] for result in results} == {"1"}
        assert {result["early"] for result in results} == {1}
        await claimed(lab, 100)


async def test_h2load_through_the_gateway() -> None:
    """A thousand requests over four connections of fifty streams: all answered, all audited."""
    assert shutil.which("h2load") is not None, "h2load is not installed: apt-get install nghttp2-client"
    async with Lab(Nginx()) as lab, bridge(lab) as port:
        command = ["h2load", "-n", "1000", "-c", "4", "-m", "50", f"--connect-to=127.0.0.1:{port}", lab.url("/small")]
        code, out, err = await run(*command, env=lab.environment())
        assert code == 0, err
        assert re.search(rb"1000 succeeded, 0 failed, 0 errored", out), out.decode()
        await claimed(lab, 1000)


async def test_nginx_as_upstream() -> None:
    """Small and large files, HEAD, a redirect, a miss: by HTTP/2 from guests of either version."""
    upstream = Nginx()
    async with Lab(upstream, credential=False) as lab:
        guest, old = await tunnel(lab), await lab.tunnel()
        assert (await guest.ask("/small")).body == (await old.ask("GET", "/small")).body == b"small\n"
        assert (await guest.ask("/large")).body == (await old.ask("GET", "/large")).body == bytes(range(256)) * 8192
        assert (await guest.ask("/small", method="HEAD")).header(b"content-length") == b"6"
        assert [(await guest.ask(path)).status for path in ("/moved", "/missing")] == [302, 404]
        await claimed(lab, 7)
        assert {line.split()[0] for line in upstream.log} == {"HTTP/2.0"}
        assert len({line.split()[2] for line in upstream.log}) == 1


async def test_nginx_that_goes_away_every_ten_requests() -> None:
    """GOAWAY after GOAWAY under parallel load: no request fails."""
    upstream = Nginx(requests=10)
    async with Lab(upstream, credential=False) as lab:
        guest = await tunnel(lab)
        for _ in range(10):
            streams = [await guest.begin("/small", ended=True) for _ in range(20)]
            assert {(await guest.answer(stream)).status for stream in streams} == {200}
        await claimed(lab, 200)
        assert len({line.split()[2] for line in upstream.log}) >= 20
