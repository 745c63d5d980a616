"""Python's HTTP clients, unmodified, as programs with nothing but the environment that a guest gets.

Each asks for JSON, uploads, reads an event stream event by event, and meets a denial. The certificate that it checks
is the gateway's leaf; the one that the gateway checks is the upstream's.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.api import EVENTS, Api
from support.lab import SECRET, Lab
from support.programs import python
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

RULES: list[dict[str, Any]] = [
    {
        "id": "api",
        "allow": {"hosts": ["api.test"], "ports": ["1-65535"], "paths": ["/json", "/upload", "/events", "/ack/*"]},
        "credential": "key",
    }
]

REQUESTS = """
import json, os, requests
base = os.environ["BASE"]
session = requests.Session()
out = {"json": session.get(base + "/json").json(), "upload": session.post(base + "/upload", data=b"x" * 100000).json()}
out["events"] = []
with session.get(base + "/events", stream=True) as response:
    for line in response.iter_lines(chunk_size=1, decode_unicode=True):
        if line:
            out["events"].append(line)
            requests.get(base + f"/ack/{len(out['events']) - 1}")
denied = session.get(base + "/denied")
out["denied"] = [denied.status_code, denied.json()["error"]["message"]]
print(json.dumps(out))
"""

URLLIB3 = """
import json, os, urllib3
base = os.environ["BASE"]
proxy = urllib3.util.parse_url(os.environ["HTTPS_PROXY"])
pool = urllib3.ProxyManager(
    f"http://{proxy.host}:{proxy.port}", ca_certs=os.environ["SSL_CERT_FILE"],
    proxy_headers=urllib3.make_headers(proxy_basic_auth=proxy.auth),
)
out = {"json": pool.request("GET", base + "/json").json()}
out["upload"] = pool.request("POST", base + "/upload", body=iter([b"x" * 50000] * 2)).json()
out["events"] = []
response = pool.request("GET", base + "/events", preload_content=False)
for piece in response.stream(4096):
    out["events"] += [line for line in piece.decode().split("\\n") if line]
    pool.request("GET", base + f"/ack/{len(out['events']) - 1}")
denied = pool.request("GET", base + "/denied")
out["denied"] = [denied.status, denied.json()["error"]["message"]]
print(json.dumps(out))
"""

HTTPX = """
import json, os, httpx
base = os.environ["BASE"]
with httpx.Client() as client:
    out = {"json": client.get(base + "/json").json(), "events": []}
    out["upload"] = client.post(base + "/upload", content=b"x" * 100000).json()
    with client.stream("GET", base + "/events") as response:
        for line in response.iter_lines():
            if line:
                out["events"].append(line)
                client.get(base + f"/ack/{len(out['events']) - 1}")
    denied = client.get(base + "/denied")
    out["denied"] = [denied.status_code, denied.json()["error"]["message"]]
print(json.dumps(out))
"""

HTTPX_ASYNC = """
import asyncio, json, os, httpx
base = os.environ["BASE"]

async def body():
    for _ in range(2):
        yield b"x" * 50000

async def main():
    async with httpx.AsyncClient() as client:
        out = {"json": (await client.get(base + "/json")).json()}
        out["upload"] = (await client.post(base + "/upload", content=body())).json()
        out["events"] = []
        async with client.stream("GET", base + "/events") as response:
            async for line in response.aiter_lines():
                if line:
                    out["events"].append(line)
                    await client.get(base + f"/ack/{len(out['events']) - 1}")
        denied = await client.get(base + "/denied")
        out["denied"] = [denied.status_code, denied.json()["error"]["message"]]
        print(json.dumps(out))

asyncio.run(main())
"""

AIOHTTP = """
import asyncio, json, os, aiohttp
base = os.environ["BASE"]

