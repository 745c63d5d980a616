"""Chromium, unmodified, as guest through the proxy: it trusts the gateway's CA by its own store and verifies.

Run by `make test-browser`; takes the packages `chromium` and `libnss3-tools`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from browser.site import Site
from support.lab import SECRET, WITH_KEY, Lab
from support.programs import run

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180)]
ASYNC_TEST_LIMIT_S = 120.0

_ALLOWED = {**WITH_KEY["allow"], "paths": ["/", "/data", "/large", "/cut", "/events", "/result"]}
RULES: list[dict[str, Any]] = [
    {"id": "site", "allow": _ALLOWED},
    {**WITH_KEY, "id": "key", "allow": {**_ALLOWED, "paths": ["/key"]}},
    {"id": "sockets", "allow": {**_ALLOWED, "paths": ["/ws/echo", "/ws/early"]}, "upgrade": "websocket"},
    {**WITH_KEY, "id": "identify", "allow": {**_ALLOWED, "paths": ["/ws/identify"]}, "upgrade": "websocket"},
]
SETTINGS: dict[str, Any] = {"credentials": {"key": {"swap_websocket": True}}}
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions",
)  # fmt: skip
SEEN = {
    "posted": 100000,
    "many": 40,
    "large": 5_000_000,
    "denied": [403, "no_rule_matched", "no_rule_matched"],
    "key": "<[redacted:key]>",
    "cut": "TypeError",
    "events": ["0", "1", "2"],
    "subprotocol": "v2",
    "deflate": True,
    "messages": ["hello", 200000, 300000],
    "closed": 1000,
    "early": "welcome",
    "identify": "welcome [redacted:key]",
    "misplaced": [1008, "placeholder_misplaced"],
    "refused": None,
}


@asynccontextmanager
async def browsing(lab: Lab) -> AsyncIterator[None]:
    """Have Chromium open the site, with the gateway's CA in the store of its user."""
    for program, package in (("chromium", "chromium"), ("certutil", "libnss3-tools")):
        assert shutil.which(program) is not None, f"{program} is not installed: apt-get install {package}"
    store = lab.folder / ".pki" / "nssdb"
    store.mkdir(parents=True)
    where, environment = ("-d", f"sql:{store}"), lab.environment()
    for step in (("-N", "--empty-password"), ("-A", "-t", "C,,", "-n", "seamgate", "-i", str(lab.gateway.ca_path))):
        code, _, err = await run("certutil", *where, *step, env=environment)
        assert code == 0, err
    host, port = lab.gateway.addresses["proxy"]
    process = await asyncio.create_subprocess_exec(
        "chromium", *QUIET, f"--proxy-server=http://{host}:{port}", "--proxy-bypass-list=<-loopback>",
        f"--user-data-dir={lab.folder / 'profile'}", lab.url("/"), env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("upstream", [("h2", "http/1.1"), ("http/1.1",)], ids=["h2", "http1"])
@pytest.mark.parametrize("guests", [True, False], ids=["h2-guest", "http1-guest"])
async def test_a_page_in_chromium(guests: bool, upstream: tuple[str, ...]) -> None:
    """Requests, streams, a cut answer, denials, credentials and WebSockets, over both versions on both sides."""
    settings = {**SETTINGS, "http2": {"guests": guests}}
    async with Lab(Site(alpn=upstream), rules=RULES, settings=settings) as lab:
        site: Any = lab.upstream
        async with browsing(lab):
            seen = await site.result()
        assert seen == {**SEEN, "protocol": "h2" if guests else "http/1.1"}
        versions = {line.split()[1] for line in site.versions if line.split()[0] == "http"}
        assert versions == ({"2"} if "h2" in upstream else {"1.1"})
        assert not [line for line in site.versions if "forbidden" in line]
        await lab.until(lambda: not lab.gateway.seam.active)
        told = await lab.told()
        for expected in (
            "GET /forbidden deny no_rule_matched 403 denied",
            "GET /ws/forbidden deny no_rule_matched 403 denied",
            "GET /ws/echo allow allowed 101 complete",
        ):
            assert expected in told, told
        assert SECRET not in str(seen)
