"""Guests in namespaces: clients that never look at a proxy variable, and the same verdicts as through the proxy."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest

from support.lab import Lab
from support.netns import Guests, python
from support.upstream import HttpUpstream, echo

pytestmark = pytest.mark.clients

_REQUESTS = """
import requests, sys
session = requests.Session()
session.trust_env = False
print(session.get(sys.argv[1], verify=sys.argv[2], timeout=20).json()["target"])
"""
_URLLIB = """
import json, ssl, sys, urllib.request
opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=sys.argv[2]))
)
print(json.load(opener.open(sys.argv[1], timeout=20))["target"])
"""
_ASYNCIO = """
import asyncio, ssl, sys
async def main(host, port, ca):
    context = ssl.create_default_context(cafile=ca)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(f"GET /x HTTP/1.1\\r\\nhost: {host}:{port}\\r\\nconnection: close\\r\\n\\r\\n".encode())
    answer = await reader.read()
    print(answer.split(b" ")[1].decode())
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("code", [_REQUESTS, _URLLIB], ids=["requests", "urllib"])
async def test_python_clients_without_variables(code: str) -> None:
    """Told to ignore the environment, they resolve and connect by themselves, and are served."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, code, lab.url("/x"), str(lab.gateway.ca_path))
        assert done.out == "/x\n", done
        await lab.audited("GET /x allow allowed 200 complete")


async def test_bare_sockets() -> None:
    """A program that has its own HTTP client on top of TLS sockets."""
    async with Lab(HttpUpstream(echo)) as lab:
        host, _, port = lab.authority().rpartition(":")
        done = await python(lab, _ASYNCIO, host, port, str(lab.gateway.ca_path))
        assert done.out == "200\n", done
        await lab.audited("GET /x allow allowed 200 complete")


async def test_node_fetch_ignores_the_variables() -> None:
    """P45: traffic that does not enter the proxy is redirected, so it is neither lost nor unseen."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    async with Lab(HttpUpstream(echo)) as lab:
        guests = Guests(lab)
        kept = {"PATH", "HOME", "NODE_EXTRA_CA_CERTS"}
        environment = {name: value for name, value in guests.environment().items() if name in kept}
        code = "fetch(process.argv[1]).then(r => r.json()).then(r => console.log(r.target))"
        done = await guests.run("node", "-e", code, lab.url("/x"), environment=environment)
        assert done.out == "/x\n", done
        await lab.audited("GET /x allow allowed 200 complete")


RULES: list[dict[str, Any]] = [
    {"id": "read", "allow": {"hosts": ["api.test"], "methods": ["GET"], "paths": ["/v1/**"], "ports": ["1-65535"]}},
    {"id": "send", "allow": {"hosts": ["api.test"], "methods": ["POST"], "paths": ["/v1/send"], "ports": ["1-65535"]}},
    {"id": "no-admin", "deny": {"hosts": ["**"], "paths": ["/v1/admin/**"]}},
]
CORPUS = [
    ("GET", "/v1/x"),
    ("HEAD", "/v1/x"),
    ("POST", "/v1/x"),
    ("POST", "/v1/send"),
    ("GET", "/v2/x"),
    ("GET", "/v1/admin/users"),
    ("GET", "/v1/%61dmin/users"),
    ("GET", "/v1/../v2/x"),
    ("GET", "/v1//x"),
    ("DELETE", "/"),
]
_ASK_ALL = """
import http.client, json, socket, ssl, sys
host, port, ca, corpus = sys.argv[1:]
for method, path in json.loads(corpus):
    connection = http.client.HTTPSConnection(host, int(port), context=ssl.create_default_context(cafile=ca), timeout=20)
    connection.request(method, path)
    print(connection.getresponse().status)
    connection.close()
"""


async def test_both_ways_in_lead_to_the_same_verdicts() -> None:
    """P12: the same corpus through CONNECT and through the redirect: same verdict, reason, rule, status."""
    async with Lab(HttpUpstream(echo), rules=RULES, checks=False) as lab:
        for method, path in CORPUS:
            client = await lab.tunnel()
            await client.ask(method, path)
            client.close()
        await lab.settled()
        through_proxy = _facts(lab)
        count = len(lab.records)
        host, _, port = lab.authority().rpartition(":")
        ask = (sys.executable, "-c", _ASK_ALL, host, port, str(lab.gateway.ca_path), json.dumps(CORPUS))
        done = await Guests(lab).run(*ask)
        assert done.code == 0, done
        await lab.settled()
        assert _facts(lab)[count:] == through_proxy
        assert [facts[3] for facts in through_proxy] == [int(line) for line in done.out.split()]


def _facts(lab: Lab) -> list[tuple[Any, ...]]:
    return [(record.verdict, record.reason, record.rule, record.status) for record in lab.records]
