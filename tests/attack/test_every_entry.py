"""One policy, one corpus, every way in: the same verdict, reason and rule, and the upstream gets what policy saw.

What may not matter: the entry, the protocol inside, how the bytes come, how a name or a method is spelt where spelling
is free, the order of rules and of lists. What may only narrow: one more deny.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seamgate.audit.record import AuditRecord, Decision
from seamgate.config import KvmEntry
from seamgate.entry.netns.guest import ADDRESSES
from support.certificates import guest_context
from support.cli import environment
from support.client import Client, start_tls
from support.http2 import H2Client
from support.lab import Lab
from support.line import Line
from support.microvm import own_template
from support.netns import Inside
from support.ring import Ringed
from support.upstream import HttpUpstream, echo

SCHEMES: dict[str, Any] = {"schemes": ["https", "http"], "ports": ["1-65535"]}
RULES: list[dict[str, Any]] = [
    {"id": "public", "allow": {"hosts": ["api.test"], **SCHEMES, "methods": ["GET", "POST"], "paths": ["/public/**"]}},
    {
        "id": "json",
        "allow": {"hosts": ["api.test"], **SCHEMES, "methods": ["PUT"], "paths": ["/doc"]},
        "when": 'request.json.model.startsWith("small")',
    },
    {"id": "query", "allow": {"hosts": ["api.test"], **SCHEMES, "paths": ["/q"], "query": {"mode": "read"}}},
    {"id": "header", "allow": {"hosts": ["api.test"], **SCHEMES, "paths": ["/h"], "headers": {"x-mode": "read"}}},
    {"id": "no-admin", "deny": {"hosts": ["**.test"], **SCHEMES, "paths": ["/public/admin/**"]}},
    {"id": "other", "allow": {"hosts": ["other.test"], **SCHEMES, "paths": ["/o"]}},
]


class Ask(NamedTuple):
    """One request of the corpus."""

    method: str
    path: str
    host: str = "api.test"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes | None = None


JSON = ((b"content-type", b"application/json"),)
CORPUS = [
    Ask("GET", "/public/a"), Ask("HEAD", "/public/a"), Ask("POST", "/public/a", body=b"x"), Ask("DELETE", "/public/a"),
    Ask("OPTIONS", "/public/a"), Ask("GET", "/public"), Ask("GET", "/Public/a"), Ask("GET", "/public/a/b/c?x=1&y"),
    Ask("GET", "/public/%61"), Ask("GET", "/public/admin/x"), Ask("GET", "/public/../admin"),
    Ask("GET", "/public/%2e%2e/x"), Ask("GET", "/public//x"), Ask("GET", "/public/a%2Fb"), Ask("GET", "/secret"),
    Ask("PUT", "/doc", headers=JSON, body=b'{"model": "small-1"}'),
    Ask("PUT", "/doc", headers=JSON, body=b'{"model": "large-1"}'), Ask("PUT", "/doc", headers=JSON, body=b"{"),
    Ask("PUT", "/doc", headers=JSON, body=b""), Ask("PUT", "/doc", headers=JSON),
    Ask("PUT", "/doc", headers=(*JSON, (b"content-encoding", b"gzip")), body=b'{"model": "small-1"}'),
    Ask("GET", "/q?mode=read"), Ask("GET", "/q?mode=write"), Ask("GET", "/q?mode=read&mode=write"), Ask("GET", "/q"),
    Ask("GET", "/h", headers=((b"x-mode", b"read"),)), Ask("GET", "/h", headers=((b"x-mode", b"write"),)),
    Ask("GET", "/h", headers=((b"x-mode", b"read"), (b"x-mode", b"write"))), Ask("GET", "/h"),
    Ask("GET", "/o", "other.test"), Ask("GET", "/public/a", "other.test"), Ask("GET", "/public/a", "evil.test"),
    Ask("GET", "/public/a", headers=((b"x-forwarded-host", b"evil.test"), (b"x-forwarded-for", b"10.0.0.1"))),
    Ask("GET", "/public/a", headers=((b"user-agent", b"sgph-nobody"),)),
]  # fmt: skip

Sender = Callable[[Lab, Ask], Awaitable[None]]


def _raw(authority: str, ask: Ask, prefix: str = "") -> bytes:
    lines = [f"{ask.method} {prefix}{ask.path} HTTP/1.1".encode(), b"host: " + authority.encode()]
    lines += [name + b": " + value for name, value in ask.headers]
    if ask.body is not None:
        lines.append(b"content-length: %d" % len(ask.body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (ask.body or b"")


async def _say(client: Client, ask: Ask, prefix: str = "", size: int = 1 << 20) -> None:
    raw = _raw(client.authority, ask, prefix)
    await client.send(*[raw[place : place + size] for place in range(0, len(raw), size)])
    await client.answer(ask.method)
    client.close()


async def _say2(client: H2Client, ask: Ask) -> None:
    stream = await client.begin(ask.path, *ask.headers, method=ask.method, ended=ask.body is None)
    if ask.body is not None:
        await client.data(stream, ask.body)
        await client.end(stream)
    await client.answer(stream)
    client.close()


def _authority(lab: Lab, ask: Ask) -> str:
    return f"{ask.host}:{lab.upstream.port}"


def _connects(size: int = 1 << 20, spell: Callable[[str], str] = str) -> Sender:
    async def send(lab: Lab, ask: Ask) -> None:
        authority = spell(_authority(lab, ask))
        line, head = await lab.connect(authority)
        if not head.startswith(b"HTTP/1.1 200 "):
            line.close()
            return
        inner = await start_tls(line, guest_context(lab.gateway.ca_path), ask.host)
        await _say(Client(inner, authority), ask, size=size)

    return send


async def _h2(lab: Lab, ask: Ask) -> None:
    line, head = await lab.connect(_authority(lab, ask))
    if head.startswith(b"HTTP/1.1 200 "):
        await _over(line, lab, ask, "h2")
    else:
        line.close()


async def _over(line: Line, lab: Lab, ask: Ask, protocol: str, size: int = 1 << 20) -> None:
    """Send over a connection to where the request is to go: `plain`, `h2` or `http/1.1` in TLS."""
    if protocol == "plain":
        await _say(Client(line, _authority(lab, ask)), ask, size=size)
    elif protocol == "h2":
        await _h2_over(line, lab, ask)
    else:
        inner = await start_tls(line, guest_context(lab.gateway.ca_path), ask.host)
        await _say(Client(inner, _authority(lab, ask)), ask, size=size)


async def _h2_over(line: Line, lab: Lab, ask: Ask) -> None:
    context = guest_context(lab.gateway.ca_path)
    context.set_alpn_protocols(["h2"])
    client = H2Client(await start_tls(line, context, ask.host), _authority(lab, ask))
    await client.flush()
    await _say2(client, ask)


async def _absolute(lab: Lab, ask: Ask) -> None:
    client = await lab.proxy(authority=_authority(lab, ask))
    await _say(client, ask, f"http://{client.authority}")


async def _base(lab: Lab, ask: Ask) -> None:
    await _say(await lab.base(), ask, "/" + ask.host.partition(".")[0])


def _socks(protocol: str, size: int = 1 << 20) -> Sender:
    async def send(lab: Lab, ask: Ask) -> None:
        line: Line = await lab.line("socks5")
        host = ask.host.encode()
        await line.send(b"\5\1\0\5\1\0\3" + bytes((len(host),)) + host + lab.upstream.port.to_bytes(2))
        if (await line.exactly(4))[3:] != b"\0":
            line.close()
            return
        await line.exactly(8)
        await _over(line, lab, ask, protocol, size)

    return send


def _ring(how: str) -> Sender:
    async def send(lab: Lab, ask: Ask) -> None:
        async with Ringed(lab, entry=KvmEntry(denied_names="nxdomain")) as ringed:
            code, address = await ringed.resolve(ask.host)
            if code or not address:
                return
            port = lab.upstream.port
            if how == "own TLS, HTTP/2":
                context = guest_context(lab.gateway.ca_path)
                context.set_alpn_protocols(["h2"])
                client = H2Client((await ringed.own_tls(ask.host, context, ask.host)).line, _authority(lab, ask))
                await client.flush()
                await _say2(client, ask)
            elif how == "own TLS":
                inner = await ringed.own_tls(ask.host, guest_context(lab.gateway.ca_path), ask.host)
                await _say(Client(inner.line, _authority(lab, ask)), ask)
            else:
                await _say(await (ringed.plain if how == "plain" else ringed.tls)(ask.host, port), ask)

    return send


def _netns(protocol: str, size: int = 1 << 20) -> Sender:
    """To the host itself, from inside of a namespace: the kernel redirects it."""

    async def send(lab: Lab, ask: Ask) -> None:
        line = await (await _inside(lab)).connect(ask.host, lab.upstream.port)
        if line is not None:
            await _over(line, lab, ask, protocol, size)

    return send


async def _netns_proxy(lab: Lab, ask: Ask) -> None:
    line = await (await _inside(lab)).connect(*ADDRESSES["proxy"])
    assert line is not None
    authority = _authority(lab, ask).encode()
    await line.send(b"CONNECT %s HTTP/1.1\r\nhost: %s\r\n\r\n" % (authority, authority))
    if (await line.head()).startswith(b"HTTP/1.1 200 "):
        await _over(line, lab, ask, "http/1.1")
    else:
        line.close()


async def _netns_base(lab: Lab, ask: Ask) -> None:
    line = await (await _inside(lab)).connect(*ADDRESSES["base_url"])
    assert line is not None
    await _say(Client(line, "127.0.0.1"), ask, "/" + ask.host.partition(".")[0])


async def _inside(lab: Lab) -> Inside:
    assert isinstance(lab, _Lab)
    return await lab.inside()


# name -> (how a request is sent, whether the upstream speaks TLS)
ENTRIES: dict[str, tuple[Sender, bool]] = {
    "connect": (_connects(), True),
    "connect, byte by byte": (_connects(1), True),
    "connect, spelt otherwise": (_connects(spell=lambda text: text.upper().replace(":", ".:")), True),
    "connect, HTTP/2": (_h2, True),
    "absolute form": (_absolute, False),
    "base URL": (_base, True),
    "base URL, plain upstream": (_base, False),
    "socks": (_socks("http/1.1"), True),
    "socks, byte by byte": (_socks("http/1.1", 1), True),
    "socks, HTTP/2": (_socks("h2"), True),
    "socks, plain": (_socks("plain"), False),
    "ring": (_ring("the template's TLS"), True),
    "ring, own TLS": (_ring("own TLS"), True),
    "ring, own TLS, HTTP/2": (_ring("own TLS, HTTP/2"), True),
    "ring, plain": (_ring("plain"), False),
    "netns": (_netns("http/1.1"), True),
    "netns, byte by byte": (_netns("http/1.1", 1), True),
    "netns, HTTP/2": (_netns("h2"), True),
    "netns, plain": (_netns("plain"), False),
    "netns, its proxy": (_netns_proxy, True),
    "netns, its base URL": (_netns_base, True),
}


def a_lab(*, tls: bool, rules: list[dict[str, Any]]) -> Lab:
    upstream = HttpUpstream(echo, "api.test", "other.test", "evil.test", tls=tls, port=0)
    return _Lab(upstream, rules=rules)


class _Lab(Lab):
    """With a route for each host, the SOCKS entry, and no complaint about records that no test names."""

    def __init__(self, upstream: HttpUpstream, *, rules: list[dict[str, Any]]) -> None:
        super().__init__(upstream, rules=rules, checks=False)
        self.http = upstream

        self._stack = contextlib.AsyncExitStack()
        self._inside: Inside | None = None

    def routes(self) -> dict[str, str]:
        scheme = "https" if self.upstream.tls else "http"
        return {name: f"{scheme}://{name}.test:{self.upstream.port}" for name in ("api", "other", "evil")}

    def settings(self) -> dict[str, Any]:
        made = super().settings()
        made["entries"]["base_url"]["routes"] = self.routes()
        made["entries"]["socks5"] = {"listen": "127.0.0.1:0", "guest": "g"}
        return made

    async def inside(self) -> Inside:
        """A namespace of this lab, made when it is first asked for."""
        if self._inside is None:
            self._inside = await self._stack.enter_async_context(Inside(self, self.routes()))
        return self._inside

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self._stack.aclose()
        await super().__aexit__(kind, *rest)


class _PoolLab(_Lab):
    """With a pool of microVMs."""

    def __init__(self, upstream: HttpUpstream, template: str) -> None:
        super().__init__(upstream, rules=RULES)
        self._template = template
        (self.folder / "work").mkdir()

    def settings(self) -> dict[str, Any]:
        made = super().settings()
        pool = {"listen": "unix:guests.sock", "template": self._template, "warm": 1, "folders": ["work"]}
        made["entries"]["kvm"] = {"pool": pool, "denied_names": "nxdomain"}
        return made

    async def ask_all(self, *arguments: str) -> None:
        """Hand in a program that sends all of the corpus."""
        options = ("--pool", str(self.folder / "guests.sock"), "--guest", "g")
        command = ("-m", "seamgate", "run", *options, "--", "python", "-c", _ASK_ALL, *arguments)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=self.folder / "work",
            env=environment(self.folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert (process.returncode, len(out.split(b"\n"))) == (0, len(CORPUS) + 1), (out, err)


def _fact(record: AuditRecord) -> tuple[Any, ...]:
    rule = record.rule if record.verdict is Decision.ALLOW or record.reason != "no_rule_matched" else ""
    return record.verdict, record.reason, rule


async def facts(entry: str, rules: list[dict[str, Any]] = RULES) -> list[Any]:
    """Send the corpus through an entry; return of each request what was decided, and what the upstream got of it."""
    send, tls = ENTRIES[entry]
    told: list[Any] = []
    async with a_lab(tls=tls, rules=rules) as lab:
        assert isinstance(lab, _Lab)
        for number, ask in enumerate(CORPUS):
            await send(lab, ask)
            await lab.until(lambda number=number: len(lab.records) == number + 1)  # type: ignore[misc]
            record = lab.records[-1]
            got = [(talk.method, talk.target, await talk.body()) for talk in lab.http.talks]
            lab.http.talks.clear()
            told.append((_fact(record), got))
            # What policy saw is what went up, and nothing went up that it denied.
            if record.verdict is Decision.DENY:
                assert got == [], ask
            else:
                assert record.request is not None
                (((method, target, body)),) = got
                assert (method, target.partition("?")[0]) == (record.request.method, record.request.path)
                assert body == (ask.body or b"") and target.partition("?")[2] == ask.path.partition("?")[2]
        await lab.settled()
        assert lab.gateway.seam.active == 0 and lab.failures == []
    return told


_reference: list[Any] = []


async def reference() -> list[Any]:
    """What CONNECT gives, asked once."""
    if not _reference:
        _reference.extend(await facts("connect"))
    return _reference


async def test_the_corpus_is_worth_it() -> None:
    """The control: each rule decides something, some are allowed, and denials have several reasons."""
    told = [fact for fact, _ in await reference()]
    assert {rule for verdict, _, rule in told if verdict == "allow"} == {"public", "json", "query", "header", "other"}
    assert {reason.value for verdict, reason, _ in told if verdict == "deny"} >= {
        "no_rule_matched", "rule_denied", "bad_path", "placeholder_misplaced",
    }  # fmt: skip


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name != "connect"])
async def test_every_entry_gives_the_same(entry: str) -> None:
    """Verdict, reason, rule, and what the upstream got, request by request."""
    expected = await reference()
    found = await facts(entry)
    different = [(ask, a, b) for ask, a, b in zip(CORPUS, expected, found, strict=True) if a != b]
    assert not different


_ASK_ALL = """
import http.client, json, socket, ssl, sys
port, corpus = sys.argv[1:]
context = ssl.create_default_context()
for method, host, raw in json.loads(corpus):
    try:
        line = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
    except socket.gaierror:
        print("no such name")
        continue
    line.sendall(raw.encode("latin-1"))
    answer = http.client.HTTPResponse(line, method=method)
    answer.begin()
    answer.read()
    print(answer.status)
    line.close()
