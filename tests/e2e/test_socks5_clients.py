"""Python's HTTP clients through the SOCKS 5 entry, by name and by login, and what they say when they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from support.lab import ALLOW_ALL, SECRET, TOKEN, WITH_KEY, Lab
from support.programs import python
from support.upstream import HttpUpstream, echo

pytestmark = pytest.mark.clients

SOCKS: dict[str, Any] = {"entries": {"socks5": {"listen": "127.0.0.1:0"}}}

REQUESTS = """
import json, os, requests
session = requests.Session()
session.trust_env = False
session.proxies = {"https": os.environ["SOCKS"], "http": os.environ["SOCKS"]}
session.verify = os.environ["SSL_CERT_FILE"]
out = {"answers": [session.post(os.environ["BASE"] + f"/{n}", data=b"x" * 50000).status_code for n in range(2)]}
try:
    session.get("https://other.example/")
except requests.ConnectionError as refused:
    out["refused"] = "not allowed" in str(refused)
print(json.dumps(out))
"""

HTTPX = """
import httpx, json, os, ssl
context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
out = {}
with httpx.Client(proxy=os.environ["SOCKS"].replace("socks5h", "socks5"), verify=context, trust_env=False) as client:
    out["answers"] = [client.post(os.environ["BASE"] + f"/{n}", content=b"x" * 50000).status_code for n in range(2)]
    try:
        client.get("https://other.example/")
    except httpx.ProxyError as refused:
        out["refused"] = "not allowed" in str(refused)
print(json.dumps(out))
"""


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("client", ["requests", "httpx"])
async def test_clients_connect_by_name_with_a_login(client: str, tls: bool) -> None:
    """Two uploads over one connection, with the credential put in where it may; a denied name is never looked up."""
    upstream = HttpUpstream(echo, "api.test", tls=tls)
    async with Lab(upstream, rules=[WITH_KEY if tls else ALLOW_ALL], settings=SOCKS, credential=tls) as lab:
        host, port = lab.gateway.addresses["socks5"]
        environment = {
            **lab.environment(),
            "BASE": lab.url(""),
            "SOCKS": f"socks5h://g:{TOKEN}@{host}:{port}",
        }
        script = REQUESTS if client == "requests" else HTTPX
        assert await python(script, environment) == {"answers": [200, 200], "refused": True}
        await lab.audited(
            "POST /0 allow allowed 200 complete",
            "POST /1 allow allowed 200 complete",
            "CONNECT other.example:443 deny no_rule_matched 0 denied",
        )
        keys = {talk.header("x-api-key") for talk in upstream.talks}
        assert keys == ({SECRET} if tls else {None})