async def main():
    async with aiohttp.ClientSession(trust_env=True) as client:
        async with client.get(base + "/json") as response:
            out = {"json": await response.json()}
        async with client.post(base + "/upload", data=b"x" * 100000) as response:
            out["upload"] = json.loads(await response.text())
        out["events"] = []
        async with client.get(base + "/events") as response:
            async for line in response.content:
                if line.strip():
                    out["events"].append(line.decode().strip())
                    async with client.get(base + f"/ack/{len(out['events']) - 1}"):
                        pass
        async with client.get(base + "/denied") as denied:
            out["denied"] = [denied.status, (await denied.json())["error"]["message"]]
        print(json.dumps(out))

asyncio.run(main())
"""

URLLIB = """
import json, os, urllib.error, urllib.request
base = os.environ["BASE"]
ask = urllib.request.urlopen
out = {"json": json.load(ask(base + "/json"))}
out["upload"] = json.load(ask(urllib.request.Request(base + "/upload", data=b"x" * 100000, method="POST")))
out["events"] = []
with ask(base + "/events") as response:
    for line in response:
        if line.strip():
            out["events"].append(line.decode().strip())
            ask(base + f"/ack/{len(out['events']) - 1}").close()
try:
    ask(base + "/denied")
except urllib.error.HTTPError as error:
    out["denied"] = [error.code, json.load(error)["error"]["message"]]
print(json.dumps(out))
"""

HTTP_CLIENT = """
import base64, http.client, json, os, ssl, urllib.parse
base = urllib.parse.urlsplit(os.environ["BASE"])
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
login = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()

def connection():
    made = http.client.HTTPSConnection(proxy.hostname, proxy.port, context=ssl.create_default_context())
    made.set_tunnel(base.hostname, base.port, headers={"Proxy-Authorization": f"Basic {login}"})
    return made

one, other = connection(), connection()

def ask(over, method, path, **more):
    over.request(method, path, **more)
    return over.getresponse()

out = {"json": json.load(ask(one, "GET", "/json"))}
out["upload"] = json.load(ask(one, "POST", "/upload", body=iter([b"x" * 50000] * 2), encode_chunked=True,
                              headers={"Transfer-Encoding": "chunked"}))
out["events"] = []
response = ask(one, "GET", "/events")
while line := response.readline():
    if line.strip():
        out["events"].append(line.decode().strip())
        ask(other, "GET", f"/ack/{len(out['events']) - 1}").read()
denied = ask(one, "GET", "/denied")
out["denied"] = [denied.status, json.load(denied)["error"]["message"]]
print(json.dumps(out))
"""

EXPECTED = [
    "GET /json allow allowed 200 complete",
    "POST /upload allow allowed 201 complete",
    *(f"GET /ack/{number} allow allowed 204 complete" for number in range(EVENTS)),
    "GET /events allow allowed 200 complete",
    "GET /denied deny no_rule_matched 403 denied",
]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(REQUESTS, id="requests"),
        pytest.param(URLLIB3, id="urllib3"),
        pytest.param(HTTPX, id="httpx"),
        pytest.param(HTTPX_ASYNC, id="httpx-async"),
        pytest.param(AIOHTTP, id="aiohttp"),
        pytest.param(URLLIB, id="urllib"),
        pytest.param(HTTP_CLIENT, id="http.client"),
    ],
)
async def test_python_client(script: str) -> None:
    """JSON, upload, events one by one and a readable denial; the key goes up and never comes down."""
    settings = {"entries": {"proxy": {"guest": ""}}}
    async with Lab(HttpUpstream(Api()), rules=RULES, settings=settings) as lab:
        out = await python(script, {**lab.environment(), "BASE": lab.url("").rstrip("/")})
        assert out["json"] == {"ok": True, "has_key": True}
        assert out["upload"] == {"size": 100_000}
        assert out["events"] == [f"data: {number} [redacted:key]" for number in range(EVENTS)]
        status, message = out["denied"]
        assert status == 403 and "no_rule_matched" in message
        assert SECRET not in json.dumps(out)
        await lab.audited(*EXPECTED)