"""


@pytest.mark.kvm
@pytest.mark.timeout(240)
async def test_a_guest_of_a_pool_gives_the_same(tmp_path: Path) -> None:
    """A real microVM that a gateway keeps warm, and Python's own TLS in it: all of the corpus, in order."""
    expected = await reference()
    with own_template(tmp_path / "templates") as template:
        upstream = HttpUpstream(echo, "api.test", "other.test", "evil.test", port=0)
        async with _PoolLab(upstream, template) as lab:
            corpus = [
                (ask.method, ask.host, _raw(f"{ask.host}:{upstream.port}", ask).decode("latin-1")) for ask in CORPUS
            ]
            await lab.ask_all(str(upstream.port), json.dumps(corpus))
            await lab.until(lambda: len(lab.records) == len(CORPUS))
            talks = iter([(talk.method, talk.target, await talk.body()) for talk in lab.http.talks])
            told = [(_fact(each), [next(talks)] if each.verdict is Decision.ALLOW else []) for each in lab.records]
    different = [(ask, a, b) for ask, a, b in zip(CORPUS, expected, told, strict=True) if a != b]
    assert not different and next(talks, None) is None


@pytest.mark.parametrize("seed", [1, 2])
async def test_order_never_matters(seed: int) -> None:
    """Of rules, and of the items of each list in them."""
    rng = random.Random(seed)
    rules = json.loads(json.dumps(RULES))
    rng.shuffle(rules)
    for rule in rules:
        for part in (rule.get("allow"), rule.get("deny")):
            for value in (part or {}).values():
                if isinstance(value, list):
                    rng.shuffle(value)
    assert await facts("connect", rules) == await reference()


@pytest.mark.parametrize(
    "deny",
    [
        {"hosts": ["api.test"], **SCHEMES, "methods": ["POST"]},
        {"hosts": ["**.test"], **SCHEMES, "paths": ["/public/*"]},
        {"hosts": ["api.test"], **SCHEMES, "headers": {"x-mode": "read"}},
    ],
)
async def test_adding_a_deny_never_allows(deny: dict[str, Any]) -> None:
    """What was denied stays denied, and something that was allowed is not any more."""
    more = [fact for fact, _ in await facts("connect", [*RULES, {"id": "more", "deny": deny}])]
    before = [fact for fact, _ in await reference()]
    allowed = [verdict == "allow" for verdict, _, _ in before]
    still = [verdict == "allow" for verdict, _, _ in more]
    assert all(was or not now for was, now in zip(allowed, still, strict=True))
    assert sum(still) < sum(allowed)
