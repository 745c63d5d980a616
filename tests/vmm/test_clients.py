"""Real Python clients, unmodified, in guests: their HTTPS arrives at the seam as plaintext with the server's name."""

# ruff: noqa: E501 - programs inside are Python of their own

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seamgate_vmm import template as templates
from seamgate_vmm.guest import Limits
from seamgate_vmm.host import Host
from seamgate_vmm.pool import Pool
from seamgate_vmm.ring import Accept, StreamOpen
from seamgate_vmm.template import Job

from .conftest import Result

pytestmark = [pytest.mark.kvm, pytest.mark.clients, pytest.mark.timeout(240), pytest.mark.usefixtures("patient_ring")]

_MODULES = ("requests", "httpx", "aiohttp", "urllib3", "openai", "anthropic")


class Upstream(asyncio.Protocol):
    """Answers requests as an LLM's API does, and remembers what was asked."""

    asked: list[tuple[StreamOpen, bytes]] = []

    def __init__(self, opened: StreamOpen) -> None:
        self.opened = opened
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.seen += data
        while True:
            head, found, rest = self.seen.partition(b"\r\n\r\n")
            headers = dict(h.lower().split(b": ", 1) for h in head.split(b"\r\n")[1:] if b": " in h)
            length = int(headers.get(b"content-length", b"0"))
            if not found or len(rest) < length:
                return
            self.seen = rest[length:]
            type(self).asked.append((self.opened, head))
            self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        if b'"stream":true' in body.replace(b" ", b""):
            chunks = [{"choices": [{"index": 0, "delta": {"content": w}}]} for w in ("stream", "ed")]
            text = b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks) + b"data: [DONE]\n\n"
            kind = b"text/event-stream"
        else:
            message = {"role": "assistant", "content": "from openai"}
            text = json.dumps(
                {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "m",
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "text", "text": "from anthropic"}],
                    "stop_reason": "end_turn",
                    "usage": {"input_tokens": 1, "output_tokens": 1},
                    "path": head.split(b" ")[1].decode(),
                }
            ).encode()
            kind = b"application/json"
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(text), text)
        )

    def eof_received(self) -> bool:
        return False


@pytest.fixture(scope="module")
def clients(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A template of this virtual environment with the clients imported."""
    venv = Path(sys.prefix)
    if not (venv / "pyvenv.cfg").exists():
        pytest.fail("the tests run in a virtual environment with the clients: `make build`")
    before = os.environ.get("SEAMGATE_TEMPLATES")
    os.environ["SEAMGATE_TEMPLATES"] = str(tmp_path_factory.mktemp("clients"))
    try:
        templates.build(host, "clients", imports=_MODULES, venv=venv)
        yield templates.path_of("clients")
    finally:
        if before is None:
            del os.environ["SEAMGATE_TEMPLATES"]
        else:
            os.environ["SEAMGATE_TEMPLATES"] = before


def _run(template: Path, code: str, accept: Accept = Upstream) -> Result:
    async def run() -> Result:
        read, write = os.pipe()
        limits = Limits(wall_s=60, memory_bytes=512 << 20)
        async with Pool(template, limits=limits) as pool:
            env = {"OPENAI_API_KEY": "placeholder", "ANTHROPIC_API_KEY": "placeholder"}
            guest = await pool.start(Job(["-c", code], env), accept=accept, stdout=write, stderr=write)
            outcome = await guest.ended()
        os.close(write)
        with os.fdopen(read, "rb") as f:
            return Result(outcome, f.read(), b"")

    Upstream.asked.clear()
    return asyncio.run(run())


_CALLS = {
    "http.client": "import http.client as h; c = h.HTTPSConnection('a.test'); c.request('GET', '/x'); print(c.getresponse().status)",
    "urllib": "import urllib.request as u; print(u.urlopen('https://a.test/x').status)",
    "urllib3": "import urllib3; print(urllib3.PoolManager().request('GET', 'https://a.test/x').status)",
    "requests": "import requests; s = requests.Session(); print([s.get('https://a.test/x').status_code for _ in range(3)][0])",
    "httpx": "import httpx; print(httpx.get('https://a.test/x').status_code)",
    "httpx, verification off": "import httpx; print(httpx.get('https://a.test/x', verify=False).status_code)",
    "httpx async": """
import httpx, asyncio
async def main():
    async with httpx.AsyncClient() as c:
        rs = await asyncio.gather(*[c.get('https://a.test/x') for _ in range(5)])
        print(rs[0].status_code)
asyncio.run(main())""",
    "aiohttp": """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as s:
        async with s.get('https://a.test/x') as r:
            print(r.status)
asyncio.run(main())""",
    "asyncio streams": """
import asyncio
async def main():
    r, w = await asyncio.open_connection('a.test', 443, ssl=True)
    w.write(b'GET /x HTTP/1.1\\r\\nhost: a.test\\r\\n\\r\\n')
    print((await r.readline()).split()[1].decode())
    w.close()
    await w.wait_closed()
asyncio.run(main())""",
}


@pytest.mark.parametrize("client", _CALLS)
def test_client(clients: Path, client: str) -> None:
    """The client gets its answer; the seam saw the name it asked for, marked as TLS, and the request in the clear."""
    result = _run(clients, _CALLS[client])
    assert result.text.strip() == "200", result.text
    opened, head = Upstream.asked[0]
    assert (opened.host, opened.port, opened.tls, opened.server_name) == ("a.test", 443, True, "a.test")
    assert head.startswith(b"GET /x HTTP/1.1\r\n")


def test_openai(clients: Path) -> None:
    """The openai SDK completes and streams."""
    code = """
import openai
c = openai.OpenAI(base_url='https://llm.test/v1')
m = [{'role': 'user', 'content': 'hi'}]
print(c.chat.completions.create(model='m', messages=m).choices[0].message.content)
print(''.join(p.choices[0].delta.content for p in c.chat.completions.create(model='m', messages=m, stream=True)))
"""
    assert _run(clients, code).text == "from openai\nstreamed\n"
    assert b"authorization: Bearer placeholder".lower() in Upstream.asked[0][1].lower()


def test_anthropic(clients: Path) -> None:
    """The anthropic SDK gets its message."""
    code = """
import anthropic
print(anthropic.Anthropic().messages.create(model='m', max_tokens=5, messages=[{'role': 'user', 'content': 'hi'}]).content[0].text)
"""
    assert _run(clients, code).text == "from anthropic\n"
    assert Upstream.asked[0][0].server_name == "api.anthropic.com"


def test_a_refused_stream_is_a_connection_error(clients: Path) -> None:
    """Where the gateway takes no stream, a client sees its usual connection error, not a hang."""
    refuse: Callable[[StreamOpen], None] = lambda _: None  # noqa: E731 - a table of one
    code = "import requests\ntry:\n    requests.get('https://a.test/x', timeout=40)\nexcept requests.ConnectionError:\n    print('no')"
    assert _run(clients, code, refuse).text == "no\n"
